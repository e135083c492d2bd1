"""How far the weights of two models lie apart. Read in bounded pieces."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.align_side import constant_tensor
from graphdoc.surgeon.types import dtype_name
from graphdoc.surgeon.weights import PIECE

Array = np.ndarray[Any, Any]

_FORMS = frozenset({"Cast", "Identity", "Transpose", "DequantizeLinear"})
"""Operators that give a constant another form."""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A constant that differs, or that only one side has (then the other name is "").

    kind: added, removed, or changed. a_dtype …: as stored. relative: norm(B − A) ÷ norm(A), inf when A is all
    zero, None when the two cannot be subtracted. largest: the largest |B − A|. differing: elements that
    differ. note: what else there is to say.
    """

    kind: str
    a: str
    b: str
    a_dtype: str = ""
    b_dtype: str = ""
    a_shape: tuple[int, ...] | None = None
    b_shape: tuple[int, ...] | None = None
    bytes: int = 0
    relative: float | None = None
    largest: float | None = None
    differing: int | None = None
    note: str = ""


def tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the content of an initializer or Constant node."""
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    found = (constant_tensor(attribute) for attribute in node.attributes.values() if not attribute.is_ref())
    return next((tensor for tensor in found if tensor is not None), None)


def alone(kind: str, value: ir.Value, name: str) -> WeightChange:
    """Return the entry of a constant that one side alone has."""
    tensor = tensor_of(value)
    if tensor is None:
        return WeightChange(kind, *((name, "") if kind == "removed" else ("", name)))
    dtype, shape = dtype_name(int(tensor.dtype)), _shape(tensor)
    size = 0 if tensor.dtype == ir.DataType.STRING else int(tensor.nbytes)
    if kind == "removed":
        return WeightChange(kind, name, "", a_dtype=dtype, a_shape=shape, bytes=size)
    return WeightChange(kind, "", name, b_dtype=dtype, b_shape=shape, bytes=size)


def compare_weights(a: ir.Value, b: ir.Value, a_name: str, b_name: str) -> WeightChange | None:
    """Return how a constant of B differs from that of A, None when dtype, shape and content are equal."""
    first, second = _stored(a), _stored(b)
    if first is None or second is None:
        return None
    dtypes = dtype_name(int(first.dtype)), dtype_name(int(second.dtype))
    shapes = _shape(first), _shape(second)
    head = ("changed", a_name, b_name, *dtypes, *shapes)
    size = 0 if second.dtype == ir.DataType.STRING else int(second.nbytes)
    try:
        if dtypes[0] == dtypes[1] and shapes[0] == shapes[1] and _equal(first, second):
            return None
        left, right = _real(a), _real(b)
    except ModelError as error:
        return WeightChange(*head, size, note=error.cause)
    if left is None or right is None:
        return WeightChange(*head, size)
    note = ""
    if left.shape != right.shape:
        turned = left.ndim == right.ndim == 2 and left.T.shape == right.shape
        if not turned and left.size != right.size:
            return WeightChange(*head, size, note="another shape")
        left = left.T if turned else left.reshape(right.shape)
        note = "transposed" if turned else "reshaped"
    return WeightChange(*head, size, *distance(left, right), note)


def _shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor.shape.numpy())


def _equal(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    """Whether two tensors of equal dtype and shape have equal bytes."""
    if first is second:
        return True
    left, right = first.numpy(), second.numpy()
    if left.dtype == object or right.dtype == object:
        return bool(left.tolist() == right.tolist())
    return all(np.array_equal(p.view(np.uint8), q.view(np.uint8)) for p, q in _pieces(left, right))


def same_content(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    """Whether two tensors have equal dtype, shape and bytes. Raises ModelError for data that is not there."""
    return first.dtype == second.dtype and _shape(first) == _shape(second) and _equal(first, second)


def content(tensor: ir.TensorProtocol) -> tuple[int, tuple[int, ...], bytes]:
    """Return dtype, shape and a digest of the bytes. Raises ModelError for data that is not there."""
    array, digest = tensor.numpy(), hashlib.blake2b(digest_size=16)
    if array.dtype == object:
        digest.update(repr(array.tolist()).encode())
    else:
        for piece, _ in _pieces(array, array):
            digest.update(piece.view(np.uint8).data)
    return int(tensor.dtype), _shape(tensor), digest.digest()


def _pieces(left: Array, right: Array) -> Iterator[tuple[Array, Array]]:
    flat_left, flat_right = np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)
    for start in range(0, flat_left.size, PIECE):
        yield flat_left[start : start + PIECE], flat_right[start : start + PIECE]


def distance(left: Array, right: Array) -> tuple[float | None, float | None, int]:
    """Return norm(right − left) ÷ norm(left), the largest difference, and how many elements differ.

    The first two are None for values that are no numbers, and where NaN or Inf make them meaningless.
    """
    gap = size = largest = 0.0
    differing = 0
    for p, q in _pieces(left, right):
        x, y = p.astype(np.float64), q.astype(np.float64)
        apart = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        differing += int(np.count_nonzero(apart))
        finite = np.isfinite(x) & np.isfinite(y)
        change = np.where(finite, y, 0.0) - np.where(finite, x, 0.0)
        if np.any(apart & ~finite):
            gap = largest = float("inf")
        gap += float(np.dot(change, change))
        size += float(np.dot(np.where(finite, x, 0.0), np.where(finite, x, 0.0)))
        largest = max(largest, float(np.abs(change).max(initial=0.0)))
    if gap == 0:
        return 0.0, largest, differing
    return (float(np.sqrt(gap / size)) if size > 0 else float("inf")), largest, differing


def _stored(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor in the file behind a constant, looking through Cast, Transpose and dequantisation."""
    tensor = tensor_of(value)
    node = value.producer()
    if tensor is None and node is not None and node.op_type in _FORMS and node.inputs[0] is not None:
        return _stored(node.inputs[0])
    return tensor


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer, a Constant node, or another form of one."""
    return _stored(value) is not None


def _real(value: ir.Value) -> Array | None:
    """Return the numbers that a constant stands for; None for texts and for forms that are not known here."""
    tensor = tensor_of(value)
    if tensor is not None:
        array = tensor.numpy()
        return None if array.dtype.kind in "OSUc" else array
    node = value.producer()
    if node is None or not node.inputs or node.inputs[0] is None:
        return None
    inner = _real(node.inputs[0])
    if inner is None:
        return None
    if node.op_type == "Transpose":
        axes = node.attributes.get_ints("perm", None)
        return inner.transpose(axes) if axes else inner.T
    if node.op_type == "DequantizeLinear":
        return _dequantized(node, inner)
    return inner if node.op_type in _FORMS else None


def _dequantized(node: ir.Node, codes: Array) -> Array | None:
    others = [_real(v) if v is not None else None for v in node.inputs[1:3]]
    scale = others[0] if others else None
    zero = others[1] if len(others) > 1 else None
    if scale is None or scale.ndim > 1:
        return None
    axis = (node.attributes.get_int("axis", 1) or 0) % max(codes.ndim, 1)
    sizes = [1] * codes.ndim
    if scale.size > 1:
        sizes[axis] = scale.size
    offset = 0.0 if zero is None else zero.astype(np.float64).reshape(sizes)
    result: Array = (codes.astype(np.float64) - offset) * scale.astype(np.float64).reshape(sizes)
    return result
