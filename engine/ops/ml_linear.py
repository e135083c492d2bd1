"""Linear models, support vector machines and feature scaling of ai.onnx.ml."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.kernels.coupling import CLOSE, SWEEPS
from graphdoc.engine.ops import ml_scores
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, TensorType, op

ML = "ai.onnx.ml"


def _features(call: Call, x: Array) -> Array:
    """Return [N, F] features in float32 (float64 in truth mode), whatever the dtype of the input."""
    return ml_scores.rows(x).astype(call.real(np.float32), copy=False)


def _parameter(call: Call, values: Sequence[float] | None) -> Array:
    """Return a float attribute in the dtype that is computed in."""
    return call.xp.asarray(np.asarray(values or (), call.real(np.float32)))


def _float_like(call: Call, x: TensorType, **attributes: Any) -> TensorType:
    return TensorType(call.real(np.float32), x.shape)


# ---- linear models ------------------------------------------------------------------------------------


def _infer_linear_classifier(
    call: Call,
    x: TensorType,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    **attributes: Any,
) -> tuple[TensorType, TensorType]:
    columns = len(classlabels_strings or classlabels_ints or ())
    return ml_scores.classified(call, x, classlabels_ints, classlabels_strings, columns)


@op("LinearClassifier", 1, domain=ML, infer=_infer_linear_classifier)
def linear_classifier(
    call: Call,
    X: Array,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """Labels [N] (int64 or string) and scores float32 [N, classes], ai.onnx.ml version 1.

    With one set of coefficients for two labels the second label wins where the score is positive, and
    the scores are (1 − s, s): ONNX Runtime's reading; of the post transforms only LOGISTIC applies.

    Raises ValueError when the coefficients do not fit the features or the labels the scores.
    """
    xp, x = call.xp, _features(call, X)
    labels = ml_scores.label_table(xp, classlabels_ints, classlabels_strings)
    targets = len(intercepts) if intercepts else max(1, len(coefficients) // max(1, x.shape[1]))
    if len(labels) != max(targets, 2):
        raise ValueError(f"{len(labels)} class labels for {targets} sets of coefficients")
    scores = _products(call, x, coefficients, targets)
    scores = scores + _parameter(call, intercepts) if intercepts else scores
    if targets == 1:
        top = (scores[:, 0] > 0).astype(np.int64)
        pair = ml_scores.second_class(xp, scores[:, 0], post_transform, complement=True)
        return ml_scores.pick(labels, top), pair
    top = xp.argmax(scores, axis=1)
    return ml_scores.pick(labels, top), ml_scores.transform(xp, scores, post_transform)


def _products(call: Call, x: Array, coefficients: Sequence[float] | None, targets: int) -> Array:
    """Return x @ coefficientsᵀ, [N, targets]; surplus coefficients are ignored, as in ONNX Runtime."""
    weights = _parameter(call, coefficients)[: targets * x.shape[1]]
    if weights.size != targets * x.shape[1]:
        raise ValueError(f"{weights.size} coefficients for {targets} targets of {x.shape[1]} features")
    return x @ weights.reshape(targets, x.shape[1]).T


def _infer_linear_regressor(call: Call, x: TensorType, *, targets: int = 1, **attributes: Any) -> TensorType:
    batch = None if x.shape is None else (x.shape[0] if len(x.shape) == 2 else 1)
    return TensorType(call.real(np.float32), (batch, targets))


@op("LinearRegressor", 1, domain=ML, infer=_infer_linear_regressor)
def linear_regressor(
    call: Call,
    X: Array,
    *,
    coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None,
    targets: int = 1,
    post_transform: str = "NONE",
) -> Array:
    """Scores float32 [N, targets], ai.onnx.ml version 1.

    Intercepts that do not match the targets in number are left out, and a post transform other than
    PROBIT has no effect on a single target: ONNX Runtime's reading.
    """
    scores = _products(call, _features(call, X), coefficients, targets)
    if intercepts and len(intercepts) == targets:
        scores = scores + _parameter(call, intercepts)
    finish = ml_scores.transform if targets > 1 else ml_scores.transform_single
    return finish(call.xp, scores, post_transform)


# ---- support vector machines --------------------------------------------------------------------------


def _rbf(xp: Any, x: Array, vectors: Array, gamma: Any, coef0: Any, degree: Any) -> Array:
    """e^(−γ·|x − v|²), by differences: the expanded square would cancel."""
    squares = [((row - vectors) ** 2).sum(axis=1) for row in x]
    return xp.exp(-gamma * xp.stack(squares)) if squares else xp.zeros((0, len(vectors)), x.dtype)


def _dots(xp: Any, x: Array, vectors: Array, gamma: Any, coef0: Any, degree: Any) -> Array:
    return x @ vectors.T


def _poly(xp: Any, x: Array, vectors: Array, gamma: Any, coef0: Any, degree: Any) -> Array:
    return (gamma * (x @ vectors.T) + coef0) ** degree


def _sigmoid(xp: Any, x: Array, vectors: Array, gamma: Any, coef0: Any, degree: Any) -> Array:
    return xp.tanh(gamma * (x @ vectors.T) + coef0)


KERNELS = {"LINEAR": _dots, "POLY": _poly, "RBF": _rbf, "SIGMOID": _sigmoid}


def _kernel(
    call: Call, x: Array, vectors: Array, kernel_type: str, kernel_params: Sequence[float] | None
) -> Array:
    """Return the kernel of each row with each support vector, [N, vectors]."""
    if kernel_type not in KERNELS:
        raise ValueError(f"unknown kernel_type '{kernel_type}'")
    if vectors.shape[1] != x.shape[1]:
        raise ValueError(f"support vectors of {vectors.shape[1]} features, input of {x.shape[1]}")
    gamma, coef0, degree = (x.dtype.type(p) for p in (kernel_params or (0.0, 0.0, 0.0)))
    result: Array = KERNELS[kernel_type](call.xp, x, vectors, gamma, coef0, degree)
    return result


def _infer_svm_classifier(
    call: Call,
    x: TensorType,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    **attributes: Any,
) -> tuple[TensorType, TensorType]:
    return ml_scores.classified(call, x, classlabels_ints, classlabels_strings, None)


@op("SVMClassifier", 1, domain=ML, infer=_infer_svm_classifier)
def svm_classifier(
    call: Call,
    X: Array,
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
) -> tuple[Array, Array]:
    """Labels [N] and scores float32, ai.onnx.ml version 1, LIBSVM's one-against-one rule.

    Scores are probabilities [N, classes] with prob_a and prob_b; else [N, pairs of classes], for two
    classes (−s, s). The label has the most votes among pairs. Without support vectors the model is
    linear with one set of coefficients a class, and the label has the highest score.
    """
    x = _features(call, X)
    labels = ml_scores.label_table(call.xp, classlabels_ints, classlabels_strings)
    if not sum(vectors_per_class or ()):
        scores = _products(call, x, coefficients, len(labels)) + _parameter(call, rho)[:1]
        top = _linear_top(call, scores, len(labels), bool(prob_a), coefficients)
        return ml_scores.pick(labels, top), _svm_transform(call, scores, post_transform)
    margins = _margins(
        call, x, coefficients, support_vectors, vectors_per_class or (), rho, kernel_type, kernel_params
    )
    top = _most_votes(call.xp, margins, len(labels))
    if prob_a:
        shares = ml_scores.logistic(call.xp, -(margins * _parameter(call, prob_a) + _parameter(call, prob_b)))
        scores = _svm_transform(call, couple(call.xp, shares, len(labels)), post_transform)
    elif margins.shape[1] == 1:
        complement = post_transform != "NONE"
        scores = ml_scores.second_class(call.xp, margins[:, 0], post_transform, complement=complement)
    else:
        scores = _svm_transform(call, margins, post_transform)
    return ml_scores.pick(labels, top), scores


def _svm_transform(call: Call, scores: Array, post_transform: str) -> Array:
    finish = ml_scores.transform if scores.shape[1] > 1 else ml_scores.transform_single
    return finish(call.xp, scores, post_transform)


def _linear_top(
    call: Call, scores: Array, classes: int, with_probability: bool, coefficients: Sequence[float] | None
) -> Array:
    """Return the class with the highest score; of two, the second also where any score is positive.

    "Positive" is 0.5 and more when no coefficient is negative: ONNX Runtime's reading.
    """
    top = call.xp.argmax(scores, axis=1)
    if classes != 2 or with_probability:
        return top
    highest = scores.max(axis=1)
    shares = min(coefficients or (0.0,)) >= 0
    return call.xp.where(highest >= 0.5 if shares else highest > 0, 1, top)


def _margins(
    call: Call,
    x: Array,
    coefficients: Sequence[float] | None,
    support_vectors: Sequence[float] | None,
    counts: Sequence[int],
    rho: Sequence[float] | None,
    kernel_type: str,
    kernel_params: Sequence[float] | None,
) -> Array:
    """Return the decision values [N, pairs], pairs (0, 1), (0, 2), … (1, 2), … of classes.

    coefficients: [classes − 1, vectors]; row j − 1 (or j for lower classes) is against class j. The sums
    are taken in float64 and rounded once, as LIBSVM does.
    """
    total, classes = sum(counts), len(counts)
    vectors = _parameter(call, support_vectors).reshape(total, -1)
    kernel = _kernel(call, x, vectors, kernel_type, kernel_params).astype(np.float64)
    weights = _parameter(call, coefficients).reshape(classes - 1, total).astype(np.float64)
    ends = np.cumsum(counts)
    spans = [slice(int(end - count), int(end)) for end, count in zip(ends, counts, strict=True)]
    sums = [
        kernel[:, spans[i]] @ weights[j - 1, spans[i]] + kernel[:, spans[j]] @ weights[i, spans[j]]
        for i in range(classes)
        for j in range(i + 1, classes)
    ]
    offsets = _parameter(call, rho)[: len(sums)].astype(np.float64)
    return (call.xp.stack(sums, axis=1) + offsets).astype(x.dtype)


def _most_votes(xp: Any, margins: Array, classes: int) -> Array:
    """Return the class that wins most pairs, the first of equals."""
    first, second = np.triu_indices(classes, 1)
    votes = xp.zeros((len(margins), classes), np.int64)
    for pair in range(len(first)):
        wins = margins[:, pair] > 0
        votes[:, int(first[pair])] += wins
        votes[:, int(second[pair])] += ~wins
    return xp.argmax(votes, axis=1)


def couple(xp: Any, shares: Array, classes: int) -> Array:
    """Return class probabilities [N, classes] from those of pairs, [N, pairs].

    Wu, Lin and Weng (2004), second method: minimise Σ (r_ji·p_i − r_ij·p_j)², at most 100 sweeps a row.
    shares are held between 1e-7 and 1 − 1e-7.
    """
    shares = xp.clip(shares, shares.dtype.type(1e-7), shares.dtype.type(1 - 1e-7))
    rows, (first, second) = len(shares), map(xp.asarray, np.triu_indices(classes, 1))
    ratio = xp.zeros((rows, classes, classes), shares.dtype)
    ratio[:, first, second] = shares
    ratio[:, second, first] = 1 - shares
    flipped = ratio.transpose(0, 2, 1)
    system = -flipped * ratio
    diagonal = xp.arange(classes)
    system[:, diagonal, diagonal] = (flipped**2).sum(axis=2)
    p = xp.full((rows, classes), 1 / classes, shares.dtype)
    running = xp.ones(rows, np.bool_)
    for _ in range(SWEEPS):
        product = (system @ p[:, :, None])[:, :, 0]
        value = (p * product).sum(axis=1)
        running = running & (xp.abs(product - value[:, None]).max(axis=1) >= CLOSE / classes)
        if not bool(running.any()):
            break
        p = xp.where(running[:, None], _sweep(system, p, product, value), p)
    return p


def _sweep(system: Array, p: Array, product: Array, value: Array) -> Array:
    """Move each class's probability to its optimum in turn, keeping the sum at 1."""
    p, product = p.copy(), product.copy()
    for i in range(p.shape[1]):
        own = system[:, i, i]
        step = (value - product[:, i]) / own
        p[:, i] += step
        scale = 1 + step
        value = (value + step * (step * own + 2 * product[:, i])) / scale / scale
        product = (product + step[:, None] * system[:, i]) / scale[:, None]
        p = p / scale[:, None]
    return p


