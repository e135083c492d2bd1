"""How a row reduction lies in memory: its axes merged, and which of them vectors may run along."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphdoc.engine.expr import Dtype, leaves
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.program import Step


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the iteration: its size, each operand's stride, its number in the domain (-1: several)."""

    size: int
    strides: tuple[int, ...]
    domain: int = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """The iteration of a step. Operands are its inputs, then its outputs.

    rows: the kept axes, outermost in memory first; reduced likewise. Axes of size 1 are left out.
    dtypes: of each operand. inputs: how many operands are inputs. varying: inputs that differ within a row.
    """

    rows: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    dtypes: tuple[Dtype, ...]
    inputs: int

    @property
    def varying(self) -> list[int]:
        """Return the inputs that differ between a row's elements."""
        return [k for k in range(self.inputs) if any(a.strides[k] for a in self.reduced)]

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return product(self.rows)

    @property
    def length(self) -> int:
        """Return the number of elements of a row."""
        return product(self.reduced)


def product(axes: Sequence[Axis]) -> int:
    """Return how many positions the axes have together."""
    total = 1
    for axis in axes:
        total *= axis.size
    return total


def arrange(step: Step) -> Layout:
    """Return how a step of :class:`Rows` iterates."""
    spec = step.spec
    assert isinstance(spec, Rows)  # noqa: S101  # the caller dispatches on the type
    domain = spec.domain(step.inputs, step.outputs)
    kept = len(domain) - spec.axes
    strides = [view.strides for view in step.inputs]
    strides += [
        view.strides if output.full else (*view.strides, *(0,) * spec.axes)
        for view, output in zip(step.outputs, spec.outputs, strict=True)
    ]
    exprs = [s.expr for s in spec.stages] + [o.expr for o in spec.outputs]
    indexed = leaves(exprs, "index")
    axes = [
        Axis(size, tuple(s[d] for s in strides), d if d in indexed else -1)
        for d, size in enumerate(domain)
        if size != 1
    ]
    cut = len([size for size in domain[:kept] if size != 1])
    lead = _lead(step)
    return Layout(
        tuple(_merged(sorted(axes[:cut], key=lead))),
        tuple(_merged(sorted(axes[cut:], key=lead))),
        tuple(view.dtype for view in (*step.inputs, *step.outputs)),
        len(step.inputs),
    )


def _lead(step: Step) -> Callable[[Axis], tuple[int, ...]]:
    """Return a sort key of axes: largest stride first, of the operand that spans most memory, then others."""
    extents = [view.extent[1] - view.extent[0] for view in (*step.inputs, *step.outputs)]
    order = sorted(range(len(extents)), key=lambda k: -extents[k])
    return lambda axis: tuple(-abs(axis.strides[k]) for k in order)


def _merged(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes with neighbours joined where every operand goes on from one to the next."""
    result: list[Axis] = []
    for axis in axes:
        if result and _joins(result[-1], axis):
            result[-1] = Axis(result[-1].size * axis.size, axis.strides)
        else:
            result.append(axis)
    return result


def _joins(outer: Axis, inner: Axis) -> bool:
    pairs = zip(outer.strides, inner.strides, strict=True)
    return outer.domain < 0 and inner.domain < 0 and all(o == i * inner.size for o, i in pairs)
