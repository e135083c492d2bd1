"""Types that inference starts from: what a file declares, holds, or the caller gives."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import to_array
from graphdoc.engine.errors import InputError
from graphdoc.engine.ops.dims import substitute
from graphdoc.engine.ops.table import ContainerType, Dim, TensorType

UNKNOWN = TensorType()

MAX_CONTENT = 1024
"""Elements up to which a content is followed; larger weights are never read to infer."""

_PLAIN = re.compile(r"[^\s+*/()',-]+")
"""A name that no text of an expression equals, functions aside."""


_NO_NAMES = frozenset({None, "", "?", "*", "-1", "None", "unknown"})
"""What exporters write for sizes that have no name; two of them need not be equal."""


def numpy_dtype(code: ir.DataType | None) -> np.dtype[Any] | None:
    """Return the NumPy dtype of an ONNX one, object for strings, None when undefined."""
    if code is None or code == ir.DataType.UNDEFINED:
        return None
    return np.dtype(object) if code == ir.DataType.STRING else np.dtype(code.numpy())


def symbol(name: str) -> str:
    """Return a declared symbol; one that reads like an expression is quoted, since it is only a name."""
    return name if _PLAIN.fullmatch(name) and not name.lstrip("-").isdigit() else f"'{name}'"


def _dims(shape: ir.Shape | None) -> tuple[Dim, ...] | None:
    return None if shape is None else tuple(_dim(dim) for dim in shape)


def _dim(dim: Any) -> Dim:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim.value in _NO_NAMES else symbol(dim.value)


_KINDS: Mapping[type, str] = {ir.SequenceType: "sequence", ir.OptionalType: "optional"}


def declared_type(value: ir.Value) -> TensorType:
    """Return what the graph declares of a value, symbols included."""
    return _of_type(value.type, _dims(value.shape))


def _of_type(kind: Any, shape: tuple[Dim, ...] | None) -> TensorType:
    if type(kind) in _KINDS:
        return ContainerType(kind=_KINDS[type(kind)], item=_of_type(kind.elem_type, shape))
    dtype = kind if isinstance(kind, ir.DataType) else getattr(kind, "dtype", None)
    return TensorType(numpy_dtype(dtype), shape)


def small(tensor: ir.TensorProtocol) -> TensorType:
    """Return the type of a constant, with its content unless it is large."""
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    if prod(shape) > MAX_CONTENT:
        return TensorType(numpy_dtype(tensor.dtype), shape)
    value = to_array(tensor)
    return TensorType(value.dtype, value.shape, value)


# ---- claims -------------------------------------------------------------------------------------------


def claimed(known: TensorType, value: ir.Value) -> TensorType:
    """Return a type with gaps filled by what the file declares of the value, unless that contradicts.

    Declared symbols do not count: exporters name sizes that differ alike.
    """
    complete = known.dtype is not None and known.shape is not None and None not in known.shape
    if complete or isinstance(known, ContainerType) or value.type is None:
        return known
    claim = _without_symbols(declared_type(value))
    if isinstance(claim, ContainerType):
        return claim if known.dtype is None and known.shape is None else known
    if _contradicts(known, claim):
        return known
    dtype = claim.dtype if known.dtype is None else known.dtype
    return TensorType(dtype, _filled(known.shape, claim.shape), known.value, known.elements)


def _without_symbols(claim: TensorType) -> TensorType:
    if isinstance(claim, ContainerType):
        return ContainerType(kind=claim.kind, item=_without_symbols(claim.item))
    if claim.shape is None:
        return claim
    return TensorType(claim.dtype, tuple(dim if isinstance(dim, int) else None for dim in claim.shape))


def _contradicts(known: TensorType, claim: TensorType) -> bool:
    if known.dtype is not None and claim.dtype is not None and known.dtype != claim.dtype:
        return True
    if known.shape is None or claim.shape is None:
        return False
    if len(known.shape) != len(claim.shape):
        return True
    pairs = zip(known.shape, claim.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _filled(known: tuple[Dim, ...] | None, claim: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    if known is None or claim is None:
        return claim if known is None else known
    return tuple(b if a is None else a for a, b in zip(known, claim, strict=True))


# ---- given sizes --------------------------------------------------------------------------------------


def bind(inputs: Iterable[ir.Value], shapes: Mapping[str, Sequence[int | str]]) -> dict[ir.Value, TensorType]:
    """Return the types of a model's inputs, with the given sizes in place of the declared ones.

    A symbol that gets a size in one input has it in all. An input whose axis has neither size nor symbol gets
    one of its own: ``name.axis``. Raises InputError for a name, a rank or a size that does not fit.
    """
    by_name = {str(value.name): value for value in inputs}
    _refuse_unknown(shapes, by_name)
    declared = {value: declared_type(value) for value in by_name.values()}
    sizes: dict[str, Dim] = {}
    for name, shape in shapes.items():
        _match(name, declared[by_name[name]].shape, shape, sizes)
    return {
        value: _sized(value, known, shapes.get(str(value.name)), sizes) for value, known in declared.items()
    }


def _refuse_unknown(shapes: Mapping[str, Any], inputs: Mapping[str, ir.Value]) -> None:
    for name in shapes:
        if name not in inputs:
            raise InputError(
                f"the model has no input '{name}'", where=f"inputs: {', '.join(inputs) or 'none'}"
            )


def _match(
    name: str, declared: tuple[Dim, ...] | None, given: Sequence[int | str], sizes: dict[str, Dim]
) -> None:
    """Note which size each declared symbol gets."""
    if declared is None:
        return
    if len(declared) != len(given):
        raise InputError(f"input '{name}' has rank {len(declared)}, the given shape has {len(given)} sizes")
    for axis, (dim, size) in enumerate(zip(declared, given, strict=True)):
        if isinstance(dim, int) and isinstance(size, int) and dim != size:
            raise InputError(f"axis {axis} of input '{name}' has size {dim} in the model, {size} is given")
        if isinstance(dim, str) and sizes.setdefault(dim, _given(size)) != _given(size):
            raise InputError(f"size '{dim}' is given as {sizes[dim]} and, in input '{name}', as {size}")


def _given(size: int | str) -> int | str:
    return symbol(size) if isinstance(size, str) else int(size)


def _sized(
    value: ir.Value, known: TensorType, given: Sequence[int | str] | None, sizes: Mapping[str, Dim]
) -> TensorType:
    if isinstance(known, ContainerType):
        return known
    shape: tuple[Dim, ...] | None = known.shape
    if given is not None:
        kept = known.shape or (None,) * len(given)
        shape = tuple(
            dim if isinstance(dim, int) else _given(size) for dim, size in zip(kept, given, strict=True)
        )
    if shape is None:
        return TensorType(known.dtype)
    named = (f"{symbol(str(value.name))}.{axis}" if dim is None else dim for axis, dim in enumerate(shape))
    return TensorType(known.dtype, tuple(substitute(dim, sizes) for dim in named))
