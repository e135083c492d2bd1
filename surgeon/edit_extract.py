"""Cut a part out of a model: what computes some values from some others, as a model of its own."""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.surgeon.edit_find import Index, ValueLike, defined_in, subgraphs
from graphdoc.surgeon.edit_flow import ancestors, reads, title_of
from graphdoc.surgeon.edit_types import Kind, known
from graphdoc.surgeon.reader import QUANTIZATION
from graphdoc.surgeon.tensors import detached

copy_model = detached
"""Return a copy whose graphs can be edited on their own; the weights are shared."""


def extract(
    model: ir.Model, inputs: Sequence[ValueLike] | None, outputs: Sequence[ValueLike] | None
) -> ir.Model:
    """Return the part of a model that computes ``outputs`` from ``inputs``.

    inputs: any values; None: the model's inputs that are needed. outputs: any values; None: those of the
    model. Values may lie in one subgraph (a branch, the body of a loop) or function: that is then what the
    new model computes, with what it needs of the graphs around it. Weights are shared with ``model``, which
    stays as it is. Types are those declared, else those that follow from the operators.

    Raises UsageError when a name is unknown, an output depends on an input that is not given, or a given
    input is not needed; ModelError when the dtype of an input cannot be known.
    """
    index = Index(model)
    wanted = _unique(index, model.graph.outputs if outputs is None else outputs)
    given = _unique(index, () if inputs is None else inputs)
    if not wanted:
        raise UsageError("nothing to extract: no outputs are given", next_step="name at least one output")
    both = next((value for value in wanted if value in given), None)
    if both is not None:
        raise UsageError(f"'{index.key(both)}' is both input and output", next_step="leave one of them out")
    part = _Part(index, given)
    part.collect(wanted)
    if inputs is None:
        given = [value for value in model.graph.inputs if value in part.sources or value in part.stored]
    _check_sources(index, part, given)
    _check_needed(index, given, wanted, part)
    types = known(model, [*given, *wanted])
    _check_typed(index, given, types)
    return _build(model, part, given, wanted, types)


def _unique(index: Index, values: Iterable[ValueLike]) -> list[ir.Value]:
    return list(dict.fromkeys(index.value(value) for value in values))


class _Part:
    """The nodes between given values and wanted ones, and what they start from.

    sources: what nothing in the part computes: inputs of the graphs, by a node that reads each.
    """

    def __init__(self, index: Index, given: Iterable[ir.Value]) -> None:
        self.index = index
        self.given = set(given)
        self.nodes: dict[ir.Node, None] = {}
        self.stored: dict[ir.Value, None] = {}
        self.sources: dict[ir.Value, ir.Node | None] = {}
        self.reached: set[ir.Value] = set()

    def collect(self, outputs: Iterable[ir.Value]) -> None:
        pending: list[tuple[ir.Value, ir.Node | None]] = [(value, None) for value in outputs]
        seen: set[ir.Value] = set()
        while pending:
            value, reader = pending.pop()
            if value in self.given:
                self.reached.add(value)
                continue
            if value in seen:
                continue
            seen.add(value)
            node = value.producer()
            if node is not None:
                self._add(node, pending)
            elif value.is_initializer() and value.const_value is not None:
                self.stored[value] = None
            else:
                self.sources[value] = reader

    def _add(self, node: ir.Node, pending: list[tuple[ir.Value, ir.Node | None]]) -> None:
        if node not in self.nodes:
            self.nodes[node] = None
            held = [graph for _, graph in subgraphs(node)]
            inside = {graph for each in held for graph in (each, *each.subgraphs())}
            pending += [(v, node) for v in reads(node) if self.index.home[v].graph not in inside]

    def ordered(self) -> list[ir.Node]:
        """Return the nodes, those of outer graphs first, else in the order of the model."""
        places = sorted(self.index.places, key=lambda place: len(place.outer))
        return [node for place in places for node in place.graph if node in self.nodes]


