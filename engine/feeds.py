"""What a model asks for, and whether given arrays are that.

Every runner calls :func:`check_feeds` before it runs, so that the same mistake reads the same everywhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import InputError
from graphdoc.engine.ops.table import Dim

TENSOR, SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = "tensor", "sequence", "optional", "optional sequence"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One graph input as the model declares it.

    kind: tensor, sequence (of tensors), optional (tensor) or optional sequence.
    dtype: of the tensor or of the elements; object for strings, None when the model states none.
    shape: of the tensor or of the elements: a size, a symbol or None per axis; None when the rank is
        unknown. A negative size counts as unknown.
    required: False for an input whose initializer serves as default.
    """

    name: str
    kind: str
    dtype: np.dtype[Any] | None
    shape: tuple[Dim, ...] | None
    required: bool = True

    @property
    def dtype_name(self) -> str:
        """The dtype in words: ``string`` for object, ``unknown`` for None."""
        if self.dtype is None:
            return "unknown"
        return "string" if self.dtype == object else self.dtype.name

    def __str__(self) -> str:
        return f"{self.name}  {self.dtype_name}  {shape_text(self.shape)}"


def input_specs(model: ir.Model) -> dict[str, InputSpec]:
    """Return every input by name, in the model's order, those with an initializer too."""
    return {str(value.name): _spec(model, value) for value in model.graph.inputs}


def required_inputs(model: ir.Model) -> dict[str, InputSpec]:
    """Return the inputs that must be fed: those without an initializer."""
    return {name: spec for name, spec in input_specs(model).items() if spec.required}


def shape_text(shape: tuple[Dim, ...] | None) -> str:
    """Return a shape as the printed forms show it: ``[batch, 3, ?]``."""
    if shape is None:
        return "[unknown rank]"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def nearest(name: str, names: Mapping[str, Any] | list[str]) -> str | None:
    """Return the name that comes closest to a mistyped one, or None."""
    found = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return found[0] if found else None


def check_feeds(model: ir.Model, feeds: Mapping[str, Any], *, partial: bool = False) -> None:
    """Raise InputError for the first feed that does not fit the model.

    Checked are: names (none missing, none unknown), kinds, dtypes (exactly), ranks, fixed sizes, and that
    one symbol stands for one size. Inputs with an initializer may be left out; with ``partial`` all may.
    """
    specs = input_specs(model)
    _check_names(specs, feeds, partial)
    symbols: dict[str, tuple[int, str]] = {}
    for name, value in feeds.items():
        for array in _arrays(specs[name], value):
            _check_array(specs[name], array)
            if specs[name].kind == TENSOR:
                _check_symbols(specs[name], array, symbols)


def _spec(model: ir.Model, value: ir.Value) -> InputSpec:
    kind, elem = TENSOR, value.type
    if isinstance(elem, ir.OptionalType):
        kind, elem = OPTIONAL, elem.elem_type
    if isinstance(elem, ir.SequenceType):
        kind = SEQUENCE if kind == TENSOR else OPTIONAL_SEQUENCE
    dtype = value.dtype
    known = dtype is not None and dtype != ir.DataType.UNDEFINED
    return InputSpec(
        str(value.name),
        kind,
        np.dtype(dtype.numpy()) if known and dtype is not None else None,
        None if value.shape is None else tuple(dim_of(dim) for dim in value.shape),
        value.name not in model.graph.initializers,
    )


def dim_of(dim: int | ir.SymbolicDim) -> Dim:
    """Return a declared dim: a size, a symbol, or None where it says nothing."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    named = dim.value and any(character.isalnum() for character in dim.value)
    return dim.value if named else None  # exporters write "?" for sizes that have nothing in common


def _check_names(specs: Mapping[str, InputSpec], feeds: Mapping[str, Any], partial: bool) -> None:
    missing = [name for name, spec in specs.items() if spec.required and name not in feeds]
    unknown = [name for name in feeds if name not in specs]
    if unknown:
        guess = nearest(unknown[0], missing or list(specs))
        raise InputError(
            f"the model has no input '{unknown[0]}'",
            where="inputs of the model: " + (", ".join(specs) or "none"),
            next_step=f"did you mean '{guess}'?" if guess else "leave it out",
        )
    if missing and not partial:
        raise InputError(
            f"no value for input '{missing[0]}'" + (f" and {len(missing) - 1} more" * (len(missing) > 1)),
            where="; ".join(str(specs[name]) for name in missing[:4]),
            next_step="add it to --inputs, or leave --inputs out for seeded values",
        )


def _arrays(spec: InputSpec, value: Any) -> Iterator[Any]:
    """Yield the arrays of a feed; raise where the kind is wrong."""
    if value is None and spec.kind.startswith(OPTIONAL):
        return
    listed = isinstance(value, list)
    if value is None or listed != spec.kind.endswith(SEQUENCE):
        got = "nothing" if value is None else "a list" if listed else "an array"
        raise InputError(
            f"input '{spec.name}' is a{'n' * (spec.kind[0] == 'o')} {spec.kind}, the feed is {got}",
            where=str(spec),
            next_step="give a sequence as a list of arrays, an empty optional as None",
        )
    yield from value if listed else [value]


def _check_array(spec: InputSpec, array: Any) -> None:
    if not hasattr(array, "dtype"):
        raise InputError(
            f"input '{spec.name}' needs an array, the feed is {type(array).__name__}",
            where=str(spec),
            next_step="wrap it: numpy.asarray(value, dtype)",
        )
    if spec.dtype is not None and array.dtype != spec.dtype:
        raise InputError(
            f"input '{spec.name}' is {spec.dtype_name}, the feed is {array.dtype}",
            where=str(spec),
            next_step=_dtype_remedy(spec),
        )
    if spec.shape is not None and not _fits(spec.shape, array.shape):
        raise InputError(
            f"input '{spec.name}' has shape {shape_text(spec.shape)}, the feed {shape_text(array.shape)}",
            where=str(spec),
            next_step=f"--shape {spec.name}={example_shape(spec.shape)}, or reshape the data",
        )


def _dtype_remedy(spec: InputSpec) -> str:
    if spec.dtype == object:
        return "strings are object arrays of str: x.astype(str).astype(object)"
    return f"convert it: x.astype('{spec.dtype_name}')"


def _fits(shape: tuple[Dim, ...], actual: tuple[int, ...]) -> bool:
    return len(shape) == len(actual) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(shape, actual, strict=True)
    )


def example_shape(shape: tuple[Dim, ...]) -> str:
    """Return the shape as ``--shape`` takes it, with 1 where the size is open."""
    return "x".join(str(dim) if isinstance(dim, int) else "1" for dim in shape)


def _check_symbols(spec: InputSpec, array: Any, seen: dict[str, tuple[int, str]]) -> None:
    for dim, size in zip(spec.shape or (), array.shape, strict=False):
        if not isinstance(dim, str):
            continue
        known, owner = seen.setdefault(dim, (size, spec.name))
        if known != size:
            raise InputError(
                f"dimension '{dim}' is {known} in '{owner}' and {size} in '{spec.name}'",
                where=str(spec),
                next_step=f"give both the same size: --shape {dim}={known}",
            )
