"""Fusion of element-wise steps: into their readers, with each other, and into what computes their inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphdoc.engine.draft import Draft, Pair
from graphdoc.engine.expr import Expr, leaves, load, postorder, substituted
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Step, View
from graphdoc.engine.views import bijective, through

MAX_INPUTS = 12
"""Operands of a fused step: more would not find room in a processor's registers for their addresses."""

MAX_OPERATIONS = 96
"""Operations of a fused step: beyond it compiling costs more than fusing saves."""

_COSTLY = frozenset(
    [
        "exp",
        "log",
        "log1p",
        "expm1",
        "pow",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "sigmoid",
        "erf",
        "div",
        "sqrt",
        "mod",
        "fmod",
    ]
)


class Operands:
    """The inputs of a fused step: each view once."""

    def __init__(self, views: Sequence[View] = (), first: int = 0) -> None:
        self.views = list(views)
        self.first = first

    def number(self, view: View) -> int:
        """Return the position of a view, added if it is new."""
        for k in range(self.first, len(self.views)):
            if self.views[k] == view:
                return k
        self.views.append(view)
        return len(self.views) - 1

    def leaves(self, views: Sequence[View]) -> dict[Expr, Expr]:
        """Return what replaces ``input`` k by the k-th of the views as this step has it."""
        return {load(k, v.dtype): load(self.number(v), v.dtype) for k, v in enumerate(views)}


def work(exprs: Sequence[Expr]) -> int:
    """Return what computing expressions costs, in simple operations."""
    nodes = {node for root in exprs for node in postorder(root) if node.args}
    return sum(8 if node.op in _COSTLY else 1 for node in nodes)


def small(exprs: Sequence[Expr], inputs: Sequence[View]) -> bool:
    """Return whether a fused step stays within what is worth compiling."""
    nodes = {node for root in exprs for node in postorder(root)}
    return len(inputs) <= MAX_INPUTS and len(nodes) <= MAX_OPERATIONS


def exprs_of(step: Step) -> list[Expr]:
    """Return every expression of a step."""
    spec = step.spec
    if isinstance(spec, Map):
        return list(spec.exprs)
    if isinstance(spec, Rows):
        return [*(s.expr for s in spec.stages), *(o.expr for o in spec.outputs)]
    return [spec.epilogue] if isinstance(spec, Contraction) else []


def with_exprs(step: Step, leaves: Mapping[Expr, Expr], inputs: Sequence[View]) -> Step:
    """Return a Map or Rows step with leaves replaced and other inputs."""
    spec = step.spec
    if isinstance(spec, Map):
        return Step(
            Map(tuple(substituted(e, leaves) for e in spec.exprs)), tuple(inputs), step.outputs, step.nodes
        )
    if isinstance(spec, Rows):
        stages = tuple(Reduction(s.fold, substituted(s.expr, leaves)) for s in spec.stages)
        outputs = tuple(Output(substituted(o.expr, leaves), o.full) for o in spec.outputs)
        spec = Rows(spec.axes, stages, outputs)
    return Step(spec, tuple(inputs), step.outputs, step.nodes)


def inline(draft: Draft, pair: Pair) -> bool:
    """Compute a Map's result in the one step that reads it, instead of storing it."""
    first, second, output = pair.first, pair.second, pair.output
    if not isinstance(first.spec, Map) or not isinstance(second.spec, Map | Rows):
        return False
    if not draft.free(output.buffer) or not bijective(output) or len(draft.written_by(output.buffer)) > 1:
        return False
    expr = first.spec.exprs[first.outputs.index(output)]
    if leaves([expr], "index") or not _worth(draft, expr, second, output):
        return False
    step = inlined(first, second, output, expr)
    if step is None:
        return False
    draft.put(pair.reader, step)
    if not draft.wanted(output.buffer):
        draft.put(pair.producer, without_output(first, first.spec, output))
    return True


def _worth(draft: Draft, expr: Expr, second: Step, output: View) -> bool:
    """Return whether computing again beats storing and loading."""
    cost = work([expr])
    readings = [v for v in second.inputs if v.buffer is output.buffer]
    if any(v.size > output.size for v in readings) and cost > 1:
        return False  # repeated along an axis: stored once is cheaper
    if isinstance(second.spec, Rows) and cost > 4 * len(readings):
        uses = len(second.spec.stages) + sum(o.full for o in second.spec.outputs)
        if uses > 1:
            return False
    return len(draft.read_by(output.buffer)) == 1 or cost <= 1


def inlined(first: Step, second: Step, output: View, expr: Expr) -> Step | None:
    """Return the second step with the first's result computed in place, None where views cannot say it."""
    operands = Operands()
    new: dict[Expr, Expr] = {}
    for k, view in enumerate(second.inputs):
        old = load(k, view.dtype)
        if view.buffer is not output.buffer:
            new[old] = load(operands.number(view), view.dtype)
            continue
        seen = [through(view, output, source) for source in first.inputs]
        if None in seen:
            return None
        new[old] = substituted(expr, operands.leaves([v for v in seen if v is not None]))
    step = with_exprs(second, new, operands.views)
    if not operands.views or not small(exprs_of(step), step.inputs):
        return None
    return replace(step, nodes=(*first.nodes, *second.nodes))


