"""What tests of rewrite rules share: small models, running them, and how near the results must be."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.model import load
from graphdoc.surgeon.rewriting import rewrite
from graphdoc.surgeon.simplified import Simplified
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build

Arrays = Mapping[str, np.ndarray[Any, Any]]


def graph(signature: str, nodes: str, constants: str = "", opset: int = 24) -> onnx.ModelProto:
    """Return a checked model in ONNX's text form: "float[2,3] x => float[2,3] y", "y = Relu (x)"."""
    inputs, outputs = signature.split("=>")
    body = f"g ({inputs}) => ({outputs})\n" + (f"<{constants}>\n" if constants else "") + "{" + nodes + "}"
    model = build.text(body, opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def apply(model: onnx.ModelProto, *rules: Any) -> Simplified:
    """Return what rules make of a model, which must be sound."""
    result = rewrite(model, rules)
    onnx.checker.check_model(write_model(result.model), full_check=True)
    return result


def ops(model: ir.Model) -> list[str]:
    """Return the operators of the main graph, in order; Constants aside."""
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


def reasons(result: Simplified) -> str:
    """Return why rules refused, one a line."""
    return "\n".join(item.reason for item in result.report.kept)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with every float32 made float16."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def feeds(model: onnx.ModelProto, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Any]:
    """Return seeded normal inputs; symbolic sizes are looked up in ``sizes``."""
    rng = np.random.default_rng(seed)
    made = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [dim.dim_value or (sizes or {})[dim.dim_param] for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        made[info.name] = (2 * rng.standard_normal(shape)).astype(dtype)
    return made


def by_ort(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
    """Return the outputs by ONNX Runtime, its optimisations off."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def by_engine(model: onnx.ModelProto, inputs: Arrays, *, truth: bool = False) -> list[np.ndarray[Any, Any]]:
    """Return the outputs by the engine's level 0, in float64 with ``truth``."""
    return list(Interpreter(load(model), truth=truth).run(inputs).values())


def error(found: Iterable[Any], exact: Iterable[Any]) -> float:
    """Return the largest distance from the exact outputs, over their largest element."""
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, exact, strict=True)
    ]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def agree(before: onnx.ModelProto, after: Simplified, inputs: Arrays) -> None:
    """Assert that a result is as near to the exact outputs as the original, through both runners.

    What the pieces compute in several roundings the operator computes in one or in another order: twice the
    original's error, or four units in the last place where the original happens to be closer.
    """
    edited = write_model(after.model)
    exact = by_engine(before, inputs, truth=True)
    eps = float(np.finfo(next(iter(inputs.values())).dtype).eps)
    for run in (by_ort, by_engine):
        limit = max(2 * error(run(before, inputs), exact), 4 * eps)
        assert error(run(edited, inputs), exact) <= limit, run.__name__
