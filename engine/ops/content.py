"""Infer functions that follow the content of small integer tensors entry by entry.

Shapes are computed by ordinary operators (Shape → Gather → Mul → Concat → Reshape), and one unknown size must
not hide the others. An entry is a Dim: an int, an expression of sizes, or None. A bool is the entry 0 or 1.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.shapes import BOOL, INT64, broadcast, broadcast_bool, broadcast_where, same_as_first
from graphdoc.engine.ops.table import MAX_ELEMENTS, Call, Dim, Infer, Operator, TensorType

Entries = tuple[Dim, ...]
Operation = Callable[..., Dim]
"""Sizes → a size: what an operator does to one entry of each input."""

_SYMBOLIC = frozenset(np.dtype(t) for t in (np.int32, np.int64))
"""Dtypes in which expressions of sizes are taken not to wrap."""


# ---- reading and writing ------------------------------------------------------------------------------


def entry_count(known: TensorType) -> int | None:
    """Return the number of entries of a tensor, None when unknown or more than 64."""
    if known.shape is None:
        return None
    count = dims.product(known.shape)
    return count if isinstance(count, int) and count <= MAX_ELEMENTS else None


def entries(known: TensorType | None) -> Entries | None:
    """Return one Dim per entry of a tensor; None when not even their number is known."""
    if known is None or known.elements is not None:
        return None if known is None else known.elements
    count = entry_count(known)
    return None if count is None else (None,) * count


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    known = np.iinfo(dtype)
    return int(known.min), int(known.max)


def _kept(entry: Dim, dtype: np.dtype[Any]) -> Dim:
    """Return an entry that the dtype can hold, else None."""
    if dtype == BOOL:
        return entry if entry in (0, 1) else None
    if isinstance(entry, int):
        low, high = _limits(dtype)
        return entry if low <= entry <= high else None
    return entry if dtype in _SYMBOLIC else None


def _sizes(known: TensorType) -> tuple[int, ...]:
    """Return a shape of which all sizes are known."""
    return tuple(dim for dim in known.shape or () if isinstance(dim, int))


def with_entries(known: TensorType, found: Sequence[Dim] | None) -> TensorType:
    """Return a type with what is known of its content; the whole content when every entry is a number."""
    dtype, count = known.dtype, entry_count(known)
    if found is None or dtype is None or dtype.kind not in "iub" or count != len(found):
        return known
    kept = tuple(_kept(entry, dtype) for entry in found)
    if not found and len(_sizes(known)) != len(known.shape or ()):
        return known  # nothing, by one size of 0 beside sizes that are not known
    if all(isinstance(entry, int) for entry in kept):
        content = np.array(kept, dtype=dtype).reshape(_sizes(known))
        return TensorType(dtype, content.shape, content)
    return TensorType(dtype, known.shape, None, None if all(e is None for e in kept) else kept)


# ---- element by element -------------------------------------------------------------------------------


def _column(known: TensorType, sizes: tuple[int, ...]) -> Entries | None:
    """Return the entries of an input, broadcast to the sizes of the result."""
    found = entries(known)
    if found is None or _sizes(known) == sizes:
        return found
    places = np.arange(len(found)).reshape(_sizes(known))
    return tuple(found[place] for place in np.broadcast_to(places, sizes).reshape(-1))


def mapped(operation: Operation, infer: Infer = broadcast, options: Sequence[str] = ()) -> Infer:
    """Return an infer: ``infer``, and ``operation`` on the entries of small integer tensors.

    options: attributes that the operation takes too.
    """

    def inferred(call: Call, *types: TensorType | None, **attributes: Any) -> TensorType:
        known: TensorType = infer(call, *types, **attributes)
        given = [each for each in types if each is not None]
        if known.dtype is None or known.dtype.kind not in "iub" or not any(t.elements for t in given):
            return known
        if entry_count(known) is None:
            return known
        columns = [_column(each, _sizes(known)) for each in given]
        rows = zip(*(column for column in columns if column is not None), strict=True)
        named = {name: attributes[name] for name in options if name in attributes}
        return known if None in columns else with_entries(known, [operation(*row, **named) for row in rows])

    return inferred


def equal_entries(a: Dim, b: Dim) -> Dim:
    """Return whether two entries are equal, None in doubt."""
    if a is None or b is None:
        return None
    if a == b:
        return 1
    apart = dims.at_least(a, dims.add(b, 1)) or dims.at_least(b, dims.add(a, 1))
    return 0 if apart else None


def less_entries(a: Dim, b: Dim) -> Dim:
    """Return whether a < b, None in doubt."""
    if a is None or b is None:
        return None
    if dims.at_least(b, dims.add(a, 1)):
        return 1
    return 0 if dims.at_least(a, b) else None


def not_entry(a: Dim) -> Dim:
    """Return the other truth value."""
    return 1 - a if isinstance(a, int) else None


def and_entries(a: Dim, b: Dim) -> Dim:
    """Return a ∧ b; false where one is."""
    if a == 0 or b == 0:
        return 0
    return 1 if a == 1 and b == 1 else None


def or_entries(a: Dim, b: Dim) -> Dim:
    """Return a ∨ b; true where one is."""
    return not_entry(and_entries(not_entry(a), not_entry(b)))


def absolute(a: Dim) -> Dim:
    """Return |a|, None where the sign is in doubt."""
    if isinstance(a, int):
        return abs(a)
    return a if dims.at_least(a, 0) else None


def remainder(a: Dim, b: Dim, fmod: int = 0) -> Dim:
    """Return ONNX Mod of two entries; the signs must be known for ``fmod``."""
    if fmod and not (dims.at_least(a, 0) and dims.at_least(b, 0)):
        return None
    return dims.modulo(a, b) if dims.at_least(b, 1) else None


def quotient(a: Dim, b: Dim) -> Dim:
    """Return a / b cut off toward zero, as integers divide."""
    return dims.trunc_divide(a, b)


def chosen(condition: Dim, a: Dim, b: Dim) -> Dim:
    """Return what Where picks; where the condition is in doubt, what both have in common."""
    if condition is None:
        return a if a == b else None
    return a if condition else b


add_type = mapped(dims.add)
subtract_type = mapped(dims.subtract)
multiply_type = mapped(dims.multiply)
divide_type = mapped(quotient)
modulo_type = mapped(remainder, options=("fmod",))
max_type = mapped(dims.maximum)
min_type = mapped(dims.minimum)
sum_type = mapped(lambda *row: dims.total(row))
where_type = mapped(chosen, broadcast_where)
negative_type = mapped(dims.negate, same_as_first)
absolute_type = mapped(absolute, same_as_first)
identity_type = mapped(lambda a: a, same_as_first)
not_type = mapped(not_entry, same_as_first)
equal_type = mapped(equal_entries, broadcast_bool)
less_type = mapped(less_entries, broadcast_bool)
greater_type = mapped(lambda a, b: less_entries(b, a), broadcast_bool)
less_equal_type = mapped(lambda a, b: not_entry(less_entries(b, a)), broadcast_bool)
greater_equal_type = mapped(lambda a, b: not_entry(less_entries(a, b)), broadcast_bool)
and_type = mapped(and_entries, broadcast_bool)
or_type = mapped(or_entries, broadcast_bool)


def cast_entry(entry: Dim, source: np.dtype[Any] | None, target: np.dtype[Any] | None) -> Dim:
    """Return an entry after Cast; None where the dtypes may change it."""
    if source is None or target is None or source.kind not in "iub" or target.kind not in "iub":
        return None
    if target != BOOL:
        return entry
    if isinstance(entry, int):
        return int(entry != 0)
    return 1 if dims.at_least(entry, 1) else None


def cast_type(source: TensorType, known: TensorType) -> TensorType:
    """Return ``known`` (the cast tensor) with the entries of ``source``."""
    found = source.elements
    if found is None:
        return known
    return with_entries(known, [cast_entry(entry, source.dtype, known.dtype) for entry in found])


# ---- moving entries -----------------------------------------------------------------------------------

_ORDERED = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators whose result has the elements of the first input in the same order."""

