"""Known causes: what a wrong layer's figures and its runner give away."""

from collections.abc import Mapping
from dataclasses import dataclass

from graphdoc.compare.environment import cpu
from graphdoc.compare.findings import Finding
from graphdoc.compare.numbers import group, number
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


LEAST = 2.0**-24
"""Smallest float16 above 0."""

FADED = "too small for fp16"
"""Stands in the note of a layer that reads values which became 0."""


@dataclass(frozen=True, slots=True)
class Fading:
    """Tells which values of what a layer reads are too small for float16.

    layers: index and finding by tap name.
    """

    layers: Mapping[str, tuple[int, Finding]]

    def note(self, finding: Finding) -> str:
        """Return how many became 0, and where; "" for none."""
        if finding.dtype_b != "float16" or finding.dtype == "float16":
            return ""
        read = [self.layers[name] for name in finding.point.inputs if name in self.layers]
        found = (_lost(index, source) for index, source in read)
        return next((text for text in found if text), "")


def _lost(index: int, source: Finding) -> str:
    m = source.metrics
    if m is None or source.dtype_b != "float16" or m.zero_b <= m.zero_a:
        return ""
    count = f"{group(m.zero_b - m.zero_a)} of {group(m.size)} values of #{index} {source.point.op}"
    return f"{count} are {FADED} (least {number(LEAST)}) and became 0"


def _large(metrics: Metrics) -> bool:
    return max(metrics.a_max or 0.0, -(metrics.a_min or 0.0)) > HALF_MAX
