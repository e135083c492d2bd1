"""2:4 pruning: of every four weights along the axis that a layer sums over, the two smallest become 0.

That is the pattern that sparse tensor cores take (two non-zero values in each group of four).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.diff_weights import tensor_of
from graphdoc.surgeon.edit_find import unknown
from graphdoc.surgeon.stubs import refuse_stripped

GROUP, KEPT = 4, 2

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_ROWS = 2**22
"""Elements pruned together."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A weight that a layer sums over.

    axis: the one that is summed. lost: norm of what became 0 ÷ norm of the weight, 0..1; None when it was
    left alone. zeros: share of elements that were 0 before. reason: why it was left alone, "" otherwise.
    """

    layer: str
    weight: str
    shape: tuple[int, ...]
    axis: int
    lost: float | None
    zeros: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was pruned. lost: over all pruned weights together, 0..1."""

    layers: tuple[Pruned, ...]
    lost: float

    @property
    def pruned(self) -> tuple[Pruned, ...]:
        """The weights that were pruned."""
        return tuple(layer for layer in self.layers if not layer.reason)


def prune(
    model: ir.Model, *, only: Sequence[str] = (), skip: Sequence[str] = (), most: float | None = None
) -> PruneReport:
    """Prune the weights of Conv, ConvTranspose, Gemm and MatMul in place, by magnitude.

    only, skip: globs over the names of layers and weights. most: leave a weight alone when it would lose more
    than this share of its norm. Left alone too: sizes that are no multiple of 4 along the axis, integers,
    weights that hold NaN or infinity, or that other nodes read in another way. New tensors are computed when
    they are written.

    Raises ModelError for a stripped model; UsageError for a glob that matches no layer and no weight, and
    for a share outside 0..1.
    """
    refuse_stripped(model, "pruning")
    if most is not None and not 0 <= most <= 1:
        raise UsageError(
            f"{most:g} is no share of a norm", where="--max-loss", next_step="give 0 to 1: --max-loss 0.4"
        )
    rows: list[Pruned] = []
    kept_squares = lost_squares = 0.0
    found = _summed(model)
    _check_globs({"--only": only, "--skip": skip}, found)
    for value, uses in found.items():
        row, total = _consider(value, uses, only, skip, most)
        rows.append(row)
        if row.lost is not None:
            kept_squares += total
            lost_squares += total * row.lost**2
            _replace(value, row.axis)
    share = math.sqrt(lost_squares / kept_squares) if kept_squares else 0.0
    return PruneReport(tuple(rows), share)


def _check_globs(
    globs: Mapping[str, Sequence[str]], found: Mapping[ir.Value, list[tuple[ir.Node, int | None]]]
) -> None:
    """Raise UsageError for a glob that matches nothing, with the nearest names."""
    rows = [_names(value, uses)[0] for value, uses in found.items()]
    for option, patterns in globs.items():
        for pattern in patterns:
            if not any(_matches(names, [pattern]) for names in rows):
                known = [name for names in rows for name in names]
                raise unknown("layer or weight", pattern, known, f"{option} {pattern}")


def _names(value: ir.Value, uses: list[tuple[ir.Node, int | None]]) -> tuple[tuple[str, str], int]:
    """Return the names of layer and weight, and the axis that is summed."""
    node, axis = next((node, axis) for node, axis in uses if axis is not None)
    return (node.name or str(node.outputs[0].name), str(value.name)), axis or 0


def _summed(model: ir.Model) -> dict[ir.Value, list[tuple[ir.Node, int | None]]]:
    """Return the constants that layers sum over, with all their readers and the axis of each."""
    found: dict[ir.Value, list[tuple[ir.Node, int | None]]] = {}
    for graph in model.graphs():
        nodes = [node for node in graph if node.op_type == "Constant" and "value" in node.attributes]
        for value in (*graph.initializers.values(), *(node.outputs[0] for node in nodes)):
            uses = [(use.node, _axis(use.node, use.idx, value)) for use in value.uses()]
            if any(axis is not None for _, axis in uses):
                found[value] = uses
    return found


def _axis(node: ir.Node, slot: int, value: ir.Value) -> int | None:
    """Return the axis over which a node sums an input that is a weight."""
    tensor = tensor_of(value)
    rank = 0 if tensor is None else len(tensor.shape)
    if node.domain or rank < 2:
        return None
    if node.op_type in ("Conv", "ConvTranspose") and slot == 1:
        return 1 if node.op_type == "Conv" else 0
    if node.op_type == "MatMul" and slot < 2:
        return rank - 2 if slot == 1 else rank - 1
    if node.op_type == "Gemm" and slot < 2:
        turned = node.attributes.get_int("transB" if slot else "transA", 0)
        return (1 if turned else 0) if slot else (0 if turned else 1)
    return None


