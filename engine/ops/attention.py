"""What language models are made of: Attention, RotaryEmbedding, LinearAttention, CausalConvWithState."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.conv import convolve
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op
from graphdoc.engine.ops.window import sliding

# ---- heads ---------------------------------------------------------------------------------------------


def _split_heads(x: Array, heads: int | None) -> Array:
    """Return x (B, S, heads·D) as (B, heads, S, D); x of rank 4 as it is."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"{list(x.shape)} does not divide into {heads} heads")
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _join_heads(x: Array) -> Array:
    """Return x (B, heads, S, D) as (B, S, heads·D)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _product(xp: Any, a: Array, b: Array) -> Array:
    """Return a @ b, summed in float32 or wider and rounded to a's dtype."""
    return narrow(xp.matmul(wide(a), wide(b)), a.dtype)


def _grouped_product(xp: Any, a: Array, b: Array) -> Array:
    """Return a (B, Hq, S, K) @ b (B, Hkv, K, T); query heads share key heads in consecutive groups."""
    heads, shared = a.shape[1], b.shape[1]
    if heads == shared:
        return _product(xp, a, b)
    if heads % shared:
        raise ValueError(f"{heads} query heads do not divide into {shared} key heads")
    grouped = a.reshape(a.shape[0], shared, heads // shared, *a.shape[2:])
    y = _product(xp, grouped, b[:, :, None])
    return y.reshape(a.shape[0], heads, *y.shape[3:])


# ---- Attention -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query may see; ``None`` bounds are open.

    offset: keys that precede the query block, one number or one per batch entry (B, 1, 1, 1).
    """

    offset: Any
    causal: bool = False
    left: int | None = None
    right: int | None = None

    def allowed(self, xp: Any, queries: int, keys: int) -> Array | None:
        """Return a bool array that broadcasts over (B, H, queries, keys), None when all is allowed."""
        if not self.causal and self.left is None and self.right is None:
            return None
        ahead = xp.arange(keys) - (xp.arange(queries)[:, None] + self.offset)
        bounds = [ahead <= 0] if self.causal else []
        bounds += [ahead >= -self.left] if self.left is not None else []
        bounds += [ahead <= self.right] if self.right is not None else []
        result = bounds[0]
        for bound in bounds[1:]:
            result = result & bound
        return result


def _as_bias(xp: Any, allowed: Array, dtype: Any) -> Array:
    """Return 0 where allowed, −inf elsewhere."""
    return xp.where(allowed, xp.zeros((), dtype), xp.full((), -np.inf, dtype))


def _given_bias(xp: Any, attn_mask: Array, keys: int, dtype: Any) -> Array:
    """Return the mask input as a bias over ``keys`` keys; those past its end are closed."""
    bias = _as_bias(xp, attn_mask, dtype) if attn_mask.dtype == bool else attn_mask.astype(dtype, copy=False)
    missing = keys - bias.shape[-1]
    if missing <= 0 or bias.shape[-1] == 1:
        return bias
    return xp.concatenate([bias, xp.full((*bias.shape[:-1], missing), -np.inf, dtype)], axis=-1)


def _bias(
    xp: Any, mask: Mask, attn_mask: Array | None, nonpad: Array | None, queries: int, keys: int, dtype: Any
) -> Array | None:
    """Return the sum of all that is added to the scores, None when nothing is."""
    parts = []
    if attn_mask is not None:
        parts.append(_given_bias(xp, attn_mask, keys, dtype))
    allowed = mask.allowed(xp, queries, keys)
    if allowed is not None:
        parts.append(_as_bias(xp, allowed, dtype))
    if nonpad is not None:
        parts.append(_as_bias(xp, xp.arange(keys) < nonpad.reshape(-1, 1, 1, 1), dtype))
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _softmax(xp: Any, x: Array, closed: Array | None) -> Array:
    """Return the softmax over the last axis in x's dtype; 0 in rows that are closed."""
    zero = xp.zeros((), x.dtype)
    y = x if closed is None else xp.where(closed, zero, x)
    y = xp.exp(y - y.max(axis=-1, keepdims=True))
    y = y / narrow(wide(y).sum(axis=-1, keepdims=True), x.dtype)
    return y if closed is None else xp.where(closed, zero, y)


def _closed_rows(bias: Array | None) -> Array | None:
    """Return which queries may see no key at all, None when there is no such query."""
    if bias is None:
        return None
    closed = bias.max(axis=-1, keepdims=True) == -np.inf
    return closed if bool(closed.any()) else None


def _with_past(xp: Any, past: Array | None, new: Array) -> Array:
    return new if past is None else xp.concatenate([past, new], axis=2)


def _check_cache(past_key: Array | None, past_value: Array | None, nonpad: Array | None) -> None:
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value must be given together")
    if nonpad is not None and past_key is not None:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other")


def infer_attention(
    call: Call,
    Q: TensorType,
    K: TensorType,
    V: TensorType,
    mask: TensorType | None = None,
    past_key: TensorType | None = None,
    past_value: TensorType | None = None,
    *rest: TensorType | None,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    **_: Any,
) -> tuple[TensorType, ...]:
    """Y in the form of Q; the present key and value (B, H, T, D); the scores (B, H, S, T). Q's dtype."""
    if Q.shape is None or K.shape is None or V.shape is None:
        return (TensorType(Q.dtype),) * 4
    q, k, v = (
        _heads_type(known.shape or (), heads)
        for known, heads in ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads))
    )
    keys = _present_type(k, past_key)
    values = _present_type(v, past_value)
    y = (*q[:3], v[3]) if len(Q.shape) == 4 else (q[0], q[2], dims.multiply(q[1], v[3]))
    shapes = (y, keys, values, (*q[:3], keys[2]))
    dtypes = (Q.dtype, K.dtype, V.dtype, Q.dtype)
    return tuple(TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True))


