"""``infer`` functions of com.microsoft (version 1): dtype and symbolic shape of outputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.conv import infer_conv
from graphdoc.engine.ops.conv_transpose import infer_conv_transpose
from graphdoc.engine.ops.pool import infer_global, infer_pool
from graphdoc.engine.ops.shapes import (
    BOOL,
    INT64,
    Shape,
    broadcast_shapes,
    concatenated,
    constant_ints,
    matrix_product_shape,
    reduce_shape,
    shape_of,
)
from graphdoc.engine.ops.table import Call, Dim, Infer, TensorType, find

INT32 = np.dtype(np.int32)
UINT32 = np.dtype(np.uint32)
UINT8 = np.dtype(np.uint8)

Type = TensorType | None


def _dtype(known: Type) -> np.dtype[Any] | None:
    return None if known is None else known.dtype


def taken_over(name: str, version: int) -> Infer:
    """Return the infer of an operator of the default domain."""

    def infer(call: Call, *types: Type, **attributes: Any) -> Any:
        row = find("", name, version)
        if row is None or row.infer is None:
            return TensorType()
        return row.infer(Call(call.xp, version, call.outputs, call.truth), *types, **attributes)

    return infer


# ---- layouts -------------------------------------------------------------------------------------------


def _first(known: TensorType) -> TensorType:
    """Return the type of x [N, spatial…, C] as that of [N, C, spatial…]."""
    shape = known.shape
    return known if not shape else TensorType(known.dtype, (shape[0], shape[-1], *shape[1:-1]))


def _last(known: TensorType) -> TensorType:
    """Return the type of x [N, C, spatial…] as that of [N, spatial…, C]."""
    shape = known.shape
    return known if not shape else TensorType(known.dtype, (shape[0], *shape[2:], shape[1]))


def nhwc_conv(call: Call, x: TensorType, w: TensorType, *rest: Type, **attributes: Any) -> TensorType:
    """Conv with the channels of x, w and the result last."""
    return _last(infer_conv(call, _first(x), _first(w), **attributes))


def nhwc_pool(call: Call, x: TensorType, **attributes: Any) -> TensorType:
    """Pooling with the channels last."""
    return _last(infer_pool(call, _first(x), **attributes))


def qlinear_pool(
    call: Call, x: TensorType, *rest: Type, channels_last: int = 0, **options: Any
) -> TensorType:
    """Pooling of a quantised tensor in either layout."""
    return nhwc_pool(call, x, **options) if channels_last else infer_pool(call, x, **options)


def qlinear_global_pool(call: Call, x: TensorType, *rest: Type, channels_last: int = 0) -> TensorType:
    """Global pooling of a quantised tensor in either layout."""
    return _last(infer_global(call, _first(x))) if channels_last else infer_global(call, x)


def qlinear_conv(
    call: Call, x: TensorType, *rest: Type, channels_last: int = 0, **options: Any
) -> TensorType:
    """dtype of the output's zero point; the weights have their channels first in either layout."""
    weights, zero = rest[2], rest[6]
    if weights is None:
        return TensorType(_dtype(zero))
    made = infer_conv(call, _first(x) if channels_last else x, weights, **options)
    return TensorType(_dtype(zero), (_last(made) if channels_last else made).shape)


def conv_transpose(
    call: Call, X: TensorType, W: TensorType, Pads: Type = None, *rest: Type, **options: Any
) -> TensorType:
    """ConvTranspose where the pads are known, else dtype and batch of X."""
    pads = constant_ints(Pads)
    if Pads is None or pads is not None:
        given = options if pads is None else {**options, "pads": pads}
        return infer_conv_transpose(call, X, W, **given)
    return TensorType(X.dtype, None if not X.shape else (X.shape[0], *(None,) * (len(X.shape) - 1)))


# ---- products ------------------------------------------------------------------------------------------


def _operand(shape: Shape | None, transpose: int, batch: int) -> Shape | None:
    if shape is None or len(shape) < 2:
        return shape
    shape = (*shape[1:-1], shape[0], shape[-1]) if batch else shape
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def fused_product(
    call: Call,
    a: TensorType,
    b: TensorType,
    *rest: Type,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    **attributes: Any,
) -> TensorType:
    """dtype of A; numpy.matmul's shape after the transposes."""
    left, right = _operand(a.shape, transA, transBatchA), _operand(b.shape, transB, transBatchB)
    return TensorType(a.dtype, matrix_product_shape(left, right))


def integer_product(call: Call, a: TensorType, b: TensorType) -> TensorType:
    """uint32 for two unsigned operands, else int32."""
    kinds = {known.dtype.kind for known in (a, b) if known.dtype is not None}
    dtype = INT32 if "i" in kinds else UINT32 if a.dtype is not None and b.dtype is not None else None
    return TensorType(dtype, matrix_product_shape(a.shape, b.shape))


