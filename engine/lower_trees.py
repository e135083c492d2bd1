"""Tree ensembles of ai.onnx.ml → one Trees step, and the post transform as steps of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, F64, I64, Expr, apply, cast, const, load, stage
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.trees import CHILDREN, FEATURES, PAIRS, TOGETHER, TRACKS, Trees
from graphdoc.engine.lower import Named, NotLowered, Site, constant, lowering
from graphdoc.engine.lower_rows import place_stages, run_rows, softmax_parts
from graphdoc.engine.ops import ml_forest as forest
from graphdoc.engine.ops.ml_scores import texts
from graphdoc.engine.ops.ml_trees import NODE_ATTRIBUTES, TRANSFORMS
from graphdoc.engine.ops.table import Call
from graphdoc.engine.program import Buffer, Kind, View, whole

ML = "ai.onnx.ml"
U64 = np.dtype(np.uint64)

Array = Any


@dataclass(frozen=True, slots=True)
class _Packed:
    """Tables of a Trees step, and of each column whether rows get votes for it: :func:`_always`."""

    spec: Trees
    tables: tuple[Array, ...]
    always: Array


# ---- packing ---------------------------------------------------------------------------------------------


def _test(nodes: forest.Nodes) -> tuple[bool, Array]:
    """Return whether tests are >= (else <=), and the splits for that."""
    modes = set(nodes.modes)
    inner = nodes.mode != forest.LEAF
    split = nodes.split.astype(np.float32)
    if modes <= {0, 1}:
        strict, edge = nodes.mode == 1, -np.inf
    elif modes <= {2, 3}:
        strict, edge = nodes.mode == 3, np.inf
    else:
        raise NotLowered("tests that are neither all <= or < nor all >= or >")
    if np.any(inner & strict & (split == edge)) or np.any(np.isnan(split[inner])):
        raise NotLowered("a split at infinity, or at NaN")
    return bool(modes and min(modes) >= 2), np.where(strict, np.nextafter(split, np.float32(edge)), split)


def _always(nodes: forest.Nodes, votes: forest.Votes, tree: Array) -> Array:
    """Return of each column whether every row gets a vote for it: 1, none does: 0, that depends: -1."""
    columns = votes.weight.shape[1]
    if votes.given is None:
        return np.ones(columns, np.int8)
    leaf = nodes.mode == forest.LEAF
    every = np.ones((len(nodes.roots), columns), np.bool_)
    np.logical_and.at(every, tree[leaf], votes.given[leaf])
    always: Array = every.any(axis=0).astype(np.int8)
    always[votes.given[leaf].any(axis=0) & (always == 0)] = -1
    return always


def _trees_of(nodes: forest.Nodes) -> tuple[Array, Array]:
    """Return the tree of each node, and the most steps in each tree."""
    tree = np.full(len(nodes.mode), -1)
    depth = np.zeros(len(nodes.roots), np.int64)
    front = np.asarray(nodes.roots)
    tree[front] = np.arange(len(front))
    for level in range(nodes.depth + 1):
        front = front[nodes.mode[front] != forest.LEAF]
        depth[np.unique(tree[front])] = level + 1
        for side in (0, 1):
            tree[nodes.children[2 * front + side]] = tree[front]
        front = nodes.children[np.concatenate([2 * front, 2 * front + 1])]
    if np.any(tree < 0):
        raise NotLowered("nodes that no root leads to")
    return tree, depth


def pack(nodes: forest.Nodes, votes: forest.Votes) -> _Packed:
    """Return the tables. Raises NotLowered for ensembles that records cannot say."""
    if not len(nodes.roots) or (len(nodes.feature) and int(nodes.feature.max()) >= FEATURES):
        raise NotLowered("no trees, or too many features")
    greater, split = _test(nodes)
    tree, depth = _trees_of(nodes)
    always = _always(nodes, votes, tree)
    groups = -(-len(depth) // TOGETHER)
    steps = np.zeros(groups * TOGETHER, np.int64)
    steps[: len(depth)] = depth
    steps = steps.reshape(groups, TOGETHER).max(axis=1)
    columns = votes.weight.shape[1]
    leaf = nodes.mode == forest.LEAF
    low = split.view(np.uint32).astype(np.uint64)
    tables: tuple[Array, ...] = ()
    if columns == 1:
        low[leaf] = votes.weight[leaf, 0].astype(np.float32).view(np.uint32)
    else:
        low[leaf] = np.arange(int(leaf.sum()))
        tables = (_table(votes.weight[leaf].astype(np.float32)),)
    high = nodes.feature.astype(np.uint64) << np.uint64(32)
    tracks = np.zeros(len(leaf), np.bool_) if nodes.missing is None else nodes.missing & ~leaf
    high |= tracks.astype(np.uint64) << np.uint64(TRACKS)
    records, roots = _records(nodes, low | high, steps, columns, len(tables[0]) - 1 if tables else 0)
    missing = "none" if not tracks.any() else "all" if tracks[~leaf].all() else "some"
    return _Packed(Trees(greater, missing), (records, roots, steps, *tables), always)


def _table(weights: Array) -> Array:
    """Return the leaves' values padded to full vectors, and a row of zeros after them."""
    columns = weights.shape[1]
    size = -(-columns // 16) * 16 if columns > 8 else 1 << (columns - 1).bit_length()
    table = np.zeros((len(weights) + 1, size), np.float32)
    table[:-1, :columns] = weights
    return table


def _records(
    nodes: forest.Nodes, words: Array, steps: Array, columns: int, nothing: int
) -> tuple[Array, Array]:
    """Return the records, pair after pair, tree after tree, and the first one of each tree.

    nothing: the leaf that trees are filled up with, to a multiple of 16.
    """
    trees = len(nodes.roots)
    room = np.repeat(steps, TOGETHER)[:trees]
    front, owner = np.asarray(nodes.roots), np.arange(trees)
    pairs = np.ones(trees, np.int64)  # the root, and a place left empty beside it
    own: list[tuple[Array, Array, Array]] = []
    local = np.zeros(trees, np.int64)
    looped = np.zeros(trees, np.bool_)
    for level in range(int(steps.max(initial=0)) + 1):
        leaf = nodes.mode[front] == forest.LEAF
        spread = (level < room[owner]) & ~looped
        order = np.cumsum(spread) - 1
        start = np.zeros(trees, np.int64)
        np.add.at(start, owner[spread], 1)
        rank = order - (np.cumsum(start) - start)[owner]
        child = np.where(looped, local // 2, np.where(spread, pairs[owner] + rank, 0))
        own.append((owner, local, words[front] | child.astype(np.uint64) << np.uint64(CHILDREN)))
        pairs += start
        keep = spread
        sides = [np.where(leaf, front, nodes.children[2 * front + side])[keep] for side in (1, 0)]
        places = [2 * child[keep], 2 * child[keep] + 1]
        turned = np.repeat(leaf[keep], 2)
        owner = np.repeat(owner[keep], 2)
        front = np.stack(sides, axis=1).reshape(-1)
        local = np.stack(places, axis=1).reshape(-1)
        looped = turned
    if pairs.max() >= PAIRS:
        raise NotLowered("trees with too many nodes")
    first = np.zeros(len(steps) * TOGETHER, np.int64)
    first[1:trees] = np.cumsum(2 * pairs)[:-1]
    total = int(2 * pairs.sum())
    records = np.zeros(total + 2, np.uint64)
    for who, at, word in own:
        records[first[who] + at] = word
    first[trees:] = total
    records[total:] = np.uint64(nothing)
    return records, first


# ---- scores ----------------------------------------------------------------------------------------------


def _scores(at: Site, x: View, packed: _Packed, columns: int) -> View:
    """Add the step; return the raw scores (n, columns)."""
    if len(x.shape) == 1:
        x = View(x.buffer, (1, *x.shape), (0, *x.strides), x.offset)
    if len(x.shape) != 2 or x.dtype == F64:
        raise NotLowered("features of another rank, or float64")
    features = (packed.tables[0] >> np.uint64(32)) & np.uint64(FEATURES - 1)
    if int(features.max()) >= x.shape[1]:
        raise NotLowered("features that the input does not have")
    out = at.fresh((x.shape[0], columns), F32)
    at.step(packed.spec, [at.cast(x, F32), *(_stored(t, at) for t in packed.tables)], [out])
    return out


def _stored(table: Array, at: Site) -> View:
    flat = np.ascontiguousarray(table).reshape(-1)
    return whole(Buffer(at.name, table.dtype, flat.size, Kind.CONSTANT, flat), table.shape)


def _weights(*values: Any) -> Any:
    return next((v for v in values if v is not None and len(v)), [])


def _from_ids(
    columns: int, ids: Any, target: Any, weight: Any, attributes: dict[str, Any]
) -> tuple[forest.Nodes, forest.Votes]:
    if len(_weights(weight)) == 0:
        raise NotLowered("no votes")
    nodes = {name: attributes.get(f"nodes_{name}") for name in NODE_ATTRIBUTES}
    return forest.from_ids(Call(), np.dtype(np.float32), columns, ids, target, weight, nodes)


def _plus(at: Site, scores: View, base: Sequence[float]) -> View:
    if not len(base):
        return scores
    row = constant(np.asarray(base, np.float32), at.name)
    return at.map(lambda s, b: apply("add", s, b), scores, row)


def finished(at: Site, scores: View, transform: str) -> View:
    """Apply the post transform to two columns or more."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return at.map(lambda s: apply("sigmoid", s), scores)
    if transform != "SOFTMAX":
        raise NotLowered(f"post transform {transform}")
    stages, power = softmax_parts(load(0, F32))
    (result,) = run_rows(at, [scores], [1], stages, [(apply("div", power, stage(1, F32)), True)])
    return result


@lowering("TreeEnsembleRegressor", domain=ML)
def regressor(
    at: Site,
    X: View,
    *,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    post_transform: str = "NONE",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Array | None = None,
    target_ids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_treeids: Sequence[int] = (),
    target_weights: Sequence[float] | None = None,
    target_weights_as_tensor: Array | None = None,
    **attributes: Any,
) -> View:
    """Sums or means of the leaves' values."""
    if aggregate_function not in ("SUM", "AVERAGE") or post_transform == "PROBIT":
        raise NotLowered(f"aggregate {aggregate_function}, post transform {post_transform}")
    weight = _weights(target_weights_as_tensor, target_weights)
    nodes, votes = _from_ids(n_targets, (target_treeids, target_nodeids), target_ids, weight, attributes)
    scores = _scores(at, X, pack(nodes, votes), n_targets)
    if aggregate_function == "AVERAGE":
        scores = at.map(lambda s: apply("div", s, const(len(nodes.roots), F32)), scores)
    base = _weights(base_values_as_tensor, base_values)
    scores = _plus(at, scores, base if len(base) == n_targets else [])
    return finished(at, scores, post_transform) if n_targets > 1 else scores


@lowering("TreeEnsembleClassifier", domain=ML)
def classifier(
    at: Site,
    X: View,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    base_values: Sequence[float] | None = None,
    base_values_as_tensor: Array | None = None,
    class_ids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_treeids: Sequence[int] = (),
    class_weights: Sequence[float] | None = None,
    class_weights_as_tensor: Array | None = None,
    **attributes: Any,
) -> tuple[View | Named, View]:
    """The top class and the scores; of two classes by ONNX Runtime's rule, without base values."""
    labels = classes_of(classlabels_int64s, classlabels_strings)
    if not labels:
        raise NotLowered("no labels")
    weight = _weights(class_weights_as_tensor, class_weights)
    nodes, votes = _from_ids(len(labels), (class_treeids, class_nodeids), class_ids, weight, attributes)
    packed = pack(nodes, votes)
    base = _weights(base_values_as_tensor, base_values)
    total = _scores(at, X, packed, len(labels))
    if len(labels) != 2:
        return _many(at, total, packed, labels, base, post_transform)
    if len(base):
        raise NotLowered("base values of two classes")
    lone = len(set(class_ids)) == 1
    shares = lone and bool(np.all(np.asarray(weight) >= 0))
    return _two(at, total, packed.always, labels, post_transform, lone=lone, shares=shares)


def _many(
    at: Site, total: View, packed: _Packed, labels: list[Any], base: Sequence[float], transform: str
) -> tuple[View | Named, View]:
    """The first highest of the scores that got a vote or a base value."""
    if len(labels) == 1:
        raise NotLowered("a single class")
    if len(base) == len(labels):
        total = _plus(at, total, base)
    elif np.any(packed.always != 1):
        raise NotLowered("classes that not every row has votes for")
    (top,) = run_rows(at, [total], [1], place_stages(total, "min", "max"), [(stage(1, I64), False)])
    return labelled(at, top.permuted([0, 1]).reshaped((total.shape[0],)), labels), finished(
        at, total, transform
    )


def classes_of(integers: Sequence[int] | None, strings: Sequence[str] | None) -> list[Any]:
    """Return the labels of the classes: strings where there are any."""
    return list(strings or integers or ())


def labelled(at: Site, top: View | None, labels: list[Any]) -> View | Named:
    """Return the labels at places (n), int64 or strings."""
    assert top is not None  # noqa: S101  # a fresh buffer is row-major
    if labels and isinstance(labels[0], str):
        return Named(texts(labels), top)
    if labels == list(range(len(labels))):
        return top
    out = at.fresh(top.shape, I64)
    table = constant(np.asarray(labels, np.int64), at.name)
    at.step(Gather(0), [table, top], [out])
    return out


def _two(
    at: Site, total: View, always: Array, labels: list[Any], transform: str, *, lone: bool, shares: bool
) -> tuple[View | Named, View]:
    """Two classes: case 1, one alone has weights; case 2, both have (``engine/ops/ml_trees.py``)."""
    if transform not in ("NONE", "LOGISTIC"):
        raise NotLowered(f"post transform {transform} of two classes")
    if np.any(always < 0):
        raise NotLowered("votes for a class that depend on the row")
    columns = [total.sliced(1, k, 1) for k in range(2)]
    edge = const(0.5 if shares else 0, F32)
    deciding = columns[1] if always[1] else columns[0]
    top = at.map(lambda s: cast(apply("lt", edge, s), I64), deciding).reshaped((total.shape[0],))
    if not lone and not isinstance(labels[0], str):
        labels = [0, 1]
    scores = at.fresh(total.shape, F32)
    for k in range(2):
        at.copy(_score(at, columns, always, k, transform, shares), scores.sliced(1, k, 1))
    return labelled(at, top, labels), scores


def _score(at: Site, columns: list[View], always: Array, k: int, transform: str, shares: bool) -> View:
    """Return one class's score as (n, 1)."""

    def finish(s: Expr) -> Expr:
        return apply("sigmoid", s) if transform == "LOGISTIC" else s

    if always[1]:
        return at.map(finish, columns[k])
    if k == 1:
        return at.map(finish, columns[0])
    if transform == "LOGISTIC" or not shares:
        return at.map(lambda s: finish(apply("neg", s)), columns[0])
    return at.map(lambda s: apply("sub", const(1, F32), s), columns[0])


@lowering("TreeEnsemble", domain=ML, since=5)
def ensemble(
    at: Site,
    X: View,
    *,
    tree_roots: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_splits: Array,
    nodes_modes: Array,
    nodes_truenodeids: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int],
    nodes_falseleafs: Sequence[int],
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    **_: Any,
) -> View:
    """Sums or means of the leaves' values; float32 alone."""
    name = forest.AGGREGATES[aggregate_function]
    if X.dtype != F32 or name not in ("SUM", "AVERAGE") or TRANSFORMS[post_transform] == "PROBIT":
        raise NotLowered(f"dtype {X.dtype}, aggregate {name}, post transform {post_transform}")
    inner, leaves = len(nodes_modes), len(leaf_targetids)
    sides = ((nodes_falsenodeids, nodes_falseleafs), (nodes_truenodeids, nodes_trueleafs))
    mode = np.concatenate([np.asarray(nodes_modes, np.int8), np.full(leaves, forest.LEAF, np.int8)])
    nodes = forest.make_nodes(
        np,
        F32,
        mode,
        forest.padded(nodes_featureids, len(mode)),
        forest.padded(nodes_splits, len(mode)),
        forest.padded(nodes_missing_value_tracks_true, len(mode)),
        forest.children_of(inner, leaves, *sides),
        np.asarray(tree_roots, np.int64),
    )
    where = np.arange(inner, len(mode))
    leaf = mode == forest.LEAF
    votes = forest.make_votes(np, F32, leaf, where, leaf_targetids, leaf_weights, n_targets)
    scores = _scores(at, X, pack(nodes, votes), n_targets)
    if name == "AVERAGE":
        scores = at.map(lambda s: apply("div", s, const(len(tree_roots), F32)), scores)
    return finished(at, scores, TRANSFORMS[post_transform]) if n_targets > 1 else scores
