"""Optimiser steps of ai.onnx.preview.training: Adagrad, Adam, Momentum."""

from typing import Any

from graphdoc.engine.ops.host import scalar
from graphdoc.engine.ops.table import Array, Call, Infer, TensorType, op

DOMAIN = "ai.onnx.preview.training"


def _grouped(tensors: tuple[Array, ...], kinds: int) -> list[tuple[Array, ...]]:
    """Return (value, gradient, states…) per optimised tensor; the inputs list all values first."""
    count = len(tensors) // kinds
    return [tensors[place::count] for place in range(count)]


def _flat(steps: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return all new values, then all new first states …"""
    return tuple(tensor for kind in zip(*steps, strict=True) for tensor in kind)


def _step_type(kinds: int) -> Infer:
    """Return an infer: every output like its input, the gradients (second of ``kinds`` groups) left out."""

    def infer(call: Call, rate: TensorType, count: TensorType, *tensors: TensorType, **_: Any) -> Any:
        size = len(tensors) // kinds
        kept = tensors[:size] + tensors[2 * size :]
        return tuple(TensorType(known.dtype, known.shape) for known in kept)

    return infer


@op("Adagrad", 1, domain=DOMAIN, infer=_step_type(3))
def adagrad(
    call: Call,
    rate: Array,
    count: Array,
    *tensors: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """One step for (values…, gradients…, squared sums…) → (new values…, new squared sums…).

    ONNX Adagrad-1.
    """
    r = rate / (1 + int(scalar(count)) * decay_factor)

    def step(x: Array, gradient: Array, squares: Array) -> tuple[Array, Array]:
        slope = norm_coefficient * x + gradient
        squares = squares + slope * slope
        change = r * slope / (call.xp.sqrt(squares) + epsilon)
        return (x - change).astype(x.dtype), squares.astype(x.dtype)

    return _flat([step(*group) for group in _grouped(tensors, 3)])


@op("Adam", 1, domain=DOMAIN, infer=_step_type(4))
def adam(
    call: Call,
    rate: Array,
    count: Array,
    *tensors: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """One step for (values…, gradients…, means…, squares…) → (new values…, new means…, new squares…) (ONNX
    Adam-1)."""
    turn = int(scalar(count))
    r = rate * (1 - beta**turn) ** 0.5 / (1 - alpha**turn) if turn > 0 else rate

    def step(x: Array, gradient: Array, mean: Array, squares: Array) -> tuple[Array, ...]:
        slope = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * slope
        squares = beta * squares + (1 - beta) * slope * slope
        moved = x - r * mean / (call.xp.sqrt(squares) + epsilon)
        result = (1 - norm_coefficient_post) * moved
        return result.astype(x.dtype), mean.astype(x.dtype), squares.astype(x.dtype)

    return _flat([step(*group) for group in _grouped(tensors, 4)])


@op("Momentum", 1, domain=DOMAIN, infer=_step_type(3))
def momentum(
    call: Call,
    rate: Array,
    count: Array,
    *tensors: Array,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Array, ...]:
    """One step for (values…, gradients…, momenta…) → (new values…, new momenta…), standard or nesterov (ONNX
    Momentum-1)."""
    scale = beta if int(scalar(count)) > 0 else 1.0

    def step(x: Array, gradient: Array, velocity: Array) -> tuple[Array, Array]:
        slope = norm_coefficient * x + gradient
        velocity = alpha * velocity + scale * slope
        change = slope + alpha * velocity if mode == "nesterov" else velocity
        return (x - rate * change).astype(x.dtype), velocity.astype(x.dtype)

    return _flat([step(*group) for group in _grouped(tensors, 3)])
