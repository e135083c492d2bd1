"""Tree ensembles compiled, against level 0 and ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.trees import emit_trees
from graphdoc.engine.device.numpy import NumpyDevice
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from tests.engine.llvm.rows_run import both, targets

FEATURES = 7


class Spy:
    """A device that notes the steps it was given."""

    name = "spy"

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.steps: list[Any] = []

    def load(self, program: Any) -> Any:
        """Load with the device inside."""
        self.steps += program.steps
        return self.inner.load(program)

    @property
    def compiled(self) -> bool:
        """Whether there was a Trees step."""
        return any(type(s.spec).__name__ == "Trees" for s in self.steps)


def forest(
    rng: np.random.Generator,
    trees: int,
    depth: int,
    columns: list[int],
    modes: list[str],
    tracks: float,
    thin: bool = False,
) -> dict[str, list[Any]]:
    """Return nodes and leaf values of random trees of uneven depth; every leaf votes for ``columns``.

    thin: one child of each node is a leaf, as of leaves grown one by one.
    """
    found: dict[str, list[Any]] = {
        k: [] for k in ("tree", "id", "feature", "value", "mode", "true", "false", "tracks")
    }
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, left: int) -> int:
        node = found["tree"].count(tree)
        at = len(found["tree"])
        for key, value in (
            ("tree", tree),
            ("id", node),
            ("feature", int(rng.integers(FEATURES))),
            ("value", float(np.float32(np.round(rng.standard_normal(), 1)))),
            ("mode", str(rng.choice(modes))),
            ("true", 0),
            ("false", 0),
            ("tracks", int(rng.random() < tracks)),
        ):
            found[key].append(value)
        if left and (thin or rng.random() < 0.85):
            short = rng.random() < 0.5
            found["true"][at] = grow(tree, 0 if thin and short else left - 1)
            found["false"][at] = grow(tree, 0 if thin and not short else left - 1)
        else:
            found["mode"][at] = "LEAF"
            leaves.append((tree, node))
        return node

    for tree in range(trees):
        grow(tree, int(rng.integers(depth + 1)))
    votes = [(t, n, c) for t, n in leaves for c in columns]
    found["vote trees"], found["vote nodes"], found["vote columns"] = map(list, zip(*votes, strict=True))
    found["votes"] = [float(v) for v in rng.standard_normal(len(votes)).astype(np.float32)]
    return found


def model(kind: str, f: dict[str, list[Any]], count: int, rows: int, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one ensemble of ``count`` targets or classes."""
    stem = "target" if kind == "TreeEnsembleRegressor" else "class"
    votes = {
        f"{stem}_treeids": f["vote trees"],
        f"{stem}_nodeids": f["vote nodes"],
        f"{stem}_ids": f["vote columns"],
        f"{stem}_weights": f["votes"],
    }
    outputs = ["y"] if stem == "target" else ["label", "y"]
    if stem == "target":
        attributes["n_targets"] = count
    node = helper.make_node(
        kind,
        ["x"],
        outputs,
        domain="ai.onnx.ml",
        nodes_treeids=f["tree"],
        nodes_nodeids=f["id"],
        nodes_featureids=f["feature"],
        nodes_values=f["value"],
        nodes_modes=f["mode"],
        nodes_truenodeids=f["true"],
        nodes_falsenodeids=f["false"],
        nodes_missing_value_tracks_true=f["tracks"],
        **votes,
        **attributes,
    )
    kinds = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, FEATURES])],
        [helper.make_tensor_value_info(k, kinds[k], None) for k in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def data(rng: np.random.Generator, rows: int) -> Any:
    """Return features on the same grid as the splits, so that ties occur, with NaN and infinities."""
    x = np.round(rng.standard_normal((rows, FEATURES)), 1).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.02] = np.inf
    x[rng.random(x.shape) < 0.02] = -np.inf
    return x


def agree(proto: onnx.ModelProto, x: Any, compiled: bool = True) -> None:
    """Compare machine code, NumPy and level 0; check the steps on every target; ONNX Runtime's scores too."""
    graph = ir.serde.deserialize_model(proto)
    wanted = Interpreter(graph).run({"x": x})
    for device in (CpuDevice(2), NumpyDevice()):
        spy = Spy(device)
        found = Compiled(graph, device=spy).run({"x": x})
        assert spy.compiled == compiled
        for name, value in wanted.items():
            if value.dtype == np.int64:
                assert np.array_equal(found[name], value)
            np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-6)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found["y"], session.run(["y"], {"x": x})[0], rtol=2e-5, atol=2e-5)


MODES = (["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GTE"], ["BRANCH_GT"], ["BRANCH_LT", "BRANCH_LEQ"])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from([1, 2, 5, 19]),
    st.sampled_from([1, 15, 16, 40]),
    st.integers(0, 6),
    st.sampled_from(list(MODES)),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_regressors(seed: int, targets: int, trees: int, depth: int, modes: list[str], tracks: float) -> None:
    """Any depth, any number of trees and targets, ties, NaN with and without a branch of its own."""
    rng = np.random.default_rng(seed)
    f = forest(rng, trees, depth, list(range(targets)), modes, tracks)
    aggregate = ["SUM", "AVERAGE"][seed % 2]
    base = [0.5] * targets if seed % 3 else []
    proto = model(
        "TreeEnsembleRegressor",
        f,
        targets,
        9,
        aggregate_function=aggregate,
        base_values=base or [0.0] * targets,
    )
    agree(proto, data(rng, 9))