_MOVED: Mapping[str, tuple[int, ...] | None] = {
    "Compress": (0,),
    "Concat": None,
    "Expand": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "ReverseSequence": (0,),
    "Scatter": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "Split": (0,),
    "Tile": (0,),
    "Transpose": (0,),
}
"""Operators that only move elements, and the inputs whose elements they are (None: all)."""


def moved(
    row: Operator,
    call: Call,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, Any],
    stated: tuple[TensorType, ...],
) -> tuple[TensorType, ...]:
    """Return what is stated of the outputs, with the entries that an operator moves there.

    The operator itself says where each goes: it is run on the entries' numbers.
    """
    if row.domain or not stated:
        return stated
    if row.name in _ORDERED and types and types[0] is not None and types[0].elements is not None:
        return (with_entries(stated[0], types[0].elements), *stated[1:])
    if row.name not in _MOVED or attributes.get("reduction", "none") != "none":
        return stated
    sources = _MOVED[row.name] or range(len(types))
    if not any(
        (known := types[place]) is not None and known.elements for place in sources if place < len(types)
    ):
        return stated
    return _moved_by_number(row, call, types, attributes, sources) or stated


def _moved_by_number(
    row: Operator,
    call: Call,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, Any],
    sources: Sequence[int],
) -> tuple[TensorType, ...]:
    listed: list[Dim] = []
    arrays: list[np.ndarray[Any, Any] | None] = []
    for place, known in enumerate(types):
        found = entries(known) if place in sources else ()
        if known is None:
            arrays.append(None)
        elif place not in sources and known.value is not None:
            arrays.append(known.value)
        elif place in sources and found is not None:
            numbers = np.arange(len(listed), len(listed) + len(found))
            arrays.append(numbers.reshape(_sizes(known)))
            listed += found
        else:
            return ()
    dtype = next((t.dtype for t in types if t is not None), None)
    results = row.evaluate(call, *arrays, **attributes)
    return tuple(
        with_entries(TensorType(dtype, numbers.shape), [listed[number] for number in numbers.reshape(-1)])
        for numbers in (results if isinstance(results, tuple) else (results,))
    )


def reduced_entries(operation: Callable[[Sequence[Dim]], Dim], infer: Infer) -> Infer:
    """Return an infer: ``infer``, and ``operation`` over all entries of a reduced tensor of rank 1."""

    def inferred(call: Call, data: TensorType, *rest: TensorType | None, **attributes: Any) -> TensorType:
        known: TensorType = infer(call, data, *rest, **attributes)
        if not data.elements or entry_count(known) != 1:
            return known
        return with_entries(known, [operation(data.elements)])

    return inferred


def sizes_as_content(sizes: Sequence[Dim]) -> TensorType:
    """Return the type of an int64 tensor of rank 1 that holds sizes, as Shape gives it."""
    return with_entries(TensorType(INT64, (len(sizes),)), sizes)


def single_entry(known: TensorType | None) -> Dim:
    """Return the only entry of an integer tensor, None when it is unknown or not alone."""
    found = entries(known)
    return found[0] if found is not None and len(found) == 1 else None
