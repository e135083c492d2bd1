"""Shared ``infer`` functions: dtype and symbolic shape of outputs from those of inputs.

An infer function takes the Call, one TensorType per input (None for an omitted one) and the attributes.
It states only what holds in every run: where symbols leave a doubt, a dim is None, and where the rank is
in doubt, the shape is None. Inputs that a run would refuse may be given any answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.dims import at_least, minimum_of, never_one, product, total
from graphdoc.engine.ops.table import Array, Call, Dim, Infer, TensorType

Shape = tuple[Dim, ...]
Axes = Sequence[int]

UNKNOWN = TensorType()
BOOL = np.dtype(np.bool_)
INT64 = np.dtype(np.int64)


# ---- building blocks ----------------------------------------------------------------------------------


def shape_of(tensor: TensorType | None) -> Shape | None:
    """Return the shape, None when the rank is unknown or the input omitted."""
    return None if tensor is None else tensor.shape


def constant_ints(tensor: TensorType | None) -> list[int] | None:
    """Return the content of a known integer tensor as a list, else None."""
    if tensor is None or tensor.value is None:
        return None
    return [int(item) for item in np.asarray(tensor.value).reshape(-1)]


def positive_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Return axes counted from the front; negative ones count from the back."""
    return [axis + rank if axis < 0 else axis for axis in axes]


def _wins(dim: Dim, others: Iterable[Dim]) -> bool:
    """Return whether an axis has this size if it can be broadcast at all: it is never stretched."""
    if never_one(dim):
        return True
    # min(N, 512) is N, or else both are larger than 1 and differ, which a run refuses.
    parts = [minimum_of(other) for other in others if other != dim]
    return all(dim in found and all(at_least(each, 2) for each in found if each != dim) for found in parts)


def broadcast_dims(dims: Iterable[Dim]) -> Dim:
    """Return the size of one axis after multidirectional broadcasting (NumPy's rule), None in doubt."""
    rest = {dim for dim in dims if dim != 1}
    sizes = [dim for dim in rest if isinstance(dim, int)]
    if sizes:
        return sizes[0]
    if len(rest) < 2:
        return rest.pop() if rest else 1
    return next((dim for dim in rest if _wins(dim, rest)), None)


def broadcast_shapes(shapes: Iterable[Shape | None]) -> Shape | None:
    """Return the shape that all broadcast to, None when a rank is unknown."""
    known = list(shapes)
    if not known or any(shape is None for shape in known):
        return None
    sure = [shape for shape in known if shape is not None]
    rank = max(map(len, sure))
    padded = [(1,) * (rank - len(shape)) + shape for shape in sure]
    return tuple(broadcast_dims(column) for column in zip(*padded, strict=True))


def merge_dims(dims: Iterable[Dim]) -> Dim:
    """Return the common size of axes that must be equal: an int before a symbol before None."""
    found = list(dims)
    for kind in (int, str):
        for dim in found:
            if isinstance(dim, kind):
                return dim
    return None


def add_dims(dims: Iterable[Dim]) -> Dim:
    """Return the sum of sizes, None when one is unknown."""
    return total(dims)


