"""Scales, shifts and pads go into the weights of the linear operator beside them.

New weights are computed in float64 and rounded once, so a result may differ from the original by rounding.
Only float32 and float64 models are changed: in half precision, rounding the weights again would cost what
the network can ill afford. A weight that something else reads is copied, not changed.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.external import ExternalWeights
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, rule
from graphdoc.surgeon.rules.fold import materialised
from graphdoc.surgeon.rules.identity import present

Outcome = Edit | Refusal | None
Array = np.ndarray[Any, Any]

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LARGEST_COPY, MOST_COPIED = 2**26, 2**27
"""Bytes of weights in files that are changed, at once and in all: a large model is not read into memory."""

_PRECISE = (np.dtype(np.float32), np.dtype(np.float64))


# ---- reading


def linear_before(node: ir.Node, place: int, context: Context) -> ir.Node | Refusal | None:
    """Return the linear operator that alone feeds an input and whose weights are constant."""
    value = node.inputs[place]
    found = context.producer(value, *LINEAR)
    if found is None or value is None or len(found.inputs) < 2:
        return None
    if not context.single_use(value):
        return Refusal(f"something else reads the result of {found.op_type}")
    if _weights(found, context) is None:
        return (
            Refusal(f"the weights of {found.op_type} are not constant") if found.op_type != "MatMul" else None
        )
    if present(found, 2) and _constant(found.inputs[2], context) is None:
        return Refusal(f"the bias of {found.op_type} is not constant")
    if context.type_of(found.inputs[1]).dtype not in _PRECISE:
        return Refusal("its weights would be rounded to half precision again")
    return found


def _constant(value: ir.Value | None, context: Context) -> Array | None:
    """Return the content of a stored constant; not of one that folding left to be computed."""
    return None if value is None or value in context.virtual else materialised(value, context)


def _weights(node: ir.Node, context: Context) -> Array | None:
    if _filled(node, context):
        return materialised(node.inputs[1], context) if node.inputs[1] is not None else None
    return _constant(node.inputs[1], context)


def _filled(node: ir.Node, context: Context) -> ir.Node | None:
    """Return the ConstantOfShape that makes the weights: it stays one, with another number."""
    return context.producer(node.inputs[1], "ConstantOfShape")


def channels(node: ir.Node, weights: Array, context: Context) -> int:
    """Return the number of output channels (of Gemm and MatMul: columns)."""
    if node.op_type == "Conv":
        return int(weights.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weights.shape[1]) * int(context.attribute(node, "group", 1))
    if node.op_type == "Gemm":
        return int(weights.shape[0 if context.attribute(node, "transB", 0) else 1])
    return int(weights.shape[-1])


def _per_channel(array: Array, node: ir.Node, weights: Array, context: Context) -> Array | None:
    """Return an operand as one float64 number per output channel, None when it varies along other axes.

    It must not widen the result: its rank is at most that of the result.
    """
    count = channels(node, weights, context)
    if node.op_type in ("Conv", "ConvTranspose"):
        rank, axis = weights.ndim, 1
    elif node.op_type == "Gemm":
        rank, axis = 2, 1
    else:
        shape = context.type_of(node.outputs[0]).shape
        if weights.ndim != 2 or shape is None or not shape:
            return None
        rank, axis = len(shape), len(shape) - 1
    if array.ndim > rank:
        return None
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(size != 1 for place, size in enumerate(full.shape) if place != axis):
        return None
    if full.shape[axis] not in (1, count):
        return None
    return np.broadcast_to(full.reshape(-1).astype(np.float64), (count,))


# ---- writing


def _scaled(node: ir.Node, weights: Array, factor: Array, context: Context) -> Array:
    """Return weights times one factor per output channel, in float64."""
    wide = weights.astype(np.float64)
    if node.op_type == "Conv":
        return wide * factor.reshape((-1,) + (1,) * (weights.ndim - 1))
    if node.op_type == "ConvTranspose":
        group = int(context.attribute(node, "group", 1))
        split = wide.reshape((group, weights.shape[0] // group, *weights.shape[1:]))
        return (split * factor.reshape((group, 1, -1) + (1,) * (weights.ndim - 2))).reshape(weights.shape)
    if node.op_type == "Gemm" and context.attribute(node, "transB", 0):
        return wide * factor.reshape(-1, 1)
    return wide * factor


def _rounded(array: Array, dtype: Any) -> Array | None:
    """Return an array in its dtype, None when a finite value does not fit or becomes zero."""
    with np.errstate(all="ignore"):
        narrow = array.astype(dtype)
    if not np.isfinite(narrow).all():
        return None
    tiny = np.finfo(dtype).tiny
    lost = (np.abs(narrow) < tiny) & (array != 0)
    return None if lost.any() else narrow


def fuse(node: ir.Node, found: ir.Node, factor: Array, shift: Array | None, context: Context) -> Outcome:
    """Put y · factor + shift of a linear operator's result into its weights and bias.

    A MatMul has no bias: callers give it no shift.
    factor, shift: one float64 number per output channel. ``node`` is what computed them; its output becomes
    that of the linear operator.
    """
    weights = _weights(found, context)
    if weights is None:
        return None
    if not (factor == 1).all() and _in_files(found, context):
        return Refusal(f"its weights lie in a file, and {weights.nbytes / 1e6:.3g} MB would be copied")
    with np.errstate(all="ignore"):
        changed = _rounded(_scaled(found, weights, factor, context), weights.dtype)
        bias = _new_bias(found, factor, shift, context)
    rounded = None if bias is None else _rounded(bias, weights.dtype)
    if changed is None or (bias is not None and rounded is None):
        return Refusal("the new weights would not be finite, or lose digits near zero")
    refusal = _affordable(found, factor, changed, context)
    if refusal:
        return refusal
    if not (factor == 1).all():
        context.set_input(found, 1, _put_weights(found, changed, context))
    if rounded is not None:
        _put_bias(found, rounded, context)
    context.replace(node.outputs[0], found.outputs[0])
    return Edit(f"{node.op_type} went into the weights of {found.op_type} '{found.name}'")


def _in_files(found: ir.Node, context: Context) -> bool:
    """Whether weights lie in a file and are too many to be changed, since what is changed lies in memory."""
    tensor = found.inputs[1].const_value if found.inputs[1] is not None else None
    if not isinstance(tensor, ExternalWeights):
        return False
    return tensor.nbytes > LARGEST_COPY or context.copied + tensor.nbytes > MOST_COPIED


def _affordable(found: ir.Node, factor: Array, changed: Array, context: Context) -> Refusal | None:
    """Refuse when the old weights stay for somebody else and their copy is too large.

    Weights that a ConstantOfShape makes take no room, as long as all of them are the same number.
    """
    value = found.inputs[1]
    if value is None or (factor == 1).all():
        return None
    if _filled(found, context):
        same = bool((factor == factor[0]).all())
        return None if same else Refusal("its weights are one number, and would become different ones")
    if context.single_use(value):
        return None
    if context.growth + changed.nbytes > context.options.max_growth:
        return Refusal(f"its weights are shared, and a copy would add {changed.nbytes / 1e6:.3g} MB")
    context.growth += changed.nbytes
    return None


def _put_weights(found: ir.Node, changed: Array, context: Context) -> ir.Value:
    """Return the new weights as a value in front of a linear operator."""
    filled = _filled(found, context)
    value = found.inputs[1]
    name = None if value is None else value.name
    if value is not None and isinstance(value.const_value, ExternalWeights):
        context.copied += changed.nbytes
    if filled is None:
        return context.constant(changed, found, name=f"{name}_scaled")
    number = ir.AttrTensor("value", ir.Tensor(changed.reshape(-1)[:1]))
    value = context.node("ConstantOfShape", filled.inputs, {"value": number}, like=found)[0]
    context.virtual[value] = changed
    return value


def _new_bias(found: ir.Node, factor: Array, shift: Array | None, context: Context) -> Array | None:
    """Return the bias that belongs to scaled weights, None when there is none."""
    old = _constant(found.inputs[2], context) if present(found, 2) else None
    if old is None:
        return None if shift is None or not shift.any() else np.array(shift)
    scale = float(context.attribute(found, "beta", 1.0)) if found.op_type == "Gemm" else 1.0
    total = old.astype(np.float64) * scale * factor
    return total if shift is None else total + shift


def _put_bias(found: ir.Node, bias: Array, context: Context) -> None:
    name = found.inputs[2].name if present(found, 2) and found.inputs[2] is not None else f"{found.name}_bias"
    context.set_input(found, 2, context.constant(bias, found, name=name))
    if found.op_type == "Gemm" and float(context.attribute(found, "beta", 1.0)) != 1.0:
        context.set_attribute(found, "beta", None)


# ---- rules: what comes after


@rule("fuse-batchnorm", "linear", "BatchNormalization")
def fuse_batchnorm(node: ir.Node, context: Context) -> Outcome:
    """Conv, ConvTranspose, Gemm → BatchNormalization: into the weights."""
    found = linear_before(node, 0, context)
    if found is None or isinstance(found, Refusal):
        return found
    refusal = _not_inference(node, context)
    if refusal:
        return refusal
    parameters = [_constant(value, context) for value in node.inputs[1:5]]
    if any(array is None for array in parameters):
        return Refusal("a parameter is not constant")
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in parameters)
    if found.op_type == "MatMul" or (found.op_type == "Gemm" and not _row_bias(found, context)):
        return Refusal(f"{found.op_type} has no bias to take the shift")
    epsilon = float(np.float32(context.attribute(node, "epsilon", 1e-5)))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
    if not np.isfinite(factor).all():
        return Refusal("a variance plus epsilon is not positive")
    return fuse(node, found, factor, shift - mean * factor, context)


def _not_inference(node: ir.Node, context: Context) -> Refusal | None:
    if context.attribute(node, "training_mode", 0):
        return Refusal("it is in training mode")
    if context.opset() < 7 and not context.attribute(node, "is_test", 0):
        return Refusal("it is in training mode")
    if context.opset() < 14 and any(value.name for value in node.outputs[1:]):
        return Refusal("it lists more outputs than one, so it is in training mode")
    if not context.attribute(node, "spatial", 1):
        return Refusal("its parameters vary over the image")
    return None


def _row_bias(found: ir.Node, context: Context) -> bool:
    """Whether a Gemm's bias, if any, is the same for all rows."""
    if not present(found, 2):
        return True
    shape = context.type_of(found.inputs[2]).shape
    return shape is not None and (len(shape) < 2 or shape[0] == 1)


