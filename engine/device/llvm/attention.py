"""Attention as machine code: a head's keys and values in the thread's memory, then blocks of query rows.

Keys and values become panels (``attention_pack.py``); each of the two products is a tile of rows times a
panel in registers. Between them the scores of the block stand in one row each: score and maximum, then
exponentials and their sum; the division waits for the result. Threads share (head, block of rows) units; a
last block is moved back so that it ends with the rows.
"""

from collections.abc import Callable
from math import prod

from graphdoc.engine.device.llvm.attention_pack import Matrix, Panels, transposed
from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    floating,
    number,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.rows_along import ramp
from graphdoc.engine.device.llvm.rows_fold import Fold
from graphdoc.engine.device.llvm.rows_frame import blocks, up_to_lane
from graphdoc.engine.device.llvm.rows_softmax import NUMBERS, RowScalars, falling_exp
from graphdoc.engine.device.llvm.walk import threads_for
from graphdoc.engine.expr import F32, leaves, load
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.program import Step, merged

CHAINS = 4
"""Vectors of scores in flight."""


def tactics_attention(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["packed"]


def emit_attention(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Attention`; None where it is not float32 throughout."""
    spec = step.spec
    assert isinstance(spec, Attention)  # noqa: S101  # the table of emitters dispatches on the type
    floats = (*step.inputs[:3], *step.outputs)
    batched = any(d < spec.batch for d in leaves([spec.score], "index"))
    if any(view.dtype != F32 for view in floats) or batched or 0 in step.inputs[1].shape:
        return None
    return _Emitter(step, spec, target).kernel()


class _Emitter:
    """The kernel of one step. Names as in :class:`Attention`: s queries, t keys, d terms, e values."""

    def __init__(self, step: Step, spec: Attention, target: Target) -> None:
        self.step, self.spec, self.target = step, spec, target
        self.fn = Function()
        self.s, self.d = step.inputs[0].shape[-2:]
        self.t, self.e = step.inputs[2].shape[-2:]
        self.lanes = target.lanes(F32)
        self.vectors = 2
        self.width = self.lanes * self.vectors
        self.few = self._few()
        self.rows = 1 if self.few else min(self.s, 6 if target.registers < 32 else 12)
        self.deep = -(-self.t // 4) * 4
        views = self.views = (*step.inputs, *step.outputs)
        self.bases = [self.fn.argument(k) for k in range(len(views))]
        self.store = self.fn.argument(len(views))
        self.size = {name: self.fn.dim(getattr(self, name)) for name in ("s", "t", "d", "e", "deep")}
        direct = step.outputs[0].strides[-1] == 1 and self.e % self.lanes == 0
        self.whole = (self.e if direct else self.e + self.width - 1) // self.width * self.width
        self.direct, self.size["whole"] = direct, self.fn.dim(self.whole)
        self.strides = [[self._stride(n) for n in view.strides[spec.batch :]] for view in views]
        axes = merged(step.outputs[0].shape[: spec.batch], [view.strides[: spec.batch] for view in views])
        self.axes = [(self.fn.dim(size), [self._stride(n) for n in steps]) for size, steps in axes]
        self._layout()

    def _few(self) -> bool:
        """Return whether there are too few queries to repay packing, and vectors run along d and e."""
        q, k, v = self.step.inputs[:3]
        beside = all(view.strides[-1] == 1 for view in (q, k, v, self.step.outputs[0]))
        return self.s <= 3 and beside and self.d % self.lanes == 0 and self.e % self.lanes == 0

    def _stride(self, value: int) -> Number:
        return value if value in (0, 1) else self.fn.dim(value)

    def _layout(self) -> None:
        """Give keys, values, scores, sums and results their places in the scratch memory, in elements."""
        wide = -(-self.t // (CHAINS * self.lanes)) * CHAINS * self.lanes
        columns = -(-self.e // self.width) * self.width
        sizes = [wide * self.d, columns * self.deep, self.rows * wide, self.rows, self.rows * columns]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // 16) * 16)
        fn = self.fn
        self.scratch = 4 * starts[-1]
        places = [self.store, *(fn.at(self.store, fn.dim(n), "float") for n in starts[1:-1])]
        self.keys = Panels(fn, places[0], self.size["d"], self.width, self.lanes)
        self.values = Panels(fn, places[1], self.size["deep"], self.width, self.lanes)
        self.scores, self.sums, self.results = places[2:]
        self.wide, self.columns = fn.dim(wide), fn.dim(columns)

    # ---- the walk over heads and blocks ------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        fn = self.fn
        count = fn.dim(-(-self.s // self.rows))
        with blocks(fn, [size for size, _ in self.axes], count) as (at, start, stop):
            pointers = self.bases
            for (_, steps), position in zip(self.axes, at, strict=False):
                moves = [fn.mul(step, position) for step in steps]
                pointers = [
                    fn.at(p, move, self._element(k))
                    for k, (p, move) in enumerate(zip(pointers, moves, strict=True))
                ]
            if not self.few:
                self._pack(pointers)
            with fn.loop(start, stop) as (block, _):
                first = fn.least(fn.mul(block, self.rows), fn.sub(self.size["s"], self.rows))
                (self._single if self.few else self._block)(pointers, first)
        return fn.kernel(self.scratch, self._threads())

    def _element(self, k: int) -> str:
        return scalar(self.views[k].dtype)

    def _pack(self, pointers: list[Value]) -> None:
        (down, along), n = self.strides[1], self.size
        self.keys.fill(Matrix(pointers[1], n["t"], n["d"], down, along).turned())
        down, along = self.strides[2]
        self.values.fill(Matrix(pointers[2], n["t"], n["e"], down, along))

    def _threads(self) -> int:
        heads = prod(self.step.outputs[0].shape[: self.spec.batch])
        cycles = heads * self.s * self.t * (self.d + self.e + 12) // self.lanes // 2
        return threads_for(0, cycles, heads * -(-self.s // self.rows))

    # ---- one block of query rows ---------------------------------------------------------------------------

    def _block(self, pointers: list[Value], first: Number) -> None:
        fn = self.fn
        down, along = self.strides[0]
        queries = self._lines(fn.at(pointers[0], fn.mul(first, down), "float"), down)
        unroll = 1 if self.d % 4 else 4
        with fn.loop(0, self.size["t"], self.width) as (t, _):
            sums = self._tile(queries, along, self.keys.column(t), self.size["d"], unroll, self.vectors)
            self._put(sums, fn.at(self.scores, t, "float"), self.wide)
        with fn.loop(0, self.rows) as (row, _):
            self._score_row(pointers, fn.add(first, row), row)
        with fn.loop(0, self.rows) as (row, _):
            self._powers_of_row(row)
        lines = self._lines(self.scores, self.wide)
        out = len(self.step.inputs)
        down, along = self.strides[out]
        target = fn.at(pointers[out], fn.mul(first, down), "float")
        place, step = (target, down) if self.direct else (self.results, self.columns)
        inverse = [self._inverse(k) for k in range(self.rows)]
        with fn.loop(0, self.size["whole"], self.width) as (e, _):
            self._panel(lines, inverse, e, self.vectors, fn.at(place, e, "float"), step)
        if self.direct and self.whole < self.e:
            e, vectors = self.size["whole"], (self.e - self.whole) // self.lanes
            self._panel(lines, inverse, e, vectors, fn.at(place, e, "float"), step)
        if not self.direct:
            self._copy_out(target, down, along)

    def _panel(
        self,
        lines: list[Value],
        inverse: list[Callable[[], Value]],
        e: Number,
        vectors: int,
        target: Value,
        step: Number,
    ) -> None:
        """Write some vectors of every row's values, weighted, over the sum of the weights."""
        sums = self._tile(lines, 1, self.values.column(e), self.size["deep"], 4, vectors)
        scaled = [self._over_sum(v, inverse[k // vectors]()) for k, v in enumerate(sums)]
        self._put(scaled, target, step)

    def _lines(self, pointer: Value, down: Number) -> list[Value]:
        lines = [pointer]
        for _ in range(self.rows - 1):
            lines.append(self.fn.at(lines[-1], down, "float"))
        return lines

    def _over_sum(self, total: Value, inverse: Value) -> Value:
        """Return sums over one row's sum of exponentials; 0 for a row without one, if that is asked for."""
        found = self.fn.binary("fmul", total, inverse)
        if not self.spec.guarded:
            return found
        void = self.fn.op(f"fcmp uno {inverse}, {inverse.name}", vector("i1", self.lanes))
        zero = floating(0, found.type)
        return self.fn.op(f"select {void}, {zero}, {found}", found.type)

    def _inverse(self, row: int) -> Callable[[], Value]:
        """Return what reads the reciprocal of a row's sum, in all lanes."""
        fn = self.fn
        pointer = fn.at(self.sums, row, "float")
        return lambda: fn.splat(fn.load("float", pointer), self.lanes)

    def _tile(
        self,
        lines: list[Value],
        along: Number,
        panel: Value,
        terms: Number,
        unroll: int,
        vectors: int,
    ) -> list[Value]:
        """Return the sums of products of some rows with the columns of a panel: row by row, its vectors."""
        fn, kind = self.fn, vector("float", self.lanes)
        start = [floating(0, kind)] * (len(lines) * vectors)
        with fn.loop(0, terms, unroll, start) as (term, sums):
            side = fn.at(panel, fn.mul(term, self.width), "float")
            places = [fn.at(line, fn.mul(term, along), "float") for line in lines]
            for u in range(unroll):
                columns = [
                    fn.load(kind, fn.at(side, u * self.width + b * self.lanes, "float"))
                    for b in range(vectors)
                ]
                for k, place in enumerate(places):
                    one = fn.splat(fn.load("float", place), self.lanes)
                    for b, column in enumerate(columns):
                        n = k * vectors + b
                        sums[n] = fn.fma(one, column, sums[n])
                places = [fn.at(place, along, "float") for place in places]
        return list(sums)

    def _put(self, sums: list[Value], target: Value, down: Number) -> None:
        """Write a tile's vectors, row by row."""
        vectors = len(sums) // self.rows
        for row in range(self.rows):
            for b in range(vectors):
                self.fn.store(sums[row * vectors + b], self.fn.at(target, b * self.lanes, "float"))
            target = self.fn.at(target, down, "float")

    def _copy_out(self, target: Value, down: Number, along: Number) -> None:
        """Copy the block's results out of the scratch memory one by one."""
        fn = self.fn
        with fn.loop(0, self.rows) as (row, _), fn.loop(0, self.size["e"]) as (e, _):
            value = fn.load("float", fn.at(self.results, fn.add(fn.mul(row, self.columns), e), "float"))
            place = fn.add(fn.mul(row, down), fn.mul(e, along))
            fn.store(value, fn.at(target, place, "float"))

    # ---- one query, keys and values where they lie --------------------------------------------------------

    def _single(self, pointers: list[Value], first: Number) -> None:
        """Do one row without packing: each key and each value is read once."""
        fn, lanes, kind = self.fn, self.lanes, vector("float", self.lanes)
        query = fn.at(pointers[0], fn.mul(first, self.strides[0][0]), "float")
        keys = fn.sub(self.size["t"], fn.mod(self.size["t"], lanes))
        with fn.loop(0, keys, lanes) as (t, _):
            sums = transposed(fn, self._products(query, pointers[1], t, lanes))
            fn.store(self._added(sums), fn.at(self.scores, t, "float"))
        whole = Fold(fn, Reduction("sum", load(0, F32)), lanes, False)
        with fn.loop(keys, self.size["t"]) as (t, _):
            product = whole.result(self._products(query, pointers[1], t, 1), across=True)
            fn.store(product, fn.at(self.scores, t, "float"))
        self._score_row(pointers, first, 0)
        self._powers_of_row(0)
        inverse, out = self._inverse(0)(), len(self.step.inputs)
        target = fn.at(pointers[out], fn.mul(first, self.strides[out][0]), "float")
        for begin in range(0, self.e, 8 * lanes):
            vectors = min(8, (self.e - begin) // lanes)
            start = [floating(0, kind)] * vectors
            with fn.loop(0, self.size["t"], 1, start) as (t, sums):
                weight = fn.splat(fn.load("float", fn.at(self.scores, t, "float")), lanes)
                place = fn.add(fn.mul(t, self.strides[2][0]), begin)
                line = fn.at(pointers[2], place, "float")
                for k in range(vectors):
                    value = fn.load(kind, fn.at(line, k * lanes, "float"))
                    sums[k] = fn.fma(weight, value, sums[k])
            for k, total in enumerate(sums):
                fn.store(self._over_sum(total, inverse), fn.at(target, begin + k * lanes, "float"))

    def _products(self, query: Value, keys: Value, t: Number, count: int) -> list[Value]:
        """Return for some keys the products with the query, added up but for the lanes."""
        fn, kind = self.fn, vector("float", self.lanes)
        down = self.strides[1][0]
        lines = [fn.at(keys, fn.mul(t, down), "float")]
        for _ in range(count - 1):
            lines.append(fn.at(lines[-1], down, "float"))
        with fn.loop(0, self.size["d"], self.lanes, [floating(0, kind)] * count) as (d, sums):
            part = fn.load(kind, fn.at(query, d, "float"))
            for k, line in enumerate(lines):
                sums[k] = fn.fma(part, fn.load(kind, fn.at(line, d, "float")), sums[k])
        return list(sums)

    def _added(self, values: list[Value]) -> Value:
        while len(values) > 1:
            values = [self.fn.binary("fadd", a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    # ---- softmax of one row: in two loops over rows, so that the end of one row overlaps the next ---------

    def _score_row(self, pointers: list[Value], s: Number, number_in_block: Number) -> None:
        """Turn a row of products into scores, in place; note the largest."""
        fn, lanes = self.fn, self.lanes
        row = fn.at(self.scores, fn.mul(number_in_block, self.wide), "float")
        extra = [
            fn.at(pointers[k], fn.mul(self.strides[k][0], s), scalar(self.views[k].dtype))
            for k in range(3, len(self.step.inputs))
        ]

        def score(t: Number, chain: int, active: Value | None) -> Value:
            value = self._score(row, extra, s, fn.add(t, chain * lanes), active)
            fn.store(value, fn.at(row, fn.add(t, chain * lanes), "float"))
            return value

        peak = self._tops(Fold(fn, Reduction(NUMBERS, load(0, F32)), lanes, False), score)
        fn.store(peak, fn.at(self.sums, number_in_block, "float"))

    def _powers_of_row(self, number_in_block: Number) -> None:
        """Turn a row of scores into exponentials, in place; note one over their sum."""
        fn, lanes = self.fn, self.lanes
        row = fn.at(self.scores, fn.mul(number_in_block, self.wide), "float")
        note = fn.at(self.sums, number_in_block, "float")
        peak = fn.splat(fn.load("float", note), lanes)
        total = Fold(fn, Reduction("sum", load(0, F32)), lanes, False)
        v = RowScalars(fn, lanes, self.target).lanes
        with fn.loop(0, self.wide, CHAINS * lanes, [total.start()] * CHAINS) as (t, sums):
            for chain in range(CHAINS):
                place = fn.at(row, fn.add(t, chain * lanes), "float")
                value = falling_exp(v, fn.binary("fsub", fn.load(peak.type, place), peak))
                fn.store(value, place)
                sums[chain] = total.add(sums[chain], [value])
        inverse = fn.binary("fdiv", floating(1, "float"), total.result(list(sums), across=True))
        fn.store(inverse, note)

    def _tops(self, top: Fold, score: Callable[[Number, int, Value | None], Value]) -> Value:
        """Return the largest score of a row: rounds of four vectors, the last one active in part."""
        fn, lanes, t = self.fn, self.lanes, self.size["t"]
        step = CHAINS * lanes
        main = fn.sub(t, fn.mod(t, step))
        with fn.loop(0, main, step, [top.start()] * CHAINS) as (at, tops):
            for chain in range(CHAINS):
                tops[chain] = top.add(tops[chain], [score(at, chain, None)])
        found = list(tops)
        if self.t % step:
            for chain in range(CHAINS):
                active = up_to_lane(fn, fn.sub(fn.sub(t, main), chain * lanes), lanes)
                found[chain] = top.add(found[chain], [score(main, chain, active)])
        return top.result(found, across=True)

    def _score(self, row: Value, extra: list[Value], s: Number, t: Number, active: Value | None) -> Value:
        """Return a vector of scores, -inf in lanes past the last key."""
        fn, lanes, batch = self.fn, self.lanes, self.spec.batch
        kind = vector("float", lanes)

        def operand(k: int) -> Value:
            if k < 0:
                return fn.load(kind, fn.at(row, t, "float"))
            return self._extra(k, extra[k - 3], t, active)

        def position(d: int) -> Value:
            return ramp(fn, t, lanes) if d > batch else fn.splat(number(s), lanes)

        (value,) = RowScalars(fn, lanes, self.target).emit([self.spec.score], operand, position)
        if active is None:
            return value
        return fn.op(f"select {active}, {value}, {floating(float('-inf'), kind)}", kind)

    def _extra(self, k: int, pointer: Value, t: Number, active: Value | None) -> Value:
        """Return a vector of a further input."""
        fn, lanes, element = self.fn, self.lanes, scalar(self.views[k].dtype)
        step = self.strides[k][1]
        if step == 0:
            return fn.load(element, pointer)
        kind = vector(element, lanes)
        if step == 1:
            place = fn.at(pointer, t, element)
            return fn.load(kind, place) if active is None else fn.load_first(kind, place, active)
        whole = Value("zeroinitializer", kind)
        for lane in range(lanes):
            at = fn.least(fn.add(t, lane), fn.sub(self.size["t"], 1))
            one = fn.load(element, fn.at(pointer, fn.mul(at, step), element))
            whole = fn.op(f"insertelement {whole}, {one}, i32 {lane}", kind)
        return whole
