"""Normalisations from their pieces: Layer-, RMS-, Instance- and GroupNormalization."""

from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.builder import Builder
from graphdoc.surgeon.pattern import Element, Recorder
from graphdoc.surgeon.pattern_match import Match
from graphdoc.surgeon.rules.assemble import (
    AssembleRule,
    axes_of,
    divided_by_root,
    epsilon_fault,
    float_fault,
    followed_by,
    inverse_root,
    reduced,
    shape_of,
    squared,
    stripped,
    vector,
)
from graphdoc.surgeon.rules.base import Context, Refusal

_LOW = ("float16", "bfloat16", "float32")
"""Dtypes whose statistics a normalisation keeps in float32; of a float64 it would lose half the digits."""


def _parts(op: Recorder, x: Element, axes: Any, eps: Any) -> tuple[Any, Any]:
    """Return x − mean(x), and variance + ε."""
    mean = reduced(op, "ReduceMean", x, axes)
    centred = op.Sub(x, mean)
    again = op.any_of(centred, op.Sub(x, mean))
    variance = reduced(op, "ReduceMean", squared(op, again), axes)
    return centred, op.Add(variance, op.scalar(eps))


def _normalised(op: Recorder, x: Element, axes: Any, eps: Any) -> Any:
    """Return (x − mean) ÷ √(variance + ε)."""
    return divided_by_root(op, *_parts(op, x, axes, eps))


def _scaled(op: Recorder, x: Element, axes: Any, eps: Any, scale: Any) -> Any:
    """Return the normalised x times a scale; the scale may have been multiplied into the divisor first."""
    centred, variance = _parts(op, x, axes, eps)
    divided = divided_by_root(op, centred, variance)
    return op.any_of(op.Mul(divided, scale), op.Mul(centred, op.Mul(inverse_root(op, variance), scale)))


def last_axes(match: Match) -> tuple[int, tuple[int, ...]] | Refusal:
    """Return the first of the normalised axes, counted from the end, and their sizes."""
    axes, shape = axes_of(match), shape_of(match, "x")
    if shape is None:
        return Refusal("the rank of x is not known")
    count = len(axes)
    if not axes or sorted(axis % len(shape) for axis in axes) != list(range(len(shape) - count, len(shape))):
        return Refusal(f"the mean goes over axes {list(axes)} of {len(shape)}, the operator wants the last")
    sizes = shape[-count:]
    if not all(isinstance(size, int) for size in sizes):
        return Refusal(f"the size of the normalised axes is not known: {list(sizes)}")
    return -count, tuple(int(size) for size in sizes)


