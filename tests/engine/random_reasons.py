"""Why the engine and ONNX Runtime may rightly differ: a table of narrow reasons, each with its own test.

A reason holds for named operators, and only where the suspect's own inputs and results bear it out. Most also
demand that the engine's result lies at the float64 one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.engine.random_suspect import Suspect

Applies = Callable[[Suspect], bool]


@dataclass(frozen=True)
class Reason:
    """name: what the counts are listed under. clause: what the specification or ONNX Runtime says."""

    name: str
    ops: frozenset[str]
    clause: str
    applies: Applies


REASONS: list[Reason] = []


def reason(name: str, *ops: str, clause: str) -> Callable[[Applies], Applies]:
    """Register the decorated test of a suspect as a reason."""

    def register(applies: Applies) -> Applies:
        REASONS.append(Reason(name, frozenset(ops), clause, applies))
        return applies

    return register


def explain(suspect: Suspect) -> str:
    """Return the name of the first reason that applies, "" when none does."""
    for each in REASONS:
        if suspect.node.op_type in each.ops and each.applies(suspect):
            return each.name
    return ""


# ---- where the specification leaves it open -----------------------------------------------------------

NAN_ORDER = (
    *("ArgMax", "ArgMin", "GlobalMaxPool", "Hardmax", "MaxPool", "ReduceMax", "ReduceMin", "TopK", "Unique"),
    *(
        "LogSoftmax",
        "Softmax",
        "Max",
        "Min",
        "ScatterND",
        "ScatterElements",
        "RoiAlign",
        "MaxRoiPool",
        "Clip",
    ),
    *("DynamicQuantizeLinear", "QuantizeLinear", "ReduceLogSumExp"),
)


ORDERING = frozenset(
    {"ArgMax", "ArgMin", "TopK", "Unique", "Hardmax", "DynamicQuantizeLinear", "QuantizeLinear"}
)
"""Those whose results say where elements stand, or for which numbers NaN stands."""


@reason("nan order", *NAN_ORDER, clause="no operator says where NaN stands in an order")
def nan_order(s: Suspect) -> bool:
    """An input has NaN; where nothing but NaN tells the results apart, only NaN does so here."""
    if not any(np.isnan(x).any() for x in s.floats):
        return False
    if s.node.op_type in ORDERING or not s.comparable:
        return s.node.op_type in ORDERING
    if s.a.dtype.kind in "iub":
        return s.node.op_type == "MaxPool" and s.index == 1
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return s.theirs_within(64 * eps, 64 * eps, finite=True)


@reason(
    "overflow on the way",
    *(
        "GroupNormalization",
        "LayerNormalization",
        "InstanceNormalization",
        "MeanVarianceNormalization",
        "LRN",
    ),
    *(
        "LpNormalization",
        "RMSNormalization",
        "BatchNormalization",
        "ReduceL2",
        "ReduceMean",
        "Resize",
        "STFT",
    ),
    *(
        "LpPool",
        "GlobalLpPool",
        "GridSample",
        "Einsum",
        "MatMul",
        "Gemm",
        "Conv",
        "ConvTranspose",
        "AveragePool",
    ),
    *(
        "GlobalAveragePool",
        "RNN",
        "GRU",
        "LSTM",
        "Attention",
        "RotaryEmbedding",
        "Mean",
        "Sum",
        "ReduceSum",
    ),
    *(
        "ReduceProd",
        "ReduceSumSquare",
        "CumSum",
        "CumProd",
        "ReduceLogSumExp",
        "ReduceLogSum",
        "ReduceL1",
        "Det",
    ),
    *("Upsample", "If", "Loop", "Scan"),
    clause="the order of sums and products is not laid down; one order may overflow where another does not",
)
def overflow(s: Suspect) -> bool:
    """An input would overflow when squared, and elements finite on both sides agree but for its rounding."""
    if not s.comparable or s.a.dtype.kind in "iubO":
        return False
    top = float(ml_dtypes.finfo(s.a.dtype).max)
    large = any((np.abs(x[np.isfinite(x)]) > np.sqrt(top)).any() or np.isinf(x).any() for x in s.floats)
    odd = ~np.isfinite(s.a) | ~np.isfinite(s.b) | ~s.differing
    return large and bool(np.all(odd | s.close(16)))


@reason(
    "a rotation that cancels",
    "RotaryEmbedding",
    clause="a·cos − b·sin, of which one product may not be rounded",
)
def rotation(s: Suspect) -> bool:
    """Within rounding of the products."""
    x, cosines, sines = s.floats[:3]
    size = float(np.abs(x).max(initial=0.0) * max(np.abs(c).max(initial=0.0) for c in (cosines, sines)))
    return s.theirs_within(0, 2 * float(ml_dtypes.finfo(s.a.dtype).eps) * size)


@reason(
    "logarithm of a sum that cancels",
    "ReduceLogSum",
    clause="the order of sums is not laid down; log has a pole",
)
def logarithm_of_nothing(s: Suspect) -> bool:
    """Both sums lie within rounding of 0, or of the float64 one."""
    if not s.comparable or s.a.dtype.kind in "iu":
        return False
    unit = float(ml_dtypes.finfo(s.a.dtype).eps) * float(np.abs(s.floats[0]).sum())
    with np.errstate(all="ignore"):
        ours, theirs = (np.nan_to_num(np.exp(y.astype(np.float64)), nan=0.0) for y in (s.a, s.b))
    return bool(np.all(np.abs(ours - theirs) <= unit))


# ---- where ONNX Runtime deviates ----------------------------------------------------------------------


@reason(
    "strings gathered", "Gather", clause="ONNX Runtime copies the first string of each row that it gathers"
)
def strings_gathered(s: Suspect) -> bool:
    """Ours is what NumPy takes."""
    if not s.comparable or s.a.dtype != object:
        return False
    want = np.take(s.inputs[0], s.inputs[1], axis=s.attribute("axis", 0))
    return bool(np.all((s.a == want) & ((s.b == want) | (s.b == ""))))


@reason(
    "pool of −Inf",
    *("GlobalMaxPool", "MaxPool", "MaxRoiPool"),
    clause="ONNX Runtime starts from the lowest finite number",
)
def lowest(s: Suspect) -> bool:
    if not s.comparable or s.a.dtype.kind != "f":
        return False
    here = s.differing
    return bool(np.all(np.isneginf(s.a[here]) & (s.b[here] == np.finfo(s.a.dtype).min)))


@reason(
    "softmax of Inf",
    "Softmax",
    "LogSoftmax",
    clause="x − max is NaN at +Inf, and what follows is not laid down",
)
def softmax_of_infinity(s: Suspect) -> bool:
    """An input is +Inf; where both sides are finite they agree."""
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return s.comparable and bool(np.isposinf(s.floats[0]).any()) and s.theirs_within(0, 16 * eps, finite=True)


@reason("zero of Where", "Where", clause="ONNX Runtime adds up what was selected and zeros: −0 becomes 0")
def zero_of_where(s: Suspect) -> bool:
    """Nothing differs but signs of zero, and ours has the minus."""
    return s.comparable and not s.differing.any() and bool(np.all(np.signbit(s.a) >= np.signbit(s.b)))


@reason("sign of NaN", "Sign", clause="ONNX Runtime gives 0 for NaN of float16")
def sign_of_nan(s: Suspect) -> bool:
    """Theirs is 0 where the input is NaN, and nothing else differs."""
    odd = np.isnan(s.inputs[0])
    return s.comparable and bool(np.all(s.differing <= odd)) and not s.b[odd].any()


@reason("nonzero of a scalar", "NonZero", clause="NonZero: for a scalar the shape is (0, N), not (1, N)")
def nonzero_scalar(s: Suspect) -> bool:
    return s.inputs[0].ndim == 0 and s.b.shape[0] == 1 and s.a.shape == (0, s.b.shape[1])


APPROXIMATE = (
    *("Sigmoid", "Tanh", "Erf", "Gelu", "Softplus", "Mish", "HardSwish", "Swish", "LSTM", "GRU", "RNN"),
    *("Attention", "Exp", "Softmax", "LogSoftmax"),
)


NEAR_ONE = frozenset({"LSTM", "GRU", "RNN", "Gelu", "LogSoftmax", "Mish", "Swish"})
"""Operators whose small results have an absolute error: they add numbers near 1, or take exp of a product."""


@reason(
    "polynomials",
    *APPROXIMATE,
    clause="ONNX Runtime's sigmoid, tanh and erf keep an absolute error, and stop far out",
)
def polynomials(s: Suspect) -> bool:
    """Ours is right; theirs lies within a few units in the last place of 1."""
    if not s.comparable:
        return False
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    ours = s.ours_is_true(16) or (s.node.op_type in NEAR_ONE and s.ours_within(16 * eps))
    return ours and s.theirs_within(16 * eps, 8 * eps)


@reason(
    "NaN in a cell",
    "GRU",
    "LSTM",
    "RNN",
    clause="ONNX Runtime clamps what goes into sigmoid and tanh, and NaN comes out as a bound",
)
def nan_in_cell(s: Suspect) -> bool:
    """An input is not finite, and where ours is finite theirs is near."""
    odd = any(not np.isfinite(x).all() for x in s.floats)
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return (
        s.comparable and odd and s.theirs_within(16 * eps, 8 * eps, finite=True) and bool(np.isnan(s.a).any())
    )


@reason("e^x − 1 near zero", "Elu", "Selu", "Celu", clause="ONNX Runtime computes exp(x) − 1, which cancels")
def exp_minus_one(s: Suspect) -> bool:
    """Ours is right; theirs is off by rounding of 1, times the factors."""
    if not s.comparable:
        return False
    factor = abs(s.attribute("alpha", 1.7)) * abs(s.attribute("gamma", 1.1))
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return s.ours_is_true() and s.theirs_within(0, 4 * eps * max(factor, 1.0))


@reason(
    "cosine window",
    "BlackmanWindow",
    "HannWindow",
    "HammingWindow",
    clause="ONNX Runtime sums cosines in float32",
)
def cosine_window(s: Suspect) -> bool:
    return s.comparable and s.theirs_within(0, 3e-7)


@reason("running twiddles", "DFT", "STFT", clause="ONNX Runtime has its twiddle factors in float32")
def twiddles(s: Suspect) -> bool:
    """Theirs is off by the rounding of the sum of sizes, the largest window factor included."""
    if not s.comparable:
        return False
    signal, *window = s.floats
    size = float(np.abs(signal).sum()) * max((float(np.abs(w).max(initial=1.0)) for w in window), default=1.0)
    return s.theirs_within(0, 16 * 2.0**-23 * size)  # also of float64: the angle is a float32


@reason(
    "u8s8 saturation",
    "ConvInteger",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    clause="without VNNI pairs of products saturate at 16 bits",
)
def saturation(s: Suspect) -> bool:
    """Two products exceed 16 bits, one operand taken as 0 … 255 and the other as −128 … 127."""
    arrays = [
        x for x in s.inputs if isinstance(x, np.ndarray) and x.dtype in (np.int8, np.uint8) and x.ndim >= 1
    ]
    if len(arrays) < 2 or not all(x.size for x in arrays[:2]):
        return False
    unsigned = [x.astype(np.int64) + 128 * (x.dtype == np.int8) for x in arrays[:2]]
    sizes = [(int(u.max()), int(np.abs(u - 128 * shift).max())) for u in unsigned for shift in (0, 1)]
    (a, _), (_, a_signed), (b, _), (_, b_signed) = sizes
    return 2 * max(a * b_signed, b * a_signed) > 2**15 - 1


@reason(
    "scan output of no turn",
    "Loop",
    clause="Loop: the shape of a scan output is not laid down without a turn",
)
def no_turn(s: Suspect) -> bool:
    return (
        s.index == 1
        and s.a.size == s.b.size == 0
        and s.a.ndim == s.b.ndim
        and s.a.shape[0] == s.b.shape[0] == 0
    )


@reason(
    "log-sum-exp of integers", "ReduceLogSumExp", clause="how a logarithm becomes an integer is not laid down"
)
def integer_logarithm(s: Suspect) -> bool:
    """ONNX Runtime truncates before it adds the largest element."""
    return s.comparable and s.a.dtype.kind in "iu" and bool(np.all(np.abs(s.a.astype(float) - s.b) <= 1))


INTEGER_SUMS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum"),
    *("ReduceSumSquare", "Einsum", "Pow", "Shrink"),
)


@reason(
    "integers in float64",
    *INTEGER_SUMS,
    clause="ONNX Runtime computes in float64: 53 bits, and no wrapping round",
)
def integers_in_float64(s: Suspect) -> bool:
    """Each element is at an end of the type's range, or off by the rounding of the sum of sizes."""
    if not s.comparable or s.a.dtype.kind not in "iu":
        return False
    info = np.iinfo(s.a.dtype)
    ends = (info.min, info.max, 0)
    arrays = [np.abs(x.astype(float)) for x in s.inputs if x is not None and x.dtype.kind in "iu"]
    total = float(np.prod([max(x.sum(), 1.0) for x in arrays[: 2 if s.node.op_type == "Einsum" else 1]]))
    if s.node.op_type in ("ReduceSumSquare", "ReduceProd", "Pow"):
        total = total**2 if s.node.op_type == "ReduceSumSquare" else float(np.prod(np.maximum(arrays[0], 1)))
    near = (np.abs(s.a.astype(float) - s.b.astype(float)) <= total * 2.0**-50) & (total >= 2.0**53)
    clamped = (np.isin(s.a, ends) | np.isin(s.b, ends)) & (total >= float(info.max))
    if s.node.op_type == "Pow":
        with np.errstate(all="ignore"):
            clamped |= np.abs(np.power(*(x.astype(float) for x in s.inputs))) > float(info.max)
            clamped |= np.abs(s.inputs[1].astype(float)) > 2.0**53  # whether it is odd is lost
    return bool(np.all((near | clamped)[s.differing]))


