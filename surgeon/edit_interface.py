"""What goes into a model and comes out: inputs, outputs, weights, and their dtypes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.surgeon.edit_find import Index, Place, ValueLike, unknown
from graphdoc.surgeon.edit_flow import put, redirect, remove_dead
from graphdoc.surgeon.edit_new import PLAIN_INITIALIZERS, constant, new_tensor
from graphdoc.surgeon.edit_types import dims_of, known, refresh, type_name
from graphdoc.surgeon.names import Names
from graphdoc.surgeon.types import dtype_name

Dims = Sequence[int | str | None]


def add_output(
    model: ir.Model, value: ValueLike, *, dtype: str | None = None, shape: Dims | None = None
) -> ir.Value:
    """Let the model give out an inner value, under its own name; return it.

    dtype, shape: needed only where they are not declared and do not follow; given ones win.

    Raises UsageError for an unknown name, an input, a value inside a subgraph or one that is an output
    already; ModelError when the dtype is unknown.
    """
    index = Index(model)
    found = _in_main(index, value)
    if found.is_graph_output():
        raise UsageError(f"'{found.name}' is an output already", next_step="graphdoc inspect MODEL")
    if found.is_graph_input():
        raise UsageError(
            f"'{found.name}' is an input; it does not need to come out", next_step="insert an Identity"
        )
    kind, dims = known(model, [found])[found]
    if kind is None and dtype is None:
        raise ModelError(
            f"the dtype of '{found.name}' is unknown: shape inference does not know its operator",
            next_step="state it: add_output(model, name, dtype='float32')",
        )
    found.type, found.shape = kind, dims
    _declare(found, dtype, shape)
    model.graph.outputs.append(found)
    return found


def _declare(value: ir.Value, dtype: str | None, shape: Dims | None) -> None:
    if dtype is not None:
        value.type = ir.TensorType(parse_dtype(dtype))
    if shape is not None:
        value.shape = ir.Shape(shape)


def parse_dtype(name: str) -> ir.DataType:
    """Return the dtype of a name such as float16, int64, string. Raises UsageError for other names."""
    known = {dtype_name(int(kind)): kind for kind in ir.DataType if dtype_name(int(kind))}
    aliases = {
        "float": "float32",
        "double": "float64",
        "fp16": "float16",
        "fp32": "float32",
        "bf16": "bfloat16",
    }
    plain = aliases.get(name.strip().lower(), name.strip().lower())
    if plain not in known:
        raise unknown("dtype", name, known, look="float32, float16, bfloat16, int64, bool, string …")
    return known[plain]


def _in_main(index: Index, value: ValueLike) -> ir.Value:
    found = index.value(value)
    home = index.home[found]
    if home.graph is not index.model.graph:
        raise UsageError(
            f"'{index.key(found)}' lies inside {home.title}; only values of the main graph can do this",
            next_step="extract the subgraph first, or name a value of the main graph",
        )
    return found


def remove_output(model: ir.Model, value: ValueLike, *, prune: bool = True) -> None:
    """Let the model no longer give out a value.

    prune: remove the nodes that nothing needs any more.

    Raises UsageError when it is no output, or the only one.
    """
    found = _listed(model.graph.outputs, value, "output")
    if len(model.graph.outputs) == 1:
        raise UsageError(f"'{found.name}' is the only output", next_step="add another output first")
    model.graph.outputs.remove(found)
    maker = found.producer()
    if prune and maker is not None:
        remove_dead(model, [maker])


def _listed(values: Sequence[ir.Value], wanted: ValueLike, kind: str) -> ir.Value:
    for value in values:
        if value is wanted or value.name == wanted:
            return value
    name = wanted.name if isinstance(wanted, ir.Value) else wanted
    raise unknown(kind, str(name), [str(v.name) for v in values], look="graphdoc inspect MODEL")


def add_input(model: ir.Model, name: str, dtype: str, shape: Dims | None = None) -> ir.Value:
    """Add an input that nothing reads yet; return it. Raises UsageError when the name is taken."""
    if not name or Names(model).has_value(name):
        raise UsageError(f"the name '{name}' is taken by another value", next_step="choose another")
    value = ir.Value(name=name)
    _declare(value, dtype, shape)
    model.graph.inputs.append(value)
    return value


def remove_input(model: ir.Model, value: ValueLike) -> None:
    """Remove an input that nothing reads; one with a default becomes a plain initializer.

    Raises UsageError when it is no input, or something reads it.
    """
    found = _listed(model.graph.inputs, value, "input")
    if not found.is_initializer() and (found.uses() or found.is_graph_output()):
        readers = ", ".join(f"{n.op_type} {n.name}".rstrip() for n in found.consumers()[:3])
        raise UsageError(
            f"input '{found.name}' is read by {readers or 'the outputs'}",
            next_step="give it a content: --to-initializer NAME=FILE.npy",
        )
    model.graph.inputs.remove(found)


def reorder(model: ir.Model, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> None:
    """Bring inputs or outputs into another order; names that are not given follow in their old order.

    Raises UsageError for a name that is none of them, or given twice.
    """
    for names, values, kind in (
        (inputs, model.graph.inputs, "input"),
        (outputs, model.graph.outputs, "output"),
    ):
        first = [_listed(values, name, kind) for name in names]
        if len(set(first)) != len(first):
            raise UsageError(f"an {kind} is named twice in the order", next_step="name each once")
        rest = [value for value in values if value not in first]
        values[:] = [*first, *rest]


def set_dtype(model: ir.Model, value: ValueLike, dtype: str) -> None:
    """Let an input or output have another dtype; a Cast to or from what the model computes with is added.

    Raises UsageError when it is neither, no tensor, or the dtype is unknown.
    """
    wanted = parse_dtype(dtype)
    found = Index(model).value(value)
    if not isinstance(found.type, ir.TensorType):
        raise UsageError(f"'{found.name}' is no tensor", next_step="graphdoc inspect MODEL")
    if found.dtype == wanted:
        return
    for kind in (found.dtype, wanted):
        if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            raise UsageError(
                "Cast does not know complex numbers",
                where=str(found.name),
                next_step="leave the dtype as it is",
            )
    if any(found is each for each in model.graph.inputs):
        _cast_input(model, found, wanted)
    elif any(found is each for each in model.graph.outputs):
        _cast_output(model, found, wanted)
    else:
        raise UsageError(
            f"'{found.name}' is neither input nor output",
            next_step="insert a Cast: --insert 'y = Cast <to = 10> (x)'",
        )


def _cast(source: ir.Value, to: ir.DataType, title: str, names: Names) -> ir.Node:
    attributes = [ir.AttrInt64("to", int(to))]
    node = ir.Node("", "Cast", [source], attributes, num_outputs=1, name=names.node(f"{title}_Cast"))
    node.outputs[0].name = names.value(f"{title}_{dtype_name(int(to))}")
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(to), source.shape
    return node


def _cast_input(model: ir.Model, value: ir.Value, dtype: ir.DataType) -> None:
    if value.is_initializer():
        raise UsageError(
            f"'{value.name}' has a default content",
            next_step=f"give it a new one: --set-initializer {value.name}=FILE.npy",
        )
    names = Names(model)
    node = _cast(value, value.dtype or dtype, str(value.name), names)
    value.type = ir.TensorType(dtype)
    put(node, Index(model).places[0])
    redirect(model, value, node.outputs[0], names, keep=(node,))


def _cast_output(model: ir.Model, value: ir.Value, dtype: ir.DataType) -> None:
    names = Names(model)
    title = str(value.name)
    node = _cast(value, dtype, title, names)
    model.graph.append(node)
    value.name, node.outputs[0].name = names.value(f"{title}_{type_name(value.type)}"), title
    for position, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[position] = node.outputs[0]


def to_input(model: ir.Model, value: ValueLike) -> ir.Value:
    """Turn a weight (an initializer or the output of a Constant node) into an input that must be fed.

    Raises UsageError when it is neither, or belongs to a function.
    """
    index = Index(model)
    found = index.value(value)
    home = index.home[found]
    if home.function or (home.outer and index.place(home.outer[0]).function):
        raise UsageError(f"'{index.key(found)}' lies in a function", next_step="inline the function first")
    maker = found.producer()
    if found.is_initializer() and home.graph is model.graph:
        model.graph.initializers.pop(str(found.name))
        found.const_value = None
        if not found.is_graph_input():
            model.graph.inputs.append(found)
        return found
    if not found.is_initializer() and (maker is None or maker.op_type != "Constant"):
        raise UsageError(f"'{found.name}' is no weight", next_step="graphdoc inspect MODEL --weights")
    kind, shape = known(model, [found])[found]
    names = Names(model)
    fresh = ir.Value(name=names.value(str(found.name)), type=kind, shape=shape)
    model.graph.inputs.append(fresh)
    _replace_source(model, found, fresh, names)
    return fresh


def _replace_source(model: ir.Model, old: ir.Value, new: ir.Value, names: Names) -> None:
    """Let ``new`` stand for ``old``, whose node or content goes; the name passes on, if no output has it."""
    title, maker = str(old.name), old.producer()
    redirect(model, old, new, names, swap=False)
    home = old.graph
    if maker is not None:
        remove_dead(model, [maker])
    elif old.is_initializer() and home is not None:
        home.initializers.pop(title)
    new.name = title


def to_initializer(model: ir.Model, value: ValueLike, content: Any) -> ir.Value:
    """Give an input, or any computed value, a fixed content; what computed it goes.

    content: an array of the value's dtype that fits its shape.

    Raises UsageError for an unknown name; ModelError when dtype or shape differ.
    """
    index = Index(model)
    found = index.value(value)
    tensor = _fitting(_typed(model, found), content)
    home = index.home[found]
    if found.producer() is None and found in home.graph.inputs and home.graph is not model.graph:
        raise UsageError(
            f"'{index.key(found)}' is an input of {home.title}; its node feeds it",
            next_step="name a value of the main graph",
        )
    if found.producer() is None:
        found.const_value, tensor.name = tensor, found.name
        found.shape = ir.Shape(tensor.shape.numpy())
        home.graph.initializers.add(found)
        if found.is_graph_input() and model.ir_version >= PLAIN_INITIALIZERS:
            model.graph.inputs.remove(found)
        refresh(model, [found])
        return found
    return _store_computed(model, found, tensor, home)


def _store_computed(model: ir.Model, found: ir.Value, tensor: ir.TensorProtocol, home: Place) -> ir.Value:
    names = Names(model)
    fresh = constant(model, home, tensor, names.value(f"{found.name}_content"), names)
    title = str(found.name)
    outputs = [output is found for output in model.graph.outputs]
    maker = found.producer()
    redirect(model, found, fresh, names)
    if maker is not None:
        remove_dead(model, [maker])
    if not any(outputs):
        found.name = names.value(f"{title}_old")
        fresh.name = title
    refresh(model, [fresh])
    return fresh


def _fitting(value: ir.Value, content: Any) -> ir.TensorProtocol:
    """Return the content as tensor. Raises ModelError when it does not fit the value's dtype or shape."""
    tensor = new_tensor(content)
    if value.dtype is not None and tensor.dtype != value.dtype:
        raise ModelError(
            f"'{value.name}' is {type_name(value.type)}, its content {dtype_name(int(tensor.dtype))}",
            next_step=f"save the array as {type_name(value.type)}",
        )
    sizes = tuple(int(size) for size in tensor.shape.numpy())
    dims = dims_of(value.shape)
    if value.shape is not None and not _fits(dims, sizes):
        shape = "×".join(str(dim) if dim is not None else "?" for dim in dims) or "scalar"
        given = "×".join(map(str, sizes)) or "scalar"
        raise ModelError(
            f"'{value.name}' is {shape}, its content {given}", next_step="give an array of that shape"
        )
    return tensor


