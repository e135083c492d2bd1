"""Do away with copies: write a value at once where it is wanted, or read it where it already is.

Lowering says every concatenation, padding and change of layout as a copy. A copy ``p -> q`` goes by

* *placing*: whoever wrote p writes its part of q instead, and p's other readers read there too (the parts of
  a concatenation, the inside of a padded image), or
* *reading through*: whoever reads q reads p in q's place (a transpose or slice made contiguous for a reshape
  that turned out not to need it).
"""

import numpy as np

from graphdoc.engine.draft import Draft
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Kind, Program, Step, View
from graphdoc.engine.views import bijective, through


def coalesce(program: Program) -> Program:
    """Return a program without the copies that placing or reading through can save."""
    draft = Draft(program)
    for position in range(len(draft.steps)):
        step = draft.steps[position]
        if step is not None and is_copy(step) and not _read_through(draft, position, step):
            _place(draft, position, step)
    return draft.finish()


def is_copy(step: Step) -> bool:
    """Return whether a step moves elements and changes none."""
    if not isinstance(step.spec, Map) or len(step.inputs) != 1 or len(step.outputs) != 1:
        return False
    (expr,) = step.spec.exprs
    return expr.op == "input" and step.inputs[0].dtype == step.outputs[0].dtype


def _read_through(draft: Draft, position: int, copy: Step) -> bool:
    """Let the readers of the copy read its source, where each keeps an axis without gaps."""
    (source,), (target,) = copy.inputs, copy.outputs
    if not draft.free(target.buffer) or not bijective(target) or source.buffer.kind is Kind.OUTPUT:
        return False
    moved: dict[int, Step] = {}
    for at, step in draft.at(draft.read_by(target.buffer)).items():
        inputs = []
        for k, view in enumerate(step.inputs):
            new = through(view, target, source) if view.buffer is target.buffer else view
            if new is None or (new is not view and not as_quick(step, k, view, new)):
                return False
            inputs.append(new)
        moved[at] = Step(step.spec, tuple(inputs), step.outputs, (*copy.nodes, *step.nodes))
    if _still_written(draft, source.buffer, position):
        return False
    _rename(draft.program, target, source)
    draft.put(position, None)
    for at, step in moved.items():
        draft.put(at, step)
    return True


def _still_written(draft: Draft, buffer: Buffer, position: int) -> bool:
    return any(at > position for at in draft.written_by(buffer))


def as_quick(step: Step, k: int, old: View, new: View) -> bool:
    """Return whether a step reads the new view as well as the old one."""
    if isinstance(step.spec, Contraction) and k == 0:
        return innermost(new) == innermost(old)
    return innermost(new) == innermost(old) or 1 not in old.strides


def innermost(view: View) -> int:
    """Return the axis along which elements stand side by side, -1 when there is none."""
    steps = [
        a
        for a, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
        if size > 1 and stride == 1
    ]
    return steps[-1] if steps else -1


def _place(draft: Draft, position: int, copy: Step) -> bool:
    """Let the writer of the copy's source write into the copy's target."""
    (source,), (target,) = copy.inputs, copy.outputs
    if not draft.free(source.buffer) or target.buffer.kind in (Kind.INPUT, Kind.CONSTANT):
        return False
    if not bijective(source) or innermost(source) != innermost(target):
        return False
    touched = {*draft.written_by(source.buffer), *draft.read_by(source.buffer)} - {position}
    moved: dict[int, Step] = {}
    for at, step in draft.at(touched).items():
        inputs, outputs = (
            [through(v, source, target) if v.buffer is source.buffer else v for v in views]
            for views in (step.inputs, step.outputs)
        )
        if None in inputs or None in outputs:
            return False
        moved[at] = Step(step.spec, tuple(filter(None, inputs)), tuple(filter(None, outputs)), step.nodes)
    if not _alone(draft, position, target):
        return False
    _rename(draft.program, source, target)
    draft.put(position, None)
    for at, step in moved.items():
        draft.put(at, step)
    return True


def _alone(draft: Draft, position: int, target: View) -> bool:
    """Return whether nothing else writes the elements that a view shows."""
    others = [
        view
        for at, step in draft.at(draft.written_by(target.buffer)).items()
        if at != position
        for view in step.outputs
        if view.buffer is target.buffer
    ]
    low, high = target.extent
    for view in others:
        first, last = view.extent
        if first < high and low < last and not _apart(view, target):
            return False
    return True


def _apart(a: View, b: View) -> bool:
    """Return whether two views show no common element of a buffer: told by ranges, else counted."""
    strides = sorted(
        {s for v in (a, b) for n, s in zip(v.shape, v.strides, strict=True) if n > 1}, reverse=True
    )
    one, other = _ranges(a, strides), _ranges(b, strides)
    if one and other and any(p[1] <= q[0] or q[1] <= p[0] for p, q in zip(one, other, strict=True)):
        return True
    marks = np.zeros(a.buffer.size, np.bool_)
    a.array(marks)[...] = True
    return not b.array(marks).any()


def _ranges(view: View, strides: list[int]) -> list[tuple[int, int]]:
    """Return, for each of the descending strides, which positions along it a view takes; [] where the strides
    are no number system for it: then ranges say nothing."""
    sizes = {s: n for n, s in zip(view.shape, view.strides, strict=True) if n > 1}
    found: list[tuple[int, int]] = []
    rest, above = view.offset, 0
    for stride in strides:
        if stride <= 0 or above % stride:
            return []
        start, rest = divmod(rest, stride)
        stop = start + sizes.get(stride, 1)
        if above and stop * stride > above:
            return []
        found.append((start, stop))
        above = stride
    same = len(sizes) == sum(n > 1 for n in view.shape)
    return found if same and not rest else []


def _rename(program: Program, old: View, new: View) -> None:
    """Find inner values of the graph where they are now; those that no view shows are dropped."""
    for name, view in list(program.values.items()):
        if view.buffer is old.buffer:
            found = through(view, old, new)
            if found is None:
                del program.values[name]
            else:
                program.values[name] = found
