"""Support vector machines whose coefficients cancel: rounding is forgiven, a wrong coefficient is not."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphdoc.api import compare_models
from graphdoc.compare.result import Status

pytest.importorskip("onnxruntime")


def machine(path: Path, change: float = 0.0) -> Path:
    """A sigmoid kernel near saturation, and coefficients of either sign that sum to nearly nothing."""
    rng = np.random.default_rng(1)
    vectors, features = 60, 6
    weights = rng.standard_normal(vectors) * 100
    weights -= weights.mean()
    weights[3] *= 1 + change
    node = onnx.helper.make_node(
        "SVMRegressor",
        ["x"],
        ["y"],
        "machine",
        domain="ai.onnx.ml",
        n_supports=vectors,
        kernel_type="SIGMOID",
        kernel_params=[0.2, 1.0, 3.0],
        support_vectors=rng.uniform(0.5, 2, vectors * features).tolist(),
        coefficients=weights.tolist(),
        rho=[0.1],
    )
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, ["n", features])], [info("y", 1, ["n", 1])])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


FEEDS = {"x": np.random.default_rng(2).uniform(0.5, 2, (16, 6)).astype(np.float32)}


@pytest.mark.parametrize("test", ["engine", "engine:1"])
def test_rounding_of_the_kernel_is_no_fault(tmp_path: Path, test: str) -> None:
    """The own error is some times what plain rounding would give, and float64 says that both are as near."""
    result = compare_models(machine(tmp_path / "m.onnx"), test_runner=test, inputs=FEEDS)
    (layer,) = [layer for layer in result.layers if layer.op == "SVMRegressor"]
    assert layer.own_limit is not None
    assert layer.own_limit.reason.startswith("measured")
    assert layer.status is Status.AGREES


def test_a_coefficient_that_is_off_is_a_fault(tmp_path: Path) -> None:
    models = machine(tmp_path / "a.onnx"), machine(tmp_path / "b.onnx", 0.01)
    result = compare_models(*models, inputs=FEEDS, test_runner="ort")
    assert [layer.status for layer in result.layers] == [Status.OWN]
