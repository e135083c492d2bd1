"""Nodes come and go: add, insert, replace, remove, bypass; one node, or all that lies between some values.

Each verb checks first and edits then: an error leaves the model as it was. New nodes are put where their
inputs are there already; a subgraph may read what lies around it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_find import Index, NodeLike, Place, ValueLike
from graphdoc.surgeon.edit_flow import check_acyclic, detach, is_output, put, redirect, remove_dead, title_of
from graphdoc.surgeon.edit_new import Attributes, Draft, Operand, Resolved, resolve
from graphdoc.surgeon.edit_types import Kind, known, refresh, type_name
from graphdoc.surgeon.names import Names


def add_node(
    model: ir.Model,
    op: str,
    inputs: Sequence[Operand],
    outputs: Sequence[str] | int = 1,
    *,
    attributes: Attributes | None = None,
    domain: str = "",
    name: str = "",
    graph: ir.Graph | None = None,
) -> ir.Node:
    """Add a node and return it; nothing reads its outputs yet.

    op: an operator of ``domain``, or a function of the model. inputs: values, names, arrays, numbers (Python
    numbers become float32 or int64 initializers), None for one left out. outputs: names, "" for one left out;
    or how many. attributes: Python values. graph: where it goes; the innermost graph of its inputs by
    default.

    Raises UsageError for unknown names and names that are taken; ModelError when the operator does not
    exist in the model's opset or does not take these inputs.
    """
    index, names = Index(model), Names(model)
    values = resolve(index, inputs)
    place = index.place(graph) if graph is not None else _innermost(index, values)
    _check_visible(index, values, place)
    titles = _titles(op, outputs, names)
    draft = Draft(model, place, op, values, len(titles), attributes, domain, name)
    node = draft.build(titles, draft.kinds(), names)
    put(node, place)
    return node


def _titles(op: str, outputs: Sequence[str] | int, names: Names) -> list[str]:
    if isinstance(outputs, int):
        return [names.value(f"{op}_output") for _ in range(outputs)]
    titles = [outputs] if isinstance(outputs, str) else list(outputs)
    for title in titles:
        _check_new(title, names)
    return titles


def insert(
    model: ir.Model,
    value: ValueLike,
    op: str,
    inputs: Sequence[Operand] = (),
    *,
    attributes: Attributes | None = None,
    domain: str = "",
    name: str = "",
    output: str = "",
) -> ir.Node:
    """Put a node after a value: all that read the value, outputs of the model too, now read its result.

    inputs: what the node reads; a value that is not among them comes first. output: the name of the result;
    an output of the model keeps its name, and the value before the node gets a new one.

    Raises UsageError for unknown and taken names, a cycle, or a result of another dtype than the value's;
    ModelError as :func:`add_node` does.
    """
    index, names = Index(model), Names(model)
    source = index.value(value)
    values = resolve(index, inputs)
    values = values if source in values else [source, *values]
    place = index.home[source]
    _check_visible(index, values, place)
    for extra in values:
        if isinstance(extra, ir.Value) and extra is not source:
            check_acyclic(index, extra, source.consumers(), f"'{extra.name}' depends on '{source.name}'")
    title = output or names.value(f"{source.name}_{op}")
    if output:
        _check_new(output, names)
    draft = Draft(model, place, op, values, 1, attributes, domain, name)
    kinds = draft.kinds()
    _check_dtype(model, source, kinds[0])
    node = draft.build([title], kinds, names)
    put(node, place)
    redirect(model, source, node.outputs[0], names, keep=(node,))
    _follow(model, source, node.outputs[0])
    return node


def replace_node(
    model: ir.Model,
    node: NodeLike,
    op: str,
    inputs: Sequence[Operand] | None = None,
    *,
    attributes: Attributes | None = None,
    domain: str = "",
    name: str | None = None,
) -> ir.Node:
    """Put another operator in a node's place: same outputs, same inputs unless others are given.

    Raises UsageError for unknown names, a cycle or an output of another dtype; ModelError as
    :func:`add_node`.
    """
    old = Index(model).node(node)
    outputs = [output for output in old.outputs if output.name]
    given: Sequence[Operand] = list(old.inputs) if inputs is None else inputs
    title = str(old.name or "") if name is None else name
    return replace(model, outputs, op, given, attributes=attributes, domain=domain, name=title)


def replace(
    model: ir.Model,
    outputs: Sequence[ValueLike],
    op: str,
    inputs: Sequence[Operand],
    *,
    attributes: Attributes | None = None,
    domain: str = "",
    name: str = "",
) -> ir.Node:
    """Let one new node compute ``outputs`` from ``inputs``; nodes that nothing needs any more go.

    This replaces whatever lay between the values: one node, a chain, a whole subgraph. ``op`` may be a
    function of the model. The outputs keep their names.

    Raises UsageError for unknown names, a cycle or an output of another dtype; ModelError as
    :func:`add_node`.
    """
    index, names = Index(model), Names(model)
    old = [index.value(each) for each in outputs]
    makers = _makers(old)
    place = index.home[old[0]]
    values = resolve(index, inputs)
    _check_visible(index, [*old, *values], place)
    _check_between(index, old, makers, values)
    draft = Draft(model, place, op, values, len(old), attributes, domain, name)
    kinds = draft.kinds()
    for before, kind in zip(old, kinds, strict=True):
        _check_dtype(model, before, kind)
    kinds = [_either(kind, before) for before, kind in zip(old, kinds, strict=True)]
    titles = [str(value.name) for value in old]
    for value in old:
        value.name = names.value(f"{value.name}_old")
    kinds = [
        (kind or v.type, shape if shape is not None else v.shape)
        for v, (kind, shape) in zip(old, kinds, strict=True)
    ]
    for maker in makers:
        if name and maker.name == name:
            names.release_node(name)
    node = draft.build(titles, kinds, names)
    put(node, place)
    for before, after in zip(old, node.outputs, strict=True):
        redirect(model, before, after, names, swap=False)
    remove_dead(model, makers)
    for before, after in zip(old, node.outputs, strict=True):
        _follow(model, before, after)
    return node


def _either(kind: Kind, declared: ir.Value) -> Kind:
    """Return what is known of a result, else what was declared of the value in whose place it stands."""
    return (declared.type, declared.shape) if kind[0] is None else kind


def _makers(values: Sequence[ir.Value]) -> list[ir.Node]:
    if not values:
        raise UsageError("a replacement needs outputs", next_step="name the values that it computes")
    found: dict[ir.Node, None] = {}
    for value in values:
        maker = value.producer()
        if maker is None:
            raise UsageError(
                f"'{value.name}' is an input or initializer; no node computes it",
                next_step="insert a node after it instead",
            )
        found[maker] = None
    return list(found)


def _check_between(
    index: Index, old: Sequence[ir.Value], makers: Sequence[ir.Node], values: Sequence[Resolved]
) -> None:
    """Check that no input of a replacement is computed from what it replaces."""
    readers = {node for value in old for node in value.consumers()}
    for value in values:
        if not isinstance(value, ir.Value):
            continue
        if value in old:
            raise UsageError(
                f"'{value.name}' is both input and output", next_step="give the input of its node"
            )
        check_acyclic(index, value, readers, f"'{value.name}' depends on the outputs")


def remove_node(model: ir.Model, node: NodeLike) -> None:
    """Remove a node whose results nothing reads.

    Raises UsageError when there is no such node, or something needs it.
    """
    found = Index(model).node(node)
    needed = next((v for v in found.outputs if v.uses() or is_output(model, v)), None)
    if needed is not None:
        readers = ", ".join(dict.fromkeys(title_of(reader) for reader in needed.consumers()[:3]))
        raise UsageError(
            f"'{needed.name}' of {title_of(found)} is needed by {readers or 'the outputs'}",
            next_step="bypass the node, or replace it",
        )
    detach(found)


def bypass(
    model: ir.Model,
    node: NodeLike,
    source: ValueLike | int = 0,
    target: ValueLike | int = 0,
) -> None:
    """Take a node out: all that read its output ``target`` read its input ``source`` instead.

    source, target: by position, name or value. An output of the model keeps its name.

    Raises UsageError for unknown names, other outputs that are needed, or when the dtypes differ.
    """
    index = Index(model)
    found = index.node(node)
    before = _pick(index, found, found.inputs, source, "input")
    after = _pick(index, found, found.outputs, target, "output")
    others = [v for v in found.outputs if v is not after and (v.uses() or is_output(model, v))]
    if others:
        raise UsageError(
            f"'{others[0].name}' of {title_of(found)} is needed too", next_step="replace its readers first"
        )
    types = known(model, [before, after])
    _check_dtype(model, after, types[before])
    names = Names(model)
    if is_output(model, after):
        before.type, before.shape = types[before]
    redirect(model, after, before, names, keep=(found,))
    remove_dead(model, [found])
    if not _same(types[after][1], types[before][1]):
        refresh(model, [before])


def _pick(
    index: Index, node: ir.Node, values: Sequence[ir.Value | None], wanted: ValueLike | int, kind: str
) -> ir.Value:
    if isinstance(wanted, int):
        found = values[wanted] if -len(values) <= wanted < len(values) else None
    else:
        value = index.value(wanted)
        found = value if any(value is each for each in values) else None
    if found is None:
        names = ", ".join(str(v.name) for v in values if v is not None) or "none"
        what = wanted.name if isinstance(wanted, ir.Value) else wanted
        raise UsageError(f"{title_of(node)} has no {kind} '{what}'", next_step=f"its {kind}s: {names}")
    return found


def set_attribute(model: ir.Model, node: NodeLike, name: str, value: Any) -> None:
    """Set an attribute of a node, or remove it with None.

    Raises UsageError for an unknown node; ModelError when the operator does not take it.
    """
    index = Index(model)
    found = index.node(node)
    kept: dict[str, Any] = {key: attribute for key, attribute in found.attributes.items() if key != name}
    wanted = kept if value is None else {**kept, name: value}
    place = index.place(found.graph)
    draft = Draft(model, place, found.op_type, found.inputs, len(found.outputs), wanted, found.domain)
    kinds = draft.kinds()
    for output, kind in zip(found.outputs, kinds, strict=True):
        _check_dtype(model, output, kind)
    attributes = draft.attrs()
    found.attributes.clear()
    found.attributes.update(attributes)
    for output, (kind, shape) in zip(found.outputs, kinds, strict=True):
        output.type, output.shape = kind or output.type, shape
    refresh(model, found.outputs)


def _innermost(index: Index, values: Iterable[Resolved]) -> Place:
    """Return the graph from which all values can be seen."""
    homes = [index.home[value] for value in values if isinstance(value, ir.Value)]
    return max(homes, key=lambda home: len(home.outer), default=index.places[0])


def _check_visible(index: Index, values: Iterable[Resolved], place: Place) -> None:
    for value in values:
        if not isinstance(value, ir.Value):
            continue
        home = index.home[value].graph
        if home is not place.graph and home not in place.outer:
            raise UsageError(
                f"'{index.key(value)}' cannot be seen from {place.title}",
                next_step="give values of the same graph or one around it",
            )


def _check_new(title: str, names: Names) -> None:
    if title and names.has_value(title):
        raise UsageError(f"the name '{title}' is taken by another value", next_step="choose another")


def _check_dtype(model: ir.Model, old: ir.Value, new: Kind) -> None:
    """Raise UsageError when what stands in the place of a value has another dtype."""
    before, after = known(model, [old])[old][0], new[0]
    if before is not None and after is not None and before.dtype != after.dtype:
        raise UsageError(
            f"'{old.name}' is {type_name(before)}, what would stand in its place is {type_name(after)}",
            next_step=f"add a Cast to {type_name(before)}",
        )


def _follow(model: ir.Model, before: ir.Value, after: ir.Value) -> None:
    """Infer what follows from a value anew, unless the value is as it was."""
    if not _same(before.shape, after.shape):
        refresh(model, [after])


def _same(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    return a is not None and b is not None and list(a) == list(b)
