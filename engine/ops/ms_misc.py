"""Other operators of com.microsoft (version 1): linear algebra, Fourier transforms, shapes, look-ups."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from graphdoc.engine.ops import ms_infer
from graphdoc.engine.ops.conv_transpose import conv_transpose
from graphdoc.engine.ops.host import ints, on_host, scalar
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.sampling import infer_grid_sample
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, TensorType, find, op

MS = "com.microsoft"

SAME_AS_DEFAULT = {"GatherND": 12, "Trilu": 14}
"""Operators that the default domain took over unchanged, and the version it did so in."""


def _taken_over(name: str, version: int) -> Callable[..., Any]:
    """Return an evaluate that is the default domain's."""

    def evaluate(call: Call, *inputs: Array, **attributes: Any) -> Any:
        row = find("", name, version)
        if row is None:
            raise ValueError(f"no implementation of {name} (version {version})")
        return row.evaluate(call, *inputs, **attributes)

    evaluate.__doc__ = f"{name} of the default domain under its older home, com.microsoft version 1."
    return evaluate


for _name, _version in SAME_AS_DEFAULT.items():
    op(_name, 1, domain=MS, infer=ms_infer.taken_over(_name, _version))(_taken_over(_name, _version))


@op("GridSample", 1, domain=MS, infer=infer_grid_sample)
def grid_sample(
    call: Call,
    X: Array,
    Grid: Array,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Array:
    """GridSample-16 of the default domain under its older home, com.microsoft version 1. X: [N, C, H, W]."""
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    return _taken_over("GridSample", 16)(call, X, Grid, **options)


def _infer_pad(
    call: Call, data: TensorType, pads: TensorType, *rest: TensorType | None, **_: Any
) -> TensorType:
    content = None if pads.value is None else pads.value.reshape(-1)
    result: TensorType = ms_infer.taken_over("Pad", 13)(call, data, TensorType(pads.dtype, (None,), content))
    return result


@op("Pad", 1, domain=MS, infer=_infer_pad)
def pad(call: Call, data: Array, pads: Array, value: Array | None = None, *, mode: str = "constant") -> Array:
    """Pad-11 of the default domain under its older home, com.microsoft version 1.

    pads: int64 [2 · rank] or [1, 2 · rank].
    """
    value = None if value is None else value.reshape(())
    return _taken_over("Pad", 13)(call, data, pads.reshape(-1), value, mode=mode)


@op("Range", 1, domain=MS, infer=ms_infer.range_)
def range_(call: Call, start: Array, limit: Array, delta: Array | None = None) -> Array:
    """Range-11 of the default domain with a step of 1 by default, com.microsoft version 1."""
    step = call.xp.ones((), start.dtype) if delta is None else delta.reshape(())
    return _taken_over("Range", 11)(call, start.reshape(()), limit.reshape(()), step)


@op("ExpandDims", 1, domain=MS, infer=ms_infer.expand_dims)
def expand_dims(call: Call, X: Array, axis: Array) -> Array:
    """X with an axis of size 1 put in at ``axis`` (int32 scalar, may be negative); version 1."""
    return call.xp.expand_dims(X, int(scalar(axis)))


@op("SampleOp", 1, domain=MS, infer=same_as_first)
def sample_op(call: Call, X: Array) -> Array:
    """X, com.microsoft version 1."""
    return X


# ---- linear algebra and Fourier transforms ------------------------------------------------------------


def _infer_distance(call: Call, a: TensorType, b: TensorType, **attributes: Any) -> TensorType:
    if a.shape is None or b.shape is None:
        return TensorType(a.dtype)
    return TensorType(a.dtype, (a.shape[0], b.shape[0]))


@op("CDist", 1, domain=MS, infer=_infer_distance)
def cdist(call: Call, A: Array, B: Array, *, metric: str = "sqeuclidean") -> Array:
    """Distance of each row of A [M, K] to each of B [N, K], [M, N], com.microsoft version 1.

    metric: euclidean or sqeuclidean. By |a|² + |b|² − 2·a·b, cut off at 0, as ONNX Runtime does.
    """
    if metric not in ("euclidean", "sqeuclidean"):
        raise ValueError(f"unknown metric '{metric}'")
    xp = call.xp
    squares = (A * A).sum(axis=1)[:, None] + (B * B).sum(axis=1)[None]
    distance = xp.maximum(squares - 2 * (A @ B.T), 0)
    return xp.sqrt(distance) if metric == "euclidean" else distance


@op("Inverse", 1, domain=MS, infer=same_as_first)
def inverse(call: Call, X: Array) -> Array:
    """The inverse of each matrix [..., N, N], com.microsoft version 1; NaN where there is none."""
    result: Array = on_host(call, _inverse, X)
    return result


def _inverse(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    matrices = wide(x).reshape(-1, *x.shape[-2:])
    result = np.full(matrices.shape, np.nan, matrices.dtype)
    for i, matrix in enumerate(matrices):
        with contextlib.suppress(np.linalg.LinAlgError):
            result[i] = np.linalg.inv(matrix)
    inverse_of: np.ndarray[Any, Any] = narrow(result.reshape(x.shape), x.dtype)
    return inverse_of


@op("Rfft", 1, domain=MS, infer=ms_infer.rfft)
def rfft(call: Call, X: Array, *, signal_ndim: int, normalized: int, onesided: int) -> Array:
    """Fourier transform of the last ``signal_ndim`` axes of a real X, com.microsoft version 1.

    Returns [..., bins, 2] (real, imaginary), the last axis one-sided. Raises ValueError when normalized or
    two-sided, which ONNX Runtime refuses too.
    """
    if normalized or not onesided:
        raise ValueError("Rfft is implemented one-sided and not normalized")
    axes = tuple(range(-signal_ndim, 0))
    spectrum = call.xp.fft.rfftn(wide(X), axes=axes)
    pair = call.xp.stack([spectrum.real, spectrum.imag], axis=-1)
    return narrow(pair, X.dtype)


@op("Irfft", 1, domain=MS, infer=ms_infer.irfft)
def irfft(call: Call, X: Array, *, signal_ndim: int, normalized: int, onesided: int) -> Array:
    """Inverse of Rfft: X [..., bins, 2] to a real signal of even length 2 · (bins − 1), version 1."""
    if normalized or not onesided:
        raise ValueError("Irfft is implemented one-sided and not normalized")
    x = wide(X)
    axes = tuple(range(-signal_ndim, 0))
    signal = call.xp.fft.irfftn(x[..., 0] + 1j * x[..., 1], axes=axes)
    return narrow(signal, X.dtype)


# ---- convolution --------------------------------------------------------------------------------------


@op("ConvTransposeWithDynamicPads", 1, domain=MS, infer=ms_infer.conv_transpose)
def conv_transpose_with_dynamic_pads(
    call: Call,
    X: Array,
    W: Array,
    Pads: Array | None = None,
    B: Array | None = None,
    **attributes: Any,
) -> Array:
    """ConvTranspose whose pads are an input, int64 [2 · spatial axes], com.microsoft version 1."""
    pads = {} if Pads is None else {"pads": ints(Pads)}
    result: Array = conv_transpose(call, X, W, B, **pads, **attributes)
    return result


# ---- elements -----------------------------------------------------------------------------------------


@op("Unique", 1, domain=MS, infer=ms_infer.unique)
def unique(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """Unique elements of a vector in the order they first come, com.microsoft version 1.

    Returns them, for each element of x its place among them, and their counts (both int64).
    """
    result: tuple[Array, Array, Array] = on_host(call, _unique, x)
    return result


def _unique(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return values[order], place[inverse.reshape(-1)].astype(np.int64), counts[order].astype(np.int64)


@op("IsAllFinite", 1, domain=MS, infer=ms_infer.flag)
def is_all_finite(call: Call, *inputs: Array, isinf_only: int = 0, isnan_only: int = 0) -> Array:
    """Whether no element of any input is infinite or NaN, bool [], com.microsoft version 1.

    isinf_only: look for infinities alone; isnan_only: for NaN alone.
    """
    xp = call.xp
    bad = xp.isinf if isinf_only else (xp.isnan if isnan_only else _not_finite)
    return xp.asarray(not any(bool(bad(x).any()) for x in inputs))


def _not_finite(x: Array) -> Array:
    return ~((x - x) == 0)


@op("TorchEmbedding", 1, domain=MS, infer=ms_infer.torch_embedding)
def torch_embedding(
    call: Call,
    weight: Array,
    indices: Array,
    padding_idx: Array | None = None,
    scale_grad_by_freq: Array | None = None,
) -> Array:
    """Rows of a table [rows, size] at int64 indices of any shape, com.microsoft version 1."""
    return weight[indices]


@op("NGramRepeatBlock", 1, domain=MS, infer=ms_infer.second)
def ngram_repeat_block(call: Call, input_ids: Array, scores: Array, *, ngram_size: int) -> Array:
    """scores [B, V], −inf for each token that would repeat an n-gram of input_ids [B, S]; version 1."""
    xp, length = call.xp, input_ids.shape[1]
    result = scores.copy()
    if length < ngram_size:
        return result
    tail = input_ids[:, length - ngram_size + 1 :]
    rows = xp.arange(len(scores))
    for start in range(length - ngram_size + 1):
        end = start + ngram_size - 1
        same = (input_ids[:, start:end] == tail).all(axis=1)
        token = input_ids[:, end]
        result[rows[same], token[same]] = -np.inf
    return result


@op("RelativePositionBias", 1, domain=MS, infer=ms_infer.relative_position_bias)
def relative_position_bias(
    call: Call,
    bias_table: Array,
    query_length: Array,
    key_length: Array,
    *,
    max_distance: int,
    is_bidirectional: int = 0,
) -> Array:
    """T5's bias by distance, [1, heads, query_length, key_length], com.microsoft version 1.

    bias_table: [buckets, heads]. Half of the buckets are exact distances, the others grow by a logarithm up
    to max_distance; bidirectional gives either side half of them.
    """
    xp, buckets = call.xp, bias_table.shape[0]
    rows, columns = int(scalar(query_length)), int(scalar(key_length))
    distance = np.arange(columns)[None] - np.arange(rows)[:, None]
    offset = np.zeros_like(distance)
    if is_bidirectional:
        buckets //= 2
        offset = (distance > 0) * buckets
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    growth = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / np.log(max_distance / exact)
    far = np.minimum(exact + (growth.astype(np.float32) * (buckets - exact)).astype(np.int64), buckets - 1)
    index = offset + np.where(distance < exact, distance, far)
    return bias_table[xp.asarray(index)].transpose(2, 0, 1)[None]
