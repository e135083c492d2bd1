"""The rules of reverse passes (engine/vjp.py): from the cotangents of a node's outputs to its inputs'."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.gradient import DOMAIN
from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.quantize import bounds, is_integer, spread
from graphdoc.engine.ops.table import Array, Call, canonical_domain, find

ENTRIES = 256
"""Entries of an input up to which its derivative is taken one by one, from differences."""

STEP = 1e-6
"""Of differences in float64, relative to the larger of 1 and the value: their error is about 1e-10."""


class NoRuleError(Exception):
    """There is no derivative of an operator, or not in this form; the text says which."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that has run.

    source: as the graph has it. forward: called with inputs, computes the outputs. cotangents: one per
    output, None where nothing arrives. wanted: per input, whether its cotangent is asked for.
    """

    source: ir.Node
    domain: str
    op: str
    call: Call
    forward: Callable[..., Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    cotangents: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    wanted: tuple[bool, ...]

    def again(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs for other inputs."""
        results = self.forward(*inputs)
        return results if isinstance(results, tuple) else (results,)

    def full(self, place: int) -> Array:
        """Return an output's cotangent, zeros where nothing arrives."""
        given = self.cotangents[place]
        if given is not None:
            return given
        return np.zeros(self.outputs[place].shape, np.result_type(wide(self.outputs[place]), np.float32))


Parts: TypeAlias = Sequence[Array | None]
Rule: TypeAlias = Callable[[Node], Parts]

RULES: dict[str, Rule] = {}
"""Operators of the default domain whose rule is not their plain derivative."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def is_float(x: Any) -> bool:
    """Whether a value is a tensor of floats of any width."""
    return isinstance(x, np.ndarray) and (x.dtype.kind == "f" or "float" in x.dtype.name)


def derive(node: Node) -> Parts:
    """Return one cotangent per input, None where it is not asked for or nothing gets through.

    Raises NoRuleError.
    """
    if not any(node.wanted):
        return ()
    if any(isinstance(x, list) for x in (*node.inputs, *node.outputs)):
        raise NoRuleError("sequences are not followed")
    name = node.op if canonical_domain(node.domain) == "" else f"{node.domain}.{node.op}"
    for way in (RULES.get(name), _shared if canonical_domain(node.domain) == "" else None):
        if way is not None and (parts := way(node)) is not _NONE:
            return parts
    try:
        return by_differences(node)
    except NoRuleError:
        parts = through_body(node) if canonical_domain(node.domain) == "" else _NONE
        if parts is _NONE:
            raise
        return parts


def through_body(node: Node) -> Parts:
    """Go back through the function body of the operator's schema, where there is one."""
    body = import_module("graphdoc.engine.vjp_body")  # which needs the pass, which needs the rules
    found: Parts | None = body.through_schema(node)
    return _NONE if found is None else found


_NONE: Parts = ("no rule",)


def _shared(node: Node) -> Parts:
    """Take the derivative that the Gradient operator uses."""
    row = find(DOMAIN, node.op, node.call.version)
    if row is None:
        return _NONE
    if any(c is not None for c in node.cotangents[1:]):
        raise NoRuleError("only the first output is followed")
    count = 1 + max(place for place, wanted in enumerate(node.wanted) if wanted)
    call = Call(np, node.call.version, count, rng=node.call.rng)
    values = [wide(x) if is_float(x) else x for x in (*node.inputs, node.outputs[0])]
    cotangent = node.cotangents[0]
    if is_float(values[-1]) and cotangent is not None:
        cotangent = cotangent.astype(values[-1].dtype, copy=False)
    try:
        parts: Parts = row.evaluate(call, cotangent, *values, **node.attributes)
    except (TypeError, ValueError) as error:
        raise NoRuleError(str(error)) from error
    return parts


# ---- differences ---------------------------------------------------------------------------------------

ELEMENTWISE = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cosh", "Elu", "Mish", "Selu", "Shrink"),
        *("Sinh", "Softsign", "Swish", "Tan", "ThresholdedRelu"),
        *(f"com.microsoft.{name}" for name in ("Gelu", "QuickGelu", "FastGelu", "BiasGelu")),
    }
)
"""Operators each of whose results follows from one element of the first input."""


def by_differences(node: Node) -> Parts:
    """Return cotangents from central differences in float64. Raises NoRuleError for large inputs."""
    name = node.op if canonical_domain(node.domain) == "" else f"{node.domain}.{node.op}"
    if name in ELEMENTWISE and not any(node.wanted[1:]):
        return (_slopes(node),)
    return [_entry_by_entry(node, place) if wanted else None for place, wanted in enumerate(node.wanted)]


