"""LSTM with 8-bit weights: the kernel against its specification, layers against ONNX Runtime and level 0."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.recurrent import emit_recurrent
from graphdoc.engine.expr import F32, apply, load
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.kernels.recurrent import Recurrent, packed_codes, unpacked_codes
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Step
from tests.engine.llvm.rows_run import both, fresh, strided, targets
from tests.engine.lowered import hosts

TARGETS = targets()
STEP = 5e-3
"""What a code of the state that falls to the other side moves a gate by: 128 · 1/255 · the weights' scale."""


def test_packing_is_undone() -> None:
    """Packed codes of an odd number that fills no block come back."""
    r = np.random.default_rng(0).integers(-128, 128, (21, 4 * 21)).astype(np.int8)

    np.testing.assert_array_equal(unpacked_codes(packed_codes(r, 4), 21), r.reshape(21, 4, 21))


@pytest.mark.parametrize(
    ("directions", "steps", "batch", "hidden"),
    [(1, 1, 1, 32), (2, 1, 3, 21), (2, 4, 1, 16), (1, 3, 5, 8), (1, 2, 2, 50), (1, 1, 1, 3)],
)
@pytest.mark.parametrize("start", ["noise", "zeros", "one side"])
def test_cells(directions: int, steps: int, batch: int, hidden: int, start: str) -> None:
    """Sizes that fill no pair and no block; all codes; states of no range, and of one on one side of 0."""
    rng = np.random.default_rng(hidden)

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    codes = rng.integers(-128, 128, (directions, hidden, 4 * hidden)).astype(np.int8)
    h = {"noise": some, "zeros": lambda *s: np.zeros(s, np.float32), "one side": lambda *s: 3 + abs(some(*s))}
    arrays = [
        some(directions, steps, batch, 4, hidden),
        np.stack([packed_codes(r, 4) for r in codes]),
        h[start](directions, batch, hidden),
        some(directions, batch, hidden),
        rng.uniform(0.001, 0.004, (directions, 4, hidden)).astype(np.float32),
    ]
    inputs = [strided(a, range(a.ndim)) for a in arrays]
    outs = [strided(np.zeros((directions, steps, batch, hidden), np.float32), [1, 0, 2, 3])]
    outs += [fresh((directions, batch, hidden), np.float32) for _ in range(2)]
    acts = tuple(apply(a, load(0, F32)) for a in ("sigmoid", "tanh", "tanh"))
    spec = Recurrent("LSTM", (False, True)[:directions], acts, codes=True)
    step = Step(spec, tuple(v for v, _ in inputs), tuple(v for v, _ in outs))
    memory = {v.buffer: m for v, m in (*inputs, *outs)}
    for target in TARGETS:
        kernel = emit_recurrent(step, target)
        assert kernel is not None
        for found, wanted in both(kernel, step, memory, 2, target):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=STEP if steps > 1 else 2e-6)


def test_a_state_that_is_no_number_spoils_its_direction() -> None:
    """The range is not a number then, and with it every product."""
    arrays = [
        np.zeros((1, 1, 1, 4, 16), np.float32),
        np.ones((1, 1, 8, 4, 16, 2), np.int8),
        np.full((1, 1, 16), np.nan, np.float32),
        np.zeros((1, 1, 16), np.float32),
        np.ones((1, 4, 16), np.float32),
    ]
    arrays[2][0, 0, 3:] = 1
    inputs = [strided(a, range(a.ndim)) for a in arrays]
    outs = [fresh(shape, np.float32) for shape in ((1, 1, 1, 16), (1, 1, 16), (1, 1, 16))]
    acts = tuple(apply(a, load(0, F32)) for a in ("sigmoid", "tanh", "tanh"))
    step = Step(
        Recurrent("LSTM", (False,), acts, codes=True), tuple(v for v, _ in inputs), tuple(v for v, _ in outs)
    )
    memory = {v.buffer: m for v, m in (*inputs, *outs)}
    kernel = emit_recurrent(step, TARGETS[0])
    assert kernel is not None
    from tests.engine.llvm.native import run

    run(kernel, step, memory, 1, TARGETS[0])

    assert np.isnan(memory[outs[0][0].buffer]).all()


def model(directions: int, hidden: int, size: int, batch: int, kind: str, **attributes: Any) -> Any:
    """Return a model of one layer and its inputs. kind: of the weights.

    They are within 64 of their zero point: with larger ones ONNX Runtime's sums of pairs saturate where the
    processor lacks VNNI. Far: within 200.
    """
    rng = np.random.default_rng(4)
    dtype = np.uint8 if "uint8" in kind else np.int8
    zero = {"uint8": 128, "uint8 far": 3}.get(kind, 0)
    low, high = (3, 204) if kind == "uint8 far" else (zero - 64, zero + 65)
    scales = (directions, 4 * hidden) if "columns" in kind else (directions,)
    arrays = {
        "w": rng.integers(low, high, (directions, size, 4 * hidden)).astype(dtype),
        "r": rng.integers(low, high, (directions, hidden, 4 * hidden)).astype(dtype),
        "b": (0.3 * rng.standard_normal((directions, 8 * hidden))).astype(np.float32),
        "s": rng.uniform(0.001, 0.004, scales).astype(np.float32),
        "z": np.full(scales, zero, dtype),
    }
    feeds: dict[str, Any] = {"x": rng.standard_normal((6, batch, size)).astype(np.float32)}
    feeds["h0"], feeds["c0"] = rng.standard_normal((2, directions, batch, hidden)).astype(np.float32)
    lens = ""
    if kind == "lengths":
        lens, feeds["lens"] = "lens", np.array([6, 2][:batch], np.int32)
    names = ["x", "w", "r", "b", lens, "h0", "c0", "", "s", "z", "s", "z"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "h", "c"],
        domain="com.microsoft",
        hidden_size=hidden,
        **attributes,
    )
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in ("y", "h", "c")],
        [numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize(
    ("directions", "attributes"),
    [(1, {}), (2, {"direction": "bidirectional"}), (1, {"direction": "reverse", "clip": 0.5})],
)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int8 columns", "uint8 far", "lengths"])
def test_layers(directions: int, attributes: dict[str, Any], kind: str) -> None:
    """A whole layer agrees with level 0 and ONNX Runtime; what 8 bits do not hold runs on level 0."""
    proto, feeds = model(directions, 20, 5, 2, kind, **attributes)
    graph = ir.serde.deserialize_model(proto)
    compiled = Compiled(graph, device=CpuDevice(1), passes=(fuse,))

    found = compiled.run(feeds)

    assert hosts(compiled) == (["DynamicQuantizeLSTM"] if kind in ("uint8 far", "lengths") else [])
    for name, wanted in Interpreter(graph).run(feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=STEP)
    if kind == "uint8 far":
        return
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, theirs in zip(("y", "h", "c"), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], theirs, rtol=1e-5, atol=2 * STEP)


def test_bits_do_not_depend_on_threads() -> None:
    """A direction is one thread's."""
    proto, feeds = model(2, 32, 16, 3, "int8", direction="bidirectional")
    graph = ir.serde.deserialize_model(proto)
    results = [Compiled(graph, device=CpuDevice(t), passes=(fuse,)).run(feeds) for t in (1, 2)]

    for name, value in results[0].items():
        assert value.tobytes() == results[1][name].tobytes()
