"""Steps of one iteration → steps of all at once: an axis more on whatever differs between iterations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphdoc.engine.expr import Expr, index, leaves, substituted
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Buffer, Kind, Spec, Step, View


def lifted(
    steps: Sequence[Step], count: int, slices: Mapping[Buffer, View]
) -> tuple[list[Step], Callable[[View], View]] | None:
    """Return the steps of ``count`` iterations at once, and the function from a view to that of all.

    steps: of one iteration, none of which reads what another iteration writes. slices: buffers that stand for
    a slice, whole and row-major → the view (count, *slice) of all slices.
    None: a step is of a kind that has no axis for it.
    """
    varying = _varying(steps, slices)
    grown: dict[Buffer, Buffer] = {}

    def all_of(view: View) -> View:
        if view.buffer in slices:
            whole = slices[view.buffer]
            start = whole.offset + view.offset
            return View(whole.buffer, (count, *view.shape), (whole.strides[0], *view.strides), start)
        if view.buffer not in varying:
            return View(view.buffer, (count, *view.shape), (0, *view.strides), view.offset)
        old = view.buffer
        if old not in grown:
            grown[old] = Buffer(old.name, old.dtype, count * old.size)
        return View(grown[old], (count, *view.shape), (old.size, *view.strides), view.offset)

    found = []
    for step in steps:
        if not any(view.buffer in varying for view in (*step.inputs, *step.outputs)):
            found.append(step)
            continue
        spec = _spec(step.spec)
        if spec is None or any(view.buffer.kind is not Kind.INNER for view in step.outputs):
            return None
        found.append(
            Step(spec, tuple(map(all_of, step.inputs)), tuple(map(all_of, step.outputs)), step.nodes)
        )
    return found, all_of


def _varying(steps: Sequence[Step], slices: Iterable[Buffer]) -> set[Buffer]:
    """Return the buffers whose contents differ between iterations, slices among them."""
    found = set(slices)
    before = -1
    while len(found) != before:
        before = len(found)
        for step in steps:
            views = (*step.inputs, *step.outputs)
            if any(view.buffer in found for view in views):
                found.update(view.buffer for view in step.outputs)
    return found


def _moved(expr: Expr) -> Expr:
    """Return the expression with positions along axes one further."""
    return substituted(expr, {index(axis): index(axis + 1) for axis in leaves([expr], "index")})


def _rows(spec: Rows) -> Rows:
    stages = tuple(Reduction(s.fold, _moved(s.expr)) for s in spec.stages)
    return Rows(spec.axes, stages, tuple(Output(_moved(o.expr), o.full) for o in spec.outputs))


_SPECS: Mapping[type[Any], Callable[[Any], Spec]] = {
    Map: lambda spec: Map(tuple(map(_moved, spec.exprs))),
    Rows: _rows,
    Contraction: lambda spec: replace(spec, batch=spec.batch + 1, epilogue=_moved(spec.epilogue)),
    Gather: lambda spec: Gather(spec.axis + 1),
    Attention: lambda spec: replace(spec, batch=spec.batch + 1, score=_moved(spec.score)),
}


def _spec(spec: Spec) -> Spec | None:
    row = _SPECS.get(type(spec))
    return None if row is None else row(spec)
