"""Attention (opset 23) and RotaryEmbedding (opset 23) from their pieces."""

from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.table import Dim
from graphdoc.surgeon.builder import Builder
from graphdoc.surgeon.pattern import Recorder
from graphdoc.surgeon.pattern_match import Match
from graphdoc.surgeon.rules.assemble import AssembleRule, float_fault, shape_of
from graphdoc.surgeon.rules.base import Context, Refusal


class Attention(AssembleRule):
    """softmax(scale · Q·Kᵀ + mask) · V → Attention (opset 23), over tensors batch × heads × length × size.

    The scale may stand at Q, at K, at their product, or be shared out. K may have been transposed in any way.
    Where a mask of the lowest float rules out a whole row, the specification and the pieces give the mean of
    V, ONNX Runtime's Attention gives 0: a verification that meets such a row drops the rule.
    """

    name = "assemble-attention"
    target = "Attention"

    def pattern(self, op: Recorder, q: Any, kt: Any, v: Any, mask: Any, factor: Any, divisor: Any) -> Any:
        """Kᵀ is taken as it comes; see :func:`_keys`."""
        product = op.MatMul(q, kt, _name="scores")
        scaled = op.any_of(op.Mul(product, op.scalar(factor)), op.Div(product, op.scalar(divisor)), product)
        weights = op.Softmax(op.any_of(op.Add(scaled, mask), scaled), axis=_last(op), _since=13)
        guarded = op.Where(op.IsNaN(weights), 0, weights, _name="guard")
        return op.MatMul(op.any_of(weights, guarded), v)

    def check(self, match: Match, context: Context) -> Refusal | None:
        """Batch and heads must not be broadcast, and the mask be no larger than the scores."""
        if match.node("guard") is not None:
            return Refusal("weights that are NaN become 0, which the operator does not do")
        fault = float_fault(match, "q")
        shapes = [shape_of(match, name) for name in ("q", "kt", "v")]
        if fault is not None or any(shape is None or len(shape) != 4 for shape in shapes):
            return fault or Refusal("Q, K and V are not known to have four axes")
        q, kt, v = (shape or () for shape in shapes)
        if None in (q[0], q[1], v[1]) or not q[0] == kt[0] == v[0]:
            return Refusal(f"Q, K and V may differ in batch: {q[0]}, {kt[0]}, {v[0]}")
        if kt[1] != v[1] or v[1] not in (q[1], 1):
            return Refusal(f"Q, K and V differ in heads: {q[1]}, {kt[1]}, {v[1]}")
        return None if match["mask"] is None else _mask_fault(match, (q[0], q[1], q[2], kt[3]))

    def rewrite(
        self, op: Builder, q: ir.Value, kt: ir.Value, v: ir.Value, match: Match, context: Context
    ) -> Any:
        """The scale becomes an attribute; K is turned back."""
        scale = 1.0 if match["factor"] is None else match.scalar("factor")
        scale /= 1.0 if match["divisor"] is None else match.scalar("divisor")
        q, of_q = _unscaled(q, context)
        kt, of_k = _unscaled(kt, context)
        scale *= of_q * of_k
        if not 0 < scale < np.inf:
            return Refusal(f"the scale is {scale:g}")
        return op.Attention(q, _keys(op, kt, context), v, _mask(op, q, match), scale=scale)


def _mask_fault(match: Match, scores: tuple[Dim, ...]) -> Refusal | None:
    """Return why what is added to the scores is no mask of the operator.

    It must be broadcast to the scores, not they to it. Its last axis must be whole: the operator fills a
    shorter one up with −∞.
    """
    shape = shape_of(match, "mask")
    if shape is None or not 2 <= len(shape) <= 4:
        return Refusal("the mask is not known to have two to four axes")
    for dim, whole in zip(shape[::-1], scores[::-1], strict=False):
        if dim != 1 and (dim is None or dim != whole):
            return Refusal(f"the mask {_dims(shape)} may be larger than the scores {_dims(scores)}")
    if shape[-1] != scores[-1]:
        return Refusal(f"the last axis of the mask is {shape[-1]}, that of the scores {scores[-1]}")
    return None


def _mask(op: Builder, q: ir.Value, match: Match) -> ir.Value | None:
    """Return the mask, if need be spread over the rows of Q: ONNX Runtime wants a row for each."""
    mask: ir.Value | None = match["mask"]
    shape, rows = (None if mask is None else shape_of(match, "mask")), shape_of(match, "q")
    if mask is None or shape is None or rows is None or shape[-2] == rows[2]:
        return mask
    spread: ir.Value = op.Expand(mask, op.Concat(op.Shape(q, start=2, end=3), op.constant([1]), axis=0))
    return spread