def _operand(
    node: ir.Node, context: Context, places: tuple[int, ...]
) -> tuple[ir.Node, int] | Refusal | None:
    """Return the linear operator before an elementwise node and the place of the constant beside it."""
    for place in places:
        if _constant(node.inputs[1 - place], context) is None:
            continue
        found = linear_before(node, place, context)
        if found is None:
            continue
        return found if isinstance(found, Refusal) else (found, 1 - place)
    return None


def _fuse_elementwise(node: ir.Node, context: Context, places: tuple[int, ...]) -> Outcome:
    pair = _operand(node, context, places)
    if pair is None or isinstance(pair, Refusal):
        return pair
    found, place = pair
    weights, array = _weights(found, context), _constant(node.inputs[place], context)
    if weights is None or array is None:
        return None
    if found.op_type == "Gemm" and not _row_bias(found, context):
        return Refusal("the bias of Gemm varies over the rows")
    number = _per_channel(array, found, weights, context)
    if number is None:
        return Refusal("the constant is not one number per channel")
    return _apply(node, found, number, context)


def _apply(node: ir.Node, found: ir.Node, number: Array, context: Context) -> Outcome:
    one = np.ones_like(number)
    if node.op_type == "Mul":
        return fuse(node, found, number, None, context)
    if node.op_type == "Div":
        if not number.all():
            return Refusal("it divides by zero")
        return fuse(node, found, 1.0 / number, None, context)
    if found.op_type == "MatMul":
        return None
    if not np.isfinite(number).all():
        return Refusal("the constant is not finite")
    return fuse(node, found, one, -number if node.op_type == "Sub" else number, context)