def multiply_dims(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes, None when one is unknown and none is 0."""
    found = list(dims)
    return 0 if 0 in found else product(found)


def with_dims(shape: Shape | None, changes: dict[int, Dim]) -> Shape | None:
    """Return the shape with some axes (may be negative) changed."""
    if shape is None:
        return None
    where = dict(zip(positive_axes(changes, len(shape)), changes.values(), strict=True))
    return tuple(where.get(axis, dim) for axis, dim in enumerate(shape))


def first_dtype(types: Iterable[TensorType | None]) -> np.dtype[Any] | None:
    """Return the first dtype that is known."""
    return next((t.dtype for t in types if t is not None and t.dtype is not None), None)


def _real(call: Call, dtype: Any) -> np.dtype[Any] | None:
    return None if dtype is None else call.real(dtype)


# ---- infer functions ----------------------------------------------------------------------------------


def same_as_first(call: Call, first: TensorType, *rest: TensorType | None, **attributes: Any) -> TensorType:
    """dtype and shape of the first input."""
    return TensorType(first.dtype, first.shape)


def same_shape(dtype: Any) -> Infer:
    """Return an infer: shape of the first input, the given dtype (call.real in truth mode)."""

    def infer(call: Call, first: TensorType, *rest: TensorType | None, **attributes: Any) -> TensorType:
        return TensorType(_real(call, dtype), first.shape)

    return infer


def broadcast(call: Call, *types: TensorType | None, **attributes: Any) -> TensorType:
    """dtype of the first input, the shape all inputs broadcast to (also for a single input)."""
    given = [t for t in types if t is not None]
    return TensorType(first_dtype(given), broadcast_shapes(t.shape for t in given))


def broadcast_old(
    call: Call, a: TensorType, b: TensorType, *, broadcast: int = 0, axis: int | None = None, **rest: Any
) -> TensorType:
    """dtype and shape of the first input: the one-sided ``broadcast`` attribute of opset 1 and 6."""
    return TensorType(first_dtype((a, b)), a.shape)


def broadcast_as(dtype: Any) -> Infer:
    """Return an infer: the broadcast shape with the given dtype, as comparisons have."""

    def infer(call: Call, *types: TensorType | None, **attributes: Any) -> TensorType:
        shape = broadcast_shapes(t.shape for t in types if t is not None)
        return TensorType(_real(call, dtype), shape)

    return infer


broadcast_bool = broadcast_as(BOOL)
"""The broadcast shape, bool: comparisons and logic."""


def broadcast_where(call: Call, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    """Where: dtype of the second input, the shape all three broadcast to."""
    return TensorType(first_dtype((x, y)), broadcast_shapes((condition.shape, x.shape, y.shape)))


def reduce_shape(shape: Shape | None, axes: Axes | None, keepdims: int) -> Shape | None:
    """Return the shape after reducing ``axes`` (None: all)."""
    if shape is None:
        return None
    gone = set(range(len(shape)) if axes is None else positive_axes(axes, len(shape)))
    if keepdims:
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def reduced(
    call: Call,
    data: TensorType,
    axes_input: TensorType | None = None,
    *,
    axes: Axes | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    **attributes: Any,
) -> TensorType:
    """dtype of the data, its shape without (or with 1 in) the axes, from the attribute or the input."""
    if axes_input is not None and (axes := constant_ints(axes_input)) is None:
        known = keepdims and data.shape is not None
        return TensorType(data.dtype, (None,) * len(data.shape or ()) if known else None)
    if not axes and noop_with_empty_axes:
        return TensorType(data.dtype, data.shape)
    return TensorType(data.dtype, reduce_shape(data.shape, axes or None, keepdims))


def arg_reduced(
    call: Call, data: TensorType, *, axis: int = 0, keepdims: int = 1, **attributes: Any
) -> TensorType:
    """int64, the data's shape with one axis reduced: ArgMax, ArgMin."""
    return TensorType(INT64, reduce_shape(data.shape, [axis], keepdims))


def concatenated(call: Call, *types: TensorType, axis: int = 1, **attributes: Any) -> TensorType:
    """dtype of the first input, sizes along ``axis`` added."""
    shapes = [t.shape for t in types if t.shape is not None]
    if not shapes:
        return TensorType(first_dtype(types))
    rank = len(shapes[0])
    at = positive_axes([axis], rank)[0]
    dims: list[Dim] = [merge_dims(column) for column in zip(*shapes, strict=True)]
    dims[at] = add_dims(shape[at] for shape in shapes) if len(shapes) == len(types) else None
    return TensorType(first_dtype(types), tuple(dims))


def matrix_product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of numpy.matmul(a, b)."""
    if a is None or b is None or not a or not b:
        return None
    batch = broadcast_shapes((a[:-2], b[:-2]))
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return None if batch is None else (*batch, *rows, *columns)


def matrix_product(call: Call, a: TensorType, b: TensorType, *rest: TensorType | None) -> TensorType:
    """MatMul: dtype of the first input, shape by numpy.matmul's rule."""
    return TensorType(first_dtype((a, b)), matrix_product_shape(a.shape, b.shape))


def matrix_product_as(dtype: Any) -> Infer:
    """Return an infer: numpy.matmul's shape with the given dtype (MatMulInteger)."""

    def infer(call: Call, a: TensorType, b: TensorType, *rest: TensorType | None, **_: Any) -> TensorType:
        return TensorType(_real(call, dtype), matrix_product_shape(a.shape, b.shape))

    return infer


def per_channel(b: Array, shape: Sequence[int]) -> Array:
    """Return b (C) so that it broadcasts over (N, C, *spatial). Raises ValueError for another shape of b."""
    if b.shape != (shape[1],):
        raise ValueError(f"shape {list(b.shape)} does not hold one number for each of {shape[1]} channels")
    return b.reshape(-1, *(1,) * (len(shape) - 2))
