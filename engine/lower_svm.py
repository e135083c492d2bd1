"""Support vector machines of ai.onnx.ml → the kernel as rows or a product, sums per class, votes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, F64, I64, Expr, apply, cast, const, load, stage
from graphdoc.engine.kernels.coupling import Coupling
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Site, constant, lowering
from graphdoc.engine.lower_layout import entry, with_ones
from graphdoc.engine.lower_ml import features, linear_scores, two_scores
from graphdoc.engine.lower_products import contract
from graphdoc.engine.lower_rows import place_stages, run_rows
from graphdoc.engine.lower_trees import ML, classes_of, finished, labelled
from graphdoc.engine.program import View

Array = Any

_LIMIT = 1e-7
"""Shares of pairs are kept this far from 0 and 1."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the node's attributes say of the kernel: support vectors (v, f), and its name and numbers."""

    vectors: Array
    kind: str
    gamma: float
    coef0: float
    degree: float


def _machine(
    x: View, support: Sequence[float] | None, total: int, kind: str, numbers: Sequence[float] | None
) -> _Machine:
    vectors = np.asarray(support or (), np.float32)
    if vectors.size != total * x.shape[1] or not vectors.size:
        raise NotLowered("support vectors that do not fit the features")
    if kind not in _KERNELS:
        raise NotLowered(f"kernel {kind}")
    return _Machine(vectors.reshape(total, -1), kind, *(numbers or (0.0, 0.0, 0.0)))


# ---- kernels ---------------------------------------------------------------------------------------------


def _rbf(at: Site, x: View, machine: _Machine, dtype: Any) -> View:
    """e^(−γ·|x − v|²), by differences: the expanded square would cancel."""
    table = constant(np.ascontiguousarray(machine.vectors.T), at.name).permuted([1, 0])
    shape = (x.shape[0], *table.shape)
    difference = apply("sub", load(0, F32), load(1, F32))
    squares = Reduction("sum", apply("mul", difference, difference))
    power = apply("exp", apply("mul", const(-np.float32(machine.gamma), F32), stage(0, F32)))
    rows = [with_ones(x, [1]).broadcast(shape), with_ones(table, [0]).broadcast(shape)]
    (kernel,) = run_rows(at, rows, [2], [squares], [(cast(power, dtype), False)])
    return entry(kernel, 2, 0)


def _products(finish: Callable[[Expr, _Machine], Expr]) -> Callable[[Site, View, _Machine, Any], View]:
    def kernel(at: Site, x: View, machine: _Machine, dtype: Any) -> View:
        out = at.fresh((x.shape[0], len(machine.vectors)), dtype)
        table = constant(np.ascontiguousarray(machine.vectors.T), at.name)
        contract(at, (0, 1, 1), x, table, out, lambda total: finish(total, machine))
        return out

    return kernel


def _number(value: float) -> Expr:
    return const(np.float32(value), F32)


def _scaled(total: Expr, machine: _Machine) -> Expr:
    return apply("add", apply("mul", _number(machine.gamma), total), _number(machine.coef0))


_KERNELS: dict[str, Callable[[Site, View, _Machine, Any], View]] = {
    "RBF": _rbf,
    "LINEAR": _products(lambda total, machine: total),
    "POLY": _products(lambda total, machine: apply("pow", _scaled(total, machine), _number(machine.degree))),
    "SIGMOID": _products(lambda total, machine: apply("tanh", _scaled(total, machine))),
}
"""Name → the kernel of rows (n, f) with all support vectors, (n, v), computed in float32, of a dtype."""


# ---- classifier ------------------------------------------------------------------------------------------


def _margins(
    at: Site,
    kernel: View,
    counts: Sequence[int],
    coefficients: Sequence[float] | None,
    rho: Sequence[float] | None,
) -> View:
    """Return the decision values (n, pairs) of pairs (0, 1), (0, 2), … (1, 2), …, rows side by side.

    Class i's vectors have a sum for each other class; a pair's value is the two classes' sums for each other
    and a constant. Summed in float64 and rounded once, as LIBSVM does.
    """
    rows, classes = kernel.shape[0], len(counts)
    weights = np.asarray(coefficients or (), np.float32).astype(np.float64)
    pairs = classes * (classes - 1) // 2
    if weights.size != (classes - 1) * sum(counts) or len(rho or ()) < pairs:
        raise NotLowered("coefficients that do not fit the support vectors")
    sums = at.fresh((classes, classes - 1, rows), F64)
    weights = weights.reshape(classes - 1, -1)
    start = 0
    for i, count in enumerate(counts):
        part = constant(weights[:, start : start + count], at.name)
        own = entry(sums, 0, i)
        if count:
            contract(at, (0, 1, 1), part, kernel.sliced(1, start, count).permuted([1, 0]), own)
        else:
            at.fill(0.0, own)
        start += count
    return _paired(at, sums, np.asarray(rho, np.float32)[:pairs].astype(np.float64))


