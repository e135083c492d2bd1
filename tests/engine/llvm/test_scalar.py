"""Scalar expressions as machine code: every operation on every dtype, against NumPy and float64."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.engine import expr
from graphdoc.engine.device.llvm import compiler
from graphdoc.engine.device.llvm.builder import Function, Target, scalar, vector
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.device.llvm.ranges import bounds, within
from graphdoc.engine.device.llvm.scalar import RULES, Scalars
from graphdoc.engine.expr import BF16, BOOL, DTYPES, F16, F32, F64, I64, OPERATIONS, Expr, apply, cast, load
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Step, whole
from tests.engine.llvm.native import run
from tests.engine.llvm.views_of import numbers

Dtype = np.dtype[Any]
PLAIN = Target("x86-64", "", 16, 16)
"""The least that every x86-64 has: no FMA, no conversion of float16."""

FLOATS = (F16, BF16, F32, F64)
NARROW = (F16, BF16)
SPECIAL = np.array(
    [
        *(
            0.0,
            -0.0,
            math.inf,
            -math.inf,
            math.nan,
            1,
            -1,
            0.5,
            -0.5,
            2,
            3,
            1e-45,
            -1e-45,
            1e-38,
            65504,
            65520,
        ),
        *(1e6, -1e7, 88.7, 88.8, -87.4, -103.9, -104.1, 3e38, -3e38, 2.0**-24, 2.0**-126, 1.25, 3.95, 9.02),
    ]
)


def compute(
    roots: Sequence[Expr],
    arrays: Sequence[Any],
    lanes: int = 8,
    target: Target | None = None,
    machine: Target | None = None,
) -> list[Any]:
    """Return expressions of arrays, ``lanes`` elements at once; machine: the processor to compile for."""
    size = -(-arrays[0].size // lanes) * lanes
    padded = [np.resize(a, size) for a in arrays]
    fn = Function()
    places = [fn.argument(k) for k in range(len(arrays) + len(roots))]
    scalars = Scalars(fn, lanes, target)
    with fn.loop(0, fn.dim(size), lanes) as (i, _):
        moved = [
            fn.at(p, i, scalar(d))
            for p, d in zip(places, [*(a.dtype for a in arrays), *(r.dtype for r in roots)], strict=True)
        ]
        results = scalars.emit(roots, lambda k: fn.load(vector(scalar(arrays[k].dtype), lanes), moved[k]))
        for root, value, place in zip(roots, results, moved[len(arrays) :], strict=True):
            fn.store(scalars.to_memory(value, root.dtype), place)
    inputs = [whole(Buffer("x", a.dtype, size), (size,)) for a in padded]
    outputs = [whole(Buffer("y", r.dtype, size), (size,)) for r in roots]
    memory = {v.buffer: a.copy() for v, a in zip(inputs, padded, strict=True)}
    memory |= {v.buffer: np.zeros(size, v.dtype) for v in outputs}
    run(fn.kernel(), Step(Map(tuple(roots)), tuple(inputs), tuple(outputs)), memory, target=machine)
    return [memory[v.buffer][: arrays[0].size] for v in outputs]


def same(got: Any, want: Any) -> None:
    """Hold two arrays to the same numbers, NaN to NaN."""
    assert got.dtype == want.dtype
    wide = np.float64 if got.dtype in FLOATS else got.dtype
    np.testing.assert_array_equal(got.astype(wide), want.astype(wide), str(got.dtype))


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Overflow and NaN are what is tested."""
    with np.errstate(all="ignore"):
        yield


def wanted(root: Expr, arrays: Sequence[Any]) -> Any:
    """Return what NumPy says."""
    (result,) = expr.evaluate((root,), dict(enumerate(arrays)), (arrays[0].size,))
    return np.broadcast_to(result, arrays[0].shape)


def column(dtype: Dtype) -> str:
    """Return the column of the table of rules that a dtype uses."""
    return "bool" if dtype == BOOL else {"i": "signed", "u": "unsigned"}.get(dtype.kind, "float")