def _doubled(node: Node) -> list[Any]:
    return [x.astype(np.float64) if is_float(x) else x for x in node.inputs]


def _slopes(node: Node) -> Array:
    x, *rest = _doubled(node)
    step = STEP * np.maximum(1, np.abs(x))
    high, low = (node.again(x + sign * step, *rest)[0] for sign in (1, -1))
    return node.full(0) * ((high - low) / (2 * step))


def _entry_by_entry(node: Node, place: int) -> Array:
    x = node.inputs[place]
    if not is_float(x):
        raise NoRuleError("no rule, and its input is not a tensor of floats")
    if x.size > ENTRIES:
        raise NoRuleError(f"no rule, and {x.size} entries are too many for differences")
    arguments = _doubled(node)
    base = arguments[place]
    found = np.zeros(base.shape)
    for index in np.ndindex(base.shape):
        step = STEP * max(1.0, abs(float(base[index])))
        ends = []
        for sign in (1, -1):
            moved = base.copy()
            moved[index] += sign * step
            arguments[place] = moved
            ends.append(_try(node, arguments))
        found[index] = _along(node, *ends) / (2 * step)
    return found


def _try(node: Node, arguments: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return node.again(*arguments)
    except (TypeError, ValueError) as error:
        raise NoRuleError(f"does not run in float64: {error}") from error


def _along(node: Node, high: Sequence[Any], low: Sequence[Any]) -> float:
    """Return what the cotangents make of the difference between two results."""
    total = 0.0
    for cotangent, above, below in zip(node.cotangents, high, low, strict=False):
        if cotangent is not None:
            if above.shape != below.shape:
                raise NoRuleError("the shape of its result depends on its values")
            total += float(np.vdot(cotangent, above.astype(np.float64) - below.astype(np.float64)))
    return total


# ---- data that moves -----------------------------------------------------------------------------------

MOVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Slice", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "Trilu"), (0,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "ReverseSequence", "Compress", "Split"), (0,)),
    "CenterCropPad": (0,),
    "Pad": (0, 3),
    "ScatterElements": (0, 2),
    "Scatter": (0, 2),
    "ScatterND": (0, 2),
    "Concat": (),
}
"""Operators whose results are copies of elements of some inputs, and which ones; (): all of them. Pad's third
input fills what it adds."""


@rule(*MOVES)
def moved(node: Node) -> Parts:
    """Move numbers instead of the data: they tell where each element came from, in every version."""
    if node.attributes.get("reduction", "none") not in ("none", b"none"):
        raise NoRuleError("scattering with a reduction")
    places = MOVES[node.op] or tuple(range(len(node.inputs)))
    numbered, starts = _numbered(node, [p for p in places if p < len(node.inputs)])
    if "value" in node.attributes:  # what Pad fills with, before opset 11
        node = replace(node, forward=partial(node.forward, value=0.0))
    results = node.again(*numbered)
    return _brought_back(node, results, starts)


def _numbered(node: Node, places: Sequence[int]) -> tuple[list[Any], dict[int, int]]:
    """Return the inputs with elements numbered from 1 on, and each one's first number."""
    inputs, starts, total = list(node.inputs), {}, 1
    if node.op == "Pad":
        places = [0]
        if len(inputs) > 2 and inputs[2] is not None:
            inputs[2] = np.zeros(inputs[2].shape, np.int64)
    for place in places:
        x = inputs[place]
        inputs[place] = np.arange(total, total + x.size, dtype=np.int64).reshape(x.shape)
        starts[place] = total
        total += x.size
    return inputs, starts


def _brought_back(node: Node, results: Sequence[Array], starts: Mapping[int, int]) -> Parts:
    size = 1 + sum(node.inputs[place].size for place in starts)
    total = np.zeros(size)
    for numbers, cotangent in zip(results, node.cotangents, strict=False):
        if cotangent is not None:
            total += np.bincount(numbers.reshape(-1), cotangent.reshape(-1).astype(np.float64), size)
    found: list[Array | None] = [None] * len(node.inputs)
    for place, start in starts.items():
        x = node.inputs[place]
        dtype = wide(x).dtype if is_float(x) else np.dtype(np.float32)
        found[place] = total[start : start + x.size].reshape(x.shape).astype(dtype)
    return found


@rule("TopK")
def top_k(node: Node) -> Parts:
    """The values come from where the indices say."""
    x, indices = node.inputs[0], node.outputs[1]
    axis = int(node.attributes.get("axis", -1))
    found = np.zeros(x.shape, wide(x).dtype)
    if indices is None:
        raise NoRuleError("its indices are not listed")
    np.put_along_axis(found, indices, node.full(0), axis)
    return (found,)


