"""Decision trees as arrays: built once, walked together by all rows and all trees.

Each step of a walk moves every (row, tree) pair one level down. Leaf weights are added tree after tree, in
the order of the file, so that sums round as ONNX Runtime's do on one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.ops import ml_scores
from graphdoc.engine.ops.table import Array, Call

MEMBER = 6
LEAF = 7
MODES = {
    "BRANCH_LEQ": 0,
    "BRANCH_LT": 1,
    "BRANCH_GTE": 2,
    "BRANCH_GT": 3,
    "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5,
    "BRANCH_MEMBER": MEMBER,
    "LEAF": LEAF,
}
COMPARE = (
    lambda value, split: value <= split,
    lambda value, split: value < split,
    lambda value, split: value >= split,
    lambda value, split: value > split,
    lambda value, split: value == split,
    lambda value, split: value != split,
)
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
BLOCK = 1 << 20
"""(row, tree) pairs walked at once."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of all trees; children are positions in these arrays, a leaf is its own child.

    feature, split, mode: int64, float, int8 [nodes]. missing: bool [nodes], NaN takes the true
    branch; None when it never does.
    children: int64 [2 × nodes], the false and the true child of each node in turn.
    roots: int64 [trees]. depth: the most steps from a root to a leaf.
    members: float [member nodes, longest list], NaN padded; group: row of ``members`` by node.
    """

    feature: Array
    split: Array
    mode: Array
    missing: Array | None
    children: Array
    roots: Array
    depth: int
    modes: tuple[int, ...]
    members: Array
    group: Array


@dataclass(frozen=True, slots=True)
class Votes:
    """What the leaves say: weight and given, [nodes, targets]; given is None when all leaves vote for all."""

    weight: Array
    given: Array | None


# ---- building -----------------------------------------------------------------------------------------


def _array(values: Any, default: Any, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an attribute as an array; an absent one is ``default`` everywhere."""
    if values is None or len(values) == 0:
        return np.full(count, default, dtype)
    result = np.asarray(values).astype(dtype)
    if len(result) != count:
        raise ValueError(f"an attribute has {len(result)} entries where {count} nodes need one each")
    return result


def _depth(children: np.ndarray[Any, Any], roots: np.ndarray[Any, Any], leaf: np.ndarray[Any, Any]) -> int:
    """Return the number of steps after which every path has reached a leaf."""
    frontier = np.unique(roots)
    for depth in range(len(leaf) + 1):
        if leaf[frontier].all():
            return depth
        frontier = np.unique(np.concatenate([children[2 * frontier], children[2 * frontier + 1]]))
    raise ValueError("a tree has a cycle")


