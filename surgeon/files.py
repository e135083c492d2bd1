"""Bytes → ModelProto, and words for what else a file may be."""

import mmap
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.storage import grouped

_FETCH = "fetch or copy the file again"


@dataclass(frozen=True, slots=True)
class Look:
    """A file that is not an ONNX model: how it starts, what it is, and what to do."""

    magic: bytes
    kind: str
    next_step: str
    offset: int = 0


LOOKS = (
    Look(b"version https://git-lfs", "a git-lfs pointer; the model itself was not fetched", "git lfs pull"),
    Look(
        b"PK\x03\x04",
        "a zip archive, perhaps a PyTorch checkpoint",
        "unpack it, or export the model with torch.onnx.export",
    ),
    Look(
        b"\x80\x02",
        "a Python pickle, perhaps a PyTorch checkpoint",
        "export the model with torch.onnx.export",
    ),
    Look(b"\x80\x04", "a Python pickle", "export the model to ONNX"),
    Look(b"\x89HDF", "an HDF5 file, perhaps a Keras model", "convert it with tf2onnx"),
    Look(b"TFL3", "a TensorFlow Lite model", "convert it with tf2onnx --tflite", offset=4),
    Look(
        b"ORTM",
        "a model in ONNX Runtime's own format (.ort)",
        "use the .onnx file it was made from",
        offset=4,
    ),
    Look(b"GGUF", "a GGUF file", "export the model to ONNX"),
    Look(b'{"', "a safetensors file: weights without a graph", "export the model to ONNX", offset=8),
    Look(b"\x93NUMPY", "a NumPy array", "give the model; inputs go to --inputs"),
    Look(b"\x1f\x8b", "a gzip archive", "gunzip it"),
    Look(b"BZh", "a bzip2 archive", "bunzip2 it"),
    Look(b"\xfd7zXZ", "an xz archive", "unxz it"),
    Look(b"\x28\xb5\x2f\xfd", "a zstd archive", "unzstd it"),
    Look(b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    Look(b"\x89PNG", "a PNG image", "give the model"),
    Look(b"\xff\xd8\xff", "a JPEG image", "give the model"),
    Look(b"%PDF", "a PDF document", "give the model"),
    Look(b"\x7fELF", "a program", "give the model"),
)
TEXTS = (
    Look(b"<!doctype html", "an HTML page, perhaps a download page or an error message", _FETCH),
    Look(b"<html", "an HTML page, perhaps a download page or an error message", _FETCH),
    Look(b"<?xml", "an XML file, perhaps an OpenVINO model", "give the .onnx file"),
    Look(b"ir_version:", "ONNX in protobuf text form", "onnx.load(file, format='textproto'), then onnx.save"),
    Look(b"<ir_version", "ONNX in text form", "onnx.load(file, format='onnxtxt'), then onnx.save"),
    Look(b"{", "JSON", "give the .onnx file"),
    Look(b"[", "JSON", "give the .onnx file"),
    Look(b"#!", "a script", "give the .onnx file"),
)


def read_file(path: Path) -> onnx.ModelProto:
    """Return the model of a file; its external data is not loaded.

    Raises ModelError: a missing or unreadable file, a folder, anything that is not an ONNX model.
    """
    _check_readable(path)
    try:
        with _mapped(path) as view:
            return parse(view, path.name)
    except OSError as error:
        raise ModelError(
            f"cannot read '{path.name}': {_reason(error)}",
            where=str(path),
            next_step=f"ls -l {path}",
        ) from error


def _reason(error: Exception) -> str:
    """Return the system's words for a failure."""
    return str(getattr(error, "strerror", None) or error).lower()


def _check_readable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = (
            "no such file" if isinstance(error, FileNotFoundError) else str(getattr(error, "strerror", error))
        )
        raise ModelError(f"{reason.lower()}: '{path}'", where=str(path), next_step=_nearby(path)) from error
    if stat.S_ISDIR(mode):
        models = sorted(path.glob("*.onnx"))
        step = f"graphdoc inspect {models[0]}" if models else "give the path of a .onnx file"
        raise ModelError(f"'{path}' is a folder, not a model", where=str(path), next_step=step)
    if not stat.S_ISREG(mode):
        raise ModelError(
            f"'{path}' is not a regular file", where=str(path), next_step="give the path of a .onnx file"
        )


def _nearby(path: Path) -> str:
    """Return a suggestion for a file that is not there."""
    from difflib import get_close_matches

    try:
        names = sorted(item.name for item in path.parent.glob("*.onnx"))
    except (OSError, ValueError):
        names = []
    close = get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"did you mean {path.parent / close[0]}?" if close else "check the path"


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """Give the bytes of a file without holding a copy beside the parsed model."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            yield view


def parse(data: bytes | memoryview, name: str) -> onnx.ModelProto:
    """Return the model in ``data``; raises ModelError that says what the bytes are instead."""
    if not len(data):
        raise ModelError("not an ONNX model: the file is empty", where=name, next_step=_FETCH)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        if _NO_MEMORY.search(str(error)):
            raise _too_large(len(data), name) from error
        raise _unreadable(memoryview(data), name, error) from error
    except MemoryError as error:
        raise _too_large(len(data), name) from error
    if not proto.HasField("graph"):
        raise _no_graph(memoryview(data), name)
    return proto


_NO_MEMORY = re.compile(r"alloc|memory", re.IGNORECASE)
"""How protobuf says that it found no room for a message that is right."""


def _too_large(size: int, name: str) -> ModelError:
    return ModelError(
        f"not enough memory to read the model, which has {_size(size)}",
        where=name,
        next_step="free memory, or move the weights to a file on a larger machine: "
        "graphdoc edit MODEL -o OUT --external w.data",
    )


def look(data: memoryview) -> Look | None:
    """Return what a file that is no ONNX model looks like, or None."""
    head = bytes(data[:512])
    for entry in LOOKS:
        if head[entry.offset :].startswith(entry.magic):
            return entry
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for entry in TEXTS:
        if text.replace(b" ", b"").startswith(entry.magic.replace(b" ", b"")) and _is_text(head):
            return entry
    return Look(b"", "a text file", "give the .onnx file") if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    if any(byte < 32 and byte not in b"\t\r\n\f\x1b" for byte in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and error.start > 0  # a character cut by the end of the head
    return True


def _not_a_model(found: Look, data: memoryview, name: str) -> ModelError:
    where = f"{name}, {_size(len(data))}"
    return ModelError(f"not an ONNX model: it is {found.kind}", where=where, next_step=found.next_step)


def _no_graph(data: memoryview, name: str) -> ModelError:
    found = look(data)
    if found:
        return _not_a_model(found, data, name)
    return ModelError(
        "not an ONNX model: it has no graph", where=f"{name}, {_size(len(data))}", next_step="export it again"
    )


def _unreadable(data: memoryview, name: str, error: DecodeError) -> ModelError:
    if "depth" in str(error).lower():
        return ModelError(
            "the model is nested too deeply: more than 100 messages in one another, the limit of protobuf",
            where=name,
            next_step="flatten the nested If or Loop nodes",
        )
    found = look(data)
    if found:
        return _not_a_model(found, data, name)
    damage = _scan(data, onnx.ModelProto.DESCRIPTOR, 0)
    if damage is not None and damage.plausible:
        return damage.error(data, name)
    where = f"{name}, {_size(len(data))}"
    return ModelError("not an ONNX model: the file is not protobuf", where=where, next_step=_FETCH)


@dataclass(frozen=True, slots=True)
class _Damage:
    """Where reading stops: the path of fields, the byte, and how many bytes the field asks for.

    needed: None when the bytes make no sense, rather than ending early.
    plausible: something before this point was read as a model.
    """

    path: str
    at: int
    needed: int | None
    plausible: bool

    def error(self, data: memoryview, name: str) -> ModelError:
        """Return what to tell the user."""
        size = len(data)
        if self.needed is None:
            return ModelError(
                f"not an ONNX model, or a damaged one: {self.path} cannot be read",
                where=f"{name}, {_size(size)}, at byte {grouped(self.at)}",
                next_step=_FETCH,
            )
        return ModelError(
            f"not an ONNX model: the file ends inside {self.path}, at byte {grouped(size)}",
            where=f"{name}, {_size(size)}; looks like a download that stopped",
            next_step=f"{_FETCH}; whole, it has at least {grouped(self.needed)} bytes",
        )


def _scan(data: memoryview, message: Any, base: int, path: str = "") -> _Damage | None:
    """Walk the fields of a message; return where they stop making sense, or None.

    Wire format of Protocol Buffers: a tag (field number × 8 + wire type), then a varint (0), 8 bytes (1),
    a length and as many bytes (2) or 4 bytes (5).
    """
    position, fields = 0, 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        field = message.fields_by_number.get(tag >> 3)
        label = f"field {tag >> 3} ({path}{field.name})" if field else f"field {tag >> 3}"
        if tag < 8 or tag & 7 not in (0, 1, 2, 5):
            return _Damage(f"the field after {fields} others", base + start, None, bool(fields or path))
        length = {1: 8, 5: 4}.get(tag & 7, 0)
        if tag & 7 in (0, 2):
            number, position = _varint(data, position)
            length = number if tag & 7 == 2 else 0
        end = position + length
        if end > len(data):
            return _Damage(label, base + start, base + end, field is not None)
        if field is not None and field.message_type is not None and tag & 7 == 2:
            inner = _scan(data[position:end], field.message_type, base + position, f"{path}{field.name}.")
            if inner is not None:
                return _Damage(f"{label}: {inner.path}", inner.at, None, True)
        position, fields = end, fields + 1
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number and the position behind it; one that never ends counts as 0."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            return (0, position)
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    return 0, position


def _size(count: int) -> str:
    """Return a size with three digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
