"""Rows whose elements lie side by side: vectors run along the row, in several accumulators.

A thread does whole rows. The last vector of a pass is moved back so that it ends with the row: what it then
reads twice counts once in sums, and what it writes twice is the same. Lanes are halved until they fit a row.
"""

from collections.abc import Callable
from dataclasses import replace

from graphdoc.engine.device.llvm.builder import Function, Kernel, Number, Target, Value, number, vector
from graphdoc.engine.device.llvm.math_cast import register
from graphdoc.engine.device.llvm.rows_fold import Fold
from graphdoc.engine.device.llvm.rows_frame import Frame, chunk_of, from_lane, nest, stages, units
from graphdoc.engine.device.llvm.rows_layout import Axis, Layout
from graphdoc.engine.device.llvm.rows_passes import Pass, Varying, cost, passes
from graphdoc.engine.expr import Dtype, Expr, leaves, postorder
from graphdoc.engine.kernels.rows import Rows

CHAINS = 4
"""Vectors in flight: one chain of dependent instructions at a time leaves the processor idle."""

DEAR = 16
"""Instructions from which vectors of several registers pay: LLVM splits each of their operations into one per
register, so that what does not depend on each other stands side by side. Of one vector after another the
processor would hold too few at a time to hide how long each takes."""

SPEED = {1: 1.0, 2: 0.92, 4: 0.82}
"""Registers to a vector, where it is dear, and the time that an element then takes, measured on softmax."""

KEPT = 1 << 18
"""Elements of a row up to which expressions are kept for a later pass; beyond, memory is slower."""

BLOCK = 128
"""Rounds after which a sum's accumulators are added up and begin anew, so that long sums stay exact."""


