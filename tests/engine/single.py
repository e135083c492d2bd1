"""One-node models, and ONNX Runtime without optimisations as the oracle."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from graphdoc.engine.interpreter import Interpreter
from tests.engine.fake_cupy import model_agrees

Feeds = dict[str, Any]


def number(array: np.ndarray[Any, Any]) -> int:
    """Return the TensorProto.DataType of an array."""
    if array.dtype == object:
        return onnx.TensorProto.STRING
    return int(ir.DataType.from_numpy(array.dtype))


def model(
    op: str, *inputs: Any, opset: int = 21, outputs: int = 1, domain: str = "", **attributes: Any
) -> tuple[onnx.ModelProto, Feeds]:
    """Return a model of one node and its feeds. An input None is omitted; dims are left open."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, number(x), [None] * x.ndim) for n, x in feeds.items()]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "one", infos, results)
    imports = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def engine(proto: onnx.ModelProto, feeds: Feeds, *, truth: bool = False) -> list[Any]:
    """Return the outputs of level 0."""
    runner = Interpreter(ir.from_proto(proto), truth=truth)
    results = runner.run(feeds)
    model_agrees(ir.from_proto(proto), feeds, results, truth=truth)
    return [results[name] for name in runner.output_names]


def oracle(proto: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """Return the outputs of ONNX Runtime with all optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def run(op: str, *inputs: Any, **options: Any) -> Any:
    """Return the first output of a one-node model on level 0."""
    return engine(*model(op, *inputs, **options))[0]


def same(got: Any, want: Any, *, rtol: float = 0.0) -> None:
    """Assert equal dtype, shape and values (NaN equals NaN), or values within ``rtol``."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other, rtol=rtol)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype == object or want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=0)


def agree(op: str, *inputs: Any, rtol: float = 0.0, **options: Any) -> None:
    """Assert that level 0 and ONNX Runtime give the same outputs for a one-node model."""
    proto, feeds = model(op, *inputs, **options)
    for got, want in zip(engine(proto, feeds), oracle(proto, feeds), strict=True):
        same(got, want, rtol=rtol)
