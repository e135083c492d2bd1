"""The container of plan files: a head, one JSON text, runs of bytes that can be mapped into memory.

::

    0   magic "GDPLAN\\r\\n"     16  bytes of the text, u64        32  SHA-256 of all other bytes
    8   format version, u32     24  bytes after the text, u64
    12  0, u32                  64  the text, padded with zeros to 64 bytes; the runs, each padded likewise

Numbers are little-endian. Equal contents give equal files.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphdoc.engine.errors import ModelError

MAGIC = b"GDPLAN\r\n"
VERSION = 2
_HEAD = struct.Struct("<8sIIQQ")
_START = 64
_LINE = 64
_TEXT_LIMIT = 1 << 30
_PIECE = 1 << 20
_REBUILD = "make the plan again:  graphdoc build MODEL -o PLAN"


def is_plan(path: "str | os.PathLike[str]") -> bool:
    """Return whether a file begins as a plan does; a pipe, which would keep its reader waiting, is none."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # a name that no file can have
        return False


def packed(content: Mapping[str, Any], blobs: Sequence[Any]) -> list[Any]:
    """Return a plan's file as runs of bytes, in order."""
    places, at = [], 0
    for blob in blobs:
        places.append([at, blob.nbytes])
        at += _padded(blob.nbytes)
    text = json.dumps({**content, "blobs": places}, sort_keys=True, separators=(",", ":")).encode()
    head = _HEAD.pack(MAGIC, VERSION, 0, len(text), at)
    parts: list[Any] = [text, bytes(-len(text) % _LINE)]
    for blob in blobs:
        parts += [memoryview(blob), bytes(-blob.nbytes % _LINE)]
    digest = hashlib.sha256(head)
    for part in parts:
        digest.update(part)
    return [head, digest.digest(), *parts]


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def read(path: "str | os.PathLike[str]") -> tuple[dict[str, Any], list[Any]]:
    """Return a plan's text as data, and its runs of bytes, mapped, not copied; every byte has been checked.

    Raises ModelError for a file that is no plan, of another format version, cut, or changed in any bit.
    """
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _START:
                raise _damaged(path, "it is cut short")
            found = _digest(file)
            memory = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise ModelError(f"cannot read the plan: {error.strerror}", where=str(path)) from error
    text, runs = _checked(memory, size, found, path)
    try:
        content = json.loads(text)
        blobs = [_blob(runs, *place) for place in content["blobs"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, "its tables make no sense") from error
    return content, blobs


def _digest(file: IO[bytes]) -> bytes:
    """Return the checksum of a file as :func:`packed` counts it.

    Read piece by piece: pages touched through a mapping would stay in this process's memory.
    """
    digest = hashlib.sha256(file.read(_HEAD.size))
    file.seek(_START)
    piece = bytearray(_PIECE)
    while count := file.readinto(piece):  # type: ignore[attr-defined]
        digest.update(memoryview(piece)[:count])
    return digest.digest()


def _checked(memory: Any, size: int, found: bytes, path: Any) -> tuple[bytes, Any]:
    """Return the text and the runs of a file that is what its head says. found: its checksum."""
    magic, version, zero, text, runs = _HEAD.unpack(memory[: _HEAD.size].tobytes())
    if magic != MAGIC:
        raise ModelError("this is no plan", where=str(path), next_step=_REBUILD)
    if version != VERSION:
        raise ModelError(
            f"the plan has format {version}, this graphdoc reads {VERSION}",
            where=str(path),
            next_step=_REBUILD,
        )
    start = _START + _padded(text)
    if zero or text > _TEXT_LIMIT or start + runs != size:
        raise _damaged(path, "its size is not what its head says")
    if found != memory[_HEAD.size : _START].tobytes():
        raise _damaged(path, "its checksum does not fit")
    return memory[_START : _START + text].tobytes(), memory[start:]


def _blob(runs: Any, at: int, size: int) -> Any:
    if at < 0 or size < 0 or at + size > len(runs):
        raise ValueError("a run of bytes past the end")
    return runs[at : at + size]


def _damaged(path: Any, how: str) -> ModelError:
    return ModelError(f"the plan is damaged: {how}", where=str(path), next_step=_REBUILD)