def mul_integer(call: Call, a: TensorType, zero: Type, b: TensorType, *rest: Type) -> TensorType:
    """int32, the shape that A and B broadcast to."""
    return TensorType(INT32, broadcast_shapes((a.shape, b.shape)))


# ---- quantised tensors ---------------------------------------------------------------------------------


def quantize(call: Call, x: TensorType, scale: TensorType, zero: Type = None, **_: Any) -> TensorType:
    """dtype of the zero point, uint8 without one; shape of x."""
    return TensorType(UINT8 if zero is None else zero.dtype, x.shape)


def dequantize(call: Call, x: TensorType, scale: TensorType, *rest: Type, **_: Any) -> TensorType:
    """dtype of the scale, shape of x."""
    return TensorType(scale.dtype, x.shape)


def qlinear_concat(
    call: Call, scale: TensorType, zero: TensorType, *inputs: TensorType, axis: int
) -> TensorType:
    """Concat of each third input."""
    return concatenated(call, *inputs[::3], axis=axis)


def qlinear_where(call: Call, condition: TensorType, x: TensorType, *rest: Type) -> TensorType:
    """dtype of x, the shape that condition, x and y broadcast to."""
    return TensorType(x.dtype, broadcast_shapes((condition.shape, x.shape, shape_of(rest[2]))))


def qlinear_mean(call: Call, data: TensorType, *rest: Type, axes: Sequence[int], keepdims: int) -> TensorType:
    """dtype of the data, its shape with the axes reduced."""
    return TensorType(data.dtype, reduce_shape(data.shape, axes, keepdims))


def sum_integer(call: Call, data: TensorType, *, axes: Sequence[int], keepdims: int = 1) -> TensorType:
    """uint32 for unsigned data, else int32; the shape with the axes reduced."""
    dtype = None if data.dtype is None else UINT32 if data.dtype.kind == "u" else INT32
    return TensorType(dtype, reduce_shape(data.shape, axes, keepdims))


# ---- attention -----------------------------------------------------------------------------------------


def _part(width: Dim, share: int, parts: int) -> Dim:
    """Return share · width / parts where that is exact."""
    return dims.multiply(dims.exact_quotient(width, parts), share)


def _head(shape: Shape | None, width: Dim, heads: int) -> Dim:
    return None if shape is None else _part(width, 1, heads)


def attention(
    call: Call,
    input: TensorType,
    weights: TensorType,
    *rest: Type,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    **_: Any,
) -> tuple[TensorType, TensorType]:
    """Output [B, S, V]; present [2, B, heads, total, D]."""
    return _self_attention(input.dtype, input, weights, rest[2:3], num_heads, qkv_hidden_sizes)


def q_attention(
    call: Call,
    input: TensorType,
    weight: TensorType,
    bias: Type,
    scale: TensorType,
    *rest: Type,
    num_heads: int,
    **_: Any,
) -> tuple[TensorType, TensorType]:
    """As Attention, in the dtype of the scale."""
    return _self_attention(scale.dtype, input, weight, rest[4:5], num_heads, None)


def _self_attention(
    dtype: np.dtype[Any] | None,
    x: TensorType,
    weights: TensorType,
    past: Sequence[Type],
    heads: int,
    sizes: Sequence[int] | None,
) -> tuple[TensorType, TensorType]:
    if x.shape is None or len(x.shape) != 3 or weights.shape is None or len(weights.shape) != 2:
        return TensorType(dtype), TensorType(dtype)
    width: Dim = sizes[2] if sizes else _part(weights.shape[1], 1, 3)
    batch, length, _ = x.shape
    total = None if any(each is not None for each in past) else length
    return (
        TensorType(dtype, (batch, length, width)),
        TensorType(dtype, (2, batch, heads, total, _part(width, 1, heads))),
    )


def multi_head_attention(
    call: Call, query: TensorType, key: Type = None, value: Type = None, *rest: Type, num_heads: int, **_: Any
) -> tuple[TensorType, ...]:
    """Output [B, S, V]; present keys and values and scores [B, heads, …]."""
    shape, others = query.shape, (TensorType(query.dtype),) * 3
    if shape is None or len(shape) not in (3, 5):
        return TensorType(query.dtype), *others
    return TensorType(query.dtype, (*shape[:2], _value_width(shape, value, num_heads))), *others


def _value_width(query: Shape, value: Type, heads: int) -> Dim:
    if len(query) == 5:
        return dims.multiply(query[2], query[4])
    values = shape_of(value)
    if values is None:
        return None
    return values[2] if len(values) == 3 else dims.multiply(values[-1], heads) if len(values) == 4 else None


