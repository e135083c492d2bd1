"""Normalisations of com.microsoft (version 1), most of them fused with the additions before them.

float16 and bfloat16 are computed in float32 and rounded once for each output.
"""

from typing import Any

import numpy as np

from graphdoc.engine.ops import ms_infer
from graphdoc.engine.ops.activations import swish
from graphdoc.engine.ops.ms_fused import channels_first, channels_last
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.table import Array, Call, TensorType, op

MS = "com.microsoft"


def _standardised(xp: Any, x: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """Return x standardised along the last axis, its mean and its inverse standard deviation."""
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    inverse = 1 / xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(epsilon))
    return centred * inverse, mean, inverse


def _over_rms(xp: Any, x: Array, epsilon: float) -> tuple[Array, Array]:
    """Return x over its root mean square along the last axis, and the inverse of that root."""
    inverse = 1 / xp.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(epsilon))
    return x * inverse, inverse


def _sum(x: Array, *others: Array | None) -> Array:
    """Return the sum in the wide dtype; what is absent counts nothing."""
    total = wide(x)
    for other in others:
        total = total if other is None else total + wide(other)
    return total


def _infer_skip(call: Call, x: TensorType, *rest: Any, **attributes: Any) -> tuple[TensorType, ...]:
    statistics = TensorType(call.real(np.float32), None if x.shape is None else (*x.shape[:-1], 1))
    whole = TensorType(x.dtype, x.shape)
    return whole, statistics, statistics, whole


@op("SkipLayerNormalization", 1, domain=MS, infer=_infer_skip)
def skip_layer_normalization(
    call: Call,
    input: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array, Array, Array]:
    """LayerNormalization of input + skip + bias over the last axis, com.microsoft version 1.

    input: [B, S, H] or [T, H]. skip: of its shape, or without (or with 1 as) batch. Returns the output,
    mean and inverse standard deviation (float32), and the sum.
    """
    total = _sum(input, skip, bias)
    y, mean, inverse = _standardised(call.xp, total, epsilon)
    y = y * wide(gamma)
    y = y if beta is None else y + wide(beta)
    return narrow(y, input.dtype), mean, inverse, narrow(total, input.dtype)


@op("SkipSimplifiedLayerNormalization", 1, domain=MS, infer=_infer_skip)
def skip_simplified_layer_normalization(
    call: Call, input: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, Array, Array, Array]:
    """RMS normalisation of input + skip + bias over the last axis, com.microsoft version 1.

    Outputs as SkipLayerNormalization has, the mean being 0.
    """
    total = _sum(input, skip, bias)
    y, inverse = _over_rms(call.xp, total, epsilon)
    mean = call.xp.zeros_like(inverse)
    return narrow(y * wide(gamma), input.dtype), mean, inverse, narrow(total, input.dtype)


@op("EmbedLayerNormalization", 1, domain=MS, infer=ms_infer.embed_layer_norm)
def embed_layer_normalization(
    call: Call,
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Array, Array, Array]:
    """LayerNormalization of the sum of word, position and segment embeddings, com.microsoft version 1.

    input_ids, segment_ids, mask: int32 [B, S]. Returns output [B, S, H], mask_index int32 [B] (the number
    of ones of the mask, 0 without one) and the sum.
    """
    xp = call.xp
    positions = xp.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    words = _rows(word_embedding, input_ids)
    segments = None if segment_embedding is None else _rows(segment_embedding, segment_ids)
    total = _sum(words, _rows(position_embedding, positions), segments)
    y, _, _ = _standardised(xp, total, epsilon)
    y = narrow(y * wide(gamma) + wide(beta), word_embedding.dtype)
    counts = (
        xp.zeros(input_ids.shape[0], np.int32) if mask is None else (mask == 1).sum(axis=1).astype(np.int32)
    )
    return y, counts, narrow(total, word_embedding.dtype)


def _rows(table: Array, index: Array | None) -> Array:
    """Return table[index]. Raises ValueError when an index is absent or outside the table."""
    if index is None:
        raise ValueError("an embedding has no ids")
    if bool(((index < 0) | (index >= table.shape[0])).any()):
        raise ValueError(f"an id is outside 0 … {table.shape[0] - 1}")
    return table[index]


def _infer_group(call: Call, x: TensorType, *rest: Any, **attributes: Any) -> tuple[TensorType, TensorType]:
    return TensorType(x.dtype, x.shape), TensorType(x.dtype, x.shape)


def _group_norm(
    call: Call, x: Array, gamma: Array, beta: Array, epsilon: float, groups: int, activation: int
) -> Array:
    """Return GroupNorm of x [N, C, spatial…] in the wide dtype."""
    if x.shape[1] % groups:
        raise ValueError(f"{x.shape[1]} channels do not divide into {groups} groups")
    per_channel = (-1, *(1,) * (x.ndim - 2))
    y, _, _ = _standardised(call.xp, x.reshape(x.shape[0], groups, -1), epsilon)
    y = y.reshape(x.shape) * wide(gamma).reshape(per_channel) + wide(beta).reshape(per_channel)
    return swish(call.xp, y) if activation else y


@op("GroupNorm", 1, domain=MS, infer=_infer_group)
def group_norm(
    call: Call,
    X: Array,
    gamma: Array,
    beta: Array,
    *,
    groups: int,
    activation: int = 0,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """Group normalisation and, with activation 1, SiLU, com.microsoft version 1.

    X: [N, spatial…, C], or [N, C, spatial…] with channels_last 0. gamma, beta: [C].
    """
    return _skip_group_norm(call, wide(X), gamma, beta, groups, activation, channels_last, epsilon, X.dtype)


def _skip_group_norm(
    call: Call,
    x: Array,
    gamma: Array,
    beta: Array,
    groups: int,
    activation: int,
    last: int,
    epsilon: float,
    dtype: Any,
) -> Array:
    y = _group_norm(call, channels_first(x) if last else x, gamma, beta, epsilon, groups, activation)
    return narrow(channels_last(y) if last else y, dtype)


@op("SkipGroupNorm", 1, domain=MS, infer=_infer_group)
def skip_group_norm(
    call: Call,
    X: Array,
    gamma: Array,
    beta: Array,
    skip: Array,
    bias: Array | None = None,
    *,
    groups: int,
    activation: int = 0,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> tuple[Array, Array]:
    """GroupNorm of X + skip + bias, and the sum, com.microsoft version 1.

    X: [N, H, W, C]. skip: of its shape, [N, C] or [N, 1, 1, C]. bias: [C].
    """
    if skip.ndim == 2 and X.ndim > 2:
        skip = skip.reshape(skip.shape[0], *(1,) * (X.ndim - 2), skip.shape[1])
    total = _sum(X, skip, bias)
    y = _skip_group_norm(call, total, gamma, beta, groups, activation, channels_last, epsilon, X.dtype)
    return y, narrow(total, X.dtype)