def _infer_svm_regressor(call: Call, x: TensorType, **attributes: Any) -> TensorType:
    batch = None if x.shape is None else (x.shape[0] if len(x.shape) == 2 else 1)
    return TensorType(call.real(np.float32), (batch, 1))


@op("SVMRegressor", 1, domain=ML, infer=_infer_svm_regressor)
def svm_regressor(
    call: Call,
    X: Array,
    *,
    coefficients: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    n_supports: int = 0,
    rho: Sequence[float] | None = None,
    one_class: int = 0,
    kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] | None = None,
    post_transform: str = "NONE",
) -> Array:
    """Scores float32 [N, 1], ai.onnx.ml version 1; ±1 with one_class.

    The post transform has no effect on the one score, as in ONNX Runtime.
    """
    x, weights = _features(call, X), _parameter(call, coefficients)
    if n_supports:
        vectors = _parameter(call, support_vectors).reshape(n_supports, -1)
        scores = _kernel(call, x, vectors, kernel_type, kernel_params) @ weights[:, None]
    else:
        scores = _products(call, x, coefficients, 1)
    scores = scores + _parameter(call, rho)[:1]
    return call.xp.where(scores > 0, scores.dtype.type(1), scores.dtype.type(-1)) if one_class else scores


# ---- scaling ------------------------------------------------------------------------------------------


