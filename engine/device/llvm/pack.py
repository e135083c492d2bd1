"""Makes contractions ready for the device: weights packed in panels, axes that b repeats along made rows."""

from dataclasses import replace

import numpy as np

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.contraction import codes, dotted, floats, tilings
from graphdoc.engine.device.llvm.contraction_quads import TERMS, in_quads
from graphdoc.engine.device.llvm.laid import Laid, constant, zeros
from graphdoc.engine.device.llvm.winograd_plan import lanes_of, size_for
from graphdoc.engine.expr import load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.winograd import Winograd, transformed
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

_SCATTERED, _FEW = 4096, 4
"""Elements of an output, and columns, up to which they are written where they belong one by one."""


def prepare_contractions(program: Program, target: Target, laid: Laid | None = None) -> Program:
    """Return the program with every contraction that has machine code made ready for ``target``.

    laid: what was laid out for other programs of the same weights.

    * An axis of the batch along which b repeats becomes an axis of rows.
    * A constant b is stored in panels: [..., n/width rounded up, k, width], the lanes past n being 0.
    * An output whose columns do not lie together is computed beside, then copied.
    * A convolution that Winograd's tiles do sooner (``winograd_plan.py``) becomes one; its rounding differs.
    """
    laid = laid or Laid()
    steps = [_prepared(part, target, laid) for step in program.steps for part in with_columns_together(step)]
    return replace(program, steps=steps)


def with_columns_together(step: Step) -> list[Step]:
    """Return a contraction whose output's columns lie apart as two steps: the second one spreads them.

    Columns one by one into lines far apart cost several times what a copy in blocks does.
    """
    out = step.outputs[0]
    small = out.size < _SCATTERED or out.shape[-1] < _FEW
    if not isinstance(step.spec, Contraction) or not _emitted(step) or out.strides[-1] == 1 or small:
        return [step]
    inner = whole(Buffer(f"{out.buffer.name}.columns", out.dtype, out.size), out.shape)
    copy = Map((load(0, out.dtype),))
    return [replace(step, outputs=(inner,)), Step(copy, (inner,), (out,), step.nodes)]


def _prepared(step: Step, target: Target, laid: Laid) -> Step:
    spec = step.spec
    if not isinstance(spec, Contraction) or not _emitted(step) or 0 in step.outputs[0].shape:
        return step
    step = without_repeats(step)
    if spec.packed or step.inputs[1].buffer.kind is not Kind.CONSTANT:
        return step
    size = size_for(step, target)
    return _tiled(step, size, target, laid) if size else _paneled(step, target, laid)


def _paneled(step: Step, target: Target, laid: Laid) -> Step:
    """Return a contraction that reads its constant in panels."""
    spec, b = step.spec, step.inputs[1]
    assert isinstance(spec, Contraction)  # noqa: S101  the caller looked
    width = 1 if dotted(step, target) else tilings(step, target)[0].columns
    together = (TERMS if in_quads(step, target) else 2) if codes(step) else 1
    how = spec.batch, width, together
    packed = laid.view(b, how, lambda: panels(b, spec.batch, width, together))
    inputs = (step.inputs[0], packed, *step.inputs[2:])
    return replace(step, spec=replace(spec, packed=width, together=together), inputs=inputs)


def _tiled(step: Step, size: int, target: Target, laid: Laid) -> Step:
    """Return a 3×3 convolution by Winograd's tiles of size × size."""
    spec, w = step.spec, step.inputs[1]
    assert isinstance(spec, Contraction)  # noqa: S101  the caller looked
    lanes = lanes_of(w.shape[2], w.shape[3], target)
    width = 2 * lanes if w.shape[3] % (2 * lanes) == 0 else lanes
    tiles = laid.view(w, ("tiles", size, width), lambda: _tiles(w, size, width))
    if tiles is None:
        return _paneled(step, target, laid)
    new = Winograd(size, spec.epilogue, spec.accumulate, width)
    return replace(step, spec=new, inputs=(step.inputs[0], tiles, *step.inputs[2:]))


def _tiles(w: View, size: int, width: int) -> View | None:
    """Return transformed weights, None where one is infinite: it would spread over its tiles."""
    with np.errstate(all="ignore"):
        data = transformed(w.array(w.buffer.data), size, width)
    return constant(f"{w.buffer.name}.tiles", data) if np.isfinite(data).all() else None


def without_repeats(step: Step) -> Step:
    """Return the step with batch axes of b's stride 0, the innermost ones, as axes of rows."""
    spec, b = step.spec, step.inputs[1]
    assert isinstance(spec, Contraction)  # noqa: S101  the caller looked
    batch = spec.batch
    while batch and (b.strides[batch - 1] == 0 or b.shape[batch - 1] == 1):
        batch -= 1
    gone = spec.batch - batch
    if not gone:
        return step
    kept = [axis for axis in range(len(b.shape)) if not batch <= axis < spec.batch]
    b = View(b.buffer, tuple(b.shape[a] for a in kept), tuple(b.strides[a] for a in kept), b.offset)
    spec = replace(spec, batch=batch, rows=spec.rows + gone)
    return replace(step, spec=spec, inputs=(step.inputs[0], b, *step.inputs[2:]))


def _emitted(step: Step) -> bool:
    return floats(step) or codes(step)


def panels(b: View, batch: int, width: int, together: int = 1) -> View:
    """Return a constant's panels, in a constant of their own.

    b: of shape (*batch, *k, n). together: how many terms of a column stand side by side.
    """
    array = b.array(b.buffer.data)
    outer, n = array.shape[:batch], array.shape[-1]
    k = int(np.prod(array.shape[batch:-1], dtype=np.int64))
    count, groups = -(-n // width), -(-k // together)
    lines = zeros((*outer, count, groups, width, together), array.dtype)
    flat = array.reshape(*outer, k, n)
    for at, term in np.ndindex(count, together):
        part = flat[..., term::together, at * width : (at + 1) * width]
        lines[..., at, : part.shape[-2], : part.shape[-1], term] = part
    return constant(f"{b.buffer.name}.panels", lines if together > 1 else lines[..., 0])
