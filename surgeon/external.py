"""Weights in files of their own, beside the model (external data of TensorProto, ONNX IR version 3 on).

The location is a path relative to the folder of the model. Anything that leaves the folder is refused,
since a model from the network must not read other files of its user.
"""

import mmap
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.storage import grouped, tensor_bytes

SUB_BYTE = (2, 4, 6)
"""Bit widths whose elements share bytes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the bytes of one tensor lie.

    offset and length are in bytes; length None: as many as dims and dtype ask for.
    """

    tensor: str
    location: str
    offset: int
    length: int | None


def reference(tensor: onnx.TensorProto) -> Reference:
    """Return what the tensor says about its file; raises ModelError for numbers that are none."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else None
    except ValueError:
        offset, length = -1, None
    if offset < 0 or (length is not None and length < 0):
        raise ModelError(
            f"external data of '{tensor.name}' has an offset or length that is no size",
            where=f"offset '{entries.get('offset', '')}', length '{entries.get('length', '')}'",
            next_step="export the model again",
        )
    return Reference(tensor.name, entries.get("location", ""), offset, length)


class WeightFile:
    """One external file, mapped into memory when the first tensor is read, and only once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: Any = None

    @property
    def mapped(self) -> Any:
        """The content, None as long as nobody has read it."""
        return self._bytes

    def bytes(self) -> Any:
        """Return the content as a buffer that reads from the disk page by page."""
        if self._bytes is None:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._bytes