@op("Scaler", 1, domain=ML, infer=_float_like)
def scaler(
    call: Call, X: Array, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None
) -> Array:
    """(X − offset) · scale as float32, ai.onnx.ml version 1.

    offset, scale: one value, or one for each position of the last axis.
    """
    x = X.astype(call.real(np.float32), copy=False)
    for values in (offset, scale):
        if values and len(values) not in (1, x.shape[-1] if x.ndim else 1):
            raise ValueError(f"{len(values)} values for {x.shape[-1]} features")
    x = x - _parameter(call, offset) if offset else x
    return x * _parameter(call, scale) if scale else x


def _norm_max(xp: Any, x: Array) -> Array:
    top = x.max(axis=-1, keepdims=True)
    return x / xp.where(top == 0, x.dtype.type(1), top)


def _norm_l1(xp: Any, x: Array) -> Array:
    total = xp.abs(x).sum(axis=-1, keepdims=True)
    return x / xp.where(total == 0, x.dtype.type(1), total)


def _norm_l2(xp: Any, x: Array) -> Array:
    squares = x * x
    total = squares.sum(axis=-1, keepdims=True)
    size = xp.sqrt(squares / xp.where(total == 0, x.dtype.type(1), total))
    return xp.where(total == 0, x, xp.where(x < 0, -size, size))


