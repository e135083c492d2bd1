"""The walk of :mod:`graphdoc.compare.metrics` as machine code: one fused pass over two arrays.

NumPy passes over a block some fifteen times and writes most results to memory; here one loop reads each
pair of elements once and keeps every figure in a register. llvmlite turns the text built below into machine
code at first use.

A *figure* is a sum, a maximum or a minimum over all elements. It is kept in one vector of ``lanes`` float64
numbers: lane k joins the elements k, k + lanes, k + 2·lanes … The machine code,
``kernel(a, b, first, size, scale, relative, absolute, totals)``, does this::

    for each tile of TILE elements from ``first`` on (the last may be shorter):
        for each vector of the tile:
            join it to each of the tile's figures
        if a watched figure is NaN or infinite in any lane: return the start of this tile
        join the tile's figures to ``totals``
    return ``size``

So NaN and infinities cost no test in the inner loop: they show in the sums of squares. The tile that holds
one is dropped, and the caller walks it in NumPy, as it does the last ``size % lanes`` elements. ``totals``
holds one row of lanes per figure, then a row with the start of the tile where the lane's ``max_abs`` lies.
Joining the lanes is left to Python: it is done once an array, and the code to compile stays short.

Loading llvmlite costs some 40 ms and a kernel 10 to 20, so a kernel is made only once NumPy has walked ENOUGH
elements of its kind: what is short never pays, and what is long loses little.
"""

import ctypes
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Figures = dict[str, float]

TILE = 1 << 12
"""Elements between two looks at the sums: 32 KiB of float32 pairs, and what a NaN sends back to NumPy."""

ENOUGH = 1 << 21
"""Elements of one kind to walk in NumPy before a kernel is made for them: 25 ms of ``measure``."""


@dataclass(frozen=True, slots=True)
class Join:
    """How two parts of a figure become one: what to start from, one step in LLVM IR, and all lanes."""

    start: float
    step: str
    lanes: Callable[[list[float]], float]


_CHOICE = "%{out}.is = fcmp {test} V %{new}, %{old}\n  %{out} = select M %{out}.is, V %{new}, V %{old}"
SUM = Join(0.0, "%{out} = fadd contract V %{new}, %{old}", sum)
MAX = Join(-math.inf, _CHOICE.replace("{test}", "ogt"), max)
MIN = Join(math.inf, _CHOICE.replace("{test}", "olt"), min)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a kernel computes.

    body: LLVM IR from the elements ``%x`` of A and ``%y`` of B to the parts of the figures, in vectors.
        ``V`` stands for a vector of float64, ``M`` for the type of its comparisons, ``N`` for the ending
        of its intrinsics.
    figures: name → (how its parts join, the name of a part in ``body``).
    watched: two figures, one of which is NaN or infinite if an element is.
    vectors: machine vectors a round; two hide the latency of a short body, one fills the registers of a long.
    """

    body: str
    figures: dict[str, tuple[Join, str]]
    watched: tuple[str, str]
    vectors: int


DISTANCE = Recipe(
    body="""
  %d = fsub V %y, %x
  %dd = fmul contract V %d, %d
  %aa = fmul contract V %x, %x
""",
    figures={"dd": (SUM, "dd"), "aa": (SUM, "aa")},
    watched=("dd", "aa"),
    vectors=2,
)
"""Σ(B − A)² and ΣA²."""

MEASURE = Recipe(
    body="""
  %d = fsub V %y, %x
  %dd = fmul contract V %d, %d
  %aa = fmul contract V %x, %x
  %bb = fmul contract V %y, %y
  %ab = fmul contract V %x, %y

  %apart = call V @llvm.fabs.N(V %d)
  %magnitude = call V @llvm.fabs.N(V %x)
  %large = fcmp ogt V %magnitude, %scale
  %against = select M %large, V %magnitude, V %scale
  %relation = fdiv V %apart, %against

  %share = fmul V %relative, %magnitude
  %allowed = fadd V %absolute, %share
  %beyond = fcmp ogt V %apart, %allowed
  %outside = select M %beyond, V %one, V zeroinitializer

  %x.zero = fcmp oeq V %x, zeroinitializer
  %y.zero = fcmp oeq V %y, zeroinitializer
  %zero_a = select M %x.zero, V %one, V zeroinitializer
  %zero_b = select M %y.zero, V %one, V zeroinitializer
