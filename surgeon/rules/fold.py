"""Constant folding: nodes whose inputs are the same in every run are computed once, here.

Never folded: random operators; DequantizeLinear and QuantizeLinear (quantized weights stay quantized);
values that are not tensors; results that the specification leaves open (a float cast to an integer that
cannot hold it, an integer divided by zero, reductions and powers of integers that overflow); nodes that
would make the model grow past ``max_growth``. Sums, differences and products of integers wrap.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import decode
from graphdoc.engine.ops.table import Call, canonical_domain, find
from graphdoc.surgeon.rules.base import (
    SHORT,
    Context,
    Edit,
    Refusal,
    has_references,
    operator_name,
    rule,
    subgraphs,
    tensor_key,
    use_count,
)

QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
LARGEST = 2**28
"""Bytes of a result that is not even computed: whoever wants to fold that much raises ``max_growth``."""

_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomUniform",
        "RandomNormalLike",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)


def is_random(node: ir.Node, context: Context) -> bool:
    """Whether two runs may give different results for the same inputs."""
    if node.op_type in _RANDOM:
        return True
    if node.op_type == "Dropout":
        return not inference_dropout(node, context)
    row = find(canonical_domain(node.domain), node.op_type, context.opset(node.domain))
    return row is None or row.random


def inference_dropout(node: ir.Node, context: Context) -> bool:
    """Whether a Dropout node passes its input through.

    Versions 1 and 6 train unless ``is_test``; 7 and 10 never do; from 12 on a third input says so.
    """
    version = context.opset()
    if version < 7:
        return bool(context.attribute(node, "is_test", 0))
    if version < 12 or len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = context.array(node.inputs[2])
    return training is not None and not training.any()


def materialised(value: ir.Value, context: Context) -> np.ndarray[Any, Any] | None:
    """Return the content of an initializer that no input overrides, or of a Constant node; else None.

    Unlike ``context.array`` this does not look through nodes: what folding left alone (a quantized weight)
    stays a border.
    """
    maker = value.producer()
    if maker is not None and operator_name(maker) != "Constant":
        return context.virtual.get(value)
    return context.array(value)


@rule("fold-constants", "fold")
def fold_constants(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Compute a node whose inputs are all constant."""
    if operator_name(node) == "Constant" or node.op_type == "Identity" or not node.outputs:
        return None
    inputs = [value for value in node.inputs if value is not None]
    if any(not _is_constant(value, context) for value in inputs) or subgraphs(node):
        return None
    reason = _not_foldable(node, context)
    if reason:
        return Refusal(reason)
    results = _compute(node, context)
    return results if isinstance(results, Refusal) else _keep(node, results, context)


def _is_constant(value: ir.Value, context: Context) -> bool:
    maker = value.producer()
    if maker is None:
        return value.is_initializer() and not value.is_graph_input()
    return value in context.virtual or (operator_name(maker) == "Constant" and not has_references(maker))


def _not_foldable(node: ir.Node, context: Context) -> str | None:
    if node.op_identifier() in context.model.functions:
        return "it calls a function of the model"
    if node.op_type in QUANTIZATION:
        return "quantized weights stay quantized"
    if node.op_type in _RANDOM or node.op_type == "Dropout":
        return "random operators are never folded" if is_random(node, context) else None
    row = find(canonical_domain(node.domain), node.op_type, context.opset(node.domain))
    if row is None:
        return f"nothing here computes {operator_name(node)}"
    if row.random:
        return "random operators are never folded"
    size = sum(_bytes(context.type_of(value)) for value in node.outputs)
    if size > max(LARGEST, context.options.max_growth):
        return _too_large(size, context)
    return None


def _bytes(known: Any) -> int:
    if known.dtype is None or known.shape is None or not all(isinstance(d, int) for d in known.shape):
        return 0
    return int(np.prod([int(d) for d in known.shape], dtype=object)) * int(known.dtype.itemsize)


