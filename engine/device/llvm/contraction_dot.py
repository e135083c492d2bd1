"""Contractions with very few columns: vectors run along k, for some rows of a and all columns of b at once.

b is packed a column after the other, ``[n][k]`` (panels of one column). What is left of the innermost axis
of k is read by a mask; the lanes of a vector of sums are added at the end, in the same order every time.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Number, Value, floating, mangled, vector
from graphdoc.engine.device.llvm.contraction_sums import Precision, Sums
from graphdoc.engine.device.llvm.contraction_tile import Tile
from graphdoc.engine.device.llvm.contraction_walk import Emitter
from graphdoc.engine.expr import Dtype
from graphdoc.engine.program import Axes


class DotSums(Sums):
    """Emits the sums of a tile of rows and all columns.

    columns: how many there are. apart: elements from one column of b to the next.
    """

    def __init__(
        self, precision: Precision, tile: Tile, dtypes: tuple[Dtype, Dtype], axes: Axes, apart: Number
    ) -> None:
        super().__init__(precision, tile, dtypes, axes, gapped=True)
        self.lanes, self.apart = precision.target.lanes(precision.sums), apart

    def emit(
        self,
        rows: Sequence[Value],
        b: Value,
        totals: Value,
        masks: Sequence[Value | None] | None = None,
        ahead: Value | None = None,
    ) -> None:
        """Emit the sums of rows times columns; store them to ``totals`` as [row][column]."""
        f = self.f
        zero = floating(0, vector(self.kind, self.lanes))
        columns = [f.at(b, f.mul(self.apart, n), self.elements[1]) for n in range(self.tile.vectors)]
        sums = self._along(0, rows, columns, [zero] * (len(rows) * len(columns)))
        name = f"llvm.vector.reduce.fadd.{mangled(zero.type)}"
        for at, total in enumerate(sums):
            one = f.call(name, self.kind, floating(-0.0, self.kind), total, flags="reassoc")
            f.store(one, f.at(totals, at, self.kind))

    def _along(
        self, level: int, rows: Sequence[Value], columns: Sequence[Value], sums: list[Value]
    ) -> list[Value]:
        """Emit the loops over k from one axis inwards; return the sums after them."""
        f, walk = self.f, self.walk
        size = walk.sizes[level]
        if level < len(walk.sizes) - 1:
            a_step, b_step = walk.strides[level]
            with f.loop(0, size, carry=sums) as (k, carried):
                moved = [f.at(row, f.mul(k, a_step), self.elements[0]) for row in rows]
                inner = [f.at(column, f.mul(k, b_step), self.elements[1]) for column in columns]
                carried[:] = self._along(level + 1, moved, inner, list(carried))
            return carried
        whole = f.mul(f.idiv(size, self.lanes), self.lanes)
        with f.loop(0, whole, self.lanes, sums) as (k, carried):
            self._multiplied(k, rows, columns, carried, None)
        with f.loop(whole, size, self.lanes, list(carried)) as (k, rest):
            self._multiplied(k, rows, columns, rest, f.first(f.sub(size, k), self.lanes))
        return rest

    def _multiplied(
        self,
        k: Number,
        rows: Sequence[Value],
        columns: Sequence[Value],
        sums: list[Value],
        mask: Value | None,
    ) -> None:
        """Add the products of a vector of terms to all sums, in place."""
        line = [self._read(column, k, 1, mask) for column in columns]
        for i, row in enumerate(rows):
            terms = self._read(row, k, 0, mask)
            for n, other in enumerate(line):
                at = i * len(line) + n
                sums[at] = self.f.fma(terms, other, sums[at])

    def _read(self, base: Value, k: Number, operand: int, mask: Value | None) -> Value:
        f, element = self.f, self.elements[operand]
        here, kind = f.at(base, k, element), vector(element, self.lanes)
        read = f.load(kind, here) if mask is None else f.load_first(kind, here, mask)
        return self.precision.widened(read, self.dtypes[operand])


class DotEmitter(Emitter):
    """The kernel of a contraction whose b is packed in panels of one column, all in one tile."""

    def _make_sums(self) -> Sums:
        work = self.work
        axes: Axes = []
        step = 1
        for size, (stride,) in reversed(work.terms):
            axes.insert(0, (size, (stride, step)))
            step *= size
        dtypes = (work.views[0].dtype, work.views[1].dtype)
        return DotSums(self.precision, self.tile, dtypes, axes, self.f.dim(work.k))

    def _ahead(self, panel: Value, done: Number) -> Value | None:
        return None
