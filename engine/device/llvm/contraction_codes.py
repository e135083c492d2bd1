"""Products of 8-bit codes with exact int32 sums: pairs of terms as int16, multiplied and added at once.

A block of a's rows is widened to int16 in scratch memory first, its terms side by side whatever their
strides; b comes packed in pairs, ``[k/2][columns][2]`` of int16, or is copied so by panels. Processors of
the x86 family multiply and add pairs in one instruction (``pmaddwd``), which cannot overflow for codes;
elsewhere LLVM gets the four steps it consists of.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Number, Target, Value, integer, number, vector
from graphdoc.engine.device.llvm.contraction_axes import Walk
from graphdoc.engine.device.llvm.contraction_sums import Sums
from graphdoc.engine.device.llvm.contraction_walk import Emitter
from graphdoc.engine.expr import I32, U8, Dtype
from graphdoc.engine.program import Axes

BLOCK = 1 << 18
"""Bytes of widened rows that a block may take: half of a small second-level cache."""

_MULTIPLY_ADD = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}


def multiplies_pairs(target: Target, lanes: int) -> bool:
    """Return whether the processor has the instruction for vectors of this many sums."""
    features = target.features.split(",")
    needed = {4: "+sse2", 8: "+avx2", 16: "+avx512bw"}
    return needed.get(lanes) in features


class CodeSums(Sums):
    """Sums of pairs; an element of a row or a line is an i32 that holds two int16."""

    def zero(self) -> Value:
        """Return sums of nothing."""
        return integer(0, vector("i32", self.tile.lanes))

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """Return the total with the products of a pair added."""
        f, lanes = self.f, self.tile.lanes
        pairs, wide = vector("i16", 2 * lanes), vector("i32", lanes)
        x, y = (f.op(f"bitcast {value} to {pairs}", pairs) for value in (a, b))
        if multiplies_pairs(self.precision.target, lanes):
            return f.binary("add", total, f.call(_MULTIPLY_ADD[lanes], wide, x, y))
        for half in range(2):
            chosen = ", ".join(f"i32 {2 * i + half}" for i in range(lanes))
            short = vector("i16", lanes)
            parts = [
                f.op(f"shufflevector {value}, {pairs} poison, <{lanes} x i32> <{chosen}>", short)
                for value in (x, y)
            ]
            p, q = (f.op(f"sext {part} to {wide}", wide) for part in parts)
            total = f.binary("add", total, f.binary("mul", p, q))
        return total


class CodesEmitter(Emitter):
    """The kernel of a contraction whose sums are int32."""

    def _in_place(self) -> bool:
        return False

    @property
    def _pairs(self) -> int:
        return -(-self.work.k // 2)

    def _per_block(self) -> int:
        """Return how many tiles of widened rows stay in the second-level cache."""
        most = max(1, BLOCK // max(1, self.tile.rows * self._pairs * I32.itemsize))
        blocks = -(-self.count // most)
        return -(-self.count // blocks)

    def _line_step(self) -> int:
        return self.work.views[1].strides[-4] if self.spec.packed else 0

    def _make_sums(self) -> Sums:
        f, work = self.f, self.work
        self.d_pairs = f.dim(self._pairs)
        self.d_k = f.dim(work.k)
        self.terms = Walk(f, work.terms or [(1, (0,))])
        self.contiguous = bool(work.terms) and work.terms[-1][1] == (1,)
        self.b_terms = Walk(f, work.b_terms or [(1, (0,))])
        lines = self.tile.rows + (self._pairs if self.copied else 0)
        self.widened = f.at(self.totals, lines * self.tile.columns, "i32")
        self.d_m = f.dim(work.m)
        axes: Axes = [(self._pairs, (1, self.tile.columns))]
        sums = CodeSums(self.precision, self.tile, (I32, I32), axes, gapped=False)
        sums.unroll = 1  # products need registers of their own: LLVM would mix terms and run out of them
        return sums

    def _scratch(self) -> int:
        lines = (self.tile.rows + (self._pairs if self.copied else 0)) * self.tile.columns
        return (lines + self._per_block() * self.tile.rows * self._pairs) * I32.itemsize

    def _pointers(self, rows: int, base: Value, at: tuple[Sequence[Number], Number, Number]) -> list[Value]:
        f = self.f
        return [f.at(self.widened, f.mul(f.add(at[2], i), self.d_pairs), "i32") for i in range(rows)]

    # ---- copies --------------------------------------------------------------------------------------

    def _begin(self, row: Number, base: Value, fresh: Value) -> None:
        """Emit the widening of a block's rows."""
        f = self.f
        with f.when(fresh):
            digits, offsets = self.rows.start(row, len(self.bases))
            count = f.least(f.mul(self.d_per_block, self.tile.rows), f.sub(self.d_m, row))
            carry = [number(x) for x in (*digits, offsets[0])]
            with f.loop(0, count, carry=carry) as (i, carried):
                source = f.at(base, carried[-1], self.elements[0])
                target = f.at(self.widened, f.mul(f.mul(i, self.d_pairs), 2), "i16")
                self._widen_row(source, target)
                now = self.rows.following(carried[:-1], carried[-1:], (0,))
                carried[:] = [number(x) for x in (*now[0], *now[1])]

    def _widen_row(self, source: Value, target: Value) -> None:
        """Emit one row as int16, side by side, with a 0 past an odd last term."""
        f, dtype, lanes = self.f, self.work.views[0].dtype, 2 * self.tile.lanes
        f.store(integer(0, "i16"), f.at(target, f.sub(f.mul(self.d_pairs, 2), 1), "i16"))

        def one(here: Value, k: Number) -> None:
            f.store(self._wide(f.load("i8", here), dtype), f.at(target, k, "i16"))

        def run(here: Value, outer: Number) -> None:
            size = self.terms.sizes[-1]
            first, whole = f.mul(outer, size), f.mul(f.idiv(size, lanes), lanes)
            with f.loop(0, whole, lanes) as (k, _):
                read = f.load(vector("i8", lanes), f.at(here, k, "i8"))
                f.store(self._wide(read, dtype), f.at(target, f.add(first, k), "i16"))
            with f.loop(whole, size) as (k, _):
                one(f.at(here, k, "i8"), f.add(first, k))

        if self.contiguous:
            self.terms.nest(source, "i8", run, len(self.terms.sizes) - 1)
        else:
            self.terms.nest(source, "i8", one)

    def _wide(self, value: Value, dtype: Dtype) -> Value:
        kind = value.type.replace("i8", "i16")
        return self.f.op(f"{'zext' if dtype == U8 else 'sext'} {value} to {kind}", kind)

    def _copy_panel(self, base: Value, valid: Number) -> None:
        """Emit the copy of a panel of b, in pairs; what lies past the last column or term is 0."""
        f, columns, dtype = self.f, self.tile.columns, self.work.views[1].dtype
        with f.loop(0, f.mul(self.d_pairs, columns), self.tile.lanes) as (at, _):
            f.store(integer(0, vector("i32", self.tile.lanes)), f.at(self.panel, at, "i32"))

        def put(here: Value, k: Number) -> None:
            line = f.add(f.mul(f.mul(f.idiv(k, 2), columns), 2), f.mod(k, 2))
            with f.loop(0, valid) as (n, _):
                read = f.load("i8", f.at(here, f.mul(n, self.steps[1]), "i8"))
                f.store(self._wide(read, dtype), f.at(self.panel, f.add(line, f.mul(n, 2)), "i16"))

        self.b_terms.nest(base, "i8", put)
