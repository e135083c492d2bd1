"""Hashes of values: the same for equal dtype, shape and content on every machine."""

import hashlib
from typing import Any

import numpy as np


def hash_value(value: Any) -> str:
    """Return the SHA-256 of a value: its dtype, shape and content in order; lists element by element."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, list):
        digest.update(f"list {len(value)};".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.name} {value.shape};".encode())
        if value.dtype == object:
            digest.update("\0".join(map(str, value.ravel())).encode("utf-8", "surrogateescape"))
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    else:
        digest.update(repr(value).encode())
