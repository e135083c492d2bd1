"""The small parts of a model: types, shapes, key–value lists, attributes without graphs."""

from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.surgeon.external import WeightFiles
from graphdoc.surgeon.tensors import read_sparse, read_tensor
from graphdoc.surgeon.texts import require_text


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


_T = ir.AttributeType

PLAIN: dict[ir.AttributeType, Callable[[Any], Any]] = {
    _T.FLOAT: lambda a: a.f,
    _T.INT: lambda a: a.i,
    _T.STRING: lambda a: _text(a.s),
    _T.FLOATS: lambda a: a.floats,
    _T.INTS: lambda a: a.ints,
    _T.STRINGS: lambda a: [_text(s) for s in a.strings],
    _T.TYPE_PROTO: lambda a: ir.TypeAndShape(*read_type(a.tp)),
    _T.TYPE_PROTOS: lambda a: [ir.TypeAndShape(*read_type(t)) for t in a.type_protos],
}
TENSORS: dict[ir.AttributeType, Callable[[Any, WeightFiles], Any]] = {
    _T.TENSOR: lambda a, files: read_tensor(a.t, files),
    _T.TENSORS: lambda a, files: [read_tensor(t, files) for t in a.tensors],
    _T.SPARSE_TENSOR: lambda a, files: read_sparse(a.sparse_tensor, files),
    _T.SPARSE_TENSORS: lambda a, files: [read_sparse(s, files) for s in a.sparse_tensors],
}

_FIELDS = {
    "f": _T.FLOAT,
    "i": _T.INT,
    "s": _T.STRING,
    "t": _T.TENSOR,
    "g": _T.GRAPH,
    "sparse_tensor": _T.SPARSE_TENSOR,
    "tp": _T.TYPE_PROTO,
    "floats": _T.FLOATS,
    "ints": _T.INTS,
    "strings": _T.STRINGS,
    "tensors": _T.TENSORS,
    "graphs": _T.GRAPHS,
    "sparse_tensors": _T.SPARSE_TENSORS,
    "type_protos": _T.TYPE_PROTOS,
}


def attribute_type(proto: onnx.AttributeProto) -> ir.AttributeType:
    """Return the type of an attribute; one that states none (ONNX IR version 1) has that of its field."""
    if proto.type:
        return ir.AttributeType(proto.type)
    present = {field.name for field, _ in proto.ListFields()}
    return next((kind for name, kind in _FIELDS.items() if name in present), _T.UNDEFINED)


def read_opsets(protos: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return domain → version; the default domain is "". Of several entries the last one holds."""
    protos = list(protos)
    require_text(item.domain for item in protos)
    return {("" if item.domain == "ai.onnx" else item.domain): item.version for item in protos}


def read_pairs(protos: Any) -> dict[str, str] | None:
    """Return key → value, or None when there are none. Raises TypeError for what is not UTF-8."""
    pairs = {entry.key: entry.value for entry in protos}
    if pairs:
        require_text((*pairs, *pairs.values()))
    return pairs or None


def read_value(info: onnx.ValueInfoProto) -> ir.Value:
    """Return a new value with the declared type and shape."""
    value = ir.Value(name=info.name)
    describe(value, info)
    return value


def describe(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    """Set type, shape and documentation of a value as declared; what is not stated stays as it is."""
    if info.HasField("type"):
        value.type, value.shape = read_type(info.type)
    if info.doc_string:
        require_text((info.doc_string,))
        value.doc_string = info.doc_string
    if info.metadata_props:
        value.metadata_props.update(read_pairs(info.metadata_props) or {})


_WRAPPED = {"sequence_type": ir.SequenceType, "optional_type": ir.OptionalType}
_LEAVES = {"tensor_type": ir.TensorType, "sparse_tensor_type": ir.SparseTensorType}


def read_type(proto: onnx.TypeProto) -> tuple[Any, ir.Shape | None]:
    """Return type and shape (that of the elements, for sequences); None where unknown or a map."""
    field = proto.WhichOneof("value")
    denotation = proto.denotation or None
    if field in _LEAVES:
        leaf = getattr(proto, field)
        shape = read_shape(leaf.shape) if leaf.HasField("shape") else None
        try:
            dtype = ir.DataType(leaf.elem_type)
        except ValueError:
            return None, shape
        return _LEAVES[field](dtype, denotation=denotation), shape
    if field in _WRAPPED:
        inner, shape = read_type(getattr(proto, field).elem_type)
        if inner is not None:
            return _WRAPPED[field](inner, denotation=denotation), shape
    return None, None


def read_shape(proto: onnx.TensorShapeProto) -> ir.Shape:
    """Return a shape: int, symbol or unknown per axis."""
    dims: list[Any] = []
    denotations: list[str | None] = []
    for dim in proto.dim:
        field = dim.WhichOneof("value")
        if field == "dim_value":
            dims.append(dim.dim_value)
        else:
            require_text((dim.dim_param,))
            dims.append(ir.SymbolicDim(dim.dim_param if field else None))
        denotations.append(dim.denotation or None)
    return ir.Shape(dims, denotations=denotations, frozen=True)
