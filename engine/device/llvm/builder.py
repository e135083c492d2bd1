"""LLVM IR written as text: typed values, addresses, vectors, loops with carried values.

Text, because it is what LLVM parses fastest, what the object cache is keyed by, and what can be read and
compared. Emitters write vectors of a chosen number of lanes themselves, so that no optimisation pass has to
run: LLVM's code generator alone gives the same speed in a fraction of the time. Nothing here is particular to
one processor; a vector wider than its registers is split by LLVM.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from graphdoc.engine.expr import Dtype


class Value(NamedTuple):
    """A name (or literal) of LLVM IR and its type, such as ``i64``, ``float``, ``<8 x float>``, ``ptr``."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Number: TypeAlias = int | Value
"""An i64: a Python int folds, a Value is computed when the kernel runs."""

_SCALARS = {
    "bool": "i8",  # as stored; a condition in a register is i1
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "double",
}
MANGLED = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
"""How the name of an intrinsic spells a type."""


@cache
def scalar(dtype: Dtype) -> str:
    """Return the type in which memory holds one element."""
    return _SCALARS.get(dtype.name, f"i{8 * dtype.itemsize}")


def vector(element: str, lanes: int) -> str:
    """Return the type of ``lanes`` elements; of one, the scalar itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def parts(kind: str) -> tuple[str, int]:
    """Return a type's element and number of lanes."""
    if not kind.startswith("<"):
        return kind, 1
    lanes, element = kind[1:-1].split(" x ")
    return element, int(lanes)


def mangled(kind: str) -> str:
    """Return how an intrinsic's name spells a type: ``v8f32``, ``f32``, ``i64``, ``p0``."""
    element, lanes = parts(kind)
    name = "p0" if element == "ptr" else MANGLED.get(element, element)
    return name if lanes == 1 else f"v{lanes}{name}"