def without_output(step: Step, spec: Map, output: View) -> Step | None:
    """Return a Map without one of its outputs, None when it was the last."""
    kept = [(e, o) for e, o in zip(spec.exprs, step.outputs, strict=True) if o is not output]
    if not kept:
        return None
    exprs, outputs = zip(*kept, strict=True)
    used = leaves(exprs, "input")
    new = {load(k, step.inputs[k].dtype): load(n, step.inputs[k].dtype) for n, k in enumerate(used)}
    less = Map(tuple(substituted(e, new) for e in exprs))
    return Step(less, tuple(step.inputs[k] for k in used), outputs, step.nodes)


def join(draft: Draft, pair: Pair) -> bool:
    """Make one Map of two over the same elements: what the first stores the second need not load."""
    first, second, output = pair.first, pair.second, pair.output
    if not isinstance(first.spec, Map) or not isinstance(second.spec, Map):
        return False
    same = next((v for v in second.inputs if v.buffer is output.buffer), None)
    if same is None or not bijective(same) or not bijective(output) or output.buffer.size < 2:
        return False
    place = placement(draft, pair)
    step = joined(first, first.spec, second, second.spec, output, same)
    if step is None or place is None:
        return False
    draft.put(pair.producer, None)
    draft.put(pair.reader, None)
    draft.put(place, step)
    return True


def placement(draft: Draft, pair: Pair) -> int | None:
    """Return where the fusion of two steps can stand: at the reader if nothing between needs the first's
    results, else at the producer if all that the reader needs is there."""
    between = [at for o in pair.first.outputs for at in draft.read_by(o.buffer) if at < pair.reader]
    if not between:
        return pair.reader
    own = {o.buffer for o in pair.first.outputs}
    others = [v for v in pair.second.inputs if v.buffer not in own]
    return pair.producer if draft.ready(others, pair.producer) else None


def joined(first: Step, spec: Map, second: Step, following: Map, output: View, same: View) -> Step | None:
    """Return the Map that does what two do, over the first's domain."""
    operands = Operands(first.inputs)
    expr = spec.exprs[first.outputs.index(output)]
    new: dict[Expr, Expr] = {}
    for k, view in enumerate(second.inputs):
        if view == same:
            new[load(k, view.dtype)] = expr
            continue
        if view.buffer in {o.buffer for o in first.outputs}:
            return None
        seen = through(output, same, view)
        if seen is None:
            return None
        new[load(k, view.dtype)] = load(operands.number(seen), view.dtype)
    outputs = [through(output, same, view) for view in second.outputs]
    if None in outputs or leaves(following.exprs, "index"):
        return None
    exprs = (*spec.exprs, *(substituted(e, new) for e in following.exprs))
    if not small(exprs, operands.views):
        return None
    written = (*first.outputs, *(v for v in outputs if v is not None))
    return Step(Map(exprs), tuple(operands.views), written, (*first.nodes, *second.nodes))


def epilogue(draft: Draft, pair: Pair) -> bool:
    """Compute a Map of a contraction's results before they are stored."""
    first, second, output = pair.first, pair.second, pair.output
    if not isinstance(first.spec, Contraction) or not isinstance(second.spec, Map):
        return False
    if (
        not draft.free(output.buffer)
        or draft.read_by(output.buffer) != [pair.reader]
        or not bijective(output)
    ):
        return False
    same = [v for v in second.inputs if v.buffer is output.buffer]
    if len(second.outputs) > 1 or len(set(same)) != 1 or not bijective(same[0]):
        return _refused(draft, second, "its operand is repeated, sliced or used in two ways")
    step = _with_epilogue(first, first.spec, second, second.spec, output, same[0])
    if step is None:
        return _refused(draft, second, "its shapes and the product's cannot be brought together by strides")
    draft.put(pair.producer, None)
    draft.put(pair.reader, step)
    return True


def _with_epilogue(
    first: Step, spec: Contraction, second: Step, following: Map, output: View, same: View
) -> Step | None:
    if leaves(following.exprs, "index"):
        return None
    operands = Operands(first.inputs, first=2)
    new: dict[Expr, Expr] = {}
    for k, view in enumerate(second.inputs):
        old = load(k, view.dtype)
        if view == same:
            new[old] = spec.epilogue
            continue
        seen = through(output, same, view)
        if seen is None:
            return None
        new[old] = load(operands.number(seen), view.dtype)
    target = through(output, same, second.outputs[0])
    expr = substituted(following.exprs[0], new)
    if target is None or not small([expr], operands.views):
        return None
    more = replace(spec, epilogue=expr)
    return Step(more, tuple(operands.views), (target,), (*first.nodes, *second.nodes))


def _refused(draft: Draft, step: Step, reason: str) -> bool:
    for node in step.nodes[:1]:
        draft.program.notes.setdefault(node, f"not fused into the product before it: {reason}")
    return False