@reason("mean of nothing", "ReduceMean", "Mean", clause="ReduceMean: undefined over an empty set")
def mean_of_nothing(s: Suspect) -> bool:
    return 0 in s.inputs[0].shape


@reason("shrink in float32", "Shrink", clause="ONNX Runtime's attributes and sums are float32")
def shrink(s: Suspect) -> bool:
    """Off by the rounding of the input and the bias to float32, or too large for one; integers truncate."""
    if not s.comparable:
        return False
    x, y, given = (v.astype(float) for v in (s.a, s.b, s.inputs[0]))
    whole = 1.0 if s.a.dtype.kind in "iu" else 0.0
    with np.errstate(all="ignore"):
        off = 2.0**-22 * (np.abs(given) + abs(s.attribute("bias", 0.0)))
        fine = np.abs(x - y) <= np.where(off > 2.0**-4, off + whole, off)
    return bool(np.all(fine | ~s.differing | (np.abs(x) > np.finfo(np.float32).max)))


@reason(
    "one point between corners",
    "AffineGrid",
    clause="AffineGrid: where one point lies with align_corners is open",
)
def one_point(s: Suspect) -> bool:
    return s.attribute("align_corners", 0) == 1 and 1 in s.inputs[1][2:]


@reason(
    "SAME with dilations",
    "MaxPool",
    "AveragePool",
    "LpPool",
    clause="SAME: ceil(input / stride) elements; ONNX Runtime pads for the plain kernel",
)
def same_dilated(s: Suspect) -> bool:
    same = s.attribute("auto_pad", b"NOTSET").startswith(b"SAME")
    return same and max(s.attribute("dilations", [1])) > 1


