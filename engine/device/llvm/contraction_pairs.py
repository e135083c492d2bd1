"""Copies of panels of 8-bit codes: columns of b that lie anywhere, as lines of pairs [k/2][columns][2]."""

from collections.abc import Sequence

from graphdoc.engine.device.llvm.builder import Function, Number, Value, integer, vector
from graphdoc.engine.device.llvm.contraction_axes import Walk
from graphdoc.engine.program import Axes


class PairCopy:
    """Emits the copy of a panel.

    axes: of k as b has them. step: between b's columns. Where columns stand side by side, two lines of b are
    interleaved; where terms do, blocks of pairs are transposed in registers; else bytes go one by one.
    """

    def __init__(self, f: Function, columns: int, lanes: int, step: Number, axes: Axes) -> None:
        self.f, self.columns, self.lanes, self.step = f, columns, lanes, step
        self.walk = Walk(f, axes or [(1, (0,))])
        plain = len(axes) == 1
        self.beside = plain and step == 1
        self.along = plain and axes[0][1] == (1,) and not self.beside

    def emit(self, base: Value, panel: Value, valid: Number, *, masked: bool) -> None:
        """Copy the panel whose column 0 is at ``base``; masked: only ``valid`` columns are there.

        What lies past an odd last term is 0, past the last column anything.
        """
        if self.beside and not masked:
            self._interleave(base, panel)
        elif self.along:
            self._turn(base, panel, valid, masked)
        else:
            self._each(base, panel, valid)

    # ---- columns side by side ------------------------------------------------------------------------

    def _interleave(self, base: Value, panel: Value) -> None:
        f, (terms,), ((stride,),) = self.f, self.walk.sizes, self.walk.strides
        kind = vector("i8", self.columns)
        pairs = f.idiv(terms, 2)

        def line(k: Number) -> Value:
            return f.load(kind, f.at(base, f.mul(k, stride), "i8"))

        with f.loop(0, pairs) as (pair, _):
            k = f.mul(pair, 2)
            self._put_line(panel, pair, line(k), line(f.add(k, 1)))
        with f.loop(pairs, f.idiv(f.add(terms, 1), 2)) as (pair, _):
            self._put_line(panel, pair, line(f.mul(pair, 2)), integer(0, kind))

    def _put_line(self, panel: Value, pair: Number, first: Value, second: Value) -> None:
        f, n = self.f, self.columns
        places = ", ".join(f"i32 {at // 2 + n * (at % 2)}" for at in range(2 * n))
        both = vector("i8", 2 * n)
        mixed = f.op(f"shufflevector {first}, {second}, <{2 * n} x i32> <{places}>", both)
        f.store(mixed, f.at(panel, f.mul(pair, 2 * n), "i8"))

    # ---- terms side by side --------------------------------------------------------------------------

    def _turn(self, base: Value, panel: Value, valid: Number, masked: bool) -> None:
        """Copy blocks of lanes × lanes pairs; past the last column that one is read again."""
        f, lanes, kind = self.f, self.lanes, vector("i16", self.lanes)
        (terms,) = self.walk.sizes
        pairs = f.idiv(terms, 2)
        whole = f.mul(f.idiv(pairs, lanes), lanes)

        def column(n: Number) -> Value:
            n = f.least(f.sub(valid, 1), n) if masked else n
            return f.at(base, f.mul(n, self.step), "i8")

        with f.loop(0, self.columns, lanes) as (start, _):
            columns = [column(f.add(start, j)) for j in range(lanes)]
            target = f.at(panel, start, "i16")
            with f.loop(0, whole, lanes) as (pair, _):
                rows = [f.load(kind, f.at(c, pair, "i16"), 1) for c in columns]
                for i, row in enumerate(transposed(f, rows)):
                    f.store(row, f.at(target, f.mul(f.add(pair, i), self.columns), "i16"))
        with f.loop(0, self.columns) as (n, _):
            source, target = column(n), f.at(panel, n, "i16")
            with f.loop(whole, pairs) as (pair, _):
                one = f.load("i16", f.at(source, pair, "i16"), 1)
                f.store(one, f.at(target, f.mul(pair, self.columns), "i16"))
            with f.loop(pairs, f.idiv(f.add(terms, 1), 2)) as (pair, _):
                last = f.load("i8", f.at(source, f.mul(pair, 2), "i8"))
                alone = f.op(f"zext {last} to i16", "i16")
                f.store(alone, f.at(target, f.mul(pair, self.columns), "i16"))

    # ---- anything ------------------------------------------------------------------------------------

    def _each(self, base: Value, panel: Value, valid: Number) -> None:
        f, columns = self.f, self.columns
        terms: Number = 1
        for size in self.walk.sizes:
            terms = f.mul(terms, size)
        with f.loop(0, f.mul(f.idiv(f.add(terms, 1), 2), columns)) as (at, _):
            f.store(integer(0, "i16"), f.at(panel, at, "i16"))

        def put(here: Value, k: Number) -> None:
            line = f.add(f.mul(f.mul(f.idiv(k, 2), columns), 2), f.mod(k, 2))
            with f.loop(0, valid) as (n, _):
                read = f.load("i8", f.at(here, f.mul(n, self.step), "i8"))
                f.store(read, f.at(panel, f.add(line, f.mul(n, 2)), "i8"))

        self.walk.nest(base, "i8", put)


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """Return the columns of a square block of rows: rows half a block apart are interleaved, again and again.

    Of vectors of 16 bytes each interleaving is one instruction without a mask, which would need a register.
    """
    result, lanes = list(rows), len(rows)
    halves = [[at // 2 + lanes * (at % 2) + first for at in range(lanes)] for first in (0, lanes // 2)]
    for _ in range(lanes.bit_length() - 1):
        pairs = zip(result[: lanes // 2], result[lanes // 2 :], strict=True)
        result = [_picked(f, a, b, half) for a, b in pairs for half in halves]
    return result


def _picked(f: Function, a: Value, b: Value, places: Sequence[int]) -> Value:
    mask = ", ".join(f"i32 {at}" for at in places)
    return f.op(f"shufflevector {a}, {b}, <{len(places)} x i32> <{mask}>", a.type)