class Along:
    """The kernel of one step, its vectors along the last reduced axis."""

    def __init__(self, spec: Rows, layout: Layout, target: Target, threads: int) -> None:
        self.spec, self.layout, self.threads = spec, layout, threads
        self.axis = layout.reduced[-1]
        self.lanes = lanes_of(spec, layout, target, self.axis)
        dear = cost(exprs_of(spec)) > DEAR
        together = registers(self.axis.size, self.lanes) if dear else 1
        self.lanes *= together
        chains = CHAINS if not dear else 2 if together == 1 else 1
        self.chains = min(chains, max(1, self.axis.size // self.lanes))
        reduced = [a.domain for a in layout.reduced if a.domain >= 0]
        varying = Varying(layout.varying, layout.inputs, reduced)
        self.passes = passes(spec, varying, keep=layout.length <= KEPT)
        self.fn = Function()
        self.frame = Frame(self.fn, layout, target)
        self._place_kept()

    def _place_kept(self) -> None:
        """Give every kept expression its part of the thread's scratch memory: dtype and offset by number."""
        self.kept: dict[int, tuple[Expr, int]] = {}
        self.scratch = 0
        for run in self.passes:
            for k, expr in run.keeps:
                self.kept[k] = expr, self.scratch
                self.scratch += -(-self.layout.length * max(4, expr.dtype.itemsize) // 64) * 64
        self.store = self.fn.argument(len(self.layout.dtypes)) if self.kept else Value("null", "ptr")

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        frame, rows = self.frame, self.layout.rows
        size, step = frame.size(self.axis), self.lanes * self.chains
        self.full = self.fn.sub(size, self.fn.mod(size, step))
        with units(self.fn, [frame.size(a) for a in rows]) as at:
            pointers = frame.bases
            for axis, position in zip(rows, at, strict=True):
                pointers = frame.moved(pointers, axis, position)
            where = {a.domain: p for a, p in zip(rows, at, strict=True) if a.domain >= 0}
            _Row(self, pointers, where).run()
        return self.fn.kernel(self.scratch, self.threads)


class _Row:
    """The code for one row: its values are scalars."""

    def __init__(self, parent: Along, pointers: list[Value], where: dict[int, Number]) -> None:
        self.parent, self.fn, self.frame = parent, parent.fn, parent.frame
        self.pointers, self.where = pointers, where
        self.values: dict[int, Value] = {}

    def run(self) -> None:
        """Emit the passes and the row's outputs."""
        for part in self.parent.passes:
            for k, value in enumerate(self._scalars(part.uniform)):
                self.values[part.first + k] = value
            self._run(part)
        single = [(k, o.expr) for k, o in enumerate(self.parent.spec.outputs) if not o.full]
        inputs = self.parent.layout.inputs
        for (k, _), value in zip(single, self._scalars([e for _, e in single]), strict=True):
            self.frame.put(inputs + k, value, self.pointers[inputs + k], 1)

    def _scalars(self, exprs: "list[Expr] | tuple[Expr, ...]") -> list[Value]:
        return self.frame.scalars(1).emit(
            list(exprs),
            lambda k: self.frame.load(k, self.pointers[k], 1),
            lambda d: number(self.where.get(d, 0)),
            stages(self.values),
        )

    def _run(self, part: Pass) -> None:
        parent, fn = self.parent, self.fn
        native = self.frame.scalars(1).native
        folds = [
            Fold(fn, replace(parent.spec.stages[k], expr=e), parent.lanes, native) for k, e in part.folds
        ]
        wide = {k: fn.splat(self.values[k], parent.lanes) for k in leaves(part.exprs, "stage")}
        body = _Elements(self, part, folds, wide)
        totals = body.outer()
        for i, (k, _) in enumerate(part.folds):
            self.values[k] = folds[i].result(totals[i * parent.chains : (i + 1) * parent.chains], across=True)


class _Elements:
    """One pass over the elements of a row."""

    def __init__(self, row: _Row, part: Pass, folds: list[Fold], wide: dict[int, Value]) -> None:
        self.row, self.part, self.folds, self.wide = row, part, folds, wide
        self.parent, self.fn, self.frame = row.parent, row.fn, row.frame
        self.chains, self.lanes = self.parent.chains, self.parent.lanes

    def start(self) -> list[Value]:
        return [fold.start() for fold in self.folds for _ in range(self.chains)]

    def outer(self) -> list[Value]:
        """Run over the outer reduced axes; return every fold's accumulators."""
        axes = self.parent.layout.reduced[:-1]
        size = self.frame.size(self.parent.axis)

        def body(at: list[Number], totals: list[Value]) -> list[Value]:
            pointers, first = self.row.pointers, None
            for axis, position in zip(axes, at, strict=True):
                pointers = self.frame.moved(pointers, axis, position)
                whole = (
                    position
                    if first is None
                    else self.fn.add(self.fn.mul(first, self.frame.size(axis)), position)
                )
                first = whole
            where = {a.domain: p for a, p in zip(axes, at, strict=True) if a.domain >= 0}
            line = _Line(self, pointers, 0 if first is None else self.fn.mul(first, size), where)
            return line.run(totals)

        return nest(self.fn, [self.frame.size(a) for a in axes], self.start(), body)


class _Line:
    """One stretch of elements that lie side by side. first: how many of the row's elements come before."""

    def __init__(
        self, elements: _Elements, pointers: list[Value], first: Number, where: dict[int, Number]
    ) -> None:
        self.elements, self.pointers, self.first, self.where = elements, pointers, first, where
        self.fn, self.frame, self.parent = elements.fn, elements.frame, elements.parent

    def run(self, totals: list[Value]) -> list[Value]:
        """Run over the line, long sums block by block."""
        parent = self.parent
        step = parent.lanes * parent.chains
        if parent.layout.length <= 2 * BLOCK * step or not any(
            f.part.fold == "sum" for f in self.elements.folds
        ):
            return self._rest(self._main(0, parent.full, totals))
        totals = self._span(0, parent.full, -(-parent.axis.size // step), totals)
        return self._combined(totals, self._rest(self.elements.start()))

    def _span(self, start: Number, stop: Number, rounds: int, totals: list[Value]) -> list[Value]:
        """Run over a stretch of at most so many rounds; a sum begins anew with each block (of blocks)."""
        if rounds <= 2 * BLOCK:
            return self._main(start, stop, totals)
        chunk, step = chunk_of(rounds, BLOCK), self.parent.lanes * self.parent.chains
        with self.fn.loop(start, stop, chunk * step, totals) as (begin, carried):
            end = self.fn.least(self.fn.add(begin, chunk * step), stop)
            carried[:] = self._combined(carried, self._span(begin, end, chunk, self.elements.start()))
        return list(carried)

    def _combined(self, a: list[Value], b: list[Value]) -> list[Value]:
        chains = self.elements.chains
        return [
            self.elements.folds[k // chains].combined(x, y) for k, (x, y) in enumerate(zip(a, b, strict=True))
        ]

    def _main(self, start: Number, stop: Number, totals: list[Value]) -> list[Value]:
        """Run over the part of the line that fills all chains."""
        lanes, chains = self.parent.lanes, self.parent.chains
        with self.fn.loop(start, stop, lanes * chains, totals) as (position, carried):
            for chain in range(chains):
                self._vector(self.fn.add(position, chain * lanes), carried, chain, None)
        return list(carried)

    def _rest(self, totals: list[Value]) -> list[Value]:
        """Run over what is left, vector by vector, the last one moved back to the end."""
        fn, lanes, size = self.fn, self.parent.lanes, self.frame.size(self.parent.axis)
        with fn.loop(self.parent.full, size, lanes, totals) as (position, carried):
            if lanes == 1:
                self._vector(position, carried, 0, None)
            else:
                at = fn.least(position, fn.sub(size, lanes))
                self._vector(at, carried, 0, from_lane(fn, fn.sub(position, at), lanes))
        return list(carried)

    def _vector(self, position: Number, totals: list[Value], chain: int, active: Value | None) -> None:
        """Compute one vector: add to the chain's accumulators, write outputs, note what is kept."""
        part, folds, inputs = self.elements.part, self.elements.folds, self.parent.layout.inputs
        roots = [e for fold in folds for e in fold.roots] + [e for _, e in (*part.writes, *part.keeps)]
        values = self.frame.scalars(self.parent.lanes).emit(
            roots, self._load(position), self._index(position), stages(self.elements.wide)
        )
        for k, fold in enumerate(folds):
            own, values = values[: len(fold.roots)], values[len(fold.roots) :]
            slot = k * self.elements.chains + chain
            totals[slot] = fold.add(totals[slot], own, active)
        for (k, _), value in zip(part.writes, values, strict=False):
            self.frame.put(
                inputs + k, value, self._pointer(inputs + k, position), self.parent.lanes, self.parent.axis
            )
        for (k, _), value in zip(part.keeps, values[len(part.writes) :], strict=True):
            self.fn.store(value, self._kept(k, position))

    def _pointer(self, k: int, position: Number) -> Value:
        step = self.fn.mul(self.frame.stride(self.parent.axis, k), position)
        return self.frame.ahead(k, self.pointers[k], step)

    def _kept(self, k: int, position: Number) -> Value:
        expr, offset = self.parent.kept[k]
        base = self.fn.at(self.parent.store, offset, "i8")
        return self.fn.at(base, self.fn.add(self.first, position), register(expr.dtype))

    def _load(self, position: Number) -> Callable[[int], Value]:
        def load(k: int) -> Value:
            if k in self.parent.kept:
                kind = vector(register(self.parent.kept[k][0].dtype), self.parent.lanes)
                return self.fn.load(kind, self._kept(k, position))
            return self.frame.load(k, self._pointer(k, position), self.parent.lanes, self.parent.axis)

        return load

    def _index(self, position: Number) -> Callable[[int], Value]:
        lanes = self.parent.lanes

        def index(d: int) -> Value:
            if d == self.parent.axis.domain:
                return ramp(self.fn, position, lanes)
            return self.fn.splat(number(self.where.get(d, self.elements.row.where.get(d, 0))), lanes)

        return index


def ramp(fn: Function, first: Number, lanes: int) -> Value:
    """Return first, first + 1, … as i64 lanes."""
    wide = fn.splat(number(first), lanes)
    if lanes == 1:
        return wide
    steps = ", ".join(f"i64 {k}" for k in range(lanes))
    return fn.op(f"add {wide}, <{steps}>", wide.type)


def registers(size: int, lanes: int) -> int:
    """Return how many registers to a vector are quickest for a line: its last vector computes some twice."""
    counts = [count for count in SPEED if count == 1 or count * lanes <= size]
    return min(counts, key=lambda count: -(-size // (count * lanes)) * count * SPEED[count])


def fitting(lanes: int, size: int) -> int:
    """Return the largest power of two up to ``lanes`` and ``size``, at least 1."""
    while lanes > 1 and lanes > size:
        lanes //= 2
    return max(lanes, 1)


def exprs_of(spec: Rows) -> list[Expr]:
    """Return all expressions of a specification."""
    return [s.expr for s in spec.stages] + [o.expr for o in spec.outputs]


def lanes_of(spec: Rows, layout: Layout, target: Target, axis: Axis | None) -> int:
    """Return how many elements along an axis are computed at once: a register's, of the widest dtype."""
    if axis is None:
        return 1
    dtypes = {*layout.dtypes, *(node.dtype for e in exprs_of(spec) for node in postorder(e))}
    return fitting(min(target.vector // _width(dtype) for dtype in dtypes), axis.size)


def _width(dtype: Dtype) -> int:
    """Return the bytes of an element in a register."""
    return 4 if register(dtype) == "float" else dtype.itemsize