def _heads_type(shape: Sequence[Dim], heads: int | None) -> tuple[Dim, ...]:
    """Return the shape (B, heads, S, D) of queries, keys or values."""
    if len(shape) == 4:
        return tuple(shape)
    batch, length, width = shape
    return batch, heads, length, None if heads is None else dims.floor_divide(width, heads)


def _present_type(new: tuple[Dim, ...], past: TensorType | None) -> tuple[Dim, ...]:
    """Return the shape of new keys or values behind those of the cache."""
    if past is None:
        return new
    length = None if past.shape is None else past.shape[2]
    return (*new[:2], dims.add(length, new[2]), new[3])


@op("Attention", 23, 24, 25, infer=infer_attention)
def attention(
    call: Call,
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
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
) -> tuple[Array, ...]:
    """softmax(Q·√s · (K·√s)ᵀ, capped, + bias) · V per head; Q (B, H, S, D) or (B, S, H·D), K and V alike.

    The bias is −inf where attn_mask (bool), causality, the window or nonpad_kv_seqlen close a key, plus
    attn_mask when it is a float. A query that sees no key gives 0. Every product and the softmax round to
    Q's dtype, as the operator's function body does. Returns (Y, present key, present value, scores as
    qk_matmul_output_mode asks). Raises ValueError for heads or caches that do not fit.
    """
    _check_cache(past_key, past_value, nonpad_kv_seqlen)
    xp, dtype = call.xp, Q.dtype
    q, k, v = _split_heads(Q, q_num_heads), _split_heads(K, kv_num_heads), _split_heads(V, kv_num_heads)
    k, v = _with_past(xp, past_key, k), _with_past(xp, past_value, v)
    queries, keys = q.shape[2], k.shape[2]
    offset: Any = 0 if past_key is None else past_key.shape[2]
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - queries
    mask = Mask(offset, bool(is_causal), _open(left_window_size), _open(right_window_size))
    root = dtype.type(sqrt(scale if scale is not None else 1 / sqrt(q.shape[3])))
    scores = _grouped_product(xp, q * root, (k * root).swapaxes(2, 3))
    capped = xp.tanh(scores / dtype.type(softcap)) * dtype.type(softcap) if softcap else scores
    bias = _bias(xp, mask, attn_mask, nonpad_kv_seqlen, queries, keys, dtype)
    biased = capped if bias is None else capped + bias
    precision = dtype if softmax_precision is None else call.real(ir.DataType(softmax_precision).numpy())
    weights = narrow(_softmax(xp, biased.astype(precision, copy=False), _closed_rows(bias)), dtype)
    y = _grouped_product(xp, weights, v)
    shown = (scores, capped, biased, weights)[qk_matmul_output_mode]
    return y if Q.ndim == 4 else _join_heads(y), k, v, shown


