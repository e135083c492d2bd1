"""Put standard operators together again from the pieces that exporters write them in.

These rules run on request only: they change which operators a model uses, and where results are rounded. Each
applies only where the model's opset has the operator for the dtype at hand. The result agrees with what was
there at the level of rounding; in float16 and bfloat16 it is closer to the exact value, since the standard
operators keep sums in float32.
"""

from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.builder import Builder
from graphdoc.surgeon.pattern import AnyOf, Element, Recorder
from graphdoc.surgeon.pattern_match import Match
from graphdoc.surgeon.pattern_rule import PatternRule
from graphdoc.surgeon.rules.base import Context, Refusal, operator_name

FLOATS = ("float16", "bfloat16", "float32", "float64")


class AssembleRule(PatternRule):
    """Base of these rules. target: the operator that is put together; it names the rule."""

    group = "assemble"
    default = False
    target: str = ""


@cache
def rules() -> tuple[AssembleRule, ...]:
    """Return the rules, larger patterns before those that are part of them."""
    from graphdoc.surgeon.rules import (
        assemble_activation,
        assemble_attention,
        assemble_norm,
        assemble_reduce,
    )

    modules = (assemble_attention, assemble_norm, assemble_activation, assemble_reduce)
    return tuple(rule for module in modules for rule in module.RULES)


# ---- pieces of patterns


def squared(op: Recorder, x: Element) -> AnyOf:
    """x², as exporters write it."""
    return op.any_of(op.Pow(x, 2), op.Mul(x, x))


def root(op: Recorder, x: Element) -> AnyOf:
    """√x."""
    return op.any_of(op.Sqrt(x), op.Pow(x, 0.5))


def divided_by_root(op: Recorder, x: Element, y: Element) -> AnyOf:
    """x ÷ √y."""
    return op.any_of(op.Div(x, root(op, y)), op.Mul(x, inverse_root(op, y)))


def inverse_root(op: Recorder, x: Element) -> AnyOf:
    """1 ÷ √x."""
    return op.any_of(op.Reciprocal(root(op, x)), op.Div(1, root(op, x)), op.Pow(x, -0.5))


def reduced(op: Recorder, name: str, x: Element, axes: Any, keepdims: Any = 1) -> AnyOf:
    """Return a reduction; its axes are an attribute (captured as ``fixed_axes``) or the constant ``axes``."""
    fixed = op.attr("fixed_axes", where=lambda value: value is not None, says="stated axes")
    listed = op.constant(axes)
    return op.any_of(
        op.node(name, x, axes=fixed, keepdims=keepdims, _attributes="any"),
        op.node(name, x, listed, keepdims=keepdims, _attributes="any"),
    )


def product(op: Recorder, *factors: Any) -> Any:
    """Return the product of three factors, whichever two are multiplied first."""
    a, b, c = factors
    return op.any_of(op.Mul(op.Mul(a, b), c), op.Mul(a, op.Mul(b, c)), op.Mul(op.Mul(a, c), b))


# ---- pieces of checks


def axes_of(match: Match) -> tuple[int, ...]:
    """Return the axes of a :func:`reduced` pattern, as the model states them."""
    if match["axes"] is None:
        return tuple(match["fixed_axes"])
    array = match.array("axes")
    return () if array is None else tuple(int(axis) for axis in array.reshape(-1))


def float_fault(match: Match, name: str, *dtypes: str) -> Refusal | None:
    """Return why a variable is no float of the dtypes that a rule knows (all four unless given)."""
    dtype = match.type(name).dtype
    if dtype is None:
        return Refusal(f"the dtype of {name} is not known")
    if dtype.name not in (dtypes or FLOATS):
        return Refusal(f"{name} is {dtype}, the rule wants {' or '.join(dtypes or FLOATS)}")
    return None


def epsilon_fault(match: Match, name: str = "eps") -> Refusal | None:
    """Return why a constant cannot be an epsilon attribute, which is a float32 and must be positive."""
    value = match.scalar(name)
    if not 0 <= value < np.inf:
        return Refusal(f"epsilon is {value:g}")
    if match.type(name).dtype == np.float64 and float(np.float32(value)) != value:
        return Refusal(f"epsilon {value!r} is no float32, as the attribute must be")
    return None


def shape_of(match: Match, name: str) -> tuple[Any, ...] | None:
    """Return the shape of a variable, None when its rank is not known."""
    return match.type(name).shape


def vector(
    op: Builder, match: Match, name: str, shape: tuple[int, ...], padded: tuple[int, ...] | None = None
) -> ir.Value | Refusal:
    """Return a scale or bias as a tensor of ``shape``.

    padded: the shape in which it is multiplied, where that is another one. A constant may have further
    dimensions of 1 in front, as long as it has no more than x, or lack some; it is reshaped. Refuses anything
    else: a scale that is broadcast is no scale of the operator.
    """
    value: ir.Value = match[name]
    found = shape_of(match, name)
    if found == shape and padded is None:
        return value
    wanted, rank = padded or shape, len(shape_of(match, "x") or ())
    if found is not None and stripped(found) == stripped(wanted) and len(found) <= rank:
        array = match.array(name)
        if array is not None:
            return op.constant(array.reshape(shape))
        return Refusal(f"{name} '{value.name}' has shape {list(found)} and is no constant")
    return Refusal(f"{name} has shape {_listed(found)}, the operator needs {list(wanted)}")


def stripped(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a shape without the ones in front."""
    first = next((index for index, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[first:]


def _listed(shape: tuple[Any, ...] | None) -> str:
    return "unknown" if shape is None else str(list(shape))


def followed_by(value: ir.Value, operator: str, context: Context) -> ir.Value | None:
    """Return the other operand of the node that alone reads a value, if that is ``operator``."""
    if not context.single_use(value):
        return None
    reader = next(iter(value.uses())).node
    if operator_name(reader) != operator or len(reader.inputs) != 2:
        return None
    return reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]
