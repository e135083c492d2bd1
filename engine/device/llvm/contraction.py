"""Contractions as machine code: which emitter takes a step, and by which tiles."""

from dataclasses import replace

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.contraction_codes import CodesEmitter
from graphdoc.engine.device.llvm.contraction_dot import DotEmitter
from graphdoc.engine.device.llvm.contraction_quads import TERMS, QuadsEmitter, in_quads
from graphdoc.engine.device.llvm.contraction_tile import Tile, spec_of, tiles, work_of
from graphdoc.engine.device.llvm.contraction_walk import Emitter
from graphdoc.engine.device.llvm.contraction_widen import WidenedEmitter
from graphdoc.engine.expr import BF16, F16, F32, F64, I8, I32, U8
from graphdoc.engine.program import Step

_STORED = (F16, BF16, F32, F64)

_FEW = 3
"""Columns up to which vectors run along k: they would fill less than half of one."""

_DOTS = 10
"""Sums of vectors along k at once."""


def tactics_contraction(step: Step, target: Target) -> list[str]:
    """Return the tilings worth measuring, ``rows x vectors``, the best by count first."""
    return [_name(t) for t in tilings(step, target)[:4]] if _able(step, target) else ["host"]


def emit_contraction(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step whose spec is a Contraction of floats or 8-bit codes, None of others."""
    if not _able(step, target):
        return None
    found = tilings(step, target)
    tile = next((t for t in found if _name(t) == tactic), found[0])
    return _emitter(step, tile, target)(step, tile, target).kernel()


def _able(step: Step, target: Target) -> bool:
    """Return whether there is code: not where codes are packed for an instruction the processor lacks."""
    foreign = spec_of(step).together == TERMS and not in_quads(step, target)
    return (floats(step) or codes(step)) and not foreign


def _emitter(step: Step, tile: Tile, target: Target) -> type[Emitter]:
    """Return what emits a step: narrow rows are copied where they are read for more than one panel."""
    if codes(step):
        return QuadsEmitter if in_quads(step, target) else CodesEmitter
    if spec_of(step).packed == 1:
        return DotEmitter
    work = work_of(step)
    narrow = work.views[0].dtype in (F16, BF16) and work.m > tile.rows and work.n > tile.columns
    return WidenedEmitter if narrow else Emitter


def _name(tile: Tile) -> str:
    return f"{tile.rows}x{tile.vectors}"


def floats(step: Step) -> bool:
    """Return whether the sums are of floats."""
    return spec_of(step).accumulate in (F32, F64) and all(v.dtype in _STORED for v in step.inputs[:2])


def codes(step: Step) -> bool:
    """Return whether the sums are int32, of 8-bit codes."""
    known = all(v.dtype in (U8, I8) for v in step.inputs[:2])
    return known and spec_of(step).accumulate == I32 and 0 not in step.inputs[0].shape


def dotted(step: Step, target: Target) -> bool:
    """Return whether vectors run along k, with panels of one column: few columns, and terms side by side."""
    work = work_of(step)
    lanes = target.lanes(spec_of(step).accumulate)
    along = bool(work.terms) and work.terms[-1][1] == (1,) and work.terms[-1][0] >= lanes
    return floats(step) and along and work.n <= _FEW


def tilings(step: Step, target: Target) -> list[Tile]:
    """Return the tiles worth trying, the best by count first."""
    spec, work = spec_of(step), work_of(step)
    lanes = target.lanes(spec.accumulate)
    if spec.packed == 1:
        return [Tile(max(1, min(work.m, _DOTS // work.n)), work.n, 1)]
    quads = in_quads(step, target)
    if quads and step.inputs[1].dtype == U8:  # what shifts its columns takes a register
        target = replace(target, registers=target.registers - 1)
    products = codes(step) and not quads
    return tiles(work.m, work.n, lanes, target, spec.packed // lanes or None, products=products)
