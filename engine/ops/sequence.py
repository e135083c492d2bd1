"""Sequences (lists) and optionals (None when empty)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.dtypes import from_code
from graphdoc.engine.ops.host import ints, namespace, scalar
from graphdoc.engine.ops.layout import split_array
from graphdoc.engine.ops.shapes import BOOL, INT64
from graphdoc.engine.ops.table import Array, Call, ContainerType, GraphCallable, TensorType, Value, op


def _length_type(call: Call, sequence: Any) -> TensorType:
    return TensorType(INT64, ())


def _flag_type(call: Call, optional: Any = None) -> TensorType:
    return TensorType(BOOL, ())


# ---- types --------------------------------------------------------------------------------------------


def _item(container: TensorType | None) -> TensorType:
    """Return what holds for the items of a sequence or the value of an optional; unknown of anything else."""
    return container.item if isinstance(container, ContainerType) else TensorType()


def _common(types: Sequence[TensorType]) -> TensorType:
    """Return what holds for all of the types."""
    first, *others = types
    dtype = first.dtype if all(other.dtype == first.dtype for other in others) else None
    shapes = [known.shape for known in types]
    if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return TensorType(dtype)
    columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
    return TensorType(dtype, tuple(column[0] if len(set(column)) == 1 else None for column in columns))


def _resized(container: TensorType, item: TensorType, change: int) -> TensorType:
    length = container.length if isinstance(container, ContainerType) else None
    return ContainerType(item=item, length=dims.add(length, change))


def _sequence_type(call: Call, *inputs: TensorType) -> TensorType:
    return ContainerType(item=_common(inputs) if inputs else TensorType(), length=len(inputs))


def _empty_type(call: Call, *, dtype: int = 1) -> TensorType:
    return ContainerType(item=TensorType(call.real(from_code(dtype))), length=0)


def _at_type(call: Call, sequence: TensorType, position: TensorType) -> TensorType:
    return _item(sequence)


def _insert_type(
    call: Call, sequence: TensorType, tensor: TensorType, *rest: TensorType | None
) -> TensorType:
    empty = isinstance(sequence, ContainerType) and sequence.length == 0
    plain = TensorType(tensor.dtype, tensor.shape)
    return _resized(sequence, plain if empty else _common([_item(sequence), plain]), 1)


def _erase_type(call: Call, sequence: TensorType, *rest: TensorType | None) -> TensorType:
    return _resized(sequence, _item(sequence), -1)


def _parts_type(
    call: Call, data: TensorType, split: TensorType | None = None, *, axis: int = 0, keepdims: int = 1
) -> TensorType:
    if data.shape is None:
        return ContainerType(item=TensorType(data.dtype))
    at = axis % len(data.shape)
    before, after = data.shape[:at], data.shape[at + 1 :]
    if split is None:
        single = (*before, *((1,) if keepdims else ()), *after)
        return ContainerType(item=TensorType(data.dtype, single), length=data.shape[at])
    count = split.shape[0] if split.shape is not None and len(split.shape) == 1 else None
    return ContainerType(item=TensorType(data.dtype, (*before, None, *after)), length=count)


def _joined_type(call: Call, sequence: TensorType, *, axis: int, new_axis: int = 0) -> TensorType:
    item = _item(sequence)
    if item.shape is None:
        return TensorType(item.dtype)
    length = sequence.length if isinstance(sequence, ContainerType) else None
    if new_axis:
        at = axis % (len(item.shape) + 1)
        return TensorType(item.dtype, (*item.shape[:at], length, *item.shape[at:]))
    at = axis % len(item.shape)
    size = dims.multiply(item.shape[at], length)
    return TensorType(item.dtype, (*item.shape[:at], size, *item.shape[at + 1 :]))


def _optional_type(call: Call, value: TensorType | None = None, *, type: Any = None) -> TensorType:
    return ContainerType(kind="optional", item=TensorType() if value is None else value)


def _element_type(call: Call, value: TensorType) -> TensorType:
    known = isinstance(value, ContainerType) and value.kind == "optional"
    return _item(value) if known else value


# ---- sequences ----------------------------------------------------------------------------------------


def _position(position: Array, count: int, *, end: bool) -> int:
    """Return a position counted from the front; ``end`` allows the place behind the last item."""
    index = int(scalar(position))
    if not -count <= index < count + end:
        raise IndexError(f"position {index} is out of bounds for a sequence of {count}")
    return index + count if index < 0 else index


@op("SequenceConstruct", 11, infer=_sequence_type)
def sequence_construct(call: Call, *inputs: Array) -> list[Array]:
    """The inputs as a sequence (ONNX SequenceConstruct-11)."""
    return list(inputs)


@op("SequenceEmpty", 11, infer=_empty_type)
def sequence_empty(call: Call, *, dtype: int = 1) -> list[Array]:
    """A sequence without items; its item dtype is not kept (ONNX SequenceEmpty-11)."""
    return []


@op("SequenceLength", 11, infer=_length_type)
def sequence_length(call: Call, sequence: list[Value]) -> Array:
    """The number of items, int64 [] (ONNX SequenceLength-11)."""
    return call.xp.asarray(len(sequence), dtype="int64")


@op("SequenceAt", 11, infer=_at_type)
def sequence_at(call: Call, sequence: list[Value], position: Array) -> Value:
    """The item at a position; negative ones count from the end (ONNX SequenceAt-11). Raises IndexError out of
    bounds."""
    return sequence[_position(position, len(sequence), end=False)]


@op("SequenceInsert", 11, infer=_insert_type)
def sequence_insert(
    call: Call, sequence: list[Value], tensor: Array, position: Array | None = None
) -> list[Value]:
    """A sequence with ``tensor`` before a position (at the end by default), −n … n (ONNX SequenceInsert-11).

    Raises IndexError out of bounds.
    """
    place = len(sequence) if position is None else _position(position, len(sequence), end=True)
    return [*sequence[:place], tensor, *sequence[place:]]


@op("SequenceErase", 11, infer=_erase_type)
def sequence_erase(call: Call, sequence: list[Value], position: Array | None = None) -> list[Value]:
    """A sequence without the item at a position (the last by default) (ONNX SequenceErase-11). Raises
    IndexError out of bounds."""
    last = np.asarray(-1) if position is None else position
    place = _position(last, len(sequence), end=False)
    return [*sequence[:place], *sequence[place + 1 :]]


@op("SplitToSequence", 11, 24, infer=_parts_type)
def split_to_sequence(
    call: Call, data: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Array]:
    """Parts along ``axis``: of the sizes listed, of one size (the last may be smaller), or single slices
    (ONNX SplitToSequence-24).

    ``keepdims`` 0 drops the axis of single slices. Raises ValueError when the sizes do not add up.
    """
    total = data.shape[axis]
    if split is None:
        parts = split_array(data, [1] * total, axis)
        return [part if keepdims else part.squeeze(axis) for part in parts]
    if split.ndim:
        return list(split_array(data, ints(split), axis))
    size = int(scalar(split))
    if size <= 0:
        raise ValueError(f"SplitToSequence into parts of {size}")
    return list(split_array(data, [size] * (total // size) + [total % size] * (total % size > 0), axis))


@op("ConcatFromSequence", 11, infer=_joined_type)
def concat_from_sequence(call: Call, sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    """The items joined along an axis, or stacked along a new one (ONNX ConcatFromSequence-11)."""
    if not sequence:
        raise ValueError("ConcatFromSequence of an empty sequence")
    xp = namespace(call, *sequence)
    return xp.stack(sequence, axis=axis) if new_axis else xp.concatenate(sequence, axis=axis)


@op("SequenceMap", 17)
def sequence_map(
    call: Call, sequence: list[Value], *additional: Value, body: GraphCallable
) -> tuple[list[Value], ...]:
    """The body's outputs for each item, as sequences (ONNX SequenceMap-17).

    Further sequences give their item at the same place, tensors are given whole. Raises ValueError when
    sequences differ in length.
    """
    if any(isinstance(other, list) and len(other) != len(sequence) for other in additional):
        raise ValueError("SequenceMap over sequences of different lengths")
    rows = [
        body(item, *(other[place] if isinstance(other, list) else other for other in additional))
        for place, item in enumerate(sequence)
    ]
    return tuple([row[place] for row in rows] for place in range(len(body.outputs)))


@op("Optional", 15, 28, infer=_optional_type)
def optional(call: Call, value: Value = None, *, type: Any = None) -> Value:
    """The value itself, or None for an empty optional of the given type (ONNX Optional-28)."""
    return value


@op("OptionalHasElement", 15, 18, 28, infer=_flag_type)
def optional_has_element(call: Call, value: Value = None) -> Array:
    """Whether there is a value, bool [] (ONNX OptionalHasElement-28)."""
    return call.xp.asarray(value is not None)


@op("OptionalGetElement", 15, 18, 28, infer=_element_type)
def optional_get_element(call: Call, value: Value) -> Value:
    """The value of an optional (ONNX OptionalGetElement-28). Raises ValueError when it is empty."""
    if value is None:
        raise ValueError("OptionalGetElement of an empty optional")
    return value
