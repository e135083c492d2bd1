"""Contractions as machine code: tiles of sums in registers, b in panels, rows of a wherever they lie.

The kernel walks units (batch, block of rows, panel of columns, tile of rows), the last fastest, so that a
panel of b stays in the first-level cache and a block of a in the second. Threads share the units evenly. b is
read in panels ``[k][columns]``: packed beforehand (``pack.py``), or copied panel by panel into the thread's
scratch memory, or, where few rows would not repay the copy, read in place. A tile's sums go through scratch
memory to one loop over its rows that applies the epilogue, so the code stays small whatever the epilogue.
"""

from collections.abc import Iterator, Sequence

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    number,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.contraction_axes import Walk, select
from graphdoc.engine.device.llvm.contraction_columns import Column, Columns
from graphdoc.engine.device.llvm.contraction_copy import PanelCopy
from graphdoc.engine.device.llvm.contraction_sums import Precision, Sums, fetched
from graphdoc.engine.device.llvm.contraction_tile import Tile, block_tiles, spec_of, split_rows, work_of
from graphdoc.engine.program import Axes, Step, merged

MACS_PER_THREAD = 1 << 15
"""Multiplications below which another thread costs more than it saves."""


class Emitter:
    """One kernel under construction."""

    def __init__(self, step: Step, tile: Tile, target: Target) -> None:
        self.f = f = Function()
        self.spec, self.work = spec_of(step), work_of(step)
        self.count, rows, self.full = split_rows(self.work.m, tile.rows)
        self.tile = Tile(rows, tile.vectors, tile.lanes)
        self.ragged = bool(self.work.n % tile.columns)
        self.direct = self._in_place()
        self.copied = not self.spec.packed and not self.direct
        self.precision = Precision(f, target, self.spec.accumulate)
        self.kind = self.precision.kind
        self.lines = Columns(f, tile.lanes, target)
        self.elements = [scalar(v.dtype) for v in self.work.views]
        self.bases = [f.argument(p) for p in self.work.positions]
        self.totals = f.argument(len(step.inputs) + len(step.outputs))
        self.panel = f.at(self.totals, self.tile.rows * tile.columns, self.kind)
        self._read_dims()

    def _read_dims(self) -> None:
        f, work = self.f, self.work
        per_block = self._per_block()
        blocks, panels = -(-self.count // per_block), -(-work.n // self.tile.columns)
        self.units = work.batches * blocks * panels * per_block
        self.grain = self._grain(work.batches * blocks, panels * per_block)
        self.d_units, self.d_blocks, self.d_panels = f.dim(self.units), f.dim(blocks), f.dim(panels)
        self.d_count, self.d_per_block, self.d_full = f.dim(self.count), f.dim(per_block), f.dim(self.full)
        self.d_n, self.d_line = f.dim(work.n), f.dim(self._line_step())
        self.d_fetched = f.dim(self._rounds * fetched(self.precision.target))
        self.batch, self.rows = Walk(f, work.batch), Walk(f, work.rows)
        self.steps: list[Number] = [s if s in (0, 1) else f.dim(s) for s in work.steps]
        self.columns = [Column(v.dtype, step) for v, step in zip(work.views, self.steps, strict=True)]
        self.sums = self._make_sums()

    # ---- what a walk over other operands does otherwise ----------------------------------------------

    def _per_block(self) -> int:
        """Return how many tiles of rows make a block."""
        return block_tiles(self.work, self.count, self.tile.rows)

    def _grain(self, blocks: int, each: int) -> int:
        """Return how many units stay in one share, of so many blocks of so many units each."""
        return 1

    @property
    def _rounds(self) -> int:
        """Return how often a tile reads a line of b."""
        return self.work.k

    def _line_step(self) -> int:
        """Return how many elements of a packed b lie from one panel to the next."""
        return self.work.views[1].strides[-3] if self.spec.packed else 0

    def _make_sums(self) -> Sums:
        """Return what multiplies, and note what copies panels."""
        work = self.work
        terms = work.b_terms if self.copied else []
        self.copy = PanelCopy(self.precision, self.lines, self.tile.vectors, self.columns[1], terms)
        a, b = (view.dtype for view in work.views[:2])
        read = self.spec.accumulate if self.copied else b
        return Sums(self.precision, self.tile, (a, read), self._term_axes(), self.direct)

    def _copy_panel(self, base: Value, valid: Number) -> None:
        """Emit the copy of a panel of b into scratch memory."""
        masks = [self._mask(valid, v) for v in range(self.tile.vectors)]
        self.copy.emit(base, self.panel, valid, masks)

    def _begin(self, row: Number, bases: Sequence[Value], fresh: Value) -> None:
        """Emit what a panel needs before a block's rows, which are new to it where the i1 ``fresh`` says so.

        row: the block's first. bases: where each operand begins for it.
        """

    def _pointers(self, rows: int, base: Value, at: tuple[Sequence[Number], Number, Number]) -> list[Value]:
        """Return addresses of rows of a. at: digits and offset of the first one, its number in the block."""
        return self.rows.pointers(base, self.elements[0], rows, at[0], at[1])

    def _scratch(self) -> int:
        """Return the bytes of scratch memory."""
        lines = self.tile.rows + (self.work.k if self.copied else 0)
        return lines * self.tile.columns * self.spec.accumulate.itemsize

    def _in_place(self) -> bool:
        """Return whether b is read where it lies: one tile of rows, columns side by side."""
        a, b, spec = self.work.views[0], self.work.views[1], self.spec
        same = a.shape[spec.batch + spec.rows :] == b.shape[spec.batch : -1]
        return not spec.packed and self.count == 1 and b.strides[-1] == 1 and same

    def _term_axes(self) -> Axes:
        """Return the axes of k with the strides of a and of b as the tile reads it."""
        a, b, spec = self.work.views[0], self.work.views[1], self.spec
        if self.direct:
            head = spec.batch + spec.rows
            return merged(a.shape[head:], [a.strides[head:], b.strides[spec.batch : -1]]) or [(1, (0, 0))]
        axes: Axes = []
        step = self.tile.columns
        for size, (stride,) in reversed(self.work.terms or [(1, (0,))]):
            axes.insert(0, (size, (stride, step)))
            step *= size
        return axes

    # ---- the walk over units -------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Emit everything."""
        f = self.f
        first, last = self._share()
        start = f.idiv(first, self.d_per_block)
        stop = f.idiv(f.sub(f.add(last, self.d_per_block), 1), self.d_per_block)
        with f.loop(start, stop) as (group, _):
            self._group(group, number(start), first, last)
        threads = max(1, min(self.units // self.grain, self.work.macs // MACS_PER_THREAD))
        return f.kernel(self._scratch(), threads)

    def _share(self) -> tuple[Number, Number]:
        """Return this share's first unit, and one past its last."""
        f = self.f
        if self.grain == 1:
            return f.share(self.d_units)
        grain = f.dim(self.grain)
        first, last = f.share(f.dim(self.units // self.grain))
        return f.mul(first, grain), f.mul(last, grain)

    def _group(self, group: Value, begin: Value, first: Number, last: Number) -> None:
        """Emit the tiles that one panel meets in one block of rows, as far as they are this thread's."""
        f = self.f
        panel, rest = f.mod(group, self.d_panels), f.idiv(group, self.d_panels)
        block, batch = f.mod(rest, self.d_blocks), f.idiv(rest, self.d_blocks)
        column = f.mul(panel, self.tile.columns)
        valid = f.least(f.sub(self.d_n, column), self.tile.columns)
        bases = self._bases(batch, panel, column)
        if self.copied:
            self._copy_panel(bases[1], valid)
            bases[1] = self.panel
        before, begun = f.mul(block, self.d_per_block), f.mul(group, self.d_per_block)
        skipped = f.call("llvm.smax.i64", "i64", number(f.sub(first, begun)), number(0))
        start, stop = f.add(before, skipped), f.least(f.sub(last, begun), self.d_per_block)
        new = f.op(f"icmp eq {number(panel)}, 0", "i1")
        fresh = f.binary("or", new, f.op(f"icmp eq {group}, {begin.name}", "i1"))
        top = self._first_row(before)
        self._begin(top, bases, fresh)
        with f.loop(start, f.least(f.add(before, stop), self.d_count)) as (tile, _):
            self._tile(tile, bases, (valid, top, self._ahead(bases[1], f.sub(tile, start))))

    def _first_row(self, tile: Number) -> Number:
        """Return the first row of a tile: all have the same number but those past the full ones, one less."""
        f = self.f
        past = f.call("llvm.smax.i64", "i64", number(f.sub(tile, self.d_full)), number(0))
        return f.sub(f.mul(tile, self.tile.rows), past)

    def _ahead(self, panel: Value, done: Number) -> Value | None:
        """Return what to fetch during a tile: a share of the next panel, until all of it was asked for.

        Else the memory of a panel's first tile is waited for, and idle during all others.
        """
        f = self.f
        if not self.spec.packed or self.count == 1:
            return None
        line = self.tile.columns * self.spec.together * self.work.views[1].dtype.itemsize
        tiles = -(-line // fetched(self.precision.target))
        following = f.at(f.at(panel, self.d_line, self.elements[1]), f.mul(self.d_fetched, done), "i8")
        left = f.op(f"icmp slt {number(done)}, {tiles}", "i1")
        return f.op(f"select {left}, {following}, {panel}", "ptr")

    def _bases(self, batch: Number, panel: Number, column: Number) -> list[Value]:
        """Return where each operand's first row of this batch and panel begins."""
        f = self.f
        _, offsets = self.batch.start(batch, len(self.bases))
        along = [f.mul(column, step) for step in self.steps]
        if self.spec.packed:
            along[1] = f.mul(panel, self.d_line)
        return [
            f.at(base, f.add(offset, more), element)
            for base, offset, more, element in zip(self.bases, offsets, along, self.elements, strict=True)
        ]

    def _mask(self, valid: Number, v: int) -> Value | None:
        """Return the mask of a vector of the panel, None where all panels are full."""
        if not self.ragged:
            return None
        return self.f.first(self.f.sub(valid, v * self.tile.lanes), self.tile.lanes)

    # ---- one tile ------------------------------------------------------------------------------------

    def _tile(self, tile: Value, bases: list[Value], panel: tuple[Number, Number, Value | None]) -> None:
        """Emit sums and epilogue of one tile of rows.

        panel: how many columns it has, the first row of the block, what to fetch meanwhile.
        """
        f, size = self.f, self.tile.rows
        row = self._first_row(tile)
        digits, offsets = self.rows.start(row, len(bases))
        at = (digits, offsets[0], f.sub(row, panel[1]))
        if self.full == self.count:
            self._summed(size, bases, at, panel)
            self._finished(size, bases, digits, offsets, panel[0])
            return
        is_full = f.op(f"icmp slt {tile}, {number(self.d_full).name}", "i1")
        for rows in (size, size - 1):
            with f.when(is_full if rows == size else f.op(f"xor {is_full}, true", "i1")):
                self._summed(rows, bases, at, panel)
        self._finished(select(f, is_full, size, size - 1), bases, digits, offsets, panel[0])

    def _summed(
        self,
        rows: int,
        bases: list[Value],
        at: tuple[Sequence[Number], Number, Number],
        panel: tuple[Number, Number, Value | None],
    ) -> None:
        """Emit the sums of ``rows`` rows and leave them in scratch memory."""
        valid, _, ahead = panel
        pointers = self._pointers(rows, bases[0], at)
        if not self.direct:
            self.sums.emit(pointers, bases[1], self.totals, None, ahead)
            return
        for masked in self._cases(valid):
            masks = [self._mask(valid, v) if masked else None for v in range(self.tile.vectors)]
            self.sums.emit(pointers, bases[1], self.totals, masks)

    def _cases(self, valid: Number) -> Iterator[bool]:
        """Run the body once where the panel is full and once, with masks, where it is not."""
        f = self.f
        if not self.ragged:
            yield False
            return
        whole = f.op(f"icmp eq {number(valid)}, {self.tile.columns}", "i1")
        for masked in (False, True):
            with f.when(f.op(f"xor {whole}, true", "i1") if masked else whole):
                yield masked

    def _finished(
        self, rows: Number, bases: list[Value], digits: list[Number], offsets: list[Number], valid: Number
    ) -> None:
        """Emit the epilogue of ``rows`` rows, whose sums lie in scratch memory."""
        f, others, lanes = self.f, range(2, len(bases)), self.tile.lanes
        for masked in self._cases(valid):
            masks = [self._mask(valid, v) if masked else None for v in range(self.tile.vectors)]
            start = [number(x) for x in (*digits, *offsets[2:])]
            with f.loop(0, rows, carry=start) as (row, carried):
                here = [f.at(bases[o], carried[len(digits) + o - 2], self.elements[o]) for o in others]
                line = f.at(self.totals, f.mul(row, self.tile.columns), self.kind)
                operands = [(self.columns[o], address) for o, address in zip(others, here, strict=True)]
                for v, mask in enumerate(masks):
                    total = f.load(vector(self.kind, lanes), f.at(line, v * lanes, self.kind))
                    self.lines.finish(self.spec.epilogue, total, self.work.numbers, operands, (v, mask))
                now = self.rows.following(carried[: len(digits)], carried[len(digits) :], others)
                carried[:] = [number(x) for x in (*now[0], *now[1])]
