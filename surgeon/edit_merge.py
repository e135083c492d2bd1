"""Two models become one: side by side, or one fed by the other."""

from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass

import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.surgeon.edit_extract import copy_model
from graphdoc.surgeon.edit_find import defined_in, main_places, places, unknown
from graphdoc.surgeon.edit_names import apply_names, change_dims, dim_symbols, is_symbol
from graphdoc.surgeon.edit_opset import convert_opset
from graphdoc.surgeon.edit_types import dims_of, refresh, type_name
from graphdoc.surgeon.names import Names
from graphdoc.surgeon.writer import write_model


@dataclass(frozen=True, slots=True)
class Merged:
    """A model made of two, and what had to give way.

    renamed: names of the second model that were taken → what they are now. converted: a line per model whose
    opset was raised.
    """

    model: ir.Model
    renamed: Mapping[str, str]
    converted: tuple[str, ...] = ()


def merge(first: ir.Model, second: ir.Model, *, prefix: str = "") -> Merged:
    """Put two models side by side: all inputs and outputs of both, the first model's ahead.

    prefix: put before names of the second model that are taken in the first; by default its graph's name.
    Inputs stay apart, also those of the same name. Both models stay as they are.

    Raises ModelError when the two cannot be brought to the same opsets.
    """
    a, b, converted = _aligned(first, second)
    renamed = _make_apart(a, b, prefix or _prefix(b))
    _join(a, b)
    a.graph.inputs.extend(_taken(b.graph.inputs))
    a.graph.outputs.extend(_taken(b.graph.outputs))
    _adopt_initializers(a, b)
    return Merged(a, renamed, converted)


def chain(
    first: ir.Model,
    second: ir.Model,
    connections: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    keep_outputs: bool = False,
) -> Merged:
    """Feed outputs of the first model to inputs of the second.

    connections: output of the first → input of the second; by default those of equal names, or the only
    output and the only input. Inputs that are not fed and outputs that nothing reads stay those of the
    whole.
    keep_outputs: outputs that are read stay outputs too. prefix: as for :func:`merge`. Both models stay as
    they are.

    Raises UsageError for unknown names or an input fed twice; ModelError when dtypes or shapes do not fit, or
    the two cannot be brought to the same opsets.
    """
    a, b, converted = _aligned(first, second)
    pairs = _pairs(a, b, connections)
    _check_pairs(pairs)
    renamed = _make_apart(a, b, prefix or _prefix(b), fed={target for _, target in pairs})
    fed = {target: source for source, target in pairs}
    rest = [value for value in b.graph.inputs if value not in fed]
    outputs = list(b.graph.outputs)
    _join(a, b)
    _taken(b.graph.inputs), _taken(b.graph.outputs)
    _adopt_initializers(a, b, without=fed)
    for target, source in fed.items():
        _feed(a, target, source, outputs)
    if not keep_outputs:
        a.graph.outputs[:] = [value for value in a.graph.outputs if value not in set(fed.values())]
    a.graph.inputs.extend(rest)
    a.graph.outputs.extend(outputs)
    refresh(a, dict.fromkeys(fed.values()))
    return Merged(a, renamed, converted)


def _prefix(model: ir.Model) -> str:
    return f"{model.graph.name or 'second'}/"


def _taken(values: MutableSequence[ir.Value]) -> list[ir.Value]:
    found = list(values)
    values.clear()
    return found


def _pairs(
    a: ir.Model, b: ir.Model, connections: Mapping[str, str] | None
) -> list[tuple[ir.Value, ir.Value]]:
    sources = {str(value.name): value for value in a.graph.outputs}
    targets = {str(value.name): value for value in b.graph.inputs}
    if connections is None:
        needed = [name for name, value in targets.items() if not value.is_initializer()]
        connections = {name: name for name in targets if name in sources}
        if not connections and len(sources) == len(needed) == 1:
            connections = {next(iter(sources)): needed[0]}
        if not connections:
            raise UsageError(
                "no output of the first model has the name of an input of the second",
                where=f"outputs {', '.join(sources)}; inputs {', '.join(targets)}",
                next_step="say which feeds which: out=in",
            )
    for source, target in connections.items():
        if source not in sources:
            raise unknown("output", source, sources, look="graphdoc inspect MODEL")
        if target not in targets:
            raise unknown("input", target, targets, look="graphdoc inspect OTHER")
    return [(sources[source], targets[target]) for source, target in connections.items()]


def _check_pairs(pairs: Iterable[tuple[ir.Value, ir.Value]]) -> None:
    """Raise when an input is fed twice, or by what it cannot take."""
    seen: set[ir.Value] = set()
    for source, target in pairs:
        if target in seen:
            raise UsageError(f"input '{target.name}' is fed twice", next_step="feed each input once")
        seen.add(target)
        if source.type is not None and target.type is not None and source.type != target.type:
            given, taken = type_name(source.type), type_name(target.type)
            raise ModelError(
                f"'{source.name}' is {given}, but '{target.name}' takes {taken}",
                next_step=f"change one of them first: --set-dtype {source.name}={taken}",
            )
        if not _shapes_fit(source.shape, target.shape):
            has, takes = _words(source.shape), _words(target.shape)
            raise ModelError(
                f"'{source.name}' is {has}, but '{target.name}' takes {takes}",
                next_step="insert a Reshape or Transpose between them",
            )


