"""Between the array namespace and the host.

Small integer inputs (shapes, axes, sizes) are read as Python lists, on a card by a copy. Strings are object
arrays and always stay on the host. What CuPy lacks runs in NumPy through :func:`on_host`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.table import Array, Call


def ints(x: Array) -> list[int]:
    """Return an integer tensor of any shape as a flat list."""
    items: list[int] = x.reshape(-1).tolist()
    return items if x.dtype.kind in "iu" else [int(item) for item in items]


def scalar(x: Array) -> Any:
    """Return the only element of a tensor as a Python value. Raises ValueError when there are more."""
    return x.reshape(()).item()


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises ValueError outside [-rank, rank − 1]."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} does not fit rank {rank}")
    return axis % rank


def to_host(x: Any) -> Any:
    """Return an array as a NumPy array; anything else unchanged."""
    return x.get() if hasattr(x, "get") and hasattr(x, "dtype") else x


def beside(x: Array, indices: Array) -> Array:
    """Return the indices where ``x`` lies: on the host for strings, else where they are."""
    return to_host(indices) if isinstance(x, np.ndarray) else indices


def namespace(call: Call, *arrays: Array) -> Any:
    """Return NumPy when an operand lives on the host (strings, or all of NumPy), else ``call.xp``."""
    return np if any(isinstance(x, np.ndarray) for x in arrays) else call.xp


def on_host(call: Call, function: Callable[..., Any], *arrays: Array, **options: Any) -> Any:
    """Return ``function`` of NumPy copies, its arrays moved back: for what CuPy does not have."""
    if call.xp is np:
        return function(*arrays, **options)
    result = function(*(to_host(x) for x in arrays), **options)
    if isinstance(result, tuple):
        return tuple(_to_device(call, item) for item in result)
    return _to_device(call, result)


def _to_device(call: Call, x: Any) -> Any:
    movable = isinstance(x, np.ndarray | np.generic) and x.dtype != object
    return call.xp.asarray(x) if movable else x


def strings(items: Sequence[str], shape: Sequence[int]) -> Array:
    """Return an object array of ``str`` with the given shape."""
    result = np.empty(len(items), dtype=object)
    result[:] = items
    return result.reshape(tuple(shape))