CASES = [
    (name, dtype)
    for name in OPERATIONS
    for dtype in DTYPES
    if getattr(RULES[name], column(dtype)) is not None
]
_OTHERS = ("tanh", "sigmoid", "erf", "pow", "sinh", "cosh")
ROUNDED = frozenset((*_OTHERS, "exp", "log", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan"))
"""Operations that need not agree to the last bit."""


def operands(name: str, dtype: Dtype, size: int = 3000) -> list[Any]:
    """Return arguments of an operation, special numbers in all pairs among them."""
    rng = np.random.default_rng(sum(map(ord, name)))
    arity = OPERATIONS[name].arity - (name == "select")
    arrays = [numbers(rng, size, dtype) for _ in range(arity)]
    if dtype in FLOATS:
        n = SPECIAL.size
        arrays[0][:n], arrays[0][n : 2 * n] = SPECIAL, SPECIAL
        if arity == 2:
            for k in range(n):
                arrays[0][k * n : k * n + n], arrays[1][k * n : k * n + n] = SPECIAL, SPECIAL[k]
    if name == "pow" and dtype.kind == "i":
        arrays[1] = np.abs(arrays[1] % 70).astype(dtype)  # NumPy has no powers below 0 of integers
    if name in ("shl", "shr"):
        arrays[1] = (arrays[1] & 0x7F).astype(dtype)
    if name == "rint":
        arrays = (
            [a % 100 for a in arrays] if dtype.kind in "iu" else arrays
        )  # NumPy rounds integers as floats
    return [numbers(rng, size, BOOL), *arrays] if name == "select" else arrays


def test_every_operation_has_a_rule() -> None:
    """The table of rules has a row for each operation, and each row some dtype."""
    assert set(RULES) == set(OPERATIONS)
    assert all(any(RULES[name]) for name in OPERATIONS)


@pytest.mark.parametrize(
    ("lanes", "machine"), [(1, host_target()), (8, host_target()), (4, PLAIN)], ids=["one", "host", "plain"]
)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_operations(name: str, dtype: Dtype, lanes: int, machine: Target) -> None:
    """Each operation on each dtype that has it, special numbers among the arguments."""
    arrays = operands(name, dtype)
    root = apply(name, *(load(k, a.dtype) for k, a in enumerate(arrays)))
    (got,) = compute([root], arrays, lanes, machine, machine)
    want = wanted(root, arrays)
    if name in ROUNDED and dtype in FLOATS:
        near(got, name, arrays, dtype)
    else:
        same(got, want)


def near(got: Any, name: str, arrays: Sequence[Any], dtype: Dtype, units: float = 3.0) -> None:
    """Hold a result of floats against float64: at most so many units in the last place apart."""
    exact = wanted(
        apply(name, *(load(k, F64) for k in range(len(arrays)))), [a.astype(np.float64) for a in arrays]
    )
    rounded = exact.astype(dtype)
    tiny = float(ml_dtypes.finfo(dtype).smallest_normal)
    last = np.abs(rounded.astype(np.float64)) * float(ml_dtypes.finfo(dtype).eps)
    limit = np.maximum(last, tiny * float(ml_dtypes.finfo(dtype).eps)) * units
    if name == "sigmoid":
        limit = np.maximum(limit, tiny)  # e^-x overflows where the result is subnormal
    finite = np.isfinite(rounded.astype(np.float64))
    off = np.abs(got.astype(np.float64) - exact)
    worst = np.argmax(np.where(finite, off / limit, 0))
    at = [a[worst] for a in arrays]
    assert off[worst] <= limit[worst] or not finite[worst], (name, at, got[worst], exact[worst])
    same(got[~finite], rounded[~finite])


SINGLE: dict[str, tuple[float, float, Callable[[Any], Any]]] = {
    "exp": (-105, 90, np.exp),
    "expm1": (-20, 89, np.expm1),
    "log": (0, 100, np.log),
    "log1p": (-1, 3, np.log1p),
    "tanh": (-10, 10, np.tanh),
    "sigmoid": (-87, 100, lambda x: 1 / (1 + np.exp(-x))),
    "erf": (-5, 5, np.vectorize(math.erf)),
    "sin": (-1e4, 1e4, np.sin),
    "cos": (-1e4, 1e4, np.cos),
}


@pytest.mark.parametrize("machine", [host_target(), PLAIN], ids=["host", "plain"])
@pytest.mark.parametrize("name", sorted(SINGLE))
def test_errors_of_single_precision(name: str, machine: Target) -> None:
    """At most 3 units in the last place, over the range that matters, all exponents, and small numbers."""
    low, high, exact = SINGLE[name]
    rng = np.random.default_rng(1)
    parts = [rng.uniform(low, high, 40_000), rng.normal(size=20_000), rng.normal(size=20_000) * 1e-3]
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([*(p.astype(np.float32) for p in parts), bits])
    want = exact(x.astype(np.float64))
    single = want.astype(np.float32)
    (got,) = compute([apply(name, load(0, F32))], [x], 8, machine, machine)
    finite = np.isfinite(single)
    unit = np.spacing(np.maximum(np.abs(single[finite]), np.float32(2.0**-126))).astype(np.float64)
    error = np.abs(got[finite].astype(np.float64) - want[finite]) / unit
    floor = np.abs(want[finite]) < 2.0**-126 if name == "sigmoid" else False
    assert np.max(np.where(floor, 0, error)) <= 3.0
    same(got[~finite], single[~finite])


@pytest.mark.parametrize("name", ["tanh", "erf", "sin", "expm1", "log1p", "asin", "atan", "sinh", "tan"])
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    """-0.0 stays -0.0, and numbers so small that the function is the identity stay as they are."""
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, -1e-30], np.float32)
    (got,) = compute([apply(name, load(0, F32))], [x])
    same(np.signbit(got), np.signbit(x))
    if name != "erf":
        same(got, x)


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_bounded_functions_stay_within_bounds(name: str) -> None:
    """No result lies beyond 1, where a later logarithm or arcsine would be NaN."""
    x = np.linspace(-100, 100, 200_001, dtype=np.float32)
    (got,) = compute([apply(name, load(0, F32))], [x])
    assert np.abs(got).max() == 1.0