def _shapes_fit(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    if a is None or b is None:
        return True
    sizes = zip(a, b, strict=False)
    return len(a) == len(b) and all(x == y for x, y in sizes if isinstance(x, int) and isinstance(y, int))


def _words(shape: ir.Shape | None) -> str:
    return "×".join("?" if dim is None else str(dim) for dim in dims_of(shape)) or "scalar"


def _feed(model: ir.Model, target: ir.Value, source: ir.Value, outputs: list[ir.Value]) -> None:
    """Let all that reads an input of the second model read an output of the first."""
    for node, position in target.uses():
        node.replace_input_with(position, source)
    for place in places(model):
        for position, output in enumerate(place.graph.outputs):
            if output is target:
                place.graph.outputs[position] = source
    for position, output in enumerate(outputs):
        if output is target:  # the second model gives out its input as it is
            node = ir.Node("", "Identity", [source], num_outputs=1, name=f"{target.name}_Identity")
            node.outputs[0].name, node.outputs[0].type = target.name, target.type
            model.graph.append(node)
            outputs[position] = node.outputs[0]


def _aligned(first: ir.Model, second: ir.Model) -> tuple[ir.Model, ir.Model, tuple[str, ...]]:
    """Return copies of both models that mean the same opsets, the older one raised to the newer."""
    a, b = copy_model(first), copy_model(second)
    converted: list[str] = []
    old, new = a.opset_imports.get("", 0), b.opset_imports.get("", 0)
    if old and new and old != new:
        convert_opset(a if old < new else b, max(old, new))
        converted.append(
            f"{'first' if old < new else 'second'} model from opset {min(old, new)} to {max(old, new)}"
        )
    for domain, version in b.opset_imports.items():
        if a.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"the models mean different versions of {domain or 'ai.onnx'}:"
                f" {a.opset_imports[domain]} and {version}",
                next_step="export one of them again with the other's version",
            )
    a.ir_version = max(a.ir_version, b.ir_version)
    return a, b, tuple(converted)


def _make_apart(a: ir.Model, b: ir.Model, prefix: str, fed: Iterable[ir.Value] = ()) -> dict[str, str]:
    """Rename what both models name: values, nodes, symbols of dims, functions; ``fed`` inputs go anyway."""
    taken = Names(a, functions=False)
    both = Names(a, b)
    skipped = set(fed)
    names: dict[ir.Value, str] = {}
    for place in main_places(b):
        for value in defined_in(place.graph):
            if taken.has_value(str(value.name)):
                names[value] = both.value(f"{prefix}{value.name}")
    renamed = {str(value.name): new for value, new in names.items() if value not in skipped}
    apply_names(b, names)
    for place in main_places(b):
        for node in place.graph:
            if node.name and taken.has_node(node.name):
                renamed[node.name] = node.name = both.node(f"{prefix}{node.name}")
    _rename_symbols(a, b)
    _rename_functions(a, b)
    return renamed


def _rename_symbols(a: ir.Model, b: ir.Model) -> None:
    """Rename symbols of dims that both models use: their sizes need not be the same."""
    used = {*dim_symbols(a), *dim_symbols(b)}
    shared = [symbol for symbol in dim_symbols(b) if symbol in set(dim_symbols(a)) and is_symbol(symbol)]
    names: dict[str, str] = {}
    for symbol in shared:
        number = 2
        while f"{symbol}_{number}" in used:
            number += 1
        names[symbol] = f"{symbol}_{number}"
        used.add(names[symbol])
    if names:
        change_dims(b, names)


def _rename_functions(a: ir.Model, b: ir.Model) -> None:
    """Rename functions of the second model that the first has under the same name with another body."""
    for key in [key for key in b.functions if key in a.functions]:
        if _text(a, key) == _text(b, key):
            del b.functions[key]
            continue
        domain, name, overload = key
        number = 2
        while (domain, f"{name}_{number}", overload) in {**a.functions, **b.functions}:
            number += 1
        function = b.functions.pop(key)
        function.name = f"{name}_{number}"
        b.functions[function.identifier()] = function
        for place in places(b):
            for node in place.graph:
                if node.op_identifier() == key:
                    node.op_type = function.name


def _text(model: ir.Model, key: ir.OperatorIdentifier) -> bytes:
    wanted = model.functions[key]
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(model.opset_imports))
    alone = ir.Model(graph, ir_version=model.ir_version, functions=[wanted])
    data: bytes = write_model(alone).functions[0].SerializeToString(deterministic=True)
    return data


def _join(a: ir.Model, b: ir.Model) -> None:
    """Move nodes and functions of ``b`` to ``a``; metadata that ``a`` lacks comes along."""
    nodes = list(b.graph)
    b.graph.remove(nodes)
    a.graph.extend(nodes)
    for key, function in list(b.functions.items()):
        a.functions[key] = function
    for name, text in b.metadata_props.items():
        a.metadata_props.setdefault(name, text)


def _adopt_initializers(a: ir.Model, b: ir.Model, without: Iterable[ir.Value] = ()) -> None:
    """Move the initializers of ``b`` to ``a``, those of ``without`` aside."""
    dropped = set(without)
    for name in list(b.graph.initializers):
        value = b.graph.initializers.pop(name)
        if value not in dropped:
            a.graph.initializers.add(value)
