"""Copies of panels: columns of b that lie anywhere, as lines [k][columns] in scratch memory."""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Number, Value, vector
from graphdoc.engine.device.llvm.contraction_axes import Walk
from graphdoc.engine.device.llvm.contraction_columns import Column, Columns
from graphdoc.engine.device.llvm.contraction_sums import Precision
from graphdoc.engine.program import Axes


class PanelCopy:
    """Emits the copy of a panel.

    axes: of k as b has them. column: how b's columns stand. Where terms lie side by side and columns do not,
    blocks of lanes × lanes are transposed in registers; else a line is read at a time.
    """

    def __init__(
        self, precision: Precision, columns: Columns, vectors: int, column: Column, axes: Axes
    ) -> None:
        self.f, self.precision, self.columns = precision.f, precision, columns
        self.lanes, self.vectors, self.column = columns.lanes, vectors, column
        self.walk = Walk(self.f, axes)
        along = bool(axes) and axes[-1][1] == (1,) and axes[-1][0] >= self.lanes
        self.turned = along and column.step not in (0, 1) and column.dtype == precision.sums

    def emit(self, base: Value, panel: Value, valid: Number, masks: Sequence[Value | None]) -> None:
        """Copy the panel whose column 0 is at ``base``; ``valid`` columns are there, as ``masks`` tell."""
        f, walk = self.f, self.walk

        def line(source: Value, k: Number) -> None:
            target = f.at(panel, f.mul(k, self.vectors * self.lanes), self.precision.kind)
            for v, mask in enumerate(masks):
                wide = self.precision.widened(
                    self.columns.read(self.column, source, v, mask), self.column.dtype
                )
                wide = wide if wide.type.startswith("<") else f.splat(wide, self.lanes)
                f.store(wide, f.at(target, v * self.lanes, self.precision.kind))

        def run(source: Value, outer: Number) -> None:
            size = walk.sizes[-1]
            first, whole = f.mul(outer, size), f.mul(f.idiv(size, self.lanes), self.lanes)
            with f.loop(0, whole, self.lanes) as (k, _):
                here = f.at(source, k, self.column.element)
                self._block(here, panel, f.add(first, k), valid, masked=masks[0] is not None)
            with f.loop(whole, size) as (k, _):
                line(f.at(source, k, self.column.element), f.add(first, k))

        if self.turned:
            walk.nest(base, self.column.element, run, len(walk.sizes) - 1)
        else:
            walk.nest(base, self.column.element, line)

    def _block(self, source: Value, panel: Value, k: Number, valid: Number, *, masked: bool) -> None:
        """Copy ``lanes`` terms of all columns; past the last one that one is read again."""
        f, lanes, kind = self.f, self.lanes, vector(self.precision.kind, self.lanes)
        target = f.at(panel, f.mul(k, self.vectors * lanes), self.precision.kind)
        with f.loop(0, self.vectors * lanes, lanes) as (start, _):
            rows = []
            for j in range(lanes):
                column = f.least(f.sub(valid, 1), f.add(start, j)) if masked else f.add(start, j)
                rows.append(f.load(kind, f.at(source, f.mul(column, self.column.step), self.column.element)))
            first = f.at(target, start, self.precision.kind)
            for i, row in enumerate(self._transposed(rows)):
                f.store(row, f.at(first, i * self.vectors * lanes, self.precision.kind))

    def _transposed(self, rows: Sequence[Value]) -> list[Value]:
        """Return the columns of a block: halves of ever smaller squares change places."""
        result, distance = list(rows), self.lanes // 2
        while distance:
            for i in range(self.lanes):
                if not i & distance:
                    a, b = result[i], result[i + distance]
                    result[i] = self._mixed(a, b, distance, low=True)
                    result[i + distance] = self._mixed(a, b, distance, low=False)
            distance //= 2
        return result

    def _mixed(self, a: Value, b: Value, distance: int, *, low: bool) -> Value:
        """Return a's and b's lower (upper) halves of each group of 2 · distance lanes, side by side."""
        lanes = self.lanes
        if low:
            places = [lanes + at - distance if at & distance else at for at in range(lanes)]
        else:
            places = [lanes + at if at & distance else at + distance for at in range(lanes)]
        mask = ", ".join(f"i32 {at}" for at in places)
        return self.f.op(f"shufflevector {a}, {b}, <{lanes} x i32> <{mask}>", a.type)
