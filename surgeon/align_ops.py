"""What alignment knows of operators: which only change the form of a value, which stand for one another."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx.defs
import onnx.helper
import onnx_ir as ir

from graphdoc.surgeon.align_weights import Weight

CARRIERS = frozenset({"Identity", "Dropout", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators whose first output holds what their first input holds; Cast between real types is another."""

LAYOUTS = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})

COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "Min", "Max", "Sum", "Mean", "BitwiseAnd", "BitwiseOr"}
)

PARAMETERS: Mapping[str, Mapping[int, str]] = {
    "Squeeze": {1: "axes"},
    "Unsqueeze": {1: "axes"},
    "Split": {1: "split"},
    "Slice": {1: "starts", 2: "ends", 3: "axes", 4: "steps"},
    "Pad": {1: "pads", 2: "value", 3: "axes"},
    "Clip": {1: "min", 2: "max"},
    "TopK": {1: "k"},
    "Dropout": {1: "ratio", 2: "training_mode"},
    "Reshape": {1: "shape"},
    "Expand": {1: "shape"},
    "Tile": {1: "repeats"},
    "Resize": {1: "roi", 2: "scales", 3: "sizes"},
    "Upsample": {1: "scales"},
    "OneHot": {1: "depth"},
    **{
        f"Reduce{kind}": {1: "axes"}
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
}
"""Inputs that set how an operator works; where they are constant they count as its attributes, since other
opsets have them as such."""

CLASSES: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "FusedConv": ("Conv", (0, 1, 2)),
    "QLinearConv": ("Conv", (0, 3, 8)),
    "ConvInteger": ("Conv", (0, 1)),
    "NhwcConv": ("Conv", (0, 1, 2)),
    "Gemm": ("MatMul", (0, 1)),
    "FusedGemm": ("MatMul", (0, 1)),
    "FusedMatMul": ("MatMul", (0, 1)),
    "TransposeMatMul": ("MatMul", (0, 1)),
    "QLinearMatMul": ("MatMul", (0, 3)),
    "QGemm": ("MatMul", (0, 3)),
    "MatMulInteger": ("MatMul", (0, 1)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "MatMulIntegerToFloat": ("MatMul", (0, 1)),
    "MatMulNBits": ("MatMul", (0, 1)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearConcat": ("Concat", ()),
    "QEmbedLayerNormalization": ("EmbedLayerNormalization", (0, 1)),
    "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2)),
    "SkipSimplifiedLayerNormalization": ("SimplifiedLayerNormalization", (0,)),
    "BiasGelu": ("Gelu", (0,)),
    "FastGelu": ("Gelu", (0,)),
    "BiasAdd": ("Add", (0, 1)),
    "Sum": ("Add", (0, 1)),
}
"""Operators that compute what another one does in a different form: that one, and the inputs in its order."""

CODED = ("QLinear", "QGemm")
"""First letters of operators that give quantised codes."""

_INTEGERS = frozenset(
    {"Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Equal", "Less", "Greater", "LessOrEqual", "And", "Or"}
    | {"GreaterOrEqual", "Not", "Xor", "IsNaN", "IsInf", "MatMulInteger", "ConvInteger", "BitShift"}
)
"""Operators that give whole numbers or truth values whatever they get."""

REAL = frozenset({1, 10, 11, 16, 17, 18, 19, 20})
"""TensorProto.DataType codes of real numbers."""


def is_default(domain: str) -> bool:
    """Whether a domain is ONNX's own."""
    return domain in ("", "ai.onnx")


def gives_integers(op: str) -> bool:
    """Whether an operator gives whole numbers or truth values whatever it gets."""
    return op in _INTEGERS


@cache
def _defaults(domain: str, op: str, version: int) -> Mapping[str, Any]:
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return {}
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            found[name] = _plain(onnx.helper.get_attribute_value(attribute.default_value))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, str | int):
        return value
    return tuple(_plain(item) for item in value)


def parameters(node: ir.Node, version: int, constants: Mapping[int, Weight]) -> dict[str, Any]:
    """Return how a node works: its attributes, defaults filled in, and the inputs that act as such.

    constants: slot → constant content of the node's inputs. Graphs are left out.
    """
    found = dict(_defaults(node.domain, node.op_type, version))
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            found[name] = ("@", attribute.ref_attr_name)
        elif attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            found[name] = _content(attribute)
    if is_default(node.domain):
        for slot, name in PARAMETERS.get(node.op_type, {}).items():
            if slot in constants and constants[slot].literal is not None:
                found[name] = _plain(constants[slot].literal)
    return found


def _content(attribute: ir.Attr) -> Any:
    kind = attribute.type
    if kind == ir.AttributeType.TENSOR:
        return Weight(attribute.value).key
    if kind == ir.AttributeType.TENSORS:
        return tuple(Weight(tensor).key for tensor in attribute.value)
    if kind in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS):
        return ("sparse", repr(attribute.value))
    if kind in (ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS):
        return ("type", repr(attribute.value))
    return _plain(attribute.value)


def kind_of(node: ir.Node) -> tuple[str, tuple[int, ...] | None]:
    """Return the operator class of a node, and its inputs in the class's order (None: as they stand)."""
    if node.op_type in CLASSES:
        return CLASSES[node.op_type]
    if is_default(node.domain) or node.domain.startswith(("com.microsoft", "com.ms.")):
        return node.op_type, None
    return f"{node.domain}::{node.op_type}", None
