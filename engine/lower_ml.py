"""Scaling, picking and linear models of ai.onnx.ml → maps, rows and products."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, F64, I64, Expr, apply, cast, const, load, stage
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import Named, NotLowered, Site, constant, content, lowering
from graphdoc.engine.lower_index import look_up
from graphdoc.engine.lower_layout import entry, with_ones
from graphdoc.engine.lower_products import contract
from graphdoc.engine.lower_rows import place_stages, run_rows
from graphdoc.engine.lower_trees import ML, classes_of, finished, labelled
from graphdoc.engine.program import View

ZERO, ONE = const(0, F32), const(1, F32)


def features(at: Site, x: View) -> View:
    """Return (N, F) features as float32; a vector is one row."""
    if len(x.shape) == 1:
        x = View(x.buffer, (1, *x.shape), (0, *x.strides), x.offset)
    if len(x.shape) != 2:
        raise NotLowered("features of another rank")
    return at.cast(x, F32)


@lowering("Scaler", domain=ML)
def scaler(
    at: Site, X: View, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None
) -> View:
    """(X − offset) · scale, by element or along the last axis."""
    x = at.cast(X, F32)
    for op, values in (("sub", offset), ("mul", scale)):
        if not values:
            continue
        if len(values) not in (1, *x.shape[-1:]):
            raise NotLowered("as many values as there are no features")
        row = constant(np.asarray(values, np.float32), at.name)
        x = at.map(lambda a, b, op=op: apply(op, a, b), x, row)
    return x


@lowering("Normalizer", domain=ML)
def normalizer(at: Site, X: View, *, norm: str = "MAX") -> View:
    """Rows over their maximum, the sum of their magnitudes or their length; a divisor of 0: none."""
    if len(X.shape) not in (1, 2) or norm not in ("MAX", "L1", "L2"):
        raise NotLowered(f"norm {norm}")
    x, element = at.cast(X, F32), load(0, F32)
    if norm == "L2":
        return _over_length(at, x, element)
    fold = Reduction("max", element) if norm == "MAX" else Reduction("sum", apply("abs", element))
    total = stage(0, F32)
    divisor = apply("select", apply("eq", total, ZERO), ONE, total)
    last = len(x.shape) - 1
    (result,) = run_rows(at, [x], [last], [fold], [(apply("div", element, divisor), True)])
    return result


def _over_length(at: Site, x: View, element: Expr) -> View:
    """Return rows over their length: roots of shares of the sum of squares, with the elements' signs."""
    square, total = apply("mul", element, element), stage(0, F32)
    none = apply("eq", total, ZERO)
    size = apply("sqrt", apply("div", square, apply("select", none, ONE, total)))
    signed = apply("select", apply("lt", element, ZERO), apply("neg", size), size)
    result = apply("select", none, element, signed)
    last = len(x.shape) - 1
    (found,) = run_rows(at, [x], [last], [Reduction("sum", square)], [(result, True)])
    return found


@lowering("FeatureVectorizer", domain=ML)
def feature_vectorizer(at: Site, *inputs: View, inputdimensions: Sequence[int] | None = None) -> View:
    """Inputs side by side as float32; what one has too many of is left out, what it has too few of is 0."""
    rows = [x if len(x.shape) == 2 else with_ones(x, [0]) for x in inputs]
    sizes = list(inputdimensions or [x.shape[-1] for x in inputs])
    if any(len(x.shape) != 2 for x in rows) or len(sizes) != len(rows) or len({x.shape[0] for x in rows}) > 1:
        raise NotLowered("inputs of another rank, or that do not fit")
    out = at.fresh((rows[0].shape[0], sum(sizes)), F32)
    start = 0
    for x, size in zip(rows, sizes, strict=True):
        kept = min(size, x.shape[1])
        at.copy(at.cast(x.sliced(1, 0, kept), F32), out.sliced(1, start, kept))
        if kept < size:
            at.fill(0.0, out.sliced(1, start + kept, size - kept))
        start += size
    return out


@lowering("Binarizer", domain=ML)
def binarizer(at: Site, X: View, *, threshold: float = 0.0) -> View:
    """1 where X > threshold, else 0."""
    if X.dtype not in (F32, F64):
        raise NotLowered(f"dtype {X.dtype}")
    limit = const(np.float32(threshold), X.dtype)
    return at.map(lambda x: cast(apply("lt", limit, x), x.dtype), X)


