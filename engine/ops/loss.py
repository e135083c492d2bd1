"""Losses: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss."""

from typing import Any

from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.shapes import Shape
from graphdoc.engine.ops.table import Array, Call, TensorType, op


def _loss_shape(scores: TensorType, reduction: str) -> Shape | None:
    if reduction != "none":
        return ()
    return None if scores.shape is None else (scores.shape[0], *scores.shape[2:])


def _nll_type(
    call: Call, x: TensorType, *rest: TensorType | None, reduction: str = "mean", **options: Any
) -> TensorType:
    return TensorType(x.dtype, _loss_shape(x, reduction))


def _cross_entropy_type(
    call: Call, x: TensorType, *rest: TensorType | None, reduction: str = "mean", **options: Any
) -> tuple[TensorType, TensorType]:
    return TensorType(x.dtype, _loss_shape(x, reduction)), TensorType(x.dtype, x.shape)


def _sample_weights(
    call: Call, target: Array, weight: Array | None, ignore_index: int | None, dtype: Any
) -> tuple[Array, Array]:
    """Return the class of each sample (0 for ignored ones) and its weight (0 for ignored ones)."""
    xp = call.xp
    used = xp.ones(target.shape, dtype="bool") if ignore_index is None else target != ignore_index
    classes = xp.where(used, target, 0)
    full = xp.ones(target.shape, dtype=dtype) if weight is None else wide(weight)[classes]
    return classes, xp.where(used, full, xp.zeros((), dtype=dtype))


def _reduced(loss: Array, weights: Array, reduction: str) -> Array:
    if reduction == "none":
        return loss
    if reduction not in ("sum", "mean"):
        raise ValueError(f"unknown reduction '{reduction}'")
    total = loss.sum()
    return total if reduction == "sum" else total / weights.sum()


def _nll(
    call: Call, x: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str
) -> Array:
    """Return the reduced loss of log-probabilities ``x``, which are wide enough to sum."""
    classes, weights = _sample_weights(call, target, weight, ignore_index, x.dtype)
    picked = call.xp.take_along_axis(x, classes[:, None], axis=1)[:, 0]
    # An ignored sample counts nothing, even where its log-probability is not finite.
    loss = call.xp.where(weights == 0, call.xp.zeros((), x.dtype), -picked * weights)
    return _reduced(loss, weights, reduction)


@op("NegativeLogLikelihoodLoss", 12, 13, 22, infer=_nll_type)
def negative_log_likelihood_loss(
    call: Call,
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """−weight[c] · x[n, c, …] for the class c = target[n, …]; 0 where the target is ``ignore_index`` (ONNX
    NegativeLogLikelihoodLoss-22).

    x: [N, C, d1, …] log-probabilities; target: [N, d1, …]. Reduction none, sum, or mean (over the weights
    used). Half precision is summed in float32.
    """
    return _nll(call, wide(x), target, weight, ignore_index, reduction).astype(x.dtype)


def _log_softmax(xp: Any, x: Array) -> Array:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=1, keepdims=True))


@op("SoftmaxCrossEntropyLoss", 12, 13, infer=_cross_entropy_type)
def softmax_cross_entropy_loss(
    call: Call,
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    """The negative log-likelihood of log-softmax over axis 1, and the log-softmax itself (ONNX
    SoftmaxCrossEntropyLoss-13)."""
    logs = _log_softmax(call.xp, wide(scores))
    loss = _nll(call, logs, labels, weights, ignore_index, reduction)
    return loss.astype(scores.dtype), logs.astype(scores.dtype)
