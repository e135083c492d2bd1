"""Mixtures of experts of com.microsoft (version 1): MoE and QMoE."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphdoc.engine.ops.activations import gelu, sigmoid
from graphdoc.engine.ops.ms_nbits import unpacked
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.softmax import softmax
from graphdoc.engine.ops.table import Array, Call, op

MS = "com.microsoft"

Layer = tuple[Array, Array | None]
"""Weights [experts, out, in] and bias [experts, out] of all experts."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The attributes that MoE and QMoE share, under their ONNX names.

    k: experts a token goes to. swiglu_fusion: 1 interleaves gate and linear part in the first layer's rows,
    2 puts one after the other, 0 takes the linear part from the third layer.
    """

    k: int = 1
    activation_type: str = "relu"
    normalize_routing_weights: int = 0
    use_sparse_mixer: int = 0
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    swiglu_fusion: int = 0
    swiglu_limit: float = float("inf")

    def __post_init__(self) -> None:
        if self.use_sparse_mixer:
            raise ValueError("MoE with use_sparse_mixer is not implemented")

    def activate(self, xp: Any, x: Array, linear: Array | None) -> Array:
        """Return the activation of the first layer's result, times the third's where there is one."""
        if self.activation_type == "swiglu":
            return self._swiglu(xp, x, linear)
        if self.activation_type not in _ACTIVATIONS:
            raise ValueError(f"unknown activation_type '{self.activation_type}'")
        y = _ACTIVATIONS[self.activation_type](xp, x)
        return y if linear is None else y * linear

    def _swiglu(self, xp: Any, x: Array, linear: Array | None) -> Array:
        half = x.shape[-1] // 2
        if self.swiglu_fusion == 1:
            x, linear = x[..., 0::2], x[..., 1::2]
        elif self.swiglu_fusion == 2:
            x, linear = x[..., :half], x[..., half:]
        if linear is None:
            raise ValueError("swiglu with swiglu_fusion 0 needs the third layer")
        limit = x.dtype.type(self.swiglu_limit)
        gate, linear = xp.minimum(x, limit), xp.clip(linear, -limit, limit)
        share = sigmoid(xp, gate * x.dtype.type(self.activation_alpha))
        return gate * share * (linear + x.dtype.type(self.activation_beta))


def _relu(xp: Any, x: Array) -> Array:
    return xp.maximum(x, 0)


def _gelu_tanh(xp: Any, x: Array) -> Array:
    return gelu(xp, x, approximate="tanh")


def _silu(xp: Any, x: Array) -> Array:
    return x * sigmoid(xp, x)


def _identity(xp: Any, x: Array) -> Array:
    return x


_ACTIVATIONS = {"relu": _relu, "gelu": _gelu_tanh, "silu": _silu, "identity": _identity}


def _linear(x: Array, layer: Layer, expert: int) -> Array:
    weight, bias = layer
    y = x @ weight[expert].T
    return y if bias is None else y + bias[expert]


def _routes(call: Call, router: Array, gate: Gate) -> tuple[Array, Array]:
    """Return the chosen experts, int64 [tokens, k], and their shares; of equal ones the first is chosen."""
    shares = softmax(call, router, axis=-1)
    chosen = call.xp.argsort(-shares, axis=1, kind="stable")[:, : gate.k]
    picked = call.xp.take_along_axis(shares, chosen, axis=1)
    if gate.normalize_routing_weights:
        picked = picked / picked.sum(axis=1, keepdims=True)
    return chosen, picked


def _mixture(call: Call, x: Array, router: Array, gate: Gate, layers: Sequence[Layer | None]) -> Array:
    """Return the weighted sum of the chosen experts for tokens x [tokens, hidden].

    layers: the first (up), the second (down) and, where there is one, the third (linear part).
    """
    xp, (first, second, third) = call.xp, layers
    if first is None or second is None or not 0 < gate.k <= router.shape[1]:
        raise ValueError(f"k is {gate.k} of {router.shape[1]} experts")
    chosen, shares = _routes(call, router, gate)
    result = xp.zeros_like(x)
    for expert in range(router.shape[1]):
        tokens, slots = xp.nonzero(chosen == expert)
        if not tokens.size:
            continue
        part = x[tokens]
        linear = None if third is None else _linear(part, third, expert)
        hidden = gate.activate(xp, _linear(part, first, expert), linear)
        result[tokens] += _linear(hidden, second, expert) * shares[tokens, slots][:, None]
    return result


def _layer(weight: Array | None, bias: Array | None) -> Layer | None:
    return None if weight is None else (wide(weight), None if bias is None else wide(bias))


@op("MoE", 1, domain=MS, infer=same_as_first)
def moe(
    call: Call,
    input: Array,
    router_probs: Array,
    fc1_experts_weights: Array,
    fc1_experts_bias: Array | None,
    fc2_experts_weights: Array,
    fc2_experts_bias: Array | None = None,
    fc3_experts_weights: Array | None = None,
    fc3_experts_bias: Array | None = None,
    **attributes: Any,
) -> Array:
    """Each token through the k experts its router prefers, com.microsoft version 1.

    input: [tokens, hidden] or [B, S, hidden]. router_probs: logits [tokens, experts]. Weights [experts, out,
    in], biases [experts, out]. gelu is the tanh form, as in ONNX Runtime.
    """
    layers = (
        _layer(fc1_experts_weights, fc1_experts_bias),
        _layer(fc2_experts_weights, fc2_experts_bias),
        _layer(fc3_experts_weights, fc3_experts_bias),
    )
    x = wide(input).reshape(-1, input.shape[-1])
    y = _mixture(call, x, wide(router_probs), Gate(**attributes), layers)
    return narrow(y.reshape(input.shape), input.dtype)


def _unpacked(
    xp: Any, weight: Array, scale: Array, zero: Array | None, bits: int, block_size: int, dtype: Any
) -> Array:
    """Return weights [experts, out, in] from uint8 that packs ``bits`` wide integers along the last axis.

    scale: [experts, out], or [experts, out, blocks]. zero: packed along the last axis of the scale's shape;
    without it the middle of the range.
    """
    size = weight.shape[-1] * 8 // bits
    scale = wide(scale).astype(dtype, copy=False)
    scale = scale if scale.ndim == 3 else scale[:, :, None]
    parts = [_zero_points(xp, zero, bits, scale), scale]
    if scale.shape[2] > 1:
        repeat = block_size or -(-size // scale.shape[2])
        parts = [xp.repeat(part, repeat, axis=2)[:, :, :size] if part.ndim else part for part in parts]
    return (unpacked(xp, weight, bits, size).astype(dtype) - parts[0]) * parts[1]


def _zero_points(xp: Any, zero: Array | None, bits: int, scale: Array) -> Array:
    """Return zero points as floats of the shape of ``scale``, or [] where there are none."""
    if zero is None:
        return xp.asarray(1 << (bits - 1)).astype(scale.dtype)
    packed_by_rows = zero.ndim == 2
    whole = unpacked(xp, zero, bits, scale.shape[1 if packed_by_rows else 2])
    return (whole[:, :, None] if packed_by_rows else whole).astype(scale.dtype)


@op("QMoE", 1, domain=MS, infer=same_as_first)
def qmoe(
    call: Call,
    input: Array,
    router_probs: Array,
    fc1_experts_weights: Array,
    fc1_scales: Array,
    fc1_experts_bias: Array | None,
    fc2_experts_weights: Array,
    fc2_scales: Array,
    fc2_experts_bias: Array | None = None,
    fc3_experts_weights: Array | None = None,
    fc3_scales: Array | None = None,
    fc3_experts_bias: Array | None = None,
    fc1_zero_points: Array | None = None,
    fc2_zero_points: Array | None = None,
    fc3_zero_points: Array | None = None,
    *,
    expert_weight_bits: int = 4,
    block_size: int = 0,
    **attributes: Any,
) -> Array:
    """MoE with weights of 4 or 8 bits, com.microsoft version 1.

    Weights: uint8 [experts, out, in · bits / 8], lowest bits first. Scales: [experts, out], or one for each
    block_size values, [experts, out, blocks]; zero points likewise. Everything else as MoE has; ONNX
    Runtime's CPU build normalises the routing weights even where normalize_routing_weights is 0.
    """
    x = wide(input).reshape(-1, input.shape[-1])
    packed = (
        (fc1_experts_weights, fc1_scales, fc1_zero_points, fc1_experts_bias),
        (fc2_experts_weights, fc2_scales, fc2_zero_points, fc2_experts_bias),
        (fc3_experts_weights, fc3_scales, fc3_zero_points, fc3_experts_bias),
    )
    layers: list[Layer | None] = []
    for weight, scale, zero, bias in packed:
        if weight is None or scale is None:
            layers.append(None)
        else:
            floats = _unpacked(call.xp, weight, scale, zero, expert_weight_bits, block_size, x.dtype)
            layers.append(_layer(floats, bias))
    y = _mixture(call, x, wide(router_probs), Gate(**attributes), layers)
    return narrow(y.reshape(input.shape), input.dtype)
