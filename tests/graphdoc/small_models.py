"""Small models for tests of the front door."""

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper


def chain(
    *, scale: float = 1.0, layers: tuple[str, ...] = ("MatMul", "Relu", "Mul", "Softmax")
) -> onnx.ModelProto:
    """Return x[2, 16] → MatMul → Relu → Mul → Softmax; ``scale`` is what Mul multiplies with."""
    rng = np.random.default_rng(7)
    weights = {
        "w": rng.standard_normal((16, 12)).astype(np.float32),
        "s": np.array(scale, np.float32),
    }
    extra: dict[str, list[str]] = {"MatMul": ["w"], "Mul": ["s"]}
    nodes, last = [], "x"
    for index, op in enumerate(layers):
        name = f"{op.lower()}_{index}"
        nodes.append(helper.make_node(op, [last, *extra.get(op, [])], [name], name=f"node_{name}"))
        last = name
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 12])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save(folder: pathlib.Path, name: str = "m.onnx", **options: Any) -> pathlib.Path:
    """Write :func:`chain` and return its path."""
    path = folder / name
    onnx.save(chain(**options), path)
    return path


DETECTOR = """
<ir_version: 8, opset_import: ["" : 12]>
detector (float[N, 3, H, W] x) => (float[N, 1, h, w] map) {
    [conv] features = Conv <strides = [8, 8], kernel_shape = [8, 8]> (x, conv_w)
    [squeeze] mean = GlobalAveragePool (features)
    [squash] gate = HardSigmoid <alpha = 0.2, beta = 0.5> (mean)
    [excite] gated = Mul (features, gate)
    [head] logits = Conv (gated, head_w)
    [sigmoid] map = Sigmoid (logits)
}
"""


def detector() -> onnx.ModelProto:
    """Return a model with the form of the demo's: a picture of any size in, a map out, a HardSigmoid."""
    model = onnx.parser.parse_model(DETECTOR)
    rng = np.random.default_rng(5)
    for name, shape in (("conv_w", (4, 3, 8, 8)), ("head_w", (1, 4, 1, 1))):
        weight = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model