class WeightFiles:
    """The external files of one model folder, each opened at most once."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.tensors: list[onnx.TensorProto] = []
        self._files: dict[str, WeightFile] = {}

    def file(self, location: str) -> WeightFile:
        """Return the file of a location; raises ModelError when it lies outside the folder."""
        if location not in self._files:
            self._files[location] = WeightFile(locate(location, self.folder))
        return self._files[location]

    def check(self) -> None:
        """Raise ModelError for the first tensor read whose data is missing, too short or out of place.

        Only sizes are looked at: no data is read.
        """
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            wanted = reference(tensor)
            where = f"initializer {tensor.name}, location '{wanted.location}'"
            if wanted.location not in sizes:
                sizes[wanted.location] = _file_size(locate(wanted.location, self.folder, tensor.name), where)
            _check_length(tensor, wanted, sizes[wanted.location], where)


def _file_size(path: Path, where: str) -> int:
    try:
        status = path.stat()
    except OSError as error:
        raise missing(path, where, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise missing(path, where, OSError(0, "not a regular file"))
    return status.st_size


def locate(location: str, folder: Path | None, tensor: str = "") -> Path:
    """Return the path of a location inside ``folder``.

    Refused, with ModelError: no location, an absolute path (of any system), a path that leaves the folder,
    a link that leads out of it.
    """
    concern = f"initializer {tensor}, location '{location}'" if tensor else f"location '{location}'"
    if not location:
        raise ModelError(
            "external data without a location", where=concern, next_step="export the model again"
        )
    if folder is None:
        raise ModelError(
            "external data needs the model's folder, and this model came without a path",
            where=concern,
            next_step="load the model from its file",
        )
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    path = folder / location
    root = folder.resolve()
    if absolute or ".." in _depths(location) or not path.resolve().is_relative_to(root):
        raise ModelError(
            "refused: external data lies outside the model's folder",
            where=concern,
            next_step="move the data beside the model, then  graphdoc lint MODEL",
        )
    return path


def _depths(location: str) -> set[str]:
    """Return {".."} when the location climbs above its start, at any point of the way."""
    depth = 0
    for part in location.replace("\\", "/").split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return {".."}
    return set()


class ExternalWeights(ir.ExternalTensor):
    """An external tensor that shares one mapping of its file with all others.

    onnx_ir maps the file once per tensor, which runs out of file handles past about a thousand tensors, and
    refuses files with several hard links, which package managers make.

    Reading raises ModelError when the file is missing, too short, or outside the folder.
    """

    __slots__ = ("_content", "_files", "_reference", "proto")

    def __init__(self, proto: onnx.TensorProto, files: WeightFiles) -> None:
        self.proto = proto
        files.tensors.append(proto)
        self._reference = reference(proto)
        self._files = files
        self._content: Any = None
        super().__init__(
            self._reference.location,
            self._reference.offset,
            self._reference.length,
            ir.DataType(proto.data_type),
            shape=ir.Shape(proto.dims),
            name=proto.name,
            doc_string=proto.doc_string or None,
            metadata_props={entry.key: entry.value for entry in proto.metadata_props},
            base_dir=str(files.folder or ""),
        )

    def _buffer(self) -> memoryview:
        """Return the tensor's bytes without copying them."""
        if self.nbytes == 0:
            return memoryview(b"")
        where = f"initializer {self.name}, location '{self.location}'"
        path = locate(str(self.location), self._files.folder, self.name)
        try:
            content = self._files.file(str(self.location)).bytes()
        except OSError as error:
            raise missing(path, where, error) from error
        end = self._reference.offset + self.nbytes
        if end > len(content):
            raise too_short(where, end, len(content))
        return memoryview(content)[self._reference.offset : end]

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the content, read-only, mapped where elements are whole bytes."""
        if self._content is None:
            self._content = self._array_of(self._buffer())
        array: np.ndarray[Any, Any] = self._content
        return array

    def release(self) -> None:
        """Let go of the pages that were read, so that they no longer count; reading brings them back."""
        content = self._files.file(str(self.location)).mapped
        if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            start = self._reference.offset // mmap.PAGESIZE * mmap.PAGESIZE
            content.madvise(mmap.MADV_DONTNEED, start, self._reference.offset + self.nbytes - start)

    def _array_of(self, buffer: memoryview) -> np.ndarray[Any, Any]:
        shape = tuple(int(d) for d in self.shape.numpy())
        if self.dtype.bitwidth in SUB_BYTE:
            packed = onnx.TensorProto(data_type=self.dtype.value, dims=shape, raw_data=bytes(buffer))
            return ir.serde.TensorProtoTensor(packed).numpy()
        return np.frombuffer(buffer, dtype=self.dtype.numpy().newbyteorder("<")).reshape(shape)

    def __array__(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return bytes(self._buffer())

    def tofile(self, file: IO[bytes]) -> None:
        """Write the bytes to an open file."""
        file.write(self._buffer())


def missing(path: Path, where: str, error: OSError) -> ModelError:
    """Return the error for a file that cannot be opened."""
    return ModelError(
        f"external data cannot be read: {(error.strerror or str(error)).lower()}",
        where=where,
        next_step=f"put '{path.name}' beside the model, or export it again",
    )


def too_short(where: str, needed: int, size: int) -> ModelError:
    """Return the error for a tensor that reaches past the end of its file."""
    return ModelError(
        f"external data ends at byte {grouped(size)}, but the tensor reaches to byte {grouped(needed)}",
        where=where,
        next_step="fetch or export the data file again",
    )


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor with external data: initializers and attributes, in subgraphs and functions too."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            sparse = [t for s in graph.sparse_initializer for t in (s.values, s.indices)]
            stored = (*graph.initializer, *sparse)
            yield from (t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL)
            nodes.extend(graph.node)
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)
                tensors = [attribute.t] if attribute.HasField("t") else []
                for tensor in (*tensors, *attribute.tensors):
                    if tensor.data_location == onnx.TensorProto.EXTERNAL:
                        yield tensor
        nodes = []


def _check_length(tensor: onnx.TensorProto, wanted: Reference, size: int, where: str) -> None:
    needed = tensor_bytes(tensor)
    if needed is not None and wanted.length is not None and wanted.length != needed:
        raise ModelError(
            f"external data of '{tensor.name}' has {wanted.length} bytes; dims and type ask for {needed}",
            where=where,
            next_step="export the model again",
        )
    end = wanted.offset + (needed if needed is not None else wanted.length or 0)
    if end > size:
        raise too_short(where, end, size)
