"""Arithmetic on vectors of a fixed number of lanes, appended to a ``builder.Function``.

Whether an operation is one on integers or on floats follows from its first operand's type; Python numbers are
constants of that type. One lane is a scalar.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphdoc.engine.device.llvm.builder import Function, Value, floating, integer, mangled, parts, vector

Operand: TypeAlias = Value | float | int
"""A value, or the number that stands in every lane."""

FLOATS = frozenset(("half", "bfloat", "float", "double"))
_WIDTHS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def is_float(kind: str) -> bool:
    """Return whether a type is one of floats."""
    return parts(kind)[0] in FLOATS


def width(kind: str) -> int:
    """Return the bits of one lane."""
    element = parts(kind)[0]
    return _WIDTHS.get(element) or int(element[1:])


@dataclass(frozen=True, slots=True)
class Lanes:
    """Appends to ``fn`` what works on ``count`` lanes at once."""

    fn: Function
    count: int

    def kind(self, element: str) -> str:
        """Return the type of all lanes."""
        return vector(element, self.count)

    def number(self, value: Operand, kind: str) -> Value:
        """Return an operand as a value of the type."""
        if isinstance(value, Value):
            return value
        return floating(value, kind) if is_float(kind) else integer(int(value), kind)

    def every(self, value: Value) -> Value:
        """Return a scalar in every lane; a vector as it is."""
        return self.fn.splat(value, self.count) if not value.type.startswith("<") else value

    # ---- one instruction each ------------------------------------------------------------------------

    def op(self, name: str, a: Value, b: Operand) -> Value:
        """Return an instruction of two values of one type: ``and``, ``shl``, ``sdiv``, …"""
        return self.fn.binary(name, a, self.number(b, a.type))

    def add(self, a: Value, b: Operand) -> Value:
        """Return a + b."""
        return self.op("fadd" if is_float(a.type) else "add", a, b)

    def sub(self, a: Value, b: Operand) -> Value:
        """Return a - b."""
        return self.op("fsub" if is_float(a.type) else "sub", a, b)

    def mul(self, a: Value, b: Operand) -> Value:
        """Return a · b."""
        return self.op("fmul" if is_float(a.type) else "mul", a, b)

    def div(self, a: Operand, b: Value) -> Value:
        """Return a ÷ b of floats."""
        return self.fn.binary("fdiv", self.number(a, b.type), b)

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """Return a · b + c of floats, in one or two roundings."""
        return self.fn.fma(a, self.number(b, a.type), self.number(c, a.type))

    def negated(self, a: Value) -> Value:
        """Return -a."""
        if is_float(a.type):
            return self.fn.op(f"fneg {a}", a.type)
        return self.fn.binary("sub", integer(0, a.type), a)

    def intrinsic(self, name: str, a: Value, *more: Value) -> Value:
        """Return ``llvm.<name>`` of values of one type."""
        return self.fn.call(f"llvm.{name}.{mangled(a.type)}", a.type, a, *more)

    def magnitude(self, a: Value) -> Value:
        """Return |a| of floats."""
        return self.intrinsic("fabs", a)

    def compare(self, test: str, a: Value, b: Operand) -> Value:
        """Return a comparison as i1 lanes: ``olt``, ``une`` … of floats, ``slt``, ``eq`` … of integers."""
        name = "fcmp" if is_float(a.type) else "icmp"
        return self.fn.op(f"{name} {test} {a}, {self.number(b, a.type).name}", self._like(a, "i1"))

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """Return a where the condition holds, b elsewhere; at least one must be a value."""
        kind = next(x.type for x in (a, b) if isinstance(x, Value))
        first, second = self.number(a, kind), self.number(b, kind)
        return self.fn.op(f"select {condition}, {first}, {second}", kind)

    def convert(self, name: str, a: Value, element: str) -> Value:
        """Return a conversion instruction: ``zext``, ``fptrunc``, ``sitofp``, …"""
        kind = self._like(a, element)
        return self.fn.op(f"{name} {a} to {kind}", kind)

    def bits(self, a: Value) -> Value:
        """Return the bits of floats as integers."""
        return self.convert("bitcast", a, f"i{width(a.type)}")

    def real(self, a: Value) -> Value:
        """Return the float32 or float64 whose bits are given."""
        return self.convert("bitcast", a, {32: "float", 64: "double"}[width(a.type)])

    # ---- a few together ------------------------------------------------------------------------------

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Return the polynomial with the given coefficients, highest power first, by Horner's rule."""
        result = self.number(coefficients[0], x.type)
        for c in coefficients[1:]:
            result = self.fma(result, x, c)
        return result

    def larger(self, a: Operand, b: Value) -> Value:
        """Return a where a > b, else b: one instruction, and b where either is NaN."""
        a = self.number(a, b.type)
        return self.select(self.compare("ogt", a, b), a, b)

    def smaller(self, a: Operand, b: Value) -> Value:
        """Return a where a < b, else b: one instruction, and b where either is NaN."""
        a = self.number(a, b.type)
        return self.select(self.compare("olt", a, b), a, b)

    def with_sign(self, a: Value, sign: Value) -> Value:
        """Return |a| with the sign of another float."""
        return self.intrinsic("copysign", a, sign)

    def each(self, function: Callable[..., Value], element: str, *args: Value) -> Value:
        """Return a function of scalars, to a scalar of type ``element``, applied lane by lane."""
        if self.count == 1:
            return function(*args)
        kind = self.kind(element)
        result = Value("poison", kind)
        for k in range(self.count):
            lane = function(*(self.lane(a, k) for a in args))
            result = self.fn.op(f"insertelement {result}, {lane}, i32 {k}", kind)
        return result

    def lane(self, a: Value, k: int) -> Value:
        """Return one lane of a vector."""
        return self.fn.op(f"extractelement {a}, i32 {k}", parts(a.type)[0])

    def any(self, condition: Value) -> Value:
        """Return whether an i1 holds in any lane."""
        if self.count == 1:
            return condition
        return self.fn.call(f"llvm.vector.reduce.or.v{self.count}i1", "i1", condition)

    def _like(self, a: Value, element: str) -> str:
        return vector(element, parts(a.type)[1])