@rule("fuse-scale", "linear", "Mul", "Div")
def fuse_scale(node: ir.Node, context: Context) -> Outcome:
    """A linear operator times a constant per channel: into the weights."""
    return _fuse_elementwise(node, context, (0, 1) if node.op_type == "Mul" else (0,))


@rule("fuse-shift", "linear", "Add", "Sub")
def fuse_shift(node: ir.Node, context: Context) -> Outcome:
    """A linear operator plus a constant per channel: into the bias."""
    return _fuse_elementwise(node, context, (0, 1) if node.op_type == "Add" else (0,))


# ---- rules: what comes before


@rule("fuse-pad", "linear", "Conv")
def fuse_pad(node: ir.Node, context: Context) -> Outcome:
    """Zero padding before a Conv: into its pads."""
    pad = context.producer(node.inputs[0], "Pad")
    if pad is None:
        return None
    mode = context.attribute(node, "auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID"):
        return Refusal(f"the Conv pads by itself ({mode})")
    pads = _zero_pads(pad, context)
    if isinstance(pads, Refusal):
        return pads
    rank = len(pads) // 2
    spatial = pads[2:rank] + pads[rank + 2 :]
    if any(pads[:2]) or any(pads[rank : rank + 2]):
        return Refusal("it pads the batch or the channels")
    if any(size < 0 for size in spatial):
        return Refusal("it cuts off instead of padding")
    own = (
        list(context.attribute(node, "pads", [0] * len(spatial))) if mode == "NOTSET" else [0] * len(spatial)
    )
    context.set_attribute(node, "pads", [a + b for a, b in zip(own, spatial, strict=True)])
    context.set_attribute(node, "auto_pad", None)
    context.set_input(node, 0, pad.inputs[0])
    return Edit("took the Pad as its own")


