"""Einsum of one or two operands → views, a sum over rows, an element-wise product, or one contraction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from graphdoc.engine.expr import apply, cast, load, stage
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_elementwise import wide
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_products import contract
from graphdoc.engine.lower_rows import floats_only, run_rows
from graphdoc.engine.ops.einsum import parse
from graphdoc.engine.program import View


@dataclass(frozen=True, slots=True)
class Term:
    """An operand, and a label per axis."""

    view: View
    labels: str

    def sizes(self) -> dict[str, int]:
        """Return the size of each label."""
        return dict(zip(self.labels, self.view.shape, strict=True))

    def ordered(self, labels: Sequence[str]) -> View:
        """Return the view with these of its labels as axes, in this order."""
        return self.view.permuted([self.labels.index(c) for c in labels])


@lowering("Einsum")
def einsum(at: Site, *inputs: View, equation: str) -> View:
    """Einstein's sum convention."""
    floats_only(*inputs)
    terms, output = parse(equation, (len(x.shape) for x in inputs))
    if len(inputs) > 2 or len(set(output)) < len(output):
        raise NotLowered("more than two operands")
    operands = [_diagonal(Term(x, labels)) for x, labels in zip(inputs, terms, strict=True)]
    if len(operands) == 1:
        return _summed(at, operands[0], output).ordered(output)
    a, b = operands
    sizes = a.sizes() | b.sizes()
    if any(a.sizes().get(c, n) != n for c, n in b.sizes().items()):
        raise NotLowered("sizes that are broadcast")
    a, b = _summed(at, a, b.labels + output), _summed(at, b, a.labels + output)
    return _product(at, a, b, output, sizes)


def _diagonal(term: Term) -> Term:
    """Return an operand whose repeated labels are one axis each: the diagonal."""
    sizes: dict[str, int] = {}
    strides: dict[str, int] = {}
    for label, size, stride in zip(term.labels, term.view.shape, term.view.strides, strict=True):
        if sizes.setdefault(label, size) != size:
            raise NotLowered("sizes that are broadcast")
        strides[label] = strides.get(label, 0) + stride
    shape, steps = tuple(sizes.values()), tuple(strides.values())
    return Term(View(term.view.buffer, shape, steps, term.view.offset), "".join(sizes))


def _summed(at: Site, term: Term, kept: str) -> Term:
    """Return an operand summed over the labels that nobody else has."""
    axes = [k for k, c in enumerate(term.labels) if c not in kept]
    if not axes:
        return term
    total = Reduction("sum", wide(load(0, term.view.dtype)))
    result = cast(stage(0, total.expr.dtype), term.view.dtype)
    (row,) = run_rows(at, [term.view], axes, [total], [(result, False)])
    left = [k for k in range(len(term.labels)) if k not in axes]
    return Term(row.permuted(left), "".join(term.labels[k] for k in left))


def _product(at: Site, a: Term, b: Term, output: str, sizes: dict[str, int]) -> View:
    shared = [c for c in a.labels if c in b.labels]
    summed = [c for c in shared if c not in output]
    stack = [c for c in shared if c in output]
    rows, columns = ([c for c in t.labels if c not in shared] for t in (a, b))
    order = [*stack, *rows, *columns]
    if not summed:
        left = with_ones(a.ordered([*stack, *rows]), range(len(stack) + len(rows), len(order)))
        right = with_ones(b.ordered([*stack, *columns]), range(len(stack), len(stack) + len(rows)))
        both = at.map(lambda x, y: cast(apply("mul", wide(x), wide(y)), x.dtype), left, right)
        return Term(both, "".join(order)).ordered(output)
    # The contraction has at least one axis of rows, and exactly one of columns.
    left = a.ordered([*stack, *rows, *summed])
    left = left if rows else with_ones(left, [len(stack)])
    width = prod(sizes[c] for c in columns)
    inner = [sizes[c] for c in (*stack, *summed)]
    right = at.reshape(b.ordered([*stack, *summed, *columns]), [*inner, width])
    out = at.fresh([*left.shape[: len(left.shape) - len(summed)], width], left.dtype)
    contract(at, (len(stack), max(1, len(rows)), len(summed)), left, right, out)
    return Term(at.reshape(out, [sizes[c] for c in order]), "".join(order)).ordered(output)
