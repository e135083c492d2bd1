"""Attention of com.microsoft → Attention steps over views of the heads; float32 alone."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, I32, I64, Expr, apply, cast, const, index, load
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.lower import NotLowered, Site, content, lowering
from graphdoc.engine.lower_attention import at_positions, behind, join_heads, rotated, split_heads
from graphdoc.engine.lower_attention_cache import KEY, Fixed, Told, told
from graphdoc.engine.lower_layout import entry, with_ones
from graphdoc.engine.lower_products import product, scaled
from graphdoc.engine.lower_rows import scaled_by_rms
from graphdoc.engine.ops.ms_attention import MASK
from graphdoc.engine.program import View

MS = "com.microsoft"

_QUERY, _KEY = index(3), KEY
"""Positions in the domain (batch, key heads, query heads of a key head, queries, keys)."""

Score = Callable[..., Expr]
"""(the scaled product, the further operands) → the score."""


def _only_f32(*views: View | None) -> None:
    if any(view is not None and view.dtype != F32 for view in views):
        raise NotLowered("another dtype than float32")


def attend(at: Site, q: View, k: View, v: View, score: Score, extra: Sequence[View] = ()) -> View:
    """Return softmax(score of q · kᵀ) · v as (B, S, heads · E).

    q: (B, heads, S, D). k, v: (B, key heads, T, D or E). extra: operands of the score, broadcastable to (B,
    key heads, heads ÷ key heads, S, T).
    """
    batch, heads, length, size = q.shape
    groups, total, width = k.shape[1], k.shape[2], v.shape[3]
    if heads % groups or k.shape[3] != size or 0 in (total, length):
        raise NotLowered("heads that do not divide, or no keys")
    times = heads // groups
    strides = (q.strides[0], q.strides[1] * times, *q.strides[1:])
    grouped = View(q.buffer, (batch, groups, times, length, size), strides, q.offset)
    keys, values = (with_ones(x, [2]).broadcast((batch, groups, times, total, x.shape[3])) for x in (k, v))
    out = at.fresh((batch, length, groups, times, width), F32)
    domain = (batch, groups, times, length, total)
    operands = [load(3 + n, view.dtype) for n, view in enumerate(extra)]
    spec = Attention(3, score(load(-1, F32), *operands))
    inputs = [grouped, keys, values, *(view.broadcast(domain) for view in extra)]
    at.step(spec, inputs, [out.permuted((0, 2, 3, 1, 4))])
    return at.reshape(out, (batch, length, heads * width))


def _factor(scale: float | None, size: int) -> float:
    return float(np.float32(scale or 1 / sqrt(size)))


# ---- masks -----------------------------------------------------------------------------------------------


def _kept(mask: View, batch: int, length: int, total: int) -> tuple[list[View], Callable[..., Expr]]:
    """Return the operands, and from them whether a key is kept; see ``engine/ops/ms_attention.py``."""
    if mask.dtype != I32:
        raise NotLowered("a mask of another dtype")
    zero, place = const(0, I32), cast(_KEY, I32)
    shape = mask.shape
    if shape == (batch, total):
        return [with_ones(mask, [1, 2, 3])], lambda m: apply("lt", zero, m)
    if shape == (batch, length, total):
        return [with_ones(mask, [1, 2])], lambda m: apply("lt", zero, m)
    if shape == (batch,):
        return [with_ones(mask, [1, 2, 3, 4])], lambda end: apply("lt", place, end)
    if shape == (2 * batch,):
        ends, starts = (with_ones(mask.sliced(0, n * batch, batch), [1, 2, 3, 4]) for n in (0, 1))
        return [ends, starts], lambda end, start: apply(
            "and", apply("lt", place, end), apply("le", start, place)
        )
    raise NotLowered(f"a mask of shape {shape}")


def _biased(bias: View | None, groups: int) -> list[View]:
    """Return a bias over (B, heads, S, T) as one operand over groups of heads."""
    if bias is None:
        return []
    _only_f32(bias)
    if len(bias.shape) != 4:
        raise NotLowered("a bias of another rank")
    if bias.shape[1] == 1:
        return [with_ones(bias, [2])]
    times = bias.shape[1] // groups
    strides = (bias.strides[0], bias.strides[1] * times, *bias.strides[1:])
    shape = (bias.shape[0], groups, times, *bias.shape[2:])
    return [View(bias.buffer, shape, strides, bias.offset)]


def _masked(
    at: Site,
    q: View,
    k: View,
    v: View,
    mask: View | None,
    bias: View | None,
    *,
    filter_value: float,
    unidirectional: int,
    scale: float | None,
) -> View:
    """Attend with a padding mask, an order of positions and a bias, added to the scores one after another."""
    length, total = q.shape[2], k.shape[2]
    padding, kept = ([], None) if mask is None else _kept(mask, q.shape[0], length, total)
    biases = _biased(bias, k.shape[1])

    def score(dot: Expr, *operands: Expr) -> Expr:
        result = scaled(dot, _factor(scale, q.shape[3]))
        if kept is not None:
            shown = kept(*operands[: len(padding)])
            result = apply("add", result, _choice(shown, 0.0, filter_value))
        if unidirectional:
            last = apply("add", _QUERY, const(total - length, I64))
            lowest = float(np.finfo(np.float32).min)
            result = apply("add", result, _choice(apply("le", _KEY, last), 0.0, lowest))
        for operand in operands[len(padding) :]:
            result = apply("add", result, operand)
        return result

    return attend(at, q, k, v, score, [*padding, *biases])


def _choice(test: Expr, yes: float, no: float) -> Expr:
    return apply("select", test, const(yes, F32), const(no, F32))


# ---- MultiHeadAttention, Attention -----------------------------------------------------------------------


def _plus(at: Site, x: View, bias: View | None, start: int) -> View:
    """Return x (B, L, W) plus W entries of a bias."""
    if bias is None:
        return x
    part = bias.sliced(0, start, x.shape[-1])
    return at.map(lambda a, b: apply("add", a, b), x, part)


@lowering("MultiHeadAttention", domain=MS)
def multi_head_attention(
    at: Site,
    query: View,
    key: View | None = None,
    value: View | None = None,
    bias: View | None = None,
    key_padding_mask: View | None = None,
    attention_bias: View | None = None,
    past_key: View | None = None,
    past_value: View | None = None,
    *more: View | None,
    num_heads: int,
    mask_filter_value: float = MASK,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[View, ...]:
    """Attention of projected queries, keys and values; packed ones are left to level 0."""
    if any(more) or key is None or value is None or len(query.shape) != 3 or at.outputs > 3:
        raise NotLowered("packed inputs, a shared cache, or the scores are asked for")
    _only_f32(query, key, value, bias, past_key, past_value)
    width = query.shape[2]
    q = split_heads(at, _plus(at, query, bias, 0), num_heads)
    k, v = (
        x if len(x.shape) == 4 else split_heads(at, _plus(at, x, bias, start), num_heads)
        for x, start in ((key, width), (value, 2 * width))
    )
    k, v = behind(at, past_key, k), behind(at, past_value, v)
    out = _masked(
        at, q, k, v, key_padding_mask, attention_bias,
        filter_value=mask_filter_value, unidirectional=unidirectional, scale=scale,
    )  # fmt: skip
    return (out, k, v)[: at.outputs]


@lowering("Attention", domain=MS)
def attention(
    at: Site,
    input: View,  # noqa: A002 (the specification's name)
    weights: View,
    bias: View | None = None,
    mask_index: View | None = None,
    past: View | None = None,
    attention_bias: View | None = None,
    past_sequence_length: View | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = MASK,
    unidirectional: int = 0,
    scale: float | None = None,
    qkv_hidden_sizes: Sequence[int] | None = None,
    do_rotary: int = 0,
    rotary_embedding_dim: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[View, ...]:
    """Self-attention with its projections, which are one product."""
    del rotary_embedding_dim
    if do_rotary or past_present_share_buffer or past_sequence_length is not None:
        raise NotLowered("rotary embedding, or a shared cache")
    _only_f32(input, weights, bias, past)
    extra = [] if bias is None else [bias]
    projected = product(at, input, weights, lambda total, *terms: _sum(total, *terms), extra)
    sizes = list(qkv_hidden_sizes or [projected.shape[2] // 3] * 3)
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        split_heads(at, projected.sliced(2, start, size), num_heads)
        for start, size in zip(starts, sizes, strict=True)
    )
    if past is not None or at.outputs > 1:
        if k.shape != v.shape:
            raise NotLowered("a cache of keys and values of two sizes")
        present = _stacked(at, [behind(at, past and entry(past, 0, n), x) for n, x in enumerate((k, v))])
        k, v = entry(present, 0, 0), entry(present, 0, 1)
    out = _masked(
        at, q, k, v, mask_index, attention_bias,
        filter_value=mask_filter_value, unidirectional=unidirectional, scale=scale,
    )  # fmt: skip
    return (out, present) if at.outputs > 1 else (out,)


def _sum(total: Expr, *terms: Expr) -> Expr:
    for term in terms:
        total = apply("add", total, term)
    return total


def _stacked(at: Site, views: Sequence[View]) -> View:
    whole = at.fresh((len(views), *views[0].shape), views[0].dtype)
    for n, view in enumerate(views):
        at.copy(view, entry(whole, 0, n))
    return whole


# ---- RotaryEmbedding -------------------------------------------------------------------------------------


@lowering("RotaryEmbedding", domain=MS)
def rotary_embedding(
    at: Site,
    input: View,  # noqa: A002 (the specification's name)
    position_ids: View,
    cos_cache: View,
    sin_cache: View,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> View:
    """Pairs of features turned by the angles at each position of a table."""
    del scale, is_packed_batching
    _only_f32(input, cos_cache, sin_cache)
    size = rotary_embedding_dim if rotary_embedding_dim and num_heads else 2 * cos_cache.shape[-1]
    heads = num_heads or input.shape[-1] // size
    x = split_heads(at, input, heads)
    shape = (x.shape[0], x.shape[2])
    positions = position_ids
    if positions.shape == (1,):
        positions = at.map(lambda p: apply("add", cast(p, I64), index(1)), positions, shape=shape)
    y = _turned(at, x, positions, cos_cache, sin_cache, interleaved)
    return y if len(input.shape) == 4 else join_heads(at, y)


def _turned(at: Site, x: View, positions: View, cos: View, sin: View, interleaved: int) -> View:
    outside = const(cos.shape[0], I64)

    def build(position: Expr) -> Expr:
        number = cast(position, I64)  # one below 0 would count from the table's end
        return apply("select", apply("lt", number, const(0, I64)), outside, number)

    shape = (x.shape[0], x.shape[2])
    places = at.map(build, positions.broadcast(shape) if positions.shape != shape else positions)
    return rotated(at, x, at_positions(at, cos, places), at_positions(at, sin, places), interleaved)


# ---- GroupQueryAttention ---------------------------------------------------------------------------------


@lowering("GroupQueryAttention", domain=MS)
def group_query_attention(
    at: Site,
    query: View,
    key: View | None,
    value: View | None,
    past_key: View | None,
    past_value: View | None,
    seqlens_k: View,
    total_sequence_length: View,
    cos_cache: View | None = None,
    sin_cache: View | None = None,
    position_ids: View | None = None,
    attention_bias: View | None = None,
    head_sink: View | None = None,
    k_scale: View | None = None,
    v_scale: View | None = None,
    q_norm_weight: View | None = None,
    k_norm_weight: View | None = None,
    query_seqlens: View | None = None,
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
) -> tuple[View, ...]:
    """Attention over a cache, several query heads a key head."""
    odd = any(x is not None for x in (head_sink, k_scale, v_scale, query_seqlens)) or smooth_softmax == 1
    if odd or any(value not in (0, "NONE", "") for value in attributes.values()):
        raise NotLowered("a sink, a quantised cache, or padded queries")
    _only_f32(query, key, value, past_key, past_value, cos_cache, sin_cache, q_norm_weight, k_norm_weight)
    total = int(at.known(total_sequence_length, "the longest sequence").reshape(()))
    q, k, v = _grouped(at, query, key, value, num_heads, kv_num_heads)
    length, have = q.shape[2], 0 if past_key is None else past_key.shape[2]
    size = max(total, have)
    lengths = _lengths(at, seqlens_k, q.shape[0], (length, total, size, have))
    q = _normed(at, q, q_norm_weight, qk_norm_epsilon if q_norm_epsilon is None else q_norm_epsilon)
    k = _normed(at, k, k_norm_weight, qk_norm_epsilon if k_norm_epsilon is None else k_norm_epsilon)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        places = _positions(at, lengths, q, position_ids)
        q, k = (_turned(at, x, places, cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    keys, values = (lengths.cache(at, past, x, size) for past, x in ((past_key, k), (past_value, v)))
    hidden = lengths.operand(at, length, total, local_window_size, causal=bool(causal))
    biases = _biased(attention_bias, kv_num_heads)
    factor = _factor(scale, q.shape[3])

    def score(dot: Expr, operand: Expr, *bias: Expr) -> Expr:
        closed = lengths.closed(operand, local_window_size)
        return _sum(_capped(scaled(dot, factor), softcap), *bias, closed)

    extra = [hidden, *(b.sliced(4, 0, total) if b.shape[4] > total else b for b in biases)]
    out = attend(at, q, keys.sliced(2, 0, total), values.sliced(2, 0, total), score, extra)
    return (out, keys, values)[: at.outputs]


def _capped(score: Expr, limit: float) -> Expr:
    if not limit:
        return score
    cap = const(np.float32(limit), F32)
    return apply("mul", apply("tanh", apply("div", score, cap)), cap)


def _grouped(
    at: Site, query: View, key: View | None, value: View | None, heads: int, groups: int
) -> tuple[View, View, View]:
    """Return query, key and value as heads, taken apart where they come in one."""
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * groups)
        spans = ((0, heads), (heads, groups), (heads + groups, groups))
        query, key, value = (query.sliced(2, start * size, count * size) for start, count in spans)
    return split_heads(at, query, heads), split_heads(at, key, groups), split_heads(at, value, groups)


def _normed(at: Site, x: View, weight: View | None, epsilon: float) -> View:
    return x if weight is None else scaled_by_rms(at, x, weight, [3], epsilon)


def _lengths(at: Site, view: View, batch: int, sizes: tuple[int, int, int, int]) -> Fixed | Told:
    """Return the lengths of the sequences; sizes: as :func:`told` takes them."""
    if view.size != batch:
        raise NotLowered(f"{view.size} lengths of {batch} sequences")
    known = content(view)
    if known is None:
        return told(at, view, *sizes)
    length, total = sizes[:2]
    ends = [int(n) + 1 for n in known.reshape(-1)]
    return Fixed([0 if length == total else end - length for end in ends], ends)


def _positions(at: Site, lengths: Fixed | Told, q: View, given: View | None) -> View:
    """Return the position of each query (B, S); of given ones of a prompt only the first counts."""
    batch, length = q.shape[0], q.shape[2]
    if given is None:
        return lengths.places(at, length)
    if length == 1:
        return given.broadcast((batch, 1))
    first = View(given.buffer, (1, 1), (0, 0), given.offset)
    return at.map(lambda p: apply("add", cast(p, I64), index(1)), first, shape=(batch, length))