def _too_large(size: int, context: Context) -> str:
    return f"folding would add {_mb(size)} (limit {_mb(context.options.max_growth)})"


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def _compute(node: ir.Node, context: Context) -> list[Any] | Refusal:
    """Return the value of each output, or why there is none."""
    arrays = [None if value is None else materialised(value, context) for value in node.inputs]
    if any(array is None and value is not None for array, value in zip(arrays, node.inputs, strict=True)):
        return Refusal("the content of an input is not known")
    open_case = _HAZARDS.get(node.op_type)
    reason = open_case(node, arrays, context) if open_case else None
    if reason:
        context.left_open.update(node.outputs)
        return Refusal(reason)
    version = context.opset(node.domain)
    row = find(canonical_domain(node.domain), node.op_type, version)
    if row is None:
        return Refusal(f"nothing here computes {operator_name(node)}")
    attributes = {name: decode(attribute) for name, attribute in node.attributes.items()}
    count = len(node.outputs)
    try:
        with np.errstate(all="ignore"):
            results = row.evaluate(Call(np, version, count), *arrays, **attributes)
    except Exception as error:  # noqa: BLE001 - whatever an operator raises for inputs it cannot compute
        return Refusal(f"it cannot be computed: {_first_line(error)}")
    results = list(results) if isinstance(results, tuple) else [results]
    return _checked(node, results[:count], context)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _checked(node: ir.Node, results: list[Any], context: Context) -> list[Any] | Refusal:
    """Return the results as arrays of the types that the model states."""
    results = [np.asarray(item) if isinstance(item, np.generic) else item for item in results]
    for value, result in zip(node.outputs, results, strict=False):
        if not use_count(value) and not value.is_graph_output():
            continue
        if not isinstance(result, np.ndarray):
            return Refusal("the result is no tensor")
        declared = context.type_of(value).dtype
        if declared is not None and np.dtype(declared) != result.dtype:
            return Refusal(f"the model states {declared}, and the result is {result.dtype}")
    return results


def _keep(node: ir.Node, results: list[Any], context: Context) -> Edit | Refusal:
    """Put the results in place of the node, if the model may grow by them."""
    wanted = [
        (value, result)
        for value, result in zip(node.outputs, results, strict=False)
        if value.name and (use_count(value) or value.is_graph_output())
    ]
    size = sum(_stored(result) for value, result in wanted if not context.has_constant(result, value))
    added = size - _released(node)
    reason = _past_limit(node, size, added, context) if added > 0 else ""
    if reason:
        for value, result in wanted:
            if value not in context.virtual:
                context.virtual[value] = result
                context.touch(*value.consumers())  # what follows from it may be small
        return Refusal(reason)
    context.growth += max(0, added)
    for value, result in wanted:
        put_constant(value, result, context)
    return Edit(f"computed {node.op_type}")


