"""Recipes of element-wise operators, casts, reductions and their kin."""

import numpy as np

from tests.engine.random_builder import Builder, Value
from tests.engine.random_recipes import recipe
from tests.engine.random_values import BOOL, FLOATS, INTEGERS, TEXT, element_type

# ---- element-wise -------------------------------------------------------------------------------------

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor"),
    *(
        "HardSwish",
        "Identity",
        "IsNaN",
        "Log",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
    ),
    *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "BitwiseNot"),
)


@recipe(*UNARY, inner=True)
def unary(g: Builder, op: str) -> None:
    """An operator with one input and no attributes."""
    g.add(op, [g.pick(op)])


ALPHAS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Celu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "HardSigmoid": ("alpha", "beta"),
    "Shrink": ("bias", "lambd"),
    "Swish": ("alpha",),
}


@recipe(*ALPHAS, inner=True)
def with_alpha(g: Builder, op: str) -> None:
    """A function with numbers for attributes."""
    attributes = {name: g.real(0.25, 2.0) for name in ALPHAS[op] if g.chance(0.5)}
    g.add(op, [g.pick(op)], **attributes)


@recipe("Gelu", first=20, inner=True)
def gelu(g: Builder, op: str) -> None:
    g.add(op, [g.pick(op)], **({"approximate": g.choose(["none", "tanh"])} if g.chance(0.7) else {}))


@recipe("IsInf", first=10, inner=True)
def isinf(g: Builder, op: str) -> None:
    names = [n for n in ("detect_negative", "detect_positive") if g.chance(0.5)]
    g.add(op, [g.pick(op)], **{n: g.number(0, 1) for n in names})


@recipe("Softmax", "LogSoftmax", "Hardmax", inner=True)
def softmax(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank)
    if g.opset < 11:
        axis %= x.rank
    needed = g.opset < 13 and x.rank < 2  # the default was 1
    g.add(op, [x], **({"axis": axis} if needed or g.chance(0.8) else {}))


