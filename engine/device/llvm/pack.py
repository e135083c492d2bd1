"""Makes contractions ready for the device: weights packed in panels, axes that b repeats along made rows."""

from dataclasses import replace
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.contraction import floats, tilings
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole


def prepare_contractions(program: Program, target: Target) -> Program:
    """Return the program with every contraction of floats made ready for ``target``; the same results.

    * An axis of the batch along which b repeats becomes an axis of rows.
    * A constant b is stored in panels: [..., n/width rounded up, k, width], the lanes past n being 0.
    """
    packed: dict[Any, View] = {}
    steps = [_prepared(step, target, packed) for step in program.steps]
    return replace(program, steps=steps)


def _prepared(step: Step, target: Target, packed: dict[Any, View]) -> Step:
    if not isinstance(step.spec, Contraction) or not floats(step) or 0 in step.outputs[0].shape:
        return step
    step = without_repeats(step)
    b, spec = step.inputs[1], step.spec
    if spec.packed or b.buffer.kind is not Kind.CONSTANT:
        return step
    width = tilings(step, target)[0].columns
    key = (b.buffer, b.shape, b.strides, b.offset, spec.batch, width)
    if key not in packed:
        packed[key] = panels(b, spec.batch, width)
    inputs = (step.inputs[0], packed[key], *step.inputs[2:])
    return replace(step, spec=replace(spec, packed=width), inputs=inputs)


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


def panels(b: View, batch: int, width: int) -> View:
    """Return a constant's panels, in a constant of their own.

    b: of shape (*batch, *k, n).
    """
    array = b.array(b.buffer.data)
    outer, n = array.shape[:batch], array.shape[-1]
    k = int(np.prod(array.shape[batch:-1], dtype=np.int64))
    count = -(-n // width)
    lines = np.zeros((*outer, count, k, width), array.dtype)
    flat = array.reshape(*outer, k, n)
    for at in range(count):
        part = flat[..., at * width : (at + 1) * width]
        lines[..., at, :, : part.shape[-1]] = part
    data = lines.reshape(-1)
    return whole(
        Buffer(f"{b.buffer.name}.panels", b.buffer.dtype, data.size, Kind.CONSTANT, data), lines.shape
    )