def _open(bound: int) -> int | None:
    """Return a window bound, None for −1 (open)."""
    if bound < -1:
        raise ValueError(f"a window size is {bound}; −1 leaves the side open, others must not be negative")
    return None if bound == -1 else bound


# ---- RotaryEmbedding -----------------------------------------------------------------------------------


@op("RotaryEmbedding", 23, infer=same_as_first)
def rotary_embedding(
    call: Call,
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Rotate pairs of X (B, H, S, D) or (B, S, H·D) by the angles whose cosines and sines are given.

    The caches are (positions, r/2) with position_ids (B, S), else (B, S, r/2); r is rotary_embedding_dim or
    D. Pairs are halves of the first r elements, or neighbours when interleaved; the rest stays.
    """
    xp = call.xp
    x = _split_heads(X, num_heads)
    size = rotary_embedding_dim or x.shape[3]
    cos, sin = (c if position_ids is None else c[position_ids] for c in (cos_cache, sin_cache))
    if cos.shape[-1] != size // 2 or sin.shape[-1] != size // 2:
        raise ValueError(f"caches of width {cos.shape[-1]} and {sin.shape[-1]} do not rotate {size} elements")
    cos, sin = cos[:, None], sin[:, None]
    turned = x[..., :size]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else xp.split(turned, 2, axis=-1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    y = xp.empty_like(x)
    if interleaved:
        y[..., 0:size:2], y[..., 1:size:2] = real, imaginary
    else:
        y[..., : size // 2], y[..., size // 2 : size] = real, imaginary
    y[..., size:] = x[..., size:]
    return y if X.ndim == 4 else _join_heads(y)


# ---- LinearAttention -----------------------------------------------------------------------------------


_RULES = {
    # rule → (takes decay, takes beta)
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def _check_rule(rule: str, decay: Array | None, beta: Array | None) -> None:
    if rule not in _RULES:
        raise ValueError(f"update_rule '{rule}' is unknown, expected one of {', '.join(_RULES)}")
    for name, given, wanted in zip(("decay", "beta"), (decay, beta), _RULES[rule], strict=True):
        if (given is not None) != wanted:
            raise ValueError(f"update_rule '{rule}' {'needs' if wanted else 'does not take'} {name}")


def _per_step(x: Array | None, heads: int) -> Array | None:
    """Return a gate (B, T, heads·D) or (B, T, 1) as (T, B, heads or 1, D), in float32 or wider."""
    if x is None:
        return None
    return wide(x).reshape(x.shape[0], x.shape[1], 1 if x.shape[2] == 1 else heads, -1).swapaxes(0, 1)


def infer_linear_attention(
    call: Call,
    query: TensorType,
    key: TensorType,
    value: TensorType,
    past: TensorType | None = None,
    *rest: TensorType | None,
    q_num_heads: int,
    kv_num_heads: int,
    **_: Any,
) -> tuple[TensorType, TensorType]:
    """Y (B, T, Hq·dv) and the state (B, Hkv, dk, dv), in the dtypes of query and past state."""
    heads, shared = q_num_heads, kv_num_heads
    state = query.dtype if past is None else past.dtype
    if query.shape is None or value.shape is None or len(query.shape) != 3 or len(value.shape) != 3:
        return TensorType(query.dtype), TensorType(state)
    batch, steps, width = query.shape
    inner, outer = dims.exact_quotient(width, heads), dims.exact_quotient(value.shape[2], shared)
    return (
        TensorType(query.dtype, (batch, steps, dims.multiply(outer, heads))),
        TensorType(state, (batch, shared, inner, outer)),
    )


@op("LinearAttention", 27, infer=infer_linear_attention)
def linear_attention(
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Attention by a recurrent state S (B, Hkv, dk, dv): per step, S decays by exp(decay), k ⊗ v is added
    (v less what S returns for k, times beta, under a delta rule), and the output is scale · qᵀ S.

    query (B, T, Hq·dk), key (B, T, Hkv·dk), value (B, T, Hkv·dv), decay (B, T, Hkv or Hkv·dk), beta
    (B, T, Hkv or 1). Computed in float32 or wider; returns (B, T, Hq·dv) and the last state.
    """
    _check_rule(update_rule, decay, beta)
    if kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ValueError(f"{q_num_heads} query heads do not divide into {kv_num_heads} key heads")
    xp = call.xp
    q, k, v = (
        wide(_split_heads(x, heads)).transpose(2, 0, 1, 3)
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    gates, rates = _per_step(decay, kv_num_heads), _per_step(beta, kv_num_heads)
    shape = (q.shape[1], kv_num_heads, q.shape[3], v.shape[3])
    state = xp.zeros(shape, q.dtype) if past_state is None else wide(past_state)
    grouped = q.reshape(*q.shape[:2], kv_num_heads, -1, q.shape[3])
    outputs = xp.empty((*grouped.shape[:4], v.shape[3]), q.dtype)
    for step in range(q.shape[0]):
        if gates is not None:
            state = state * xp.exp(gates[step])[..., None]
        added = v[step]
        if rates is not None:
            added = rates[step] * (added - xp.matmul(k[step][:, :, None], state)[:, :, 0])
        state = state + k[step][..., None] * added[:, :, None]
        outputs[step] = xp.matmul(grouped[step], state)
    outputs *= q.dtype.type(scale or 1 / sqrt(q.shape[3]))
    y = outputs.transpose(1, 0, 2, 3, 4).reshape(query.shape[0], query.shape[1], -1)
    return narrow(y, query.dtype), narrow(state, query.dtype if past_state is None else past_state.dtype)


# ---- CausalConvWithState -------------------------------------------------------------------------------


def infer_causal_conv(
    call: Call, input: TensorType, weight: TensorType, *rest: Any, **_: Any
) -> tuple[TensorType, TensorType]:
    """dtype and shape of the input; the last k − 1 elements of each channel."""
    reach = dims.subtract(weight.shape[2], 1) if weight.shape is not None and len(weight.shape) == 3 else None
    state = None if input.shape is None else (*input.shape[:2], reach)
    return TensorType(input.dtype, input.shape), TensorType(input.dtype, state)


@op("CausalConvWithState", 27, infer=infer_causal_conv)
def causal_conv_with_state(
    call: Call,
    input: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    """Depthwise convolution of input (B, C, L) with weight (C, 1, k) over the past only.

    past_state (B, C, k − 1) precedes the input, zeros by default; returns the output and the last k − 1
    elements of the two joined. activation: none, silu or swish.
    """
    xp, reach = call.xp, weight.shape[2] - 1
    if activation not in ("none", "silu", "swish"):
        raise ValueError(f"activation '{activation}' is unknown, expected none, silu or swish")
    if weight.shape[:2] != (input.shape[1], 1):
        raise ValueError(f"weights {list(weight.shape)} do not fit {input.shape[1]} channels")
    before = xp.zeros((*input.shape[:2], reach), input.dtype) if past_state is None else past_state
    joined = xp.concatenate([before, input], axis=2)
    window = sliding(joined.shape[2:], weight.shape[2:])
    y = convolve(xp, wide(joined), wide(weight), window, input.shape[1])
    if bias is not None:
        y += wide(bias)[:, None]
    y = narrow(y, input.dtype)
    if activation != "none":
        inner = wide(y)
        y = narrow(inner / (1 + xp.exp(-inner)), input.dtype)
    return y, joined[:, :, joined.shape[2] - reach :]
