"""NumPy files, read as what they are: data from anywhere.

Headers are compared with the size of the file before a byte of content is read, so that neither a huge
shape nor a small archive that unpacks to a huge one takes memory. Of pickled object arrays, which is how
NumPy stores strings, only arrays of ``str`` are read, by an interpreter of our own for a dozen opcodes:
nothing of a pickle is ever called (``inputs_pickle.py``).
"""

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


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file by name. Raises InputError."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_archive(entries, path.name)
            return {_entry_name(entry): _read_entry(archive, entry, path.name) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
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


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype from the header, which NumPy parses as a literal of bounded length."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        # Version 3 differs from 2 in the encoding of field names alone, and records are not read.
        shape, fortran, dtype = readers[(2, 0) if version == (3, 0) else version](file)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError, RecursionError) as error:
        raise _refused(
            f"no NumPy array ({str(error).splitlines()[0]})", where, "write it with numpy.save"
        ) from error
    if dtype.fields is not None or dtype.subdtype is not None or dtype.kind in "mM":
        raise _refused(f"arrays of {dtype} are no model inputs", where, "give a plain dtype")
    if min(shape, default=0) < 0:
        raise _refused(f"the header announces the shape {list(shape)}", where)
    return shape, fortran, dtype


def _take(file: IO[bytes], count: int) -> bytearray:
    """Return up to ``count`` bytes, taking memory only as they come."""
    data = bytearray()
    while len(data) < count and (chunk := file.read(min(count - len(data), 1 << 20))):
        data += chunk
    return data
