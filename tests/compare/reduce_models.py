"""A model of 234 nodes of many kinds, and twenty ways to break one of them."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

BLOCKS = 13
WIDTH = 16

_BLOCK = (
    # op, inputs, output, attributes; {x} is the block's input, {i} its number
    ("Transpose", "{x}", "tr", {"perm": [0, 2, 1]}),
    ("MatMul", "tr W{i}", "mm", {}),
    ("Add", "mm B{i}", "ad", {}),
    ("Gather", "ad order{i}", "ga", {"axis": 1}),
    ("ReduceMean", "ga", "mean", {"axes": [-1], "keepdims": 1}),
    ("Sub", "ga mean", "sub", {}),
    ("Mul", "sub sub", "sq", {}),
    ("ReduceMean", "sq", "var", {"axes": [-1], "keepdims": 1}),
    ("Add", "var eps{i}", "vareps", {}),
    ("Sqrt", "vareps", "sd", {}),
    ("Div", "sub sd", "norm", {}),
    ("LeakyRelu", "norm", "lr", {"alpha": 0.1}),
    ("Softmax", "lr", "sm", {"axis": -1}),
    ("Concat", "lr sm", "cc", {"axis": 2}),
    ("Slice", "cc from{i} to{i} on{i}", "sl", {}),
    ("Clip", "sl low{i} high{i}", "cl", {}),
    ("Pow", "cl two{i}", "po", {}),
    ("Max", "po lr", "mx", {}),
)


def whole() -> onnx.ModelProto:
    """Return the model: 13 blocks of 18 nodes, x [N, 16, 16] → y."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(BLOCKS):
        weights |= _weights(rng, i)
        for op, inputs, output, attributes in _BLOCK:
            names = [_name(n.format(x=x, i=i), i) for n in inputs.split()]
            nodes.append(
                helper.make_node(op, names, [f"{output}{i}"], name=f"{output}{i}_node", **attributes)
            )
        x = f"mx{i}"
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", WIDTH, WIDTH])],
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _name(name: str, i: int) -> str:
    """Return an inner value's name with the block's number; weights and the block's input have theirs."""
    return name if name == "x" or name[-1].isdigit() else f"{name}{i}"


def _weights(rng: np.random.Generator, i: int) -> dict[str, Any]:
    size = np.array([WIDTH], np.int64)
    return {
        f"W{i}": (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32),
        f"B{i}": rng.standard_normal(WIDTH).astype(np.float32),
        f"order{i}": rng.permutation(WIDTH).astype(np.int64),
        f"eps{i}": np.array(1e-5, np.float32),
        f"from{i}": size // 2,
        f"to{i}": size + size // 2,
        f"on{i}": np.array([2], np.int64),
        f"low{i}": np.array(-1.2, np.float32),
        f"high{i}": np.array(1.2, np.float32),
        f"two{i}": np.array(3, np.float32),
    }


def _weight(name: str, change: Callable[[Any], Any]) -> Callable[[onnx.ModelProto], None]:
    def apply(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        value = change(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))

    return apply


def _node(name: str, change: Callable[[onnx.NodeProto], None]) -> Callable[[onnx.ModelProto], None]:
    return lambda model: change(next(n for n in model.graph.node if n.name == f"{name}_node"))


def _attribute(node: str, name: str, value: Any) -> Callable[[onnx.ModelProto], None]:
    def change(found: onnx.NodeProto) -> None:
        kept = [a for a in found.attribute if a.name != name]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(name, value)])

    return _node(node, change)


def _operator(node: str, op: str) -> Callable[[onnx.ModelProto], None]:
    return _node(node, lambda found: setattr(found, "op_type", op))


def _inputs(node: str, *names: str) -> Callable[[onnx.ModelProto], None]:
    def change(found: onnx.NodeProto) -> None:
        del found.input[:]
        found.input.extend(names)

    return _node(node, change)


FAULTS: dict[str, tuple[str, Callable[[onnx.ModelProto], Any]]] = {
    "weight of 1.01": ("mm3", _weight("W3", lambda w: w * np.float32(1.01))),
    "one entry of a weight": ("mm7", _weight("W7", lambda w: w + np.eye(WIDTH, k=3, dtype=np.float32) / 50)),
    "transposed weight": ("mm0", _weight("W0", lambda w: w.T)),
    "weight through half": ("mm5", _weight("W5", lambda w: w.astype(np.float16).astype(np.float32))),
    "weight on a grid of 8 bits": ("mm9", _weight("W9", lambda w: np.round(w * 64) / 64)),
    "bias shifted": ("ad4", _weight("B4", lambda b: b + np.float32(0.01))),
    "bias forgotten": ("ad12", _weight("B12", np.zeros_like)),
    "epsilon": ("vareps2", _weight("eps2", lambda e: e * 1000)),
    "order of a gather": ("ga6", _weight("order6", lambda o: np.roll(o, 1))),
    "slice off by one": (
        "sl8",
        lambda model: [_weight(name, lambda x: x - 1)(model) for name in ("from8", "to8")],
    ),
    "clip bound": ("cl10", _weight("high10", lambda x: x * np.float32(0.3))),
    "exponent": ("po1", _weight("two1", lambda x: x - 1)),
    "axis of a mean": ("mean11", _attribute("mean11", "axes", [-2])),
    "axis of a softmax": ("sm3", _attribute("sm3", "axis", 1)),
    "slope": ("lr2", _attribute("lr2", "alpha", 0.12)),
    "permutation": ("tr5", _attribute("tr5", "perm", [0, 1, 2])),
    "minimum for maximum": ("mx7", _operator("mx7", "Min")),
    "product for quotient": ("norm6", _operator("norm6", "Mul")),
    "operands swapped": ("sub9", _inputs("sub9", "mean9", "ga9")),
    "concatenated the wrong way": ("cc4", _inputs("cc4", "sm4", "lr4")),
}
"""What is done → the node that is wrong by itself then, and how it is done."""


def broken(fault: str) -> tuple[onnx.ModelProto, str]:
    """Return the model with a fault, and the name of the guilty node."""
    model = copy.deepcopy(whole())
    name, apply = FAULTS[fault]
    apply(model)
    return model, f"{name}_node"
