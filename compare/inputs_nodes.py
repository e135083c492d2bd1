"""One node of a dry run: what its outputs are, as far as shapes and small integers tell."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from graphdoc.engine.attributes import decode, to_array
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.ops.table import Call, Operator, TensorType, canonical_domain, find
from graphdoc.surgeon.writer import attribute_proto

Content: TypeAlias = np.ndarray[Any, Any] | onnx.TypeProto | None
"""An array where the content is known, a type where only that is known, None where nothing is."""

Shape: TypeAlias = tuple[int | None, ...]

LIMIT = 4096
"""Elements up to which a tensor's content is computed."""

DEFAULT_DOMAIN = ("", "ai.onnx")


class MisfitError(Exception):
    """The inputs of a node do not fit each other."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node made ready: everything that does not depend on its inputs."""

    node: ir.Node
    domain: str
    version: int
    attributes: dict[str, Any]
    graphs: dict[str, ir.Graph]
    proto: onnx.NodeProto
    schema: Any
    row: Operator | None


def tensor_type(dtype: np.dtype[Any], shape: Iterable[int | None]) -> onnx.TypeProto:
    """Return the type of a tensor whose content is not known."""
    code = ir.DataType.STRING if dtype.kind == "O" else ir.DataType.from_numpy(dtype)
    return onnx.helper.make_tensor_type_proto(int(code), list(shape))


def shape_of(content: Content) -> Shape | None:
    """Return the shape of a tensor, None per unknown size, None for an unknown rank or no tensor."""
    if isinstance(content, np.ndarray):
        return tuple(content.shape)
    if content is None or not content.HasField("tensor_type") or not content.tensor_type.HasField("shape"):
        return None
    dims = content.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)


def full_shape(content: Content) -> tuple[int, ...] | None:
    """Return the shape if every size is known."""
    shape = shape_of(content)
    return None if shape is None or None in shape else tuple(d for d in shape if d is not None)


def type_of(content: Content) -> onnx.TypeProto | None:
    """Return the type of a content."""
    return tensor_type(content.dtype, content.shape) if isinstance(content, np.ndarray) else content


# ---- one node -----------------------------------------------------------------------------------------


def prepare(node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]) -> Prepared:
    domain = canonical_domain(node.domain)
    version = opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)
    plain, graphs = {}, {}
    proto = onnx.NodeProto(op_type=node.op_type, domain=domain)
    proto.input.extend("" if v is None else f"i{slot}" for slot, v in enumerate(node.inputs))
    proto.output.extend(f"o{slot}" if v.name else "" for slot, v in enumerate(node.outputs))
    for name, attribute in resolved(node, arguments).items():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs[name] = attribute.as_graph()
        elif attribute.type != ir.AttributeType.GRAPHS:
            plain[name] = decode(attribute)
            proto.attribute.append(attribute_proto(name, attribute))
    row = find(domain, node.op_type, version)
    return Prepared(node, domain, version, plain, graphs, proto, _schema(node.op_type, version, domain), row)


def resolved(node: ir.Node, arguments: Mapping[str, ir.Attr]) -> dict[str, ir.Attr]:
    found = {}
    for name, attribute in node.attributes.items():
        actual = arguments.get(str(attribute.ref_attr_name)) if attribute.is_ref() else attribute
        if actual is not None and not actual.is_ref():
            found[name] = actual
    return found


def _schema(name: str, version: int, domain: str) -> Any:
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def known(tensor: Any) -> Content:
    """Return a constant's content if it is small, else its type."""
    if tensor is None:
        return None
    shape = tuple(int(dim) for dim in tensor.shape)
    if prod(shape) > LIMIT:
        return tensor_type(np.dtype(tensor.dtype.numpy()), shape)
    return to_array(tensor)


def constant_result(prepared: Prepared) -> Content:
    """Return what a Constant without a tensor holds: numbers, strings, a sparse tensor."""
    result = _evaluate(prepared, [])
    return result[0] if result else None


def operator(prepared: Prepared, inputs: list[Content]) -> Sequence[Content]:
    for check in _CHECKS.get(prepared.node.op_type, ()):
        check(prepared, inputs)
    if prepared.node.op_type in ("Shape", "Size") and prepared.domain == "":
        return [_measured(prepared, inputs[0])]
    types = _infer(prepared, inputs)
    sizes = [full_shape(content) for content in types]
    given = [content for content, v in zip(inputs, prepared.node.inputs, strict=True) if v is not None]
    small = not any(prod(size) > LIMIT for size in sizes if size is not None)
    if small and all(isinstance(content, np.ndarray) for content in given):
        result = _evaluate(prepared, inputs)
        if result is not None:
            return result
    _check_sizes(prepared, sizes)
    return types