def group_query_attention(
    call: Call, query: TensorType, key: Type = None, *rest: Type, num_heads: int, kv_num_heads: int, **_: Any
) -> tuple[TensorType, ...]:
    """Output [B, S, heads·D]; present keys and values [B, kv_heads, total, D]."""
    shape = query.shape
    if shape is None or len(shape) != 3:
        return (TensorType(query.dtype),) * 3
    head = _part(shape[2], 1, num_heads if key is not None else num_heads + 2 * kv_num_heads)
    present = TensorType(query.dtype, (shape[0], kv_num_heads, None, head))
    return TensorType(query.dtype, (*shape[:2], dims.multiply(head, num_heads))), present, present


# ---- normalisation, embeddings -------------------------------------------------------------------------


def embed_layer_norm(
    call: Call, ids: TensorType, segments: Type, words: TensorType, *rest: Type, **_: Any
) -> tuple[TensorType, ...]:
    """Output and sum [B, S, H] in the dtype of the words; mask_index int32 [B]."""
    width = words.shape[-1] if words.shape else None
    whole = TensorType(words.dtype, None if ids.shape is None else (*ids.shape, width))
    return whole, TensorType(INT32, None if ids.shape is None else ids.shape[:1]), whole


def bias_dropout(
    call: Call, data: TensorType, bias: TensorType, residual: Type = None, *rest: Type, **_: Any
) -> tuple[TensorType, TensorType]:
    """dtype of the data, the shape of the sum; a bool mask of that shape."""
    shape = broadcast_shapes(known.shape for known in (data, bias, residual) if known is not None)
    return TensorType(data.dtype, shape), TensorType(BOOL, shape)


def torch_embedding(call: Call, weight: TensorType, indices: TensorType, *rest: Type) -> TensorType:
    """A row of the table per index."""
    if weight.shape is None or indices.shape is None:
        return TensorType(weight.dtype)
    return TensorType(weight.dtype, (*indices.shape, *weight.shape[1:]))


def relative_position_bias(
    call: Call, table: TensorType, query: TensorType, key: TensorType, **_: Any
) -> TensorType:
    """[1, heads, query length, key length]."""
    heads = table.shape[1] if table.shape is not None and len(table.shape) == 2 else None
    return TensorType(table.dtype, (1, heads, _entry(query), _entry(key)))


def _entry(known: Type) -> Dim:
    """Return the only element of an integer tensor where it is known."""
    found = constant_ints(known)
    return found[0] if found and len(found) == 1 else None


# ---- others --------------------------------------------------------------------------------------------


def expand_dims(call: Call, x: TensorType, axis: TensorType) -> TensorType:
    """The shape with a 1 put in."""
    place = _entry(axis)
    if x.shape is None or not isinstance(place, int):
        return TensorType(x.dtype)
    at = place + len(x.shape) + 1 if place < 0 else place
    return TensorType(x.dtype, (*x.shape[:at], 1, *x.shape[at:]))


def range_(call: Call, start: TensorType, limit: TensorType, delta: Type = None) -> TensorType:
    """Range-11, by a step of 1 where none is given."""
    step = TensorType(start.dtype, (), np.ones((), start.dtype)) if delta is None else delta
    result: TensorType = taken_over("Range", 11)(call, start, limit, step)
    return result


def rfft(call: Call, x: TensorType, **_: Any) -> TensorType:
    """[…, ⌊n / 2⌋ + 1, 2]."""
    if not x.shape:
        return TensorType(x.dtype)
    return TensorType(x.dtype, (*x.shape[:-1], dims.add(dims.floor_divide(x.shape[-1], 2), 1), 2))


def irfft(call: Call, x: TensorType, **_: Any) -> TensorType:
    """[…, 2 · (bins − 1)]."""
    if x.shape is None or len(x.shape) < 2:
        return TensorType(x.dtype)
    return TensorType(x.dtype, (*x.shape[:-2], dims.multiply(2, dims.subtract(x.shape[-2], 1))))


def unique(call: Call, x: TensorType) -> tuple[TensorType, ...]:
    """The values, the place of each element, the counts."""
    return TensorType(x.dtype, (None,)), TensorType(INT64, x.shape), TensorType(INT64, (None,))


def second(call: Call, first: TensorType, other: TensorType, **_: Any) -> TensorType:
    """dtype and shape of the second input."""
    return TensorType(other.dtype, other.shape)


def flag(call: Call, *types: Type, **_: Any) -> TensorType:
    """bool []."""
    return TensorType(BOOL, ())
