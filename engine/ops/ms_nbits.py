"""Products with and look-ups in weights of a few bits, com.microsoft (version 1).

The weights are unpacked to floats and multiplied by BLAS. accuracy_level, the least accuracy the model
asks for, changes nothing here: the activations are never quantised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.matmul import product
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.table import Array, Call, TensorType, op

MS = "com.microsoft"

FP4 = (0.0, 5.208333333e-03, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
"""The 4-bit float of bitsandbytes: the values without sign; bit 3 is the sign."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823242, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""The 16 quantiles of the normal distribution that NF4 uses (Dettmers et al., 2023)."""


def unpacked(xp: Any, packed: Array, bits: int, count: int) -> Array:
    """Return the first ``count`` integers of each row of uint8 [..., bytes], lowest bits first, as uint8."""
    if bits == 8:
        return packed[..., :count]
    if bits not in (1, 2, 4):
        return _across_bytes(xp, packed, bits, count)
    shifts = xp.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)[..., :count]


def _across_bytes(xp: Any, packed: Array, bits: int, count: int) -> Array:
    """Unpack widths that do not divide a byte, bit by bit."""
    single = unpacked(xp, packed, 1, packed.shape[-1] * 8)[..., : count * bits]
    weights = (1 << xp.arange(bits)).astype(np.uint8)
    return (single.reshape(*packed.shape[:-1], count, bits) * weights).sum(axis=-1, dtype=np.uint8)


def _zero_points(xp: Any, zero: Array | None, bits: int, rows: int, blocks: int, dtype: Any) -> Array:
    """Return zero points as floats, [rows, blocks, 1]; without any the middle of the range, []."""
    if zero is None:
        return xp.asarray(1 << (bits - 1)).astype(dtype)
    if zero.dtype == np.uint8:
        zero = unpacked(xp, zero.reshape(rows, -1), bits, blocks)
    return zero.reshape(rows, blocks, 1).astype(dtype)


def _infer_nbits(call: Call, a: TensorType, *rest: Any, N: int, **attributes: Any) -> TensorType:
    return TensorType(a.dtype, None if a.shape is None else (*a.shape[:-1], N))


@op("MatMulNBits", 1, domain=MS, infer=_infer_nbits)
def matmul_nbits(
    call: Call,
    A: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    """A·((B − zero_points) · scales)ᵀ + bias with B of 2 to 8 bits, com.microsoft version 1.

    A: [..., K]. B: uint8 [N, blocks, bytes], blocks of block_size along K. scales: N · blocks. zero_points:
    packed uint8 as B, or of the dtype of A; without it the middle of the range. g_idx: int32 [K], the block
    of each column. bias: [N].

    Raises ValueError for weights packed ahead for one device.
    """
    if weight_prepacked:
        raise ValueError("MatMulNBits with weight_prepacked is not implemented: the layout is the device's")
    xp, a = call.xp, wide(A)
    blocks = -(-K // block_size)
    whole = unpacked(xp, B.reshape(N, blocks, -1), bits, block_size).astype(a.dtype)
    zero = _zero_points(xp, zero_points, bits, N, blocks, a.dtype)
    factor = wide(scales).reshape(N, blocks, 1).astype(a.dtype, copy=False)
    if g_idx is None:
        weight = ((whole - zero) * factor).reshape(N, -1)[:, :K]
    else:
        zero = xp.broadcast_to(zero, factor.shape)[:, g_idx, 0]
        weight = (whole.reshape(N, -1)[:, :K] - zero) * factor[:, g_idx, 0]
    y = product(xp, a, weight.T)
    return narrow(y if bias is None else y + wide(bias), A.dtype)


@op("MatMulBnb4", 1, domain=MS, infer=_infer_nbits)
def matmul_bnb4(
    call: Call,
    A: Array,
    B: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Array:
    """A·Bᵀ with B [N, K] in the 4-bit floats of bitsandbytes, com.microsoft version 1.

    A: [..., K]. B: uint8, two values a byte, the first in the high bits. absmax: the scale of each block of
    block_size values. quant_type: 0 FP4, 1 NF4.
    """
    if quant_type not in (0, 1) or not transB:
        raise ValueError(f"MatMulBnb4 with quant_type {quant_type} and transB {transB} is not known")
    xp, a = call.xp, wide(A)
    table = xp.asarray(np.array(NF4 if quant_type else [*FP4, *(-value for value in FP4)], a.dtype))
    flat = B.reshape(-1)
    codes = xp.stack([flat >> np.uint8(4), flat & np.uint8(15)], axis=-1).reshape(-1)[: N * K]
    scale = xp.repeat(wide(absmax).astype(a.dtype, copy=False), block_size)[: N * K]
    return narrow(product(xp, a, (table[codes] * scale).reshape(N, K).T), A.dtype)


def _infer_gather(
    call: Call, data: TensorType, indices: TensorType, scales: TensorType, *rest: Any, **attributes: Any
) -> TensorType:
    return TensorType(scales.dtype)


@op("GatherBlockQuantized", 1, domain=MS, infer=_infer_gather)
def gather_block_quantized(
    call: Call,
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Gather from weights quantised in blocks along one axis, com.microsoft version 1.

    data: int4, uint4, or uint8 that packs ``bits`` wide integers along the last axis, lowest bits first.
    scales: the shape of the data with that axis divided by block_size. zero_points: as data; without it 0,
    for uint8 data the middle of the range. Returns the dtype of the scales.
    """
    xp = call.xp
    packed = data.dtype == np.uint8
    if packed and bits < 8:
        data = unpacked(xp, data, bits, data.shape[-1] * 8 // bits)
        zero_points = None if zero_points is None else unpacked(xp, zero_points, bits, scales.shape[-1])
    rows = xp.asarray(indices, dtype=np.int64)
    gather, quantise = gather_axis % data.ndim, quantize_axis % data.ndim
    scale = wide(scales)
    zero = _block_zero(zero_points, bits, scale, packed=packed)
    parts = [_at(xp, data, rows, gather).astype(scale.dtype)]
    shape: Sequence[int] = data.shape
    for table in (zero, scale):
        if table.ndim:
            keep = (slice(None),) * quantise + (slice(shape[quantise]),)
            table = xp.repeat(table, block_size, axis=quantise)[keep]
            table = _at(xp, table, rows, gather)
        parts.append(table)
    return narrow((parts[0] - parts[1]) * parts[2], scales.dtype)


def _block_zero(zero: Array | None, bits: int, scale: Array, *, packed: bool) -> Array:
    if zero is None:
        return scale.dtype.type(1 << (bits - 1) if packed else 0)
    return zero.astype(scale.dtype)


def _at(xp: Any, table: Array, rows: Array, axis: int) -> Array:
    """Return table gathered along an axis; negative indices count from the end.

    Raises ValueError for an index outside the axis.
    """
    size = table.shape[axis]
    if bool(((rows < -size) | (rows >= size)).any()):
        raise ValueError(f"an index is outside an axis of {size}")
    return xp.take(table, rows, axis=axis)
