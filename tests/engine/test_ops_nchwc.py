"""com.microsoft.nchwc: models that ONNX Runtime's own optimiser writes, and blocks made by hand."""

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from graphdoc.engine.errors import ModelError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops import nchwc
from graphdoc.engine.ops.table import Call, find
from tests.engine.stated import described, untrue

LEVELS = onnxruntime.GraphOptimizationLevel
RNG = np.random.default_rng(0)


def session(model: Any, level: Any, saved: pathlib.Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def optimised(model: onnx.ModelProto, folder: pathlib.Path) -> onnx.ModelProto:
    """Return the model as ONNX Runtime's optimiser saves it; skip where the CPU has no blocks."""
    path = folder / "optimised.onnx"
    session(model.SerializeToString(), LEVELS.ORT_ENABLE_ALL, path)
    saved = onnx.load(path)
    if not any(node.domain == nchwc.DOMAIN for node in saved.graph.node):
        pytest.skip("ONNX Runtime has no blocked convolutions on this CPU")
    return saved


def weights(**arrays: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(a, np.float32), name) for name, a in arrays.items()]


def network(text: str, opset: int = 17, **arrays: Any) -> onnx.ModelProto:
    """Return a model from the text of its graph, with weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    model.graph.initializer.extend(weights(**arrays))
    return model


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape) / 4


NETWORKS: dict[str, Any] = {
    "stem, sum, activation, pooling": lambda: network(
        """g (float[2,3,20,18] x) => (float[2,32,1,1] y) {
            a = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w0, b0)
            b = Relu(a)
            c = Conv <pads=[1,1,1,1]> (b, w1, b1)
            d = Add(c, b)
            e = Relu(d)
            m = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (e)
            n = AveragePool <kernel_shape=[2,2], count_include_pad=1, pads=[1,0,0,1]> (m)
            h = Conv (n, w2)
            i = LeakyRelu <alpha=0.3> (h)
            y = GlobalAveragePool(i)
        }""",
        w0=f(32, 3, 3, 3), b0=f(32), w1=f(32, 32, 3, 3), b1=f(32), w2=f(32, 32, 1, 1),
    ),
    "depthwise, groups, maximum": lambda: network(
        """g (float[1,32,9,11] x) => (float[1,64,1,1] y) {
            a = Conv <group=32, pads=[1,1,1,1]> (x, w0, b0)
            b = Clip(a, low, high)
            c = Conv <group=2, pads=[2,2,2,2], dilations=[2,2]> (b, w1)
            y = GlobalMaxPool(c)
        }""",
        w0=f(32, 1, 3, 3), b0=f(32), w1=f(64, 16, 3, 3), low=-0.2, high=0.4,
    ),
    "concatenation, nearest upsampling": lambda: network(
        """g (float[1,16,5,6] x) => (float[1,8,10,12] y) {
            a = Conv (x, w0)
            b = Conv (x, w1)
            c = Concat <axis=1> (a, b)
            d = Upsample <mode="nearest"> (c, s)
            y = Conv (d, w2)
        }""",
        w0=f(16, 16, 1, 1), w1=f(32, 16, 1, 1), w2=f(8, 48, 1, 1), s=[1, 1, 2, 2], opset=9,
    ),
    "linear upsampling": lambda: network(
        """g (float[1,16,5,6] x) => (float[1,16,15,12] y) {
            a = Conv (x, w0)
            b = Resize <mode="linear", coordinate_transformation_mode="half_pixel"> (a, , s)
            y = Conv (b, w1)
        }""",
        w0=f(16, 16, 1, 1), w1=f(16, 16, 1, 1), s=[1, 1, 3, 2],
    ),
}  # fmt: skip


HELD = {
    "stem, sum, activation, pooling": {
        "Conv",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReorderOutput",
    },
    "depthwise, groups, maximum": {"ReorderInput", "Conv", "GlobalMaxPool", "ReorderOutput"},
    "concatenation, nearest upsampling": {"ReorderInput", "Conv", "Upsample", "ReorderOutput"},
    "linear upsampling": {"ReorderInput", "Conv", "Upsample", "ReorderOutput"},
}
"""Blocked operators that the optimiser makes of each network."""


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_networks(name: str, tmp_path: pathlib.Path) -> None:
    """Level 0 runs what the optimiser saves; every value inside is as ONNX Runtime has it."""
    model = optimised(NETWORKS[name](), tmp_path)
    assert {node.op_type for node in model.graph.node if node.domain == nchwc.DOMAIN} == HELD[name]
    inner = [output for node in model.graph.node for output in node.output]
    shown = {value.name for value in model.graph.output}
    x = RNG.standard_normal([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])
    feeds = {"x": x.astype(np.float32)}
    got = Interpreter(ir.from_proto(model)).run(feeds, inner)

    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in inner if each not in shown)
    runner = session(model.SerializeToString(), LEVELS.ORT_DISABLE_ALL)
    want = dict(zip([o.name for o in runner.get_outputs()], runner.run(None, feeds), strict=True))

    assert len(want) > 2
    for value, expected in want.items():
        np.testing.assert_allclose(got[value], expected, rtol=1e-4, atol=1e-5, err_msg=value)
    check_infer(model, {**feeds, **got})


def check_infer(model: onnx.ModelProto, values: dict[str, Any]) -> None:
    """What infer states of each blocked operator holds."""
    values |= {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in ir.from_proto(model).graph:
        row = find(node.domain, node.op_type, 1) if node.domain == nchwc.DOMAIN else None
        if row is None or row.infer is None:
            continue
        options = {name: attribute.value for name, attribute in node.attributes.items()}
        for known in ("content", "shape", "symbols"):
            types = [None if v is None else described(values[str(v.name)], known) for v in node.inputs]
            for extra in ({}, nchwc.block_of(node)):
                stated = row.infer(Call(), *types, **options, **extra)
                assert untrue(stated, values[str(node.outputs[0].name)]) is None, (node.op_type, known)


def blocked_model(w: Any, *, channels: int) -> onnx.ModelProto:
    """Return ReorderInput → Conv → ReorderOutput over x [1, 16, H, W]."""
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=nchwc.DOMAIN),
        helper.make_node("Conv", ["a", "w"], ["b"], domain=nchwc.DOMAIN),
        helper.make_node("ReorderOutput", ["b"], ["y"], domain=nchwc.DOMAIN, channels=channels),
    ]
    graph = helper.make_graph(
        nodes,
        "blocked",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16, 4, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(nchwc.DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def in_blocks(w: Any, block: int) -> Any:
    """Return weights (M, I, kh, kw) as the optimiser lays them out."""
    m, i, *kernel = w.shape
    parts = w.reshape(m // block, block, i // block, block, *kernel)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1)).reshape(w.shape)


@pytest.mark.parametrize(("block", "channels", "filters"), [(16, 20, 32), (8, 20, 24), (8, 24, 24)])
def test_the_block_size_follows_from_the_channels(block: int, channels: int, filters: int) -> None:
    """20 channels take 32 in blocks of 16 and 24 in blocks of 8: a model from another CPU runs too."""
    w = np.zeros((filters, 16, 1, 1), np.float32)
    w[:channels] = f(channels, 16, 1, 1)
    x = f(1, 16, 4, 5).astype(np.float32)

    model = ir.from_proto(blocked_model(in_blocks(w, block), channels=channels))
    y = Interpreter(model).run({"x": x})["y"]

    want = np.einsum("mi,nihw->nmhw", w[:channels, :, 0, 0], x)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_what_no_block_fits_is_refused() -> None:
    """12 filters are no blocks at all, and 20 channels are never 40."""
    for filters, channels in ((12, 12), (40, 20)):
        model = blocked_model(np.zeros((filters, 16, 1, 1), np.float32), channels=channels)
        with pytest.raises(ModelError, match="no block of 16 or 8 channels fits"):
            Interpreter(ir.from_proto(model))


def test_without_evidence_the_size_is_this_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiples of 16 fit both sizes: then the CPU decides, as in ONNX Runtime."""
    w = f(32, 16, 1, 1).astype(np.float32)
    x = f(1, 16, 4, 5).astype(np.float32)
    want = np.einsum("mi,nihw->nmhw", w[..., 0, 0], x)
    for block in nchwc.SIZES:
        monkeypatch.setattr(nchwc, "_host_block", lambda block=block: block)
        y = Interpreter(ir.from_proto(blocked_model(in_blocks(w, block), channels=32))).run({"x": x})["y"]
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_channels_last() -> None:
    """ReorderInput and ReorderOutput take and give (N, H, W, C)."""
    x = f(2, 3, 4, 20).astype(np.float32)
    rows = [find(nchwc.DOMAIN, name, 1) for name in ("ReorderInput", "ReorderOutput")]
    assert rows[0] is not None
    assert rows[1] is not None

    a = rows[0].evaluate(Call(), x, channels_last=1, block=8)
    y = rows[1].evaluate(Call(), a, channels_last=1, channels=20, block=8)

    assert a.shape == (2, 24, 3, 4)
    assert a.ravel()[:8].tolist() == x[0, 0, 0, :8].tolist()
    np.testing.assert_array_equal(y, x)


def test_part_of_a_block_is_refused() -> None:
    """A tensor of 12 channels is not in blocks of 8."""
    with pytest.raises(ValueError, match="12 channels are not in blocks of 8"):
        nchwc.plain(np.zeros((1, 12, 2, 2), np.float32), 8)
