"""Folds in registers: neutral elements, one more value, accumulators into one, lanes into one number."""

from dataclasses import dataclass

import numpy as np

from graphdoc.engine.device.llvm.builder import Function, Value, floating, integer, mangled, parts, vector
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.device.llvm.math_cast import register, rounded
from graphdoc.engine.device.llvm.rows_softmax import NUMBERS
from graphdoc.engine.expr import F32, Dtype, Expr
from graphdoc.engine.kernels.rows import Reduction


@dataclass(frozen=True, slots=True)
class Fold:
    """One reduction over vectors of ``lanes`` elements; accumulators have the dtype ``held``.

    native: whether the processor converts float16.
    """

    fn: Function
    part: Reduction
    lanes: int
    native: bool

    @property
    def dtype(self) -> Dtype:
        """Return the dtype of the folded expression and of the result."""
        return self.part.expr.dtype

    @property
    def held(self) -> Dtype:
        """Return the dtype of the accumulators: float32 for narrower floats."""
        return F32 if self.dtype.kind not in "biu" and self.dtype.itemsize < 4 else self.dtype

    @property
    def fused(self) -> bool:
        """Return whether products are added without rounding them first."""
        return (
            self.part.fold == "sum"
            and self.part.expr.op == "mul"
            and self.dtype.name in ("float32", "float64")
        )

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Return what must be computed of an element: the expression, or the factors of a product."""
        return self.part.expr.args if self.fused else (self.part.expr,)

    def start(self) -> Value:
        """Return the neutral element in every lane."""
        value, kind = _neutral(self.part.fold, self.held), vector(register(self.held), self.lanes)
        return integer(int(value), kind) if self.held.kind in "biu" else floating(value, kind)

    def add(self, total: Value, values: list[Value], active: Value | None = None) -> Value:
        """Return the accumulator with one more vector (its factors if fused) in the lanes that are active."""
        a, b = values if self.fused else (values[0], values[0])
        result = self.fn.fma(a, b, total) if self.fused else self.combined(total, a)
        if active is None or self.part.fold not in ("sum", "prod"):
            return result  # other folds may take an element twice
        return self.fn.op(f"select {active}, {result}, {total}", total.type)

    def combined(self, a: Value, b: Value) -> Value:
        """Return the fold of two values of the held dtype, lane by lane."""
        fold, fn = self.part.fold, self.fn
        if fold in ("and", "or"):
            return fn.binary(fold, a, b)
        if self.held.kind == "b":  # of conditions: or, and
            return fn.binary("or" if fold in ("sum", "max") else "and", a, b)
        if fold in ("sum", "prod"):
            return fn.binary(
                ("f" if self.held.kind == "f" else "") + ("add" if fold == "sum" else "mul"), a, b
            )
        if self.held.kind == "f":
            return _extreme(fn, fold, a, b)
        sign = "s" if self.held.kind == "i" else "u"
        return fn.call(f"llvm.{sign}{fold}.{mangled(a.type)}", a.type, a, b)

    def result(self, totals: list[Value], across: bool) -> Value:
        """Return the fold of accumulators: a vector, or if across lanes, a number, rounded to the dtype."""
        while len(totals) > 1:
            pairs = [self.combined(*totals[k : k + 2]) for k in range(0, len(totals) - 1, 2)]
            totals = pairs + totals[len(totals) - len(totals) % 2 :]
        total = self._reduced(totals[0]) if across else totals[0]
        if self.held == self.dtype:
            return total
        return rounded(Lanes(self.fn, parts(total.type)[1]), total, self.dtype, self.native)

    def _reduced(self, total: Value) -> Value:
        """Fold halves of the lanes onto each other until one is left."""
        element, lanes = parts(total.type)
        while lanes > 1:
            half = vector(element, lanes // 2)
            low, high = (self._part(total, half, lanes // 2, first) for first in (0, lanes // 2))
            total, lanes = self.combined(low, high), lanes // 2
        return total

    def _part(self, total: Value, half: str, count: int, first: int) -> Value:
        if count == 1:
            return self.fn.op(f"extractelement {total}, i32 {first}", half)
        mask = ", ".join(f"i32 {first + k}" for k in range(count))
        return self.fn.op(f"shufflevector {total}, {total.type} poison, <{count} x i32> <{mask}>", half)


def _extreme(fn: Function, fold: str, total: Value, value: Value) -> Value:
    """Return the larger or smaller float; NaN once there was one, but of numbers alone."""
    _, lanes = parts(value.type)
    cond = vector("i1", lanes)
    better = fn.op(f"fcmp {'olt' if fold == 'min' else 'ogt'} {value}, {total.name}", cond)
    picked = fn.op(f"select {better}, {value}, {total}", value.type)
    if fold == NUMBERS:
        return picked
    nan = fn.op(f"fcmp uno {value}, {value.name}", cond)
    return fn.op(f"select {nan}, {value}, {picked}", value.type)


def _neutral(fold: str, dtype: Dtype) -> float:
    if fold in ("sum", "or"):
        return 0
    if fold == "prod":
        return 1
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return -1 if fold == "and" else int(limits.min if fold == "max" else limits.max)
    if dtype.kind == "b":
        return int(fold != "max")
    return np.inf if fold == "min" else -np.inf