""",
    figures={
        "dd": (SUM, "dd"),
        "aa": (SUM, "aa"),
        "bb": (SUM, "bb"),
        "ab": (SUM, "ab"),
        "sum_abs": (SUM, "apart"),
        "max_abs": (MAX, "apart"),
        "max_rel": (MAX, "relation"),
        "outside": (SUM, "outside"),
        "low_a": (MIN, "x"),
        "low_b": (MIN, "y"),
        "high_a": (MAX, "x"),
        "high_b": (MAX, "y"),
        "zero_a": (SUM, "zero_a"),
        "zero_b": (SUM, "zero_b"),
    },
    watched=("aa", "bb"),
    vectors=1,
)
"""All that :func:`graphdoc.compare.metrics.measure` needs. ``outside`` and the zeros are counted in float64,
exact to 2⁵³; the product and the sum behind ``outside`` are rounded one by one, as NumPy does."""

RECIPES = {"measure": MEASURE, "distance": DISTANCE}

_TYPES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.float16): "half"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What MEASURE holds a difference against: the least magnitude, and the tolerance."""

    scale: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A recipe for two dtypes, as machine code. Threads may share it; a call holds no lock and no GIL.

    start: what ``totals`` is before the first element.
    """

    recipe: Recipe
    lanes: int
    call: Callable[..., int]
    start: Array

    def walk(
        self, a: Array, b: Array, limits: Limits = Limits()
    ) -> Iterator[tuple[int, int, Figures | None]]:
        """Yield (start, stop, figures) until two flat contiguous arrays of one size are walked, in order.

        figures: None for a stretch, at most a TILE long, that is left to NumPy. With ``max_abs`` comes
            ``tile``, the start of the first TILE elements that reach it.
        """
        whole = a.size - a.size % self.lanes
        start = 0
        while start < whole:
            totals = self.start.copy()
            stop = self.call(
                *(a.ctypes.data, b.ctypes.data, start, whole),
                *(limits.scale, limits.relative, limits.absolute, totals.ctypes.data),
            )
            if stop > start:
                yield start, stop, self._figures(totals)
            start = min(stop + TILE, whole)
            if stop < start:
                yield stop, start, None
        if whole < a.size:
            yield whole, a.size, None

    def _figures(self, totals: Array) -> Figures:
        """Join the lanes."""
        *rows, tiles = totals.tolist()
        kinds = self.recipe.figures.items()
        figures: Figures = {name: join.lanes(row) for (name, (join, _)), row in zip(kinds, rows, strict=True)}
        if "max_abs" in figures:
            largest = totals[list(figures).index("max_abs")].tolist()
            reached = zip(tiles, largest, strict=True)
            figures["tile"] = min(tile for tile, value in reached if value == figures["max_abs"])
        return figures


class Workshop:
    """The kernels of a process, each made once enough elements of its kind came by."""

    def __init__(self, enough: int = ENOUGH) -> None:
        self._enough = enough
        self._seen: dict[tuple[str, Any, Any], int] = {}
        self._made: dict[tuple[str, Any, Any], Kernel | None] = {}
        self._lock = threading.Lock()

    def kernel(self, name: str, a: Array, b: Array) -> Kernel | None:
        """Return the kernel to walk two flat arrays with; None: walk them in NumPy.

        name: of :data:`RECIPES`.
        """
        key = (name, a.dtype, b.dtype)
        if key in self._made:
            return self._made[key]
        if a.dtype not in _TYPES or b.dtype not in _TYPES:
            return None
        with self._lock:
            self._seen[key] = self._seen.get(key, 0) + a.size
            if self._seen[key] >= self._enough and key not in self._made:
                self._made[key] = make(*key)
            return self._made.get(key)


WORKSHOP = Workshop()


def make(name: str, a: "np.dtype[Any]", b: "np.dtype[Any]") -> Kernel | None:
    """Compile a recipe for two dtypes; None where llvmlite is missing or cannot serve this machine."""
    recipe, types = RECIPES[name], (_TYPES[a], _TYPES[b])
    try:
        machine = _machine()
        if "half" in types and not machine.has_half:
            return None
        lanes = machine.lanes * recipe.vectors
        address = machine.compile(source(recipe, *types, lanes))
    except (ImportError, OSError, RuntimeError):
        return None
    starts = [join.start for join, _ in recipe.figures.values()]
    return Kernel(recipe, lanes, _PROTOTYPE(address), np.repeat([[*starts, 0.0]], lanes, axis=0).T.copy())


_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
    *(ctypes.c_double, ctypes.c_double, ctypes.c_double, ctypes.c_void_p),
)


class _Machine:
    """This computer's CPU, and the code made for it so far.

    lanes: float64 in a vector register. has_half: whether it converts float16 itself; a call per element
    to a routine that may be missing would take its place.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm = llvm
        self._cpu, self._features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
        self._alive: list[Any] = []
        self.lanes = 8 if self._features.get("avx512f") else 4
        self.has_half = bool(self._features.get("f16c"))

    def compile(self, text: str) -> int:
        """Return the address of the function in a module; the code stays as long as the process.

        No IR passes, and a low level of the code generator: the text is in vectors already.
        """
        llvm = self._llvm
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=self._cpu, features=self._features.flatten(), opt=1, jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)  # owns both from here on
        engine.finalize_object()
        self._alive.append(engine)
        return int(engine.get_function_address("kernel"))


_machine = cache(_Machine)


