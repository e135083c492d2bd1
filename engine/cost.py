"""What a step must do at least: arithmetic operations, and bytes to read and write.

Held against the machine's measured limits (:mod:`graphdoc.engine.limits`) they tell how near a step is to the
least time it could take (the roofline of Williams, Waterman and Patterson, 2009).
"""

from collections.abc import Iterable
from math import prod

from graphdoc.engine.expr import Expr, postorder
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.program import Step, View


def operations(step: Step) -> int:
    """Return the arithmetic operations; a product added to a sum counts as two, exp and the like as one."""
    spec = step.spec
    if isinstance(spec, Contraction):
        a, out = step.inputs[0], step.outputs[0]
        terms = prod(a.shape[spec.batch + spec.rows :])
        return out.size * (2 * terms + _counted([spec.epilogue]))
    if isinstance(spec, Map):
        return step.outputs[0].size * _counted(spec.exprs)
    if isinstance(spec, Rows):
        domain = spec.domain(step.inputs, step.outputs)
        rows = prod(domain[: len(domain) - spec.axes])
        full = [o.expr for o in spec.outputs if o.full] + [s.expr for s in spec.stages]
        single = [o.expr for o in spec.outputs if not o.full]
        return prod(domain) * (_counted(full) + len(spec.stages)) + rows * _counted(single)
    count = getattr(spec, "operations", None)
    return int(count(step.inputs, step.outputs)) if count is not None else 0


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
