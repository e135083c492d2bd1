"""Softmax, LogSoftmax and Hardmax.

Since opset 13 they work along one axis. Before, the tensor was read as a matrix: the axes from ``axis`` on
form one row.
"""

from collections.abc import Callable
from functools import wraps
from math import prod

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, op


def by_rows(evaluate: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator as opsets 1 and 11 have it: over all axes from ``axis`` on."""

    @wraps(evaluate)
    def old(call: Call, x: Array, *, axis: int = 1) -> Array:
        rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
        return evaluate(call, rows, axis=1).reshape(x.shape)

    return old


@op("Softmax", 13, infer=same_as_first)
def softmax(call: Call, x: Array, *, axis: int = -1) -> Array:
    """exp(x) ÷ its sum along the axis, shifted by the maximum; narrow floats round once (ONNX Softmax-13)."""
    if not x.size:
        return x
    xp, full = call.xp, wide(x)
    result = xp.exp(full - full.max(axis=axis, keepdims=True))
    result /= result.sum(axis=axis, keepdims=True)
    return narrow(result, x.dtype)


@op("LogSoftmax", 13, infer=same_as_first)
def log_softmax(call: Call, x: Array, *, axis: int = -1) -> Array:
    """x − ln of the sum of exp(x) along the axis, shifted by the maximum (ONNX LogSoftmax-13)."""
    if not x.size:
        return x
    xp, full = call.xp, wide(x)
    shifted = full - full.max(axis=axis, keepdims=True)
    return narrow(shifted - xp.log(xp.exp(shifted).sum(axis=axis, keepdims=True)), x.dtype)


@op("Hardmax", 13, infer=same_as_first)
def hardmax(call: Call, x: Array, *, axis: int = -1) -> Array:
    """1 at the first maximum along the axis, else 0 (ONNX Hardmax-13)."""
    if not x.size:
        return x
    xp = call.xp
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    positions = xp.arange(x.shape[axis]).reshape(shape)
    return narrow(positions == xp.expand_dims(x.argmax(axis=axis), axis), x.dtype)


for _name, _evaluate in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax)):
    op(_name, 1, 11, infer=same_as_first)(by_rows(_evaluate))
