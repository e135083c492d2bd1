"""Softmax as cheap as it can be: what is known of exponentials of x less the largest x, and of their sum.

1. Such an exponential is at most 1: half of the care that exp takes is for nothing. Below 2^-126 it is 0.
2. The sum is at least 1: dividing by it is multiplying by its reciprocal, within one more rounding.
3. Where a NaN makes the sum NaN, and all that is written comes from that, the maximum need not heed it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphdoc.engine.device.llvm import math_float
from graphdoc.engine.device.llvm.builder import Value
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.device.llvm.scalar import Scalars
from graphdoc.engine.expr import F32, Expr, apply, const, leaves, make, postorder, stage, substituted
from graphdoc.engine.kernels.rows import Reduction, Rows

FALLING = "exp of what is not above 0"
"""The operation of case 1; only the emitters of this folder know it."""

NUMBERS = "max of numbers"
"""The fold of case 3: the largest of what is no NaN."""


class RowScalars(Scalars):
    """Scalars that know :data:`FALLING`."""

    def _emitted(self, node: Expr, done: Mapping[Expr, Value], leaf: dict[str, Any]) -> Value:
        if node.op == FALLING:
            return falling_exp(self.lanes, done[node.args[0]])
        return super()._emitted(node, done, leaf)


def falling_exp(v: Lanes, x: Value) -> Value:
    """Return e to the power x of float32 lanes, none above 0; 0 where x is below -87.7. NaN stays."""
    x = v.larger(-88.0, x)
    t = v.fma(x, 1.4426950408889634, 1.5 * 2.0**23)  # a whole number then stands in the last bits
    k = v.sub(t, 1.5 * 2.0**23)
    r = v.fma(k, -1.428606765330187e-06, v.fma(k, -0.693145751953125, x))
    scale = v.real(v.add(v.op("shl", v.bits(t), 23), 0x3F800000))  # of k = -127: 0
    return v.mul(v.polynomial(r, math_float._EXP), scale)


def sharpened(spec: Rows) -> Rows:
    """Return the specification with what is known of softmax put to use."""
    if not any(s.fold == "max" for s in spec.stages):
        return spec
    roots = [s.expr for s in spec.stages] + [o.expr for o in spec.outputs]
    known: dict[Expr, Expr] = {}
    for node in dict.fromkeys(n for root in roots for n in postorder(root)):
        top = _top(spec, node)
        if top is not None:
            known[node] = make(FALLING, node.args, F32)
    sums = {k for k, s in enumerate(spec.stages) if s.fold == "sum" and s.expr in known}
    for node in dict.fromkeys(n for root in roots for n in postorder(root)):
        if (
            node.op == "div"
            and node.dtype == F32
            and node.args[1].op == "stage"
            and node.args[1].attr in sums
        ):
            inverse = apply("div", const(1, F32), node.args[1])
            known[node] = apply("mul", substituted(node.args[0], known), inverse)
    if not known:
        return spec
    stages = tuple(replace(s, expr=substituted(s.expr, known)) for s in spec.stages)
    outputs = tuple(replace(o, expr=substituted(o.expr, known)) for o in spec.outputs)
    return _careless(replace(spec, stages=stages, outputs=outputs))


def _top(spec: Rows, node: Expr) -> int | None:
    """Return the stage that is the maximum of x in exp(x - maximum)."""
    if node.op != "exp" or node.dtype != F32 or node.args[0].op != "sub":
        return None
    x, peak = node.args[0].args
    if peak.op != "stage":
        return None
    found = spec.stages[peak.attr]
    return int(peak.attr) if found.fold == "max" and found.expr is x else None


def _careless(spec: Rows) -> Rows:
    """Return the specification with maxima that ignore NaN where that shows nowhere (case 3)."""
    stages = list(spec.stages)
    for k, part in enumerate(stages):
        if part.fold == "max" and part.expr.dtype == F32 and _hidden(spec, k):
            stages[k] = Reduction(NUMBERS, part.expr)
    return replace(spec, stages=tuple(stages))


def _hidden(spec: Rows, top: int) -> bool:
    """Return whether a maximum is seen only through exponentials over their sum."""
    element = make(FALLING, (apply("sub", spec.stages[top].expr, stage(top, F32)),), F32)
    sums = [k for k, s in enumerate(spec.stages) if s.fold == "sum" and s.expr is element]
    if not sums:
        return False
    share = apply("mul", element, apply("div", const(1, F32), stage(sums[0], F32)))
    others = [s.expr for k, s in enumerate(spec.stages) if k not in (top, sums[0])]
    seen = [substituted(e, {share: const(0, F32)}) for e in (*others, *(o.expr for o in spec.outputs))]
    return top not in leaves(seen, "stage")
