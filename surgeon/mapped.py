"""A model's file opened without reading its weights: they stay in the file, mapped into memory.

Protobuf would copy each weight out of the file, and again whenever it is read. Here the file's bytes are
walked first (Protocol Buffers' wire format); long ``raw_data`` of the main graph's initializers are left out
of what protobuf parses, and the graph's tensors are views of the mapped file instead.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.memory import ModelFile
from graphdoc.surgeon.external import ExternalWeights, external_tensors
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.storage import BITS

LONG = 1 << 14
"""Bytes from which a weight stays in the file."""

_GRAPH, _INITIALIZER, _DATA_TYPE, _NAME, _RAW_DATA = 7, 5, 2, 8, 9
"""Numbers of fields: of ModelProto, of GraphProto, and of TensorProto (onnx.proto3)."""

_ELSEWHERE = b"\x70\x01"
"""``data_location = EXTERNAL`` of a TensorProto on the wire."""

_BYTES = 2
"""The wire type of what has a length."""


class Unmapped(Exception):  # noqa: N818 (no error: the file is read in the ordinary way)
    """The file is not one whose weights can stay in it."""


@dataclass(slots=True)
class MappedModel:
    """A model whose long weights lie in its file.

    model: its tensors are read-only. path, stamp: the file, and what it was when it was opened.
    content: the file's bytes.
    """

    model: ir.Model
    path: Path
    stamp: tuple[int, ...]
    content: ModelFile

    def let_go(self) -> None:
        """Let the pages read so far go: they take memory until then. Reading brings them back."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.content.madvise(mmap.MADV_DONTNEED)

    def check(self) -> None:
        """Raise ModelError when the file has been written over since: what lies in it is no longer this."""
        if self.stamp != _stamp(self.path):
            raise ModelError(
                "the model's file was changed after it was opened",
                where=str(self.path),
                next_step="open it again, and write models under a new name, then rename them",
            )


def open_mapped(path: Path) -> MappedModel | None:
    """Return the model of a file, None where it must be read in the ordinary way.

    That is so of models with functions, external data or only short weights, and of all files that are not
    sound: the ordinary reader says what is wrong. Raises nothing of its own.
    """
    try:
        if not path.is_file():  # a pipe would keep its reader waiting
            return None
        with path.open("rb") as file:
            stamp = _stamp(path)
            size = os.fstat(file.fileno()).st_size
            if size < LONG:
                return None
            content = ModelFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = MappedModel(_read(content, path), path, stamp, content)
        found.let_go()
        return found
    except (OSError, ValueError, ModelError, Unmapped):
        return None


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(content: ModelFile, path: Path) -> ir.Model:
    kept: dict[str, tuple[int, int]] = {}
    slim = b"".join(_model(memoryview(content), kept))
    if not kept:
        raise Unmapped
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(slim)
    except Exception as error:
        raise Unmapped from error
    elsewhere = sum(1 for _ in external_tensors(proto))
    if proto.functions or elsewhere != len(kept):
        raise Unmapped
    model = read_model(proto, path.parent, external=False)
    for name, (at, size) in kept.items():
        value = model.graph.initializers.get(name)
        if value is None or not isinstance(value.const_value, ExternalWeights):  # another of that name
            raise Unmapped
        value.const_value = _tensor(content, value.const_value, at, size)
    return model


def _tensor(content: ModelFile, stub: Any, at: int, size: int) -> ir.TensorProtocol:
    """Return a tensor over the file's bytes; ``stub`` says of which dtype and shape."""
    dtype = stub.dtype.numpy().newbyteorder("<")
    shape = tuple(int(d) for d in stub.shape.numpy())
    if size != stub.nbytes:
        raise Unmapped
    array = np.frombuffer(content, dtype, size // dtype.itemsize, at).reshape(shape)
    return ir.Tensor(array, dtype=stub.dtype, name=stub.name, doc_string=stub.doc_string)


# ---- the wire -----------------------------------------------------------------------------------------


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field of a message: its number, where it starts, where its content starts and ends."""
    at = start
    while at < end:
        tag, content = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            stop = _varint(data, content, end)[1]
        elif kind == _BYTES:
            size, content = _varint(data, content, end)
            stop = content + size
        elif kind in (1, 5):
            stop = content + (8 if kind == 1 else 4)
        else:
            raise Unmapped
        if stop > end or number == 0:
            raise Unmapped
        yield number, at, content, stop
        at = stop


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Unmapped


def _model(data: memoryview, kept: dict[str, tuple[int, int]]) -> Iterator[bytes | memoryview]:
    """Yield the model's bytes without long weights; note in ``kept`` where each lies."""
    graphs = 0
    for number, start, content, stop in _fields(data, 0, len(data)):
        if number != _GRAPH:
            yield data[start:stop]
            continue
        graphs += 1
        if graphs > 1:  # protobuf would merge them
            raise Unmapped
        parts = list(_graph(data, content, stop, kept))
        yield _head(_GRAPH, sum(map(len, parts)))
        yield from parts


def _graph(
    data: memoryview, start: int, end: int, kept: dict[str, tuple[int, int]]
) -> Iterator[bytes | memoryview]:
    for number, at, content, stop in _fields(data, start, end):
        short = stop - content < LONG
        parts = None if number != _INITIALIZER or short else _initializer(data, content, stop, kept)
        if parts is None:
            yield data[at:stop]
        else:
            yield _head(_INITIALIZER, sum(map(len, parts)))
            yield from parts


def _initializer(
    data: memoryview, start: int, end: int, kept: dict[str, tuple[int, int]]
) -> list[bytes | memoryview] | None:
    """Return a tensor's bytes without its data, None where that stays."""
    fields = list(_fields(data, start, end))
    raw = [(content, stop) for number, _, content, stop in fields if number == _RAW_DATA]
    names = [bytes(data[content:stop]) for number, _, content, stop in fields if number == _NAME]
    kinds = [_varint(data, content, end)[0] for number, _, content, _ in fields if number == _DATA_TYPE]
    if not len(raw) == len(names) == len(kinds) == 1 or raw[0][1] - raw[0][0] < LONG:
        return None
    name = names[0].decode("utf-8", "replace")
    if name in kept:
        raise Unmapped
    if BITS.get(kinds[0], 0) < 8:
        return None
    kept[name] = raw[0][0], raw[0][1] - raw[0][0]
    return [*(data[at:stop] for number, at, _, stop in fields if number != _RAW_DATA), _ELSEWHERE]


def _head(number: int, size: int) -> bytes:
    """Return the tag and the length in front of a message of this many bytes."""
    found = bytearray([number << 3 | _BYTES])
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    found.append(size)
    return bytes(found)
