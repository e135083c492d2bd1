"""What an object file takes from the process it is loaded into.

LLVM ends the process where it cannot resolve a name. Code may need names that stand in no text: routines that
LLVM itself falls back on, for 16-bit floats say, and that not every system has. So they are looked up before.
"""

import ctypes
import struct
from collections.abc import Iterator

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, align, entry
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_SYMBOL_TABLE = 2


def missing(body: bytes) -> list[str]:
    """Return the names that an object needs and this process lacks; none for formats but 64-bit ELF."""
    process = ctypes.CDLL(None)
    return [name for name in undefined(body) if not hasattr(process, name)]


def undefined(body: bytes) -> Iterator[str]:
    """Yield the names that a little-endian 64-bit ELF file uses and does not define."""
    if body[:6] != b"\x7fELF\x02\x01":
        return
    (start,) = struct.unpack_from("<Q", body, 40)
    size, count = struct.unpack_from("<HH", body, 58)
    sections = [_SECTION.unpack_from(body, start + k * size) for k in range(count)]
    for _, kind, _, _, offset, length, link, _, _, _ in sections:
        if kind == _SYMBOL_TABLE:
            names = sections[link][4]
            yield from _undefined(body[offset : offset + length], body, names)


def _undefined(table: bytes, body: bytes, names: int) -> Iterator[str]:
    for name, _, _, section, _, _ in _SYMBOL.iter_unpack(table):
        if section == 0 and name:
            start = names + name
            yield body[start : body.index(b"\0", start)].decode()
