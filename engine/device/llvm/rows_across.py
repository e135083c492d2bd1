"""Rows that lie side by side: vectors run across the rows, loops over what is reduced.

A unit of work is a tile of instances: vectors of neighbouring rows, and for windows several positions, so
that what these share (windows that overlap, weights) is read once. A last tile is moved back so that it
ends with its axis: what it computes twice is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product as all_positions

from graphdoc.engine.device.llvm.builder import Function, Kernel, Number, Target, Value, number
from graphdoc.engine.device.llvm.rows_along import lanes_of, ramp
from graphdoc.engine.device.llvm.rows_fold import Fold
from graphdoc.engine.device.llvm.rows_frame import Frame, chunk_of, stages, units
from graphdoc.engine.device.llvm.rows_layout import Axis, Layout, product
from graphdoc.engine.device.llvm.rows_passes import Pass, Varying, cost, passes
from graphdoc.engine.expr import Expr
from graphdoc.engine.kernels.rows import Rows

BLOCK = 128
"""Terms after which a long sum's accumulators are added up and begin anew."""

UNROLLED = 12
"""Positions of a window that are written out one after another; the rest are loops."""


@dataclass(frozen=True, slots=True)
class Tile:
    """lanes of the vector axis, vectors of it, and positions of the tile axis that are computed together."""

    axis: Axis | None
    lanes: int
    vectors: int
    beside: Axis | None
    positions: int


