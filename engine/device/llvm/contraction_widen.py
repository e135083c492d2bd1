"""Contractions whose rows of a are copied first: widened, their terms side by side whatever their strides.

Of a narrow type each element would otherwise be converted once per panel of b, one at a time.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Number, Value, number, parts, scalar, vector
from graphdoc.engine.device.llvm.contraction_axes import Walk
from graphdoc.engine.device.llvm.contraction_copy import PanelCopy
from graphdoc.engine.device.llvm.contraction_sums import Sums
from graphdoc.engine.device.llvm.contraction_walk import Emitter
from graphdoc.engine.program import Axes

MASKED = 64
"""Bytes of the registers that come with masks for single bytes: AVX-512's."""

CUTS, ROWS = 16, 64
"""Blocks that make even shares for a few threads, and rows of one, fewer of which would not repay that all of
b is read for them."""

BLOCK = 1 << 18
"""Bytes of widened rows that a block may take: half of a small second-level cache."""


class WidenedEmitter(Emitter):
    """The kernel of a contraction whose a is float16 or bfloat16; of other types by subclasses.

    A block of rows is copied before its first panel, each to ``pitch`` elements of ``element``.
    """

    @property
    def element(self) -> str:
        """Return the type of an element of a copied row."""
        return self.kind

    @property
    def pitch(self) -> int:
        """Return how many elements a copied row takes."""
        return self.work.k

    def _in_place(self) -> bool:
        return False

    def _row_bytes(self) -> int:
        return self.pitch * (self.spec.accumulate.itemsize if self.element == self.kind else 2)

    def _panel_lines(self) -> int:
        """Return how many lines of sums' width a copied panel takes."""
        return self.work.k if self.copied else 0

    def _per_block(self) -> int:
        """Return how many tiles of copied rows stay in the second-level cache."""
        most = max(1, BLOCK // max(1, self.tile.rows * self._row_bytes()))
        blocks = max(-(-self.count // most), min(CUTS, self.work.m // ROWS))
        return -(-self.count // blocks)

    def _grain(self, blocks: int, each: int) -> int:
        """Let shares be whole blocks: else each would copy the rows again, and two write to one line."""
        return each if blocks >= CUTS else 1

    def _scratch(self) -> int:
        lines = (self.tile.rows + self._panel_lines()) * self.tile.columns
        rows = self._per_block() * self.tile.rows * self._row_bytes()
        return lines * self.spec.accumulate.itemsize + rows

    def _make_sums(self) -> Sums:
        f, work = self.f, self.work
        self.d_pitch, self.d_m = f.dim(self.pitch), f.dim(work.m)
        self.terms = Walk(f, work.terms or [(1, (0,))])
        self.contiguous = bool(work.terms) and work.terms[-1][1] == (1,)
        lines = self.tile.rows + self._panel_lines()
        self.copied_rows = f.at(self.totals, lines * self.tile.columns, self.kind)
        return self._row_sums()

    def _row_sums(self) -> Sums:
        """Return what multiplies copied rows, and note what copies panels."""
        terms = self.work.b_terms if self.copied else []
        self.copy = PanelCopy(self.precision, self.lines, self.tile.vectors, self.columns[1], terms)
        read = self.spec.accumulate if self.copied else self.work.views[1].dtype
        axes: Axes = [(self.work.k, (1, self.tile.columns))]
        return Sums(self.precision, self.tile, (self.spec.accumulate, read), axes, gapped=False)

    def _pointers(self, rows: int, base: Value, at: tuple[Sequence[Number], Number, Number]) -> list[Value]:
        f = self.f
        places = [f.mul(f.add(at[2], i), self.d_pitch) for i in range(rows)]
        return [f.at(self.copied_rows, place, self.element) for place in places]

    def _begin(self, row: Number, bases: Sequence[Value], fresh: Value) -> None:
        """Emit the copy of a block's rows."""
        f = self.f
        with f.when(fresh):
            digits, offsets = self.rows.start(row, len(self.bases))
            count = f.least(f.mul(self.d_per_block, self.tile.rows), f.sub(self.d_m, row))
            carry = [number(x) for x in (*digits, offsets[0])]
            with f.loop(0, count, carry=carry) as (i, carried):
                source = f.at(bases[0], carried[-1], self.elements[0])
                self._copy_row(source, f.at(self.copied_rows, f.mul(i, self.d_pitch), self.element))
                now = self.rows.following(carried[:-1], carried[-1:], (0,))
                carried[:] = [number(x) for x in (*now[0], *now[1])]

    def _copy_row(self, source: Value, target: Value) -> None:
        """Emit the copy of one row."""
        self._copy_terms(source, target)

    def _run_lanes(self) -> int:
        """Return how many elements of a row are copied at once."""
        return 2 * self.tile.lanes

    def _copy_terms(self, source: Value, target: Value) -> None:
        f, element, lanes = self.f, scalar(self.work.views[0].dtype), self._run_lanes()

        def one(here: Value, k: Number) -> None:
            f.store(self._wide(f.load(element, here)), f.at(target, k, self.element))

        def run(here: Value, outer: Number) -> None:
            size = self.terms.sizes[-1]
            first, whole = f.mul(outer, size), f.mul(f.idiv(size, lanes), lanes)
            with f.loop(0, whole, lanes) as (k, _):
                read = f.load(vector(element, lanes), f.at(here, k, element))
                f.store(self._wide(read), f.at(target, f.add(first, k), self.element))
            if self.precision.target.vector == MASKED:
                mask = f.first_few(f.sub(size, whole), lanes)
                read = f.load_first(vector(element, lanes), f.at(here, whole, element), mask)
                f.store_first(self._wide(read), f.at(target, f.add(first, whole), self.element), mask)
                return
            with f.loop(whole, size) as (k, _):
                one(f.at(here, k, element), f.add(first, k))

        if self.contiguous:
            self.terms.nest(source, element, run, len(self.terms.sizes) - 1)
        else:
            self.terms.nest(source, element, one)

    def _wide(self, value: Value) -> Value:
        """Return an element of a, or a vector of them, as a copied row holds it."""
        assert parts(value.type)[0] == self.elements[0]  # noqa: S101
        return self.precision.widened(value, self.work.views[0].dtype)
