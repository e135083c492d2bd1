"""Lay results out as their operands lie, where no reader minds: then they can be computed in one step.

A reshape of a transposed value must copy, and what follows it often undoes the order again: heads split off
and turned, merged with the batch, split once more. Seen through views nothing has moved but memory.
"""

from graphdoc.engine.coalesce import as_quick, innermost
from graphdoc.engine.draft import Draft
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Program, Step, View, dense_strides
from graphdoc.engine.views import bijective, through


def relay(program: Program) -> Program:
    """Return the program with maps' results in the memory order of their first full operand."""
    draft = Draft(program)
    for position, step in enumerate(draft.steps):
        if step is not None and isinstance(step.spec, Map) and len(step.outputs) == 1:
            _relay(draft, position, step)
    return draft.finish()


def _relay(draft: Draft, position: int, step: Step) -> None:
    (out,) = step.outputs
    operand = next((v for v in step.inputs if 0 not in _steps(v)), None)
    if operand is None or not draft.free(out.buffer) or not bijective(out):
        return
    new = _ordered(out, operand)
    if innermost(new) != innermost(out) or new.strides == out.strides:
        return
    if draft.written_by(out.buffer) != [position]:
        return
    moved = {}
    for at, reader in draft.at(draft.read_by(out.buffer)).items():
        inputs = []
        for k, view in enumerate(reader.inputs):
            seen = through(view, out, new) if view.buffer is out.buffer else view
            if seen is None or not as_quick(reader, k, view, seen):
                return
            inputs.append(seen)
        moved[at] = Step(reader.spec, tuple(inputs), reader.outputs, reader.nodes)
    for name, view in list(draft.program.values.items()):
        if view.buffer is out.buffer:
            found = through(view, out, new)
            if found is None:
                return
            draft.program.values[name] = found
    draft.put(position, Step(step.spec, step.inputs, (new,), step.nodes))
    for at, reader in moved.items():
        draft.put(at, reader)


def _steps(view: View) -> list[int]:
    """Return the strides of the axes that have more than one element."""
    return [s for n, s in zip(view.shape, view.strides, strict=True) if n > 1]


def _ordered(out: View, operand: View) -> View:
    """Return a view of a new buffer like ``out``, its axes in memory as the operand's."""
    order = sorted(range(len(out.shape)), key=lambda a: -abs(operand.strides[a]) if out.shape[a] > 1 else 0)
    buffer = Buffer(out.buffer.name, out.dtype, out.buffer.size)
    dense = dict(zip(order, dense_strides([out.shape[a] for a in order]), strict=True))
    return View(buffer, out.shape, tuple(dense[a] for a in range(len(out.shape))))
