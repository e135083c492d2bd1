"""What a step must do at least: arithmetic operations, and bytes to read and write.

Held against the machine's measured limits (:mod:`graphdoc.engine.limits`) they tell how near a step is to the
least time it could take (the roofline of Williams, Waterman and Patterson, 2009).
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from graphdoc.engine.expr import Expr, postorder
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.recurrent import Recurrent
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.kernels.winograd import Winograd
from graphdoc.engine.program import Step, View


def operations(step: Step) -> int:
    """Return the arithmetic operations; a product added to a sum counts as two, exp and the like as one.

    Of bytes that are multiplied and added four at a time, four count as one: the limit is that of float32.
    """
    found = _OPERATIONS.get(type(step.spec))
    if found is not None:
        return found(step.spec, step)
    count = getattr(step.spec, "operations", None)
    return int(count(step.inputs, step.outputs)) if count is not None else 0


def _of_contraction(spec: Contraction, step: Step) -> int:
    terms = prod(step.inputs[0].shape[spec.batch + spec.rows :])
    terms = -(-terms // 4) if spec.together == 4 else terms
    return step.outputs[0].size * (2 * terms + _counted([spec.epilogue]))


def _of_map(spec: Map, step: Step) -> int:
    return step.outputs[0].size * _counted(spec.exprs)


def _of_rows(spec: Rows, step: Step) -> int:
    domain = spec.domain(step.inputs, step.outputs)
    rows = prod(domain[: len(domain) - spec.axes])
    full = [o.expr for o in spec.outputs if o.full] + [s.expr for s in spec.stages]
    single = [o.expr for o in spec.outputs if not o.full]
    return prod(domain) * (_counted(full) + len(spec.stages)) + rows * _counted(single)


def _of_winograd(spec: Winograd, step: Step) -> int:
    """Count the products of tiles, not of a direct convolution; the transforms take few beside them."""
    out = step.outputs[0]
    n, y, x, columns = out.shape
    tiles = n * -(-y // spec.size) * -(-x // spec.size)
    channels = step.inputs[0].shape[-1]
    return 2 * tiles * (spec.size + 2) ** 2 * channels * columns + out.size * _counted([spec.epilogue])


def _of_attention(spec: Attention, step: Step) -> int:
    """Count both products, and of each score its expression, the largest, exp and the sum."""
    q, k, v = step.inputs[:3]
    pairs = prod(q.shape[:-1]) * k.shape[-2]
    return pairs * (2 * q.shape[-1] + 2 * v.shape[-1] + _counted([spec.score]) + 4)


def _of_recurrent(spec: Recurrent, step: Step) -> int:
    """Count the products with the state, and of each gate its sum and activation."""
    rows, (gates, hidden) = prod(step.inputs[0].shape[:-2]), step.inputs[0].shape[-2:]
    return rows * gates * hidden * (2 * hidden + 2)


_OPERATIONS: dict[type, Callable[[Any, Step], int]] = {
    Contraction: _of_contraction,
    Map: _of_map,
    Rows: _of_rows,
    Winograd: _of_winograd,
    Attention: _of_attention,
    Recurrent: _of_recurrent,
}
"""What a kind of specification takes; others say so themselves, or move bytes alone."""


def _counted(exprs: Iterable[Expr]) -> int:
    return len({node for root in exprs for node in postorder(root) if node.args and node.op != "cast"})


def traffic(step: Step) -> int:
    """Return the bytes read and written, each element once however often it is used."""
    return sum(map(touched, {*step.inputs, *step.outputs}))


def touched(view: View) -> int:
    """Return the bytes of the different elements that a view shows."""
    once = prod(size for size, stride in zip(view.shape, view.strides, strict=True) if stride)
    low, high = view.extent
    return min(once, high - low) * view.dtype.itemsize
