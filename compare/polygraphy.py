"""Reads what Polygraphy saves as JSON: results of runs (``--save-outputs``) and inputs (``--save-inputs``).

Arrays stand in the text as base64 of NumPy's file format. They are decoded one by one when they are asked
for, by the reader that all NumPy files go through: nothing in them is ever executed.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphdoc.compare.inputs_npy import array_from_bytes
from graphdoc.engine.errors import InputError

MARKER = "polygraphy_class"
_OLD_MARKER = "__polygraphy_encoded_"
"""How older versions begin the key that says which class an object is of."""

MOST_BYTES = 4 << 30
"""The largest file that is read."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What one runner gave in one iteration. values: still encoded, by name. seconds: of the run."""

    runner: str
    values: Mapping[str, Any]
    seconds: float | None
    iterations: int = 1


def load(path: Path) -> Any:
    """Return the parsed JSON of a file. Raises InputError, OSError."""
    if path.stat().st_size > MOST_BYTES:
        raise _bad(f"{path.name} is too large to read", path, "save fewer outputs")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(f"not JSON: {str(error).splitlines()[0][:200]}", path) from error


def kind(data: Any) -> str:
    """Return the class that an object says it is of: "RunResults", "ndarray"…; "" for plain JSON."""
    if not isinstance(data, Mapping):
        return ""
    if isinstance(data.get(MARKER), str):
        return str(data[MARKER])
    return next((key.removeprefix(_OLD_MARKER) for key in data if key.startswith(_OLD_MARKER)), "")


def read_runs(path: Path) -> list[SavedRun]:
    """Return the first iteration of every runner in a file of results. Raises InputError, OSError."""
    data = load(path)
    if kind(data) != "RunResults":
        found = kind(data) or "something else"
        raise _bad(
            f"not results of Polygraphy: {found}", path, "save them with  polygraphy run --save-outputs"
        )
    try:
        return [_run(name, iterations) for name, iterations in data["lst"]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _bad("the results of Polygraphy are not as expected", path) from error


def _run(name: Any, iterations: Sequence[Any]) -> SavedRun:
    first = iterations[0]
    seconds = first.get("runtime")
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return SavedRun(str(name), dict(first["outputs"]), float(seconds) if known else None, len(iterations))


def feeds_of(data: Any) -> Mapping[str, Any] | None:
    """Return the first set of inputs, still encoded, if data are inputs that Polygraphy saved; else None."""
    first = data[0] if isinstance(data, list) and data else None
    if isinstance(first, Mapping) and first and all(kind(value) for value in first.values()):
        return first
    return None


def decode(value: Any, where: str) -> Any:
    """Return the array that a saved value stands for. Raises InputError."""
    inner = value
    while kind(inner) in ("LazyArray", "LazyNumpyArray"):
        inner = inner.get("values")
    if kind(inner) == "Tensor":
        raise InputError("a tensor of PyTorch cannot be read", where=where, next_step="save NumPy arrays")
    text = inner.get("array") if kind(inner) == "ndarray" else None
    if not isinstance(text, str):
        raise InputError("no array that Polygraphy saved", where=where, next_step="save it again")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = text.encode("latin-1", errors="replace")  # as the first versions wrote it
    return array_from_bytes(data, where)


def _bad(cause: str, path: Path, step: str = "save it again with Polygraphy") -> InputError:
    return InputError(cause, where=path.name, next_step=step)
