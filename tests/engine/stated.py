"""What ``infer`` states of a value, held against the value."""

from typing import Any

import numpy as np

from graphdoc.engine.ops.dims import substitute, symbols
from graphdoc.engine.ops.table import ContainerType, TensorType


def described(value: Any, known: str) -> TensorType | None:
    """Return the type of a value.

    known: "content" with what it holds, "shape" with its sizes, "symbols" with symbols (``n3`` is 3) alone.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return ContainerType(item=_item([described(item, known) for item in value]), length=len(value))
    value = np.asarray(value)
    if known == "symbols":
        return TensorType(value.dtype, tuple(f"n{size}" for size in value.shape))
    return TensorType(value.dtype, value.shape, value if known == "content" else None)


def _item(types: list[TensorType | None]) -> TensorType:
    """Return the dtype and shape that all items have, an unknown type where they differ."""
    found = {(item.dtype, item.shape) for item in types if item is not None}
    return TensorType(*found.pop()) if len(found) == 1 else TensorType()


def untrue(stated: TensorType, value: Any) -> str | None:
    """Return what a stated type gets wrong about a value, None when it holds."""
    if isinstance(stated, ContainerType):
        return _untrue_container(stated, value)
    if isinstance(value, list):
        return None if stated == TensorType() else f"a tensor for a sequence of {len(value)}"
    if stated.dtype is not None and stated.dtype != value.dtype:
        return f"dtype {stated.dtype} for {value.dtype}"
    if stated.shape is not None and not _fits(stated.shape, value.shape):
        return f"shape {stated.shape} for {value.shape}"
    if stated.value is not None and not _same(stated.value, value):
        return "content"
    if stated.elements is not None and not _fits(stated.elements, value.reshape(-1).tolist()):
        return f"elements {stated.elements} for {value.tolist()}"
    return None


def _same(stated: Any, value: Any) -> bool:
    """Whether two arrays of one dtype and shape hold the same bits, NaN and −0.0 included."""
    if value.dtype == object:
        return np.array_equal(stated, value)
    return np.asarray(stated).tobytes() == np.asarray(value).tobytes()


def _untrue_container(stated: ContainerType, value: Any) -> str | None:
    if stated.kind == "optional":
        return None if value is None else untrue(stated.item, value)
    if not isinstance(value, list):
        return f"a sequence for {type(value).__name__}"
    if stated.length is not None and size_of(stated.length) != len(value):
        return f"length {stated.length} for {len(value)}"
    return next((reason for item in value if (reason := untrue(stated.item, item))), None)


def _fits(stated: Any, found: Any) -> bool:
    return len(stated) == len(found) and all(
        dim is None or size_of(dim) == size for dim, size in zip(stated, found, strict=True)
    )


def size_of(dim: Any) -> Any:
    """Return what a size is when every symbol ``n3`` is 3."""
    return substitute(dim, {symbol: int(symbol[1:]) for symbol in symbols(dim)})
