"""Fusion of attention: a product, the softmax of its rows, and the product of that with values.

The scores, which are the largest thing an attention computes, are then never stored: a few rows of them at a
time stay in the cache until they are multiplied with the values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphdoc.engine.draft import Draft, Pair
from graphdoc.engine.expr import F32, Expr, apply, const, leaves, load, stage, substituted
from graphdoc.engine.fuse_map import Operands, small
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.program import Step, View
from graphdoc.engine.views import bijective, through


@dataclass(frozen=True, slots=True)
class _Parts:
    """The three steps and where the last two stand: scores, their softmax, the weighted values."""

    scores: Step
    softmax: Step
    values: Step
    second: int
    third: int


def attention(draft: Draft, pair: Pair) -> bool:
    """Make one step of scores, softmax and weighted values, if nobody else reads what is between them."""
    parts = _parts(draft, pair)
    if parts is None:
        return False
    step = _attention(parts)
    if step is None:
        reason = "the axes of scores, softmax and values cannot be brought together by strides"
        for node in parts.softmax.nodes[:1]:
            draft.program.notes.setdefault(node, f"not fused into one attention: {reason}")
        return False
    draft.put(pair.producer, None)
    draft.put(parts.second, None)
    draft.put(parts.third, step)
    return True


def _parts(draft: Draft, pair: Pair) -> _Parts | None:
    first, second = pair.first, pair.second
    if (
        not isinstance(first.spec, Contraction)
        or not isinstance(second.spec, Rows)
        or len(second.outputs) != 1
    ):
        return None
    (weights,) = second.outputs
    readers = draft.read_by(weights.buffer)
    third = draft.steps[readers[0]] if len(readers) == 1 else None
    if third is None or not isinstance(third.spec, Contraction) or not _plain(first.spec, third):
        return None
    alone = all(draft.free(v.buffer) and bijective(v) for v in (pair.output, weights))
    if not alone or draft.read_by(pair.output.buffer) != [pair.reader]:
        return None
    if third.inputs[0].buffer is not weights.buffer or third.inputs[1].buffer is weights.buffer:
        return None
    return _Parts(first, second, third, pair.reader, readers[0])


def _plain(scores: Contraction, values: Step) -> bool:
    """Return whether both products are of float32 over one axis, and nothing follows the second."""
    last = values.spec
    if not isinstance(last, Contraction) or len(values.inputs) != 2 or last.epilogue != load(-1, F32):
        return False
    return all(
        part.terms == 1 and part.rows >= 1 and part.accumulate == F32 and not part.packed
        for part in (scores, last)
    )


def softmax_of(spec: Rows) -> tuple[Expr, bool] | None:
    """Return the expression whose softmax over the row a Rows is, and whether NaN becomes 0 in it (exporters
    write that for rows that are masked altogether); None when it is none."""
    if len(spec.stages) != 2 or [s.fold for s in spec.stages] != ["max", "sum"] or not spec.outputs[0].full:
        return None
    score = spec.stages[0].expr
    if score.dtype != F32:
        return None
    power = apply("exp", apply("sub", score, stage(0, F32)))
    total = stage(1, F32)
    plain = (apply("div", power, total), apply("mul", power, apply("div", const(1, F32), total)))
    zero = const(0, F32)
    guarded = {apply("select", apply("isnan", weight), zero, weight) for weight in plain}
    found = spec.outputs[0].expr
    if spec.stages[1].expr is not power or found not in {*plain, *guarded}:
        return None
    return score, found in guarded


def _attention(parts: _Parts) -> Step | None:
    scores, softmax, values = parts.scores, parts.softmax, parts.values
    if not isinstance(scores.spec, Contraction) or not isinstance(softmax.spec, Rows):
        return None
    found = softmax_of(softmax.spec)
    (out,) = scores.outputs
    own = [v for v in softmax.inputs if v.buffer is out.buffer]
    if found is None or softmax.spec.axes != 1 or len(set(own)) != 1 or leaves([found[0]], "index"):
        return None
    score, guarded = found
    seen = own[0]
    if not bijective(seen) or seen.shape[-1:] != out.shape[-1:] or seen.strides[-1] != out.strides[-1]:
        return None
    weights = through(out, seen, softmax.outputs[0])
    if weights is None:
        return None
    weighted = _weighted(values, weights)
    expr, operands = _score(scores, softmax, score, seen)
    if weighted is None or expr is None or not small([expr], operands):
        return None
    v, target = weighted
    q, k = _query_and_key(scores, scores.spec)
    if any(view.dtype != F32 for view in (q, k, v, target)):
        return None
    nodes = (*scores.nodes, *softmax.nodes, *values.nodes)
    return Step(Attention(len(q.shape) - 2, expr, guarded), (q, k, v, *operands), (target,), nodes)


def _query_and_key(step: Step, spec: Contraction) -> tuple[View, View]:
    """Return q (*b, s, d) and k (*b, t, d): all axes but the last row axis are the batch, of which k may not
    depend on some."""
    q, k = step.inputs[:2]
    between = spec.rows - 1
    batch = (*k.strides[: spec.batch], *(0,) * between)
    shape = (*q.shape[:-2], k.shape[-1], k.shape[-2])
    return q, View(k.buffer, shape, (*batch, k.strides[-1], k.strides[-2]), k.offset)


def _score(
    scores: Step, softmax: Step, score: Expr, seen: View
) -> tuple[Expr, list[View]] | tuple[None, list[View]]:
    """Return the score in terms of the product and of further inputs from position 3 on."""
    (out,) = scores.outputs
    spec = scores.spec
    if not isinstance(spec, Contraction):
        return None, []
    operands = Operands([out] * 3, first=3)
    new = {load(k, v.dtype): load(operands.number(v), v.dtype) for k, v in enumerate(scores.inputs) if k >= 2}
    product = substituted(spec.epilogue, new)
    if product.dtype != F32:
        return None, []
    new = {}
    for k, view in enumerate(softmax.inputs):
        if view == seen:
            new[load(k, view.dtype)] = product
            continue
        other = through(out, seen, view)
        if other is None:
            return None, []
        new[load(k, view.dtype)] = load(operands.number(other), other.dtype)
    return substituted(score, new), operands.views[3:]


def _weighted(values: Step, weights: View) -> tuple[View, View] | None:
    """Return v (*b, t, e) and the output (*b, s, e) in the order of the weights' axes (*b, s, t)."""
    spec = values.spec
    if not isinstance(spec, Contraction):
        return None
    a, v = values.inputs
    (out,) = values.outputs
    last = len(a.shape) - 1
    order = _order(weights, a)
    if order is None or order[-1] != last or (order[-2] is not None and order[-2] < spec.batch):
        return None
    between = (0,) * spec.rows
    full = View(
        v.buffer, (*a.shape[:-1], *v.shape[-2:]), (*v.strides[:-2], *between, *v.strides[-2:]), v.offset
    )
    return _picked(full, order[:-2], 2), _picked(out, order[:-1], 1)


def _order(weights: View, a: View) -> list[int | None] | None:
    """Return which axis of ``a`` each axis of the weights is, None for one of size 1; None if they differ."""
    if a.offset != weights.offset:
        return None
    left = {axis: key for axis, key in enumerate(zip(a.shape, a.strides, strict=True)) if key[0] > 1}
    order: list[int | None] = []
    for size, stride in zip(weights.shape, weights.strides, strict=True):
        found = next((axis for axis, key in left.items() if key == (size, stride)), None)
        if size > 1 and found is None:
            return None
        if found is not None:
            del left[found]
        order.append(found)
    if left:
        return None
    if order[-1] is None:
        order[-1] = len(a.shape) - 1
    return order


def _picked(view: View, axes: Sequence[int | None], tail: int) -> View:
    """Return the view with the given axes, None being one of size 1, and its last ``tail`` axes."""
    ends = range(len(view.shape) - tail, len(view.shape))
    shape = (*(1 if a is None else view.shape[a] for a in axes), *(view.shape[a] for a in ends))
    strides = (*(0 if a is None else view.strides[a] for a in axes), *(view.strides[a] for a in ends))
    return View(view.buffer, shape, strides, view.offset)