def _consider(
    value: ir.Value,
    uses: list[tuple[ir.Node, int | None]],
    only: Sequence[str],
    skip: Sequence[str],
    most: float | None,
) -> tuple[Pruned, float]:
    tensor = tensor_of(value)
    if tensor is None:
        raise ValueError(f"constant {value.name} has no data")
    (layer, weight), axis = _names(value, uses)
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    reason = _reason(value, uses, shape, axis, (layer, weight), only, skip)
    if reason:
        return Pruned(layer, weight, shape, axis, None, reason=reason), 0.0
    total, lost, zeros = _loss(tensor.numpy(), axis)
    before = zeros / max(1, math.prod(shape))
    if not math.isfinite(total):
        why = "its norm is not finite: NaN, infinity, or too large"
        return Pruned(layer, weight, shape, axis, None, before, why), 0.0
    share = math.sqrt(lost / total) if total else 0.0
    if most is not None and share > most:
        why = f"would lose {share:.2g} of its norm"
        return Pruned(layer, weight, shape, axis, None, before, why), 0.0
    return Pruned(layer, weight, shape, axis, share, before), total


def _reason(
    value: ir.Value,
    uses: list[tuple[ir.Node, int | None]],
    shape: tuple[int, ...],
    axis: int,
    names: tuple[str, str],
    only: Sequence[str],
    skip: Sequence[str],
) -> str:
    """Return why a weight is left alone, "" if it is not."""
    if only and not _matches(names, only):
        return "not asked for"
    if _matches(names, skip):
        return "skipped on request"
    tensor = tensor_of(value)
    if tensor is None or tensor.dtype not in _FLOATS:
        return "not a float"
    if value.is_graph_input():
        return "an input may override it"
    if value.is_graph_output() or any(other != axis for _, other in uses):
        return "other nodes read it in another way"
    if shape[axis] % GROUP:
        return f"{shape[axis]} is no multiple of {GROUP}"
    return ""


def _matches(names: tuple[str, str], globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for name in names for glob in globs)


def _slabs(array: np.ndarray[Any, Any], axis: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the weight with the axis last, a bounded number of elements at a time."""
    moved = np.moveaxis(array, axis, -1)
    step = max(1, _ROWS // max(1, math.prod(moved.shape[1:])))
    for start in range(0, moved.shape[0], step):
        yield moved[start : start + step]


def _loss(array: np.ndarray[Any, Any], axis: int) -> tuple[float, float, int]:
    """Return the squared norm, the part of it that pruning takes, and how many elements are 0."""
    total = lost = 0.0
    zeros = 0
    for slab in _slabs(array, axis):
        wide = slab.astype(np.float64)
        total += float((wide * wide).sum())
        lost += float((wide * wide)[~_mask(slab)].sum())
        zeros += int(np.count_nonzero(wide == 0))
    return total, lost, zeros


def _mask(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which elements stay: of each group along the last axis the two largest, ties by position."""
    size = np.abs(array.astype(np.float64))
    groups = np.where(np.isnan(size), np.inf, size).reshape(-1, GROUP)
    order = np.argsort(-groups, axis=1, kind="stable")[:, :KEPT]
    mask = np.zeros(groups.shape, dtype=bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask.reshape(array.shape)


def pruned_array(array: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """Return a copy in which two of every four elements along an axis are 0."""
    moved = np.moveaxis(array, axis, -1)
    result = np.where(_mask(moved), moved, np.zeros((), dtype=array.dtype))
    return np.ascontiguousarray(np.moveaxis(result, -1, axis))


def _replace(value: ir.Value, axis: int) -> None:
    old = tensor_of(value)
    if old is None:
        return

    def made() -> ir.TensorProtocol:
        return ir.Tensor(pruned_array(old.numpy(), axis), dtype=old.dtype, name=value.name)

    new = ir.LazyTensor(
        made, dtype=old.dtype, shape=ir.Shape(old.shape.numpy()), name=value.name, cache=False
    )
    node = value.producer()
    if node is None:
        value.const_value = new
    else:
        node.attributes["value"] = ir.AttrTensor("value", new)
