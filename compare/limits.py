"""How much error counts as rounding, and why.

A layer's own limit follows from its dtype and from how many terms it sums: a sum of K terms rounded in any
order is off by about √K half-units in the last place (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., §4.2), and a library's exp, tanh or erf by a few units. What a value may differ by in all
follows from the own errors that were measured on the way to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from graphdoc.compare.metrics import epsilon, smallest_normal
from graphdoc.compare.result import Limit

Shape = tuple[int, ...] | None

UNITS = 8.0
"""Units in the last place granted to any layer."""

APPROXIMATED_UNITS = 32.0
"""The same for functions that libraries approximate, some to an absolute rather than a relative error."""

APPROXIMATED = frozenset(
    {
        *("Sigmoid", "Tanh", "Erf", "Exp", "Log", "Softplus", "Gelu", "Mish", "Swish", "Selu", "Elu", "Celu"),
        *("Softmax", "LogSoftmax", "Sin", "Cos", "Tan", "Pow", "LSTM", "GRU", "RNN", "FastGelu", "QuickGelu"),
        *("BiasGelu", "Attention", "MultiHeadAttention", "GroupQueryAttention", "STFT", "DFT"),
    }
)
"""Operators that evaluate exp, log, erf or their kin."""

STEP_SHARE = 0.01
"""Share of elements of a quantised result that may fall on the other side of a rounding step."""

INNER_QUANTISING = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "QAttention",
        "QEmbedLayerNormalization",
    }
)
"""Operators that round to 8 bits on the way to a float result."""

BOUNDED = frozenset({"Sigmoid", "QuickGelu"})
"""Operators whose approximations keep an absolute error below half a unit in the last place of 1, however
small the result: ONNX Runtime's sigmoid, for one, stops at −18."""

MARGIN = 8.0
"""Total error may be this many times the rounding that adds up on the way: errors are not independent."""


def _last(inputs: Sequence[Shape], output: Shape) -> float:
    return max(inputs[0][-2:]) if inputs and inputs[0] else 1


def _filter(inputs: Sequence[Shape], output: Shape) -> float:
    """Weights have shape (out, in / groups, *kernel); quantised forms hold them further back."""
    ranked = [shape for shape in inputs[1:] if shape and len(shape) >= 3]
    return math.prod(ranked[0][1:]) if ranked else 1


def _transposed_filter(inputs: Sequence[Shape], output: Shape) -> float:
    weight = inputs[1] if len(inputs) > 1 else None
    return math.prod(weight) / max(weight[1], 1) if weight else 1


def _reduced(inputs: Sequence[Shape], output: Shape) -> float:
    if not inputs or inputs[0] is None or output is None:
        return 1
    return math.prod(inputs[0]) / max(math.prod(output), 1)


def _axis(inputs: Sequence[Shape], output: Shape) -> float:
    return max(inputs[0], default=1) if inputs and inputs[0] else 1


def _transform(inputs: Sequence[Shape], output: Shape) -> float:
    """A plain sum over n terms with running twiddle factors is off by n, not √n, half-units."""
    return float(max(output[-3:], default=1)) ** 2 if output else 1


def _spatial(inputs: Sequence[Shape], output: Shape) -> float:
    return math.prod(inputs[0][1:]) if inputs and inputs[0] else 1


def _recurrent(inputs: Sequence[Shape], output: Shape) -> float:
    """Each of T steps sums over input and hidden units; its error feeds the next step."""
    if len(inputs) < 3 or not inputs[0] or not inputs[2]:
        return 1
    return (inputs[0][-1] + inputs[2][-1]) * max(inputs[0][0], inputs[0][1])


def _contracted(inputs: Sequence[Shape], output: Shape) -> float:
    if output is None or any(shape is None for shape in inputs):
        return 1
    product = math.prod(math.prod(shape or ()) for shape in inputs)
    return math.sqrt(product / max(math.prod(output), 1))


_Length = Callable[[Sequence[Shape], Shape], float]

