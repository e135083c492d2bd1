"""Why normalisations of the engine and ONNX Runtime may rightly differ: reasons as in random_reasons."""

from typing import Any

import ml_dtypes
import numpy as np

from tests.engine.random_reasons import reason
from tests.engine.random_suspect import Suspect

NORMS = (
    "InstanceNormalization",
    "LayerNormalization",
    "GroupNormalization",
    "BatchNormalization",
    "RMSNormalization",
)


def _deviation(s: Suspect) -> float:
    """Return the least deviation that a normalisation divides by, its epsilon included."""
    x, epsilon = s.floats[0], s.attribute("epsilon", 1e-5)
    kind = s.node.op_type
    if kind == "BatchNormalization":
        return float(np.sqrt(np.nanmin(s.floats[4], initial=np.inf) + epsilon))
    if kind == "InstanceNormalization":
        rows = x.reshape(*x.shape[:2], -1)
    elif kind == "GroupNormalization":
        rows = x.reshape(x.shape[0], s.attribute("num_groups", 1), -1)
    else:
        rows = x.reshape(*x.shape[: s.attribute("axis", -1) % x.ndim], -1)
    spread = np.mean(rows**2, axis=-1) if kind == "RMSNormalization" else np.var(rows, axis=-1)
    return float(np.sqrt(np.nanmin(spread, initial=np.inf) + epsilon))


@reason(
    "scale folded into the mean", *NORMS, clause="ONNX Runtime computes x · s + (b − m · s), which cancels"
)
def folded_mean(s: Suspect) -> bool:
    """Both lie within the rounding of the largest number on the way; where that is Inf, there may be NaN."""
    if not s.comparable or s.index:
        return False
    facts = ml_dtypes.finfo(s.a.dtype)
    top, scale, bias = (_largest(s, x) for x in (*s.floats[:3], np.zeros(1))[:3])
    bound = 16 * float(facts.eps) * (top * scale / _deviation(s) + bias)
    bound += 4 * (1 + top) * float(facts.smallest_subnormal)
    huge = np.maximum(scale, bias) * (1 + top) > float(facts.max) / 8
    return s.theirs_within(0, bound, finite=huge)


def _largest(s: Suspect, x: np.ndarray[Any, Any]) -> Any:
    """Return the largest size in x; per channel where x has one number per channel."""
    if s.node.op_type in ("InstanceNormalization", "BatchNormalization") and x.ndim == 1:
        return np.abs(x).reshape(-1, *(1,) * (s.a.ndim - 2))
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))


@reason(
    "variance as a difference",
    "GroupNormalization",
    clause="ONNX Runtime runs the function body, whose variance is E(x²) − E(x)², which cancels",
)
def variance_by_difference(s: Suspect) -> bool:
    """Ours lies at float64; theirs is off by the rounding of the mean square beside the variance."""
    if not s.comparable or s.index:
        return False
    eps = float(ml_dtypes.finfo(s.a.dtype).eps)
    x = s.floats[0]
    rows = x.reshape(x.shape[0], s.attribute("num_groups", 1), -1)
    scale, bias = (float(np.abs(v).max(initial=0.0)) for v in s.floats[1:3])
    cancelled = 8 * eps * np.max(np.mean(rows**2, axis=-1)) / _deviation(s) ** 2
    size = scale * np.sqrt(rows.shape[-1])
    return s.ours_within(64 * eps * (1 + size + bias) + 4 * float(np.max(s.limit))) and s.theirs_within(
        0, (cancelled if cancelled < 1 else np.inf) * size
    )


@reason(
    "no epsilon",
    "MeanVarianceNormalization",
    clause="its function body adds 1e-9 to the deviation; ONNX Runtime does not",
)
def no_epsilon(s: Suspect) -> bool:
    """Off by 1e-9 beside the deviation, and by the rounding of squares whose difference it is the root of."""
    if not s.comparable:
        return False
    axes = tuple(s.attribute("axes", [0, 2, 3]))
    x = s.floats[0]
    deviation = np.std(x, axis=axes, keepdims=True)
    top = np.max(np.abs(x), axis=axes, keepdims=True, initial=0.0)
    with np.errstate(all="ignore"):
        bound = np.broadcast_to(8 * 2.0**-23 * (top / deviation) ** 2 + 2e-9 / deviation, x.shape)
        fine = (np.abs(s.a - s.b) <= bound * np.maximum(np.abs(s.a), 1)) | ~(bound < 1)
    return bool(np.all(fine | ~s.differing))
