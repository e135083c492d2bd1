"""How to run a map: along which axis vectors lie, by rows or by tiles, how wide, and on how many threads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.walk import Block, ordered, threads_for
from graphdoc.engine.expr import BF16, BOOL, F16, F64, I64, Dtype, Expr, leaves, postorder
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Axes, Step, merged

CYCLES: dict[str, float] = {
    **dict.fromkeys(("exp", "expm1", "sigmoid", "tanh", "log", "log1p"), 14.0),
    **dict.fromkeys(("erf",), 18.0),
    **dict.fromkeys(("sin", "cos"), 30.0),
    **dict.fromkeys(("pow",), 60.0),
    **dict.fromkeys(("div", "sqrt"), 5.0),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "fmod", "mod"), 300.0),
}
"""What an operation costs on one vector, about; all others 1."""

CALLS = 16
"""Registers that calls of the C library drive out: all."""

WIDE = {
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "fmod", "mod"), CALLS),
    **dict.fromkeys(("pow", "sin", "cos"), 6),
    **dict.fromkeys(("erf", "log", "log1p"), 4),
    **dict.fromkeys(("exp", "expm1", "sigmoid", "tanh"), 3),
}
"""Registers that an operation on one vector needs while it runs, its arguments among them; all others 1."""

PAGE = 4096
"""Bytes after which addresses meet the same sets of the nearest cache."""

SPACED = 4
"""Up to this stride inputs are read as whole vectors, of which some lanes are taken."""

TILE = 64
"""Elements along each side of what a unit transposes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input, an output, or (without an argument) the position on an axis of the domain.

    place: its number among its kind; for a position, the axis.
    """

    dtype: Dtype
    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How a map runs.

    starts: where each operand starts, in elements from its first. outer: the axes of the units of work, of
    which the last one or two are those of the blocks. inner: strides along the row, of which ``row`` are cut.
    tile: strides along the second axis of a tile, ``column`` the blocks of it; None: by rows.
    lanes: elements to a vector. unroll: how many vectors a round. masks: whether a row shorter than a vector
    is one masked vector, else it goes element by element. many: how many neighbours in the memory of the
    outputs are computed with each element of the row, and interleaved; group: the strides from one to the
    next. along: whether tiles follow one another across the row first.
    """

    operands: tuple[Operand, ...]
    starts: tuple[int, ...]
    outer: Axes
    inner: tuple[int, ...]
    row: Block
    tile: tuple[int, ...] | None
    column: Block
    lanes: int
    unroll: int
    masks: bool
    group: tuple[int, ...]
    many: int
    along: bool
    threads: int


def plan(step: Step, target: Target) -> Plan:
    """Return the way to run a map that should cost least."""
    spec = step.spec
    assert isinstance(spec, Map)  # noqa: S101  # the table of emitters says so
    operands, strides = _operands(step, spec)
    shape = step.outputs[0].shape
    first = len(step.inputs)
    axes, starts = ordered(shape, strides, first)
    lanes = lanes_for(spec.exprs, operands, target)
    cycles = cycles_of(spec.exprs)
    axes = axes or [(1, (0,) * len(operands))]
    costs = [_row_cost(axes, a, operands, lanes, cycles) for a in range(len(axes))]
    best = min(range(len(axes)), key=lambda a: (costs[a], -a))
    side = tile_side(operands)
    across = _across(axes, operands, side)
    if across is not None and _tile_cost(axes, across, operands, side, cycles) < costs[best]:
        return _tiled(axes, across, operands, starts, side, cycles)
    return _by_rows(axes, best, operands, starts, lanes, cycles, spec.exprs, target)


def _operands(step: Step, spec: Map) -> tuple[tuple[Operand, ...], list[tuple[int, ...]]]:
    operands = [Operand(view.dtype, "input", k) for k, view in enumerate(step.inputs)]
    operands += [Operand(view.dtype, "output", k) for k, view in enumerate(step.outputs)]
    strides = [view.strides for view in (*step.inputs, *step.outputs)]
    rank = len(step.outputs[0].shape)
    for axis in leaves(spec.exprs, "index"):
        operands.append(Operand(I64, "index", axis))
        strides.append(tuple(int(d == axis) for d in range(rank)))
    return tuple(operands), strides


# ---- widths --------------------------------------------------------------------------------------------


def _bytes(dtype: Dtype) -> int:
    """Return the bytes of a register's lane; bools have no width of their own."""
    return 4 if dtype in (F16, BF16) else 0 if dtype == BOOL else dtype.itemsize


