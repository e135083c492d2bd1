"""Constants of row reductions laid out as the step runs: weights of a depthwise convolution above all.

A filter stands in a file channel by channel; vectors across channels want each tap's channels side by side.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from graphdoc.engine.device.llvm.laid import Laid, lined
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, dense_strides


def prepare_rows(program: Program, laid: Laid | None = None) -> Program:
    """Return the program with constants of its Rows steps in the order of the step's largest operand.

    laid: what was laid out for other programs of the same weights.
    """
    laid = laid or Laid()
    steps = [_prepared(step, laid) if isinstance(step.spec, Rows) else step for step in program.steps]
    return replace(program, steps=steps)


def _prepared(step: Step, laid: Laid) -> Step:
    assert isinstance(step.spec, Rows)  # noqa: S101  # the caller looked
    lead = _lead(step, step.spec)
    if lead is None:
        return step
    order = sorted(range(len(lead)), key=lambda a: -abs(lead[a]))
    inputs = [_laid_out(v, order, laid) if v.buffer.kind is Kind.CONSTANT else v for v in step.inputs]
    return replace(step, inputs=tuple(inputs))


def _lead(step: Step, spec: Rows) -> tuple[int, ...] | None:
    """Return the strides over the domain of the operand that spans most memory, constants aside."""
    found = [v for v in step.inputs if v.buffer.kind is not Kind.CONSTANT]
    found += [v for v, o in zip(step.outputs, spec.outputs, strict=True) if o.full]
    return max(found, key=_span).strides if found else None


def _span(view: View) -> int:
    return view.extent[1] - view.extent[0]


def _laid_out(view: View, order: Iterable[int], laid: Laid) -> View:
    """Return the constant with its axes in memory in the given order, repeated ones left out."""
    axes = [a for a in order if view.strides[a] and view.shape[a] > 1]
    sizes = [view.shape[a] for a in axes]
    if [view.strides[a] for a in axes] == list(dense_strides(sizes)) or prod(sizes) > view.buffer.size:
        return view
    return laid.view(view, tuple(axes), lambda: _copied(view, axes))


def _copied(view: View, axes: list[int]) -> View:
    small = replace(
        view, shape=tuple(view.shape[a] for a in axes), strides=tuple(view.strides[a] for a in axes)
    )
    data = lined(small.array(view.buffer.data))
    strides = [0] * len(view.shape)
    for axis, step in zip(axes, dense_strides(small.shape), strict=True):
        strides[axis] = step
    buffer = Buffer(view.buffer.name, view.dtype, data.size, Kind.CONSTANT, data)
    return View(buffer, view.shape, tuple(strides))
