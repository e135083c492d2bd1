"""Row reductions as machine code: vectors along the rows or across them, as strides make it cheap."""

from collections.abc import Sequence
from typing import Any

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.rows_across import Across, Tile, tile_of
from graphdoc.engine.device.llvm.rows_along import Along, lanes_of
from graphdoc.engine.device.llvm.rows_layout import Axis, Layout, arrange
from graphdoc.engine.device.llvm.rows_passes import cost
from graphdoc.engine.device.llvm.rows_softmax import sharpened
from graphdoc.engine.device.llvm.walk import threads_for
from graphdoc.engine.expr import DTYPES
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.program import Step


def tactics_rows(step: Step, target: Target) -> list[str]:
    """Return the ways to run a step of :class:`Rows`, the one to be expected quickest first."""
    spec, layout = _spec(step), arrange(step)
    ways = {
        f"across{n}": _across_cost(spec, layout, target, axis) for n, axis in enumerate(_candidates(layout))
    }
    if layout.reduced:
        ways["along"] = _along_cost(spec, layout, target)
    return sorted(ways, key=lambda way: ways[way])


def emit_rows(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Rows`; None where a dtype has no machine code."""
    spec, layout = _spec(step), arrange(step)
    if any(dtype not in DTYPES for dtype in layout.dtypes):
        return None
    tactic = tactic or tactics_rows(step, target)[0]
    if tactic == "along":
        return Along(spec, layout, target, _threads(spec, layout, target, layout.count)).kernel()
    tile = tile_of(spec, layout, target, _candidates(layout)[int(tactic.removeprefix("across"))])
    return Across(spec, layout, target, tile, _threads(spec, layout, target, _units(layout, tile))).kernel()


def _spec(step: Step) -> Rows:
    assert isinstance(step.spec, Rows)  # noqa: S101  # the table of emitters dispatches on the type
    return sharpened(step.spec)


def _candidates(layout: Layout) -> list[Axis | None]:
    """Return the kept axes that vectors may run along, or None where there is none: rows one by one."""
    return list(reversed(layout.rows)) or [None]


def _units(layout: Layout, tile: Tile) -> int:
    total = layout.count
    for axis, n in ((tile.beside, tile.positions), (tile.axis, tile.vectors * tile.lanes)):
        total = total // axis.size * -(-axis.size // n) if axis else total
    return total


def _exprs(spec: Rows) -> list[Any]:
    return [s.expr for s in spec.stages] + [o.expr for o in spec.outputs if o.full]


def _loads(layout: Layout, operands: Sequence[int], axis: Axis | None, lanes: int) -> float:
    """Return about how many instructions it takes to read and write a vector of each operand."""
    steps = [axis.strides[k] if axis else 0 for k in operands]
    return sum(1.0 if step in (0, 1) else 3.0 if step == 2 else 2.0 * lanes for step in steps)


def _elements(layout: Layout) -> list[int]:
    """Return the operands that differ between a row's elements."""
    return [k for k in range(len(layout.dtypes)) if any(a.strides[k] for a in layout.reduced)]


def _along_cost(spec: Rows, layout: Layout, target: Target) -> float:
    axis = layout.reduced[-1]
    lanes = lanes_of(spec, layout, target, axis)
    work = cost(_exprs(spec)) + len(spec.stages) + _loads(layout, _elements(layout), axis, lanes)
    overhead = (15.0 * len(spec.stages) + 15) / max(1, layout.length // lanes)
    return (work + overhead) / lanes


def _across_cost(spec: Rows, layout: Layout, target: Target, axis: Axis | None) -> float:
    lanes = lanes_of(spec, layout, target, axis)
    work = 1.2 * cost(_exprs(spec)) + len(spec.stages) + _loads(layout, _elements(layout), axis, lanes)
    outputs = [layout.inputs + k for k, o in enumerate(spec.outputs) if not o.full]
    return (work + _loads(layout, outputs, axis, lanes) / max(1, layout.length)) / lanes


def _threads(spec: Rows, layout: Layout, target: Target, units: int) -> int:
    longest = max((*layout.rows, *layout.reduced), key=lambda a: a.size, default=None)
    elements = layout.count * layout.length
    cycles = elements * (cost(_exprs(spec)) + 1) / lanes_of(spec, layout, target, longest)
    nbytes = elements * sum(layout.dtypes[k].itemsize for k in _elements(layout))
    return threads_for(nbytes, cycles, units)
