"""Open and save models: a file on the disk ↔ ``onnx_ir.Model``."""

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.external import external_tensors, locate, reference
from graphdoc.surgeon.files import parse, read_file
from graphdoc.surgeon.layout import Layout
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.saver import PROTOBUF_LIMIT, save_model
from graphdoc.surgeon.writer import write_model

Loadable = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


class Source:
    """A model under its name: file, protobuf and graph, each made once and only when asked for.

    path: the file, None for a model that is in memory. name: the file's name, or the graph's.
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
        """The model as protobuf, its external data not loaded; not to be changed.

        Raises ModelError when it cannot be read or is no ONNX model.
        """
        if self._given_proto is not None:
            return self._given_proto
        if self._given_model is not None:
            return write_model(self._given_model)
        if self._data is not None:
            return parse(self._data, self.name)
        return read_file(self.path or Path(self.name))

    @cached_property
    def model(self) -> ir.Model:
        """The model as graph; weights stay where they lie until they are read.

        Raises ModelError when it is not sound, or its external data is missing, too short or out of place.
        """
        if self._given_model is not None:
            return self._given_model
        return read_model(self.proto, self.folder)

    @property
    def has_functions(self) -> bool:
        """Whether the model has functions of its own."""
        if self._given_model is not None:
            return bool(self._given_model.functions)
        return bool(self.proto.functions)

    @property
    def checked(self) -> onnx.ModelProto:
        """The protobuf of a model that is sound.

        Raises ModelError as :attr:`model` does.
        """
        if self._given_model is None:
            _ = self.model
        return self.proto

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The model's file, then its external data files, sorted; those that cannot be found are left out."""
        return () if self.path is None else (self.path, *self._data_files(self.path.parent))

    def _data_files(self, folder: Path) -> Iterator[Path]:
        for location in sorted({reference(tensor).location for tensor in external_tensors(self.proto)}):
            try:
                path = locate(location, folder)
            except ModelError:
                continue
            if path.is_file():
                yield path

    @cached_property
    def size(self) -> int:
        """Bytes of the model, its external data included."""
        if self.path is None:
            return len(self._bytes())
        return sum(path.stat().st_size for path in self.files)

    @cached_property
    def sha256(self) -> str:
        """Hash of the file; with external data, of the list of all hashes and names, one a line."""
        if self.path is None:
            return hashlib.sha256(self._bytes()).hexdigest()
        first = _hash(self.path)
        if len(self.files) == 1:
            return first
        rest = [f"{_hash(path)}  {path.relative_to(self.path.parent).as_posix()}" for path in self.files[1:]]
        return hashlib.sha256("\n".join([first, *rest]).encode()).hexdigest()

    def _bytes(self) -> bytes:
        if self._data is not None:
            return self._data
        data: bytes = self.proto.SerializeToString(deterministic=True)
        return data


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_source(model: "Loadable | Source") -> Source:
    """Return a model, given as path, bytes, ModelProto or onnx_ir.Model, ready to be read in any form.

    Nothing is read yet: a file that is missing or no model raises ModelError when it is first used.
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
    return Source(path, path.name)


def load(model: Loadable) -> ir.Model:
    """Return a model in memory; weights are read when they are used.

    Nodes out of order are sorted, sparse initializers are dense; everything else is as in the file, and
    :func:`save` gives back what was not edited as it was.

    Raises ModelError when it cannot be read, is not sound, or its external data is missing or out of place.
    """
    return open_source(model).model


def load_proto(model: Loadable) -> onnx.ModelProto:
    """Return a model as protobuf, its external data not loaded.

    Raises ModelError when it cannot be read.
    """
    return open_source(model).proto


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    limit: int = PROTOBUF_LIMIT,
    layout: Layout | None = None,
) -> None:
    """Write a model, all of it or nothing.

    The file appears under its name only when it is complete; a failure leaves what was there before.
    External data keeps its relative location and is copied when the folder is another one. A model whose
    weights in memory exceed ``limit`` bytes (what one protobuf message holds) gets them in ``<name>.data``.
    layout: put the weights elsewhere: ``Layout("w.data")`` in one file, ``Layout("w/")`` in a file each,
    ``Layout()`` all in the model.

    Raises ModelError when the file cannot be written, a data file of another model is in the way, or the
    model is too large even without its weights.
    """
    save_model(model, Path(path), limit=limit, layout=layout)
