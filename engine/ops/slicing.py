"""Slice and Pad."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.dims import add, at_least, ceil_divide, maximum, minimum, subtract
from graphdoc.engine.ops.host import ints, namespace
from graphdoc.engine.ops.shapes import add_dims, constant_ints, positive_axes
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

# ---- Slice --------------------------------------------------------------------------------------------


def _one_slice(size: int, start: int, end: int, step: int) -> slice:
    """Return the Python slice of an axis by the specification's rule of clamping."""
    if step == 0:
        raise ValueError("Slice with step 0")
    if step > 0:
        return slice(start, end, step)  # Python counts and clamps alike
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, end, step) if end >= 0 else slice(start, None, step)


def _slices(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> tuple[slice, ...]:
    rank = len(shape)
    found = positive_axes(range(len(starts)) if axes is None else axes, rank)
    if len(set(found)) < len(found) or not all(0 <= axis < rank for axis in found):
        raise ValueError(f"Slice axes {axes} do not fit rank {rank}")
    result = [slice(None)] * rank
    for axis, start, end, step in zip(found, starts, ends, steps or [1] * len(starts), strict=True):
        result[axis] = _one_slice(shape[axis], start, end, step)
    return tuple(result)


_FAR = 2**31 - 1
"""Starts and ends from here on, of either sign, mean "as far as the axis goes"."""


def _edge(at: Dim, size: Dim) -> Dim:
    """Return a start or end of a forward slice counted from the front and clamped, None in doubt."""
    if at is None or size is None:
        return None
    if isinstance(at, int) and abs(at) >= _FAR:
        return size if at > 0 else 0
    if at == size:
        return size
    if at_least(at, 0):
        return minimum(at, size)
    if at_least(0, at) and at_least(0, add(at, size)):
        return 0
    return maximum(add(at, size), 0) if at_least(-1, at) else None


def _slice_size(size: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Return how many elements a slice takes of an axis, None in doubt."""
    if not isinstance(step, int) or step == 0 or size is None:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(size)[_one_slice(size, start, end, step)])
    if step > 0:
        last = _edge(end, size)
        first = start if last == size and at_least(start, 0) else _edge(start, size)
        return maximum(ceil_divide(subtract(last, first), step), 0)
    whole = (
        isinstance(start, int) and (start == -1 or start >= _FAR) and isinstance(end, int) and end <= -_FAR
    )
    return ceil_divide(size, -step) if whole else None


def _slice_type(
    call: Call, data: TensorType, *inputs: TensorType | None, **attributes: Sequence[int]
) -> TensorType:
    """Axes that are not sliced keep their size; if the axes are unknown, so are all sizes."""
    names = ("starts", "ends", "axes", "steps")
    given = {name: entries(t) for name, t in zip(names, inputs, strict=False) if t is not None}
    known: Mapping[str, Sequence[Dim] | None] = {**given, **attributes}
    if data.shape is None:
        return TensorType(data.dtype)
    starts, ends = known["starts"], known["ends"]
    axes = known.get("axes", None if starts is None else range(len(starts)))
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return TensorType(data.dtype, (None,) * len(data.shape))
    touched = positive_axes([axis for axis in axes if isinstance(axis, int)], len(data.shape))
    blank: Sequence[Dim] = (None,) * len(touched)
    steps = known.get("steps", (1,) * len(touched))
    rows = list(zip(touched, starts or blank, ends or blank, steps or blank, strict=True))
    sizes = {axis: _slice_size(data.shape[axis], *row) for axis, *row in rows}
    return TensorType(data.dtype, tuple(sizes.get(axis, dim) for axis, dim in enumerate(data.shape)))


@op("Slice", 10, 11, 13, infer=_slice_type)
def slice_(
    call: Call,
    data: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """A view of every ``steps``-th element from ``starts`` to before ``ends`` along ``axes`` (ONNX Slice-13).

    Negative numbers count from the end; all are clamped to the axis. Raises ValueError for step 0 or a
    repeated axis.
    """
    lists = [None if x is None else ints(x) for x in (axes, steps)]
    return data[_slices(data.shape, ints(starts), ints(ends), *lists)]


@op("Slice", 1, infer=_slice_type)
def slice_1(
    call: Call, data: Array, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Array:
    """Slice with attributes and step 1 (ONNX Slice-1)."""
    return data[_slices(data.shape, starts, ends, axes, None)]


# ---- Pad ----------------------------------------------------------------------------------------------


def _pad_type(
    call: Call,
    data: TensorType,
    pads_input: TensorType | None = None,
    constant_value: TensorType | None = None,
    axes: TensorType | None = None,
    **attributes: Any,
) -> TensorType:
    if data.shape is None:
        return TensorType(data.dtype)
    pads = entries(pads_input) if pads_input else attributes.get("pads", attributes.get("paddings"))
    where = constant_ints(axes) if axes is not None else list(range(len(data.shape)))
    if pads is None or where is None:
        return TensorType(data.dtype, (None,) * len(data.shape))
    dims: list[Dim] = list(data.shape)
    for axis, before, after in zip(where, pads[: len(where)], pads[len(where) :], strict=True):
        dims[axis] = add_dims((dims[axis], before, after))
    return TensorType(data.dtype, tuple(dims))


def _crop(data: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """Remove what negative pads ask for. Raises ValueError when nothing that could be removed is left."""
    limits = [(max(-b, 0), n - max(-a, 0)) for n, b, a in zip(data.shape, before, after, strict=True)]
    if any(end < start for start, end in limits):
        raise ValueError(f"Pad removes more than there is of shape {list(data.shape)}")
    return data[tuple(slice(start, end) for start, end in limits)]


def _pad_constant(xp: Any, data: Array, before: list[int], after: list[int], value: Any) -> Array:
    """Pad with a constant; a negative pad removes data, or what the other side adds."""
    shape = [n + b + a for n, b, a in zip(data.shape, before, after, strict=True)]
    if min(shape, default=0) < 0:
        raise ValueError(f"Pad removes more than there is of shape {list(data.shape)}")
    result = xp.full(shape, value, dtype=data.dtype)
    kept = [(max(-b, 0), min(n, n + a)) for n, b, a in zip(data.shape, before, after, strict=True)]
    if all(start < end for start, end in kept):
        source = tuple(slice(start, end) for start, end in kept)
        target = tuple(slice(start + b, end + b) for (start, end), b in zip(kept, before, strict=True))
        result[target] = data[source]
    return result


def _pad_mirrored(xp: Any, data: Array, before: list[int], after: list[int], mode: str) -> Array:
    """Pad with elements of the data itself: each padded axis is gathered by a padded list of indices."""
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b or a:
            index = np.pad(np.arange(data.shape[axis]), (b, a), mode=mode)  # type: ignore[call-overload]
            data = xp.take(data, xp.asarray(index), axis=axis)
    return data


def pad_array(call: Call, data: Array, pads: Sequence[int], mode: str, value: Any = None) -> Array:
    """Pad (or crop, where negative) all axes: ``pads`` holds the begins, then the ends.

    mode: constant, reflect, edge or wrap. value: the constant, None for 0, False or "".
    Raises ValueError for an unknown mode or a list of the wrong length.
    """
    if len(pads) != 2 * data.ndim:
        raise ValueError(f"Pad needs {2 * data.ndim} pads for rank {data.ndim}, not {len(pads)}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ValueError(f"Pad does not know mode '{mode}'")
    before, after = list(pads[: data.ndim]), list(pads[data.ndim :])
    if not any(pads):
        return data
    xp = namespace(call, data)
    if mode == "constant":
        neutral = "" if data.dtype.kind == "O" else 0
        return _pad_constant(xp, data, before, after, neutral if value is None else value)
    data = _crop(data, before, after)
    return _pad_mirrored(xp, data, [max(b, 0) for b in before], [max(a, 0) for a in after], mode)


@op("Pad", 11, 13, 18, 19, 21, 23, 24, 25, infer=_pad_type)
def pad(
    call: Call,
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """``data`` with ``pads`` elements added (or removed) at both ends of ``axes`` (all by default) (ONNX
    Pad-25).

    With mixed signs the removal comes first, so mirrored elements are those that are left.
    """
    value = None if constant_value is None or not constant_value.size else constant_value.reshape(-1)[0]
    amounts = ints(pads)
    if axes is not None:
        amounts = _spread(amounts, positive_axes(ints(axes), data.ndim), data.ndim)
    return pad_array(call, data, amounts, mode, value)


def _spread(pads: list[int], axes: list[int], rank: int) -> list[int]:
    """Return pads for all axes from those for some."""
    if len(pads) != 2 * len(axes) or len(set(axes)) < len(axes):
        raise ValueError(f"Pad has {len(pads)} pads for axes {axes}")
    result = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        result[axis], result[rank + axis] = pads[position], pads[position + len(axes)]
    return result


@op("Pad", 2, infer=_pad_type)
def pad_2(
    call: Call, data: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Array:
    """Pad with everything in attributes (ONNX Pad-2)."""
    return pad_array(call, data, pads, mode, value)


@op("Pad", 1, infer=_pad_type)
def pad_1(
    call: Call, data: Array, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Array:
    """Pad whose attribute is named ``paddings`` (ONNX Pad-1)."""
    return pad_array(call, data, paddings, mode, value)
