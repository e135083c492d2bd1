"""What becomes of float16 on ONNX Runtime's CPU: nodes without a float16 kernel run in float32, casts around.

Casts between two such nodes are removed, so a value in between is never rounded to float16, and does not
overflow: 300 · 300 and a square root give 300. Whoever compares float16 models must know it.
"""

import tempfile
from pathlib import Path

import onnx

from graphdoc.compare.target import Target

CAST = "InsertedPrecisionFreeCast_"
"""How ONNX Runtime names the casts that it puts in, and what they give."""

SMALL = 64
"""Elements of an initializer up to which it is kept: sizes and axes, which types may follow from."""


def has_half(proto: onnx.ModelProto) -> bool:
    """Whether a model holds float16 in its interface or its weights, or casts to it."""
    graph, half = proto.graph, onnx.TensorProto.FLOAT16
    if any(t.data_type == half for t in graph.initializer):
        return True
    if any(v.type.tensor_type.elem_type == half for v in [*graph.input, *graph.output]):
        return True
    return any(a.name == "to" and a.i == half for n in graph.node if n.op_type == "Cast" for a in n.attribute)


def widened(target: Target) -> tuple[int, int] | None:
    """Return how many nodes ONNX Runtime's CPU runs in float32 though they are float16, and of how many.

    Read from the graph that it makes of the model without its weights. None where it makes none.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(
                without_weights(target.proto).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            made = onnx.load(path, load_external_data=False)
        except Exception:  # noqa: BLE001 - onnxruntime raises many types; then nothing is known
            return None
    nodes = [node for node in made.graph.node if node.op_type != "Cast"]
    names = ([*node.input, *node.output] for node in nodes)
    return sum(any(name.startswith(CAST) for name in row) for row in names), len(nodes)


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its large weights as inputs."""
    result = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    graph = result.graph
    graph.name = "graph"
    graph.node.extend(proto.graph.node)
    graph.output.extend(proto.graph.output)
    kept = [t for t in proto.graph.initializer if _elements(t) <= SMALL and not t.external_data]
    graph.initializer.extend(kept)
    graph.input.extend(proto.graph.input)
    known = {value.name for value in proto.graph.input} | {tensor.name for tensor in kept}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return result


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def remark(label: str, target: Target) -> str:
    """Return what a reader should know of a side that ONNX Runtime's CPU runs; "" where nothing is hidden."""
    if not has_half(target.proto):
        return ""
    found = widened(target)
    if found is None or not found[0]:
        return ""
    return (
        f"{label}: ONNX Runtime computes {found[0]} of {found[1]} nodes in float32 though they are float16, "
        "with casts around them: what overflows or vanishes in between may not show in its outputs; the "
        "runner engine computes true float16"
    )


__all__ = ["has_half", "remark", "widened", "without_weights"]
