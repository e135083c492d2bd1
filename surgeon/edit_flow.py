"""How values flow: what depends on what, and moving readers from one value to another."""

from collections.abc import Iterable

import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.surgeon.edit_find import Index, Place, places, subgraphs
from graphdoc.surgeon.names import Names


def title_of(node: ir.Node) -> str:
    """Return how a node is called in messages."""
    name = node.name or next((value.name for value in node.outputs if value.name), "")
    return f"{node.op_type} {name}".rstrip()


def reads(node: ir.Node) -> list[ir.Value]:
    """Return what a node and the nodes of its subgraphs read, and what the subgraphs give out."""
    found = [value for value in node.inputs if value is not None]
    for _, graph in subgraphs(node):
        found += [value for inner in graph.all_nodes() for value in inner.inputs if value is not None]
        found += [value for each in (graph, *graph.subgraphs()) for value in each.outputs]
    return found


def ancestors(index: Index, value: ir.Value) -> dict[ir.Node, None]:
    """Return the nodes that a value is computed from, those inside subgraphs and around them too."""
    found: dict[ir.Node, None] = {}
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        home = index.home.get(current)
        if home is not None and home.owner is not None and current.producer() is None:
            pending += [v for v in home.owner.inputs if v is not None]
        node = current.producer()
        if node is not None and node not in found:
            inner = [each for _, graph in subgraphs(node) for each in graph.all_nodes()]
            found.update(dict.fromkeys((node, *inner)))
            pending += reads(node)
    return found


def check_acyclic(index: Index, value: ir.Value, nodes: Iterable[ir.Node], why: str) -> None:
    """Raise UsageError when ``value`` is computed from one of the nodes, or from a node around one."""
    owners = {place.graph: place.owner for place in index.places}
    wanted: set[ir.Node] = set()
    home = index.home[value]
    for node in nodes:
        current: ir.Node | None = node
        while current is not None and current not in wanted:
            wanted.add(current)
            inside = current.graph is home.graph
            current = None if inside or current.graph is None else owners.get(current.graph)
    hit = next((node for node in ancestors(index, value) if node in wanted), None)
    if hit is not None:
        raise UsageError(
            f"the graph would have a cycle: {why}",
            where=title_of(hit),
            next_step="choose inputs that are computed before",
        )


def put(node: ir.Node, place: Place) -> None:
    """Put a new node into a graph, right after the last of what it reads."""
    graph = place.graph
    makers = {
        maker for value in reads(node) if (maker := value.producer()) is not None and maker.graph is graph
    }
    last = next((other for other in reversed(graph) if other in makers), None)
    if last is not None:
        graph.insert_after(last, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def sort_if_needed(model: ir.Model) -> None:
    """Bring nodes into an order in which each comes after what it reads.

    Raises ModelError when there is none.
    """
    for place in places(model):
        if not place.outer and not _is_sorted(place.graph):
            try:
                place.graph.sort()
            except ValueError as error:
                raise ModelError(
                    "the graph has a cycle: a node needs its own result",
                    where=place.title,
                    next_step="undo the last connection",
                ) from error


def _is_sorted(graph: ir.Graph) -> bool:
    own: set[ir.Node] = set(graph)
    done: set[ir.Node] = set()
    for node in graph:
        makers = (value.producer() for value in reads(node))
        if any(maker in own and maker not in done for maker in makers):
            return False
        done.add(node)
        if not all(_is_sorted(inner) for _, inner in subgraphs(node)):
            return False
    return True


def redirect(
    model: ir.Model,
    old: ir.Value,
    new: ir.Value,
    names: Names,
    *,
    keep: Iterable[ir.Node] = (),
    swap: bool = True,
) -> None:
    """Let every reader of ``old``, and every graph that gives it out, use ``new``; sort nodes where needed.

    keep: nodes that go on reading ``old``. swap: outputs of the model keep their names: ``new`` takes that of
    ``old``.
    """
    kept = set(keep)
    for node, position in old.uses():
        if node not in kept:
            node.replace_input_with(position, new)
    for place in places(model):
        for position, output in enumerate(place.graph.outputs):
            if output is old:
                place.graph.outputs[position] = _given_out(place, old, new, names, swap)
    sort_if_needed(model)


def _given_out(place: Place, old: ir.Value, new: ir.Value, names: Names, swap: bool) -> ir.Value:
    """Return what a graph gives out in place of ``old``: ``new``, or a copy of it."""
    main = place.owner is None and not place.function
    swap = swap and main and not old.is_graph_input()
    maker = new.producer()
    here = maker is not None and maker.graph is place.graph
    if not here or (main and new.is_graph_output()):
        node = ir.Node("", "Identity", [new], num_outputs=1, name=names.node(f"{old.name}_Identity"))
        copy = node.outputs[0]
        copy.name, copy.type, copy.shape = names.value(f"{old.name}_copy"), new.type, new.shape
        place.graph.append(node)
        new = copy
    if main and new.type is None:
        new.type = old.type  # what leaves the model must have a type
    if swap:
        title = str(old.name)
        old.name = names.value(f"{title}_before")
        new.name = title
    return new


def remove_dead(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Remove the nodes whose results nothing needs, then those that only these needed; return them.

    Initializers that nothing reads any more go too, unless they are inputs or outputs.
    """
    outputs = {output for place in places(model) for output in place.graph.outputs}
    removed: list[ir.Node] = []
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.graph is None or any(v.uses() or v in outputs for v in node.outputs):
            continue
        read = reads(node)
        detach(node)
        removed.append(node)
        pending += [maker for value in read if (maker := value.producer()) is not None]
        for value in read:
            _drop_stored(value, outputs)
    return removed


def drop_unused(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Remove initializers, and the nodes that compute values, where nothing needs them any more."""
    outputs = {output for place in places(model) for output in place.graph.outputs}
    for value in values:
        maker = value.producer()
        if maker is not None:
            remove_dead(model, [maker])
        else:
            _drop_stored(value, outputs)


def _drop_stored(value: ir.Value, outputs: set[ir.Value]) -> None:
    unused = (
        value.is_initializer() and not value.uses() and not value.is_graph_input() and value not in outputs
    )
    if unused and value.graph is not None:
        value.graph.initializers.pop(str(value.name))


def detach(node: ir.Node) -> None:
    """Take a node out of its graph; neither it nor the nodes of its subgraphs read anything any more."""
    inner = [each for _, graph in subgraphs(node) for each in graph.all_nodes()]
    for each in (node, *inner):
        for position in range(len(each.inputs)):
            each.replace_input_with(position, None)
    if node.graph is not None:
        node.graph.remove(node)


def is_output(model: ir.Model, value: ir.Value) -> bool:
    """Whether a graph, subgraph or function of the model gives the value out."""
    return value.is_graph_output() and any(
        value is output for place in places(model) for output in place.graph.outputs
    )