def test_nan_payloads_do_not_turn_into_numbers() -> None:
    """A NaN of any bits gives NaN in each function of floats."""
    x = np.array([0x7F800001, 0x7FC00123, 0xFFC00001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32).view(np.float32)
    for name in sorted(ROUNDED - {"pow"}):
        (got,) = compute([apply(name, load(0, F32))], [x])
        assert np.isnan(got).all(), name
    for dtype in NARROW:
        (got,) = compute([cast(load(0, F32), dtype)], [x])
        assert np.isnan(got).all()


@pytest.mark.parametrize("machine", [host_target(), PLAIN], ids=["host", "plain"])
def test_powers(machine: Target) -> None:
    """As C's pow: all pairs of special numbers, and numbers of any size."""
    rng = np.random.default_rng(2)
    a = np.concatenate([np.repeat(SPECIAL, SPECIAL.size), np.exp(rng.uniform(-80, 80, 30_000))])
    b = np.concatenate([np.tile(SPECIAL, SPECIAL.size), rng.uniform(-3, 3, 30_000)])
    arrays = [a.astype(np.float32), b.astype(np.float32)]
    (got,) = compute([apply("pow", load(0, F32), load(1, F32))], arrays, 8, machine, machine)
    near(got, "pow", arrays, F32, 1.0)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, 2.5, math.nan])
@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
def test_powers_that_are_known(exponent: float, dtype: Dtype) -> None:
    """Products and roots stand for them, special numbers as pow gives them."""
    x = SPECIAL.astype(dtype)
    (got,) = compute([apply("pow", load(0, dtype), expr.const(exponent, dtype))], [x])
    near(got, "pow", [x, np.full_like(x, exponent)], dtype, 2.0)


def test_integer_powers_below_zero() -> None:
    """They are the truncated quotient: 0 but for 1 and -1; of 0 it is 0."""
    a = np.array([0, 1, -1, -1, 2, -2, 7], np.int32)
    b = np.array([-1, -5, -4, -3, -1, -2, -1], np.int32)
    (got,) = compute([apply("pow", load(0, a.dtype), load(1, a.dtype))], [a, b])
    assert got.tolist() == [0, 1, 1, -1, 0, 0, 0]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iu"], ids=str)