def _measured(prepared: Prepared, data: Content) -> Content:
    """Return what Shape or Size gives, for which the content does not matter."""
    shape = full_shape(data)
    if shape is None:
        return _declared(prepared.node.outputs[0]) if shape_of(data) is None else _infer(prepared, [data])[0]
    if prepared.node.op_type == "Size":
        return np.asarray(prod(shape), dtype=np.int64)
    start, end = prepared.attributes.get("start", 0), prepared.attributes.get("end", len(shape))
    return np.asarray(shape[start:end], dtype=np.int64)


def _evaluate(prepared: Prepared, inputs: list[Any]) -> list[Content] | None:
    """Return the results if the operator is known and not random, and all of them are small arrays."""
    row, outputs = prepared.row, len(prepared.node.outputs)
    if row is None or row.random:
        return None
    try:
        with np.errstate(all="ignore"):
            results = row.evaluate(Call(np, prepared.version, outputs), *inputs, **prepared.attributes)
    except (GraphdocError, IndexError, ValueError) as error:
        raise MisfitError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    except Exception:  # noqa: BLE001 (an operator that cannot do it here only leaves the value unknown)
        return None
    arrays = [np.asarray(r) if isinstance(r, np.generic) else r for r in _listed(results)]
    small = all(isinstance(a, np.ndarray) and a.size <= LIMIT for a in arrays[:outputs])
    return arrays if small else None


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def _infer(prepared: Prepared, inputs: list[Content]) -> list[Content]:
    outputs = prepared.node.outputs
    if prepared.schema is None:
        return _infer_by_table(prepared, inputs)
    given = {
        f"i{slot}": content
        for slot, (content, v) in enumerate(zip(inputs, prepared.node.inputs, strict=True))
        if v is not None
    }
    if any(content is None for content in given.values()):
        return [_declared(value) for value in outputs]
    types = {name: kind for name, content in given.items() if (kind := type_of(content)) is not None}
    data = {
        name: onnx.numpy_helper.from_array(content, name)
        for name, content in given.items()
        if isinstance(content, np.ndarray) and content.dtype.kind in "iubf"
    }
    opset = [onnx.helper.make_opsetid(prepared.domain, prepared.version)]
    try:
        found = infer_node_outputs(prepared.schema, prepared.proto, types, data, opset_imports=opset)
    except InferenceError as error:
        raise MisfitError(_inference_text(error)) from error
    except Exception:  # noqa: BLE001 (inference that gives up leaves the value unknown)
        return [_declared(value) for value in outputs]
    return [found.get(f"o{slot}") or _declared(value) for slot, value in enumerate(outputs)]


def _inference_text(error: Exception) -> str:
    return str(error).split("]", 1)[-1].strip().splitlines()[0]


def _declared(value: ir.Value) -> Content:
    """Return the dtype that the model says an inner value has, without its shape, which may be wrong."""
    if value.dtype is None or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        return None
    return onnx.helper.make_tensor_type_proto(int(value.dtype), None)


def declared(value: ir.Value) -> Content:
    """Return what the model says of an input: dtype and sizes, None for open ones."""
    kind = _declared(value)
    if kind is None or value.shape is None or value.dtype is None:
        return kind
    dims = [dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape]
    return onnx.helper.make_tensor_type_proto(int(value.dtype), dims)


def _infer_by_table(prepared: Prepared, inputs: list[Content]) -> list[Content]:
    """Infer an operator outside ONNX through the operator table."""
    unknown: list[Content] = [_declared(value) for value in prepared.node.outputs]
    if prepared.row is None or prepared.row.infer is None:
        return unknown
    call = Call(np, prepared.version, len(unknown))
    try:
        found = prepared.row.infer(call, *[_table_type(c) for c in inputs], **prepared.attributes)
    except Exception:  # noqa: BLE001 (the table states nothing of inputs that do not fit)
        return unknown
    given = [_from_table(t) for t in _listed(found)]
    return [a or b for a, b in zip(given + unknown[len(given) :], unknown, strict=False)]


def _table_type(content: Content) -> TensorType | None:
    if content is None:
        return TensorType()
    if isinstance(content, np.ndarray):
        return TensorType(content.dtype, content.shape, content)
    dtype = ir.DataType(content.tensor_type.elem_type).numpy() if content.HasField("tensor_type") else None
    return TensorType(np.dtype(dtype) if dtype is not None else None, shape_of(content))


def _from_table(known: TensorType | None) -> Content:
    if known is None or known.dtype is None:
        return None
    if known.shape is None:
        return onnx.helper.make_tensor_type_proto(int(ir.DataType.from_numpy(known.dtype)), None)
    return tensor_type(known.dtype, [d if isinstance(d, int) else None for d in known.shape])


