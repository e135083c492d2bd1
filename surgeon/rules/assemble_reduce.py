"""Reductions from their pieces: ReduceL2, Softmax, LogSoftmax."""

from typing import Any

import onnx_ir as ir

from graphdoc.surgeon.builder import Builder
from graphdoc.surgeon.pattern import Recorder
from graphdoc.surgeon.pattern_match import Match
from graphdoc.surgeon.rules.assemble import AssembleRule, axes_of, float_fault, reduced, root, squared
from graphdoc.surgeon.rules.base import Context, Refusal


class ReduceL2(AssembleRule):
    """√(sum of squares) → ReduceL2 (opset 1)."""

    name = "assemble-reduce-l2"
    target = "ReduceL2"

    def pattern(self, op: Recorder, x: Any, axes: Any) -> Any:
        """The sum of squares in one node or two."""
        keep = op.attr("keep")
        squares = reduced(op, "ReduceSumSquare", x, axes, keep)
        return root(op, op.any_of(reduced(op, "ReduceSum", squared(op, x), axes, keep), squares))

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The axes must be stated: none means all of them or none at all."""
        if not axes_of(match):
            return Refusal("the axes are an empty list")
        return float_fault(match, "x")

    def rewrite(self, op: Builder, x: ir.Value, keep: int, match: Match, context: Context) -> Any:
        """Axes are an attribute before opset 18, an input from then on."""
        axes = list(axes_of(match))
        if context.opset() < 18:
            return op.ReduceL2(x, axes=axes, keepdims=keep)
        return op.ReduceL2(x, op.constant(axes), keepdims=keep)


def _one_axis(match: Match, context: Context) -> Refusal | None:
    """Return why the axes are not the one axis that Softmax takes since opset 13."""
    axes = axes_of(match)
    if len(axes) != 1:
        return Refusal(f"it goes over axes {list(axes)}, the operator takes one")
    if context.opset() < 13:
        return Refusal(f"Softmax takes one axis from opset 13 on, the model has {context.opset()}")
    return float_fault(match, "x")


class Softmax(AssembleRule):
    """exp(x − max(x)) ÷ sum(exp(x − max(x))) → Softmax (opset 13).

    Without the maximum the pieces overflow where Softmax does not: that form is another function, and stays.
    """

    name = "assemble-softmax"
    target = "Softmax"

    def pattern(self, op: Recorder, x: Any, axes: Any) -> Any:
        """Maximum and sum over the same axis."""
        powers = op.Exp(op.Sub(x, reduced(op, "ReduceMax", x, axes)))
        total = reduced(op, "ReduceSum", powers, axes)
        return op.any_of(op.Div(powers, total), op.Mul(powers, op.Reciprocal(total)))

    def check(self, match: Match, context: Context) -> Refusal | None:
        """Over one axis."""
        return _one_axis(match, context)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """The axis becomes an attribute."""
        return op.Softmax(x, axis=axes_of(match)[0])


class LogSoftmax(AssembleRule):
    """x − logsumexp(x) → LogSoftmax (opset 13).

    Log(Softmax(x)) stays: where Softmax underflows to 0 it gives −∞, LogSoftmax does not.
    """

    name = "assemble-log-softmax"
    target = "LogSoftmax"

    def pattern(self, op: Recorder, x: Any, axes: Any) -> Any:
        """ReduceLogSumExp of x; or the log of the sum of exp(x − max(x)), taken from that difference."""
        shifted = op.Sub(x, reduced(op, "ReduceMax", x, axes))
        total = op.Log(reduced(op, "ReduceSum", op.Exp(shifted), axes))
        return op.any_of(op.Sub(x, reduced(op, "ReduceLogSumExp", x, axes)), op.Sub(shifted, total))

    def check(self, match: Match, context: Context) -> Refusal | None:
        """Over one axis."""
        return _one_axis(match, context)

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """The axis becomes an attribute."""
        return op.LogSoftmax(x, axis=axes_of(match)[0])


RULES = (ReduceL2(), Softmax(), LogSoftmax())