def test_division_never_traps(dtype: Dtype) -> None:
    """By 0 gives 0; the smallest number by -1 is itself; constants are divided by as well as others."""
    info = np.iinfo(dtype)
    a = np.array([5, info.min, info.max, info.min, 0], dtype)
    b = np.array([0, info.max if info.min == 0 else -1, 2, 0, 0], dtype)
    roots = [apply("div", load(0, dtype), load(1, dtype))]
    constants = [0, 1, 3, int(info.max)] + ([-1, -7] if info.min else [])
    roots += [apply("div", load(0, dtype), expr.const(c, dtype)) for c in constants]
    for got, root in zip(compute(roots, [a, b]), roots, strict=True):
        same(got, wanted(root, [a, b]))


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: Dtype, native: bool) -> None:
    """From each dtype to each, out of range and NaN among them, as NumPy converts on this processor."""
    rng = np.random.default_rng(3)
    x = numbers(rng, 4000, source)
    if source in FLOATS:
        wide = np.array(
            [127, 128, 255, 256, -128, -129, 32768, 65535, 65536, 2.0**31, 2.0**32, 2.0**63, 2.0**64]
        )
        edges = np.concatenate([wide, -wide, wide + 0.5, 0.5 - wide, SPECIAL, wide * 1.3]).astype(source)
        x[: edges.size] = edges
    roots = [cast(load(0, source), dtype) for dtype in DTYPES]
    target = host_target() if native else None
    results = compute(roots, [x], 8, target, host_target() if native else PLAIN)
    finite = np.isfinite(x.astype(np.float64)) if source == F16 else np.full(x.shape, True)
    for root, got in zip(roots, results, strict=True):
        known = finite | (root.dtype != np.uint32)  # of float16 NumPy gives 0 for NaN, of float32 2^31
        same(got[known], wanted(root, [x])[known])


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
def test_every_half(native: bool) -> None:
    """All 65,536 bit patterns of float16 and bfloat16 pass through registers unchanged, NaN as NaN."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    for dtype in NARROW:
        x = codes.view(dtype)
        wide, back = compute(
            [cast(load(0, dtype), F32), apply("neg", load(0, dtype))],
            [x],
            8,
            host_target() if native else None,
        )
        same(wide, x.astype(np.float32))
        same(back, -x)


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rounding_to_sixteen_bits(dtype: Dtype, native: bool) -> None:
    """Ties go to even, also among subnormal numbers and at the step to infinity."""
    rng = np.random.default_rng(4)
    exact = rng.integers(0, 0x7F80 if dtype == BF16 else 0x7C00, 20_000).astype(np.uint16).view(dtype)
    following = (exact.view(np.uint16) + 1).view(dtype)
    middle = (exact.astype(np.float64) + following.astype(np.float64)) / 2
    x = np.concatenate([middle, middle * (1 + 2.0**-23), -middle * (1 - 2.0**-23), middle + 2.0**-50])
    arrays = [x.astype(np.float32), x]
    roots = [cast(load(0, F32), dtype), cast(load(1, F64), dtype)]
    for root, got in zip(roots, compute(roots, arrays, 8, host_target() if native else None), strict=True):
        same(got, wanted(root, arrays))


def test_what_is_shared_is_computed_once() -> None:
    """Two expressions with a part in common have its code once, within a call."""
    fn = Function()
    place = fn.argument(0)
    part = apply("exp", load(0, F32))
    Scalars(fn, 8).emit(
        [apply("add", part, part), apply("neg", part)], lambda k: fn.load("<8 x float>", place)
    )
    assert sum("fptrunc" in line or "0x3FF7154760000000" in line for line in fn.lines) == 1


def test_known_parts_are_not_computed_again() -> None:
    """What the caller has computed before is taken, in every lane, and its leaves are not loaded."""
    fn = Function()
    known = {apply("exp", load(1, F32)): fn.load("float", fn.argument(1))}
    place = fn.argument(0)
    asked: list[int] = []

    def loaded(k: int) -> Any:
        asked.append(k)
        return fn.load("<8 x float>", place)

    root = apply("mul", load(0, F32), apply("exp", load(1, F32)))
    Scalars(fn, 8).emit([root], loaded, known=known)
    assert asked == [0]


@pytest.mark.parametrize(("name", "dtype"), [("exp", I64), ("sub", BOOL), ("and", F32)])
def test_meaningless_operations_are_refused(name: str, dtype: Dtype) -> None:
    """A dtype that an operation has no meaning on is the caller's fault."""
    fn = Function()
    place = fn.argument(0)
    arguments = [load(k, dtype) for k in range(OPERATIONS[name].arity)]
    with pytest.raises(ValueError, match=f"{name} of {dtype}"):
        Scalars(fn, 4).emit([apply(name, *arguments)], lambda k: fn.load(vector(scalar(dtype), 4), place))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iu"], ids=str)
@pytest.mark.parametrize("source", [F32, F64, F16], ids=str)
def test_clamped_casts(source: Dtype, dtype: Dtype) -> None:
    """Where constants keep a float in range, a shorter way gives the same, NaN and limits among them."""
    info = np.iinfo(dtype)
    low, high = (expr.const(float(limit), source) for limit in (max(info.min, -1000), min(info.max, 1000)))
    x = numbers(np.random.default_rng(5), 3000, source)
    if dtype == np.uint32:
        x = x[np.isfinite(x)]
    rounded = apply("rint", load(0, source))
    roots = [
        cast(apply("min", apply("max", rounded, low), high), dtype),
        cast(apply("max", low, apply("min", high, rounded)), dtype),
        cast(apply("rint", apply("min", apply("max", load(0, source), low), high)), dtype),
    ]
    for root, got in zip(roots, compute(roots, [x], 8, host_target()), strict=True):
        same(got, wanted(root, [x]))