class LayerNorm(AssembleRule):
    """(x − mean) ÷ √(mean((x − mean)²) + ε) · scale + bias → LayerNormalization (opset 17)."""

    name = "assemble-layer-normalization"
    target = "LayerNormalization"

    def pattern(self, op: Recorder, x: Any, axes: Any, eps: Any, scale: Any, bias: Any) -> Any:
        """All spellings of the quotient, of the square and of the order of factors."""
        return op.Add(_scaled(op, x, axes, eps, scale), bias)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The statistics must be those of the last axes, in float32."""
        return _statistics_fault(match)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """Scale and bias must have the shape of the normalised axes."""
        return _layer_norm(op, x, match, "scale", "bias")


class LayerNormUnbiased(AssembleRule):
    """The same without bias."""

    name = "assemble-layer-normalization-unbiased"
    target = "LayerNormalization"

    def pattern(self, op: Recorder, x: Any, axes: Any, eps: Any, scale: Any) -> Any:
        """As :class:`LayerNorm`, without the last Add."""
        return _scaled(op, x, axes, eps, scale)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """What is added next may be the bias, which the larger pattern takes along."""
        return _statistics_fault(match) or _continues(match, "Add", context)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """The scale must have the shape of the normalised axes."""
        return _layer_norm(op, x, match, "scale")


class LayerNormPlain(AssembleRule):
    """The same without scale and bias; the scale is a constant of ones."""

    name = "assemble-layer-normalization-plain"
    target = "LayerNormalization"

    def pattern(self, op: Recorder, x: Any, axes: Any, eps: Any) -> Any:
        """The quotient alone."""
        return _normalised(op, x, axes, eps)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """What it is multiplied with next may be the scale, which the larger pattern takes along."""
        return _statistics_fault(match) or _continues(match, "Mul", context)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """The operator needs a scale."""
        return _layer_norm(op, x, match)


def _statistics_fault(match: Match) -> Refusal | None:
    axes = last_axes(match)
    if isinstance(axes, Refusal):
        return axes
    return float_fault(match, "x", *_LOW) or epsilon_fault(match)


def _continues(match: Match, operator: str, context: Context) -> Refusal | None:
    """Refuse without a word what belongs to a larger pattern: its result meets a scale or bias next."""
    axes, shape = last_axes(match), shape_of(match, "x")
    other = followed_by(match.outputs[0], operator, context)
    found = context.type_of(other).shape
    if isinstance(axes, Refusal) or shape is None or found is None:
        return None
    sizes = [axes[1]]
    if len(axes[1]) == len(shape) - 2:
        sizes.append((shape[1], *([1] * len(axes[1]))))
    return Refusal("") if stripped(found) in map(stripped, sizes) else None


def _layer_norm(op: Builder, x: ir.Value, match: Match, *names: str) -> ir.Value | Refusal:
    axes = last_axes(match)
    if isinstance(axes, Refusal):
        return axes
    first, sizes = axes
    tensors = [vector(op, match, name, sizes) for name in names]
    for each in tensors:
        if isinstance(each, Refusal):
            return each
    if not tensors:
        tensors = [op.constant(np.ones(sizes, match.type("x").dtype))]
    made: ir.Value = op.LayerNormalization(x, *tensors, axis=first, epsilon=match.scalar("eps"))
    return made


class RMSNorm(AssembleRule):
    """x ÷ √(mean(x²) + ε) · scale → RMSNormalization (opset 23).

    A Cast to float32 before and one back behind, as half precision models have them, go into the operator.
    """

    name = "assemble-rms-normalization"
    target = "RMSNormalization"

    def pattern(self, op: Recorder, x: Any, axes: Any, eps: Any, scale: Any) -> Any:
        """All spellings of the quotient, with or without a Cast before the scale."""
        variance = op.Add(reduced(op, "ReduceMean", squared(op, x), axes), op.scalar(eps))
        quotient = divided_by_root(op, x, variance)
        cast = op.Cast(quotient, to=op.attr("to"), _attributes="any", _name="cast")
        return op.Mul(op.any_of(quotient, cast), scale)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The mean must be that of the last axes, in float32; a LayerNormalization centres x first."""
        if _is_centred(match, context):
            return _continues(match, "Add", context) or _statistics_fault(match)
        return _statistics_fault(match)

    def rewrite(self, op: Builder, x: ir.Value, match: Match, context: Context) -> Any:
        """The scale must have the shape of the normalised axes."""
        axes = last_axes(match)
        if isinstance(axes, Refusal):
            return axes
        first, sizes = axes
        scale = vector(op, match, "scale", sizes)
        if isinstance(scale, Refusal):
            return scale
        if match.node("cast") is not None:
            source = _uncast(x, context)
            if source is None:
                return Refusal("the result is cast to another dtype, which x did not have before")
            x = source
        if context.type_of(x).dtype != context.type_of(scale).dtype:
            return Refusal("x and scale have different dtypes")
        return op.RMSNormalization(x, scale, axis=first, epsilon=match.scalar("eps"))


def _is_centred(match: Match, context: Context) -> bool:
    """Whether x is what is left of something after its mean was taken off."""
    maker = context.producer(match["x"], "Sub")
    return maker is not None and context.producer(maker.inputs[1], "ReduceMean") is not None


def _uncast(x: ir.Value, context: Context) -> ir.Value | None:
    """Return what a Cast to float32 reads."""
    maker = context.producer(x, "Cast")
    if maker is None or context.type_of(x).dtype != np.float32:
        return None
    return maker.inputs[0]


