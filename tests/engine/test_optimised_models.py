"""Real models as ONNX Runtime's optimiser saves them, at each level, layer by layer.

They hold what no exporter writes: fused operators, blocked and channels-last layouts, operators under domains
and versions that ONNX does not know.
"""

import os
import pathlib
from typing import Any

import onnx
import onnxruntime
import pytest

from graphdoc.api import compare_models
from graphdoc.compare.result import Layer, Status

FOLDER = os.environ.get("GRAPHDOC_MODELS")
LEVELS = onnxruntime.GraphOptimizationLevel

pytestmark = pytest.mark.skipif(FOLDER is None, reason="GRAPHDOC_MODELS names no folder of real models")


def save(path: pathlib.Path, level: Any, target: pathlib.Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.optimized_model_filepath = str(target)
    try:
        # As bytes: the saved file would point at data files that lie beside the original.
        content = onnx.load(path).SerializeToString()
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each release of ONNX Runtime refuses other models, with classes of its own
        pytest.skip(f"ONNX Runtime does not open it: {str(error)[:100]}")


def excused(layer: Layer) -> bool:
    """Whether ONNX Runtime is the one that is further from float64."""
    return None not in (layer.truth_a, layer.truth_b) and layer.truth_b < layer.truth_a / 4  # type: ignore[operator]


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("path", sorted(pathlib.Path(FOLDER or "-").rglob("*.onnx")), ids=lambda p: p.stem)
def test_runs_and_agrees(path: pathlib.Path, level: str, tmp_path: pathlib.Path) -> None:
    """Level 0 runs the optimised model; where a layer of it differs, it is nearer to float64."""
    target = tmp_path / "optimised.onnx"
    save(path, getattr(LEVELS, level), target)

    result = compare_models(target, latency=False)

    assert len(result.layers) > 0
    wrong = [layer for layer in result.layers if layer.status == Status.OWN and not excused(layer)]
    assert [(layer.index, layer.op, layer.own_error, layer.truth_a, layer.truth_b) for layer in wrong] == []
    assert result.b.fallbacks == ()
