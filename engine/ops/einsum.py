"""Einsum. Two operands go through one matrix product, for which BLAS exists; the rest through NumPy."""

from collections.abc import Iterable
from math import prod
from string import ascii_letters
from typing import Any

from graphdoc.engine.ops.matmul import product
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import broadcast_dims, first_dtype
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op

_ELLIPSIS = "..."


def parse(equation: str, ranks: Iterable[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the output, ellipses spelled out.

    Without an arrow the output has the ellipsis, then the labels that occur once in alphabetical order
    (ONNX Einsum-28). Raises ValueError when the equation does not fit the operands.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    given = list(ranks)
    if len(terms) != len(given):
        raise ValueError(f"the equation {equation!r} has {len(terms)} terms for {len(given)} operands")
    spare = "".join(c for c in ascii_letters if c not in text)
    widths = {rank - len(t) + 3 for t, rank in zip(terms, given, strict=True) if _ELLIPSIS in t}
    if len(widths) > 1:
        raise ValueError(f"the ellipses of {equation!r} stand for {sorted(widths)} axes")
    dots = spare[: max(widths, default=0)]
    if not arrow:
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        right = _ELLIPSIS * (_ELLIPSIS in left) + "".join(once)
    labels = [term.replace(_ELLIPSIS, dots) for term in terms]
    for term, rank in zip(labels, given, strict=True):
        if len(term) != rank:
            raise ValueError(f"the term {term!r} of {equation!r} does not fit an operand of rank {rank}")
    return labels, right.replace(_ELLIPSIS, dots)


def _type(call: Call, *types: TensorType, equation: str) -> TensorType:
    shapes = [t.shape for t in types]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return TensorType(first_dtype(types), None)
    labels, output = parse(equation, map(len, known))
    dims: dict[str, list[Dim]] = {}
    for term, shape in zip(labels, known, strict=True):
        for label, dim in zip(term, shape, strict=True):
            dims.setdefault(label, []).append(dim)
    return TensorType(first_dtype(types), tuple(broadcast_dims(dims[label]) for label in output))


@op("Einsum", 12, 28, infer=_type)
def einsum(call: Call, *inputs: Array, equation: str) -> Array:
    """Einstein's sum convention; narrow floats round once (ONNX Einsum-28).

    Raises ValueError when the equation does not fit the operands.
    """
    labels, output = parse(equation, (x.ndim for x in inputs))
    operands = [wide(x) for x in inputs]
    if len(operands) == 2 and (result := _as_product(call.xp, operands, labels, output)) is not None:
        return narrow(result, inputs[0].dtype)
    explicit = ",".join(labels) + "->" + output
    return narrow(call.xp.einsum(explicit, *operands, optimize=len(operands) > 2), inputs[0].dtype)


def _as_product(xp: Any, operands: list[Array], labels: list[str], output: str) -> Array | None:
    """Return the contraction of two operands as a stack of matrix products, None where that does not fit.

    Labels fall into four groups: in both and the output (stack), in both alone (summed), and those of
    one operand (rows, columns).
    """
    (a, b), (left, right) = operands, labels
    sizes = [dict(zip(term, x.shape, strict=True)) for term, x in zip(labels, operands, strict=True)]
    shared = [c for c in left if c in right]
    summed = [c for c in shared if c not in output]
    repeated = any(len(set(term)) < len(term) for term in (left, right, output))
    if repeated or not summed or any(sizes[0][c] != sizes[1][c] for c in shared):
        return None
    a, left = _drop(a, left, right + output)
    b, right = _drop(b, right, left + output)
    stack = [c for c in shared if c in output]
    rows, columns = ([c for c in term if c not in shared] for term in (left, right))
    size = sizes[0] | sizes[1]
    result = product(
        xp,
        _grouped(a, left, [stack, rows, summed], size),
        _grouped(b, right, [stack, summed, columns], size),
    )
    order = [*stack, *rows, *columns]
    return result.reshape([size[c] for c in order]).transpose([order.index(c) for c in output])


def _drop(x: Array, term: str, others: str) -> tuple[Array, str]:
    """Sum over the labels that nobody else has."""
    alone = tuple(i for i, c in enumerate(term) if c not in others)
    if not alone:
        return x, term
    return x.sum(axis=alone, dtype=x.dtype), "".join(c for c in term if c in others)


def _grouped(x: Array, term: str, groups: list[list[str]], size: dict[str, int]) -> Array:
    """Return x transposed to the groups' order: the first as separate axes, each other as one."""
    order = [c for group in groups for c in group]
    shape = [size[c] for c in groups[0]] + [prod(size[c] for c in group) for group in groups[1:]]
    return x.transpose([term.index(c) for c in order]).reshape(shape)
