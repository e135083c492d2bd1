"""Reverse passes through fused operators of com.microsoft that ONNX Runtime's optimiser puts into models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from graphdoc.engine.ops.gradient import as_input
from graphdoc.engine.ops.gradient_norm import layer_normalization, rms_normalization
from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.table import Array, Call
from graphdoc.engine.vjp_rules import Node, NoRuleError, Parts, derive, rule

Slope = Callable[..., Array]

SLOPES: dict[str, Slope] = {
    "": lambda y: np.ones_like(y),
    "Relu": lambda y: y > 0,
    "Sigmoid": lambda y: y * (1 - y),
    "Tanh": lambda y: 1 - y * y,
    "LeakyRelu": lambda y, alpha=0.01: np.where(y < 0, alpha, 1),
    "Clip": lambda y, low=-np.inf, high=np.inf: (y > low) & (y < high),
    "HardSigmoid": lambda y, alpha=0.2, beta=0.5: alpha * ((y > 0) & (y < 1)),
}
"""The derivative of an activation from its value y, and its parameters."""


@rule("com.microsoft.FusedConv")
def fused_conv(node: Node) -> Parts:
    """Conv plus Z, through the activation."""
    attributes = dict(node.attributes)
    name, parameters = attributes.pop("activation", ""), attributes.pop("activation_params", ())
    if name not in SLOPES:
        raise NoRuleError(f"with {name} inside")
    y = wide(node.outputs[0])
    inner = (node.full(0) * SLOPES[name](y, *parameters)).astype(y.dtype, copy=False)
    convolution = replace(
        node, op="Conv", domain="", inputs=node.inputs[:3], outputs=(y,), cotangents=(inner,),
        wanted=node.wanted[:3], attributes=attributes,
    )  # fmt: skip
    parts = [*derive(convolution), None, None, None][:3]
    return (*parts, inner if len(node.inputs) > 3 else None)


@rule("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def skip_norm(node: Node) -> Parts:
    """The normalisation of the sum of input, skip and bias; the sum may be an output too."""
    simplified = node.op == "SkipSimplifiedLayerNormalization"
    x, skip, gamma, *rest = (*node.inputs, None, None)
    beta, bias = (None, rest[0]) if simplified else rest[:2]
    total = sum(wide(v) for v in (x, skip, bias) if v is not None)
    if any(c is not None for c in node.cotangents[1:3]):
        raise NoRuleError("its statistics are outputs that are read")
    back = _normalised(node, total, wide(gamma), simplified=simplified)
    if len(node.cotangents) > 3 and node.cotangents[3] is not None:
        back = (back[0] + node.cotangents[3], *back[1:])
    by_beta = () if simplified else (None if beta is None else as_input(node.full(0), wide(beta)),)
    by_bias = None if bias is None else as_input(back[0], wide(bias))
    return (as_input(back[0], wide(x)), as_input(back[0], wide(skip)), back[1], *by_beta, by_bias)


def _normalised(node: Node, total: Any, gamma: Array, *, simplified: bool) -> tuple[Any, ...]:
    """Return the cotangents of the sum and of gamma."""
    call, y = Call(np, 1, 2, rng=node.call.rng), wide(node.outputs[0])
    rule_of = rms_normalization if simplified else layer_normalization
    epsilon = node.attributes.get("epsilon", 1e-12)
    return rule_of(call, node.full(0), total, gamma, y, axis=-1, epsilon=epsilon)[:2]
