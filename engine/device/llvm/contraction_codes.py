"""Products of 8-bit codes with exact int32 sums: pairs of terms as int16, multiplied and added at once.

A block of a's rows is widened to int16 in scratch memory first, its terms side by side whatever their
strides; b comes packed in pairs, ``[k/2][columns][2]`` of bytes that are widened as they are read (memory is
slower), or is copied so by panels. Processors of the x86 family multiply and add pairs in one
instruction (``pmaddwd``), which cannot overflow for codes; elsewhere LLVM gets the four steps it consists of.
"""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Function, Number, Target, Value, integer, parts, vector
from graphdoc.engine.device.llvm.contraction_pairs import PairCopy
from graphdoc.engine.device.llvm.contraction_sums import Sums
from graphdoc.engine.device.llvm.contraction_widen import WidenedEmitter
from graphdoc.engine.expr import I32, U8, Dtype
from graphdoc.engine.program import Axes

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


def widened(f: Function, value: Value, dtype: Dtype) -> Value:
    """Return a code, or a vector of them, as int16."""
    kind = value.type.replace("i8", "i16")
    return f.op(f"{'zext' if dtype == U8 else 'sext'} {value} to {kind}", kind)


def pairs_added(f: Function, target: Target, a: Value, b: Value, total: Value) -> Value:
    """Return int32 sums with the products of pairs of int16 added. a, b: two int16 for each sum."""
    _, lanes = parts(total.type)
    pairs, wide = vector("i16", 2 * lanes), total.type
    x, y = (v if v.type == pairs else f.op(f"bitcast {v} to {pairs}", pairs) for v in (a, b))
    if multiplies_pairs(target, lanes):
        return f.binary("add", total, f.call(_MULTIPLY_ADD[lanes], wide, x, y))
    for half in range(2):
        chosen = ", ".join(f"i32 {2 * i + half}" for i in range(lanes))
        short = vector("i16", lanes)
        sides = [
            f.op(f"shufflevector {value}, {pairs} poison, <{lanes} x i32> <{chosen}>", short)
            for value in (x, y)
        ]
        p, q = (f.op(f"sext {side} to {wide}", wide) for side in sides)
        total = f.binary("add", total, f.binary("mul", p, q))
    return total


class CodeSums(Sums):
    """Sums of pairs; an element of a row is an i32 that holds two int16, one of a line two bytes."""

    def _line(self, b: Value, masks: Sequence[Value | None]) -> list[Value]:
        f, pairs = self.f, 2 * self.tile.lanes
        places = [f.at(b, v * pairs, "i8") for v in range(self.tile.vectors)]
        return [widened(f, f.load(vector("i8", pairs), place), self.dtypes[1]) for place in places]

    def zero(self) -> Value:
        """Return sums of nothing."""
        return integer(0, vector("i32", self.tile.lanes))

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """Return the total with the products of a pair added."""
        return pairs_added(self.f, self.precision.target, a, b, total)


class CodesEmitter(WidenedEmitter):
    """The kernel of a contraction whose sums are int32."""

    @property
    def element(self) -> str:
        """Return the type of an element of a copied row."""
        return "i16"

    @property
    def pitch(self) -> int:
        """Return how many elements a copied row takes: an even number."""
        return 2 * self._pairs

    @property
    def _rounds(self) -> int:
        return self._pairs

    @property
    def _pairs(self) -> int:
        return -(-self.work.k // 2)

    def _panel_lines(self) -> int:
        return -(-self._pairs // 2) if self.copied else 0

    def _line_step(self) -> int:
        return self.work.views[1].strides[-4] if self.spec.packed else 0

    def _row_sums(self) -> Sums:
        columns, lanes = self.tile.columns, self.tile.lanes
        self.pairs = PairCopy(self.f, columns, lanes, self.steps[1], self.work.b_terms)
        axes: Axes = [(self._pairs, (1, self.tile.columns))]
        sums = CodeSums(self.precision, self.tile, (I32, self.work.views[1].dtype), axes, gapped=False)
        sums.elements[1] = "i16"  # an element of a line is a pair of bytes
        sums.unroll = 1  # products need registers of their own: LLVM would mix terms and run out of them
        return sums

    # ---- copies --------------------------------------------------------------------------------------

    def _copy_row(self, source: Value, target: Value) -> None:
        """Emit the copy of one row, with a 0 past an odd last term."""
        self.f.store(integer(0, "i16"), self.f.at(target, self.f.sub(self.d_pitch, 1), "i16"))
        super()._copy_row(source, target)

    def _wide(self, value: Value) -> Value:
        return widened(self.f, value, self.work.views[0].dtype)

    def _copy_panel(self, base: Value, valid: Number) -> None:
        """Emit the copy of a panel of b, in pairs."""
        for masked in self._cases(valid):
            self.pairs.emit(base, self.panel, valid, masked=masked)
