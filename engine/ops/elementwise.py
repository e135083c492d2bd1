"""Element-wise arithmetic."""

from graphdoc.engine.ops.table import Array, Call, op


@op("Relu", 1, 6, 13, 14)
def relu(call: Call, x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    return call.xp.maximum(x, call.xp.zeros((), x.dtype))


@op("Identity", 1, 13, 14, 16, 19, 21, 23, 24, 25)
def identity(call: Call, x: Array) -> Array:
    """x."""
    return x