def _typed(model: ir.Model, value: ir.Value) -> ir.Value:
    """Return a stand-in for a value that has the type it is known to have."""
    kind, shape = known(model, [value])[value]
    return ir.Value(name=value.name, type=kind, shape=shape)


def _fits(dims: Sequence[int | str | None], sizes: Sequence[int]) -> bool:
    if len(dims) != len(sizes):
        return False
    return all(size == dim for dim, size in zip(dims, sizes, strict=True) if isinstance(dim, int))


def set_initializer(model: ir.Model, value: ValueLike, content: Any) -> None:
    """Give a weight another content of the same dtype and shape (initializer or Constant node).

    Raises UsageError when it is no weight; ModelError when dtype or shape differ.
    """
    index = Index(model)
    found = index.value(value)
    maker = found.producer()
    if found.is_initializer():
        tensor = _fitting(_as_stored(found), content)
        tensor.name, found.const_value = found.name, tensor
    elif maker is not None and maker.op_type == "Constant":
        tensor = _fitting(_typed(model, found), content)
        maker.attributes.clear()
        maker.attributes.add(ir.AttrTensor("value", tensor))
    else:
        raise UsageError(f"'{found.name}' is no weight", next_step="graphdoc inspect MODEL --weights")


def _as_stored(value: ir.Value) -> ir.Value:
    tensor = value.const_value
    if tensor is None:
        return value
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=shape)


def weight(model: ir.Model, value: ValueLike) -> np.ndarray[Any, Any]:
    """Return the content of a weight. Raises UsageError when the value is none."""
    from graphdoc.surgeon.subject import constant as content

    found = Index(model).value(value)
    array = content(found)
    if array is None:
        raise UsageError(f"'{found.name}' is no weight", next_step="graphdoc inspect MODEL --weights")
    return array
