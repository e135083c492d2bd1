"""Maps as machine code: rows of vectors along one axis, or tiles that are transposed in registers."""

from collections.abc import Callable, Mapping, Sequence

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    number,
    parts,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.map_plan import SPACED, Plan, cycles_of, plan, turned
from graphdoc.engine.device.llvm.scalar import Scalars
from graphdoc.engine.device.llvm.walk import Odometer
from graphdoc.engine.expr import DTYPES, Expr, postorder
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Step


def tactics_map(step: Step, target: Target) -> list[str]:
    """Return the ways to run a map: one, chosen by cost."""
    return ["plan"]


def emit_map(step: Step, target: Target, tactic: str) -> Kernel | None:
    """Return the kernel of a map; None where a dtype is not one of expressions."""
    spec = step.spec
    if not isinstance(spec, Map) or any(v.dtype not in DTYPES for v in (*step.inputs, *step.outputs)):
        return None
    how = plan(step, target)
    body = Body(how, spec, target)
    with Odometer(body.fn, how.outer, len(how.operands)).loop() as (at, offsets):
        way = _tiles if how.tile is not None else _woven if how.many > 1 else _row
        way(body, at, offsets)
    return body.fn.kernel(scratch=_AREA * len(body.areas), threads=how.threads)


_HEAVY = 40.0
"""Cycles on a vector from which tiles are kept in memory: their code would stand there once for each row."""

_AREA = 512
"""Bytes of scratch memory for a tile."""


