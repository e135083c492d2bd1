"""onnx_ir attributes → Python values, as the operator functions take them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir


def to_array(tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
    """Return the tensor's content; strings become an object array of ``str``."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    raw = tensor.numpy()
    texts = [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in raw.flat
    ]
    result = np.empty(len(texts), dtype=object)
    result[:] = texts
    return result.reshape(raw.shape)


def _sparse(value: Any) -> np.ndarray[Any, Any]:
    dense = np.zeros(tuple(value.dims), dtype=value.values.numpy().dtype)
    indices = value.indices.numpy()
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = value.values.numpy()
    else:
        dense[tuple(indices.T)] = value.values.numpy()
    return dense


def _same(value: Any) -> Any:
    return value


def _listed(value: Any) -> list[Any]:
    return list(value)


_DECODERS: Mapping[ir.AttributeType, Callable[[Any], Any]] = {
    ir.AttributeType.FLOAT: _same,
    ir.AttributeType.INT: _same,
    ir.AttributeType.STRING: _same,
    ir.AttributeType.FLOATS: _listed,
    ir.AttributeType.INTS: _listed,
    ir.AttributeType.STRINGS: _listed,
    ir.AttributeType.TENSOR: to_array,
    ir.AttributeType.TENSORS: lambda value: [to_array(tensor) for tensor in value],
    ir.AttributeType.SPARSE_TENSOR: _sparse,
    ir.AttributeType.TYPE_PROTO: _same,
    ir.AttributeType.TYPE_PROTOS: _listed,
}


def decode(attribute: ir.Attr) -> Any:
    """Return the Python value of an attribute that is neither a graph nor a reference."""
    return _DECODERS[attribute.type](attribute.value)
