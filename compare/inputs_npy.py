"""NumPy files, read as what they are: data from anywhere.

Headers are compared with the size of the file before a byte of content is read, so that neither a huge
shape nor a small archive that unpacks to a huge one takes memory. Of pickled object arrays, which is how
NumPy stores strings, only arrays of ``str`` are read, by an interpreter of our own for a dozen opcodes:
nothing of a pickle is ever called (``inputs_pickle.py``).
"""

import io
import re
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from graphdoc.compare.inputs_pickle import RefusedError, strings_from_pickle
from graphdoc.engine.errors import InputError

Array = np.ndarray[Any, Any]

MAX_BYTES = 8 << 30
"""Bytes that the arrays of one file may take together."""

MAX_RATIO = 250
"""How many times its packed size an entry of more than 256 MiB may take."""

_LARGE = 256 << 20


def read_npy(path: Path) -> Array:
    """Return the array of a ``.npy`` file. Raises InputError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return _read(file, size, path.name)


def array_from_bytes(data: bytes, where: str) -> Array:
    """Return the array of a ``.npy`` file that lies in memory. Raises InputError."""
    return _read(io.BytesIO(data), len(data), where)


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file by name. Raises InputError."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_archive(entries, path.name)
            return {_entry_name(entry): _read_entry(archive, entry, path.name) for entry in entries}
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
    ) as error:
        raise InputError(
            f"cannot read the npz file: {str(error) or type(error).__name__}",
            where=path.name,
            next_step="write it again with numpy.savez; a download may have stopped early",
        ) from error


def _entry_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _check_archive(entries: list[zipfile.ZipInfo], name: str) -> None:
    total = sum(entry.file_size for entry in entries)
    if total > MAX_BYTES:
        raise _refused(f"its arrays take {total:,} bytes, the limit is {MAX_BYTES:,}", name)
    for entry in entries:
        if entry.file_size > max(_LARGE, MAX_RATIO * entry.compress_size):
            raise _refused(f"'{entry.filename}' unpacks to {entry.file_size:,} bytes", name)
        if not entry.filename.endswith(".npy"):
            raise _refused(f"'{entry.filename}' is no array", name, "write it with numpy.savez")


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> Array:
    with archive.open(entry) as file:
        return _read(file, entry.file_size, f"{_entry_name(entry)} in {name}")


def _refused(
    reason: str, where: str, next_step: str = "make the file smaller, or write it again"
) -> InputError:
    return InputError(f"refused: {reason}", where=where, next_step=next_step)


def _read(file: IO[bytes], size: int, where: str) -> Array:
    """Return an array from a stream of ``size`` bytes."""
    shape, fortran, dtype = _header(file, where)
    count = prod(shape)
    room = size - file.tell()
    if dtype.hasobject:
        return _strings(_take(file, room), count, where).reshape(shape)
    if count * dtype.itemsize != room:
        raise _refused(
            f"the header announces {count * dtype.itemsize:,} bytes, the file holds {room:,}", where
        )
    data = _take(file, room)
    if len(data) != room:
        raise _refused(f"the file ends after {len(data):,} of {room:,} bytes", where)
    array: Array = np.frombuffer(data, dtype=dtype, count=count)
    return np.ascontiguousarray(array.reshape(shape[::-1]).T) if fortran else array.reshape(shape)


def _strings(data: bytearray, count: int, where: str) -> Array:
    try:
        array = strings_from_pickle(data)
    except RefusedError as error:
        raise _refused(
            f"the array is pickled, and {error}", where, "save plain numbers, or strings as x.astype(str)"
        ) from error
    if len(array) != count:
        raise _refused(f"the header announces {count} strings, the file holds {len(array)}", where)
    return array


_DESCR = re.compile(r"'descr': *'([<>|=]?[A-Za-z?][0-9]{0,9}(?:\[\w{1,8}\])?)'")
_ORDER = re.compile(r"'fortran_order': *(True|False)")
_SHAPE = re.compile(r"'shape': *\(([0-9, ]{0,999})\)")


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype: three plain patterns, where NumPy's reader evaluates a literal.

    Versions 1 to 3 differ in the width of the length and the encoding of field names; records are not read.
    """
    start = file.read(8)
    width = {1: 2, 2: 4, 3: 4}.get(start[6]) if len(start) == 8 and start[:6] == b"\x93NUMPY" else None
    size = int.from_bytes(file.read(width), "little") if width else 0
    text = file.read(size).decode("latin1") if 0 < size <= 10_000 else ""
    found = [pattern.search(text) for pattern in (_DESCR, _ORDER, _SHAPE)]
    descr, order, shape = (match.group(1) if match else None for match in found)
    if descr is None or order is None or shape is None:
        raise _refused("no NumPy array, or one of records", where, "write plain arrays with numpy.save")
    sizes = tuple(int(size) for size in shape.replace(" ", "").split(",") if size)
    return sizes, order == "True", _dtype(descr, where)


def _dtype(descr: str, where: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise _refused(f"no dtype of NumPy: '{descr}'", where, "write it with numpy.save") from error
    if dtype.kind in "mM" or not dtype.itemsize:
        raise _refused(f"arrays of {dtype} are no model inputs", where, "give a plain dtype")
    return dtype


def _take(file: IO[bytes], count: int) -> bytearray:
    """Return up to ``count`` bytes, taking memory only as they come."""
    data = bytearray()
    while len(data) < count and (chunk := file.read(min(count - len(data), 1 << 20))):
        data += chunk
    return data