LENGTHS: Mapping[str, _Length] = {
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "TransposeMatMul", "MatMulNBits"), _last),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm"), _last),
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger", "QLinearConv", "DeformConv"), _filter),
    "ConvTranspose": _transposed_filter,
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool"), _reduced),
    **dict.fromkeys(("Softmax", "LogSoftmax", "CumSum", "CumProd", "LRN"), _axis),
    **dict.fromkeys(("DFT", "STFT"), _transform),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _axis),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "LpNormalization"), _axis),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"), _spatial),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention"), _spatial),
    **dict.fromkeys(("RNN", "LSTM", "GRU", "DynamicQuantizeLSTM"), _recurrent),
    **dict.fromkeys(("Einsum", "Det", "CDist"), _contracted),
    **dict.fromkeys(("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble"), _axis),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor", "LinearClassifier", "LinearRegressor"), _axis),
}
"""Operator → how many terms one element of its result sums."""

QUANTISING = frozenset(
    {
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        *(f"QLinear{name}" for name in ("Add", "Mul", "Sigmoid", "LeakyRelu", "AveragePool")),
        *(f"QLinear{name}" for name in ("GlobalAveragePool", "Concat", "Softmax", "Where", "ReduceMean")),
    }
)
"""Operators that round to a grid: at a tie, the last bit of a division decides the step."""


def reduction_length(op: str, inputs: Sequence[Shape], output: Shape) -> int:
    """Return how many terms an element of the operator's result sums, 1 where it sums none."""
    length = LENGTHS.get(op) or (_reduced if op.startswith("Reduce") else None)
    return max(1, round(length(inputs, output))) if length else 1


def own_limit(op: str, dtype: str, inputs: Sequence[Shape], output: Shape, rms_a: float) -> Limit:
    """Return the largest own error that counts as rounding.

    dtype: of the layer's result, NumPy's name. inputs, output: shapes. rms_a: RMS of A's result.
    """
    eps = epsilon(dtype) if dtype not in ("object", "") else 0.0
    if eps and op in INNER_QUANTISING:
        value = math.sqrt(STEP_SHARE) * 2.0**-7
        return Limit(value=value, reason=f"one step of int8 in at most {STEP_SHARE:.0%} of what it rounds")
    if eps:
        units = APPROXIMATED_UNITS if op in APPROXIMATED else UNITS
        length = reduction_length(op, inputs, output)
        value = eps * (units + math.sqrt(length))
        if op in BOUNDED and 0 < rms_a * value < eps / 2:
            return Limit(value=eps / 2 / rms_a, reason=f"half a unit in the last place of 1, as {dtype}")
        lost = smallest_normal(dtype) / rms_a if rms_a > 0 else 0.0
        if lost > 1:
            reason = f"{_reason(dtype, units, length)}, whose numbers are subnormal"
            return Limit(value=value * lost, reason=reason)
        return Limit(value=value, reason=_reason(dtype, units, length))
    if op in QUANTISING and rms_a > 0:
        value = math.sqrt(STEP_SHARE) / rms_a
        return Limit(value=value, reason=f"one step of {dtype} in at most {STEP_SHARE:.0%} of the elements")
    return Limit(value=0.0, reason=f"{_word(dtype)} results are exact")


def _reason(dtype: str, units: float, length: int) -> str:
    if length == 1:
        return f"{units:.0f} units in the last place of {dtype}"
    return f"{dtype} rounding of sums over {length} terms"


def _word(dtype: str) -> str:
    return {"object": "string", "": "such"}.get(dtype, dtype)


def total_limit(own: Limit, accumulated: float) -> Limit:
    """Return the largest total error that counts as rounding.

    accumulated: the own errors on the way to this value, added as independent ones.
    """
    value = own.value + MARGIN * accumulated
    if accumulated <= own.value / MARGIN:
        return Limit(value=value, reason=own.reason)
    return Limit(value=value, reason=f"{MARGIN:.0f} × the rounding that adds up on the way to it")
