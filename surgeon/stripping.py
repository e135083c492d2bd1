"""Models without their weights: a stub keeps name, dtype, shape and hash; the weights can be put back later.

A stub is a sparse tensor without elements (SparseTensorProto, ONNX IR version 5 on), so a stripped model
stays valid ONNX: tools read its weights as zeros. The SHA-256 of the bytes stands in the stub's metadata.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from graphdoc.engine.errors import InputError, ModelError
from graphdoc.engine.scope import MAIN, enter
from graphdoc.surgeon.align_ops import PARAMETERS
from graphdoc.surgeon.external import WeightFiles
from graphdoc.surgeon.model import Source
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.storage import BITS, tensor_bytes
from graphdoc.surgeon.stubs import HASH
from graphdoc.surgeon.stubs import digest as digest_of
from graphdoc.surgeon.stubs import stubs as find_stubs
from graphdoc.surgeon.tensors import read_tensor
from graphdoc.surgeon.types import dtype_name

SMALLEST = 64
"""Bytes from which on whole numbers count as weights: smaller ones are sizes, axes and indices."""

_REAL = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Stub:
    """A weight that was taken out or put back. name: with the way to its graph. bytes: of its content."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


@dataclass(slots=True)
class _Place:
    """A tensor of the file: its name, whether its readers take it for a weight, and how to replace it."""

    name: str
    tensor: TensorProto
    acts: bool
    put: Callable[[onnx.SparseTensorProto], None]


def strip(source: Source) -> tuple[onnx.ModelProto, tuple[Stub, ...]]:
    """Return a copy of a model without its weights, and what was taken out.

    Real numbers of two elements or more, and whole numbers of 64 bytes or more, are weights; what sets how an
    operator works (axes, shapes, scales of Resize) stays.

    Raises ModelError when the model is not sound, or its external data is missing.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(source.checked)
    stubs = []
    files = WeightFiles(source.folder)
    for place in list(_places(proto)):
        if place.acts or not _is_weight(place.tensor):
            _embed(place.tensor, files)
        else:
            digest = _hash(read_tensor(place.tensor, files))
            stubs.append(_stub_of(place.name, place.tensor.data_type, tuple(place.tensor.dims), digest))
            place.put(_sparse(place.tensor, digest))
    return proto, tuple(stubs)


def _embed(tensor: TensorProto, files: WeightFiles) -> None:
    """Take what stays out of its data file, which is not to be handed on."""
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = read_tensor(tensor, files).tobytes()
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        tensor.raw_data = raw


def _is_weight(tensor: TensorProto) -> bool:
    if tensor.data_type not in BITS:
        return False
    count = int(np.prod(tensor.dims, dtype=np.int64)) if tensor.dims else 1
    if tensor.data_type in _REAL:
        return count > 1
    return (tensor_bytes(tensor) or 0) >= SMALLEST


def _sparse(tensor: TensorProto, digest: str) -> onnx.SparseTensorProto:
    stub = onnx.SparseTensorProto(dims=tensor.dims)
    stub.values.name, stub.values.data_type = tensor.name, tensor.data_type
    stub.values.dims.append(0)
    stub.values.raw_data = b""
    stub.indices.data_type = TensorProto.INT64
    stub.indices.dims.append(0)
    stub.indices.raw_data = b""
    stub.values.metadata_props.add(key=HASH, value=digest)
    return stub


def _stub_of(name: str, dtype: int, shape: tuple[int, ...], digest: str) -> Stub:
    size = -(-int(np.prod(shape, dtype=np.int64)) * BITS[dtype] // 8)
    return Stub(name, dtype_name(dtype), shape, size, digest)


def _hash(tensor: ir.TensorProtocol) -> str:
    """Return the SHA-256 of a tensor's bytes; those in a file are mapped, not copied."""
    if tensor.dtype.bitwidth >= 8:
        array = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        return hashlib.sha256(array.view(np.uint8).data).hexdigest()
    return hashlib.sha256(tensor.tobytes()).hexdigest()


def restore(source: Source, weights: "Source | str | os.PathLike[str]") -> tuple[ir.Model, tuple[Stub, ...]]:
    """Return a stripped model with its weights, and what was put back.

    weights: the model before it was stripped, or an .npz file of arrays by name. Weights are found by name,
    then by hash, so they may have been renamed.

    Raises ModelError when the model is not sound or holds no stub; InputError when a weight is missing or is
    not the one that was taken out.
    """
    found = _Store(weights)
    model = read_model(source.checked, source.folder)
    stubs = []
    for name, sparse, holder in list(find_stubs(model)):
        stub = _read_stub(name, sparse)
        stubs.append(stub)
        _put(holder, found.tensor(name, stub))
    if not stubs:
        raise ModelError(
            f"'{source.name}' holds no stripped weights",
            where=source.name,
            next_step="graphdoc weights strip MODEL -o OUT makes such a model",
        )
    return model, tuple(stubs)


def _read_stub(name: str, sparse: onnx.SparseTensorProto) -> Stub:
    return _stub_of(name, sparse.values.data_type, tuple(sparse.dims), digest_of(sparse))


