"""Recurrent layers as machine code: every step one pass over the packed weights, the gates fused.

A unit of work is a direction and a part of the batch, from the first step to the last: no thread waits for
another within a step. Hidden units go by blocks of 16; what each needs of the weights lies side by side.
The state lies in the thread's memory, the last and the next one in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    floating,
    number,
    vector,
)
from graphdoc.engine.device.llvm.recurrent_codes import Panel, StateCodes, StateRows, sums_of_codes
from graphdoc.engine.device.llvm.rows_frame import units
from graphdoc.engine.device.llvm.scalar import Scalars
from graphdoc.engine.device.llvm.walk import threads_for
from graphdoc.engine.expr import F32, I8, Expr
from graphdoc.engine.kernels.recurrent import WIDTH, Recurrent
from graphdoc.engine.program import Step

_APART = 3
"""Rows of a batch from which on they go gate by gate, where registers are few."""

SUMS = 8
"""Independent sums that hide the latency of a multiplication and addition."""


def tactics_recurrent(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["rows"]


def emit_recurrent(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Recurrent`; None for other dtypes, or units that lie apart."""
    spec = step.spec
    assert isinstance(spec, Recurrent)  # noqa: S101  # the table of emitters dispatches on the type
    weights = step.inputs[1]
    floats = [v for v in (step.inputs[:-1] if spec.lengths else step.inputs) if v is not weights]
    beside = (step.inputs[0], step.outputs[0], *([step.inputs[-1]] if spec.codes else []))
    if any(v.dtype != F32 for v in (*floats, *step.outputs)) or not weights.contiguous:
        return None
    if weights.dtype != (I8 if spec.codes else F32) or (spec.codes and spec.lengths):
        return None
    if any(v.strides[-1] != 1 and v.shape[-1] > 1 for v in beside) or 0 in step.inputs[0].shape:
        return None
    return _Emitter(step, spec, target).kernel()