class InstanceNorm(AssembleRule):
    """The mean and variance of each channel's pixels → InstanceNormalization (opset 6)."""

    name = "assemble-instance-normalization"
    target = "InstanceNormalization"

    def pattern(self, op: Recorder, x: Any, axes: Any, eps: Any, scale: Any, bias: Any) -> Any:
        """As :class:`LayerNorm`; the axes tell them apart."""
        return op.Add(_scaled(op, x, axes, eps, scale), bias)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The statistics must be taken over all axes but the first two."""
        axes, shape = axes_of(match), shape_of(match, "x")
        if shape is None:
            return Refusal("the rank of x is not known")
        if len(shape) < 3 or sorted(axis % len(shape) for axis in axes) != list(range(2, len(shape))):
            return Refusal(f"the mean goes over axes {list(axes)}, the operator wants all but the first two")
        if not isinstance(shape[1], int):
            return Refusal("the number of channels is not known")
        return float_fault(match, "x") or epsilon_fault(match)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """Scale and bias must have one element a channel."""
        tensors = _by_channel(op, match)
        if isinstance(tensors, Refusal):
            return tensors
        return op.InstanceNormalization(x, *tensors, epsilon=match.scalar("eps"))


def _by_channel(op: Builder, match: Match) -> list[ir.Value] | Refusal:
    """Return scale and bias with one element for each channel of x."""
    shape = match.type("x").shape or (None, None)
    if not isinstance(shape[1], int):
        return Refusal("the number of channels is not known")
    padded = (shape[1], *([1] * (len(shape) - 2)))
    tensors = []
    for name in ("scale", "bias"):
        tensor = vector(op, match, name, padded[:1], padded)
        if isinstance(tensor, Refusal):
            return tensor
        tensors.append(tensor)
    return tensors


class GroupNorm(AssembleRule):
    """Reshape to groups, InstanceNormalization, Reshape, scale and bias → GroupNormalization (opset 21)."""

    name = "assemble-group-normalization"
    target = "GroupNormalization"

    def pattern(self, op: Recorder, x: Any, split: Any, shape: Any, scale: Any, bias: Any) -> Any:
        """As PyTorch exports it."""
        grouped = op.Reshape(x, op.constant(split), _attributes="any")
        normal = op.InstanceNormalization(
            grouped, op.constant(1), op.constant(0), epsilon=op.attr("epsilon"), _name="instance"
        )
        return op.Add(op.Mul(op.Reshape(normal, shape, _attributes="any"), scale), bias)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The groups must divide the channels, and the second Reshape must restore the shape of x."""
        shape, instance = shape_of(match, "x"), match.node("instance")
        grouped = None if instance is None else context.type_of(instance.inputs[0]).shape
        if shape is None or grouped is None or len(shape) < 3 or not isinstance(shape[1], int):
            return Refusal("the shape of x is not known")
        if len(grouped) != 3 or not isinstance(grouped[1], int) or shape[1] % grouped[1]:
            return Refusal(f"{_dims(grouped)} are no groups of the channels of {_dims(shape)}")
        if None in (shape[0], grouped[0]) or shape[0] != grouped[0]:
            return Refusal(f"{_dims(grouped)} may mix the batch entries of {_dims(shape)}")
        if None in shape or context.type_of(match.outputs[0]).shape != shape:
            return Refusal("what comes out may have another shape than x")
        return float_fault(match, "x", *_LOW)

    def rewrite(self, op: Builder, x: ir.Value, match: Match, epsilon: float, context: Context) -> Any:
        """Scale and bias must have one element a channel."""
        instance, tensors = match.node("instance"), _by_channel(op, match)
        if isinstance(tensors, Refusal):
            return tensors
        grouped = None if instance is None else context.type_of(instance.inputs[0]).shape
        if grouped is None:
            return Refusal("the number of groups is not known")
        return op.GroupNormalization(x, *tensors, num_groups=grouped[1], epsilon=epsilon)


def _dims(shape: tuple[Any, ...]) -> str:
    return " × ".join(str(dim) for dim in shape)


RULES = (LayerNorm(), LayerNormUnbiased(), LayerNormPlain(), RMSNorm(), InstanceNorm(), GroupNorm())
