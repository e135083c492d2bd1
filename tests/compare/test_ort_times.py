"""The profile of ONNX Runtime → seconds per layer: nodes with and without names, several runs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.compare.ort_session import least_seconds
from graphdoc.compare.runner import RunnerOptions, open_runner
from graphdoc.compare.target import Target
from graphdoc.surgeon.model import open_source


def model(names: list[str]) -> onnx.ModelProto:
    """Return a chain of a constant and as many Sigmoid nodes as there are names."""
    one = helper.make_node("Constant", [], ["c"], value_floats=[1.0])
    nodes = [helper.make_node("Sigmoid", [f"v{n}"], [f"v{n + 1}"], name=name) for n, name in enumerate(names)]
    nodes.insert(1, one)
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [8]) for v in ("v0", f"v{len(names)}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def event(name: str, index: int, microseconds: float, op: str = "Sigmoid") -> dict:
    arguments = {"node_index": str(index), "op_name": op}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": microseconds, "args": arguments}


@pytest.mark.parametrize("names", [["a", "b", "c"], ["", "", ""], ["a", "", "b"]])
def test_each_layer_has_a_time(names):
    """Constants, which ONNX Runtime does not count, shift nothing."""
    target = Target(open_source(model(names)))
    with open_runner("ort", target, RunnerOptions()) as runner:
        found = runner.run({"v0": np.zeros(8, np.float32)}, ["v1", "v2", "v3"]).timings
    assert set(found) == {"v1", "v2", "v3"}
    assert all(0 <= seconds < 1 for seconds in found.values())


def test_none_are_taken_where_none_are_asked_for():
    target = Target(open_source(model(["a", "b"])))
    with open_runner("ort", target, RunnerOptions(times=False)) as runner:
        assert runner.run({"v0": np.zeros(8, np.float32)}, ["v1"]).timings == {}


def test_the_least_of_all_runs_counts():
    graph = model(["a", "b"]).graph
    events = [event("a", 0, 50), event("b", 1, 9), event("a", 0, 7), event("b", 1, 12)]
    found = least_seconds(events, graph)
    assert found == {"v1": pytest.approx(7e-6), "v2": pytest.approx(9e-6)}


def test_where_the_count_leads_elsewhere_the_name_decides():
    graph = model(["a", "b"]).graph
    events = [
        event("b", 0, 3),
        event("a", 99, 4),
        event("nobody", 1, 5, op="Relu"),
        {"cat": "Session", "name": "x"},
    ]
    found = least_seconds(events, graph)
    assert found == {"v2": pytest.approx(3e-6), "v1": pytest.approx(4e-6)}