def _dims(shape: tuple[Dim, ...]) -> str:
    return " × ".join("?" if dim is None else str(dim) for dim in shape)


def _unscaled(value: ir.Value, context: Context) -> tuple[ir.Value, float]:
    """Return a value without the constant factor it was multiplied with, and the factor."""
    maker = context.producer(value, "Mul", "Div")
    if maker is None:
        return value, 1.0
    pairs = [(maker.inputs[0], maker.inputs[1])]
    if maker.op_type == "Mul":
        pairs.append((maker.inputs[1], maker.inputs[0]))
    for rest, constant in pairs:
        array = context.array(constant)
        if rest is None or array is None or array.shape not in ((), (1,)):
            continue
        factor = float(array.reshape(-1)[0])
        return rest, factor if maker.op_type == "Mul" else (1 / factor if factor else np.inf)
    return value, 1.0


def _keys(op: Builder, kt: ir.Value, context: Context) -> ir.Value:
    """Return K for Kᵀ: what was transposed, where that can be seen, else Kᵀ transposed once more."""
    maker = context.producer(kt, "Transpose", "Reshape")
    if maker is not None and maker.inputs[0] is not None:
        perm = context.attribute(maker, "perm")
        if maker.op_type == "Transpose" and perm == [0, 1, 3, 2]:
            return maker.inputs[0]
        if maker.op_type == "Transpose" and perm == [0, 2, 3, 1]:
            turned: ir.Value = op.Transpose(maker.inputs[0], perm=[0, 2, 1, 3])
            return turned
        source = _folded_keys(kt, maker, context)
        if source is not None:
            return source
    back: ir.Value = op.Transpose(kt, perm=[0, 1, 3, 2])
    return back


def _folded_keys(kt: ir.Value, maker: ir.Node, context: Context) -> ir.Value | None:
    """Return K where batch and heads were put together while it was transposed."""
    swapped = context.producer(maker.inputs[0], "Transpose")
    folded = None if swapped is None else context.producer(swapped.inputs[0], "Reshape")
    if swapped is None or folded is None or context.attribute(swapped, "perm") != [0, 2, 1]:
        return None
    whole, flat, last = (context.type_of(each).shape for each in (folded.inputs[0], folded.outputs[0], kt))
    if whole is None or flat is None or last is None or None in (*whole, *flat[1:], *last):
        return None
    if len(whole) != 4 or flat[1:] != whole[2:] or last != (*whole[:2], whole[3], whole[2]):
        return None
    return folded.inputs[0]


class RotaryEmbedding(AssembleRule):
    """x · cos + (−second half of x, first half of x) · sin → RotaryEmbedding (opset 23).

    X is batch × heads × length × size. The halves of cos and sin must be equal, as they are where the angles
    were doubled; the operator takes one of them.
    """

    name = "assemble-rotary-embedding"
    target = "RotaryEmbedding"

    def pattern(
        self,
        op: Recorder,
        x: Any,
        cos: Any,
        sin: Any,
        zero: Any,
        middle: Any,
        end: Any,
        axis: Any,
        step: Any = None,
        sizes: Any = None,
    ) -> Any:
        """The halves by two Slices or one Split."""
        first = op.Slice(x, op.scalar(zero), op.scalar(middle), op.scalar(axis), op.scalar(step))
        second = op.Slice(x, op.scalar(middle), op.scalar(end), op.scalar(axis), op.scalar(step))
        low, high = op.Split(x, sizes, axis=_last(op), _outputs=2, _name="split", _attributes="any")
        turned = op.any_of(
            op.Concat(op.Neg(second), first, axis=_last(op)), op.Concat(op.Neg(high), low, axis=_last(op))
        )
        return op.Add(op.Mul(x, cos), op.Mul(turned, sin))

    def check(self, match: Match, context: Context) -> Refusal | None:
        """The halves must be halves, and cos and sin one for all heads."""
        shape, sizes = shape_of(match, "x"), [shape_of(match, name) for name in ("cos", "sin")]
        if shape is None or len(shape) != 4 or not isinstance(shape[3], int) or shape[3] % 2:
            return Refusal("x is not known to have four axes, the last of an even size")
        if sizes[0] is None or sizes[0] != sizes[1] or len(sizes[0]) != 4 or None in sizes[0]:
            return Refusal("cos and sin are not known to have the same four axes")
        if sizes[0][1] != 1 or sizes[0][2:] != shape[2:]:
            return Refusal(
                f"cos is {_dims(sizes[0])}, the operator wants one for all heads of {_dims(shape)}"
            )
        if sizes[0][0] not in (1, shape[0]):
            return Refusal(f"cos is for a batch of {sizes[0][0]}, x is one of {shape[0]}")
        return _halves_fault(match, shape[3], context) or float_fault(
            match, "x", "float16", "bfloat16", "float32"
        )

    def rewrite(self, op: Builder, x: ir.Value, cos: ir.Value, sin: ir.Value, match: Match) -> Any:
        """The operator takes cos and sin without heads, and half of them."""
        shape, wide = match.type("x").shape or (), match.type("cos").shape or ()
        caches = [_half(op, value, int(wide[3] or 0), match.context) for value in (cos, sin)]
        if wide[0] != shape[0]:
            batch = op.Shape(x, start=0, end=1)
            rest = op.Shape(caches[0], start=1)
            size = op.Concat(batch, rest, axis=0)
            caches = [op.Expand(value, size) for value in caches]
        return op.RotaryEmbedding(x, *caches)


