"""Rarer operators of com.microsoft (version 1): images, complex numbers, alignment, gates, embeddings."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import dims, ms_infer
from graphdoc.engine.ops.activations import sigmoid
from graphdoc.engine.ops.attention import causal_conv_with_state
from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.host import axis_of, ints, on_host
from graphdoc.engine.ops.ms_norm import embed_layer_normalization
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.quantize import dequantized
from graphdoc.engine.ops.shapes import broadcast, same_as_first
from graphdoc.engine.ops.table import Array, Call, TensorType, op

MS = "com.microsoft"
INT32 = np.dtype(np.int32)


# ---- windows and crops ---------------------------------------------------------------------------------


def _infer_unfold(call: Call, x: TensorType, *, size: int, dim: int = -1, step: int = 1) -> TensorType:
    if x.shape is None:
        return TensorType(x.dtype)
    at = dim % len(x.shape)
    count = dims.add(dims.floor_divide(dims.subtract(x.shape[at], size), step), 1)
    return TensorType(x.dtype, (*x.shape[:at], count, *x.shape[at + 1 :], size))


@op("UnfoldTensor", 1, domain=MS, infer=_infer_unfold)
def unfold_tensor(call: Call, X: Array, *, size: int, dim: int = -1, step: int = 1) -> Array:
    """All slices of ``size`` along an axis, ``step`` apart, on a new last axis, com.microsoft version 1."""
    at = axis_of(dim, X.ndim)
    if not 0 < size <= X.shape[at] or step < 1:
        raise ValueError(f"slices of {size} at steps of {step} do not fit an axis of {X.shape[at]}")
    starts = call.xp.arange(0, X.shape[at] - size + 1, step)
    picked = call.xp.take(X, starts[:, None] + call.xp.arange(size), axis=at)
    return call.xp.moveaxis(picked, at + 1, -1)


def _infer_crops(
    call: Call, x: TensorType, rois: TensorType, indices: TensorType, size: TensorType, **_: Any
) -> TensorType:
    if x.shape is None or len(x.shape) != 4 or rois.shape is None:
        return TensorType(x.dtype)
    sizes = entries(size) or (None, None)
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *sizes))


@op("CropAndResize", 1, domain=MS, infer=_infer_crops)
def crop_and_resize(
    call: Call,
    X: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: Array,
    *,
    mode: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Array:
    """Boxes (y1, x1, y2, x2), as shares of the image, cut out of X (N, C, H, W) and resized, version 1.

    crop_size: (height, width). Corners are aligned; what lies outside gets extrapolation_value. mode:
    bilinear or nearest.
    """
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"mode '{mode}' is unknown, expected bilinear or nearest")
    crops = [
        _crop(call.xp, X[image], box, ints(crop_size), mode, extrapolation_value)
        for image, box in zip(ints(batch_indices), rois.astype(np.float32), strict=True)
    ]
    shape = (0, X.shape[1], *ints(crop_size))
    return call.xp.stack(crops) if crops else call.xp.zeros(shape, X.dtype)


def _positions(xp: Any, low: Array, high: Array, count: int, size: int) -> Array:
    """Return where ``count`` samples of low … high lie on an axis of ``size``; one lies in the middle."""
    last = np.float32(size - 1)
    if count == 1:
        return (np.float32(0.5) * (low + high) * last).reshape(1)
    step = (high - low) * last / np.float32(count - 1)
    return low * last + xp.arange(count, dtype=np.float32) * step


def _crop(xp: Any, image: Array, box: Array, sizes: Sequence[int], mode: str, outside: float) -> Array:
    rows, columns = (
        _positions(xp, box[axis], box[axis + 2], sizes[axis], image.shape[axis + 1]) for axis in (0, 1)
    )
    inside = [(at >= 0) & (at <= size - 1) for at, size in zip((rows, columns), image.shape[1:], strict=True)]
    y, x = (xp.clip(at, 0, size - 1) for at, size in zip((rows, columns), image.shape[1:], strict=True))
    if mode == "nearest":
        sampled = image[:, _away_from_zero(xp, y)][:, :, _away_from_zero(xp, x)]
    else:
        sampled = _bilinear(xp, image, y, x)
    keep = inside[0][:, None] & inside[1]
    return xp.where(keep, sampled, image.dtype.type(outside))


def _away_from_zero(xp: Any, at: Array) -> Array:
    """Return positions rounded to the nearest whole one, halves up."""
    return xp.floor(at + np.float32(0.5)).astype(np.int64)


def _bilinear(xp: Any, image: Array, y: Array, x: Array) -> Array:
    top, left = xp.floor(y).astype(np.int64), xp.floor(x).astype(np.int64)
    bottom, right = xp.ceil(y).astype(np.int64), xp.ceil(x).astype(np.int64)
    down, across = (y - top)[:, None], x - left
    above = image[:, top][:, :, left] + (image[:, top][:, :, right] - image[:, top][:, :, left]) * across
    below = (
        image[:, bottom][:, :, left] + (image[:, bottom][:, :, right] - image[:, bottom][:, :, left]) * across
    )
    return narrow(above + (below - above) * down, image.dtype)


# ---- gates ---------------------------------------------------------------------------------------------


@op("ScaledSiLU", 1, domain=MS, infer=same_as_first)
def scaled_silu(call: Call, X: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    """z · sigmoid(z) of z = scale · X, each step rounded to X's dtype, com.microsoft version 1."""
    factor = wide(X).dtype.type(alpha) if scale is None else wide(scale).reshape(())
    z = narrow(wide(X) * factor, X.dtype)
    share = narrow(sigmoid(call.xp, wide(z)), X.dtype)
    return narrow(wide(z) * wide(share), X.dtype)


