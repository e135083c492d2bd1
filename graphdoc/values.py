"""Values on the disk: ``.npz`` files, written whole or not at all."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphdoc.engine.errors import UsageError
from graphdoc.reports.files import whole_file

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every entry, so that the same values give the same bytes."""


def save_npz(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write arrays by name. Elements of lists are named ``name[0]``, ``name[1]`` …; strings are stored as
    unicode arrays; dtypes that NumPy lacks (bfloat16, float8, int4) as float32, which holds them exactly.

    Raises UsageError when the path does not end with .npz, OSError when it cannot be written.
    """
    check_npz(path, "--save")
    with whole_file(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in _arrays(values):
            entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def check_npz(path: str | os.PathLike[str], option: str) -> None:
    """Raise UsageError for a path that does not end with .npz."""
    if Path(path).suffix != ".npz":
        raise UsageError(f"not an .npz file: '{path}'", where=option, next_step=f"{option} values.npz")


def _arrays(values: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
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