def _last(op: Recorder) -> Any:
    return op.attr("last", where=lambda axis: axis in (-1, 3), says="the last axis")


def _halves_fault(match: Match, size: int, context: Context) -> Refusal | None:
    """Return why x is not cut in two halves, or why those of cos or sin are not known to be equal."""
    split = match.node("split")
    if split is not None:
        shapes = [context.type_of(value).shape for value in split.outputs]
        if any(shape is None or shape[-1] != size // 2 for shape in shapes):
            return Refusal("x is not split into halves")
    else:
        step = 1.0 if match["step"] is None else match.scalar("step")
        start, middle, end, axis = (match.scalar(name) for name in ("zero", "middle", "end", "axis"))
        if (start, middle, step) != (0, size // 2, 1) or end < size or axis not in (3, -1):
            return Refusal(f"x is cut at {middle:g} of {size}, the operator wants halves")
    for name in ("cos", "sin"):
        if not _is_doubled(match[name], size, context):
            return Refusal(f"the halves of {name} are not known to be equal")
    return None


_ELEMENTWISE = ("Cos", "Sin", "Cast")


def _is_doubled(value: ir.Value, size: int, context: Context) -> bool:
    """Whether a value's halves along the last axis are equal: it comes from a Concat of one thing twice."""
    seen: ir.Value | None = value
    while seen is not None:
        array = context.array(seen)
        if array is not None:
            half = size // 2
            return array.shape[-1] == size and np.array_equal(array[..., :half], array[..., half:])
        maker = context.producer(seen, *_ELEMENTWISE, "Mul", "Unsqueeze", "Concat")
        if maker is None:
            return False
        if maker.op_type == "Concat":
            rank = len(context.type_of(seen).shape or ())
            last = context.attribute(maker, "axis") in (-1, rank - 1)
            return last and len(maker.inputs) == 2 and maker.inputs[0] is maker.inputs[1]
        if maker.op_type == "Mul":
            seen = _unscaled(seen, context)[0]
            if seen is maker.outputs[0]:
                return False
            continue
        if maker.op_type == "Unsqueeze" and not _is_heads(maker, context):
            return False
        seen = maker.inputs[0]
    return False


def _is_heads(unsqueeze: ir.Node, context: Context) -> bool:
    """Whether an Unsqueeze adds the axis of heads to batch × length × size."""
    array = context.array(unsqueeze.inputs[1]) if len(unsqueeze.inputs) > 1 else None
    return array is not None and array.reshape(-1).tolist() in ([1], [-3])


def _half(op: Builder, value: ir.Value, size: int, context: Context) -> ir.Value:
    """Return the first half of cos or sin, as batch × length × size/2."""
    maker = context.producer(value, "Unsqueeze")
    if maker is not None and _is_heads(maker, context) and maker.inputs[0] is not None:
        flat = maker.inputs[0]
    else:
        flat = op.Squeeze(value, op.constant([1]))
    half: ir.Value = op.Slice(flat, op.constant([0]), op.constant([size // 2]), op.constant([2]))
    return half


RULES = (Attention(), RotaryEmbedding())