def _paired(at: Site, sums: View, offsets: Array) -> View:
    classes, rows = sums.shape[0], sums.shape[2]
    margins = at.fresh((len(offsets), rows), F32)
    place = 0
    for i in range(classes - 1):
        count = classes - 1 - i
        mine = entry(sums, 0, i).sliced(0, i, count)
        others = entry(sums, 1, i).sliced(0, i + 1, count)
        added = constant(offsets[place : place + count, None], at.name)
        at.copy(at.map(_sum_of_three, mine, others, added), margins.sliced(0, place, count))
        place += count
    return margins.permuted([1, 0])


def _sum_of_three(a: Expr, b: Expr, c: Expr) -> Expr:
    return cast(apply("add", apply("add", a, b), c), F32)


def _most_votes(at: Site, margins: View, classes: int) -> View:
    """Return the class (n) that wins most pairs, the first of equals."""
    first, second = np.triu_indices(classes, 1)
    rows, pairs = margins.shape
    shape = (rows, classes, pairs)
    wins, losses = (
        constant((np.arange(classes)[:, None] == side).astype(np.float32), at.name).broadcast(shape)
        for side in (first, second)
    )
    won = apply("lt", const(0, F32), load(0, F32))
    vote = apply("select", won, load(1, F32), load(2, F32))
    (votes,) = run_rows(
        at, [with_ones(margins, [1]).broadcast(shape), wins, losses], [2], [Reduction("sum", vote)],
        [(stage(0, F32), False)],
    )  # fmt: skip
    votes = entry(votes, 2, 0)
    (top,) = run_rows(at, [votes], [1], place_stages(votes, "min", "max"), [(stage(1, I64), False)])
    return entry(top, 1, 0)


def _shares(at: Site, margins: View, a: Sequence[float], b: Sequence[float] | None, classes: int) -> View:
    """Return the classes' probabilities: logistic of margin · a + b for each pair, then coupled."""
    pairs = margins.shape[1]
    if len(a) != pairs or len(b or ()) != pairs:
        raise NotLowered("probabilities' parameters that do not fit the pairs")
    slope, shift = (constant(np.asarray(v, np.float32), at.name).broadcast(margins.shape) for v in (a, b))

    def share(m: Expr, s: Expr, t: Expr) -> Expr:
        found = apply("sigmoid", apply("neg", apply("add", apply("mul", m, s), t)))
        return apply("min", apply("max", found, const(_LIMIT, F32)), const(1 - _LIMIT, F32))

    shares = at.map(share, margins, slope, shift)
    result = at.fresh((classes, margins.shape[0]), F32).permuted([1, 0])
    at.step(Coupling(classes), [shares], [result])
    return result


@lowering("SVMClassifier", domain=ML)
def svm_classifier(
    at: Site,
    X: View,
    *,
    coefficients: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] | None = None,
    rho: Sequence[float] | None = None,
    prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] | None = None,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
) -> tuple[Any, View]:
    """Label of the most votes among pairs of classes; scores of pairs, or probabilities of classes."""
    labels = classes_of(classlabels_ints, classlabels_strings)
    counts = list(vectors_per_class or ())
    if not sum(counts) or len(counts) != len(labels) or len(labels) < 2:
        raise NotLowered("no support vectors, or labels that do not fit their classes")
    x = features(at, X)
    machine = _machine(x, support_vectors, sum(counts), kernel_type, kernel_params)
    kernel = _KERNELS[kernel_type](at, x, machine, F64)
    margins = _margins(at, kernel, counts, coefficients, rho)
    top = labelled(at, _most_votes(at, margins, len(labels)), labels)
    if prob_a:
        return top, finished(at, _shares(at, margins, prob_a, prob_b, len(labels)), post_transform)
    if len(labels) == 2:
        return top, two_scores(at, margins, post_transform, complement=post_transform != "NONE")
    return top, finished(at, margins, post_transform)


@lowering("SVMRegressor", domain=ML)
def svm_regressor(
    at: Site,
    X: View,
    *,
    coefficients: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    n_supports: int = 0,
    rho: Sequence[float] | None = None,
    one_class: int = 0,
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] | None = None,
    post_transform: str = "NONE",
) -> View:
    """The kernel's products with the coefficients and a constant; ±1 with one_class."""
    del post_transform  # of one score it changes nothing
    x, shift = features(at, X), [float(v) for v in (rho or ())[:1]]
    if not shift:
        raise NotLowered("no constant to add")
    if not n_supports:
        scores = linear_scores(at, x, coefficients or (), shift, 1)
    else:
        machine = _machine(x, support_vectors, n_supports, kernel_type, kernel_params)
        if len(coefficients or ()) != n_supports:
            raise NotLowered("coefficients that do not fit the support vectors")
        scores = linear_scores(at, _KERNELS[kernel_type](at, x, machine, F32), coefficients or (), shift, 1)
    if not one_class:
        return scores
    return at.map(
        lambda s: apply("select", apply("lt", const(0, F32), s), const(1, F32), const(-1, F32)), scores
    )
