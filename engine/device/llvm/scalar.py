"""Scalar expressions as LLVM IR: every operation of ``engine/expr.py`` on vectors of any number of lanes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from graphdoc.engine.device.llvm import math_cast, math_float, math_integer
from graphdoc.engine.device.llvm.builder import Function, Target, Value, integer, mangled
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.device.llvm.ranges import bounds, constant_of, moderate, ordered, rounded_from, within
from graphdoc.engine.expr import BF16, BOOL, F16, F32, OPERATIONS, Dtype, Expr, postorder

Rule: TypeAlias = Callable[..., Value]
"""(lanes, *arguments in registers) → result in a register."""


class Scalars:
    """Emits expressions into ``fn``, for ``lanes`` elements at once.

    Registers hold a bool as i1, float16 and bfloat16 as a float of that value, everything else as memory does
    (``math_cast.register``). Without a target the code is right for any processor, and float16 is converted
    by integer arithmetic; with one that has instructions for it, by these.

    Errors of float32 are at most 2 units in the last place; the tests hold it.
    """

    def __init__(self, fn: Function, lanes: int, target: Target | None = None) -> None:
        self.fn = fn
        self.lanes = Lanes(fn, lanes)
        self.native = target is not None and converts_half(target)
        self.fused = target is not None and multiplies_and_adds(target)

    def emit(
        self,
        exprs: Sequence[Expr],
        load: Callable[[int], Value],
        index: Callable[[int], Value] | None = None,
        stages: Sequence[Value] = (),
        known: Mapping[Expr, Value] | None = None,
    ) -> list[Value]:
        """Append the computation of expressions, what they share once, and return their registers.

        load: gives the k-th input, as loaded from memory or as a register; index: the position on an axis
        (i64); stages: results of reductions; known: registers of expressions computed before. A scalar given
        where there are several lanes is the same in all. Call anew in each loop body: values are shared
        within one call only.
        """
        leaf = {"input": load, "stage": stages.__getitem__, "index": index}
        done = {expr: self.lanes.every(value) for expr, value in (known or {}).items()}
        for root in exprs:
            for node in postorder(root, done):
                done[node] = self._emitted(node, done, leaf)
        return [done[root] for root in exprs]

    def from_memory(self, value: Value, dtype: Dtype) -> Value:
        """Return what was loaded from memory, in every lane, as registers hold it."""
        v = self.lanes if value.type.startswith("<") else Lanes(self.fn, 1)
        return self.lanes.every(math_cast.from_memory(v, value, dtype, self.native))

    def to_memory(self, value: Value, dtype: Dtype) -> Value:
        """Return a register's value as it is stored."""
        return math_cast.to_memory(self.lanes, value, dtype, self.native)

    def constant(self, value: Any, dtype: Dtype) -> Value:
        """Return a number in every lane of a register."""
        kind = self.lanes.kind(math_cast.register(dtype))
        if dtype == BOOL:
            return integer(int(bool(value)), kind)
        return self.lanes.number(int(value) if dtype.kind in "iu" else float(value), kind)

    def _emitted(self, node: Expr, done: Mapping[Expr, Value], leaf: dict[str, Any]) -> Value:
        args = [done[a] for a in node.args]
        found = self._shortcut(node, done)
        if found is not None:
            return found
        if node.op in leaf:
            return self.from_memory(leaf[node.op](node.attr), node.dtype)
        if node.op == "const":
            return self.constant(node.value, node.dtype)
        if node.op == "cast":
            return self._cast(node.args[0], node.dtype, done)
        if node.op == "pow" and node.dtype.kind not in "iub" and node.args[1].op == "const":
            result = math_float.power_of(self.lanes, args[0], float(node.args[1].value), args[1])
        else:
            result = _rule(node)(self.lanes, *args)
        rounds = node.dtype in (F16, BF16) and node.op not in EXACT
        return math_cast.rounded(self.lanes, result, node.dtype, self.native) if rounds else result

    def _shortcut(self, node: Expr, done: Mapping[Expr, Value]) -> Value | None:
        """Return the same float32 by a shorter way, None where there is none.

        A number that was quantised and dequantised at once stays a float. A bounded one is divided by a
        constant through the reciprocal and what that leaves over, which a fused multiplication tells exactly:
        the nearest float, but for one in millions next to it.
        """
        if node.dtype != F32 or node.op not in ("sub", "cast", "div"):
            return None
        if node.op == "div":
            a, b = node.args
            bounded = self.fused and moderate(b) and all(map(math.isfinite, bounds(a)))
            return self._divided(done[a], done[b], float(b.value)) if bounded else None
        rounded = rounded_from(node.args[0] if node.op == "sub" else node)
        shift = constant_of(node.args[1]) if node.op == "sub" else 0.0
        if rounded is None or rounded[1] != shift or rounded[0] not in done:
            return None
        whole = self.lanes.intrinsic("rint", done[rounded[0]])
        return self.lanes.add(whole, 0.0)  # an integer has no -0

    def _divided(self, a: Value, b: Value, divisor: float) -> Value:
        v, reciprocal = self.lanes, self.lanes.number(1 / divisor, a.type)
        q = v.mul(a, reciprocal)
        return q if abs(math.frexp(divisor)[0]) == 0.5 else v.fma(v.fma(v.negated(q), b, a), reciprocal, q)

    def _cast(self, source: Expr, dtype: Dtype, done: Mapping[Expr, Value]) -> Value:
        """Return an expression in another dtype, shorter where constants tell its range."""
        if dtype.kind in "iu" and within(source, dtype):
            if source.dtype.kind == "i":
                return math_cast.narrowed(self.lanes, done[source], dtype)
            if source.op == "rint" and source.dtype == F32 and dtype.itemsize <= 4 and ordered(source):
                return math_cast.nearest(self.lanes, done[source.args[0]], dtype)
            if source.dtype.kind not in "ub":
                known = ordered(source)
                return math_cast.within(self.lanes, done[source], dtype, ordered=known)
        return math_cast.cast(self.lanes, done[source], source.dtype, dtype, self.native)


