"""Rules about nodes whose constants or types make wrong numbers."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from graphdoc.surgeon.lint import Fault, Severity, rule
from graphdoc.surgeon.subject import Subject, constant, title
from graphdoc.surgeon.types import dtype_name

_ERROR, _WARNING, _REMARK = Severity.ERROR, Severity.WARNING, Severity.REMARK

_SCALES = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
}
"""Operators and which of their inputs are scales."""

_EXACT = {
    "bool": 1,
    "int8": 7,
    "uint8": 8,
    "int16": 15,
    "uint16": 16,
    "int32": 31,
    "uint32": 32,
    "int64": 63,
    "uint64": 64,
    "bfloat16": 8,
    "float16": 11,
    "float32": 24,
    "float64": 53,
}
"""Bits of a whole number that a dtype holds exactly."""

_FLOATS = ("bfloat16", "float16", "float32", "float64")
_RANGE = {"float16": 16, "bfloat16": 128, "float32": 128, "float64": 1024}
"""Binary exponent at which a float ends."""


@rule(
    "batchnorm-variance",
    _ERROR,
    harm="the square root of it is NaN or divides by 0",
    mend="export again from a model whose running variance is sound",
)
def batchnorm_variance(subject: Subject) -> Iterator[Fault]:
    """A BatchNormalization whose variance is negative, or 0 without epsilon."""
    for node in subject.ir_nodes():
        if node.op_type != "BatchNormalization" or node.domain or len(node.inputs) < 5:
            continue
        variance = constant(node.inputs[4])
        if variance is None or not variance.size:
            continue
        wide = variance.astype(np.float64)
        epsilon = node.attributes.get_float("epsilon", 1e-5) or 0.0
        bad = int(np.count_nonzero((wide < 0) | (wide + epsilon <= 0)))
        if bad:
            what = f"{bad} of {wide.size} variances are negative or 0"
            yield Fault(title(node), f"{what}, the least is {float(np.nanmin(wide)):.2g}")


@rule(
    "quant-scale",
    _ERROR,
    harm="0 divides by zero, a negative scale turns the sign, NaN spreads",
    mend="calibrate again; a channel that is always 0 needs a small positive scale",
)
def quant_scale(subject: Subject) -> Iterator[Fault]:
    """A quantisation scale that is 0, negative, NaN or infinite."""
    for node in subject.ir_nodes():
        for place in _SCALES.get(node.op_type, ()):
            scale = constant(node.inputs[place]) if place < len(node.inputs) else None
            if scale is None:
                continue
            wide = scale.astype(np.float64)
            bad = int(np.count_nonzero(~(wide > 0) | ~np.isfinite(wide)))
            if bad:
                yield Fault(
                    title(node), f"{bad} of {wide.size} scales of input {place} are not positive numbers"
                )


@rule(
    "quant-zero-point",
    _REMARK,
    harm="without it uint8 is assumed; tools that expect int8 or a pair with equal zero points go wrong",
    mend="give the zero point, or output_dtype (opset 21)",
)
def quant_zero_point(subject: Subject) -> Iterator[Fault]:
    """A QuantizeLinear without a zero point and without output_dtype."""
    for node in subject.ir_nodes():
        if node.op_type != "QuantizeLinear" or "output_dtype" in node.attributes:
            continue
        if len(node.inputs) < 3 or node.inputs[2] is None:
            yield Fault(title(node), "no zero point: the result is uint8")


@rule(
    "lossy-cast",
    _WARNING,
    harm="digits or range are lost in between and do not come back",
    mend="cast straight to the last type",
)
def lossy_cast(subject: Subject) -> Iterator[Fault]:
    """Two Casts in a row, the first to a type that holds less than both the source and the target."""
    for node in subject.ir_nodes():
        before = node.inputs[0].producer() if node.op_type == "Cast" and node.inputs[0] is not None else None
        if before is None or before.op_type != "Cast" or before.domain or node.domain:
            continue
        source = subject.dtype(before.inputs[0])
        middle, target = _target(before), _target(node)
        if loses(source, middle) and loses(target, middle) and (middle in _FLOATS or source not in _FLOATS):
            yield Fault(title(node), f"{source} → {middle} → {target}")


def _target(node: ir.Node) -> str:
    return dtype_name(node.attributes.get_int("to", 0) or 0)


def loses(wide: str, narrow: str) -> bool:
    """Whether some value of ``wide`` cannot be held by ``narrow``, to its last digit."""
    if wide not in _EXACT or narrow not in _EXACT or wide == narrow:
        return False
    signed = wide.startswith("int") or wide in _FLOATS
    unsigned = narrow.startswith("uint") or narrow == "bool"
    if _EXACT[narrow] < _EXACT[wide] or (signed and unsigned):
        return True
    if wide in _FLOATS:
        return narrow not in _FLOATS or _RANGE[narrow] < _RANGE[wide]
    return narrow == "float16" and _EXACT[wide] > 16


@rule(
    "empty-clip",
    _WARNING,
    harm="every element becomes the same number",
    mend="exchange min and max",
)
def empty_clip(subject: Subject) -> Iterator[Fault]:
    """A Clip whose constant minimum exceeds its maximum."""
    for node in subject.ir_nodes():
        if node.op_type != "Clip" or node.domain:
            continue
        low, high = (_bound(node, place, name) for place, name in ((1, "min"), (2, "max")))
        if low is not None and high is not None and low > high:
            yield Fault(title(node), f"min {low:g} is above max {high:g}")


def _bound(node: ir.Node, place: int, name: str) -> float | None:
    if name in node.attributes:
        return node.attributes.get_float(name, None)
    array = constant(node.inputs[place]) if place < len(node.inputs) else None
    return None if array is None or array.size != 1 else float(array.reshape(()))
