"""Fusion around rows: what is computed of a row's reductions joins them, while the row is at hand."""

from collections.abc import Iterable, Sequence

from graphdoc.engine.draft import Draft, Pair
from graphdoc.engine.expr import Expr, leaves, load, stage, substituted
from graphdoc.engine.fuse_map import Operands, exprs_of, placement, small
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Step, View
from graphdoc.engine.views import bijective

Matching = dict[int, int]
"""Axes of a reader's domain → axes of the row step's domain; those of size 1 are left out."""


def rows(draft: Draft, pair: Pair) -> bool:
    """Join a Map or Rows to the Rows whose results it reads, if its elements are the same rows'."""
    first, second = pair.first, pair.second
    if not isinstance(first.spec, Rows) or not isinstance(second.spec, Map | Rows):
        return False
    place = placement(draft, pair)
    domain = _domain(first)
    matching = _match(first, second, domain, len(domain) - first.spec.axes)
    if place is None or matching is None or leaves(exprs_of(second), "index"):
        return False
    kept = [
        (spec, view)
        for spec, view in zip(first.spec.outputs, first.outputs, strict=True)
        if not draft.free(view.buffer) or draft.read_by(view.buffer) != [pair.reader]
    ]
    step = _merged(first, first.spec, second, second.spec, matching, kept)
    if step is None:
        return False
    draft.put(pair.producer, None)
    draft.put(pair.reader, None)
    draft.put(place, step)
    return True


def _domain(step: Step) -> tuple[int, ...]:
    """Return the shape over which a Map or Rows step runs."""
    if isinstance(step.spec, Rows):
        return step.spec.domain(step.inputs, step.outputs)
    return step.outputs[0].shape


def _match(first: Step, second: Step, domain: Sequence[int], split: int) -> Matching | None:
    """Return which axis of the first's domain each axis of the second's is, None if they do not fit.

    split: the first reduced axis of the domain.
    """
    shape = _domain(second)
    matching: Matching = {}
    for view in second.inputs:
        written = next((o for o in first.outputs if o.buffer is view.buffer), None)
        if written is None:
            continue
        found = _axes_of(view, written) if bijective(written) else None
        if found is None or any(matching.setdefault(a, d) != d for a, d in found.items()):
            return None
    free = [a for a, size in enumerate(shape) if size > 1 and a not in matching]
    left = [d for d in range(split, len(domain)) if domain[d] > 1 and d not in matching.values()]
    if free and [shape[a] for a in free] != [domain[d] for d in left]:
        return None
    matching.update(zip(free, left, strict=False))
    if len(set(matching.values())) != len(matching):
        return None
    return matching if _rows_on_rows(second, matching, domain, split) else None


def _axes_of(view: View, written: View) -> Matching | None:
    """Return which axis of what was written each axis of a view runs along; all of them, in full."""
    if view.offset != written.offset:
        return None
    found: Matching = {}
    for a, (size, step) in enumerate(zip(view.shape, view.strides, strict=True)):
        if size == 1 or step == 0:
            continue
        same = [
            d for d, key in enumerate(zip(written.shape, written.strides, strict=True)) if key == (size, step)
        ]
        if not same:
            return None
        found[a] = same[0]
    wanted = {d for d, size in enumerate(written.shape) if size > 1}
    return found if set(found.values()) == wanted else None


def _rows_on_rows(second: Step, matching: Matching, domain: Sequence[int], split: int) -> bool:
    """Return whether all of a row's axes are covered, and a second reduction folds what the first did."""
    if not {d for d in range(split) if domain[d] > 1} <= set(matching.values()):
        return False
    if not isinstance(second.spec, Rows):
        covered = {d for d in matching.values() if d >= split}
        return not covered or covered == {d for d in range(split, len(domain)) if domain[d] > 1}
    own = len(_domain(second)) - second.spec.axes
    folded = {d for a, d in matching.items() if a >= own}
    return folded == {d for d in range(split, len(domain)) if domain[d] > 1}


def _merged(
    first: Step,
    spec: Rows,
    second: Step,
    following: Map | Rows,
    matching: Matching,
    kept: Iterable[tuple[Output, View]],
) -> Step | None:
    domain = _domain(first)
    split = len(domain) - spec.axes
    operands = Operands(first.inputs)
    results = dict(zip((o.buffer for o in first.outputs), spec.outputs, strict=True))
    new: dict[Expr, Expr] = {}
    for k, view in enumerate(second.inputs):
        old = load(k, view.dtype)
        if view.buffer in results:
            new[old] = results[view.buffer].expr
        else:
            new[old] = load(operands.number(_over(view, matching, domain)), view.dtype)
    full = any(d >= split for d in matching.values()) or all(size == 1 for size in domain[split:])
    stages, outputs = list(spec.stages), list(kept)
    if isinstance(following, Rows):
        stages, added = _with_stages(stages, following, new)
    else:
        added = [Output(substituted(e, new), full) for e in following.exprs]
    for part, view in zip(added, second.outputs, strict=True):
        shape = domain if part.full else domain[:split]
        outputs.append((part, _over(view, {a: d for a, d in matching.items() if d < len(shape)}, shape)))
    return _pruned(spec.axes, stages, outputs, operands.views, (*first.nodes, *second.nodes))


def _with_stages(
    stages: list[Reduction], following: Rows, new: dict[Expr, Expr]
) -> tuple[list[Reduction], list[Output]]:
    """Return the stages of both steps, and the outputs of the second in terms of them."""
    new = dict(new)
    stages = list(stages)
    for k, part in enumerate(following.stages):
        stages.append(Reduction(part.fold, substituted(part.expr, new)))
        new[stage(k, part.expr.dtype)] = stage(len(stages) - 1, part.expr.dtype)
    return stages, [Output(substituted(o.expr, new), o.full) for o in following.outputs]


def _over(view: View, matching: Matching, domain: Sequence[int]) -> View:
    """Return a view of the second's domain as one of the first's."""
    strides = [0] * len(domain)
    for a, d in matching.items():
        strides[d] = view.strides[a]
    return View(view.buffer, tuple(domain), tuple(strides), view.offset)


def _pruned(
    axes: int,
    stages: Sequence[Reduction],
    outputs: Sequence[tuple[Output, View]],
    inputs: Sequence[View],
    nodes: tuple[str, ...],
) -> Step | None:
    """Return the step without the stages and inputs that nothing uses any more."""
    used = set(leaves([spec.expr for spec, _ in outputs], "stage"))
    for k in reversed(range(len(stages))):
        if k in used:
            used.update(leaves([stages[k].expr], "stage"))
    order = sorted(used)
    new = {stage(k, stages[k].expr.dtype): stage(n, stages[k].expr.dtype) for n, k in enumerate(order)}
    exprs = [stages[k].expr for k in order] + [spec.expr for spec, _ in outputs]
    read = leaves(exprs, "input")
    new |= {load(k, inputs[k].dtype): load(n, inputs[k].dtype) for n, k in enumerate(read)}
    exprs = [substituted(e, new) for e in exprs]
    folds = tuple(Reduction(stages[k].fold, e) for k, e in zip(order, exprs, strict=False))
    results = tuple(Output(e, spec.full) for e, (spec, _) in zip(exprs[len(order) :], outputs, strict=True))
    views = tuple(inputs[k] for k in read)
    if not order or not views or not small(exprs, views):
        return None
    return Step(Rows(axes, folds, results), views, tuple(view for _, view in outputs), nodes)