# ---- what inference does not refuse -------------------------------------------------------------------

_WINDOWED = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "ConvInteger",
        "QLinearConv",
        "FusedConv",
        "MaxPool",
        "AveragePool",
        "LpPool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "LSTM",
        "GRU",
        "RNN",
        "STFT",
        "DFT",
        "ReduceMax",
        "ReduceMin",
        "ArgMax",
        "ArgMin",
    }
)


def _check_sizes(prepared: Prepared, sizes: Iterable[tuple[int, ...] | None]) -> None:
    for size in sizes:
        least = min(size or (1,))
        if least < 0 or (least == 0 and prepared.node.op_type in _WINDOWED):
            raise MisfitError(f"the input is smaller than the window: result {list(size or ())}")


def _check_channels(data: int, weight: int, axis: int) -> Callable[[Prepared, list[Content]], None]:
    def check(prepared: Prepared, inputs: list[Content]) -> None:
        x, w = shape_of(inputs[data]), shape_of(inputs[weight])
        if x is None or w is None or len(x) < 2:
            return
        channels = x[-1 if prepared.attributes.get("channels_last") else 1]
        if channels is None or w[axis] is None:
            return
        group = prepared.attributes.get("group", 1)
        wanted = w[axis] * group if axis == 1 else w[axis]
        if channels != wanted:
            raise MisfitError(f"{channels} channels, the weight takes {wanted}")

    return check


def _check_reshape(prepared: Prepared, inputs: list[Content]) -> None:
    shape, target = full_shape(inputs[0]), inputs[1] if len(inputs) > 1 else None
    if shape is None or not isinstance(target, np.ndarray):
        return
    wanted = [int(dim) for dim in target]
    if not prepared.attributes.get("allowzero", 0):
        wanted = [shape[i] if d == 0 and i < len(shape) else d for i, d in enumerate(wanted)]
    known = prod(d for d in wanted if d != -1)
    fits = known == prod(shape) if -1 not in wanted else known != 0 and prod(shape) % known == 0
    if not fits and not (known == 0 and prod(shape) == 0):
        raise MisfitError(f"{list(shape)} cannot be reshaped to {wanted}")


def _check_gather(prepared: Prepared, inputs: list[Content]) -> None:
    data, indices = shape_of(inputs[0]), inputs[1]
    axis = prepared.attributes.get("axis", 0)
    if data is None or not isinstance(indices, np.ndarray) or not indices.size or not data:
        return
    size = data[axis]
    if size is not None and not (-size <= indices.min() and indices.max() < size):
        raise MisfitError(f"index {int(indices.max())} lies outside a table of {size}")


def _check_recurrent(prepared: Prepared, inputs: list[Content]) -> None:
    x, w = shape_of(inputs[0]), shape_of(inputs[1])
    if x and w and None not in (x[-1], w[-1]) and x[-1] != w[-1]:
        raise MisfitError(f"{x[-1]} features, the weight takes {w[-1]}")
    batch = 0 if prepared.attributes.get("layout", 0) else 1
    for state in map(shape_of, inputs[5:7]):
        if x and state and None not in (x[batch], state[batch]) and x[batch] != state[batch]:
            raise MisfitError(f"the state's batch is {state[batch]}, the input's {x[batch]}")


def _check_pad(prepared: Prepared, inputs: list[Content]) -> None:
    pads = inputs[1] if len(inputs) > 1 else None
    shape = full_shape(inputs[0])
    if prepared.attributes.get("mode") != "reflect" or shape is None or not isinstance(pads, np.ndarray):
        return
    if len(pads) == 2 * len(shape) and any(
        max(pads[i], pads[i + len(shape)]) >= max(size, 1) for i, size in enumerate(shape)
    ):
        raise MisfitError(f"reflecting {pads.tolist()} needs a longer input than {list(shape)}")


_CHECKS: dict[str, tuple[Callable[[Prepared, list[Content]], None], ...]] = {
    "Conv": (_check_channels(0, 1, 1),),
    "FusedConv": (_check_channels(0, 1, 1),),
    "ConvInteger": (_check_channels(0, 1, 1),),
    "QLinearConv": (_check_channels(0, 3, 1),),
    "ConvTranspose": (_check_channels(0, 1, 0),),
    "Reshape": (_check_reshape,),
    "Gather": (_check_gather,),
    "LSTM": (_check_recurrent,),
    "GRU": (_check_recurrent,),
    "RNN": (_check_recurrent,),
    "Pad": (_check_pad,),
}
