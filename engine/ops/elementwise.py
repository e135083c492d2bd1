"""How element-wise operators of one input register, and the simplest of them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.table import Array, Call, Infer, TensorType, Value, op

Function: TypeAlias = Callable[..., Array]
"""(xp, x, **attributes) → an array like x."""

BLOCK = 1 << 14
"""Elements a composed function takes at once: a few arrays of them fit the second-level cache."""


def unary(name: str, *since: int) -> Callable[[Function], Function]:
    """Register a function (xp, x, **attributes); narrow floats are computed in float32, rounded once.

    Version 1 of many operators has an attribute ``consumed_inputs``, a hint about memory: it is ignored.
    """

    def register(function: Function) -> Function:
        def evaluate(call: Call, x: Array, *, consumed_inputs: Any = None, **attributes: Any) -> Array:
            if call.xp is np and x.size > 2 * BLOCK and x.flags.c_contiguous:
                return _by_blocks(function, x, attributes)
            return narrow(function(call.xp, wide(x), **attributes), x.dtype)

        evaluate.__doc__ = function.__doc__
        op(name, *since, infer=same_as_first)(evaluate)
        return function

    return register


def _by_blocks(function: Function, x: Array, attributes: dict[str, Any]) -> Array:
    """Apply a function of several passes piece by piece, so that the pieces stay in the cache."""
    flat, result = x.reshape(-1), np.empty(x.size, x.dtype)
    for start in range(0, x.size, BLOCK):
        piece = slice(start, start + BLOCK)
        result[piece] = function(np, wide(flat[piece]), **attributes)
    return result.reshape(x.shape)


def plain(name: str, function: str, *since: int, infer: Infer = same_as_first) -> None:
    """Register the function that the array namespace has under this name, in the dtype of the input."""

    def evaluate(call: Call, x: Array, *, consumed_inputs: Any = None) -> Array:
        return getattr(call.xp, function)(x)

    op(name, *since, infer=infer)(evaluate)


def _unchanged(call: Call, x: TensorType) -> TensorType:
    return x


@op("Identity", 1, 13, 14, 16, 19, 21, 23, 24, 25, infer=_unchanged)
def identity(call: Call, x: Value) -> Value:
    """x, which may be a tensor, a sequence or an optional (ONNX Identity-25)."""
    return x