@op("GatedRMSNorm", 1, domain=MS, infer=same_as_first)
def gated_rms_norm(
    call: Call, X: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5
) -> Array:
    """X over its root mean square · scale · activation(gate), com.microsoft version 1.

    X, gate: [..., H · C], normalised over each C elements; scale: [C]. activation: silu, swish or sigmoid.
    """
    if activation not in ("silu", "swish", "sigmoid"):
        raise ValueError(f"activation '{activation}' is unknown, expected silu, swish or sigmoid")
    x, z = wide(X).reshape(-1, scale.shape[0]), wide(gate)
    mean = (x * x).mean(axis=-1, keepdims=True, dtype=x.dtype)
    y = x / call.xp.sqrt(mean + x.dtype.type(epsilon)) * wide(scale)
    share = sigmoid(call.xp, z)
    return narrow(y.reshape(X.shape) * (share if activation == "sigmoid" else z * share), X.dtype)


@op("GatedAdd", 1, domain=MS, infer=same_as_first)
def gated_add(call: Call, X: Array, Y: Array, gate: Array, gate_weight: Array | None = None) -> Array:
    """X + Y · gate, the product rounded first; gate: [..., 1], com.microsoft version 1.

    Raises ValueError for the projected gate, which CUDA builds alone have.
    """
    if gate_weight is not None:
        raise ValueError("GatedAdd with gate_weight is not implemented")
    return narrow(wide(X) + wide(narrow(wide(Y) * wide(gate), X.dtype)), X.dtype)


def _infer_causal(call: Call, input: TensorType, weight: TensorType, *rest: Any, **_: Any) -> Any:
    return TensorType(input.dtype, input.shape), TensorType(input.dtype)


@op("CausalConvWithState", 1, domain=MS, infer=_infer_causal)
def ms_causal_conv(
    call: Call,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    ndim: int = 1,
    dilation: int = 1,
    channels_last: int = 0,
    **attributes: Any,
) -> tuple[Array, Array]:
    """CausalConvWithState-27 of the default domain under its older home, com.microsoft version 1.

    Raises ValueError for more than one spatial axis, dilation, and the layouts of CUDA builds.
    """
    defaults = {"state_channels_last": -1}
    refused = [name for name, value in attributes.items() if value != defaults.get(name, 0)]
    if refused or ndim != 1 or dilation != 1 or channels_last:
        raise ValueError(f"CausalConvWithState is implemented plain, in one dimension {sorted(refused)}")
    y, state = causal_conv_with_state(call, input, weight, bias, past_state, activation=activation)
    return y, state