@reason(
    "SAME with a stride larger than the kernel",
    "ConvTranspose",
    clause="SAME: input · stride elements; ONNX Runtime gives fewer",
)
def same_strided(s: Suspect) -> bool:
    same = s.attribute("auto_pad", b"NOTSET").startswith(b"SAME")
    strides, kernel = s.attribute("strides", [1]), s.inputs[1].shape[2:]
    dilations = s.attribute("dilations", [1] * len(kernel))
    return same and any(t > d * (k - 1) + 1 for t, k, d in zip(strides, kernel, dilations, strict=False))


@reason(
    "corners of a fractional length",
    "Resize",
    clause="ONNX's own case downsample_scales_linear_align_corners takes length · scale as it is",
)
def fractional_corners(s: Suspect) -> bool:
    if s.attribute("coordinate_transformation_mode", b"") != b"align_corners" or len(s.inputs) > 3:
        return False
    lengths = s.inputs[0].shape * s.inputs[2]
    return bool(np.any(lengths != np.floor(lengths)))


@reason(
    "coordinates in float32",
    "Resize",
    "Upsample",
    "GridSample",
    "RoiAlign",
    "DeformConv",
    "AffineGrid",
    clause="where a sample lies is rounded to the dtype",
)
def coordinates(s: Suspect) -> bool:
    """Both lie within what a coordinate off by its rounding makes of the largest element."""
    return s.comparable and s.a.dtype.kind not in "iub" and s.theirs_within(0, _coordinate_bound(s))