@rule("Dropout")
def dropout(node: Node) -> Parts:
    """dy, outside training."""
    if not np.array_equal(node.inputs[0], node.outputs[0], equal_nan=True):
        raise NoRuleError("training")
    return (node.cotangents[0],)


# ---- steps ---------------------------------------------------------------------------------------------


@rule("Round", "Floor", "Ceil")
def straight_through(node: Node) -> Parts:
    """dy: a small change moves a result by a whole step now and then, by its own size on average."""
    return (node.cotangents[0],)


CONSTANT = (
    *(
        "Shape",
        "Size",
        "ConstantOfShape",
        "NonZero",
        "ArgMax",
        "ArgMin",
        "Equal",
        "Greater",
        "GreaterOrEqual",
    ),
    *(
        "Less",
        "LessOrEqual",
        "Not",
        "And",
        "Or",
        "Xor",
        "IsNaN",
        "IsInf",
        "Sign",
        "EyeLike",
        "OneHot",
        "Range",
    ),
    *("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "NonMaxSuppression", "Hardmax"),
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
)


@rule(*CONSTANT)
def constant(node: Node) -> Parts:
    """Nothing gets through: results are whole numbers, shapes or chance."""
    return ()


# ---- quantisation --------------------------------------------------------------------------------------


def _spread(node: Node, scale: Array) -> Array:
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    return wide(spread(np, node.inputs[0], scale, axis, block))


@rule("QuantizeLinear")
def quantize(node: Node) -> Parts:
    """dy / scale where nothing is cut off, straight through the rounding."""
    y = node.outputs[0]
    least, largest = bounds(y.dtype)
    q = y.astype(np.float32)
    inside = (q > least) & (q < largest) if is_integer(y.dtype) else np.isfinite(q)
    return (node.full(0) * inside / _spread(node, node.inputs[1]),)


@rule("DequantizeLinear")
def dequantize(node: Node) -> Parts:
    """dy · scale."""
    return (node.full(0) * _spread(node, node.inputs[1]),)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> Parts:
    """dy / scale: that the range follows the data is left out, since its ends are single elements."""
    return (node.full(0) / node.outputs[1],)


def _without_zero(x: Array, zero: Array | None) -> Array:
    return x.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))


@rule("MatMulInteger")
def matmul_integer(node: Node) -> Parts:
    """As MatMul of what the integers stand for."""
    zeros = (*node.inputs[2:], None, None)[:2]
    a, b = (_without_zero(x, zero) for x, zero in zip(node.inputs[:2], zeros, strict=True))
    return _product(node, "MatMul", a, b)


def _product(node: Node, op: str, a: Array, b: Array) -> Parts:
    """Return the cotangents of two factors, as the operator for floats has them."""
    y = node.outputs[0].astype(np.float32)
    floats = replace(
        node,
        op=op,
        domain="",
        inputs=(a, b),
        outputs=(y,),
        wanted=node.wanted[:2],
        cotangents=(node.full(0),),
    )
    return _shared(floats)


@rule("ConvInteger")
def conv_integer(node: Node) -> Parts:
    """As Conv of what the integers stand for."""
    zeros = (*node.inputs[2:], None, None)[:2]
    x = _without_zero(node.inputs[0], zeros[0])
    w = _without_zero(node.inputs[1], _of_rows(zeros[1], node.inputs[1].ndim))
    return _product(node, "Conv", x, w)


def _of_rows(zero: Array | None, rank: int) -> Array | None:
    return None if zero is None or zero.size == 1 else zero.reshape(-1, *(1,) * (rank - 1))


@rule("QLinearConv", "QLinearMatMul")
def quantised_product(node: Node) -> Parts:
    """Scale by scale, straight through the rounding: both factors and the result stand for floats."""
    x, xs, xz, w, ws, wz, ys = node.inputs[:7]
    if any(s.size > 1 for s in (xs, ys)) or any(node.wanted[1:]):
        raise NoRuleError("one scale for the input and for the result, constant weights")
    scale = ws * xs / ys
    if node.op == "QLinearConv":
        shaped = scale.reshape(1, -1, *(1,) * (x.ndim - 2))
        weights = _without_zero(w, _of_rows(wz, w.ndim) if wz.size > 1 else wz)
    else:
        shaped, weights = scale, _without_zero(w, wz)
    scaled = replace(node, cotangents=(node.full(0) * shaped,), wanted=(True, False))
    return (_product(scaled, node.op.removeprefix("QLinear"), _without_zero(x, xz), weights)[0],)
