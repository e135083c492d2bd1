"""The innermost of a contraction: some rows times a panel of columns over all of k, the sums in registers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from graphdoc.engine.device.llvm.builder import (
    Function,
    Number,
    Target,
    Value,
    floating,
    parts,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.contraction_axes import Walk
from graphdoc.engine.device.llvm.contraction_tile import Tile
from graphdoc.engine.device.llvm.scalar import Scalars
from graphdoc.engine.expr import Dtype
from graphdoc.engine.program import Axes


@dataclass(frozen=True, slots=True)
class Precision:
    """What the operands hold and what sums are kept in: float32 or float64."""

    f: Function
    target: Target
    sums: Dtype

    @property
    def kind(self) -> str:
        """Return the type of one sum."""
        return scalar(self.sums)

    def widened(self, value: Value, dtype: Dtype) -> Value:
        """Return a float as loaded, or a vector of them, in the dtype of the sums."""
        lanes = parts(value.type)[1]
        held = Scalars(self.f, lanes, self.target).from_memory(value, dtype)
        wide = vector(self.kind, lanes)
        return held if held.type == wide else self.f.op(f"fpext {held} to {wide}", wide)


def fetched(target: Target) -> int:
    """Return the bytes fetched ahead for each term, about what memory gives while they are multiplied.

    Tiles of wide vectors have more rows: a term takes them twice as long.
    """
    return 32 if target.vector == 64 else 16


CHAIN = 256
"""Terms that one sum adds up: longer sums consist of such sums. A chain's error grows with its length, and
where the terms are alike all of its roundings go the same way."""

_UNROLLED = 8
"""Rows of a tile up to which two terms make a round: with more, LLVM mixes them and runs out of registers."""


@dataclass(frozen=True, slots=True)
class _Here:
    """Addresses: of each row of a, of b's line, of what is fetched ahead."""

    rows: Sequence[Value]
    b: Value
    ahead: Value | None


