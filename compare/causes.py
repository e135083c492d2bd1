"""Known causes: what a wrong layer's figures and its runner give away."""

from dataclasses import dataclass

from graphdoc.compare.environment import cpu
from graphdoc.compare.result import Metrics

EIGHT_BIT = frozenset(
    {
        *("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul", "QGemm", "QAttention"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
    }
)
HALF_MAX = 65504.0
"""Largest finite float16."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A wrong layer: its operators, dtypes, figures, and the runner of the side farther from float64."""

    ops: tuple[str, ...]
    dtype_b: str
    metrics: Metrics | None
    farther: str


def explain(suspect: Suspect) -> str:
    """Return the cause in one sentence, "" when none is known."""
    if EIGHT_BIT.intersection(suspect.ops) and suspect.farther == "ort" and "VNNI" not in cpu():
        return (
            "ONNX Runtime adds pairs of uint8 × int8 products in 16 bits on CPUs without VNNI, and they "
            "saturate; quantise weights to 7 bits (reduce_range) or run on a CPU with VNNI"
        )
    metrics = suspect.metrics
    if metrics and suspect.dtype_b == "float16" and metrics.inf_b > metrics.inf_a and _large(metrics):
        return f"values exceed fp16 (max {HALF_MAX:.0f})"
    return ""


def _large(metrics: Metrics) -> bool:
    return max(metrics.a_max or 0.0, -(metrics.a_min or 0.0)) > HALF_MAX
