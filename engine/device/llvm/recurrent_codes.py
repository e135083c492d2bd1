"""Recurrent layers with 8-bit weights: each step quantises the state and multiplies codes, exactly.

The state's codes, less their zero point, lie in the thread's memory as int16, two side by side for one
instruction; the weights are bytes in pairs, widened as they are read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphdoc.engine.device.llvm import math_float
from graphdoc.engine.device.llvm.builder import Function, Number, Target, Value, floating, integer, vector
from graphdoc.engine.device.llvm.contraction_codes import pairs_added, widened
from graphdoc.engine.device.llvm.lanes import Lanes
from graphdoc.engine.expr import I8

Body = Callable[[Number, Value, list[Value]], list[Value]]
"""(where in the rows' memory, a vector of the state, carried values) → what is carried on."""


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of a state: how many, how many elements each has, and how far apart they lie."""

    count: Number
    terms: Number
    pitch: Number


class StateCodes:
    """Emits what quantises a state: all rows by one range.

    place: memory for the codes, int16, rows as far apart as those of the state.
    """

    def __init__(self, fn: Function, lanes: int, rows: StateRows, place: Value) -> None:
        self.fn, self.lanes, self.rows, self.place = fn, lanes, rows, place
        self.kind = vector("float", lanes)

    def quantise(self, state: Value) -> Value:
        """Emit the codes of a state, less their zero point, and return their scale."""
        fn, one = self.fn, Lanes(self.fn, 1)
        low, high = self._range(state)
        span = one.div(one.sub(high, low), floating(255, "float"))
        scale = one.select(one.compare("oeq", span, 0.0), floating(1, "float"), span)
        middle = one.div(one.negated(low), scale)
        end = floating(255, "float")
        middle = math_float.minimum(one, math_float.maximum(one, middle, floating(0, "float")), end)
        zero = one.intrinsic("rint", middle)
        least, most = (fn.splat(x, self.lanes) for x in (one.negated(zero), one.sub(end, zero)))
        self._store(state, fn.splat(scale, self.lanes), least, most)
        return scale

    def _range(self, state: Value) -> tuple[Value, Value]:
        """Return the least and the largest element, or 0; NaN where there is one."""
        lanes = Lanes(self.fn, self.lanes)

        def wider(at: Number, x: Value, found: list[Value]) -> list[Value]:
            return [math_float.minimum(lanes, found[0], x), math_float.maximum(lanes, found[1], x)]

        low, high = self._each(state, [floating(0, self.kind)] * 2, wider)
        names = (f"llvm.vector.reduce.{n}.v{self.lanes}f32" for n in ("fminimum", "fmaximum"))
        a, b = (self.fn.call(n, "float", x) for n, x in zip(names, (low, high), strict=True))
        return a, b

    def _store(self, state: Value, scale: Value, least: Value, most: Value) -> None:
        fn, lanes = self.fn, Lanes(self.fn, self.lanes)
        whole, half = vector("i32", self.lanes), vector("i16", self.lanes)

        def put(at: Number, x: Value, found: list[Value]) -> list[Value]:
            q = lanes.intrinsic("rint", fn.binary("fdiv", x, scale))
            q = lanes.smaller(lanes.larger(q, least), most)
            code = fn.op(f"fptosi {q} to {whole}", whole)
            fn.store(fn.op(f"trunc {code} to {half}", half), fn.at(self.place, at, "i16"))
            return found

        self._each(state, [], put)

    def _each(self, state: Value, carry: Sequence[Value], body: Body) -> list[Value]:
        """Emit a loop over the vectors of all rows; past a row's end lanes are 0."""
        fn, lanes = self.fn, self.lanes
        terms = self.rows.terms
        whole = fn.mul(fn.idiv(terms, lanes), lanes)
        with fn.loop(0, self.rows.count, 1, carry) as (row, outer):
            first = fn.mul(row, self.rows.pitch)
            with fn.loop(0, whole, lanes, list(outer)) as (k, inner):
                at = fn.add(first, k)
                inner[:] = body(at, fn.load(self.kind, fn.at(state, at, "float")), inner)
            with fn.loop(whole, terms, lanes, list(inner)) as (k, rest):
                at, mask = fn.add(first, k), fn.first(fn.sub(terms, k), lanes)
                rest[:] = body(at, fn.load_first(self.kind, fn.at(state, at, "float"), mask), rest)
            outer[:] = rest
        return outer

    def lines(self, first: Number, count: int) -> list[Value]:
        """Return where the codes of some rows lie."""
        return [
            self.fn.at(self.place, self.fn.mul(self.fn.add(first, k), self.rows.pitch), "i16")
            for k in range(count)
        ]


class Panel(NamedTuple):
    """Packed codes of some columns: where they begin, how many pairs a line has, and how many lines there
    are."""

    place: Value
    line: int
    pairs: Number


def sums_of_codes(
    fn: Function, target: Target, rows: Sequence[Value], panel: Panel, places: Sequence[int], lanes: int
) -> list[list[Value]]:
    """Return, by row and place, the int32 sums of rows of int16 codes times columns of a panel.

    places: where in a line a vector of columns begins.
    """
    kind, pair = vector("i32", lanes), vector("i8", 2 * lanes)
    start = [integer(0, kind)] * (len(rows) * len(places))
    with fn.loop(0, panel.pairs, 1, start) as (k, sums):
        here = fn.at(panel.place, fn.mul(k, panel.line), "i16")
        codes = [fn.splat(fn.load("i32", fn.at(row, k, "i32")), lanes) for row in rows]
        for p, place in enumerate(places):
            column = widened(fn, fn.load(pair, fn.at(here, place, "i16")), I8)
            for r, code in enumerate(codes):
                n = r * len(places) + p
                sums[n] = pairs_added(fn, target, code, column, sums[n])
    return [list(sums[r * len(places) : (r + 1) * len(places)]) for r in range(len(rows))]