def test_bounds_follow_constants() -> None:
    """What lies between constants is known to; what may be NaN alone or unbounded is not."""
    x, low, high = load(0, F32), expr.const(-3.5, F32), expr.const(7, F32)
    clamped = apply("min", apply("max", x, low), high)
    assert bounds(clamped) == (-3.5, 7)
    assert bounds(apply("rint", clamped)) == (-4, 7)
    assert bounds(apply("max", x, low)) == (-3.5, math.inf)
    assert bounds(apply("floor", expr.const(math.inf, F32))) == (math.inf, math.inf)
    chosen = apply("select", apply("isnan", x), expr.const(9, F32), clamped)
    assert bounds(chosen) == (-3.5, 9)
    assert bounds(apply("select", apply("isnan", x), x, clamped)) == (-math.inf, math.inf)
    assert within(clamped, np.dtype(np.int8))
    assert not within(clamped, np.dtype(np.uint8))
    assert not within(expr.const(math.nan, F32), np.dtype(np.int8))


@pytest.mark.parametrize(
    "divisor", [1.0, 2.0, -8.0, 0.25, 3.0, 0.0, -0.0, math.inf, 2.0**126, 2.0**-126, 2.0**127, 1e-45]
)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_division_by_constants(divisor: float, dtype: Dtype) -> None:
    """A power of 2 is multiplied by its inverse: the same bits, subnormal results among them."""
    x = np.concatenate([SPECIAL.astype(dtype), numbers(np.random.default_rng(6), 3000, dtype)])
    root = apply("div", load(0, dtype), expr.const(divisor, dtype))
    (got,) = compute([root], [x], 8, host_target())
    same(got, wanted(root, [x]))
    same(np.signbit(got), np.signbit(wanted(root, [x])) if divisor else np.signbit(got))


LIBRARY = frozenset(
    [
        *(
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "exp",
            "expm1",
            "log",
            "log1p",
        ),
        *("erf", "pow", "fmod", "floor", "ceil", "trunc", "rint", "floorf", "ceilf", "truncf", "rintf"),
    ]
)
"""Functions of C's library that every process has."""


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "sapphirerapids"])
def test_no_processor_needs_other_libraries(cpu: str) -> None:
    """LLVM calls helpers for what a processor lacks, such as float16; none of these would be found."""
    llvm = compiler._initialized()
    features = "" if cpu == "x86-64" else "+f16c"
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=1)
    roots = [
        apply(name, *([load(9, BOOL)] if name == "select" else []), *(load(k, dtype) for k in range(arity)))
        for name, dtype in CASES
        if dtype in FLOATS
        for arity in [OPERATIONS[name].arity - (name == "select")]
    ]
    roots += [cast(load(0, source), dtype) for source in DTYPES for dtype in DTYPES if source != dtype]
    for lanes in (1, 8):
        texts = [stored(root, lanes, Target(cpu, features, 32, 16)) for root in roots]
        names = called(machine.emit_assembly(llvm.parse_assembly(joined(texts))))
        assert "tan" in names
        assert names <= LIBRARY, names - LIBRARY


def stored(root: Expr, lanes: int, target: Target) -> str:
    """Return a kernel that computes an expression of what its arguments point to, once."""
    fn = Function()

    def loaded(k: int) -> Any:
        (dtype,) = (n.dtype for n in expr.postorder(root) if n.op == "input" and n.attr == k)
        return fn.load(vector(scalar(dtype), lanes), fn.argument(k))

    scalars = Scalars(fn, lanes, target)
    fn.store(scalars.to_memory(scalars.emit([root], loaded)[0], root.dtype), fn.argument(10))
    return fn.kernel().text


def joined(texts: Sequence[str]) -> str:
    """Return one module of many kernels."""
    lines = [line for n, text in enumerate(texts) for line in text.replace("@KERNEL", f"@k{n}").splitlines()]
    declared = [line for line in lines if line.startswith("declare")]
    rest = [line for line in lines if not line.startswith("declare")]
    return "\n".join([*dict.fromkeys(declared), *rest]) + compiler._TRAILER


def called(assembly: str) -> set[str]:
    """Return the names of functions that code calls."""
    return set(re.findall(r"(?:callq?\s+|jmp\s+|movabsq\s+\$)([A-Za-z_]\w*)", assembly))


def test_missing_helpers_would_be_seen() -> None:
    """Where the processor has no float16 and the text asks for it, the calls show."""
    llvm = compiler._initialized()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu="x86-64", features="", opt=1)
    text = stored(cast(load(0, F32), F16), 8, Target("x86-64", "+f16c", 16, 16))
    assert "__truncsfhf2" in called(machine.emit_assembly(llvm.parse_assembly(joined([text]))))
