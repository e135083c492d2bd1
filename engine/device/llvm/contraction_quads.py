"""Products of 8-bit codes four at a time, where the processor adds four products of bytes to an int32.

``vpdpbusd`` multiplies unsigned bytes by signed ones. Signed rows are copied with 128 added, unsigned columns
are read with 128 taken off, and the sums start at what that changes:

    Σ a·b = Σ (a + s)·(b − t) + t·Σ (a + s) − s·Σ b,    s = 128 of a signed a, t = 128 of an unsigned b

Sums of rows are added up when a row is copied, sums of columns when a panel is begun. All of it is exact
modulo 2^32, as sums of int32 are.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Number, Target, Value, integer, parts, vector
from graphdoc.engine.device.llvm.contraction_codes import CodesEmitter
from graphdoc.engine.device.llvm.contraction_sums import Sums
from graphdoc.engine.device.llvm.contraction_tile import spec_of
from graphdoc.engine.expr import I8, I32, U8
from graphdoc.engine.program import Axes, Kind, Step

TERMS = 4
"""Products that one instruction adds."""

_FEATURES = {8: ("+avxvnni", "+avx512vnni"), 16: ("+avx512vnni",)}
_SHIFT = 128


def adds_quads(target: Target, lanes: int) -> bool:
    """Return whether the processor has the instruction for vectors of this many sums."""
    features = target.features.split(",")
    return any(name in features for name in _FEATURES.get(lanes, ()))


def in_quads(step: Step, target: Target) -> bool:
    """Return whether a contraction of codes runs so: columns are constants that are, or will be, packed."""
    spec = spec_of(step)
    constant = step.inputs[1].buffer.kind is Kind.CONSTANT
    ready = spec.together == TERMS if spec.packed else constant
    return ready and adds_quads(target, target.lanes(spec.accumulate))


class QuadSums(Sums):
    """Sums of quads; an element of a row and one of a line is an i32 that holds four bytes.

    signs: which of a and b (as copied) has to be shifted. line: where the sums of the columns begin.
    """

    shifted = (False, False)
    line: Value
    length: Number

    def _start(self, rows: Sequence[Value]) -> list[Value]:
        f, lanes, (a_shifted, b_shifted) = self.f, self.tile.lanes, self.shifted
        kind = vector("i32", lanes)
        zero = integer(0, kind)
        places = [f.at(self.line, v * lanes, "i32") for v in range(self.tile.vectors)]
        columns = [f.load(kind, place) if a_shifted else zero for place in places]
        sums = []
        for row in rows:
            if b_shifted:
                total = f.splat(f.load("i32", f.at(row, self.length, "i32")), lanes)
                sums += [f.binary("add", column, total) if a_shifted else total for column in columns]
            else:
                sums += columns
        return sums

    def _line(self, b: Value, masks: Sequence[Value | None]) -> list[Value]:
        f, lanes = self.f, self.tile.lanes
        kind = vector("i32", lanes)
        read = [f.load(kind, f.at(b, v * lanes, "i32")) for v in range(self.tile.vectors)]
        return [self.signed(value) if self.shifted[1] else value for value in read]

    def signed(self, value: Value) -> Value:
        """Return unsigned bytes less 128."""
        high = integer(-0x7F7F7F80, value.type)  # 0x80 in each byte
        return self.f.binary("xor", value, high)

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """Return the total with the products of a quad added. a: unsigned bytes, b: signed ones."""
        bits = 32 * parts(total.type)[1]
        return self.f.call(f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, total, a, b)


class QuadsEmitter(CodesEmitter):
    """The kernel of a contraction of codes whose columns are packed by fours."""

    @property
    def element(self) -> str:
        """Return the type of an element of a copied row."""
        return "i8"

    @property
    def pitch(self) -> int:
        """Return how many bytes a copied row takes: its quads, and four for the sum of its codes."""
        return TERMS * (self._rounds + self._signs[1])

    @property
    def _rounds(self) -> int:
        return -(-self.work.k // TERMS)

    @property
    def _signs(self) -> tuple[bool, bool]:
        """Return whether a and b have to be shifted."""
        a, b = (view.dtype for view in self.work.views[:2])
        return a == I8, b == U8

    def _row_bytes(self) -> int:
        return self.pitch

    def _panel_lines(self) -> int:
        return 1  # the sums of a panel's columns

    def _row_sums(self) -> Sums:
        axes: Axes = [(self._rounds, (1, self.tile.columns))]
        sums = QuadSums(self.precision, self.tile, (I32, I32), axes, gapped=False)
        sums.shifted, sums.line, sums.length = self._signs, self.panel, self.f.dim(self._rounds)
        sums.unroll = 1
        self.quads = sums
        return sums

    # ---- sums that stand for the shifts ------------------------------------------------------------

    def _begin(self, row: Number, bases: Sequence[Value], fresh: Value) -> None:
        super()._begin(row, bases, fresh)
        if self._signs[0]:
            self._sum_columns(bases[1])

    def _sum_columns(self, panel: Value) -> None:
        """Emit −128 · Σ b of every column of a panel."""
        f, lanes, (_, b_shifted) = self.f, self.tile.lanes, self._signs
        kind = vector("i32", lanes)
        ones = integer(0x01010101, kind)
        # Past the last term packed columns hold 0, which the shift makes −128: all terms count as shifted.
        again = f.splat(f.op(f"trunc {f.mul(self.quads.length, TERMS * _SHIFT)} to i32", "i32"), lanes)
        for v in range(self.tile.vectors):
            start = [again if b_shifted else integer(0, kind)]
            with f.loop(0, self.quads.length, carry=start) as (k, carried):
                place = f.at(panel, f.add(f.mul(k, self.tile.columns), v * lanes), "i32")
                read = f.load(kind, place)
                b = self.quads.signed(read) if b_shifted else read
                carried[:] = [self.quads.added(ones, b, carried[0])]
            less = f.binary("mul", carried[0], integer(-_SHIFT, kind))
            f.store(less, f.at(self.panel, v * lanes, "i32"))

    # ---- rows --------------------------------------------------------------------------------------

    def _copy_row(self, source: Value, target: Value) -> None:
        """Emit the copy of one row, with 0 past its last term, and behind it 128 · Σ a where b is shifted."""
        f, length = self.f, self.quads.length
        f.store(integer(0, "i32"), f.at(target, f.sub(length, 1), "i32"))
        self._copy_terms(source, target)
        if self._signs[1]:
            f.store(self._row_sum(target), f.at(target, length, "i32"))

    def _row_sum(self, row: Value) -> Value:
        f, lanes, length = self.f, self.tile.lanes, self.quads.length
        kind = vector("i32", lanes)
        ones = integer(0x01010101, kind)
        whole = f.mul(f.idiv(length, lanes), lanes)
        with f.loop(0, whole, lanes, [integer(0, kind)]) as (k, carried):
            carried[:] = [self.quads.added(f.load(kind, f.at(row, k, "i32")), ones, carried[0])]
        rest = f.load_first(kind, f.at(row, whole, "i32"), f.first(f.sub(length, whole), lanes))
        total = self.quads.added(rest, ones, carried[0])
        added = f.call(f"llvm.vector.reduce.add.v{lanes}i32", "i32", total)
        return f.binary("mul", added, integer(_SHIFT, "i32"))

    def _run_lanes(self) -> int:
        return TERMS * self.tile.lanes

    def _wide(self, value: Value) -> Value:
        """Return codes as copied rows hold them: unsigned."""
        if not self._signs[0]:
            return value
        return self.f.binary("xor", value, integer(-_SHIFT, value.type))
