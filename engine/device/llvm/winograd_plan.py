"""How a Winograd step is cut into groups of tiles, and whether it is worth its while."""

from dataclasses import dataclass

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.contraction_tile import Tile
from graphdoc.engine.expr import F32
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.winograd import Winograd
from graphdoc.engine.program import Kind, Step


@dataclass(frozen=True, slots=True)
class Pace:
    """What a kind of processor does, as measured.

    cache: bytes of transformed image that a group of tiles may take, half of a second-level cache.
    fewest: tiles of a group that the weights are read for, where there are as many: fewer would wait for
        memory.
    products: a nanosecond. weights: bytes a nanosecond, of those that come from memory.
    """

    cache: int
    fewest: int
    products: float
    weights: float


def pace(target: Target) -> Pace:
    """Return the pace of processors with such vectors."""
    return Pace(1 << 20, 64, 84.0, 6.5) if target.vector == 64 else Pace(1 << 18, 24, 48.0, 12.0)


MACS_PER_THREAD = 1 << 15


@dataclass(frozen=True, slots=True)
class Plan:
    """tiles, across, down: how many in all, in a row, in a column. group: how many a thread takes at a time.

    v_pitch, m_pitch: elements from one point's part of V and M to the next. scratch: bytes.
    """

    tile: Tile
    y: int
    x: int
    channels: int
    panels: int
    tiles: int
    across: int
    down: int
    group: int
    by_panels: bool
    v_pitch: int
    m_pitch: int
    scratch: int
    threads: int


def plan_of(step: Step, target: Target) -> Plan:
    """Return the plan of a step whose spec is a Winograd."""
    spec = step.spec
    assert isinstance(spec, Winograd)  # noqa: S101  the caller looked
    n, y, x, outputs = step.outputs[0].shape
    channels, size = step.inputs[0].shape[-1], spec.size
    lanes, paced = lanes_of(channels, outputs, target), pace(target)
    points, itemsize = (size + 2) ** 2, spec.accumulate.itemsize
    down, across = -(-y // size), -(-x // size)
    tiles = n * down * across
    group = min(tiles, max(paced.fewest, paced.cache // (points * channels * itemsize)))
    rows = min(tiles, _most_rows(spec.packed // lanes, target))
    tile = Tile(rows, spec.packed // lanes, lanes)
    panels = -(-outputs // spec.packed)
    v_pitch = (group + rows) * channels + 2 * lanes
    m_pitch = (group + rows) * spec.packed + 2 * lanes
    by_panels = tiles < 2 * paced.fewest and panels > 1
    scratch = (points * (v_pitch + m_pitch) + points * lanes) * itemsize
    shares = panels if by_panels else tiles
    macs = tiles * points * channels * outputs
    threads = max(1, min(shares, macs // MACS_PER_THREAD))
    return Plan(
        tile,
        y,
        x,
        channels,
        panels,
        tiles,
        across,
        down,
        group,
        by_panels,
        v_pitch,
        m_pitch,
        scratch,
        threads,
    )


def lanes_of(channels: int, outputs: int, target: Target) -> int:
    """Return the lanes of a vector of channels that leave none over, 0 where fewer than 4 would do that."""
    lanes = target.vector // 4
    while lanes >= 4 and (channels % lanes or outputs % lanes):
        lanes //= 2
    return lanes if lanes >= 4 else 0


def _most_rows(vectors: int, target: Target) -> int:
    """Return how many rows of sums fit the registers with a line of b and one element of a."""
    return max(1, (target.registers - vectors - 1) // vectors)


def size_for(step: Step, target: Target) -> int:
    """Return the size of tiles by which a step's contraction is done soonest, 0: directly.

    step: with a Contraction as its spec. Only 3×3 windows of float32 a pixel apart, over constant weights and
    channels that lie side by side, in numbers that fill vectors of at least 4 lanes, can be done so.
    """
    if not _fits(step, target):
        return 0
    a, out, paced = step.inputs[0], step.outputs[0], pace(target)
    n, y, x, outputs = out.shape
    sizes = {
        size: _microseconds(paced, n * -(-y // size) * -(-x // size), (size + 2) ** 2, a.shape[-1], outputs)
        for size in (2, 4)
        if min(y, x) >= size
    }
    sizes[0] = _microseconds(paced, n * y * x, 9, a.shape[-1], outputs)
    return min(sizes, key=lambda size: sizes[size] * (1 if size else _WORTH))


_WORTH = 0.9
"""The direct way's time counts this much: it adds no error, and takes less memory."""


def _fits(step: Step, target: Target) -> bool:
    spec, a, w, out = step.spec, step.inputs[0], step.inputs[1], step.outputs[0]
    if not isinstance(spec, Contraction) or (spec.batch, spec.rows, spec.terms) != (0, 3, 3):
        return False
    return (
        a.dtype == w.dtype == spec.accumulate == F32
        and w.buffer.kind is Kind.CONSTANT
        and w.shape[:2] == (3, 3)
        and len(w.shape) == 4
        and a.strides[1:3] == a.strides[3:5]
        and a.strides[5] == 1
        and lanes_of(a.shape[5], out.shape[3], target) > 0
    )


def _microseconds(paced: Pace, rows: int, points: int, channels: int, outputs: int) -> float:
    """Return about how long ``points`` products of rows × channels × outputs take, transforms included.

    A transform costs about 3 operations per point and channel on either side.
    """
    products = rows * points * channels * outputs / (1e3 * paced.products)
    moved = 0 if points == 9 else rows * points * 3 * (channels + outputs) / 24e3
    return max(products, 4 * points * channels * outputs / (1e3 * paced.weights)) + moved
