"""Why the engine and ONNX Runtime may rightly differ: a table of narrow reasons, each with its own test.

A reason holds for named operators, and only where the suspect's own inputs and results bear it out: most also
demand that the engine's result lies at the float64 one. "Small" below is a handful of units in the last place.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx


@dataclass(frozen=True)
class Suspect:
    """A layer that differs. a: ours. b: ONNX Runtime's. truth, limit: of a float64 run, None without one."""

    node: onnx.NodeProto
    index: int
    opset: int
    inputs: list[Any]
    a: Any
    b: Any
    truth: Any
    limit: Any

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute's value."""
        found = [onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name]
        return found[0] if found else default

    @property
    def comparable(self) -> bool:
        """Whether both results are arrays of one dtype and shape."""
        return hasattr(self.a, "dtype") and (self.a.dtype, self.a.shape) == (
            getattr(self.b, "dtype", None),
            getattr(self.b, "shape", None),
        )

    @property
    def floats(self) -> list[Any]:
        """The float inputs as float64."""
        arrays = [x for x in self.inputs if isinstance(x, np.ndarray) and x.dtype.kind not in "iubO"]
        return [x.astype(np.float64) for x in arrays]

    @property
    def differing(self) -> Any:
        """A mask of the elements that differ at all."""
        return ~((self.a == self.b) | ((self.a != self.a) & (self.b != self.b)))

    def ours_is_true(self, units: float = 8) -> bool:
        """Whether the engine's result is the float64 one but for rounding."""
        if self.truth is None or not self.comparable or self.truth.shape != self.a.shape:
            return False
        facts = ml_dtypes.finfo(self.a.dtype)
        with np.errstate(all="ignore"):
            gap = np.abs(self.a.astype(np.float64) - self.truth)
            moved = 0 if self.limit is None else 4 * self.limit
            fine = gap <= units * float(facts.eps) * (np.abs(self.truth) + float(facts.smallest_normal)) + moved
            same = (self.a == self.truth) | (np.isnan(self.a) & np.isnan(self.truth))
            over = np.isinf(self.a) & (np.abs(self.truth) >= float(facts.max))
        return bool(np.all(fine | same | over))

    def theirs_within(self, relative: float, absolute: float) -> bool:
        """Whether ONNX Runtime's result lies this near to ours: of the largest element, and plain."""
        x, y = self.a.astype(np.float64), self.b.astype(np.float64)
        finite = x[np.isfinite(x)]
        size = float(np.abs(finite).max(initial=0.0))
        with np.errstate(all="ignore"):
            fine = np.abs(x - y) <= relative * size + absolute
        return bool(np.all(fine | (x == y) | (np.isnan(x) & np.isnan(y))))


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
    *("LogSoftmax", "Softmax", "Max", "Min", "ScatterND", "ScatterElements", "RoiAlign", "MaxRoiPool", "Clip"),
    *("DynamicQuantizeLinear", "QuantizeLinear", "ReduceLogSumExp"),
)


@reason("nan order", *NAN_ORDER, clause="no operator says where NaN stands in an order")
def nan_order(s: Suspect) -> bool:
    """An input has NaN, and the result depends on comparisons."""
    return any(np.isnan(x).any() for x in s.floats)


@reason("cast out of range", "Cast", "CastLike", clause="Cast: float to integer out of range is undefined")
def cast_out_of_range(s: Suspect) -> bool:
    """Every element that differs comes from a float that the integer type does not hold, or from NaN."""
    if not s.comparable or s.a.dtype.kind not in "iu" or not s.floats:
        return False
    info = np.iinfo(s.a.dtype)
    x = np.trunc(s.floats[0][s.differing])
    return bool(np.all(~((x >= float(info.min)) & (x <= float(info.max))) | (x >= 2.0**63)))


@reason(
    "overflow on the way",
    *("GroupNormalization", "LayerNormalization", "InstanceNormalization", "MeanVarianceNormalization", "LRN"),
    *("LpNormalization", "RMSNormalization", "BatchNormalization", "ReduceL2", "ReduceMean", "Resize", "STFT"),
    *("LpPool", "GlobalLpPool", "GridSample", "Einsum", "MatMul", "Gemm", "Conv", "ConvTranspose", "AveragePool"),
    *("GlobalAveragePool", "RNN", "GRU", "LSTM", "Attention", "RotaryEmbedding", "Mean", "Sum", "ReduceSum"),
    *("ReduceProd", "ReduceSumSquare", "CumSum", "CumProd", "ReduceLogSumExp", "ReduceLogSum", "ReduceL1", "Det"),
    *("Upsample", "If", "Loop", "Scan"),
    clause="the order of sums and products is not laid down; one order may overflow where another does not",
)
def overflow(s: Suspect) -> bool:
    """A side is not finite at each element that differs, and an input is as large as to overflow when squared."""
    if not s.comparable or s.a.dtype.kind in "iubO":
        return False
    top = float(ml_dtypes.finfo(s.a.dtype).max)
    large = any((np.abs(x[np.isfinite(x)]) > np.sqrt(top)).any() or np.isinf(x).any() for x in s.floats)
    here = s.differing
    return large and bool(np.all(~np.isfinite(s.a[here]) | ~np.isfinite(s.b[here])) or _cancelled(s, top))