def lanes_for(exprs: Sequence[Expr], operands: Sequence[Operand], target: Target) -> int:
    """Return how many elements of the widest dtype a register holds."""
    nodes = {node for root in exprs for node in postorder(root)}
    widest = max([_bytes(node.dtype) for node in nodes] + [1])
    return max(target.vector // widest, 1)


def unroll_for(exprs: Sequence[Expr], lanes: int, target: Target) -> int:
    """Return how many vectors to compute at once, so that their values stay in registers."""
    live = max(_pressure(exprs, lanes, target), 1)
    room = target.registers - 2
    return 4 if 4 * live <= room else 2 if 2 * live <= room else 1


def _pressure(exprs: Sequence[Expr], lanes: int, target: Target) -> int:
    """Return how many registers the values of one vector take at the worst moment."""

    def size(node: Expr) -> int:
        return 0 if node.op == "const" else max(1, _bytes(node.dtype) * lanes // target.vector)

    order = list(dict.fromkeys(node for root in exprs for node in postorder(root)))
    last = {arg: at for at, node in enumerate(order) for arg in node.args}
    last |= dict.fromkeys(exprs, len(order))
    live, worst = 0, 0
    for at, node in enumerate(order):
        live -= sum(size(a) for a in set(node.args) if last[a] == at)
        calls = node.dtype == F64 and node.op in WIDE
        worst = max(worst, live + max(size(node), CALLS if calls else WIDE.get(node.op, 1)))
        live += size(node) if last.get(node, at) > at else 0
    return worst


# ---- costs, in cycles per element -----------------------------------------------------------------------


def cycles_of(exprs: Sequence[Expr]) -> float:
    """Return what computing expressions costs on one vector."""
    nodes = {node for root in exprs for node in postorder(root) if node.args}
    return sum(CYCLES.get(node.op, 1.0) * (1 if node.dtype.itemsize < 8 else 4) for node in nodes)


def _row_cost(axes: Axes, at: int, operands: Sequence[Operand], lanes: int, cycles: float) -> float:
    size, steps = axes[at]
    used = -(-size // lanes) * lanes / size  # lanes computed for each that is wanted
    woven = _neighbours(axes, at, operands, lanes) is not None

    def moved(step: int, operand: Operand) -> float:
        if step in (0, 1):
            return used / lanes
        output = operand.kind == "output"
        vectors = (woven if output else 0 < step <= SPACED) and size >= lanes > 1
        return 1.3 if not vectors else 2.5 / lanes if output else 2 * step / lanes

    memory = sum(
        moved(step, operand)
        for step, operand in zip(steps, operands, strict=True)
        if operand.kind != "index" and (step or operand.kind == "output")
    )
    return memory + used * cycles / lanes + 16 / size


def _neighbours(axes: Axes, at: int, operands: Sequence[Operand], lanes: int) -> int | None:
    """Return a short axis that lies within a row's steps in the outputs: the channels of an image, say."""
    size, steps = axes[at]
    outputs = [k for k, operand in enumerate(operands) if operand.kind == "output"]
    for a, (count, along) in enumerate(axes):
        fits = all(along[k] == 1 and steps[k] == count for k in outputs)
        if a != at and count in (2, 3, 4) and fits and size >= lanes > 1:
            return a
    return None


def tile_side(operands: Sequence[Operand]) -> int:
    """Return the elements along a side of a tile."""
    return 4 if any(operand.dtype.itemsize == 8 for operand in operands) else 8


def _across(axes: Axes, operands: Sequence[Operand], side: int) -> int | None:
    """Return the axis along which inputs lie that do not lie along the last one, if that is worth tiles."""
    size, steps = axes[-1]
    outputs = [s for s, o in zip(steps, operands, strict=True) if o.kind == "output"]
    if size < side or any(s != 1 for s in outputs):
        return None
    found = [
        a
        for a, (length, along) in enumerate(axes[:-1])
        if length >= side and any(_turned(along, steps, operands))
    ]
    return max(found, key=lambda a: axes[a][0], default=None)


def _turned(tile: Sequence[int], inner: Sequence[int], operands: Sequence[Operand]) -> list[bool]:
    """Return which operands are read along the tile's second axis and transposed."""
    return [
        o.kind == "input" and t == 1 and s not in (0, 1)
        for t, s, o in zip(tile, inner, operands, strict=True)
    ]


def _tile_cost(axes: Axes, across: int, operands: Sequence[Operand], side: int, cycles: float) -> float:
    (rows, along), (size, steps) = axes[across], axes[-1]
    turned = _turned(along, steps, operands)
    rest = 1 - (rows // side * side) * (size // side * side) / (rows * size)
    memory = sum(
        0.6 if t else 1 / side if step in (0, 1) else 1.3
        for t, step, operand in zip(turned, steps, operands, strict=True)
        if operand.kind != "index"
    )
    return memory + cycles / side + rest * (cycles + 3)


# ---- plans ---------------------------------------------------------------------------------------------


def _nbytes(axes: Axes, operands: Sequence[Operand]) -> int:
    """Return the bytes that a map touches, the repeated ones of its inputs once."""
    return sum(
        operand.dtype.itemsize * prod(size for size, steps in axes if steps[k])
        for k, operand in enumerate(operands)
        if operand.kind != "index"
    )


def _by_rows(
    axes: Axes,
    at: int,
    operands: tuple[Operand, ...],
    starts: Sequence[int],
    lanes: int,
    cycles: float,
    exprs: Sequence[Expr],
    target: Target,
) -> Plan:
    size, steps = axes[at]
    group = _neighbours(axes, at, operands, lanes)
    many, woven = axes[group] if group is not None else (1, (0,) * len(operands))
    dense = all(s in (0, 1) for s, o in zip(steps, operands, strict=True) if o.kind != "index")
    most = unroll_for(exprs, lanes, target) if dense else 1
    unroll = min(most, 1 << max(size // lanes, 1).bit_length() - 1)
    outer = _without(axes, (at, group), len(operands))
    row = Block.of_row(size)
    if row.count > 1:
        outer = [*outer, row.axis(steps)]
    total = prod(s for s, _ in axes)
    units = prod(s for s, _ in outer)
    threads = threads_for(_nbytes(axes, operands), total * cycles / lanes, units)
    dtypes = [o.dtype for o in operands if o.kind != "index"]
    narrow = min((d.itemsize for d in dtypes), default=4) < 4
    masks = target.vector >= 32 and dense and (not narrow or target.vector == 64)
    return Plan(
        operands,
        tuple(starts),
        outer,
        steps,
        row,
        None,
        Block(1, 1),
        lanes,
        unroll,
        masks and lanes > 1,
        woven,
        many,
        False,
        threads,
    )


def _tiled(
    axes: Axes, across: int, operands: tuple[Operand, ...], starts: Sequence[int], side: int, cycles: float
) -> Plan:
    (rows, along), (size, steps) = axes[across], axes[-1]
    row, column = Block(size, TILE), Block(rows, TILE)
    outer = _without(axes, (across, len(axes) - 1), len(operands))
    outer = [*outer, column.axis(along), row.axis(steps)]
    total = prod(s for s, _ in axes)
    units = prod(s for s, _ in outer)
    threads = threads_for(_nbytes(axes, operands), total * cycles / side, units)
    none = (0,) * len(operands)
    along_first = _crowded(axes, across, operands)
    return Plan(
        operands,
        tuple(starts),
        outer,
        steps,
        row,
        along,
        column,
        side,
        1,
        False,
        none,
        1,
        along_first,
        threads,
    )


def _crowded(axes: Axes, across: int, operands: Sequence[Operand]) -> bool:
    """Return whether the lines of a tile's inputs crowd into few sets of the cache, more than its outputs do.

    A set is found by an address modulo a page, so strides with large powers of 2 meet the same few. What is
    crowded is best read whole, line by line, before other lines drive it out.
    """
    (_, along), (_, steps) = axes[across], axes[-1]

    def share(stride: int, operand: Operand) -> int:
        return math.gcd(stride * operand.dtype.itemsize, PAGE)

    turned = _turned(along, steps, operands)
    reads = [share(s, o) for s, o, yes in zip(steps, operands, turned, strict=True) if yes]
    writes = [share(s, o) for s, o in zip(along, operands, strict=True) if o.kind == "output"]
    return max(reads) >= max(PAGE // 8, *writes)


def _without(axes: Axes, gone: Sequence[int | None], operands: int) -> Axes:
    rest = [axis for a, axis in enumerate(axes) if a not in gone]
    return merged([size for size, _ in rest], [[steps[k] for _, steps in rest] for k in range(operands)])


def turned(plan: Plan) -> list[bool]:
    """Return which operands of a plan are transposed: none but by tiles."""
    return _turned(plan.tile, plan.inner, plan.operands) if plan.tile else []