class _Emitter:
    """The kernel of one step."""

    def __init__(self, step: Step, spec: Recurrent, target: Target) -> None:
        self.step, self.spec, self.target = step, spec, target
        self.fn = fn = Function()
        self.directions, self.steps, self.batch, self.gates, self.hidden = step.inputs[0].shape
        self.lanes = target.lanes(F32)
        self.rows, self.apart = _rows_of(self.batch, target, spec)
        self.kind = vector("float", self.lanes)
        self.vectors = 1 if self.rows > 1 and not self.apart else WIDTH // self.lanes
        self.vectors = min(self.vectors, 2) if self.apart else self.vectors
        self.blocks = -(-self.hidden // WIDTH)
        self.terms = fn.dim(self.hidden)
        self.pairs = fn.dim(-(-self.hidden // 2)) if spec.codes else 0
        self.full = fn.dim(self.hidden // WIDTH)
        self.pad = self.blocks * WIDTH
        self.padded = fn.dim(self.pad)
        views = (*step.inputs, *step.outputs)
        self.bases = [fn.argument(k) for k in range(len(views))]
        self.store = fn.argument(len(views))
        self.strides = [[s if s in (0, 1) else fn.dim(s) for s in v.strides] for v in views]
        self.outputs = len(step.inputs)
        self.time = fn.dim(self.steps)
        self.scalars = Scalars(fn, self.lanes, target)

    def _work(self) -> int:
        """Return about how many cycles all steps of one row take."""
        return self.steps * (self.hidden * self.hidden * self.gates // self.lanes // 2 + 40 * self.blocks)

    def _parts(self) -> tuple[int, int]:
        """Return into how many parts the batch is cut, and how many rows each has: all, where one range
        quantises them."""
        if self.spec.codes:
            return 1, self.batch
        worth = threads_for(0, self._work() * self.batch, self.batch)
        parts = max(1, min(self.batch // self.rows, worth, 4 // self.directions))
        return parts, -(-self.batch // parts)

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        fn, (parts, rows) = self.fn, self._parts()
        count, last = fn.dim(rows), fn.dim(self.batch - rows)
        groups = fn.dim(-(-rows // self.rows))
        with units(fn, [fn.dim(self.directions), fn.dim(parts)]) as (d, part):
            first = fn.least(fn.mul(part, count), last)
            _Part(self, d, first, count, groups).run()
        more = 2 * self.pad if self.spec.codes else 4 * self.gates * WIDTH if self.apart else 0
        return fn.kernel((4 * self.pad * 6 + more) * rows, self._threads(parts))

    def _threads(self, parts: int) -> int:
        units = self.directions * parts
        return threads_for(0, self._work() * self.batch * self.directions, units)

    def chosen(self, part: str) -> Sequence[int]:
        """Return the gates that a part of a step computes."""
        return {"all": range(self.gates), "gates": range(2), "candidate": range(2, 3)}[part]

    def address(self, k: int, *at: Number) -> Value:
        """Return where operand k has an element; positions left out are 0."""
        fn, place = self.fn, 0
        for position, step in zip(at, self.strides[k], strict=False):
            place = fn.add(place, fn.mul(position, step))  # type: ignore[assignment]
        return fn.at(self.bases[k], place, "float")


def _rows_of(batch: int, target: Target, spec: Recurrent) -> tuple[int, bool]:
    """Return how many rows of the batch go together, and whether their gates go one after another.

    A vector of weights serves all rows that go together, and the second-level cache gives one for every two
    products at best. With few registers the sums of more than two rows have room for one gate at a time; its
    weights then stay in the first-level cache for all rows.
    """
    if target.registers >= 32:
        return min(batch, 4), False
    if batch < _APART or spec.codes:
        return min(batch, 2), False
    return min(range(_APART, min(batch, 4) + 1), key=lambda r: (-(-batch // r) * r, -r)), True


class _Part:
    """The code for some rows of the batch in one direction: ``count`` from ``first`` on, in groups."""

    def __init__(
        self, parent: _Emitter, direction: Number, first: Number, count: Number, groups: Number
    ) -> None:
        self.parent, self.fn, self.direction = parent, parent.fn, direction
        self.first, self.count, self.groups = first, count, groups
        self.spec, self.lanes = parent.spec, parent.lanes
        places = [parent.store]
        for _ in range(6):
            places.append(self.fn.at(places[-1], self.fn.mul(count, parent.padded), "float"))
        self.states, self.update, self.reset, self.kept = places[:4], *places[4:]
        rows = StateRows(count, parent.terms, parent.padded)
        self.codes = StateCodes(self.fn, self.lanes, rows, self.kept) if self.spec.codes else None
        self.scale: Value | None = None

    def run(self) -> None:
        """Emit the loop over time; h and c of the last step and of this one change places."""
        fn, parent = self.fn, self.parent
        held = 2 if self.spec.cell == "LSTM" else 1
        for k in range(held):
            self._copy(2 + k, self.states[2 * k], inwards=True)
        backwards: Number = self.direction if len(self.spec.reverse) == 2 else int(self.spec.reverse[0])
        with fn.loop(0, parent.time, 1, self.states) as (step, states):
            self._step(_Moment(fn, step, backwards), list(states))
            states[:] = [states[k] for k in (1, 0, 3, 2)]
        for k in range(held):
            self._copy(parent.outputs + 1 + k, states[2 * k], inwards=False)

    def _copy(self, k: int, own: Value, inwards: bool) -> None:
        """Copy the rows of operand k to or from the thread's memory."""
        fn, parent = self.fn, self.parent
        with fn.loop(0, self.count) as (row, _):
            theirs = parent.address(k, self.direction, fn.add(self.first, row))
            ours = fn.at(own, fn.mul(row, parent.padded), "float")
            with fn.loop(0, parent.terms) as (unit, _):
                pair = (
                    fn.at(theirs, fn.mul(parent.strides[k][2], unit), "float"),
                    fn.at(ours, unit, "float"),
                )
                source, target = pair if inwards else pair[::-1]
                fn.store(fn.load("float", source), target)

    def _step(self, moment: "_Moment", states: list[Value]) -> None:
        """Emit one step: all blocks of units, for a GRU in two rounds where the reset comes first."""
        two = self.spec.cell == "GRU" and not self.spec.before_reset
        if self.codes is not None:
            self.scale = self.codes.quantise(states[0])
        for part in ("gates", "candidate") if two else ("all",):
            with self.fn.loop(0, self.parent.full) as (block, _):
                self._block(moment, states, block, part, ragged=False)
            if self.parent.hidden % WIDTH:
                self._block(moment, states, self.parent.full, part, ragged=True)

    def _block(self, moment: "_Moment", states: list[Value], block: Number, part: str, ragged: bool) -> None:
        """Emit a block of units for all groups of rows; a last group is moved back to end with the rows."""
        fn, size = self.fn, self.parent.rows
        gates: Sequence[int | None] = [None]
        if self.parent.apart:
            gates = self.parent.chosen(part)
        for gate in gates:
            with fn.loop(0, self.groups) as (group, _):
                first = fn.least(fn.mul(group, size), fn.sub(self.count, size))
                work = _Block(_Rows(self, moment, states, first, size), block, part, ragged)
                if gate is None:
                    work.run()
                else:
                    work.keep(gate, self.kept)
        if self.parent.apart:
            with fn.loop(0, self.count) as (row, _):
                _Block(_Rows(self, moment, states, row, 1), block, part, ragged).finish(self.kept)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A step counted in running order. backwards: 1 where that is from the last step to the first, else 0."""

    fn: Function
    step: Number
    backwards: Number

    def place(self, length: Number) -> Number:
        """Return which step of a sequence of some length it is; past its end, where it runs forwards."""
        fn = self.fn
        turned = fn.sub(fn.sub(length, 1), self.step)
        if isinstance(turned, Value):
            past = fn.op(f"icmp slt {turned}, 0", "i1")
            turned = fn.op(f"select {past}, {number(self.step)}, {turned}", "i64")
        return fn.add(self.step, fn.mul(self.backwards, fn.sub(turned, self.step)))


class _Rows:
    """A group of rows at one step: where the thread's memory has each one's state.

    first: the first of ``count`` rows, among those of the part. t: which step of each row's sequence it is.
    alive: whether that has not ended yet; None: none ends early.
    """

    def __init__(self, part: _Part, moment: _Moment, states: list[Value], first: Number, count: int) -> None:
        self.part, self.parent, self.fn, self.lanes = part, part.parent, part.fn, part.lanes
        self.direction = part.direction
        self.first, self.count = first, count
        self.batch = [self.fn.add(part.first, self.fn.add(first, k)) for k in range(count)]
        places = [*states, part.update, part.reset]
        lines = [self._lines(place, first) for place in places]
        self.last, self.following, self.cells, self.new_cells, self.update, self.reset = lines
        lengths = [self._length(b) for b in self.batch]
        self.t = [moment.place(n) for n in lengths]
        self.alive = [
            self.fn.op(f"icmp slt {number(moment.step)}, {number(n).name}", "i1")
            if self.parent.spec.lengths
            else None
            for n in lengths
        ]

    def _length(self, row: Number) -> Number:
        """Return how many steps a row of the batch has."""
        fn, parent = self.fn, self.parent
        if not parent.spec.lengths:
            return parent.time
        k = parent.outputs - 1
        place = fn.at(parent.bases[k], fn.mul(row, parent.strides[k][0]), "i32")
        return fn.least(fn.op(f"sext {fn.load('i32', place)} to i64", "i64"), parent.time)

    def _lines(self, place: Value, first: Number) -> list[Value]:
        size = self.parent.padded
        lines = [self.fn.at(place, self.fn.mul(first, size), "float")]
        for _ in range(self.count - 1):
            lines.append(self.fn.at(lines[-1], size, "float"))
        return lines


class _Block:
    """The code for one block of 16 hidden units at one step."""

    def __init__(self, rows: _Rows, block: Number, part: str, ragged: bool) -> None:
        self.rows, self.block, self.part, self.ragged = rows, block, part, ragged
        self.parent, self.fn, self.lanes = rows.parent, rows.fn, rows.lanes
        self.spec = rows.parent.spec
        self.first = self.fn.mul(block, WIDTH)
        self.chosen = self.parent.chosen(part)

    def run(self) -> None:
        """Emit the sums of some vectors of units, then what follows from them, until the block is done."""
        vectors = self.parent.vectors
        with self.fn.loop(0, WIDTH, vectors * self.lanes) as (begin, _):
            sums = self._sums(begin)
            for row in range(self.rows.count):
                for v in range(vectors):
                    own = {g: sums[row, g, v] for g in self.chosen}
                    self._finish(row, self.fn.add(begin, v * self.lanes), own)

    def keep(self, gate: int, memory: Value) -> None:
        """Emit the sums of one gate and leave them in memory, [row][gate][16]."""
        vectors = self.parent.vectors
        with self.fn.loop(0, WIDTH, vectors * self.lanes) as (begin, _):
            for (row, _, v), total in self._sums_of([gate], begin).items():
                line = self._kept(memory, row, gate)
                self.fn.store(total, self.fn.at(line, self.fn.add(begin, v * self.lanes), "float"))

    def finish(self, memory: Value) -> None:
        """Emit what follows from the sums of one row that lie in memory."""
        with self.fn.loop(0, WIDTH, self.lanes) as (begin, _):
            lines = {g: self._kept(memory, 0, g) for g in self.chosen}
            sums = {
                g: self.fn.load(self.parent.kind, self.fn.at(x, begin, "float")) for g, x in lines.items()
            }
            self._finish(0, begin, sums)

    def _kept(self, memory: Value, row: int, gate: int) -> Value:
        fn, gates = self.fn, self.parent.gates
        place = fn.add(fn.mul(fn.add(self.rows.first, row), gates * WIDTH), gate * WIDTH)
        return fn.at(memory, place, "float")

    # ---- sums --------------------------------------------------------------------------------------------

    def _sums(self, begin: Number) -> dict[tuple[int, int, int], Value]:
        """Return, by row, gate and vector, the inputs plus the products with the last state."""
        if self.rows.part.codes is not None:
            return self._sums_of_codes(self.rows.part.codes, begin)
        return self._sums_of(self.chosen, begin)

    def _sums_of(self, gates: Sequence[int], begin: Number) -> dict[tuple[int, int, int], Value]:
        fn, parent = self.fn, self.parent
        keys = [(row, g, v) for row in range(self.rows.count) for g in gates for v in range(parent.vectors)]
        unroll = 4 if parent.hidden % 4 == 0 else 1
        split = min(unroll, -(-SUMS // len(keys)))
        zero = floating(0, parent.kind)
        start = [self._input(row, g, fn.add(begin, v * self.lanes)) for row, g, v in keys]
        start += [zero] * (len(keys) * (split - 1))
        source = self.rows.reset if self.part == "candidate" else self.rows.last
        place = fn.add(fn.mul(self.block, fn.mul(parent.terms, parent.gates * WIDTH)), begin)
        panel = fn.at(parent.address(1, self.rows.direction), place, "float")
        panels = {g: fn.at(panel, fn.mul(parent.terms, g * WIDTH), "float") for g in gates}
        with fn.loop(0, parent.terms, unroll, start) as (term, sums):
            sides = {g: fn.at(panels[g], fn.mul(term, WIDTH), "float") for g in gates}
            states = [fn.at(s, term, "float") for s in source]
            for u in range(unroll):
                ones = [fn.splat(fn.load("float", fn.at(s, u, "float")), self.lanes) for s in states]
                for g in gates:
                    for v in range(parent.vectors):
                        place = fn.at(sides[g], u * WIDTH + v * self.lanes, "float")
                        column = fn.load(parent.kind, place)
                        for row, one in enumerate(ones):
                            n = keys.index((row, g, v)) + len(keys) * (u % split)
                            sums[n] = fn.fma(one, column, sums[n])
        return {key: self._added(sums[n :: len(keys)]) for n, key in enumerate(keys)}

    def _sums_of_codes(self, codes: StateCodes, begin: Number) -> dict[tuple[int, int, int], Value]:
        """Return the same of codes: exact sums, times the state's scale and the column's."""
        fn, parent, scale = self.fn, self.parent, self.rows.part.scale
        assert scale is not None  # noqa: S101  the step began with it
        line = parent.gates * WIDTH
        place = fn.add(fn.mul(self.block, fn.mul(parent.pairs, line)), begin)
        base = fn.at(parent.bases[1], fn.mul(self.rows.direction, parent.strides[1][0]), "i8")
        columns = [(g, v) for g in self.chosen for v in range(parent.vectors)]
        places = [g * WIDTH + v * self.lanes for g, v in columns]
        lines = codes.lines(self.rows.first, parent.rows)
        panel = Panel(fn.at(base, place, "i16"), line, parent.pairs)
        totals = sums_of_codes(fn, parent.target, lines, panel, places, self.lanes)
        state, found = fn.splat(scale, self.lanes), dict[tuple[int, int, int], Value]()
        for k, (g, v) in enumerate(columns):
            offset = fn.add(begin, v * self.lanes)
            own = self._load(parent.address(parent.outputs - 1, self.rows.direction, g), offset)
            factor = fn.binary("fmul", state, own)
            for row, total in enumerate(totals):
                real = fn.op(f"sitofp {total[k]} to {parent.kind}", parent.kind)
                product = fn.binary("fmul", real, factor)
                found[row, g, v] = fn.binary("fadd", self._of_inputs(row, g, offset), product)
        return found

    def _added(self, values: Sequence[Value]) -> Value:
        total = values[0]
        for value in values[1:]:
            total = self.fn.binary("fadd", total, value)
        return total

    def _input(self, row: int, gate: int, offset: Number) -> Value:
        """Return what a gate's sum begins with."""
        if self.spec.before_reset and gate == 2:
            return self._load(self.parent.address(3, self.rows.direction), offset)
        return self._of_inputs(row, gate, offset)

    def _of_inputs(self, row: int, gate: int, offset: Number) -> Value:
        at = (self.rows.direction, self.rows.t[row], self.rows.batch[row], gate)
        return self._load(self.parent.address(0, *at), offset)

    # ---- operands by unit --------------------------------------------------------------------------------

    def _unit(self, offset: Number) -> Number:
        return self.fn.add(self.first, offset)

    def _active(self, offset: Number) -> Value:
        return self.fn.first(self.fn.sub(self.parent.terms, self._unit(offset)), self.lanes)

    def _load(self, pointer: Value, offset: Number) -> Value:
        place = self.fn.at(pointer, self._unit(offset), "float")
        if not self.ragged:
            return self.fn.load(self.parent.kind, place)
        return self.fn.load_first(self.parent.kind, place, self._active(offset))

    def _own(self, pointer: Value, offset: Number) -> Value:
        """Return what the thread's memory has of these units; it is padded."""
        return self.fn.load(self.parent.kind, self.fn.at(pointer, self._unit(offset), "float"))

    def _keep(self, value: Value, pointer: Value, offset: Number) -> None:
        self.fn.store(value, self.fn.at(pointer, self._unit(offset), "float"))

    # ---- cells -------------------------------------------------------------------------------------------

    def _finish(self, row: int, offset: Number, sums: dict[int, Value]) -> None:
        """Emit what follows from the sums of one vector of units."""
        if self.part == "gates":
            z, reset = self._act(0, sums[0]), self._act(0, sums[1])
            self._keep(z, self.rows.update[row], offset)
            held = self.fn.binary("fmul", reset, self._own(self.rows.last[row], offset))
            self._keep(held, self.rows.reset[row], offset)
            return
        h = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.spec.cell](row, offset, sums)
        self._keep(self._unless_ended(row, h, self.rows.last[row], offset), self.rows.following[row], offset)
        h = self._unless_ended(row, h, None, offset)
        at = (self.rows.direction, self.rows.t[row], self.rows.batch[row])
        y = self.parent.address(self.parent.outputs, *at)
        place = self.fn.at(y, self._unit(offset), "float")
        if self.ragged:
            self.fn.store_first(h, place, self._active(offset))
        else:
            self.fn.store(h, place)

    def _unless_ended(self, row: int, new: Value, old: Value | None, offset: Number) -> Value:
        """Return the new value, or past the end of the row's sequence what stands at ``old`` (None: 0)."""
        alive = self.rows.alive[row]
        if alive is None:
            return new
        kept = floating(0, new.type) if old is None else self._own(old, offset)
        return self.fn.op(f"select {alive}, {new}, {kept}", new.type)

    def _act(self, k: int, x: Value) -> Value:
        return self._emit(self.spec.activations[k], x)

    def _emit(self, expr: Expr, x: Value) -> Value:
        return self.parent.scalars.emit([expr], lambda _: x)[0]

    def _lstm(self, row: int, offset: Number, sums: dict[int, Value]) -> Value:
        fn = self.fn
        i, o, f = (self._act(0, sums[g]) for g in range(3))
        candidate = fn.binary("fmul", i, self._act(1, sums[3]))
        c = fn.fma(f, self._own(self.rows.cells[row], offset), candidate)
        kept = self._unless_ended(row, c, self.rows.cells[row], offset)
        self._keep(kept, self.rows.new_cells[row], offset)
        return fn.binary("fmul", o, self._act(2, c))

    def _gru(self, row: int, offset: Number, sums: dict[int, Value]) -> Value:
        fn = self.fn
        if self.part == "candidate":
            z, inner = self._own(self.rows.update[row], offset), sums[2]
        else:
            z, reset = self._act(0, sums[0]), self._act(0, sums[1])
            inner = fn.fma(reset, sums[2], self._of_inputs(row, 2, offset))
        n = self._act(1, inner)
        away = fn.binary("fsub", self._own(self.rows.last[row], offset), n)
        return fn.fma(z, away, n)

    def _rnn(self, row: int, offset: Number, sums: dict[int, Value]) -> Value:
        return self._act(0, sums[0])
