"""Attention of com.microsoft (version 1): Attention, QAttention, MultiHeadAttention, GroupQueryAttention.

Heads are [batch, heads, sequence, head size]. Scores, softmax and sums run in float32 (float64 where the
inputs are), and every output is rounded once to the dtype of the query.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import ms_infer
from graphdoc.engine.ops.matmul import product
from graphdoc.engine.ops.ms_quant import integer_product
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, op

MS = "com.microsoft"
MASK = -10000.0


# ---- shared -------------------------------------------------------------------------------------------


def split_heads(x: Array, heads: int) -> Array:
    """Return [B, S, heads·D] as [B, heads, S, D]."""
    if x.shape[-1] % heads:
        raise ValueError(f"{x.shape[-1]} features do not divide into {heads} heads")
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(x: Array) -> Array:
    """Return [B, heads, S, D] as [B, S, heads·D]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def probabilities(xp: Any, scores: Array, sink: Array | None = None) -> Array:
    """Softmax along the last axis; ``sink`` [heads] is one more logit a row that takes its share."""
    if not scores.shape[-1]:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        sink = sink.reshape(1, -1, 1, 1)
        top = xp.maximum(top, sink)
    powers = xp.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / (total if sink is None else total + xp.exp(sink - top))


def _scale(scale: float | None, size: int) -> float:
    """Return the factor of the scores; the attribute's 0 stands for 1/√(head size)."""
    return scale or 1 / float(np.sqrt(size))


def attend(
    call: Call, q: Array, k: Array, v: Array, scale: float | None, *additions: Array | None
) -> tuple[Array, Array]:
    """Return softmax(q·kᵀ·scale + additions)·v in [B, S, heads·D], and the logits."""
    scores = call.xp.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(_scale(scale, q.shape[-1]))
    for addition in additions:
        scores = scores if addition is None else scores + addition
    return join_heads(call.xp.matmul(probabilities(call.xp, scores), v)), scores


def padding(
    call: Call, mask: Array | None, batch: int, total: int, dtype: Any, filter_value: float
) -> Array | None:
    """Return what a mask adds to the scores, broadcastable to [B, heads, S, T]; filter_value where masked.

    mask: int32 [B, T] or [B, S, T], 0 where masked; [B], the lengths; or [2B], ends and then starts.
    Raises ValueError for any other shape.
    """
    if mask is None:
        return None
    positions = call.xp.arange(total)
    if mask.ndim == 1 and mask.size in (batch, 2 * batch):
        kept = positions < mask[:batch, None]
        kept = kept & (positions >= mask[batch:, None]) if mask.size == 2 * batch else kept
        kept = kept[:, None, None]
    elif mask.ndim in (2, 3) and mask.shape[-1] == total:
        kept = (mask > 0)[:, None, None] if mask.ndim == 2 else (mask > 0)[:, None]
    else:
        raise ValueError(f"a mask of shape {list(mask.shape)} is not supported")
    return call.xp.where(kept, dtype.type(0), dtype.type(filter_value))


def causal(call: Call, length: int, total: int, dtype: Any) -> Array:
    """Return [length, total]: the lowest number where a key lies after its query, else 0."""
    late = call.xp.arange(total) > call.xp.arange(length)[:, None] + (total - length)
    return call.xp.where(late, np.finfo(dtype).min, dtype.type(0))


def _joined(xp: Any, past: Array | None, new: Array) -> Array:
    return new if past is None else xp.concatenate([wide(past), new], axis=2)


# ---- Attention, QAttention ----------------------------------------------------------------------------