class Body:
    """What one unit of work computes: loads, the expressions, stores.

    places: of each operand the address of the unit's first element; of a position, the number.
    steps: strides along the row as the code knows them. areas: where tiles of inputs are kept, if they are.
    """

    def __init__(self, how: Plan, spec: Map, target: Target) -> None:
        self.fn, self.plan, self.spec, self.target = Function(), how, spec, target
        count = sum(operand.kind != "index" for operand in how.operands)
        self.bases: list[Number] = [self._at(k, self.fn.argument(k), how.starts[k]) for k in range(count)]
        self.bases += [self.fn.dim(start) for start in how.starts[count:]]
        self.steps: list[Number] = [s if 0 <= s <= SPACED else self.fn.dim(s) for s in how.inner]
        self.numbers = {(o.kind, o.place): k for k, o in enumerate(how.operands)}
        kept = self.turned if cycles_of(spec.exprs) >= _HEAVY else []
        self.areas = {k: self.fn.at(self.fn.argument(count), n * _AREA, "i8") for n, k in enumerate(kept)}

    @property
    def turned(self) -> list[int]:
        """Return the inputs that tiles transpose."""
        return [k for k, yes in enumerate(turned(self.plan)) if yes]

    def _at(self, k: int, base: Value, start: int) -> Number:
        return self.fn.at(base, self.fn.dim(start), self.element(k)) if start else base

    def element(self, k: int) -> str:
        """Return the type of an operand's elements in memory."""
        return scalar(self.plan.operands[k].dtype)

    def moved(self, places: Sequence[Number], offsets: Sequence[Number]) -> list[Number]:
        """Return operands' places so many elements on."""
        return [
            self.fn.at(place, offset, self.element(k))
            if isinstance(place, Value) and place.type == "ptr"
            else self.fn.add(place, offset)
            for k, (place, offset) in enumerate(zip(places, offsets, strict=True))
        ]

    def along(self, places: Sequence[Number], i: Number, steps: Sequence[Number]) -> list[Number]:
        """Return operands' places i steps on."""
        return self.moved(places, [self.fn.mul(i, step) for step in steps])

    def computed(
        self,
        places: Sequence[Number],
        lanes: int,
        known: Mapping[Expr, Value] | None = None,
        mask: Value | None = None,
        loaded: Mapping[int, Value] | None = None,
    ) -> list[Value]:
        """Compute ``lanes`` elements of a row from ``places`` on; return the outputs as memory holds them.

        known: registers of what does not vary along the row. loaded: vectors of inputs that are there.
        """
        scalars = Scalars(self.fn, lanes, self.target)
        given = loaded or {}

        def load(k: int) -> Value:
            return given[k] if k in given else self.load(k, places[k], lanes, mask)

        def index(axis: int) -> Value:
            return self.position(self.numbers["index", axis], places, lanes)

        results = scalars.emit(self.spec.exprs, load, index, known=known)
        return [
            scalars.to_memory(result, expr.dtype)
            for result, expr in zip(results, self.spec.exprs, strict=True)
        ]

    def run(
        self,
        places: Sequence[Number],
        lanes: int,
        known: Mapping[Expr, Value] | None = None,
        mask: Value | None = None,
        loaded: Mapping[int, Value] | None = None,
    ) -> None:
        """Compute as :meth:`computed` does, and store."""
        results = self.computed(places, lanes, known, mask, loaded)
        for k, result in enumerate(results, self.numbers["output", 0]):
            self.store(k, result, places[k], mask)

    def load(self, k: int, place: Number, lanes: int, mask: Value | None) -> Value:
        """Read an operand along the row."""
        fn, element, step = self.fn, self.element(k), self.steps[k]
        assert isinstance(place, Value)  # noqa: S101  # an address
        if lanes == 1 or step == 0:
            return fn.load(element, place)
        if step == 1:
            kind = vector(element, lanes)
            return fn.load_first(kind, place, mask) if mask else fn.load(kind, place)
        if isinstance(step, int):
            return spaced(fn, place, element, lanes, step)
        kind = vector(element, lanes)
        whole = Value("poison", kind)
        for lane in range(lanes):
            one = fn.load(element, fn.at(place, fn.mul(step, lane), element))
            whole = fn.op(f"insertelement {whole}, {one}, i32 {lane}", kind)
        return whole

    def store(self, k: int, value: Value, place: Number, mask: Value | None) -> None:
        """Write an operand along the row."""
        fn, element, step = self.fn, self.element(k), self.steps[k]
        assert isinstance(place, Value)  # noqa: S101  # an address
        lanes = parts(value.type)[1]
        if lanes == 1 or step == 1:
            if mask:
                fn.store_first(value, place, mask)
            else:
                fn.store(value, place)
            return
        for lane in range(lanes):
            one = fn.op(f"extractelement {value}, i32 {lane}", element)
            fn.store(one, fn.at(place, fn.mul(step, lane), element))

    def position(self, k: int, places: Sequence[Number], lanes: int) -> Value:
        """Return the positions on an axis along the row."""
        fn, step = self.fn, self.plan.inner[k]
        start = fn.splat(number(places[k]), lanes)
        if lanes == 1 or step == 0:
            return start
        ramp = ", ".join(f"i64 {lane * step}" for lane in range(lanes))
        return fn.op(f"add {start}, <{ramp}>", start.type)

    def unvarying(self, places: Sequence[Number]) -> dict[Expr, Value]:
        """Compute what is the same along the whole row, as scalars."""
        roots = constant_parts(self.spec.exprs, self._varies)
        scalars = Scalars(self.fn, 1, self.target)
        values = scalars.emit(
            roots,
            lambda k: self.load(k, places[k], 1, None),
            lambda axis: number(places[self.numbers["index", axis]]),
        )
        return dict(zip(roots, values, strict=True))

    def _varies(self, leaf: Expr) -> bool:
        return leaf.op in ("input", "index") and self.plan.inner[self.numbers[leaf.op, leaf.attr]] != 0