NORMS = {"MAX": _norm_max, "L1": _norm_l1, "L2": _norm_l2}


@op("Normalizer", 1, domain=ML, infer=_float_like)
def normalizer(call: Call, X: Array, *, norm: str = "MAX") -> Array:
    """Each row over its maximum, its sum of magnitudes or its length, as float32; ai.onnx.ml version 1.

    X: [N, C] or [C]. A row whose divisor is 0 stays as it is.
    """
    if norm not in NORMS:
        raise ValueError(f"unknown norm '{norm}'")
    if X.ndim not in (1, 2):
        raise ValueError(f"expected an input of rank 1 or 2, got rank {X.ndim}")
    x = X.astype(call.real(np.float32), copy=False)
    return NORMS[norm](call.xp, x) if x.size else x


@op("Binarizer", 1, domain=ML, infer=same_as_first)
def binarizer(call: Call, X: Array, *, threshold: float = 0.0) -> Array:
    """1 where X > threshold, else 0, in the dtype of X; ai.onnx.ml version 1."""
    limit = call.xp.asarray(threshold, call.real(np.float32) if X.dtype == np.float32 else np.float64)
    return (limit < X).astype(X.dtype)


@op("Imputer", 1, domain=ML, infer=same_as_first)
def imputer(
    call: Call,
    X: Array,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    """Replace one value (NaN included) by another, or by a column's own; ai.onnx.ml version 1.

    X: [*, F], float or integer. With a number of values other than 1 or F the first is used everywhere.
    """
    if bool(imputed_value_floats) == bool(imputed_value_int64s):
        raise ValueError("exactly one of imputed_value_floats and imputed_value_int64s is needed")
    xp = call.xp
    integer = not imputed_value_floats
    old = replaced_value_int64 if integer else replaced_value_float
    new = xp.asarray(np.asarray(imputed_value_int64s if integer else imputed_value_floats).astype(X.dtype))
    new = new if len(new) == X.shape[-1] else new[0]
    found = xp.isnan(X) if old != old else xp.asarray(old, X.dtype) == X
    return xp.where(found, new, X)