def _coordinate_bound(s: Suspect) -> float:
    x = s.floats[0]
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return 8 * eps * float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0)) * max(x.shape, default=1)


@reason(
    "quantised infinity",
    "DynamicQuantizeLinear",
    "QuantizeLinear",
    clause="NaN and infinities have no place on the grid",
)
def quantised_infinity(s: Suspect) -> bool:
    return not np.isfinite(s.floats[0]).all()


@reason(
    "product over nothing",
    "MatMulInteger",
    "QLinearMatMul",
    clause="the sum of no terms is 0; ONNX Runtime leaves memory as it was",
)
def product_over_nothing(s: Suspect) -> bool:
    nothing = s.inputs[7] if s.node.op_type == "QLinearMatMul" else np.zeros((), s.a.dtype)
    return s.inputs[0].shape[-1] == 0 and bool(np.all(s.a == nothing))


@reason(
    "subnormal numbers",
    "ReduceLogSumExp",
    "Mish",
    "Softplus",
    "Exp",
    "Sigmoid",
    "Softmax",
    "Gelu",
    clause="results below the normal numbers keep few bits",
)
def subnormal(s: Suspect) -> bool:
    """Every element that differs is that small."""
    if not s.comparable or s.a.dtype.kind in "iub":
        return False
    tiny = float(ml_dtypes.finfo(s.a.dtype).smallest_normal)
    here = s.differing
    return bool(np.all((np.abs(s.a[here]) <= 64 * tiny) & (np.abs(s.b[here]) <= 64 * tiny)))