@op("Attention", 1, domain=MS, infer=ms_infer.attention)
def attention(
    call: Call,
    input: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = MASK,
    unidirectional: int = 0,
    scale: float | None = None,
    qkv_hidden_sizes: Sequence[int] | None = None,
    do_rotary: int = 0,
    rotary_embedding_dim: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[Array, Array]:
    """Self-attention with its projections, com.microsoft version 1.

    input: [B, S, I]; weights: [I, Q + K + V]; bias: [Q + K + V]; mask_index: see :func:`padding`; past:
    [2, B, heads, P, D]; attention_bias: broadcastable to [B, heads, S, T]. Returns [B, S, V] and the
    present keys and values [2, B, heads, P + S, D].

    Raises ValueError for rotary embedding and for a shared buffer, which only CUDA builds have.
    """
    if do_rotary or past_present_share_buffer:
        raise ValueError("Attention with do_rotary or past_present_share_buffer is not implemented")
    projected = product(call.xp, wide(input), wide(weights))
    projected = projected if bias is None else projected + wide(bias)
    options = (num_heads, mask_filter_value, unidirectional, scale, qkv_hidden_sizes)
    return _self_attention(call, projected, mask_index, past, attention_bias, *options, input.dtype)


def _self_attention(
    call: Call,
    projected: Array,
    mask: Array | None,
    past: Array | None,
    bias: Array | None,
    heads: int,
    filter_value: float,
    unidirectional: int,
    scale: float | None,
    sizes: Sequence[int] | None,
    dtype: Any,
) -> tuple[Array, Array]:
    """Attend over the projected [B, S, Q + K + V]."""
    xp, (batch, length, width) = call.xp, projected.shape
    sizes = sizes or [width // 3] * 3
    parts = xp.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=-1)
    q, k, v = (split_heads(part, heads) for part in parts)
    k, v = (_joined(xp, None if past is None else past[i], x) for i, x in enumerate((k, v)))
    added = padding(call, mask, batch, k.shape[2], q.dtype, filter_value)
    order = causal(call, length, k.shape[2], q.dtype) if unidirectional else None
    out, _ = attend(call, q, k, v, scale, added, order, None if bias is None else wide(bias))
    present = xp.stack([k, v]) if call.outputs > 1 and k.shape == v.shape else None
    return narrow(out, dtype), None if present is None else narrow(present, dtype)


@op("QAttention", 1, domain=MS, infer=ms_infer.q_attention)
def qattention(
    call: Call,
    input: Array,
    weight: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = MASK,
    unidirectional: int = 0,
    scale: float | None = None,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[Array, Array]:
    """Attention whose projection multiplies 8-bit integers, com.microsoft version 1.

    input, weight: 8-bit [B, S, I] and [I, 3H] with their scales and zero points (weight: one, or one per
    column). Everything after the projection is float, as in Attention.
    """
    if do_rotary or past_present_share_buffer:
        raise ValueError("QAttention with do_rotary or past_present_share_buffer is not implemented")
    total = integer_product(call, input, weight, input_zero_point, weight_zero_point)
    factor = input_scale.reshape(()) * (weight_scale if weight_scale.size > 1 else weight_scale.reshape(()))
    projected = total.astype(wide(factor).dtype) * wide(factor) + wide(bias)
    options = (num_heads, mask_filter_value, unidirectional, scale, None)
    return _self_attention(call, projected, mask_index, past, None, *options, bias.dtype)


# ---- MultiHeadAttention -------------------------------------------------------------------------------


def _biases(bias: Array | None, query: int, key: int) -> list[Array | None]:
    """Return the parts of a bias [Q + K + V] that belong to query, key and value."""
    if bias is None:
        return [None, None, None]
    bias = wide(bias)
    return [bias[:query], bias[query : query + key], bias[query + key :]]


def _separate(query: Array, key: Array | None, value: Array | None) -> tuple[Array, Array, Array]:
    """Return query, key and value, taken apart where they come packed.

    query [B, S, heads, 3, D] alone, or key [B, L, heads, 2, D] with no value.
    """
    if key is None:
        q, k, v = (query[:, :, :, i] for i in range(3))
        return tuple(x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    if value is None:
        k, v = (key[:, :, :, i].reshape(*key.shape[:2], -1) for i in range(2))
        return query, k, v
    return query, key, value


def _heads(x: Array, bias: Array | None, heads: int) -> Array:
    """Return [B, L, heads·D] plus its bias, or [B, heads, L, D] as it is, as heads in the wide dtype."""
    if x.ndim == 4:
        return wide(x)
    return split_heads(wide(x) if bias is None else wide(x) + bias, heads)


@op("MultiHeadAttention", 1, domain=MS, infer=ms_infer.multi_head_attention)
def multi_head_attention(
    call: Call,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = MASK,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Array, Array, Array, Array]:
    """Self- or cross-attention without projections, com.microsoft version 1.

    query: [B, S, heads·D], or all three packed [B, S, heads, 3, D]. key, value: [B, L, heads·D] or
    [B, heads, L, D], or both packed in key [B, L, heads, 2, D]. bias: [Q + K + V]. past: [B, heads, P, D].
    Returns [B, S, V], the present keys and values, and the logits.

    Raises ValueError for the beam search inputs (past_sequence_length, cache_indirection).
    """
    if past_sequence_length is not None or cache_indirection is not None:
        raise ValueError("MultiHeadAttention with a shared buffer or beam search is not implemented")
    dtype = query.dtype
    query, key, value = _separate(query, key, value)
    width = query.shape[-1]
    bias_q, bias_k, bias_v = _biases(bias, width, width)
    q, k, v = (_heads(x, b, num_heads) for x, b in ((query, bias_q), (key, bias_k), (value, bias_v)))
    k, v = _joined(call.xp, past_key, k), _joined(call.xp, past_value, v)
    added = padding(call, key_padding_mask, q.shape[0], k.shape[2], q.dtype, mask_filter_value)
    order = causal(call, q.shape[2], k.shape[2], q.dtype) if unidirectional else None
    out, scores = attend(
        call, q, k, v, scale, added, order, None if attention_bias is None else wide(attention_bias)
    )
    return tuple(narrow(x, dtype) for x in (out, k, v, scores))


# ---- rotary embedding ---------------------------------------------------------------------------------


def rotate(xp: Any, x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Turn pairs of the first features of x by angles.

    x: [B, heads, S, D]; cos, sin: broadcastable to [B, heads, S, R/2], R ≤ D. A pair is (i, i + R/2), or
    (2i, 2i + 1) when interleaved.
    """
    size = 2 * cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., : size // 2], turned[..., size // 2 :]
    pair = [first * cos - second * sin, second * cos + first * sin]
    result = xp.stack(pair, axis=-1).reshape(turned.shape) if interleaved else xp.concatenate(pair, axis=-1)
    return xp.concatenate([result, rest], axis=-1) if rest.shape[-1] else result


def _angles(table: Array, positions: Array) -> Array:
    """Return the rows of a cos or sin table at positions [B, S], as [B, 1, S, R/2]."""
    if bool(((positions < 0) | (positions >= table.shape[0])).any()):
        raise ValueError(f"a position is outside the cached 0 … {table.shape[0] - 1}")
    return wide(table)[positions][:, None]


@op("RotaryEmbedding", 1, domain=MS, infer=same_as_first)
def rotary_embedding(
    call: Call,
    input: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Array:
    """Rotary position embedding, com.microsoft version 1.

    input: [B, S, heads·D] or [B, heads, S, D]. position_ids: [B, S], or [1], the first position.
    cos_cache, sin_cache: [positions, R/2]. num_heads is needed where R is less than D in three axes.
    """
    xp, flat = call.xp, input.ndim == 3
    size = rotary_embedding_dim if rotary_embedding_dim and num_heads else 2 * cos_cache.shape[-1]
    heads = num_heads or input.shape[-1] // size
    x = split_heads(wide(input), heads) if flat else wide(input)
    positions = position_ids.astype(np.int64)
    if positions.size == 1 and positions.ndim == 1:
        positions = xp.broadcast_to(positions + xp.arange(x.shape[2]), (x.shape[0], x.shape[2]))
    cos, sin = (_angles(table, positions) for table in (cos_cache, sin_cache))
    y = rotate(xp, x, cos, sin, interleaved)
    return narrow(join_heads(y) if flat else y, input.dtype)


# ---- GroupQueryAttention ------------------------------------------------------------------------------


@op("GroupQueryAttention", 1, domain=MS, infer=ms_infer.group_query_attention)
def group_query_attention(
    call: Call,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    query_seqlens: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float | None = None,
    softcap: float = 0.0,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    smooth_softmax: int = -1,
    causal: int = 1,
    qk_norm_epsilon: float = 1e-6,
    q_norm_epsilon: float | None = None,
    k_norm_epsilon: float | None = None,
    **attributes: Any,
) -> tuple[Array, Array, Array]:
    """Attention with a key-value cache, several query heads a key head, com.microsoft version 1.

    query: [B, S, heads·D]; key, value: [B, S, kv_heads·D]; or all packed in query. past: [B, kv_heads, P, D].
    seqlens_k: int32 [B], valid keys of each sequence less 1; total_sequence_length: int32 [], the most. When
    it equals S, this is a prompt and the past is empty. Returns the output [B, S, heads·D] and the present
    keys and values [B, kv_heads, max(P, total), D], 0 past each sequence's end. q_norm_weight, k_norm_weight
    [D]: each head is divided by its root mean square first. causal 0: every key of the sequence is seen.

    Raises ValueError for quantised caches, windowed caches, padded queries, for the output of scores, and for
    lengths that are not one a sequence.
    """
    _refuse_quantised(attributes, k_scale=k_scale, v_scale=v_scale, query_seqlens=query_seqlens)
    xp, dtype = call.xp, query.dtype
    q, k, v = _grouped(xp, query, key, value, num_heads, kv_num_heads)
    q = _head_norm(xp, q, q_norm_weight, qk_norm_epsilon if q_norm_epsilon is None else q_norm_epsilon)
    k = _head_norm(xp, k, k_norm_weight, qk_norm_epsilon if k_norm_epsilon is None else k_norm_epsilon)
    total, length = int(total_sequence_length.reshape(())), q.shape[2]
    ends = [int(end) + 1 for end in seqlens_k.reshape(-1).tolist()]
    if len(ends) != q.shape[0]:
        raise ValueError(f"seqlens_k has {len(ends)} entries for {q.shape[0]} sequences")
    starts = [0 if length == total else end - length for end in ends]
    if do_rotary:
        positions = _positions(xp, starts, length, position_ids)
        cos, sin = (_angles(table, positions) for table in (cos_cache, sin_cache))
        q, k = (rotate(xp, x, cos, sin, rotary_interleaved) for x in (q, k))
    size = max(total, 0 if past_key is None else past_key.shape[2])
    keys, values = (_cache(xp, past, x, starts, size) for past, x in ((past_key, k), (past_value, v)))
    hidden = _hidden(xp, starts if causal else ends, ends, length, total, local_window_size, q.dtype)
    bias = None if attention_bias is None else wide(attention_bias)
    sink = xp.zeros(num_heads, q.dtype) if smooth_softmax == 1 and head_sink is None else head_sink
    seen = (keys[:, :, :total], values[:, :, :total])
    out = _attend_groups(call, q, *seen, scale, softcap, bias, hidden, sink)
    return narrow(out, dtype), narrow(keys, dtype), narrow(values, dtype)


def _refuse_quantised(attributes: dict[str, Any], **inputs: Array | None) -> None:
    """Raise ValueError where an attribute or input asks for what is not computed here."""
    refused = [name for name, value in attributes.items() if value not in (0, "NONE", "")]
    refused += [name for name, value in inputs.items() if value is not None]
    if refused:
        raise ValueError(f"GroupQueryAttention with {', '.join(sorted(refused))} is not implemented")


def _grouped(
    xp: Any, query: Array, key: Array | None, value: Array | None, heads: int, kv_heads: int
) -> tuple[Array, Array, Array]:
    """Return query, key and value as heads in the wide dtype."""
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * kv_heads)
        query, key, value = xp.split(query, [heads * size, (heads + kv_heads) * size], axis=-1)
    return (
        split_heads(wide(query), heads),
        split_heads(wide(key), kv_heads),
        split_heads(wide(value), kv_heads),
    )


def _head_norm(xp: Any, x: Array, weight: Array | None, epsilon: float) -> Array:
    """Return x [B, heads, S, D] over the root mean square of its last axis, times weight [D]."""
    if weight is None:
        return x
    mean = (x * x).mean(axis=-1, keepdims=True, dtype=x.dtype)
    return x / xp.sqrt(mean + x.dtype.type(epsilon)) * wide(weight)


def _positions(xp: Any, starts: Sequence[int], length: int, given: Array | None) -> Array:
    """Return the position of each query, int64 [B, S].

    given: position_ids [B, S]; of a prompt only the first element counts, as the operator's text says.
    """
    if given is not None and length == 1:
        return xp.broadcast_to(given.astype(np.int64), (len(starts), 1))
    if given is not None:
        return xp.broadcast_to(int(given.reshape(-1)[0]) + xp.arange(length), (len(starts), length))
    return xp.asarray(np.asarray(starts, np.int64)[:, None] + np.arange(length))


def _cache(xp: Any, past: Array | None, new: Array, starts: Sequence[int], size: int) -> Array:
    """Return [B, heads, size, D]: the first ``starts`` of the past, then the new, then 0."""
    result = xp.zeros((*new.shape[:2], size, new.shape[3]), new.dtype)
    for b, start in enumerate(starts):
        if start < 0 or start + new.shape[2] > size or (start and (past is None or past.shape[2] < start)):
            raise ValueError(f"sequence {b} needs {start} past keys and {new.shape[2]} new ones of {size}")
        if start:
            result[b, :, :start] = past[b, :, :start]  # type: ignore[index]
        result[b, :, start : start + new.shape[2]] = new[b]
    return result


def _hidden(
    xp: Any, starts: Sequence[int], ends: Sequence[int], length: int, total: int, window: int, dtype: Any
) -> Array:
    """Return [B, 1, S, T]: −inf for keys after the query or the sequence, or before the window, else 0."""
    last = np.minimum(np.asarray(starts)[:, None] + np.arange(length), np.asarray(ends)[:, None] - 1)
    last = xp.asarray(last)[:, None, :, None]
    keys = xp.arange(total)
    out = keys > last
    if window > 0:
        out = out | (keys <= last - window)
    return xp.where(out, dtype.type(-np.inf), dtype.type(0))


def _attend_groups(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    scale: float | None,
    softcap: float,
    bias: Array | None,
    hidden: Array,
    sink: Array | None,
) -> Array:
    """Return the attention of q [B, heads, S, D] over k, v [B, kv_heads, T, D], as [B, S, heads·D]."""
    xp, (batch, heads, length, size) = call.xp, q.shape
    grouped = q.reshape(batch, k.shape[1], -1, size)
    scores = xp.matmul(grouped, k.swapaxes(-1, -2)) * q.dtype.type(_scale(scale, size))
    scores = scores.reshape(batch, heads, length, k.shape[2])
    if softcap:
        scores = xp.tanh(scores / q.dtype.type(softcap)) * q.dtype.type(softcap)
    scores = (scores if bias is None else scores + bias[..., : k.shape[2]]) + hidden
    shares = probabilities(xp, scores, None if sink is None else wide(sink))
    out = xp.matmul(shares.reshape(batch, k.shape[1], -1, k.shape[2]), v)
    return join_heads(out.reshape(batch, heads, length, v.shape[3]))
