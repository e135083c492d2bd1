"""Attention and rotary embeddings → contractions, rows and maps over views of the heads."""

from math import sqrt
from typing import Any

import numpy as np

from graphdoc.engine.expr import BOOL, F16, F32, F64, I64, Expr, apply, const, index, load, stage
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Site, largest, lowering
from graphdoc.engine.lower_elementwise import like
from graphdoc.engine.lower_index import look_up
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_products import product, scaled
from graphdoc.engine.lower_rows import run_rows
from graphdoc.engine.program import View


def split_heads(at: Site, x: View, heads: int | None) -> View:
    """Return x (B, S, heads·D) as (B, heads, S, D); x of rank 4 as it is."""
    if len(x.shape) == 4:
        return x
    if len(x.shape) != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"{x.shape} does not divide into {heads} heads")
    batch, length, width = x.shape
    return at.reshape(x, (batch, length, heads, width // heads)).permuted((0, 2, 1, 3))


def join_heads(at: Site, x: View) -> View:
    """Return x (B, heads, S, D) as (B, S, heads·D)."""
    batch, heads, length, width = x.shape
    return at.reshape(x.permuted((0, 2, 1, 3)), (batch, length, heads * width))


def behind(at: Site, past: View | None, new: View) -> View:
    """Return new keys or values behind those of the cache."""
    if past is None or not past.size:
        return new
    if past.dtype != new.dtype:
        raise NotLowered("a cache of another dtype")
    length = past.shape[2]
    whole = at.fresh((*new.shape[:2], length + new.shape[2], new.shape[3]), new.dtype, largest([past, new]))
    at.copy(past, whole.sliced(2, 0, length))
    at.copy(new, whole.sliced(2, length, new.shape[2]))
    return whole


def _by_shared_head(x: View, shared: int) -> View:
    """Return x (B, H, S, D) as (B, shared, H ÷ shared, S, D)."""
    times = x.shape[1] // shared
    shape = (x.shape[0], shared, times, *x.shape[2:])
    strides = (x.strides[0], x.strides[1] * times, *x.strides[1:])
    return View(x.buffer, shape, strides, x.offset)


@lowering("Attention")
def attention(
    at: Site,
    Q: View,
    K: View,
    V: View,
    attn_mask: View | None = None,
    past_key: View | None = None,
    past_value: View | None = None,
    nonpad_kv_seqlen: View | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[View, ...]:
    """softmax(scale · Q·Kᵀ, capped, + bias) · V per head; a query that sees no key gives 0."""
    odd = nonpad_kv_seqlen is not None or left_window_size >= 0 or right_window_size >= 0 or at.outputs > 3
    if odd or softmax_precision is not None or (past_key is None) != (past_value is None):
        raise NotLowered("padded keys, windows, or the scores are asked for")
    narrow = Q.dtype
    if {v.dtype for v in (Q, K, V)} not in ({F32}, {F64}, {F16}):
        raise NotLowered("several dtypes, or bfloat16, which rounds between the steps")
    q, k, v = (split_heads(at, x, n) for x, n in ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads)))
    offset = 0 if past_key is None else past_key.shape[2]
    k, v = present = behind(at, past_key, k), behind(at, past_value, v)
    if narrow == F16:  # computed in float32, and rounded once
        q, k, v = (at.cast(x, F32) for x in (q, k, v))
        if attn_mask is not None and attn_mask.dtype == narrow:
            attn_mask = at.cast(attn_mask, F32)
    shared = k.shape[1]
    if q.shape[1] % shared:
        raise ValueError(f"{q.shape[1]} query heads do not divide into {shared} key heads")
    factor = 1 / sqrt(q.shape[3]) if scale is None else scale

    def finish(total: Expr) -> Expr:
        score = scaled(total, factor)
        if not softcap:
            return score
        return apply("mul", apply("tanh", apply("div", score, like(softcap, score))), like(softcap, score))

    grouped, keys = _by_shared_head(q, shared), with_ones(k, [2])
    scores = product(at, grouped, keys.permuted((0, 1, 2, 4, 3)), finish)
    every = (*q.shape[:3], k.shape[2])
    bias = None if attn_mask is None else _by_shared_head(_spread(attn_mask, every), shared)
    weights = _weights(at, scores, bias, offset if is_causal else None)
    y = product(at, weights, with_ones(v, [2]))
    joined = at.cast(at.reshape(y, (*q.shape[:3], v.shape[3])), narrow)
    return (joined if len(Q.shape) == 4 else join_heads(at, joined), *present)[: at.outputs]


def _spread(mask: View, shape: tuple[int, ...]) -> View:
    if mask.shape and mask.shape[-1] not in (1, shape[-1]):
        raise NotLowered("a mask shorter than the keys")
    return mask.broadcast(shape)


def _weights(at: Site, scores: View, bias: View | None, offset: int | None) -> View:
    """Return the softmax of scores plus a bias, closed keys at −inf; 0 in rows whose keys are all closed."""
    kind, rank = scores.dtype, len(scores.shape)
    element, inputs = load(0, kind), [scores]
    terms = []
    if bias is not None:
        inputs.append(bias)
        given = load(1, bias.dtype)
        if bias.dtype not in (kind, BOOL):
            raise NotLowered("a mask of another dtype")
        terms.append(_closed_unless(given, kind) if bias.dtype == BOOL else given)
    if offset is not None:
        last = apply("add", index(rank - 2), const(offset, I64))
        terms.append(_closed_unless(apply("le", index(rank - 1), last), kind))
    if not terms:
        stages = [Reduction("max", element)]
        power = apply("exp", apply("sub", element, stage(0, kind)))
        result = apply("div", power, stage(1, kind))
        return run_rows(at, inputs, [rank - 1], [*stages, Reduction("sum", power)], [(result, True)])[0]
    total = terms[0] if len(terms) == 1 else apply("add", terms[0], terms[1])
    closed = apply("eq", stage(0, kind), const(-np.inf, kind))
    shown = apply("select", closed, const(0, kind), apply("add", element, total))
    power = apply("exp", apply("sub", shown, stage(1, kind)))
    result = apply("select", closed, const(0, kind), apply("div", power, stage(2, kind)))
    stages = [Reduction("max", total), Reduction("max", shown), Reduction("sum", power)]
    return run_rows(at, inputs, [rank - 1], stages, [(result, True)])[0]


def _closed_unless(open_: Expr, kind: Any) -> Expr:
    return apply("select", open_, const(0, kind), const(-np.inf, kind))


@lowering("RotaryEmbedding")
def rotary_embedding(
    at: Site,
    X: View,
    cos_cache: View,
    sin_cache: View,
    position_ids: View | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> View:
    """Pairs of X rotated by the angles whose cosines and sines are given."""
    x = split_heads(at, X, num_heads)
    size = rotary_embedding_dim or x.shape[3]
    half = size // 2
    if {X.dtype, cos_cache.dtype, sin_cache.dtype} not in ({F32}, {F64}):
        raise NotLowered("dtypes that round between the steps")
    caches = [at_positions(at, c, position_ids) for c in (cos_cache, sin_cache)]
    if any(c.shape[-1] != half for c in caches):
        raise ValueError(f"caches of width {caches[0].shape[-1]} do not rotate {size} elements")
    y = rotated(at, x, caches[0], caches[1], interleaved)
    return y if len(X.shape) == 4 else join_heads(at, y)


def rotated(at: Site, x: View, cosines: View, sines: View, interleaved: int) -> View:
    """Return x (B, heads, S, D), its first features turned in pairs by angles, whose cosines and sines are
    (B, S, pairs)."""
    half = cosines.shape[-1]
    y = at.fresh(x.shape, x.dtype, x)
    step, second = (2, 1) if interleaved else (1, half)
    parts, targets = ([v.sliced(3, start, half, step) for start in (0, second)] for v in (x, y))
    shape = parts[0].shape
    inputs = [*parts, *(with_ones(c, [1]).broadcast(shape) for c in (cosines, sines))]
    a, b, cos, sin = (load(k, x.dtype) for k in range(4))
    real = apply("sub", apply("mul", cos, a), apply("mul", sin, b))
    imaginary = apply("add", apply("mul", sin, a), apply("mul", cos, b))
    at.step(Map((real, imaginary)), inputs, targets)
    if 2 * half < x.shape[3]:
        rest = x.shape[3] - 2 * half
        at.copy(x.sliced(3, 2 * half, rest), y.sliced(3, 2 * half, rest))
    return y


def at_positions(at: Site, cache: View, positions: View | None) -> View:
    """Return the rows of a cache (positions, r/2) at positions (B, S), or the cache (B, S, r/2) itself."""
    if positions is None:
        return cache
    found = look_up(at, cache, at.reshape(positions, (positions.size,)), 0)
    return at.reshape(found, (*positions.shape, cache.shape[1]))
