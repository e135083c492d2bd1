"""Attributes of two nodes, compared by bits; an axis counted from the end is one counted from the start."""

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir

from graphdoc.surgeon.align_ops import is_default
from graphdoc.surgeon.diff_weights import content, distance
from graphdoc.surgeon.pieces import attribute_type
from graphdoc.surgeon.types import dtype_name

T = ir.AttributeType

RankOf = Callable[[ir.Value | None], int | None]
"""The rank of a value; None when it is not known."""

GRAPHS = (T.GRAPH, T.GRAPHS)

_REDUCED = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")

_OF_INPUT = frozenset(
    {"Softmax", "LogSoftmax", "Hardmax", "Concat", "Gather", "GatherElements", "ScatterElements", "Split"}
    | {"SplitToSequence", "Flatten", "ArgMax", "ArgMin", "TopK", "LayerNormalization", "RMSNormalization"}
    | {"LpNormalization", "Compress", "Squeeze", "QuantizeLinear", "DequantizeLinear"}
    | {f"Reduce{kind}" for kind in _REDUCED}
)
"""Operators of ai.onnx whose ``axis`` or ``axes`` count the axes of their first input."""

_OF_OUTPUT = frozenset({"Unsqueeze", "OneHot"})
"""Operators of ai.onnx whose ``axis`` or ``axes`` count the axes of their output."""


def exact_attributes(node: ir.Node, version: int | None, rank: RankOf) -> dict[str, Any]:
    """Return name → what the attribute holds to the bit, defaults filled in; graphs are left out.

    version: of the node's domain. Equal content gives equal entries, and the reverse.
    """
    found = dict(_defaults(node, version))
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            found[name] = ("@", attribute.ref_attr_name)
        elif attribute.type not in GRAPHS:
            found[name] = _bits(attribute.type, attribute.value)
    return {name: _from_start(node, name, entry, rank) for name, entry in found.items()}


def _defaults(node: ir.Node, version: int | None) -> dict[str, Any]:
    if version is None:
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "" if is_default(node.domain) else node.domain)
    except onnx.defs.SchemaError:
        return {}
    held = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {
        name: _bits(attribute_type(p), onnx.helper.get_attribute_value(p))
        for name, p in held.items()
        if p.type
    }


def _octets(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


_READ: Mapping[T, Callable[[Any], Any]] = {
    T.INT: int,
    T.FLOAT: lambda v: struct.pack("<f", v),
    T.STRING: _octets,
    T.INTS: lambda v: tuple(int(i) for i in v),
    T.FLOATS: lambda v: tuple(struct.pack("<f", i) for i in v),
    T.STRINGS: lambda v: tuple(_octets(i) for i in v),
    T.TENSOR: lambda v: Held(v),
    T.TENSORS: lambda v: tuple(Held(i) for i in v),
    T.SPARSE_TENSOR: lambda v: _sparse(v),
    T.SPARSE_TENSORS: lambda v: tuple(_sparse(i) for i in v),
}


class Held(tuple[Any, ...]):
    """The dtype, shape and digest of a tensor, which it is equal by; and the tensor itself, for words."""

    tensor: ir.TensorProtocol

    def __new__(cls, tensor: ir.TensorProtocol) -> "Held":
        """Read the tensor once. Raises ModelError for data that is not there."""
        made = super().__new__(cls, content(tensor))
        made.tensor = tensor
        return made

    def __str__(self) -> str:
        """Return dtype and shape, and the elements where they are few: ``float32[2] {1.0, 2.0}``."""
        code, shape, _ = self
        text = f"{dtype_name(code)}[{'×'.join(map(str, shape))}]"
        if not 0 < math.prod(shape) <= FEW:
            return text
        return f"{text} {{{', '.join(map(_element, self.tensor.numpy().reshape(-1)))}}}"


FEW = 4
"""Elements of a tensor up to which all of them are shown."""


def _element(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _moved(left: Held, right: Held) -> str:
    """Return how far two tensors of one dtype and shape lie apart, "" where they cannot be subtracted."""
    arrays = [side.tensor.numpy() for side in (left, right)]
    if left[:2] != right[:2] or arrays[0].dtype.kind in "OSUc":
        return ""
    relative, largest, differing = distance(*arrays)
    parts = [f"{differing} of {arrays[0].size} elements differ"]
    if relative == 0.0 and differing == 0:
        parts = ["only the signs of zeros or the bits of NaN differ"]
    elif relative is not None and largest is not None:
        parts.append(f"by at most {largest:.3g}")
        if math.isfinite(relative):
            parts.append(f"the change's norm is {relative:.2g} of the original's")
    return f" ({', '.join(parts)})"


def _bits(kind: T, value: Any) -> Any:
    """Return the type of an attribute and its content as bits."""
    return int(kind), _READ[kind](value) if kind in _READ else repr(value)


def _sparse(value: Any) -> Any:
    return tuple(value.dims), content(value.values), content(value.indices)


def _from_start(node: ir.Node, name: str, entry: Any, rank: RankOf) -> Any:
    """Return an entry with its axes counted from the start, where the rank is known."""
    if name not in ("axis", "axes") or not is_default(node.domain) or entry[0] not in (T.INT, T.INTS):
        return entry
    axes = entry[1] if isinstance(entry[1], tuple) else (entry[1],)
    if all(axis >= 0 for axis in axes):
        return entry
    known = None
    if node.op_type in _OF_INPUT:
        known = rank(node.inputs[0] if node.inputs else None)
    elif node.op_type in _OF_OUTPUT:
        known = rank(node.outputs[0])
    if known is None:
        return entry
    counted = tuple(axis + known if axis < 0 else axis for axis in axes)
    return entry[0], counted if isinstance(entry[1], tuple) else counted[0]


def changed_attributes(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, str]:
    """Return name → what changed in words, for entries of :func:`exact_attributes` that differ."""
    found = {}
    for name in sorted(left.keys() | right.keys()):
        p, q = left.get(name), right.get(name)
        if p != q:
            found[name] = f"{name} {shown(p)} → {shown(q)}{_near(p, q)}"
    return found


def shown(entry: Any) -> str:
    """Return an entry in words: numbers so that different ones look different."""
    if entry is None:
        return "–"
    kind, value = entry
    if kind == "@":
        return f"@{value}"
    if kind in (T.FLOAT, T.STRING):
        return _item(value, kind)
    if kind in (T.FLOATS, T.STRINGS, T.INTS):
        text = f"[{', '.join(_item(item, kind) for item in value)}]"
        return text if len(text) <= 60 else f"{text[:57]}…"
    if kind == T.TENSORS:
        return f"[{', '.join(map(str, value))}]"
    return f"a sparse tensor {list(value[0])}" if kind == T.SPARSE_TENSOR else str(value)


def _item(value: Any, kind: T) -> str:
    if kind in (T.FLOAT, T.FLOATS):
        return str(np.frombuffer(value, "<f4")[0])
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _near(left: Any, right: Any) -> str:
    if left is None or right is None or left[0] != right[0]:
        return ""
    if left[0] == T.TENSOR:
        return _moved(left[1], right[1])
    if left[0] == T.SPARSE_TENSOR:
        names = ("shapes", "values", "indices")
        return (
            f" (other {' and '.join(n for n, p, q in zip(names, left[1], right[1], strict=True) if p != q)})"
        )
    if left[0] != T.FLOAT:
        return ""
    apart = abs(int(np.frombuffer(left[1], "<i4")[0]) - int(np.frombuffer(right[1], "<i4")[0]))
    return " (one unit in the last place)" if apart == 1 else ""