BINARY = (
    *("Add", "Sub", "Mul", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual"),
    *("LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)


@recipe(*BINARY, first=7, inner=True)
def binary(g: Builder, op: str) -> None:
    """Two inputs that broadcast."""
    a = g.pick(op)
    b = g.like(a, g.broadcastable(a.shape))
    g.add(op, [a, b] if g.chance(0.7) else [b, a])


@recipe("Pow", first=12)
def power_mixed(g: Builder, op: str) -> None:
    """Base and exponent of different dtypes."""
    a = g.pick(op)
    b = g.fresh(g.choose(g.dtypes(op, 1)), g.broadcastable(a.shape), tame=True)
    if b.dtype.kind in "iu":
        b = g.parameter(np.abs(b.array % 4).astype(b.dtype))
    g.add(op, [a, b])


def _whole(g: Builder, op: str) -> tuple[Value, Value]:
    """Return dividend and divisor for which division is defined: no zero, no minimum by −1."""
    a = g.pick(op)
    b = g.like(a, g.broadcastable(a.shape))
    if a.dtype.kind in "iu":
        least = np.iinfo(a.dtype).min if a.dtype.kind == "i" else 0
        safe = np.where(b.array == 0, 3, b.array)
        if a.dtype.kind == "i" and a.array.size and a.array.min() == least:
            safe = np.where(safe == -1, 2, safe)
        if not np.array_equal(safe, b.array):
            b = g.source(safe.astype(b.dtype))
    return a, b


@recipe("Div", first=7)
def divide(g: Builder, op: str) -> None:
    g.add(op, list(_whole(g, op)))


@recipe("Mod", first=10)
def modulo(g: Builder, op: str) -> None:
    a, b = _whole(g, op)
    fmod = 1 if a.dtype.kind == "f" else g.number(0, 1)
    g.add(op, [a, b], fmod=fmod)


@recipe("Div", first=7, inner=True)
def divide_floats(g: Builder, op: str) -> None:
    a = g.pick(op, within=FLOATS)
    g.add(op, [a, g.like(a, g.broadcastable(a.shape))])


@recipe("PRelu", first=7, inner=True)
def prelu(g: Builder, op: str) -> None:
    x = g.pick(op)
    shape = tuple(1 if g.chance(0.4) else d for d in x.shape[g.number(0, x.rank) :])
    g.add(op, [x, g.like(x, shape)])


@recipe("BitShift", first=11)
def bit_shift(g: Builder, op: str) -> None:
    x = g.pick(op)
    counts = g.content(x.dtype, g.broadcastable(x.shape), tame=True) % (8 * x.dtype.itemsize)
    g.add(op, [x, g.parameter(counts.astype(x.dtype))], direction=g.choose(["LEFT", "RIGHT"]))


@recipe("Max", "Min", "Sum", "Mean", first=8, inner=True)
def variadic(g: Builder, op: str) -> None:
    first = g.pick(op)
    others = [g.like(first, g.broadcastable(first.shape)) for _ in range(g.number(0, 3))]
    g.add(op, [first, *others])


@recipe("Where", first=9, inner=True)
def where(g: Builder, op: str) -> None:
    x = g.pick(op, 1)
    y = g.like(x, g.broadcastable(x.shape))
    condition = g.find(lambda v: v.dtype == BOOL and v.rank == 0)
    if condition is None or g.chance(0.7):
        condition = g.fresh(BOOL, g.broadcastable(x.shape))
    g.add(op, [condition, x, y])


@recipe("Clip", first=6, inner=True)
def clip(g: Builder, op: str) -> None:
    x = g.pick(op)
    low, high = g.real(-2, 0), g.real(0, 2)
    if g.opset < 11:
        g.add(op, [x], **{n: v for n, v in (("min", low), ("max", high)) if g.chance(0.6)})
        return
    bounds = [
        g.parameter(np.array(max(0, b) if x.dtype.kind == "u" else b).astype(x.dtype)) for b in (low, high)
    ]
    g.add(op, [x, *(b if g.chance(0.7) else None for b in bounds)])


@recipe("Cast", first=6)
def cast(g: Builder, op: str) -> None:
    """A cast between any two dtypes; text to numbers only where all of it are numbers."""
    x = g.pick(op)
    if x.dtype == TEXT:
        x = g.parameter(np.array([str(g.number(-9, 9)) for _ in range(g.number(0, 4))], dtype=object))
    targets = [d for d in (*FLOATS, *INTEGERS, BOOL) if d != BOOL or x.dtype != TEXT]
    if x.dtype.kind in "iu" and g.opset >= 9:
        targets.append(TEXT)
    g.add(op, [x], to=element_type(g.choose(targets)))


@recipe("CastLike", first=15)
def cast_like(g: Builder, op: str) -> None:
    x = g.pick("Cast", within=(*FLOATS, *INTEGERS, BOOL))
    g.add(op, [x, g.pick("Cast", within=(*FLOATS, *INTEGERS, BOOL))])


@recipe("BitCast", first=26)
def bit_cast(g: Builder, op: str) -> None:
    x = g.pick(op, within=(*FLOATS, *INTEGERS))
    same = [d for d in (*FLOATS, *INTEGERS) if d.itemsize == x.dtype.itemsize]
    g.add(op, [x], to=element_type(g.choose(same)))


# ---- reductions ---------------------------------------------------------------------------------------

REDUCTIONS: dict[str, int] = {
    "ReduceSum": 13,
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1"), 18
    ),
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), 18),
}
"""The opset from which the axes are an input."""


@recipe(*REDUCTIONS, inner=True)
def reduction(g: Builder, op: str) -> None:
    x = g.pick(op)
    axes = g.axes(x.rank) if x.rank else []
    if g.opset < 11:
        axes = [a % x.rank for a in axes]
    keep = {"keepdims": g.number(0, 1)} if g.chance(0.7) else {}
    if g.opset < REDUCTIONS[op]:
        g.add(op, [x], **({"axes": axes} if axes else {}), **keep)
    else:
        noop = {"noop_with_empty_axes": g.number(0, 1)} if g.chance(0.4) else {}
        g.add(op, [x, g.ints(axes) if axes or g.chance(0.3) else None], **keep, **noop)


@recipe("ArgMax", "ArgMin", inner=True)
def arg_extreme(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    last = {"select_last_index": g.number(0, 1)} if g.opset >= 12 and g.chance(0.5) else {}
    g.add(op, [x], axis=axis, keepdims=g.number(0, 1), **last)


@recipe("CumSum", "CumProd", first=11, inner=True)
def cumulative(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.parameter(np.array(g.axis(x.rank), dtype=g.choose([np.int64, np.int32])))
    g.add(op, [x, axis], **{n: g.number(0, 1) for n in ("exclusive", "reverse") if g.chance(0.5)})


@recipe("TopK", first=10)
def top_k(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    k = g.ints([g.number(0 if g.chance(0.1) else min(1, x.shape[axis]), x.shape[axis])])
    more = {n: g.number(0, 1) for n in ("largest",) if g.chance(0.6)} if g.opset >= 11 else {}
    g.add_many(op, [x, k], 2, axis=axis, **more)