def _zero_pads(pad: ir.Node, context: Context) -> list[int] | Refusal:
    """Return what a Pad with zeros adds before and after each axis."""
    if context.attribute(pad, "mode", "constant") != "constant":
        return Refusal("it does not pad with a constant")
    if context.opset() < 11:
        pads = context.attribute(pad, "pads", context.attribute(pad, "paddings"))
        fill: Any = context.attribute(pad, "value", 0.0)
    else:
        array = context.array(pad.inputs[1])
        pads = None if array is None else array.tolist()
        filled = context.array(pad.inputs[2]) if present(pad, 2) else np.zeros(())
        fill = None if filled is None else filled.item()
    if present(pad, 3):
        return Refusal("it pads chosen axes")
    if pads is None or fill is None:
        return Refusal("what it pads with is not constant")
    return list(pads) if fill == 0 else Refusal("it pads with another number than 0")


# ---- MatMul and Add


@rule("matmul-add", "linear", "Add")
def matmul_add(node: ir.Node, context: Context) -> Outcome:
    """MatMul + Add of matrices → Gemm, where the sum does not widen the product."""
    for place in (0, 1):
        product = context.producer(node.inputs[place], "MatMul")
        if product is not None:
            outcome = _to_gemm(node, product, node.inputs[1 - place], context)
            if outcome is not None:
                return outcome
    return None


def _to_gemm(node: ir.Node, product: ir.Node, bias: ir.Value | None, context: Context) -> Outcome:
    a, b, result, added = (context.type_of(value) for value in (*product.inputs, product.outputs[0], bias))
    if a.shape is None or b.shape is None or len(a.shape) != 2 or len(b.shape) != 2:
        return Refusal("its operands are not known to be matrices")
    if result.dtype not in _PRECISE:
        return Refusal("only float32 and float64 have the same rounding")
    if not context.single_use(product.outputs[0]):
        return Refusal("something else reads the product")
    if added.shape is None or not _fits(added.shape, (a.shape[0], b.shape[1])):
        return Refusal("the sum may be wider than the product")
    if context.opset() < 7:
        return None
    made = context.node("Gemm", [*product.inputs, bias], {}, like=node)[0]
    context.replace(node.outputs[0], made)
    return Edit("made them a Gemm")


def _fits(bias: tuple[Any, ...], product: tuple[Any, ...]) -> bool:
    """Whether a bias broadcasts to the product without changing its shape."""
    if len(bias) > 2:
        return False
    pairs = zip(bias[::-1], product[::-1], strict=False)
    return all(size == 1 or (size is not None and size == whole) for size, whole in pairs)


RULES = (fuse_batchnorm, fuse_pad, matmul_add, fuse_scale, fuse_shift)
