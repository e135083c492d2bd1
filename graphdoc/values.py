"""Values on the disk: ``.npz`` files, written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphdoc.engine.errors import UsageError


def save_npz(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write arrays by name. Elements of lists are named ``name[0]``, ``name[1]`` …; strings are stored as
    unicode arrays; dtypes that NumPy lacks (bfloat16, float8, int4) as float32, which holds them exactly.

    Raises UsageError when the path does not end with .npz or nothing can be stored.
    """
    target = Path(path)
    if target.suffix != ".npz":
        raise UsageError(f"not an .npz file: '{path}'", where="--save", next_step="--save values.npz")
    arrays = dict(_arrays(values))
    handle, scratch = tempfile.mkstemp(dir=target.parent or ".", suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _arrays(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, list):
            yield from _arrays({f"{name}[{i}]": item for i, item in enumerate(value)})
        elif isinstance(value, Mapping):
            yield from _arrays({f"{name}[{key}]": np.asarray(item) for key, item in value.items()})
        elif value is not None:
            yield name, _storable(np.asarray(value))


def _storable(array: Any) -> Any:
    if array.dtype == object:
        return array.astype(str)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