def converts_half(target: Target) -> bool:
    """Return whether the processor converts float16 in vectors."""
    return "+f16c" in target.features.split(",") or "+fullfp16" in target.features.split(",")


def multiplies_and_adds(target: Target) -> bool:
    """Return whether the processor rounds a product and a sum once."""
    return "+fma" in target.features.split(",") or target.registers == 32


def _rule(node: Expr) -> Rule:
    """Return what emits an operation; ValueError, a fault of the caller, where the dtype has none."""
    dtype = node.args[-1].dtype
    column = "bool" if dtype == BOOL else dtype.kind if dtype.kind in "iu" else "float"
    rule: Rule | None = getattr(RULES[node.op], {"i": "signed", "u": "unsigned"}.get(column, column))
    if rule is None:
        raise ValueError(f"{node.op} of {dtype}")
    return rule


class Row(NamedTuple):
    """What emits an operation on floats, signed and unsigned integers, and bools; None: it has no meaning."""

    float: Rule | None = None
    signed: Rule | None = None
    unsigned: Rule | None = None
    bool: Rule | None = None


def _op(name: str) -> Rule:
    return lambda v, a, b: v.op(name, a, b)


def _compare(name: str) -> Rule:
    return lambda v, a, b: v.compare(name, a, b)


def _call(name: str, *more: Value) -> Rule:
    """Return the rule of an intrinsic that is named by its type."""

    def rule(v: Lanes, *args: Value) -> Value:
        return v.fn.call(f"llvm.{name}.{mangled(args[0].type)}", args[0].type, *args, *more)

    return rule


def _same(v: Lanes, a: Value) -> Value:
    return a


def _never(v: Lanes, a: Value) -> Value:
    return integer(0, v.kind("i1"))


def _floats(rule: Rule) -> Row:
    return Row(rule)


def _integers(rule: Rule, unsigned: Rule | None = None) -> Row:
    return Row(None, rule, unsigned or rule)