def _check_sources(index: Index, part: _Part, given: Sequence[ir.Value]) -> None:
    """Raise UsageError when the part needs values that are not given."""
    lacking = [value for value in part.sources if value not in given]
    if not lacking:
        return
    first = lacking[0]
    reader = part.sources[first]
    names = ", ".join(f"'{index.key(value)}'" for value in lacking[:5])
    raise UsageError(
        f"the outputs depend on {names} too" + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""),
        where=f"read by {title_of(reader)}" if reader is not None else None,
        next_step=f"add it to the inputs: {','.join(index.key(v) for v in (*given, *lacking))}",
    )


def _check_needed(index: Index, given: Sequence[ir.Value], wanted: Sequence[ir.Value], part: _Part) -> None:
    """Raise UsageError for an input that no output is computed from."""
    for value in given:
        if value in part.reached or value in part.sources or value in part.stored:
            continue
        after = value.producer() is not None and any(value.producer() in ancestors(index, v) for v in wanted)
        why = "lies before other inputs" if after else "is not needed to compute the outputs"
        raise UsageError(f"input '{index.key(value)}' {why}", next_step="leave it out")


def _check_typed(index: Index, given: Sequence[ir.Value], types: dict[ir.Value, Kind]) -> None:
    for value in given:
        if types[value][0] is None:
            raise ModelError(
                f"the dtype of '{index.key(value)}' is unknown",
                where=title_of(maker) if (maker := value.producer()) is not None else None,
                next_step="extract from another value, or declare its type first",
            )


def _build(
    model: ir.Model,
    part: _Part,
    given: Sequence[ir.Value],
    wanted: Sequence[ir.Value],
    types: dict[ir.Value, Kind],
) -> ir.Model:
    home = part.index.home[wanted[0]]
    nodes = part.ordered()
    _check_references(nodes)
    root = home.outer[0] if home.outer else home.graph
    legacy = [value for value in part.stored if value not in given] if model.ir_version < 4 else []
    view = ir.GraphView(
        [*given, *legacy],
        wanted,
        nodes=nodes,
        initializers=[*part.stored],
        doc_string=root.doc_string,
        opset_imports=dict(root.opset_imports),
        name=root.name or "part",
        metadata_props=dict(root.metadata_props),
    )
    graph = view.clone()
    for value, old in zip((*graph.inputs, *graph.outputs), (*given, *legacy, *wanted), strict=True):
        value.type, value.shape = types.get(old, (old.type, old.shape))
        if value.is_graph_input() and not value.is_initializer():
            value.const_value = None
    _forget_annotations(graph)
    return _model_like(model, graph)


def _model_like(model: ir.Model, graph: ir.Graph) -> ir.Model:
    """Return a model of another graph, with all that stands around the graph."""
    copy = ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[function.clone() for function in model.functions.values()],
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )
    remove_unused_functions(copy)
    return copy


def _check_references(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        reference = next((a for a in node.attributes.values() if a.is_ref()), None)
        if reference is not None:
            raise UsageError(
                f"{title_of(node)} takes '{reference.name}' from the call of its function",
                next_step="inline the functions first, then extract",
            )


def _forget_annotations(graph: ir.Graph) -> None:
    """Drop quantization annotations that name values which are not in the part."""
    names = {value.name for value in defined_in(graph)}
    for value in defined_in(graph):
        if not names.issuperset(value.meta.get(QUANTIZATION, {}).values()):
            del value.meta[QUANTIZATION]


def remove_unused_functions(model: ir.Model) -> list[str]:
    """Remove the functions that nothing calls, directly or through others; return their names."""
    needed: set[ir.OperatorIdentifier] = set()
    pending = [node.op_identifier() for node in model.graph.all_nodes()]
    while pending:
        called = pending.pop()
        if called in model.functions and called not in needed:
            needed.add(called)
            pending += [node.op_identifier() for node in model.functions[called].all_nodes()]
    unused = [key for key in model.functions if key not in needed]
    for key in unused:
        del model.functions[key]
    return [f"{domain}::{name}" for domain, name, _ in unused]