# ---- complex numbers -----------------------------------------------------------------------------------


def _complex(x: Array) -> Array:
    """Return x [..., 2] (real, imaginary) as complex numbers."""
    return wide(x)[..., 0] + 1j * wide(x)[..., 1]


def _pairs(xp: Any, z: Array, dtype: Any) -> Array:
    return narrow(xp.stack([z.real, z.imag], axis=-1), dtype)


@op("ComplexMul", 1, domain=MS, infer=broadcast)
def complex_mul(call: Call, A: Array, B: Array) -> Array:
    """A · B of numbers [..., 2] (real, imaginary), com.microsoft version 1."""
    return _pairs(call.xp, _complex(A) * _complex(B), A.dtype)


@op("ComplexMulConj", 1, domain=MS, infer=broadcast)
def complex_mul_conj(call: Call, A: Array, B: Array) -> Array:
    """A times the conjugate of B, numbers [..., 2] (real, imaginary), com.microsoft version 1."""
    return _pairs(call.xp, _complex(A) * _complex(B).conj(), A.dtype)


# ---- alignment -----------------------------------------------------------------------------------------


def _infer_path(call: Call, costs: TensorType) -> TensorType:
    return TensorType(INT32, (2, None))


@op("DynamicTimeWarping", 1, domain=MS, infer=_infer_path)
def dynamic_time_warping(call: Call, costs: Array) -> Array:
    """The cheapest path from the first to the last cell of costs [M, N] or [1, M, N], int32 [2, steps].

    A step goes down, right or both; of equal ones that along both comes first, then down. com.microsoft
    version 1.
    """
    result: Array = on_host(call, _warp, costs)
    return result


def _warp(costs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    costs = costs.reshape(costs.shape[-2:])
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, costs.dtype)
    came = np.full(total.shape, -1)
    total[0, 0] = 0
    for j in range(1, columns + 1):
        for i in range(1, rows + 1):
            both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            came[i, j] = 0 if both < down and both < right else 1 if down < both and down < right else 2
            total[i, j] = costs[i - 1, j - 1] + (both, down, right)[came[i, j]]
    came[:, 0], came[0, :] = 1, 2
    path = []
    i, j = rows, columns
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        i, j = i - (came[i, j] != 2), j - (came[i, j] != 1)
    return np.array(path[::-1], np.int32).T


# ---- embeddings ----------------------------------------------------------------------------------------


def _infer_embed(call: Call, ids: TensorType, segments: Any, words: TensorType, *rest: Any, **_: Any) -> Any:
    scale = rest[5] if len(rest) > 5 else None
    whole, counts, _sum = ms_infer.embed_layer_norm(call, ids, segments, words)
    return TensorType(None if scale is None else scale.dtype, whole.shape), counts


@op("QEmbedLayerNormalization", 1, domain=MS, infer=_infer_embed)
def q_embed_layer_normalization(
    call: Call,
    input_ids: Array,
    segment_ids: Array | None,
    words: Array,
    positions: Array,
    segments: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    *quantisation: Array | None,
    epsilon: float = 1e-12,
) -> tuple[Array, Array]:
    """EmbedLayerNormalization with 8-bit tables, gamma and beta, com.microsoft version 1.

    quantisation: the scales of words, positions, segments, gamma and beta, then their zero points.
    """
    tables = [
        None if table is None else dequantized(call.xp, table, scale, zero, scale.dtype)  # type: ignore[union-attr]
        for table, scale, zero in zip(
            (words, positions, segments, gamma, beta), quantisation[:5], quantisation[5:], strict=True
        )
    ]
    ids = (input_ids, None if segments is None else segment_ids)
    result = embed_layer_normalization(call, *ids, *tables, mask, epsilon=epsilon)
    return result[0], result[1]