def _put(holder: ir.Value | ir.Node, tensor: ir.TensorProtocol) -> None:
    """Let an initializer or a Constant node hold a tensor in place of its stub."""
    if isinstance(holder, ir.Value):
        holder.const_value = tensor
    else:
        del holder.attributes["sparse_value"]
        holder.attributes["value"] = ir.AttrTensor("value", tensor)


class _Store:
    """Where weights are found: by name first, then by hash."""

    def __init__(self, weights: "Source | str | os.PathLike[str]") -> None:
        self._by_name: dict[str, Callable[[], ir.TensorProtocol]] = {}
        self._by_hash: dict[str, ir.TensorProtocol] | None = None
        if isinstance(weights, Source):
            self.name = weights.name
            for name, tensor in _held(weights.model):
                self._by_name[name] = lambda tensor=tensor: tensor  # type: ignore[misc]
        else:
            self.name = Path(weights).name
            self._read_npz(Path(weights))

    def _read_npz(self, path: Path) -> None:
        try:
            file = np.load(path, allow_pickle=False)
            names = file.files
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"'{path.name}' is no .npz file of weights", where=str(path)) from error
        for name in names:
            self._by_name[name] = lambda name=name: ir.Tensor(file[name], name=name)  # type: ignore[misc]

    def tensor(self, name: str, stub: Stub) -> ir.TensorProtocol:
        """Return the content of a stub. Raises InputError when it is not there or another one."""
        made = self._by_name.get(name)
        tensor = None if made is None else _fitting(made(), stub)
        if tensor is not None and _hash(tensor) == stub.sha256:
            return tensor
        other = self._hashes().get(stub.sha256)
        if other is not None:
            return other
        what = "is missing" if made is None else "is not the one that was taken out: its hash differs"
        raise InputError(
            f"weight '{name}' {what} in '{self.name}'",
            where=f"{stub.dtype} {'×'.join(map(str, stub.shape)) or 'scalar'}, sha256 {stub.sha256[:16]}…",
            next_step="give the model that was stripped with --weights",
        )

    def _hashes(self) -> Mapping[str, ir.TensorProtocol]:
        if self._by_hash is None:
            made = [make() for make in self._by_name.values()]
            self._by_hash = {_hash(tensor): tensor for tensor in made if tensor.dtype != ir.DataType.STRING}
        return self._by_hash


def _fitting(tensor: ir.TensorProtocol, stub: Stub) -> ir.TensorProtocol | None:
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    return tensor if dtype_name(int(tensor.dtype)) == stub.dtype and shape == stub.shape else None


def _held(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph, way in _graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield f"{way}{value.name}", value.const_value
        for node in graph:
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and not attribute.is_ref():
                yield f"{way}{node.outputs[0].name}", attribute.value


def _graphs(model: ir.Model) -> Iterator[tuple[ir.Graph, str]]:
    left = [(model.graph, MAIN)] + [(f.graph, f"{f.name}/") for f in model.functions.values()]
    while left:
        graph, way = left.pop()
        yield graph, way
        for node in graph:
            first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
            for attribute in node.attributes.values():
                if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
                    left.append((attribute.value, enter(way, first, attribute.name)))


# Tensors of the protobuf


def _places(proto: onnx.ModelProto) -> Iterator[_Place]:
    """Yield every initializer and Constant node's tensor of a model that is about to change."""
    left: list[tuple[Any, str]] = [(proto.graph, MAIN)]
    left += [(function, f"{function.name}/") for function in proto.functions]
    while left:
        graph, way = left.pop()
        acting = _acting(graph)
        if isinstance(graph, onnx.GraphProto):
            for tensor in list(graph.initializer):
                yield _Place(
                    way + tensor.name, tensor, tensor.name in acting, _initializer_put(graph, tensor)
                )
        for node in graph.node:
            first = next((name for name in node.output if name), None) or node.name or node.op_type
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                left += [(body, enter(way, first, attribute.name)) for body in inner]
                if node.op_type == "Constant" and attribute.name == "value" and not attribute.ref_attr_name:
                    yield _Place(way + first, attribute.t, first in acting, _constant_put(attribute))


def _acting(graph: Any) -> set[str]:
    """Return the names of values that set how an operator works."""
    found: set[str] = set()
    for node in graph.node:
        slots = PARAMETERS.get(node.op_type, {}) if node.domain in ("", "ai.onnx") else {}
        found.update(name for slot, name in enumerate(node.input) if slot in slots)
    return found


def _initializer_put(graph: onnx.GraphProto, tensor: TensorProto) -> Callable[[onnx.SparseTensorProto], None]:
    def put(stub: onnx.SparseTensorProto) -> None:
        graph.initializer.remove(tensor)
        graph.sparse_initializer.add().CopyFrom(stub)

    return put


def _constant_put(attribute: onnx.AttributeProto) -> Callable[[onnx.SparseTensorProto], None]:
    def put(stub: onnx.SparseTensorProto) -> None:
        attribute.ClearField("t")
        attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
        attribute.sparse_tensor.CopyFrom(stub)

    return put