def _anything(floats: Rule, signed: Rule, unsigned: Rule | None = None, bools: Rule | None = None) -> Row:
    return Row(floats, signed, unsigned or signed, bools)


def _bitwise(name: str) -> Row:
    return Row(None, _op(name), _op(name), _op(name))


_SELECT: Rule = lambda v, c, a, b: v.select(c, a, b)  # noqa: E731  a row's entry, like the others
_NOT: Rule = lambda v, a: v.op("xor", a, -1)  # noqa: E731
_NO_MINIMUM = Value("false", "i1")  # of llvm.abs: the smallest integer is its own magnitude

RULES: dict[str, Row] = {
    "add": _anything(_op("fadd"), _op("add"), bools=_op("or")),
    "sub": _anything(_op("fsub"), _op("sub")),
    "mul": _anything(_op("fmul"), _op("mul"), bools=_op("and")),
    "div": _anything(math_float.divide, math_integer.divide, math_integer.divide_unsigned),
    "mod": _anything(math_float.modulo, math_integer.modulo, math_integer.remainder_unsigned),
    "fmod": _anything(math_float.remainder, math_integer.remainder, math_integer.remainder_unsigned),
    "pow": _anything(math_float.power, math_integer.power, math_integer.power_unsigned),
    "min": _anything(math_float.minimum, _call("smin"), _call("umin"), _op("and")),
    "max": _anything(math_float.maximum, _call("smax"), _call("umax"), _op("or")),
    "neg": _anything(Lanes.negated, Lanes.negated),
    "abs": _anything(Lanes.magnitude, _call("abs", _NO_MINIMUM), _same, _same),
    "sign": _anything(math_float.sign, math_integer.sign, math_integer.sign_unsigned),
    "sqrt": _floats(_call("sqrt")),
    "exp": _floats(math_float.exp),
    "log": _floats(math_float.log),
    "log1p": _floats(math_float.log1p),
    "expm1": _floats(math_float.expm1),
    "sin": _floats(math_float.sin),
    "cos": _floats(math_float.cos),
    "tan": _floats(math_float.libm("tan")),
    "asin": _floats(math_float.libm("asin")),
    "acos": _floats(math_float.libm("acos")),
    "atan": _floats(math_float.libm("atan")),
    "sinh": _floats(math_float.libm("sinh")),
    "cosh": _floats(math_float.libm("cosh")),
    "tanh": _floats(math_float.tanh),
    "sigmoid": _floats(math_float.sigmoid),
    "erf": _floats(math_float.erf),
    "floor": _anything(_call("floor"), _same, bools=_same),
    "ceil": _anything(_call("ceil"), _same, bools=_same),
    "rint": _anything(_call("rint"), _same, bools=_same),
    "trunc": _anything(_call("trunc"), _same, bools=_same),
    "isnan": _anything(lambda v, a: v.compare("uno", a, a), _never, bools=_never),
    "isinf": _anything(lambda v, a: v.compare("oeq", v.magnitude(a), float("inf")), _never, bools=_never),
    "eq": _anything(_compare("oeq"), _compare("eq"), bools=_compare("eq")),
    "lt": _anything(_compare("olt"), _compare("slt"), _compare("ult"), _compare("ult")),
    "le": _anything(_compare("ole"), _compare("sle"), _compare("ule"), _compare("ule")),
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
    "not": Row(None, _NOT, _NOT, _NOT),
    "shl": _integers(math_integer.shift("shl")),
    "shr": _integers(math_integer.shift("ashr"), math_integer.shift("lshr")),
    "select": Row(_SELECT, _SELECT, _SELECT, _SELECT),
}
"""One row per operation of :data:`~graphdoc.engine.expr.OPERATIONS`."""

EXACT = frozenset(
    {"min", "max", "neg", "abs", "sign", "floor", "ceil", "rint", "trunc", "select", "fmod"}
    | {name for name, row in OPERATIONS.items() if row.predicate}
)
"""Operations whose result on floats needs no rounding to the dtype of their arguments."""