@pytest.mark.parametrize("depth", [8, 9, 11, 12, 13, 30])
@pytest.mark.parametrize("targets", [1, 3])
def test_deep_trees(depth: int, targets: int) -> None:
    """Walks end at any step of the looks, and the deepest as late as the table says."""
    rng = np.random.default_rng(depth)
    f = forest(rng, 20, depth, list(range(targets)), ["BRANCH_LEQ"], 0.5, thin=True)
    agree(model("TreeEnsembleRegressor", f, targets, 60), data(rng, 60))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [5, 3, 9]])
def test_many_classes(transform: str, labels: list[int]) -> None:
    """Three classes: labels in order or not, with every transform."""
    rng = np.random.default_rng(0)
    f = forest(rng, 20, 5, [0, 1, 2], ["BRANCH_LEQ"], 0.3)
    more = {"classlabels_int64s": labels, "post_transform": transform}
    agree(model("TreeEnsembleClassifier", f, 3, 30, **more), data(rng, 30))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("columns", [[0], [1], [0, 1]])
@pytest.mark.parametrize("positive", [False, True])
def test_two_classes(transform: str, columns: list[int], positive: bool) -> None:
    """Two classes: votes for one of them, as shares or margins, or for both."""
    rng = np.random.default_rng(1)
    f = forest(rng, 20, 5, columns, ["BRANCH_LT"], 0.0)
    if positive:
        f["votes"] = [abs(v) / 20 for v in f["votes"]]
    more = {"classlabels_int64s": [4, 7], "post_transform": transform}
    agree(model("TreeEnsembleClassifier", f, 2, 30, **more), data(rng, 30))


def test_every_target_of_code() -> None:
    """The kernel itself on other processors' vectors; it writes nothing but its output."""
    rng = np.random.default_rng(2)
    for targets_ in (1, 3, 17):
        f = forest(rng, 20, 5, list(range(targets_)), ["BRANCH_LEQ"], 0.5)
        x = data(rng, 8)
        spy = Spy(NumpyDevice())
        graph = ir.serde.deserialize_model(model("TreeEnsembleRegressor", f, targets_, 8))
        Compiled(graph, device=spy).run({"x": x})
        (step,) = (s for s in spy.steps if type(s.spec).__name__ == "Trees")
        memory = {v.buffer: v.buffer.data for v in step.inputs[1:]}
        memory[step.inputs[0].buffer] = x.reshape(-1).copy()
        memory[step.outputs[0].buffer] = np.zeros(step.outputs[0].buffer.size, np.float32)
        for target in targets():
            kernel = emit_trees(step, target)
            assert kernel is not None
            for found, wanted in both(kernel, step, memory, 3, target):
                assert np.array_equal(found, wanted)


@pytest.mark.parametrize("modes", [["BRANCH_EQ"], ["BRANCH_LEQ", "BRANCH_GT"]])
def test_what_level_0_runs(modes: list[str]) -> None:
    """Tests that are no single comparison stay on level 0."""
    rng = np.random.default_rng(3)
    f = forest(rng, 5, 4, [0], modes, 0.0)
    f["mode"][: f["tree"].count(0)] = [
        m if m == "LEAF" else modes[0] for m in f["mode"][: f["tree"].count(0)]
    ]
    agree(model("TreeEnsembleRegressor", f, 1, 9), np.nan_to_num(data(rng, 9)), compiled=False)


def test_the_form_of_version_5() -> None:
    """TreeEnsemble: a tree of two splits and one of one, their mean; a second target gets no votes."""
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        aggregate_function=0,
        tree_roots=[0, 2],
        nodes_featureids=[0, 1, 2],
        nodes_splits=helper.make_tensor("s", TensorProto.FLOAT, [3], [0.0, 1.0, 0.0]),
        nodes_modes=helper.make_tensor("m", TensorProto.UINT8, [3], [0, 0, 0]),
        nodes_truenodeids=[1, 0, 3],
        nodes_falsenodeids=[2, 1, 4],
        nodes_trueleafs=[0, 1, 1],
        nodes_falseleafs=[1, 1, 1],
        leaf_targetids=[0, 0, 0, 0, 0],
        leaf_weights=helper.make_tensor("w", TensorProto.FLOAT, [5], [1.0, 2.0, 3.0, 10.0, 20.0]),
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = np.array([[-1, 0, -1], [-1, 2, 1], [1, 0, 0], [0, 1, 1]], np.float32)
    spy = Spy(CpuDevice(1))
    compiled = ir.serde.deserialize_model(proto)
    found = Compiled(compiled, device=spy).run({"x": x})["y"]
    assert spy.compiled
    np.testing.assert_allclose(found, np.array([[11, 0], [22, 0], [13, 0], [21, 0]]) / 2)
    np.testing.assert_allclose(Interpreter(compiled).run({"x": x})["y"], found)