def _cancelled(s: Suspect, top: float) -> bool:
    """Whether numbers near the top of the range meet, so that what is left is their rounding."""
    largest = max((np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in s.floats), default=0.0)
    return largest > np.sqrt(top)


# ---- where ONNX Runtime deviates ----------------------------------------------------------------------


@reason("nonzero of a scalar", "NonZero", clause="NonZero: for a scalar the shape is (0, N), not (1, N)")
def nonzero_scalar(s: Suspect) -> bool:
    return s.inputs[0].ndim == 0 and s.b.shape[0] == 1 and s.a.shape == (0, s.b.shape[1])


APPROXIMATE = (
    *("Sigmoid", "Tanh", "Erf", "Gelu", "Softplus", "Mish", "HardSwish", "Swish", "LSTM", "GRU", "RNN"),
    *("Attention", "Exp", "Softmax", "LogSoftmax"),
)


@reason("polynomials", *APPROXIMATE, clause="ONNX Runtime's sigmoid, tanh and erf keep an absolute error, and stop far out")
def polynomials(s: Suspect) -> bool:
    """Ours is right; theirs lies within a few units in the last place of 1."""
    return s.comparable and s.a.dtype == np.float32 and s.ours_is_true(16) and s.theirs_within(2e-6, 1e-6)


@reason("e^x − 1 near zero", "Elu", "Selu", "Celu", clause="ONNX Runtime computes exp(x) − 1, which cancels")
def exp_minus_one(s: Suspect) -> bool:
    """Ours is right; theirs is off by rounding of 1, times the factors."""
    if not s.comparable:
        return False
    factor = abs(s.attribute("alpha", 1.7)) * abs(s.attribute("gamma", 1.1))
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    return s.ours_is_true() and s.theirs_within(0, 4 * eps * max(factor, 1.0))


@reason("cosine window", "BlackmanWindow", "HannWindow", "HammingWindow", clause="ONNX Runtime sums cosines in float32")
def cosine_window(s: Suspect) -> bool:
    return s.comparable and s.theirs_within(0, 3e-7)


@reason("running twiddles", "DFT", "STFT", clause="ONNX Runtime multiplies its twiddle factors up in the dtype")
def twiddles(s: Suspect) -> bool:
    """Ours is right; theirs is off by rounding of the largest input times the length."""
    if not s.comparable:
        return False
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    size = max((float(np.abs(x).sum()) for x in s.floats), default=0.0)
    return s.theirs_within(0, 16 * eps * size)


@reason("u8s8 saturation", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", clause="without VNNI pairs of products saturate at 16 bits")
def saturation(s: Suspect) -> bool:
    """The second operand has values of 8 full bits, so that two products exceed 16 bits."""
    arrays = [x for x in s.inputs if isinstance(x, np.ndarray) and x.dtype in (np.int8, np.uint8) and x.ndim >= 1]
    sizes = [int(np.abs(x.astype(np.int64)).max(initial=0)) for x in arrays[:2]]
    return len(sizes) == 2 and 2 * sizes[0] * sizes[1] > 2**15 - 1


# ---- refusals -----------------------------------------------------------------------------------------

REFUSALS: Sequence[tuple[str, str, re.Pattern[str]]] = tuple(
    (name, op, re.compile(pattern))
    for name, op, pattern in (
        ("no kernel", "", "NOT_IMPLEMENTED"),
        ("SAME with a stride larger than the kernel", "", "padding values must be non-negative"),
        ("float16 has no product here", "", "MLFloat16 data type is not supported with Scatter"),
    )
)


def explain_refusal(op: str, text: str) -> str:
    """Return the name of the known reason of a refusal, "" when there is none."""
    for name, operator, pattern in REFUSALS:
        if operator in ("", op) and pattern.search(text):
            return name
    return ""
