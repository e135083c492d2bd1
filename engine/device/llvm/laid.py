"""Constants as a device lays them out, made once however many programs read them.

A model specialised to eight shapes has eight programs over the same weights; their panels are the same too.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from graphdoc.engine.memory import LINE, aligned, let_go, model_file
from graphdoc.engine.program import Buffer, Kind, View, whole

_View = TypeVar("_View", bound=View | None)


@dataclass(slots=True)
class Laid:
    """Views laid out anew, by the constant they were made of; they go when the constant does."""

    _views: "WeakKeyDictionary[Buffer, dict[Hashable, Any]]" = field(default_factory=WeakKeyDictionary)

    def view(self, source: View, how: Hashable, make: Callable[[], _View]) -> _View:
        """Return what ``make`` returns, or returned before for this view and this way of laying out.

        make: gives a view of a new buffer, not of the source's, which would then never go.
        """
        known = self._views.setdefault(source.buffer, {})
        key = source.shape, source.strides, source.offset, how
        if key not in known:
            known[key] = make()
            let_go(source.buffer.data)
        found: _View = known[key]
        return found


def lined(data: Any) -> Any:
    """Return an array of rank 1 that starts on a cache line: the same one where it does already.

    What lies in a model's file is copied, since that may change or go while kernels read.
    """
    source, data = data, np.ascontiguousarray(data).reshape(-1)
    if data.ctypes.data % LINE == 0 and model_file(data) is None:
        return data
    place = aligned(data.nbytes).view(data.dtype)
    place[:] = data
    let_go(source)
    return place


def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of zeros that starts on a cache line."""
    dtype = np.dtype(dtype)
    found = aligned(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    found[...] = 0
    return found


def constant(name: str, data: Any) -> View:
    """Return the row-major view of a new constant that starts on a cache line."""
    return whole(Buffer(name, data.dtype, data.size, Kind.CONSTANT, lined(data)), data.shape)
