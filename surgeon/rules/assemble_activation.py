"""Activations from their pieces: Gelu, Swish, HardSwish, HardSigmoid, Mish, Clip."""

import math
from typing import Any

import onnx_ir as ir

from graphdoc.surgeon.builder import Builder
from graphdoc.surgeon.pattern import Recorder
from graphdoc.surgeon.pattern_match import Match
from graphdoc.surgeon.rules.assemble import AssembleRule, float_fault, product
from graphdoc.surgeon.rules.base import Context, Refusal

_CUBIC = 0.044715
_SLOPE = math.sqrt(2 / math.pi)
_SIXTH = 1 / 6


class _Elementwise(AssembleRule):
    """Base of rules that replace element-wise pieces over one float ``x``."""

    def check(self, match: Match, context: Context) -> Refusal | None:
        """X must be a float."""
        return float_fault(match, "x")


class GeluErf(_Elementwise):
    """0.5 · x · (1 + erf(x ÷ √2)) → Gelu (opset 20)."""

    name = "assemble-gelu"
    target = "Gelu"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """The factors in any order."""
        inner = op.any_of(op.Div(x, math.sqrt(2)), op.Mul(x, math.sqrt(0.5)))
        return product(op, x, 0.5, op.Add(op.Erf(inner), 1))

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """The exact form is the default."""
        return op.Gelu(x)


class GeluTanh(_Elementwise):
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) → Gelu with approximate="tanh" (opset 20)."""

    name = "assemble-gelu-tanh"
    target = "Gelu"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """The cube as power or product, or one x taken out of the sum."""
        square = op.any_of(op.Pow(x, 2), op.Mul(x, x))
        cube = op.any_of(
            op.Mul(op.Pow(x, 3), _CUBIC), product(op, square, x, _CUBIC), op.Mul(x, product(op, x, x, _CUBIC))
        )
        whole = op.Mul(op.Add(x, cube), _SLOPE)
        taken = op.Add(product(op, x, x, _CUBIC), 1)
        factored = product(op, x, _SLOPE, op.any_of(taken, op.Add(op.Mul(square, _CUBIC), 1)))
        return product(op, x, 0.5, op.Add(op.Tanh(op.any_of(whole, factored)), 1))

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """The approximation, as it was."""
        return op.Gelu(x, approximate="tanh")


class Swish(_Elementwise):
    """x · sigmoid(x), also called SiLU → Swish (opset 24)."""

    name = "assemble-swish"
    target = "Swish"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """The Sigmoid of the same x."""
        return op.Mul(x, op.Sigmoid(x))

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """Alpha is 1."""
        return op.Swish(x)


class SwishScaled(_Elementwise):
    """x · sigmoid(alpha · x), with alpha = 1.702 also called quick GELU → Swish (opset 24)."""

    name = "assemble-swish-scaled"
    target = "Swish"

    def pattern(self, op: Recorder, x: Any, alpha: Any) -> Any:
        """Any constant alpha."""
        return op.Mul(x, op.Sigmoid(op.Mul(x, op.scalar(alpha))))

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """Alpha becomes an attribute."""
        return op.Swish(x, alpha=match.scalar("alpha"))


def _six(op: Recorder, x: Any) -> Any:
    """Return x + 3 kept within 0 and 6."""
    return op.Clip(op.Add(x, 3), 0, 6)


class HardSwish(_Elementwise):
    """x · clip(x + 3, 0, 6) ÷ 6, or x · HardSigmoid(x) of slope 1/6 → HardSwish (opset 14)."""

    name = "assemble-hard-swish"
    target = "HardSwish"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """The division after or before the product, or as a product with 1/6."""
        gate = op.any_of(op.Div(_six(op, x), 6), op.Mul(_six(op, x), _SIXTH), self._hard_sigmoid(op, x))
        both = op.Mul(x, _six(op, x))
        return op.any_of(op.Mul(x, gate), op.Div(both, 6), op.Mul(both, _SIXTH))

    @staticmethod
    def _hard_sigmoid(op: Recorder, x: Any) -> Any:
        slope = op.attr("slope", where=lambda a: abs(a * 6 - 1) < 1e-6, says="1/6")
        return op.HardSigmoid(x, alpha=slope, beta=0.5)

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """It has no attributes."""
        return op.HardSwish(x)


class HardSigmoid(_Elementwise):
    """clip(x + 3, 0, 6) ÷ 6 → HardSigmoid (opset 6)."""

    name = "assemble-hard-sigmoid"
    target = "HardSigmoid"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """Divided by 6 or times 1/6."""
        return op.any_of(op.Div(_six(op, x), 6), op.Mul(_six(op, x), _SIXTH))

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """Slope 1/6, 0.5 at zero."""
        return op.HardSigmoid(x, alpha=_SIXTH, beta=0.5)


class Mish(_Elementwise):
    """x · tanh(softplus(x)) → Mish (opset 18)."""

    name = "assemble-mish"
    target = "Mish"

    def pattern(self, op: Recorder, x: Any) -> Any:
        """All of the same x."""
        return op.Mul(x, op.Tanh(op.Softplus(x)))

    def rewrite(self, op: Builder, x: ir.Value) -> Any:
        """It has no attributes."""
        return op.Mish(x)


class ClipMinMax(AssembleRule):
    """min(max(x, low), high), in either order, or min(relu(x), high) → Clip (opset 11)."""

    name = "assemble-clip"
    target = "Clip"

    def pattern(self, op: Recorder, x: Any, low: Any, high: Any) -> Any:
        """Both bounds are constants of one element."""
        least, most = op.scalar(low), op.scalar(high)
        return op.any_of(
            op.Min(op.any_of(op.Max(x, least), op.Relu(x, _name="relu")), most),
            op.Max(op.Min(x, most), least),
        )

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The bounds must be in order: where they are not, Min and Max in the other order differ."""
        low = 0.0 if match["low"] is None else match.scalar("low")
        if not low <= match.scalar("high"):
            return Refusal(f"the lower bound {low:g} is above the upper one, {match.scalar('high'):g}")
        return None

    def rewrite(self, op: Builder, x: ir.Value, match: Match) -> Any:
        """The bounds become inputs of rank 0."""
        bounds = [match.array(name) for name in ("low", "high")]
        dtype = match.type("x").dtype if bounds[1] is None else bounds[1].dtype
        low, high = (op.constant((0 if each is None else each.reshape(())), dtype) for each in bounds)
        return op.Clip(x, low, high)


RULES = (GeluErf(), GeluTanh(), HardSwish(), HardSigmoid(), Mish(), Swish(), SwishScaled(), ClipMinMax())