def _past_limit(node: ir.Node, size: int, added: int, context: Context) -> str:
    """Return why a result may not be kept, "" if it may."""
    if context.growth + added > context.options.max_growth:
        sofar = f" after {_mb(context.growth)} elsewhere" if context.growth else ""
        return f"folding would add {_mb(added)}{sofar} (limit {_mb(context.options.max_growth)})"
    if _bloats(node, size, context):
        share = _mb(context.options.max_growth // BLOAT)
        return f"folding would add {_mb(added)}, more than {BLOAT} times what it is made from (limit {share})"
    return ""


BLOAT = 64
"""A result this many times larger than what it is made from may take only this share of ``max_growth``."""


def _bloats(node: ir.Node, size: int, context: Context) -> bool:
    """Whether a node blows up next to nothing (Expand, Tile): then the node is the better form."""
    made_from = sum(
        _bytes(context.type_of(value))
        for value in node.inputs
        if value is not None and value not in context.virtual
    )
    return size > context.options.max_growth // BLOAT and size > BLOAT * made_from


def _stored(array: np.ndarray[Any, Any]) -> int:
    if array.dtype == object:
        return sum(len(str(item)) for item in array.reshape(-1))
    return int(array.nbytes)


def _released(node: ir.Node) -> int:
    """Return the bytes of constants that nobody else reads."""
    alone = {value for value in node.inputs if value is not None and use_count(value) == 1}
    return sum(
        value.const_value.nbytes
        for value in alone
        if value.const_value is not None
        and value.is_initializer()
        and not value.is_graph_output()
        and value.const_value.dtype != ir.DataType.STRING
    )


def put_constant(value: ir.Value, array: np.ndarray[Any, Any], context: Context) -> None:
    """Replace a node's output by a constant of the same name."""
    name = str(value.name)
    if not value.is_graph_output():
        _vacate(value, context)
    context.replace(value, context.constant(array, value, name=name))


def _vacate(value: ir.Value, context: Context) -> None:
    """Give a value another name, so that its own is free for what takes its place."""
    name = str(value.name)
    value.name = context.names.value(name)
    context.names.release(name)


def _cast_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """A float that the integer type cannot hold, or NaN: each runtime does as it likes."""
    number = context.attribute(node, "to")
    if node.op_type == "CastLike":
        target = None if arrays[1] is None else arrays[1].dtype
    else:
        target = ir.DataType(number).numpy() if number not in (None, ir.DataType.STRING) else None
    array = arrays[0]
    if target is None or array.dtype == object or np.dtype(target).kind not in "iu":
        return None
    if np.dtype(array.dtype).kind in "iub":
        return None
    limits = np.iinfo(target)
    wide = np.trunc(array.astype(np.float64))
    if not np.isfinite(wide).all() or (wide < float(limits.min)).any() or (wide > float(limits.max)).any():
        return f"a value does not fit into {np.dtype(target)}: the result is left open"
    return None


def _division_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """An integer divided by zero, or the smallest one by −1, at which processors stop too."""
    dividend, divisor = arrays[0], arrays[1]
    if dividend.dtype.kind not in "iu":
        return None
    if not divisor.all():
        return "an integer is divided by zero: the result is left open"
    smallest = np.iinfo(dividend.dtype).min
    if smallest and ((dividend == smallest) & (divisor == -1)).any():
        return f"{smallest} is divided by -1: the result is left open"
    return None


def _shift_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """A shift by the width of the type or more."""
    if (arrays[1] >= arrays[1].dtype.itemsize * 8).any():
        return "a shift by the whole width: the result is left open"
    return None


def _power_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """An integer to a negative power, or a power that not even float64, which runtimes go through, holds."""
    base, exponent = arrays[0], arrays[1]
    if base.dtype.kind not in "iu":
        return None
    if (exponent < 0).any():
        return "an integer to a negative power: the result is left open"
    with np.errstate(all="ignore"):
        largest = (np.abs(base.astype(np.float64)) ** exponent.astype(np.float64)).max(initial=0.0)
    return _overflow(largest, base, exact=2.0**53)


_LARGEST_SUM: dict[str, Callable[[Any], Any]] = {
    "ReduceL1": np.sum,
    "ReduceL2": lambda sizes: np.sum(sizes**2),
    "ReduceMean": np.sum,
    "ReduceProd": lambda sizes: np.prod(np.maximum(sizes, 1)),
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda sizes: np.sum(sizes**2),
}
"""What no part of a reduction exceeds, by the magnitudes of all elements."""


def _reduction_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """A sum or product of integers that may not fit into their type."""
    if arrays[0].dtype.kind not in "iu":
        return None
    with np.errstate(all="ignore"):
        largest = _LARGEST_SUM[node.op_type](np.abs(arrays[0].astype(np.float64)))
    return _overflow(float(largest), arrays[0])


def _overflow(largest: float, like: np.ndarray[Any, Any], exact: float = math.inf) -> str | None:
    """Return the reason when so large an integer does not fit: runtimes wrap, saturate, or round."""
    if largest < min(float(np.iinfo(like.dtype).max) + 1, exact):
        return None
    return f"a result may not fit into {like.dtype}: it is left open"


def _scalar_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """The places in what has no axes."""
    return "the places in a scalar are left open" if arrays[0].ndim == 0 else None


def _resize_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """Corners aligned to a size that the scales make no whole number."""
    scales = arrays[2] if len(arrays) > 2 else None
    mode = context.attribute(node, "coordinate_transformation_mode", "")
    if mode != "align_corners" or scales is None or not scales.size:
        return None
    shape = np.array(arrays[0].shape, np.float64)
    axes = context.attribute(node, "axes")
    sizes = (shape if axes is None else shape[list(axes)]) * scales
    return None if (sizes == np.floor(sizes)).all() else "the corners of a broken size are left open"


def _mask_hazard(node: ir.Node, arrays: list[Any], context: Context) -> str | None:
    """The mask of a Dropout that drops nothing, before version 12 said what it holds."""
    used = any(use_count(value) or value.is_graph_output() for value in node.outputs[1:])
    return "the mask is left open before opset 12" if used and context.opset() < 12 else None


_HAZARDS: dict[str, Callable[[ir.Node, list[Any], Context], str | None]] = {
    "Cast": _cast_hazard,
    "CastLike": _cast_hazard,
    "Div": _division_hazard,
    "Mod": _division_hazard,
    "BitShift": _shift_hazard,
    "Pow": _power_hazard,
    "Dropout": _mask_hazard,
    "NonZero": _scalar_hazard,
    "Resize": _resize_hazard,
    **dict.fromkeys(_LARGEST_SUM, _reduction_hazard),
}


@rule("constant-nodes", "fold", "Constant")
def constant_nodes(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Turn a Constant node into an initializer (functions can hold no initializers)."""
    if isinstance(context.root, ir.Function):
        return None
    value = node.outputs[0]
    held = node.attributes.get("value")
    if held is not None and held.type == ir.AttributeType.TENSOR:
        _hold_tensor(value, held.value, context)
        return Edit("made it an initializer")
    array = context.array(value)
    if array is None:
        return Refusal("its content is not known")
    put_constant(value, array, context)
    return Edit("made it an initializer")


def _hold_tensor(value: ir.Value, tensor: ir.TensorProtocol, context: Context) -> None:
    """Put the tensor of a Constant node into an initializer; external data stays where it lies."""
    graph = value.graph
    if graph is None:
        raise ValueError(f"'{value.name}' lies in no graph")
    small = tensor.dtype != ir.DataType.STRING and tensor.nbytes <= SHORT
    key = (graph, tensor_key(tensor)) if small else None
    known = context.find_stored(key)
    if known is None:
        name = str(value.name)
        if not value.is_graph_output():
            _vacate(value, context)
        known = context.initializer(tensor, context.names.value(name), graph, key)
    context.replace(value, known)


def only_names(node: ir.Node, context: Context) -> bool:
    """Whether a node is an Identity that gives an output its name, since its input has to keep its own."""
    if node.op_type != "Identity" or node.domain not in ("", "ai.onnx") or node.inputs[0] is None:
        return False
    return not context.takes_name(node.outputs[0], node.inputs[0])


@rule("fold-shapes", "fold")
def fold_shapes(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Replace small integers that follow from shapes alone (Shape, Size, and arithmetic on them)."""
    if operator_name(node) == "Constant" or len(node.outputs) != 1 or node.op_type in QUANTIZATION:
        return None
    value = node.outputs[0]
    if not (use_count(value) or value.is_graph_output()) or only_names(node, context):
        return None
    if not context.left_open.isdisjoint(node.inputs):
        context.left_open.update(node.outputs)
    if value in context.left_open:
        return None
    known = context.type_of(value)
    array = known.value
    if array is None or known.dtype is None or np.dtype(known.dtype).kind not in "iub" or array.size > 64:
        return None
    put_constant(value, np.asarray(array, known.dtype), context)
    return Edit("its value follows from shapes")


RULES = (constant_nodes, fold_constants, fold_shapes)