def tile_of(spec: Rows, layout: Layout, target: Target, axis: Axis | None) -> Tile:
    """Return the tile for vectors along ``axis``; None: rows one by one."""
    lanes = lanes_of(spec, layout, target, axis)
    exprs = [s.expr for s in spec.stages]
    room = max(1, (target.registers - 2) // 2 // max(1, len(exprs)))
    room = room if cost(exprs) <= 8 else min(room, 4)
    if axis and any(axis.strides[k] not in (0, 1) for k in layout.varying):
        room = min(room, 2)  # vectors put together from single elements make long code
    beside = _beside(layout, axis)
    if beside is not None and _shares(layout, beside):
        positions = _even(beside.size, room)
        return Tile(axis, lanes, _vectors(axis, lanes, max(1, room // positions)), beside, positions)
    vectors = _vectors(axis, lanes, room)
    positions = _even(beside.size, max(1, min(room, 4) // vectors)) if beside else 1
    return Tile(axis, lanes, vectors, beside, positions)


def _beside(layout: Layout, axis: Axis | None) -> Axis | None:
    """Return the innermost other kept axis."""
    return next((a for a in reversed(layout.rows) if a is not axis), None)


def _shares(layout: Layout, axis: Axis) -> bool:
    """Return whether neighbours on an axis read the same elements."""
    for k in layout.varying:
        reach = sum(abs(a.strides[k]) * (a.size - 1) for a in layout.reduced)
        if abs(axis.strides[k]) <= reach:
            return True
    return False


def _even(size: int, most: int) -> int:
    """Return the positions of a tile, at most ``most``, that cut an axis into the fewest, evenest tiles."""
    count = -(-size // max(1, most))
    return -(-size // count)


def _vectors(axis: Axis | None, lanes: int, most: int) -> int:
    """Return the vectors of a tile, at most ``most``, that waste least; of equal ones the most."""
    if axis is None:
        return 1
    fits = [b for b in range(1, most + 1) if b * lanes <= axis.size]
    return min(fits, key=lambda b: (-(-axis.size // (b * lanes)) * b, -b))


class Across:
    """The kernel of one step, its vectors along a kept axis."""

    def __init__(self, spec: Rows, layout: Layout, target: Target, tile: Tile, threads: int) -> None:
        self.spec, self.layout, self.tile, self.threads = spec, layout, tile, threads
        reduced = [a.domain for a in layout.reduced if a.domain >= 0]
        self.passes = passes(spec, Varying(layout.varying, layout.inputs, reduced), keep=False)
        self.fn = Function()
        self.frame = Frame(self.fn, layout, target)
        self.looped, self.written = _split(layout.reduced)
        self.blocked = layout.length > 4 * BLOCK and any(s.fold == "sum" for s in spec.stages)

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        frame, fn, tile = self.frame, self.fn, self.tile
        outer = [a for a in self.layout.rows if a is not tile.axis and a is not tile.beside]
        sizes = [frame.size(a) for a in outer]
        steps = [
            (a, n) for a, n in ((tile.beside, tile.positions), (tile.axis, tile.vectors * tile.lanes)) if a
        ]
        sizes += [fn.idiv(fn.add(frame.size(a), n - 1), n) for a, n in steps]
        with units(fn, sizes) as at:
            starts = [
                fn.least(fn.mul(p, n), fn.sub(frame.size(a), n))
                for (a, n), p in zip(steps, at[len(outer) :], strict=True)
            ]
            axes = [*outer, *(a for a, _ in steps)]
            places = [*at[: len(outer)], *starts]
            pointers = frame.bases
            for axis, position in zip(axes, places, strict=True):
                pointers = frame.moved(pointers, axis, position)
            where = {a.domain: p for a, p in zip(axes, places, strict=True) if a.domain >= 0}
            _Unit(self, pointers, where).run()
        return fn.kernel(0, self.threads)


def _split(reduced: Sequence[Axis]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the reduced axes that become loops, and the inner ones whose positions are written out."""
    for cut in range(len(reduced) + 1):
        if product(reduced[cut:]) <= UNROLLED:
            return tuple(reduced[:cut]), tuple(reduced[cut:])
    raise AssertionError("no axes have the product 1")


Place = tuple[int, int]
"""One instance of a tile: its position on the tile axis, and which vector it is."""


class _Unit:
    """The code for one tile: the values of its rows are vectors, one set per instance."""

    def __init__(self, parent: Across, pointers: list[Value], where: dict[int, Number]) -> None:
        self.parent, self.fn, self.frame = parent, parent.fn, parent.frame
        self.where = where
        tile = parent.tile
        self.places: list[Place] = list(all_positions(range(tile.positions), range(tile.vectors)))
        self.values: dict[Place, dict[int, Value]] = {place: {} for place in self.places}
        self.here = _Reader(self, pointers)

    def run(self) -> None:
        """Emit the passes and the outputs of the rows."""
        for part in self.parent.passes:
            for place in self.places:
                found = self._rowwise(place, part.uniform)
                self.values[place].update((part.first + k, value) for k, value in enumerate(found))
            self._run(part)
        inputs = self.parent.layout.inputs
        single = [(k, o.expr) for k, o in enumerate(self.parent.spec.outputs) if not o.full]
        for place in self.places:
            for (k, _), value in zip(single, self._rowwise(place, [e for _, e in single]), strict=True):
                self.here.store(inputs + k, value, place, ())

    def _rowwise(self, place: Place, exprs: Sequence[Expr]) -> list[Value]:
        return self.here.emit(exprs, place, (), {})

    def _run(self, part: Pass) -> None:
        """Emit one pass: its accumulators stand in the order of places, folds within a place."""
        stages_ = self.parent.spec.stages
        lanes, native = self.parent.tile.lanes, self.frame.scalars(1).native
        folds = [Fold(self.fn, replace(stages_[k], expr=e), lanes, native) for k, e in part.folds]
        totals = _Loops(self, part, folds).run([], self.parent.looped, _fresh(folds, len(self.places)))
        for n, place in enumerate(self.places):
            for i, (k, _) in enumerate(part.folds):
                self.values[place][k] = folds[i].result([totals[n * len(folds) + i]], across=False)


def _fresh(folds: list[Fold], count: int) -> list[Value]:
    return [fold.start() for _ in range(count) for fold in folds]


class _Loops:
    """The loops of one pass over the reduced axes."""

    def __init__(self, unit: _Unit, part: Pass, folds: list[Fold]) -> None:
        self.unit, self.part, self.folds, self.fn = unit, part, folds, unit.fn
        self.parent = unit.parent

    def run(self, at: list[Number], axes: Sequence[Axis], totals: list[Value]) -> list[Value]:
        """Run over all positions of the axes left; long sums begin anew block by block."""
        if not axes:
            return self._body(at, totals)
        return self._span(0, self.unit.frame.size(axes[0]), axes[0].size, at, axes, totals)

    def _span(
        self,
        start: Number,
        stop: Number,
        most: int,
        at: list[Number],
        axes: Sequence[Axis],
        totals: list[Value],
    ) -> list[Value]:
        """Run over a stretch of the first axis, of at most ``most`` positions."""
        if not self.parent.blocked or most <= 2 * BLOCK:
            return self._through(start, stop, at, axes, totals)
        chunk = chunk_of(most, BLOCK)
        with self.fn.loop(start, stop, chunk, totals) as (begin, carried):
            end = self.fn.least(self.fn.add(begin, chunk), stop)
            found = self._span(begin, end, chunk, at, axes, self._anew())
            carried[:] = self._joined(carried, found)
        return list(carried)

    def _through(
        self, start: Number, stop: Number, at: list[Number], axes: Sequence[Axis], totals: list[Value]
    ) -> list[Value]:
        apart = self.parent.blocked and product(axes[1:]) >= 16
        with self.fn.loop(start, stop, 1, totals) as (position, carried):
            inner = self._anew() if apart else list(carried)
            found = self.run([*at, position], axes[1:], inner)
            carried[:] = self._joined(carried, found) if apart else found
        return list(carried)

    def _anew(self) -> list[Value]:
        return _fresh(self.folds, len(self.unit.places))

    def _joined(self, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        folds = self.folds * len(self.unit.places)
        return [fold.combined(x, y) for fold, x, y in zip(folds, a, b, strict=True)]

    def _body(self, at: list[Number], totals: list[Value]) -> list[Value]:
        """Emit the written-out positions of the window for every instance."""
        reader = self.unit.here.moved(self.parent.looped, at)
        roots = [e for fold in self.folds for e in fold.roots]
        roots += [e for _, e in self.part.writes]
        totals = list(totals)
        for window in all_positions(*(range(a.size) for a in self.parent.written)):
            for n, place in enumerate(self.unit.places):
                values = iter(reader.emit(roots, place, window, self.unit.values[place]))
                for i, fold in enumerate(self.folds, start=n * len(self.folds)):
                    totals[i] = fold.add(totals[i], [next(values) for _ in fold.roots])
                for (k, _), value in zip(self.part.writes, values, strict=True):
                    reader.store(self.parent.layout.inputs + k, value, place, window)
        return totals


class _Reader:
    """Reads and writes operands around one address each; what has been read is not read again.

    Positions are counted from there: of the tile, its vectors, and the written-out window. An address is one
    stride on from one that is known, where there is one.
    """

    def __init__(self, unit: _Unit, pointers: list[Value], where: dict[int, Number] | None = None) -> None:
        self.unit, self.fn, self.frame = unit, unit.fn, unit.frame
        self.parent, self.pointers = unit.parent, pointers
        self.where = unit.where if where is None else where
        self.known: dict[tuple[int, int], Value] = {(k, 0): p for k, p in enumerate(pointers)}
        self.loaded: dict[tuple[int, int], Value] = {}

    def moved(self, axes: Sequence[Axis], at: Sequence[Number]) -> "_Reader":
        """Return a reader further on by positions of reduced axes."""
        pointers, where = self.pointers, dict(self.where)
        for axis, position in zip(axes, at, strict=True):
            pointers = self.frame.moved(pointers, axis, position)
            where[axis.domain] = position
        return _Reader(self.unit, pointers, where)

    def emit(
        self, exprs: Sequence[Expr], place: Place, window: tuple[int, ...], values: dict[int, Value]
    ) -> list[Value]:
        """Compute expressions of one instance at a position of the window."""
        known = values or self.unit.values[place]
        return self.frame.scalars(self.parent.tile.lanes).emit(
            list(exprs),
            lambda k: self._load(k, place, window),
            lambda d: self._index(d, place, window),
            stages(known),
        )

    def store(self, k: int, value: Value, place: Place, window: tuple[int, ...]) -> None:
        """Write operand k of one instance."""
        tile = self.parent.tile
        self.frame.put(k, value, self._address(k, self._steps(place, window))[1], tile.lanes, tile.axis)

    def _load(self, k: int, place: Place, window: tuple[int, ...]) -> Value:
        offset, pointer = self._address(k, self._steps(place, window))
        if (k, offset) not in self.loaded:
            tile = self.parent.tile
            self.loaded[k, offset] = self.frame.load(k, pointer, tile.lanes, tile.axis)
        return self.loaded[k, offset]

    def _steps(self, place: Place, window: tuple[int, ...]) -> list[tuple[Axis, int]]:
        tile = self.parent.tile
        pairs = [(tile.beside, place[0]), (tile.axis, place[1] * tile.lanes)]
        pairs += list(zip(self.parent.written, window, strict=bool(window)))
        return [(axis, count) for axis, count in pairs if axis is not None and count]

    def _address(self, k: int, steps: list[tuple[Axis, int]]) -> tuple[int, Value]:
        """Return operand k's place after some steps: how many elements on, and the address."""
        steps = [(axis, count) for axis, count in steps if axis.strides[k]]
        offset = sum(axis.strides[k] * count for axis, count in steps)
        if (k, offset) not in self.known:
            axis, count = steps[-1]
            unit = self.parent.tile.lanes if axis is self.parent.tile.axis else 1
            before = self._address(k, [*steps[:-1], *([(axis, count - unit)] if count > unit else [])])[1]
            ahead = self.fn.mul(self.frame.stride(axis, k), unit)
            self.known[k, offset] = self.frame.ahead(k, before, ahead)
        return offset, self.known[k, offset]

    def _index(self, d: int, place: Place, window: tuple[int, ...]) -> Value:
        tile = self.parent.tile
        position = self.where.get(d, 0)
        for axis, count in self._steps(place, window):
            if axis.domain == d:
                position = self.fn.add(position, count)
        if tile.axis is not None and tile.axis.domain == d:
            return ramp(self.fn, position, tile.lanes)
        return self.fn.splat(number(position), tile.lanes)
