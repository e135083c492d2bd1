"""Recurrent kernels against their specification, and whole layers against ONNX Runtime and level 0."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.recurrent import emit_recurrent
from graphdoc.engine.expr import F32, apply, load
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.kernels.recurrent import GATES, Recurrent, packed, unpacked
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Step
from tests.engine.llvm.rows_run import both, fresh, strided, targets

TARGETS = targets()
ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}


def test_packing_is_undone() -> None:
    """Packed weights of a size that fills no block come back."""
    r = np.random.default_rng(0).standard_normal((4 * 21, 21)).astype(np.float32)
    back = unpacked(packed(r, 4), 21)
    assert np.array_equal(back, r.reshape(4, 21, 21).transpose(2, 0, 1))


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "GRU before reset", "RNN"])
@pytest.mark.parametrize(
    ("directions", "steps", "batch", "hidden"),
    [(1, 7, 1, 32), (2, 5, 1, 21), (2, 4, 3, 16), (1, 3, 5, 8), (1, 1, 2, 50), (2, 3, 7, 21), (1, 2, 4, 32)],
)
def test_cells(cell: str, directions: int, steps: int, batch: int, hidden: int) -> None:
    """Sizes that fill no block, both directions, rows of a batch, with a first state."""
    name, before = cell.split()[0], "before" in cell
    rng = np.random.default_rng(0)
    gates = GATES[name]

    def some(*shape: int, scale: float = 1) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    r = np.stack([packed(some(gates * hidden, hidden, scale=hidden**-0.5), gates) for _ in range(directions)])
    arrays = [some(directions, steps, batch, gates, hidden), r, some(directions, batch, hidden)]
    arrays += [some(directions, batch, hidden)] if name == "LSTM" else []
    arrays += [some(directions, hidden)] if before else []
    reverse = (False, True) if directions == 2 else (bool(steps % 2),)
    acts = tuple(apply(a, load(0, F32)) for a in ACTIVATIONS[name])
    inputs = [strided(a, range(a.ndim)) for a in arrays]
    outs = [strided(np.zeros((directions, steps, batch, hidden), np.float32), [1, 0, 2, 3])]
    outs += [fresh((directions, batch, hidden), np.float32) for _ in range(2 if name == "LSTM" else 1)]
    step = Step(
        Recurrent(name, reverse, acts, before), tuple(v for v, _ in inputs), tuple(v for v, _ in outs)
    )
    memory = {v.buffer: m for v, m in (*inputs, *outs)}
    for target in TARGETS:
        kernel = emit_recurrent(step, target)
        assert kernel is not None
        for found, wanted in both(kernel, step, memory, 2, target):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def layer(
    op: str, directions: int, hidden: int, feeds: dict[str, Any], inputs: list[str], **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one recurrent layer with random weights. inputs: of the node, from the fifth on."""
    rng = np.random.default_rng(1)
    gates, size = GATES[op], feeds["x"].shape[2]
    weights = {
        "w": rng.standard_normal((directions, gates * hidden, size)) * 0.3,
        "r": rng.standard_normal((directions, gates * hidden, hidden)) * 0.2,
        "b": rng.standard_normal((directions, 2 * gates * hidden)) * 0.3,
    }
    names = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    node = helper.make_node(op, ["x", "w", "r", "b", *inputs], names, hidden_size=hidden, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in names],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


class Spy:
    """A device that notes what specifications it was given."""

    def __init__(self) -> None:
        self.inner = CpuDevice(1)
        self.name = "cpu"
        self.specs: list[str] = []

    def load(self, program: Any) -> Any:
        """Load with the device inside."""
        self.specs += [type(step.spec).__name__ for step in program.steps]
        return self.inner.load(program)


@pytest.mark.parametrize(
    ("op", "directions", "attributes"),
    [
        ("LSTM", 1, {}),
        ("LSTM", 2, {"direction": "bidirectional"}),
        ("LSTM", 1, {"direction": "reverse", "clip": 0.5}),
        ("GRU", 1, {"linear_before_reset": 1}),
        ("GRU", 2, {"direction": "bidirectional"}),
        ("RNN", 1, {"activations": ["Relu"]}),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_layers(op: str, directions: int, attributes: dict[str, Any], given: bool) -> None:
    """A whole layer is compiled and agrees with ONNX Runtime, with and without first states."""
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((6, 2, 5)).astype(np.float32)}
    inputs: list[str] = []
    if given:
        inputs = ["", "h0", "c0"][: 3 if op == "LSTM" else 2]
        feeds.update({k: rng.standard_normal((directions, 2, 20)).astype(np.float32) for k in inputs if k})
    model = layer(op, directions, 20, feeds, inputs, **attributes)
    spy = Spy()
    found = Compiled(ir.serde.deserialize_model(model), device=spy).run(feeds)
    assert "Recurrent" in spy.specs
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, wanted in zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["lengths", "lengths of a GRU", "hard", "layout"])
def test_lengths_and_layouts_and_what_level_0_runs(kind: str) -> None:
    """Lengths, and layout 1, which is a matter of strides; activations with parameters run on level 0."""
    rng = np.random.default_rng(3)
    feeds: dict[str, Any] = {"x": rng.standard_normal((6, 2, 5)).astype(np.float32)}
    inputs: list[str] = []
    attributes: dict[str, Any] = {}
    directions = 1
    if "lengths" in kind:
        feeds = {"x": rng.standard_normal((6, 5, 5)).astype(np.float32)}
        feeds["lens"], inputs = np.array([6, 3, 1, 5, 0], np.int32), ["lens"]
        directions, attributes["direction"] = 2, "bidirectional"
    elif kind == "hard":
        attributes["activations"] = ["HardSigmoid", "Tanh", "Tanh"]
    else:
        attributes["layout"] = 1
    model = layer("GRU" if "GRU" in kind else "LSTM", directions, 20, feeds, inputs, **attributes)
    graph = ir.serde.deserialize_model(model)
    spy = Spy()
    found = Compiled(graph, device=spy).run(feeds)
    assert ("Recurrent" in spy.specs) == (kind != "hard")
    for name, wanted in Interpreter(graph).run(feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=2e-6)