def source(recipe: Recipe, a: str, b: str, lanes: int) -> str:
    """Return a kernel in LLVM IR; ``a`` and ``b`` are the LLVM types of the elements."""
    text = _FRAME.format(
        a=a,
        b=b,
        splats="\n".join(_splat(name) for name in ("scale", "relative", "absolute", "one")),
        starts="\n".join(_phi(name, join.start, lanes) for name, (join, _) in recipe.figures.items()),
        load_a=_load("x", "a", a, lanes),
        load_b=_load("y", "b", b, lanes),
        body=recipe.body,
        steps="\n".join(
            "  " + join.step.format(out=f"{name}.next", new=part, old=f"{name}.tile")
            for name, (join, part) in recipe.figures.items()
        ),
        one=recipe.watched[0],
        other=recipe.watched[1],
        infinities=_constant(math.inf, lanes),
        keep="\n".join(_keep(recipe, lanes)),
        tile=TILE,
        lanes=lanes,
    )
    return _in_vectors(text, lanes)


def _in_vectors(text: str, lanes: int) -> str:
    """Put the types of vectors in place of V, M, I and the ending of intrinsics in place of N."""
    words = {"V": f"<{lanes} x double>", "M": f"<{lanes} x i1>", "I": f"<{lanes} x i32>", "N": f"v{lanes}f64"}
    return re.sub(r"\b[VMIN]\b", lambda match: words[match[0]], text)


_FRAME = """
define i64 @kernel(ptr %a, ptr %b, i64 %first, i64 %size,
                   double %the.scale, double %the.relative, double %the.absolute, ptr %totals) {{
entry:
  %the.one = fadd double 1.0, 0.0
{splats}
  br label %tiles

tiles:
  %start = phi i64 [ %first, %entry ], [ %stop, %keep ]
  %ahead = icmp slt i64 %start, %size
  br i1 %ahead, label %tile, label %done

tile:
  %full = add i64 %start, {tile}
  %fits = icmp slt i64 %full, %size
  %stop = select i1 %fits, i64 %full, i64 %size
  br label %vector

vector:
  %i = phi i64 [ %start, %tile ], [ %i.next, %vector ]
{starts}
{load_a}
{load_b}
{body}
{steps}
  %i.next = add i64 %i, {lanes}
  %again = icmp slt i64 %i.next, %stop
  br i1 %again, label %vector, label %look

look:
  %watched = fadd V %{one}.next, %{other}.next
  %finite = fcmp olt V %watched, {infinities}
  %finite.bits = bitcast M %finite to i{lanes}
  %all = icmp eq i{lanes} %finite.bits, -1
  br i1 %all, label %keep, label %done

keep:
{keep}
  br label %tiles

done:
  ret i64 %start
}}
declare V @llvm.fabs.N(V)
"""


def _splat(name: str) -> str:
    """Spread a number ``%the.name`` over the lanes of ``%name``."""
    return (
        f"  %{name}.0 = insertelement V poison, double %the.{name}, i32 0\n"
        f"  %{name} = shufflevector V %{name}.0, V poison, I zeroinitializer"
    )


def _phi(name: str, start: float, lanes: int) -> str:
    """The figure so far in this tile."""
    return f"  %{name}.tile = phi V [ {_constant(start, lanes)}, %tile ], [ %{name}.next, %vector ]"


def _constant(value: float, lanes: int) -> str:
    """Return a vector of one number, written as LLVM reads the bits of a double."""
    bits = f"double 0x{np.float64(value).view(np.uint64):016X}"
    return f"<{', '.join([bits] * lanes)}>"


def _load(name: str, array: str, element: str, lanes: int) -> str:
    """Load a vector and widen it; an array may lie at any address, so no alignment is promised."""
    widen = "bitcast" if element == "double" else "fpext"
    return (
        f"  %{name}.at = getelementptr {element}, ptr %{array}, i64 %i\n"
        f"  %{name}.raw = load <{lanes} x {element}>, ptr %{name}.at, align 1\n"
        f"  %{name} = {widen} <{lanes} x {element}> %{name}.raw to V"
    )


def _keep(recipe: Recipe, lanes: int) -> Iterator[str]:
    """Join the tile's figures to the rows of ``totals``."""
    for row, (name, (join, _)) in enumerate(recipe.figures.items()):
        yield f"  %{name}.at = getelementptr double, ptr %totals, i64 {row * lanes}"
        yield f"  %{name}.old = load V, ptr %{name}.at, align 8"
        yield "  " + join.step.format(out=f"{name}.sum", new=f"{name}.next", old=f"{name}.old")
        yield f"  store V %{name}.sum, ptr %{name}.at, align 8"
    if "max_abs" in recipe.figures:
        yield "  %the.place = sitofp i64 %start to double"
        yield _splat("place")
        yield f"  %place.at = getelementptr double, ptr %totals, i64 {len(recipe.figures) * lanes}"
        yield "  %place.old = load V, ptr %place.at, align 8"
        yield "  %place.new = select M %max_abs.sum.is, V %place, V %place.old"
        yield "  store V %place.new, ptr %place.at, align 8"