@lowering("Imputer", domain=ML)
def imputer(
    at: Site,
    X: View,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> View:
    """One value (NaN too) replaced by another, or by a column's own."""
    if bool(imputed_value_floats) == bool(imputed_value_int64s) or not X.shape:
        raise NotLowered("values of both kinds, or none")
    old: Any = replaced_value_float if imputed_value_floats else replaced_value_int64
    values = np.asarray(imputed_value_floats or imputed_value_int64s).astype(X.dtype)
    row = constant(values if len(values) == X.shape[-1] else values[:1], at.name)

    def chosen(x: Expr, new: Expr) -> Expr:
        found = apply("isnan", x) if old != old else apply("eq", const(old, x.dtype), x)
        return apply("select", found, new, x)

    return at.map(chosen, X, row)


@lowering("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(at: Site, X: View, Y: View) -> View:
    """Columns of the last axis; unlike Gather's, an index below 0 lies outside."""
    known = content(Y)
    if not X.shape or Y.dtype != I64:
        raise NotLowered("no axis, or indices of another dtype")
    size = X.shape[-1]
    if known is not None and known.size and (known.min() < 0 or known.max() >= size):
        raise NotLowered("an index outside the axis")
    x = X if len(X.shape) > 1 else View(X.buffer, (1, *X.shape), (0, *X.strides), X.offset)
    outside, zero = const(size, I64), const(0, I64)
    checked = at.map(lambda y: apply("select", apply("lt", y, zero), outside, y), Y)
    return look_up(at, x, at.reshape(checked, (Y.size,)), len(x.shape) - 1)


# ---- linear models -------------------------------------------------------------------------------------


def linear_scores(
    at: Site, X: View, coefficients: Sequence[float], intercepts: Sequence[float] | None, targets: int
) -> View:
    """Return x · coefficientsᵀ + intercepts, (n, targets)."""
    x = features(at, X)
    weights = np.asarray(coefficients, np.float32)[: targets * x.shape[1]]
    if weights.size != targets * x.shape[1]:
        raise NotLowered("coefficients that do not fit the features")
    table = constant(weights.reshape(targets, x.shape[1]).T, at.name)
    out = at.fresh((x.shape[0], targets), F32)
    bias = [constant(np.asarray(intercepts, np.float32), at.name)] if intercepts else []
    contract(at, (0, 1, 1), x, table, out, _plus, [b.broadcast(out.shape) for b in bias])
    return out


def _plus(total: Expr, *terms: Expr) -> Expr:
    for term in terms:
        total = apply("add", total, term)
    return total


@lowering("LinearRegressor", domain=ML)
def linear_regressor(
    at: Site,
    X: View,
    *,
    coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None,
    targets: int = 1,
    post_transform: str = "NONE",
) -> View:
    """x · coefficientsᵀ + intercepts; a transform of a single target has no effect."""
    if post_transform == "PROBIT" or not coefficients:
        raise NotLowered(f"post transform {post_transform}")
    fitting = intercepts if intercepts and len(intercepts) == targets else None
    scores = linear_scores(at, X, coefficients, fitting, targets)
    return finished(at, scores, post_transform) if targets > 1 else scores


@lowering("LinearClassifier", domain=ML)
def linear_classifier(
    at: Site,
    X: View,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[View | Named, View]:
    """The label of the first highest score, and the scores; of one set of coefficients for two labels the
    label by the score's sign, and 1 − score beside it."""
    del multi_class
    labels = classes_of(classlabels_ints, classlabels_strings)
    if len(labels) == 2 and (len(intercepts) if intercepts else len(coefficients) // X.shape[-1]) == 1:
        score = linear_scores(at, X, coefficients, intercepts, 1)
        top = at.map(lambda s: cast(apply("lt", ZERO, s), I64), score)
        return labelled(at, entry(top, 1, 0), labels), two_scores(at, score, post_transform, complement=True)
    if len(labels) < 2 or (intercepts and len(intercepts) != len(labels)):
        raise NotLowered("labels that do not fit the coefficients")
    if not intercepts and len(coefficients) != len(labels) * X.shape[-1]:
        raise NotLowered("coefficients that do not fit the labels")
    total = linear_scores(at, X, coefficients, intercepts, len(labels))
    (top,) = run_rows(at, [total], [1], place_stages(total, "min", "max"), [(stage(1, I64), False)])
    label = labelled(at, top.reshaped((total.shape[0],)), labels)
    return label, finished(at, total, post_transform)


def two_scores(at: Site, score: View, transform: str, *, complement: bool) -> View:
    """Return the scores (n, 2) of two classes from the second's (n, 1); only LOGISTIC is applied.

    complement: the score is a share of 1, otherwise a signed margin.
    """
    scores = at.fresh((score.shape[0], 2), F32)
    logistic = transform == "LOGISTIC"

    def other(s: Expr) -> Expr:
        return apply("neg", s) if logistic or not complement else apply("sub", ONE, s)

    for column, side in enumerate((other, lambda s: s)):
        ends = (lambda s, side=side: apply("sigmoid", side(s))) if logistic else side
        at.copy(at.map(ends, score), scores.sliced(1, column, 1))
    return scores
