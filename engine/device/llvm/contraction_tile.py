"""How a contraction is cut for one processor: register tiles, panels of b, blocks of a that stay in cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.expr import leaves
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.program import Axes, Step, View, merged

BLOCK = 1 << 22
"""Bytes of a that one round over all panels of b reads: rows stream better from a third-level cache."""

NEAR = 1 << 17
"""Bytes that stay in the second-level cache beside others."""

_LATENCY = 8
"""Sums that must be under way to fill two pipes of four cycles."""


@dataclass(frozen=True, slots=True)
class Tile:
    """rows × (vectors · lanes) sums kept in registers."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Return the number of columns, the width of a panel of b."""
        return self.vectors * self.lanes


@dataclass(frozen=True, slots=True)
class Work:
    """A contraction as a kernel walks it: axes merged as far as all operands allow.

    views: a, b, the further inputs that the epilogue reads, the output; axes hold one stride for each.
    positions: where the kernel finds their addresses. numbers: which input the epilogue calls each further
        one. steps: each view's stride along n. terms: axes of k as a has them; b_terms: as b has them.
    """

    views: tuple[View, ...]
    positions: tuple[int, ...]
    numbers: tuple[int, ...]
    batch: Axes
    rows: Axes
    terms: Axes
    b_terms: Axes
    steps: tuple[int, ...]
    m: int
    n: int
    k: int

    @property
    def batches(self) -> int:
        """Return the number of products."""
        return prod(size for size, _ in self.batch)

    @property
    def macs(self) -> int:
        """Return the number of multiplications."""
        return self.batches * self.m * self.n * self.k


def spec_of(step: Step) -> Contraction:
    """Return what a step that is a contraction computes."""
    assert isinstance(step.spec, Contraction)  # noqa: S101  the table dispatches on the type
    return step.spec


def work_of(step: Step) -> Work:
    """Return a step's contraction with its axes merged."""
    spec = spec_of(step)
    numbers = tuple(k for k in leaves((spec.epilogue,), "input") if k >= 2)
    a, b, out = step.inputs[0], step.inputs[1], step.outputs[0]
    views = (a, b, *(step.inputs[k] for k in numbers), out)
    head, body = spec.batch, spec.batch + spec.rows
    rows_of = [v.strides[head:body] if v is not b else (0,) * spec.rows for v in views]
    b_terms = merged(b.shape[head:-1], [b.strides[head:-1]]) if not spec.packed else []
    return Work(
        views,
        (0, 1, *numbers, len(step.inputs)),
        numbers,
        merged(out.shape[:head], [v.strides[:head] for v in views]),
        merged(out.shape[head:body], rows_of),
        merged(a.shape[body:], [a.strides[body:]]),
        b_terms,
        (0, *(v.strides[-1] for v in views[1:])),
        prod(out.shape[head:body]),
        out.shape[-1],
        prod(a.shape[body:]),
    )


def tiles(
    m: int, n: int, lanes: int, target: Target, vectors: int | None = None, *, products: bool = False
) -> list[Tile]:
    """Return the tiles worth trying for m rows and n columns, the best by count first.

    vectors: how many each row must have, where b is already packed in panels of that width. products: whether
        a product needs a register of its own before it is added.
    """
    m = max(m, 1)
    found = [t for t in _fitting(m, n, lanes, target, products) if vectors in (None, t.vectors)]
    if not found:
        found = [Tile(1, vectors or 1, lanes)]
    return sorted(found, key=lambda t: (round(_cost(t, m, n, products), 3), -t.rows * t.vectors, t.rows))


def _fitting(m: int, n: int, lanes: int, target: Target, products: bool) -> Iterator[Tile]:
    """Yield the tiles whose sums, one line of b and one element of a fit the registers."""
    most = max(1, -(-n // lanes))
    for rows in range(1, min(m, target.registers) + 1):
        for vectors in range(1, min(most, 8) + 1):
            operands = vectors + 2 if products else min(rows, vectors) + 1
            if rows * vectors + operands <= target.registers - (target.registers > 16):
                yield Tile(rows, vectors, lanes)


def _cost(tile: Tile, m: int, n: int, products: bool) -> float:
    """Return the cycles, about, that one term of all sums takes.

    Whichever is longest: two multiplications or two loads a cycle, the latency of eight sums, or half a
    vector a cycle from the second-level cache, where the panels of b come from; of codes, a vector's worth.
    """
    count = -(-m // tile.rows)
    rows = m / count
    cycles = max(
        rows * tile.vectors / 2, (rows + tile.vectors) / 2, _LATENCY / 2, (2 - products) * tile.vectors
    )
    return count * -(-n // tile.columns) * cycles


def split_rows(m: int, most: int) -> tuple[int, int, int]:
    """Return (tiles, rows of a full one, how many are full): the others have a row less."""
    count = max(1, -(-m // most))
    size = -(-m // count)
    return count, size, count - (count * size - m)


def block_tiles(work: Work, count: int, rows: int) -> int:
    """Return how many tiles of rows make a block, over which all panels of b go before the next one.

    Where b stays in the second-level cache, as few as let the lines of the output be finished while they are
    near; else as many as the third-level cache holds of a, since b comes from there or from memory. All
    blocks have as many, up to one: threads share them, and those past the last row are no work.
    """
    itemsize = work.views[0].dtype.itemsize
    if work.k * work.n * itemsize <= NEAR:
        written = sum(1 for view in work.views[2:] if any(view.strides[:-1]))
        most = max(1, NEAR // max(1, rows * (work.k + written * work.n) * itemsize))
        blocks = -(-count // most)
    else:
        low, high = work.views[0].extent
        nbytes = min(max(high - low, 1), max(work.m * work.k, 1)) * itemsize
        blocks = max(1, min(count, -(-nbytes // BLOCK)))
    return max(1, -(-count // max(1, blocks)))
