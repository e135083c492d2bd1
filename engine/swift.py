"""Short ways through nodes of the host that small models spend their time in.

A row is a function of the node's attributes and its constant inputs by position; it returns a function of the
other inputs, in order, that means the same as level 0's, or None where there is no short way. What it returns
raises no floating-point warnings and gives arrays, never NumPy's scalars.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from graphdoc.engine.ops.table import canonical_domain
from graphdoc.engine.parts import HostNode, Known

Short = Callable[..., Any]


def short_way(part: HostNode) -> Short | None:
    """Return the short way through a host node, None where there is none."""
    node = part.node.node
    if not isinstance(part.node.run, partial):  # a function of the stage's own has no inputs of the graph
        return None if part.node.inputs or part.node.bodies else part.node.run
    row = _ROWS.get((canonical_domain(node.domain), node.op_type))
    if row is None:
        return None
    known = {k: s.value for k, s in enumerate(part.inputs) if isinstance(s, Known)}
    return row(known, **part.node.run.keywords)


def _zip_map(
    known: Mapping[int, Any],
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> Short | None:
    labels = list(classlabels_strings or classlabels_int64s or ())
    if known or not labels:
        return None
    count, build = len(labels), _maps(labels)

    def zip_map(x: Any) -> list[dict[Any, float]]:
        rows = x if x.ndim == 2 else x[None]
        if rows.shape[1] != count:
            raise ValueError(f"{count} class labels for {rows.shape[1]} scores")
        return build(rows.tolist())

    return zip_map


def _maps(labels: Sequence[Any]) -> Callable[[list[list[float]]], list[dict[Any, float]]]:
    """Return the function from rows to maps by label: a display of few labels takes half the time."""
    if len(set(labels)) == len(labels) == 2:
        a, b = labels
        return lambda rows: [{a: x, b: y} for x, y in rows]
    if len(set(labels)) == len(labels) == 3:
        a, b, c = labels
        return lambda rows: [{a: x, b: y, c: z} for x, y, z in rows]
    return lambda rows: list(map(dict, map(zip, repeat(labels), rows)))


def _gather(known: Mapping[int, Any], *, axis: int = 0) -> Short | None:
    """One index: a slice, which copies nothing."""
    if set(known) != {1} or known[1].size != 1 or known[1].ndim != 1 or axis < 0:
        return None
    place = int(known[1][0])
    before = (slice(None),) * axis

    def gather(x: Any) -> Any:
        size = x.shape[axis]
        if not -size <= place < size:
            raise IndexError(f"index {place} is out of bounds for size {size}")
        first = place + size if place < 0 else place
        return x[(*before, slice(first, first + 1))]

    return gather


def _identity(known: Mapping[int, Any]) -> Short | None:
    return None if known else lambda x: x


_ROWS: Mapping[tuple[str, str], Callable[..., Short | None]] = {
    ("ai.onnx.ml", "ZipMap"): _zip_map,
    ("", "Gather"): _gather,
    ("", "Identity"): _identity,
}