@dataclass(frozen=True, slots=True)
class Target:
    """The processor to generate for.

    cpu, features: LLVM's names. vector: bytes of a register (16, 32, 64). registers: how many there are.
    """

    cpu: str
    features: str
    vector: int
    registers: int

    def lanes(self, dtype: Dtype) -> int:
        """Return how many elements a register holds."""
        return self.vector // dtype.itemsize


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function, ``void @KERNEL(ptr %args, ptr %dims, i64 %tid, i64 %nt)``, and the numbers it runs with.

    text: its IR with the declarations it needs. Steps that differ only in ``dims`` share the code, so sizes
        and strides belong there unless speed needs them in the code.
    dims: what ``%dims`` points to, i64.
    scratch: bytes of memory of its own that each thread needs: ``%args`` then has one more pointer.
    status: whether the kernel checks numbers that it reads: ``%args`` then ends with one more pointer,
        to an i64 that the kernel sets to 1 where one lies out of range. It goes on with some number in range.
    threads: into how many shares it may be cut: ``%tid`` runs from 0 to ``%nt`` - 1 <= threads - 1. Each call
        does one share of the outputs, never of one sum: the bits do not depend on the number. Shares run in
        any order, at once or one after another, several on one thread: none may wait for another.

    ``%args`` points to the addresses of the first elements of the input views, then the output views.
    """

    text: str
    dims: tuple[int, ...]
    scratch: int = 0
    threads: int = 1
    status: bool = False


@dataclass(slots=True)
class Function:
    """A kernel under construction: methods append a line and return what it computes."""

    lines: list[str] = field(default_factory=list)
    declared: dict[str, None] = field(default_factory=dict)
    dims: list[int] = field(default_factory=list)
    count: int = 0
    block: str = "entry"

    tid = Value("%tid", "i64")
    nt = Value("%nt", "i64")

    def kernel(self, scratch: int = 0, threads: int = 1) -> Kernel:
        """Return the finished kernel."""
        head = "define void @KERNEL(ptr noalias %args, ptr noalias %dims, i64 %tid, i64 %nt) #0 {\nentry:"
        text = "\n".join([*sorted(self.declared), head, *self.lines, "  ret void", "}"])
        return Kernel(text, tuple(self.dims), scratch, threads)

    def put(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {line}")

    def op(self, text: str, kind: str) -> Value:
        """Append an instruction and return its result of the given type."""
        self.count += 1
        name = f"%v{self.count}"
        self.put(f"{name} = {text}")
        return Value(name, kind)

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")
        self.block = name

    # ---- what the kernel is called with --------------------------------------------------------------

    def argument(self, position: int) -> Value:
        """Return the address of a view: inputs first, then outputs, then the scratch memory."""
        return self.load("ptr", self.at(Value("%args", "ptr"), position, "ptr"))

    def dim(self, value: int) -> Value:
        """Note a number for ``dims`` and return it as the kernel reads it."""
        self.dims.append(value)
        return self.load("i64", self.at(Value("%dims", "ptr"), len(self.dims) - 1, "i64"))

    def share(self, units: Number) -> tuple[Number, Number]:
        """Return this thread's range of ``units``: first, and one past the last."""
        first = self.idiv(self.mul(self.tid, units), self.nt)
        return first, self.idiv(self.mul(self.add(self.tid, 1), units), self.nt)

    # ---- whole numbers -------------------------------------------------------------------------------

    def add(self, a: Number, b: Number) -> Number:
        """Return a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else b if a == 0 else self._i64("add nsw", a, b)

    def sub(self, a: Number, b: Number) -> Number:
        """Return a - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self._i64("sub nsw", a, b)

    def mul(self, a: Number, b: Number) -> Number:
        """Return a · b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        return a if b == 1 else b if a == 1 else self._i64("mul nsw", a, b)

    def idiv(self, a: Number, b: Number) -> Number:
        """Return floor(a / b) of numbers >= 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self._i64("udiv", a, b)

    def mod(self, a: Number, b: Number) -> Number:
        """Return a - floor(a / b) · b of numbers >= 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self._i64("urem", a, b)

    def least(self, a: Number, b: Number) -> Number:
        """Return the smaller of two numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.call("llvm.smin.i64", "i64", number(a), number(b))

    def _i64(self, name: str, a: Number, b: Number) -> Value:
        return self.op(f"{name} i64 {number(a).name}, {number(b).name}", "i64")

    # ---- memory --------------------------------------------------------------------------------------

    def at(self, pointer: Value, position: Number, element: str) -> Value:
        """Return the address ``position`` elements on."""
        if position == 0:
            return pointer
        return self.op(f"getelementptr {element}, {pointer}, i64 {number(position).name}", "ptr")

    def load(self, kind: str, pointer: Value, align: int | None = None) -> Value:
        """Read a scalar or vector; aligned as one element unless told better."""
        return self.op(f"load {kind}, {pointer}, align {align or _align(kind)}", kind)

    def store(self, value: Value, pointer: Value, align: int | None = None) -> None:
        """Write a scalar or vector; aligned as one element unless told better."""
        self.put(f"store {value}, {pointer}, align {align or _align(value.type)}")

    def load_first(self, kind: str, pointer: Value, mask: Value) -> Value:
        """Read the lanes that ``mask`` (``<n x i1>``) selects; the others are 0, their memory not touched."""
        raw = _raw(kind)
        name = f"llvm.masked.load.{mangled(raw)}.p0"
        passthru = Value("zeroinitializer", raw)
        read = self.call(name, raw, pointer, Value(str(_align(kind)), "i32"), mask, passthru)
        return read if raw == kind else self.op(f"bitcast {read} to {kind}", kind)

    def store_first(self, value: Value, pointer: Value, mask: Value) -> None:
        """Write the lanes that ``mask`` selects."""
        raw = _raw(value.type)
        value = value if raw == value.type else self.op(f"bitcast {value} to {raw}", raw)
        name = f"llvm.masked.store.{mangled(raw)}.p0"
        self.call(name, "void", value, pointer, Value(str(_align(value.type)), "i32"), mask)

    def first(self, count: Number, lanes: int) -> Value:
        """Return the mask of the first ``count`` of ``lanes`` lanes."""
        ramp = ", ".join(f"i64 {i}" for i in range(lanes))
        wide = self.splat(number(count), lanes)
        return self.op(f"icmp slt <{lanes} x i64> <{ramp}>, {wide.name}", f"<{lanes} x i1>")

    def first_few(self, count: Number, lanes: int) -> Value:
        """Return the mask of the first ``count`` of ``lanes`` lanes; both are at most 127."""
        ramp = ", ".join(f"i8 {i}" for i in range(lanes))
        narrow = self.op(f"trunc {number(count)} to i8", "i8")
        wide = self.splat(narrow, lanes)
        return self.op(f"icmp slt <{lanes} x i8> <{ramp}>, {wide.name}", f"<{lanes} x i1>")

    # ---- vectors -------------------------------------------------------------------------------------

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a scalar in every lane; lanes 1: the scalar itself."""
        if lanes == 1:
            return value
        kind = vector(value.type, lanes)
        one = self.op(f"insertelement {kind} poison, {value}, i32 0", kind)
        return self.op(f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer", kind)

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """Return an arithmetic instruction (fadd, mul, and …) of two values of one type."""
        return self.op(f"{name} {a}, {b.name}", a.type)

    def call(self, name: str, kind: str, *args: Value, flags: str = "") -> Value:
        """Call an intrinsic or a function; notes its declaration. kind "void" returns nothing of use."""
        self.declared[f"declare {kind} @{name}({', '.join(a.type for a in args)})"] = None
        text = f"call {flags}{' ' if flags else ''}{kind} @{name}({', '.join(map(str, args))})"
        if kind == "void":
            self.put(text)
            return Value("", "void")
        return self.op(text, kind)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a · b + c, in one rounding where the processor can (else two, never a library call)."""
        return self.call(f"llvm.fmuladd.{mangled(a.type)}", a.type, a, b, c)

    # ---- control -------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Number, stop: Number, step: Number = 1, carry: Sequence[Value] = ()
    ) -> Iterator[tuple[Value, list[Value]]]:
        """Repeat the body while the index, from start by step, is below stop; maybe never.

        Yields the index and a list of the carried values: the body puts in what the next round gets, and
        after the loop the list holds the last ones.
        """
        self.count += 1
        n, before = self.count, self.block
        self.put(f"br label %head{n}")
        self.label(f"head{n}")
        slot = len(self.lines)
        index = Value(f"%i{n}", "i64")
        phis = [Value(f"%c{n}.{k}", value.type) for k, value in enumerate(carry)]
        self.lines.append("")
        again = self.op(f"icmp slt {index}, {number(stop).name}", "i1")
        self.put(f"br {again}, label %body{n}, label %done{n}")
        self.label(f"body{n}")
        carried = list(phis)
        yield index, carried
        following = self.op(f"add nsw {index}, {number(step).name}", "i64")
        end = self.block
        self.put(f"br label %head{n}")
        rows = [f"  {index.name} = phi i64 [{number(start).name}, %{before}], [{following.name}, %{end}]"]
        rows += [
            f"  {phi.name} = phi {phi.type} [{first.name}, %{before}], [{last.name}, %{end}]"
            for phi, first, last in zip(phis, carry, carried, strict=True)
        ]
        self.lines[slot] = "\n".join(rows)
        self.label(f"done{n}")
        carried[:] = phis

    @contextmanager
    def again(self, carry: Sequence[Value]) -> Iterator[list[Value]]:
        """Do the body once, and again as long as the last of the carried values, an i64, is not 0 after it.

        Yields a list of the carried values, as :meth:`loop` does.
        """
        self.count += 1
        n, before = self.count, self.block
        self.put(f"br label %again{n}")
        self.label(f"again{n}")
        slot = len(self.lines)
        phis = [Value(f"%c{n}.{k}", value.type) for k, value in enumerate(carry)]
        self.lines.append("")
        carried = list(phis)
        yield carried
        more = self.op(f"icmp ne {carried[-1]}, 0", "i1")
        rows = [
            f"  {phi.name} = phi {phi.type} [{first.name}, %{before}], [{last.name}, %{self.block}]"
            for phi, first, last in zip(phis, carry, carried, strict=True)
        ]
        self.put(f"br {more}, label %again{n}, label %done{n}")
        self.lines[slot] = "\n".join(rows)
        self.label(f"done{n}")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body only where an i1 is true; nothing it computes may be used after it."""
        self.count += 1
        n = self.count
        self.put(f"br {condition}, label %then{n}, label %past{n}")
        self.label(f"then{n}")
        yield
        self.put(f"br label %past{n}")
        self.label(f"past{n}")


def number(value: Number) -> Value:
    """Return an i64 as a value."""
    return value if isinstance(value, Value) else Value(str(value), "i64")


def floating(value: float, kind: str) -> Value:
    """Return a constant of a float type in every lane, as the bits of its rounded value."""
    element, lanes = parts(kind)
    text = _literal(value, element)
    return Value(text if lanes == 1 else f"splat ({element} {text})", kind)


def integer(value: int, kind: str) -> Value:
    """Return a constant of an integer type in every lane."""
    element, lanes = parts(kind)
    return Value(str(value) if lanes == 1 else f"splat ({element} {value})", kind)


def _literal(value: float, element: str) -> str:
    with np.errstate(all="ignore"):
        if element == "half":
            return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
        if element == "bfloat":
            import ml_dtypes

            return f"0xR{int(np.asarray(value).astype(ml_dtypes.bfloat16).view(np.uint16)):04X}"
        rounded = np.float64(np.float32(value)) if element == "float" else np.float64(value)
    return f"0x{int(rounded.view(np.uint64)):016X}"


def _raw(kind: str) -> str:
    """Return the type by which masked lanes move: of 16-bit floats LLVM would make calls to a library."""
    element, lanes = parts(kind)
    return vector("i16", lanes) if element in ("half", "bfloat") else kind


def _align(kind: str) -> int:
    element, _ = parts(kind)
    sizes = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8, "i1": 1}
    return sizes.get(element) or max(int(element[1:]) // 8, 1)
