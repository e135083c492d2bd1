"""Matrix products → Contraction."""

from collections.abc import Callable, Sequence

import numpy as np

from graphdoc.engine.expr import DTYPES, F32, F64, I8, I32, U8, Dtype, Expr, apply, cast, const, load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.lower import NotLowered, Site, content
from graphdoc.engine.lower_elementwise import like
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_rows import floats_only
from graphdoc.engine.program import View

Epilogue = Callable[..., Expr]
"""(the sum, the further inputs in the dtype of the sum) → what is stored, still in that dtype."""


def accumulator(dtype: Dtype) -> Dtype:
    """Return the dtype in which products are summed: of 8-bit codes exactly."""
    if dtype in (I8, U8):
        return I32
    return F64 if dtype == F64 else F32


def the_sum(total: Expr) -> Expr:
    """Return the sum as it is."""
    return total


def contract(
    at: Site,
    axes: tuple[int, int, int],
    a: View,
    b: View,
    out: View,
    finish: Epilogue = the_sum,
    extra: Sequence[View] = (),
) -> None:
    """Add a contraction whose epilogue computes in the accumulator's dtype and rounds once.

    axes: how many axes are batch, rows and terms. extra: views that broadcast to ``out``; beside a sum of
    codes ``finish`` gets them in their own dtypes. Constants of one element become part of the expression.
    """
    kind = accumulator(a.dtype)
    further, extra = further_operands(extra)
    further = further if kind == I32 else [cast(e, kind) for e in further]
    epilogue = cast(finish(load(-1, kind), *further), out.dtype)
    spec = Contraction(*axes, epilogue, kind)
    at.step(spec, [a, b, *(view.broadcast(out.shape) for view in extra)], [out])


def further_operands(views: Sequence[View]) -> tuple[list[Expr], list[View]]:
    """Return the operands of an epilogue as expressions, and those that are read, as inputs from 2 on.

    Constants of one element become part of the expression.
    """
    exprs: list[Expr] = []
    read: list[View] = []
    for view in views:
        known = content(view) if view.size == 1 else None
        exprs.append(
            load(2 + len(read), view.dtype) if known is None else const(known.reshape(()), view.dtype)
        )
        read += [view] if known is None else []
    return exprs, read


def product(at: Site, a: View, b: View, finish: Epilogue = the_sum, extra: Sequence[View] = ()) -> View:
    """Return numpy.matmul of two views of ranks ≥ 1, with an epilogue over the product's shape."""
    floats_only(a, b)
    if a.dtype != b.dtype:
        raise NotLowered("two dtypes")
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    if (vector_a or vector_b) and extra:
        raise NotLowered("a vector with something added")
    a = with_ones(a, [0]) if vector_a else a
    b = with_ones(b, [1]) if vector_b else b
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"shapes {a.shape} and {b.shape} do not multiply")
    out = _matrices(at, a, b, finish, extra)
    rank = len(out.shape)
    return out.permuted(
        [
            axis
            for axis in range(rank)
            if not ((vector_a and axis == rank - 2) or (vector_b and axis == rank - 1))
        ]
    )


def _matrices(at: Site, a: View, b: View, finish: Epilogue, extra: Sequence[View]) -> View:
    if len(b.shape) == 2:
        out = at.fresh((*a.shape[:-1], b.shape[1]), a.dtype)
        contract(at, (0, len(a.shape) - 1, 1), a, b, out, finish, extra)
        return out
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = at.fresh((*lead, a.shape[-2], b.shape[-1]), a.dtype)
    a, b = a.broadcast((*lead, *a.shape[-2:])), b.broadcast((*lead, *b.shape[-2:]))
    contract(at, (len(lead), 1, 1), a, b, out, finish, extra)
    return out


def scaled(x: Expr, factor: float) -> Expr:
    """Return x times a number; x itself times 1."""
    return x if factor == 1 else apply("mul", x, like(factor, x))


def general_product(
    at: Site,
    a: View,
    b: View,
    c: View | None,
    alpha: float,
    beta: float,
    transposed: tuple[int, int],
    finish: Epilogue,
) -> View:
    """Add alpha·A·B + beta·C, and what follows of it."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.dtype not in DTYPES[1:5]:
        raise NotLowered("no matrices of floats")
    a, b = (v.permuted([1, 0]) if flag else v for v, flag in zip((a, b), transposed, strict=True))
    added = [] if c is None or beta == 0 else [c]

    def epilogue(total: Expr, *rest: Expr) -> Expr:
        result = scaled(total, alpha)
        for term in rest:
            result = apply("add", result, scaled(term, beta))
        return finish(result)

    if added and np.broadcast_shapes(added[0].shape, (a.shape[0], b.shape[1])) != (a.shape[0], b.shape[1]):
        raise ValueError("C does not broadcast to the product")
    return product(at, a, b, epilogue, added)