@reason(
    "zero times infinity",
    "DeformConv",
    "GridSample",
    "RoiAlign",
    "Resize",
    "Upsample",
    clause="weights of zero outside the image: 0 · Inf is NaN where a sum has it",
)
def zero_times_infinity(s: Suspect) -> bool:
    """An input is not finite, or hardly; where both sides are, the coordinates' rounding alone shows."""
    if not s.comparable or s.a.dtype.kind in "iub":
        return False
    past = float(ml_dtypes.finfo(s.a.dtype).max) / 8
    return any(not (np.abs(x) < past).all() for x in s.floats) and s.theirs_within(
        0, _coordinate_bound(s), finite=True
    )


@reason(
    "running sum of squares",
    "LRN",
    clause="ONNX Runtime slides a window over squares, adding and taking away",
)
def running_squares(s: Suspect) -> bool:
    """Ours is right; theirs keeps the rounding of the largest square, and NaN or Inf once it met one.

    Where a square has no place in the dtype, both are 0 or no number.
    """
    if not s.comparable:
        return False
    x = s.floats[0]
    infinite = _squares_overflow(s, x)
    if not s.ours_is_true(where=~infinite) or np.any(s.a[infinite] != 0, where=np.isfinite(s.a[infinite])):
        return False
    alpha, beta, bias = (s.attribute(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    top = np.max(x[np.isfinite(x)] ** 2, initial=0.0)
    relative = 8 * beta * 2.0**-23 * (1 + alpha * top / bias)
    met = bool(infinite.any())
    with np.errstate(all="ignore"):
        fine = (np.abs(s.a - s.b) <= relative * np.abs(s.a)) | (relative >= 1)
    return bool(np.all(fine | ~s.differing | (met & ~np.isfinite(s.b))))


def _squares_overflow(s: Suspect, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mask of the elements whose channels, those within the window, have a square past the dtype."""
    large = ~(x**2 <= float(ml_dtypes.finfo(s.a.dtype).max))
    size = s.attribute("size", 1)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    found = large.copy()
    for shift in range(1, max(before, after) + 1):
        if shift <= before:
            found[:, shift:] |= large[:, :-shift]
        if shift <= after:
            found[:, :-shift] |= large[:, shift:]
    return found


@reason(
    "log-sum-exp without a shift",
    "ReduceLogSumExp",
    clause="where ONNX Runtime has no kernel, it runs the function body, log(Σ exp(x)) as it stands",
)
def log_sum_exp_unshifted(s: Suspect) -> bool:
    """Ours is right; theirs is Inf where ours lies past what exp can hold, and else near."""
    if not s.comparable or s.a.dtype.kind in "iu" or not s.ours_is_true():
        return False
    top = np.log(float(ml_dtypes.finfo(s.a.dtype).max))
    over = np.isposinf(s.b) & (s.a > top - 1)
    return bool(np.all(over | s.close(4) | ~s.differing))