def spaced(fn: Function, place: Value, element: str, lanes: int, step: int) -> Value:
    """Return every ``step``-th element from an address on: ``step`` vectors read, none past the last one."""
    kind, span = vector(element, lanes), (lanes - 1) * step + 1
    starts = [min(n * lanes, span - lanes) for n in range(step)]
    source = [min(lane * step // lanes, step - 1) for lane in range(lanes)]
    whole = Value("poison", kind)
    for n, start in enumerate(starts):
        read = fn.load(kind, fn.at(place, start, element))
        lane_of = [lanes + lane * step - start if source[lane] == n else lane for lane in range(lanes)]
        whole = _shuffled(fn, whole, read, lane_of, kind)
    return whole


def constant_parts(exprs: Sequence[Expr], varies: Callable[[Expr], bool]) -> list[Expr]:
    """Return the largest parts of expressions, constants aside, in which no leaf varies."""
    moving: dict[Expr, bool] = {}
    found: dict[Expr, None] = {}
    for root in exprs:
        for node in postorder(root):
            moving[node] = any(moving[a] for a in node.args) if node.args else varies(node)
            if moving[node]:
                found |= {a: None for a in node.args if not moving[a] and a.op != "const"}
        if not moving[root] and root.op != "const":
            found[root] = None
    return list(found)


# ---- rows ----------------------------------------------------------------------------------------------


def _row(body: Body, at: Sequence[Number], offsets: Sequence[Number]) -> None:
    """Append one unit of work: a row, or a block of it."""
    fn, how = body.fn, body.plan
    size = how.row.extent(fn, at[-1] if how.row.count > 1 else 0)
    places = body.moved(body.bases, offsets)
    known = body.unvarying(places)
    if how.row.size < how.lanes or how.lanes == 1:
        _short(body, places, known, size)
        return
    end = body.along(places, fn.sub(size, how.lanes), body.steps)
    ragged = how.row.size % how.lanes > 0
    loaded = _varying(body, end) if ragged else {}
    done: Number = 0
    for lanes in _widths(how):
        stop = fn.sub(size, fn.mod(size, lanes))
        with fn.loop(done, stop, lanes) as (i, _):
            body.run(body.along(places, i, body.steps), lanes, known)
        done = stop
    if ragged:
        body.run(end, how.lanes, known, loaded=loaded)


def _woven(body: Body, at: Sequence[Number], offsets: Sequence[Number]) -> None:
    """Append one unit of work: a row, and with each element its neighbours in the outputs."""
    fn, how = body.fn, body.plan
    size = how.row.extent(fn, at[-1] if how.row.count > 1 else 0)
    group = [s if s in (0, 1) else fn.dim(s) for s in how.group]
    places = body.moved(body.bases, offsets)
    lines = [body.along(places, n, group) for n in range(how.many)]
    known = [body.unvarying(line) for line in lines]

    def run(i: Number, loaded: Sequence[Mapping[int, Value]]) -> None:
        now = [body.along(line, i, body.steps) for line in lines]
        parts = zip(now, known, loaded, strict=True)
        results = [body.computed(n, how.lanes, k, None, given) for n, k, given in parts]
        for k, rows in enumerate(zip(*results, strict=True), body.numbers["output", 0]):
            place = now[0][k]
            assert isinstance(place, Value)  # noqa: S101  # an address
            fn.store(interleaved(fn, rows), place)

    last = fn.sub(size, how.lanes)
    ragged = how.row.size % how.lanes > 0
    nothing: list[Mapping[int, Value]] = [{}] * how.many
    end = [_varying(body, body.along(line, last, body.steps)) for line in lines] if ragged else nothing
    with fn.loop(0, fn.sub(size, fn.mod(size, how.lanes)), how.lanes) as (i, _):
        run(i, nothing)
    if ragged:
        run(last, end)


def interleaved(fn: Function, rows: Sequence[Value]) -> Value:
    """Return the first lane of each vector, then the second of each, and so on, as one vector."""
    element, lanes = parts(rows[0].type)
    width = 1 << (len(rows) - 1).bit_length()
    padded = [*rows, *[Value("poison", rows[0].type)] * (width - len(rows))]
    while len(padded) > 1:
        a = padded[0]
        length = 2 * parts(a.type)[1]
        pairs = zip(padded[::2], padded[1::2], strict=True)
        padded = [_shuffled(fn, x, y, range(length), vector(element, length)) for x, y in pairs]
    order = [n * lanes + lane for lane in range(lanes) for n in range(len(rows))]
    whole = padded[0]
    none = Value("poison", whole.type)
    return _shuffled(fn, whole, none, order, vector(element, len(order)))


def _widths(how: Plan) -> list[int]:
    """Return how many elements each loop along a row takes at a time; a loop that never turns is left out."""
    most = how.unroll * how.lanes
    return [most, how.lanes] if how.row.size % most >= how.lanes else [most]


def _varying(body: Body, places: Sequence[Number]) -> dict[int, Value]:
    """Read the last vector of a row, which shares elements with the one before.

    That is done first: in place, the elements shared would be read once they are written.
    """
    rows = zip(body.plan.operands, body.steps, places, strict=True)
    return {
        o.place: body.load(o.place, place, body.plan.lanes, None)
        for o, step, place in rows
        if o.kind == "input" and step != 0
    }


def _short(body: Body, places: Sequence[Number], known: Mapping[Expr, Value], size: Number) -> None:
    """Append a row of fewer elements than a vector holds."""
    fn, how = body.fn, body.plan
    if not how.masks:
        with fn.loop(0, size) as (i, _):
            body.run(body.along(places, i, body.steps), 1, known)
        return
    body.run(places, how.lanes, known, fn.first(size, how.lanes))


# ---- tiles ---------------------------------------------------------------------------------------------


def _tiles(body: Body, at: Sequence[Number], offsets: Sequence[Number]) -> None:
    """Append one unit of work: whole tiles of it transposed in registers, the edges element by element."""
    fn, how = body.fn, body.plan
    side = how.lanes
    rows, size = how.column.extent(fn, at[-2]), how.row.extent(fn, at[-1])
    across: list[Number] = [s if s in (0, 1) else fn.dim(s) for s in how.tile or ()]
    places = body.moved(body.bases, offsets)
    whole_rows, whole = fn.sub(rows, fn.mod(rows, side)), fn.sub(size, fn.mod(size, side))
    outer, inner = (whole, body.steps), (whole_rows, across)
    if not how.along:
        outer, inner = inner, outer
    with fn.loop(0, outer[0], side) as (n, _):
        line = body.along(places, n, outer[1])
        with fn.loop(0, inner[0], side) as (m, _):
            _tile(body, body.along(line, m, inner[1]), across)
    with fn.loop(0, rows) as (r, _):
        inside = fn.op(f"icmp slt {r}, {number(whole_rows).name}", "i1")
        start = fn.op(f"select {inside}, {number(whole)}, i64 0", "i64")
        line = body.along(places, r, across)
        with fn.loop(start, size) as (i, _):
            body.run(body.along(line, i, body.steps), 1)


def _tile(body: Body, places: Sequence[Number], across: Sequence[Number]) -> None:
    fn, side = body.fn, body.plan.lanes
    blocks = {k: _transposed(body, k, places[k]) for k in body.turned}
    if not body.areas:
        for r in range(side):
            row = body.along(places, r, across)
            body.run(row, side, loaded={k: block[r] for k, block in blocks.items()})
        return
    for k, block in blocks.items():
        for r, line in enumerate(block):
            fn.store(line, fn.at(body.areas[k], r * side, body.element(k)))
    with fn.loop(0, side) as (n, _):
        at = fn.mul(n, side)
        rows = {k: fn.at(area, at, body.element(k)) for k, area in body.areas.items()}
        loaded = {k: fn.load(vector(body.element(k), side), row) for k, row in rows.items()}
        body.run(body.along(places, n, across), side, loaded=loaded)


def _transposed(body: Body, k: int, place: Number) -> list[Value]:
    """Return the columns of a square of an operand, read by rows of contiguous elements."""
    fn, element, side = body.fn, body.element(k), body.plan.lanes
    assert isinstance(place, Value)  # noqa: S101  # an address
    kind = vector(element, side)
    lines = [fn.load(kind, fn.at(place, fn.mul(body.steps[k], i), element)) for i in range(side)]
    return transpose(fn, lines)


def transpose(fn: Function, rows: Sequence[Value]) -> list[Value]:
    """Return the columns of a square of vectors, as many as they have lanes (a power of two).

    Each step exchanges the off-diagonal quarters of squares half as large.
    """
    side, kind = len(rows), rows[0].type
    lines, half = list(rows), side // 2
    while half:
        for r in range(side):
            if not r & half:
                a, b = lines[r], lines[r + half]
                low = [c if not c & half else side + c - half for c in range(side)]
                high = [c + half if not c & half else side + c for c in range(side)]
                lines[r], lines[r + half] = _shuffled(fn, a, b, low, kind), _shuffled(fn, a, b, high, kind)
        half //= 2
    return lines


def _shuffled(fn: Function, a: Value, b: Value, lanes: Sequence[int], kind: str) -> Value:
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return fn.op(f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{order}>", kind)
