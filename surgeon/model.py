"""Open and save models: a file on the disk ↔ ``onnx_ir.Model``."""

import hashlib
import os
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.external import external_tensors, locate, reference
from graphdoc.surgeon.reader import read_model

Loadable = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


class Source:
    """A model under its name: file, protobuf and graph, each made once and only when asked for.

    path: the file, None for a model that is in memory. name: the file's name, as shown to people.
    """

    def __init__(
        self,
        path: Path | None,
        name: str,
        *,
        data: bytes | None = None,
        proto: onnx.ModelProto | None = None,
        model: ir.Model | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self._data = data
        self._given_proto = proto
        self._given_model = model

    @property
    def folder(self) -> Path | None:
        """Where external data lies."""
        return self.path.parent if self.path else None

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model as protobuf, its external data not loaded."""
        if self._given_proto is not None:
            return self._given_proto
        if self._given_model is not None:
            return ir.serde.serialize_model(self._given_model)
        return _parse(self._bytes(), self.name)

    @cached_property
    def model(self) -> ir.Model:
        """The model as graph; weights stay where they lie until they are read."""
        return self._given_model or read_model(self.proto, self.folder)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The model's file and its external data files, sorted; missing ones are left out."""
        if self.path is None:
            return ()
        locations = {reference(tensor).location for tensor in external_tensors(self.proto)}
        paths = [locate(location, self.folder) for location in sorted(locations)]
        return (self.path, *(path for path in paths if path.is_file()))

    @cached_property
    def size(self) -> int:
        """Bytes of the model, its external data included."""
        if self.path is None:
            return len(self._bytes())
        return sum(path.stat().st_size for path in self.files)

    @cached_property
    def sha256(self) -> str:
        """Hash of the file; with external data, of the list of all files and their hashes."""
        if self.path is None or self.path.is_dir():
            return hashlib.sha256(self._bytes()).hexdigest()
        hashes = [(path.relative_to(self.path.parent).as_posix(), _hash(path)) for path in self.files]
        if len(hashes) == 1:
            return hashes[0][1]
        listing = "".join(f"{digest}  {name}\n" for name, digest in [("", hashes[0][1]), *hashes[1:]])
        return hashlib.sha256(listing.encode()).hexdigest()

    def _bytes(self) -> bytes:
        if self._data is not None:
            return self._data
        if self.path is not None:
            return self.path.read_bytes()
        return self.proto.SerializeToString(deterministic=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError("not an ONNX model: it is not protobuf", where=name) from error


def open_source(model: "Loadable | Source") -> Source:
    """Return a model, given as path, bytes, ModelProto or onnx_ir.Model, ready to be read in any form.

    Raises ModelError when the file is missing or is not a model.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, bytes):
        return Source(None, "model", data=model)
    if isinstance(model, onnx.ModelProto):
        return Source(None, model.graph.name or "model", proto=model)
    if isinstance(model, ir.Model):
        return Source(None, model.graph.name or "model", model=model)
    path = Path(model)
    if not path.exists():
        raise ModelError(f"no such file: '{path}'", where=str(path))
    return Source(path, path.name)


def load(model: Loadable) -> ir.Model:
    """Return a model in memory; weights are read when they are used.

    Raises ModelError when it cannot be read or is not sound.
    """
    return open_source(model).model


def load_proto(model: Loadable) -> onnx.ModelProto:
    """Return a model as protobuf, its external data not loaded.

    Raises ModelError when it cannot be read.
    """
    return open_source(model).proto


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write a model."""
    Path(path).write_bytes(ir.serde.serialize_model(model).SerializeToString())
