"""Tensors in memory that know the message they came from (``proto``) and never change it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.surgeon.external import ExternalWeights, WeightFiles


class StoredTensor(ir.serde.TensorProtoTensor):
    """A tensor whose bytes lie in a TensorProto.

    A new name (``value.name = …`` passes it on to the tensor) stays here: onnx_ir would write it into the
    message, which belongs to whoever loaded the model.
    """

    __slots__ = ("_array", "_new_name")

    def __init__(self, proto: onnx.TensorProto) -> None:
        self._array: ReferenceType[np.ndarray[Any, Any]] | None = None
        self._new_name: str | None = None
        super().__init__(proto)

    @property
    def name(self) -> str:
        """The name in the graph."""
        return str(self._proto.name) if self._new_name is None else self._new_name

    @name.setter
    def name(self, value: str | None) -> None:
        if (value or "") != self._proto.name:
            self._new_name = value or ""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the content; the same array as before while somebody holds it, since each read copies."""
        array = self._array() if self._array else None
        if array is None:
            array = super().numpy()
            self._array = ref(array)
        return array

    @property
    def proto(self) -> onnx.TensorProto:
        """The message as it was loaded."""
        return self._proto

    @property
    def raw(self) -> onnx.TensorProto:
        """The message under the present name; a copy when the name is a new one."""
        if self.name == self._proto.name:
            return self._proto
        copy = onnx.TensorProto()
        copy.CopyFrom(self._proto)
        copy.name = self.name
        return copy


class StoredStrings(ir.StringTensor):
    """A string tensor and its message."""

    __slots__ = ("proto",)

    def __init__(self, proto: onnx.TensorProto) -> None:
        self.proto = proto
        super().__init__(
            proto.string_data,
            shape=ir.Shape(proto.dims),
            name=proto.name or None,
            doc_string=proto.doc_string or None,
            metadata_props={entry.key: entry.value for entry in proto.metadata_props} or None,
        )


@dataclass(frozen=True, slots=True)
class SparseTensor:
    """A sparse tensor (SparseTensorProto, ONNX IR version 5 on).

    indices: one linear index per value, or one row of coordinates per value.
    """

    dims: tuple[int, ...]
    values: Any
    indices: Any
    proto: onnx.SparseTensorProto

    def dense(self) -> ir.TensorProtocol:
        """Return the tensor with its zeros written out."""
        values = self.values.numpy()
        array = np.zeros(self.dims, dtype=values.dtype)
        indices = self.indices.numpy()
        if indices.ndim == 1:
            array.reshape(-1)[indices] = values
        else:
            array[tuple(indices.T)] = values
        return ir.Tensor(array, dtype=self.values.dtype, name=self.values.name)


class Densified(ir.LazyTensor):
    """A sparse initializer as a dense tensor, written out when it is first read."""

    __slots__ = ("parts", "sparse")

    def __init__(self, proto: onnx.SparseTensorProto, files: WeightFiles) -> None:
        tensor = read_sparse(proto, files)
        self.sparse = proto
        self.parts: tuple[ir.TensorProtocol, ...] = (tensor.values, tensor.indices)
        dense: Callable[[], ir.TensorProtocol] = tensor.dense
        super().__init__(
            dense, dtype=tensor.values.dtype, shape=ir.Shape(tensor.dims), cache=True, name=proto.values.name
        )


def read_tensor(proto: onnx.TensorProto, files: WeightFiles) -> ir.TensorProtocol:
    """Return a tensor; its bytes stay in the message or in their file."""
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return ExternalWeights(proto, files)
    if proto.data_type == onnx.TensorProto.STRING:
        return StoredStrings(proto)
    return StoredTensor(proto)


def read_sparse(proto: onnx.SparseTensorProto, files: WeightFiles) -> SparseTensor:
    """Return a sparse tensor."""
    values, indices = read_tensor(proto.values, files), read_tensor(proto.indices, files)
    return SparseTensor(tuple(proto.dims), values, indices, proto)


def renamable(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that can be given a name: one of ``onnx_ir`` would write it into the message."""
    return StoredTensor(tensor.raw) if type(tensor) is ir.serde.TensorProtoTensor else tensor


def detached(model: ir.Model) -> ir.Model:
    """Return a copy whose graphs can be edited and renamed on their own; the bytes of weights are shared."""
    copy = model.clone()
    copy.meta.update(model.meta)
    for graph in copy.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = renamable(value.const_value)
    return copy
