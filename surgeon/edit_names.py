"""New names for values, nodes and dims, everywhere they occur: subgraphs, functions, annotations."""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_find import Index, NodeLike, defined_in, places, subgraphs, unknown
from graphdoc.surgeon.edit_types import dims_of
from graphdoc.surgeon.reader import QUANTIZATION

_SYMBOL = re.compile(r"[^\W\d][\w.]*")


def rename_values(model: ir.Model, names: Mapping[str, str]) -> None:
    """Rename values: inputs, outputs, weights and what nodes compute, in subgraphs and functions too.

    names: old → new; all change at once, so two names can be exchanged.

    Raises UsageError when a name is unknown, or a new one is empty or taken where the value can be seen.
    """
    index = Index(model)
    wanted = {index.value(old): new for old, new in names.items()}
    asked = set(wanted.values())
    holders: dict[str, list[ir.Value]] = {}
    for other in index.home:
        name = wanted.get(other, other.name or "")
        if name in asked:
            holders.setdefault(name, []).append(other)
    for value, new in wanted.items():
        _check_free(index, value, new, holders.get(new, []))
    apply_names(model, wanted)


def _check_free(index: Index, value: ir.Value, new: str, holders: Iterable[ir.Value]) -> None:
    """Raise UsageError when another value that can be seen from where ``value`` lies has the name.

    holders: all values that will have it.
    """
    if not new:
        raise UsageError(f"'{value.name}' cannot have an empty name", next_step="give a name")
    home = index.home[value]
    for other in holders:
        place = index.home[other]
        related = place.graph is home.graph or place.graph in home.outer or home.graph in place.outer
        if related and other is not value:
            raise UsageError(
                f"the name '{new}' is taken by another value",
                where=index.key(other),
                next_step="choose another",
            )


def apply_names(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    """Give values new names that were found to be free; annotations that name them follow."""
    old = {str(value.name): new for value, new in names.items()}
    stored = [(value.graph, value) for value in names if value.is_initializer()]
    for graph, value in stored:
        if graph is not None:
            graph.initializers.pop(str(value.name))
    for value, new in names.items():
        value.name = new
    for graph, value in stored:
        if graph is not None:
            graph.initializers.add(value)
    for place in places(model):
        for value in defined_in(place.graph):
            if value.meta:
                _rename_annotation(value, old)


def _rename_annotation(value: ir.Value, names: Mapping[str, str]) -> None:
    pairs = value.meta.get(QUANTIZATION)
    if pairs and any(name in names for name in pairs.values()):
        value.meta[QUANTIZATION] = {key: names.get(name, name) for key, name in pairs.items()}


def rename_node(model: ir.Model, node: NodeLike, name: str) -> None:
    """Give a node another name.

    Raises UsageError when there is no such node, or another node has the name.
    """
    index = Index(model)
    found = index.node(node)
    taken = any(n.name == name and n is not found for place in index.places for n in place.graph)
    if taken and name:
        raise UsageError(f"the name '{name}' is taken by another node", next_step="choose another")
    found.name = name


def rename_dim(model: ir.Model, old: str, new: str) -> None:
    """Rename a symbol of dims (``N`` → ``batch``) wherever a shape names it, in expressions (``2*N``) too.

    Raises UsageError when no shape names it, the new symbol is a number, or in use already: that would state
    that two sizes are equal.
    """
    known = dim_symbols(model)
    if old not in known:
        raise unknown("dim", old, known, look="graphdoc inspect MODEL")
    if new in known:
        raise UsageError(f"the dim '{new}' exists already", next_step="rename it first, or freeze both")
    if not new.strip():
        raise UsageError(f"the dim '{old}' cannot have an empty name", next_step="give a name")
    if looks_like_number(new):
        raise UsageError(f"'{new}' is no symbol", next_step=f"--freeze {old}=4 gives it a size")
    change_dims(model, {old: new})


def dim_symbols(model: ir.Model) -> list[str]:
    """Return the symbols that shapes name, in the order of the graph; the parts of expressions too."""
    found: dict[str, None] = {}
    for value in _all_values(model):
        for text in dims_of(value.shape):
            if isinstance(text, str):
                found.update(dict.fromkeys((text, *_SYMBOL.findall(text))))
    return list(found)


def is_symbol(text: str) -> bool:
    """Whether a dim's text is one symbol and no expression of several."""
    return bool(_SYMBOL.fullmatch(text)) or not re.search(r"[+*/()]", text)


def looks_like_number(text: str) -> bool:
    """Whether a text is a number, such as -4, 1.5 or 1e3, which as a symbol would mislead."""
    return bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text.strip(), re.IGNORECASE))


def change_dims(model: ir.Model, symbols: Mapping[str, str]) -> None:
    """Replace symbols in all shapes."""
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = substituted(value.shape, symbols)


def substituted(shape: ir.Shape, symbols: Mapping[str, str]) -> ir.Shape:
    """Return a shape with symbols replaced; what becomes a number is one."""
    dims = [_dim(dim, symbols) for dim in dims_of(shape)]
    return ir.Shape(dims, denotations=[shape.get_denotation(axis) for axis in range(len(dims))])


def _dim(dim: int | str | None, symbols: Mapping[str, str]) -> int | str | None:
    if not isinstance(dim, str):
        return dim
    text = symbols.get(dim) or _SYMBOL.sub(lambda match: symbols.get(match[0], match[0]), dim)
    size = arithmetic(text) if text != dim else None
    return text if size is None else size


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"floor": math.floor, "ceil": math.ceil, "max": max, "min": min}


def arithmetic(text: str) -> int | None:
    """Return the size that an expression of numbers means (``2*3 + floor(7/2)``), None for anything else."""
    try:
        size = _evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return None
    return int(size) if size == int(size) and size >= 0 else None


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*map(_evaluate, node.args))
    raise ValueError(ast.dump(node))


def _all_values(model: ir.Model) -> Iterable[ir.Value]:
    for place in places(model):
        yield from defined_in(place.graph)


def add_prefix(model: ir.Model, prefix: str, *, interface: bool = True) -> None:
    """Put a prefix before the names of all nodes and values, in subgraphs too; functions keep theirs.

    interface: inputs and outputs too.

    Raises UsageError for an empty prefix.
    """
    if not prefix:
        raise UsageError("the prefix is empty", next_step="give one, such as 'encoder/'")
    kept = set() if interface else {*model.graph.inputs, *model.graph.outputs}
    own = set(_graphs_within(model.graph))
    names = {
        value: f"{prefix}{value.name}"
        for place in places(model)
        if place.graph in own
        for value in defined_in(place.graph)
        if value not in kept
    }
    apply_names(model, names)
    for graph in own:
        for node in graph:
            node.name = f"{prefix}{node.name}" if node.name else node.name


def _graphs_within(graph: ir.Graph) -> Iterable[ir.Graph]:
    yield graph
    for node in graph:
        for _, inner in subgraphs(node):
            yield from _graphs_within(inner)