class _Ids:
    """Looks up nodes by (tree id, node id)."""

    def __init__(self, trees: np.ndarray[Any, Any], nodes: np.ndarray[Any, Any]) -> None:
        self._span = int(nodes.max(initial=0)) + 1
        keys = trees * self._span + nodes
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if np.any(self._keys[1:] == self._keys[:-1]):
            raise ValueError("a tree holds a node id twice")

    def find(self, trees: np.ndarray[Any, Any], nodes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        keys = trees * self._span + nodes
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        wrong = (self._keys[at] != keys) | (nodes < 0) | (nodes >= self._span)
        if np.any(wrong):
            first = int(np.argmax(wrong))
            raise ValueError(f"tree {int(trees[first])} has no node {int(nodes[first])}")
        found: np.ndarray[Any, Any] = self._order[at]
        return found


def make_nodes(
    xp: Any,
    dtype: Any,
    mode: np.ndarray[Any, Any],
    feature: Any,
    split: Any,
    missing: Any,
    children: np.ndarray[Any, Any],
    roots: np.ndarray[Any, Any],
    members: np.ndarray[Any, Any] | None = None,
    group: np.ndarray[Any, Any] | None = None,
) -> Nodes:
    count = len(mode)
    leaf = mode == LEAF
    tracks = _array(missing, 0, count, np.int64) == 1
    return Nodes(
        xp.asarray(np.where(leaf, 0, _array(feature, 0, count, np.int64))),
        xp.asarray(_array(split, 0, count, dtype)),
        xp.asarray(mode),
        xp.asarray(tracks) if tracks.any() else None,
        xp.asarray(children),
        xp.asarray(roots),
        _depth(children, roots, leaf),
        tuple(int(m) for m in np.unique(mode[~leaf])),
        xp.asarray(np.zeros((0, 0), dtype) if members is None else members.astype(dtype)),
        xp.asarray(np.zeros(count, np.int64) if group is None else group),
    )


def make_votes(
    xp: Any, dtype: Any, leaf: np.ndarray[Any, Any], at: Any, target: Any, weight: Any, targets: int
) -> Votes:
    """Return the votes; several for one target at one leaf add up, and those at inner nodes do not count."""
    target = np.asarray(target, np.int64)
    if np.any((target < 0) | (target >= targets)):
        raise ValueError(f"a leaf votes for target {int(target.max())} of {targets}")
    table = np.zeros((len(leaf), targets), dtype)
    np.add.at(table, (at, target), np.asarray(weight).astype(dtype))
    given = np.zeros(table.shape, np.bool_)
    given[at, target] = True
    table[~leaf] = 0
    return Votes(xp.asarray(table), None if given[leaf].all() else xp.asarray(given & leaf[:, None]))


def from_ids(
    call: Call, dtype: Any, targets: int, ids: Any, target: Any, weight: Any, attributes: dict[str, Any]
) -> tuple[Nodes, Votes]:
    """Build the tables of TreeEnsembleClassifier and TreeEnsembleRegressor.

    ids: (tree ids, node ids) of the votes. attributes: the nodes_* attributes without their prefix.
    """
    trees = np.asarray(attributes["treeids"], np.int64)
    nodes = np.asarray(attributes["nodeids"], np.int64)
    known = _Ids(trees, nodes)
    mode = np.array([MODES[name] for name in attributes["modes"]], np.int8)
    leaf = mode == LEAF
    children = np.repeat(np.arange(len(mode)), 2)
    children[0::2][~leaf] = known.find(trees[~leaf], np.asarray(attributes["falsenodeids"], np.int64)[~leaf])
    children[1::2][~leaf] = known.find(trees[~leaf], np.asarray(attributes["truenodeids"], np.int64)[~leaf])
    roots = np.flatnonzero(np.diff(trees, prepend=trees[:1] - 1))
    split = attributes["values_as_tensor"]
    split = attributes["values"] if split is None or not len(split) else split
    built = make_nodes(
        call.xp,
        dtype,
        mode,
        attributes["featureids"],
        split,
        attributes["missing_value_tracks_true"],
        children,
        roots,
    )
    at = known.find(np.asarray(ids[0], np.int64), np.asarray(ids[1], np.int64))
    return built, make_votes(call.xp, dtype, leaf, at, target, weight, targets)


# ---- walking ------------------------------------------------------------------------------------------


def _holds(xp: Any, nodes: Nodes, at: Array, value: Array) -> Array:
    """Return whether each (row, tree) pair goes to the true child."""
    split = nodes.split[at]
    if len(nodes.modes) == 1 and nodes.modes[0] != MEMBER:
        holds = COMPARE[nodes.modes[0]](value, split)
    else:
        mode = nodes.mode[at]
        holds = xp.zeros(at.shape, np.bool_)
        for kind in nodes.modes:
            if kind == MEMBER:
                pairs = xp.nonzero(mode == MEMBER)
                holds[pairs] = _member(nodes, at[pairs], value[pairs])
            else:
                holds = xp.where(mode == kind, COMPARE[kind](value, split), holds)
    return holds if nodes.missing is None else holds | (nodes.missing[at] & xp.isnan(value))


def _member(nodes: Nodes, at: Array, value: Array) -> Array:
    """Return whether the values are in their nodes' sets; NaN is in none. at, value: [pairs]."""
    return (nodes.members[nodes.group[at]] == value[:, None]).any(axis=-1)


def leaves_of(xp: Any, nodes: Nodes, x: Array) -> Array:
    """Return the leaf each row of x [N, F] reaches in each tree, int64 [N, trees]."""
    flat = x.reshape(-1)
    first = xp.arange(x.shape[0], dtype=np.int64)[:, None] * x.shape[1]
    at = xp.broadcast_to(nodes.roots, (x.shape[0], len(nodes.roots)))
    for _ in range(nodes.depth):
        value = flat[first + nodes.feature[at]]
        at = nodes.children[2 * at + _holds(xp, nodes, at, value)]
    return at


def blocks(count: int, trees: int) -> list[slice]:
    step = max(1, BLOCK // max(1, trees))
    return [slice(start, start + step) for start in range(0, count, step)]


def total_of(xp: Any, votes: Votes, leaves: Array, extreme: Any = None) -> Array:
    """Return the votes added up over trees, [N, targets]; or their minimum or maximum by ``extreme``."""
    total = votes.weight[leaves[:, 0]]
    for tree in range(1, leaves.shape[1]):
        weight = votes.weight[leaves[:, tree]]
        total = total + weight if extreme is None else extreme(total, weight)
    return total


def voted_of(xp: Any, votes: Votes, leaves: Array) -> Array | None:
    """Return which targets got a vote, bool [N, targets]; None when all did."""
    if votes.given is None:
        return None
    voted = votes.given[leaves[:, 0]]
    for tree in range(1, leaves.shape[1]):
        voted = voted | votes.given[leaves[:, tree]]
    return None if bool(voted.all()) else voted


def _extreme(xp: Any, votes: Votes, leaves: Array, name: str) -> Array:
    """Return the least or the greatest vote, 0 where there is none."""
    if votes.given is None:
        return total_of(xp, votes, leaves, xp.minimum if name == "MIN" else xp.maximum)
    unset = np.inf if name == "MIN" else -np.inf
    open_votes = Votes(xp.where(votes.given, votes.weight, votes.weight.dtype.type(unset)), None)
    voted = voted_of(xp, votes, leaves)
    found = total_of(xp, open_votes, leaves, xp.minimum if name == "MIN" else xp.maximum)
    return found if voted is None else xp.where(voted, found, 0)


def _aggregate(xp: Any, votes: Votes, leaves: Array, name: str) -> Array:
    if name in ("MIN", "MAX"):
        return _extreme(xp, votes, leaves, name)
    total = total_of(xp, votes, leaves)
    return total / total.dtype.type(leaves.shape[1]) if name == "AVERAGE" else total


def regress(
    xp: Any, nodes: Nodes, votes: Votes, x: Array, name: str, post_transform: str, base: Array | None
) -> Array:
    """Return the scores [N, targets] in the dtype of x. base: [targets]."""
    if name not in AGGREGATES:
        raise ValueError(f"unknown aggregate_function '{name}'")
    targets = votes.weight.shape[1]
    parts = [xp.zeros((0, targets), x.dtype)]
    for block in blocks(x.shape[0], len(nodes.roots)):
        scores = _aggregate(xp, votes, leaves_of(xp, nodes, x[block]), name)
        scores = scores if base is None else scores + base
        finish = ml_scores.transform if targets > 1 else ml_scores.transform_single
        parts.append(finish(xp, scores, post_transform))
    return xp.concatenate(parts)


# ---- building from the form of version 5 ---------------------------------------------------------------


def padded(values: Any, count: int) -> np.ndarray[Any, Any] | None:
    """Return the values of the inner nodes with zeros for the leaves after them."""
    if values is None:
        return None
    values = np.asarray(values)
    return np.concatenate([values, np.zeros(count - len(values), values.dtype)])


def children_of(
    inner: int, leaves: int, *branches: tuple[Sequence[int], Sequence[int]]
) -> np.ndarray[Any, Any]:
    """Return the children of inner nodes, then of leaves. branches: (ids, is leaf) of false and of true."""
    children = np.repeat(np.arange(inner + leaves), 2)
    for side, (ids, is_leaf) in enumerate(branches):
        ids_array = np.asarray(ids, np.int64)
        found = ids_array + inner * (np.asarray(is_leaf, np.int64) != 0)
        limit = np.where(np.asarray(is_leaf) != 0, inner + leaves, inner)
        if np.any((ids_array < 0) | (found >= limit)):
            raise ValueError("a branch leads to a node or leaf that does not exist")
        children[side : 2 * inner : 2] = found
    return children


def memberships(
    mode: np.ndarray[Any, Any], values: Any
) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
    """Return the sets of the BRANCH_MEMBER nodes, NaN padded, and each node's row among them.

    values: the sets one after the other, each ended by NaN.
    """
    wanted = int((mode == MEMBER).sum())
    if not wanted:
        return None, None
    values = np.asarray([] if values is None else values)
    ends = np.flatnonzero(np.isnan(values.astype(np.float64)))
    sets = [part[~np.isnan(part.astype(np.float64))] for part in np.split(values, ends + 1)][:wanted]
    if len(sets) < wanted:
        raise ValueError(f"membership_values has {len(sets)} sets for {wanted} nodes")
    table = np.full((wanted, max(1, *(len(part) for part in sets))), np.nan)
    for row, part in enumerate(sets):
        table[row, : len(part)] = part
    group = np.zeros(len(mode), np.int64)
    group[mode == MEMBER] = np.arange(wanted)
    return table, group