class Sums:
    """Emits the sums of a tile.

    dtypes: of a and b where they are read. axes: of k, with the strides of a and b. gapped: whether b's lines
    lie a stride apart that only dims tells; else they follow one another.
    """

    def __init__(
        self, precision: Precision, tile: Tile, dtypes: tuple[Dtype, Dtype], axes: Axes, gapped: bool
    ) -> None:
        self.f = f = precision.f
        self.tile, self.precision, self.dtypes = tile, precision, dtypes
        self.kind, self.elements = precision.kind, [scalar(d) for d in dtypes]
        self.walk = Walk(f, axes)
        size, (a_step, _) = axes[-1]
        self.a_step: Number = 1 if a_step == 1 else self.walk.strides[-1][0]
        self.b_step: Number = self.walk.strides[-1][1] if gapped else tile.columns
        self.unroll = 2 if size % 2 == 0 and tile.rows <= _UNROLLED else 1
        inner = [prod(size for size, _ in axes[level + 1 :]) for level in range(len(axes))]
        self._cut(axes, inner)
        inner.pop()
        self.ahead = fetched(precision.target)
        self.fetched = [f.dim(self.ahead * terms) for terms in inner]

    def emit(
        self,
        rows: Sequence[Value],
        b: Value,
        totals: Value,
        masks: Sequence[Value | None] | None = None,
        ahead: Value | None = None,
    ) -> None:
        """Emit the sums of rows times a panel; store them to ``totals`` as [row][column].

        rows: the address of each row of a. b: the panel's. masks: of the panel's vectors, None: read all.
        ahead: from where on memory is fetched into cache meanwhile, some bytes (``fetched``) for each term.
        """
        masks = masks or [None] * self.tile.vectors
        here = _Here(rows, b, ahead)
        if self.cut is not None:
            self._zeroed(len(rows), totals)
            self._chains(0, here, totals, masks)
            return
        for at, total in enumerate(self._level(0, here, self._start(rows), masks)):
            self.f.store(total, self.f.at(totals, at * self.tile.lanes, self.kind))

    def _cut(self, axes: Axes, inner: list[int]) -> None:
        """Note at which axis, and after how many of its terms, a sum begins anew; None: never."""
        exact = self.kind not in ("float", "double")
        self.cut: int | None = None
        if exact or prod(size for size, _ in axes) <= CHAIN:
            return
        self.cut = next(level for level, size in enumerate(inner) if size < CHAIN)
        self.chain: Number = CHAIN
        if self.cut < len(axes) - 1:
            self.chain = self.f.dim(CHAIN // inner[self.cut])

    def _start(self, rows: Sequence[Value]) -> list[Value]:
        """Return what the sums of a tile begin with."""
        return [self.zero()] * (len(rows) * self.tile.vectors)

    def zero(self) -> Value:
        """Return sums of nothing."""
        return floating(0, vector(self.kind, self.tile.lanes))

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """Return the total with the product of one term added."""
        return self.f.fma(a, b, total)

    def _chains(self, level: int, here: _Here, totals: Value, masks: Sequence[Value | None]) -> None:
        """Emit the loops down to the axis that is cut, and there add what each chain gives to the totals."""
        f, size = self.f, self.walk.sizes[level]
        if level != self.cut:
            with f.loop(0, size) as (k, _):
                self._chains(level + 1, self._moved(level, k, here), totals, masks)
            return
        with f.loop(0, size, self.chain) as (begin, _):
            span = begin, f.least(f.add(begin, self.chain), size)
            sums = self._level(level, here, self._start(here.rows), masks, span)
            for at, chain in enumerate(sums):
                place = f.at(totals, at * self.tile.lanes, self.kind)
                f.store(f.binary("fadd", f.load(chain.type, place), chain), place)

    def _zeroed(self, rows: int, totals: Value) -> None:
        for at in range(rows * self.tile.vectors):
            self.f.store(self.zero(), self.f.at(totals, at * self.tile.lanes, self.kind))

    def _moved(self, level: int, k: Number, here: _Here) -> _Here:
        """Return where the operands stand after k steps along an axis that is not the last one."""
        f, (a_step, b_step) = self.f, self.walk.strides[level]
        rows = [f.at(row, f.mul(k, a_step), self.elements[0]) for row in here.rows]
        later = here.ahead and f.at(here.ahead, f.mul(k, self.fetched[level]), "i8")
        return _Here(rows, f.at(here.b, f.mul(k, b_step), self.elements[1]), later)

    def _level(
        self,
        level: int,
        here: _Here,
        sums: list[Value],
        masks: Sequence[Value | None],
        span: tuple[Number, Number] | None = None,
    ) -> list[Value]:
        """Emit the loops over k from one axis inwards, over a span of that one; return the sums."""
        f = self.f
        start, stop = span or (0, self.walk.sizes[level])
        if level == len(self.walk.sizes) - 1:
            return self._innermost(here, sums, masks, (start, stop))
        with f.loop(start, stop, carry=sums) as (k, carried):
            carried[:] = self._level(level + 1, self._moved(level, k, here), list(carried), masks)
        return carried

    def _innermost(
        self, here: _Here, sums: list[Value], masks: Sequence[Value | None], span: tuple[Number, Number]
    ) -> list[Value]:
        f = self.f
        with f.loop(*span, self.unroll, sums) as (k, carried):
            if here.ahead is not None:
                self._fetch(f.at(here.ahead, f.mul(k, self.ahead), "i8"))
            for u in range(self.unroll):
                term = f.add(k, u)
                line = f.at(here.b, f.mul(term, self.b_step), self.elements[1])
                self._term(here.rows, f.mul(term, self.a_step), self._line(line, masks), carried)
        return carried

    def _fetch(self, address: Value) -> None:
        """Ask for a line of memory in the second-level cache; any address will do."""
        read, second, data = (Value(str(x), "i32") for x in (0, 2, 1))
        self.f.call("llvm.prefetch.p0", "void", address, read, second, data)

    def _line(self, b: Value, masks: Sequence[Value | None]) -> list[Value]:
        """Read one line of the panel."""
        f, lanes, element = self.f, self.tile.lanes, self.elements[1]
        line = []
        for v, mask in enumerate(masks):
            here, kind = f.at(b, v * lanes, element), vector(element, lanes)
            read = f.load(kind, here) if mask is None else f.load_first(kind, here, mask)
            line.append(self.precision.widened(read, self.dtypes[1]))
        return line

    def _term(self, rows: Sequence[Value], place: Number, line: list[Value], sums: list[Value]) -> None:
        """Add one term to all sums, in place."""
        f, element, vectors = self.f, self.elements[0], self.tile.vectors
        for i, row in enumerate(rows):
            one = f.load(element, f.at(row, place, element))
            wide = f.splat(self.precision.widened(one, self.dtypes[0]), self.tile.lanes)
            for v in range(vectors):
                sums[i * vectors + v] = self.added(wide, line[v], sums[i * vectors + v])
