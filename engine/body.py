"""A graph made ready for the interpreter: bound operators in order, and when each value can be let go."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.attributes import decode, to_array
from graphdoc.engine.device.placement import on_host, placed
from graphdoc.engine.errors import ModelError, UnsupportedOperatorError
from graphdoc.engine.functions import FUNCTION_BODY, RunModel, fallback, static_body
from graphdoc.engine.gradient import gradient_body
from graphdoc.engine.ops.table import Call, Operator, TensorType, canonical_domain, find
from graphdoc.engine.scope import FUNCTION, MAIN, enter, qualified


@dataclass(slots=True, eq=False)
class Step:
    """One node: the bound operator, and what it reads, writes and lets go.

    run: called with the inputs; with the bound bodies too where ``bodies`` is not empty.
    keys: the tap name of each output ("" for an unused slot).
    frees: values that no later step reads.
    fixed: the results follow from constants alone, so that every run gives the same.
    """

    node: ir.Node
    run: Any
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    keys: tuple[str, ...]
    bodies: Mapping[str, "Body"]
    frees: tuple[ir.Value, ...] = ()
    fixed: bool = False


@dataclass(slots=True)
class Body:
    """A graph, subgraph or function body.

    captured: values of enclosing graphs that this one reads.
    constants: initializers and Constant nodes.
    known: constants and the results of fixed steps that are kept; None before a whole run found them.
    rest: the steps that a run over ``known`` has to take.
    """

    scope: str
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value | None, ...]
    constants: dict[ir.Value, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    captured: tuple[ir.Value, ...] = ()
    known: dict[ir.Value, Any] | None = None
    rest: tuple[Step, ...] = ()

    def keep(self, found: Mapping[ir.Value, Any]) -> None:
        """Take over the results of fixed steps; graph outputs are made anew for each caller."""
        kept = {step for step in self.steps if step.fixed and all(v in found for v in step.outputs if v.name)}
        rest = tuple(step for step in self.steps if step not in kept)
        read = {v for step in rest for v in (*step.inputs, *_captures(step))}
        self.rest = rest
        self.known = self.constants | {value: x for value, x in found.items() if value in read}


def _captures(step: Step) -> tuple[ir.Value, ...]:
    return tuple(v for body in step.bodies.values() for v in body.captured)


@dataclass(slots=True)
class Settings:
    """What holds for every node of a model."""

    xp: Any
    truth: bool
    functions: Mapping[ir.OperatorIdentifier, ir.Function]
    rng: Any
    place: Any
    run_model: RunModel


class Builder:
    """Compiles graphs into bodies; collects operators that nothing implements."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.missing: dict[tuple[str, str, int], list[str]] = {}
        self.served_by: dict[tuple[str, str], str] = {}

    def graph(
        self,
        graph: ir.Graph | ir.Function,
        opsets: Mapping[str, int],
        scope: str = MAIN,
        arguments: Mapping[str, ir.Attr] | None = None,
    ) -> Body:
        """Return the body of a graph or function; ``arguments`` are the attributes of the calling node."""
        body = Body(scope, tuple(graph.inputs), tuple(graph.outputs))
        for value in getattr(graph, "initializers", {}).values():
            body.constants[value] = self._constant(value)
        for node in graph:
            self._node(body, node, opsets, arguments or {})
        _plan_frees(body)
        return body

    def _constant(self, value: ir.Value) -> Any:
        if value.const_value is None:
            raise ModelError(f"initializer '{value.name}' has no data")
        return self.settings.place(to_array(value.const_value))

    def _node(
        self, body: Body, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]
    ) -> None:
        attributes, graphs = split_attributes(node, arguments)
        first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
        bodies = {
            name: self.graph(graph, opsets, enter(body.scope, first, name), arguments)
            for name, graph in graphs.items()
        }
        function = self._function(node, opsets)
        run: Any
        if function is not None:
            called = self.graph(
                function,
                function.opset_imports,
                enter(body.scope, first, FUNCTION),
                bound_attributes(function, node, arguments),
            )
            run, bodies = call_function, {FUNCTION: called}
        else:
            run = self._bind(node, opsets, attributes, arguments)
            bodies = bodies if isinstance(run, partial) else {}
        keys = tuple(qualified(body.scope, v.name) if v.name else "" for v in node.outputs)
        step = Step(node, run, tuple(node.inputs), tuple(node.outputs), keys, bodies)
        step.fixed = not bodies and self._repeats(node, opsets, run)
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and run is not None:
            body.constants[node.outputs[0]] = self.settings.place(run())
        else:
            body.steps.append(step)

    def _repeats(self, node: ir.Node, opsets: Mapping[str, int], run: Any) -> bool:
        """Whether equal inputs give equal results, however often it runs."""
        row = find(canonical_domain(node.domain), node.op_type, version_of(node, opsets))
        return isinstance(run, partial) and row is not None and not row.random

    def _function(self, node: ir.Node, opsets: Mapping[str, int]) -> ir.Function | None:
        """Return the model's own function that a node calls, or the one that stands in for a missing row."""
        function = self.settings.functions.get(node.op_identifier())
        domain, version = canonical_domain(node.domain), version_of(node, opsets)
        if function is None and find(domain, node.op_type, version) is None:
            function = static_body(domain, node.op_type, version) or gradient_body(node)
            if function is not None:
                self.served_by[domain, node.op_type] = FUNCTION_BODY
        return function

    def _bind(
        self,
        node: ir.Node,
        opsets: Mapping[str, int],
        attributes: dict[str, Any],
        arguments: Mapping[str, ir.Attr],
    ) -> Any:
        version = version_of(node, opsets)
        row = find(canonical_domain(node.domain), node.op_type, version)
        if row is not None:
            return self._partial(row, node, version, attributes)
        imports = {canonical_domain(domain): number for domain, number in opsets.items()}
        imports[canonical_domain(node.domain)] = version
        served = fallback(node, imports, dict(resolved(node, arguments)), self.settings.run_model)
        if served is not None:
            run, self.served_by[canonical_domain(node.domain), node.op_type] = served
            return run if self.settings.xp is np else on_host(self.settings.xp, run)
        self.missing.setdefault((node.domain, node.op_type, version), []).append(
            node.name or str(node.outputs[0].name)
        )
        return None

    def _partial(self, row: Operator, node: ir.Node, version: int, attributes: dict[str, Any]) -> Any:
        call = Call(self.settings.xp, version, listed_outputs(node), self.settings.truth, self.settings.rng)
        around = {} if row.around is None else row.around(node)
        if self.settings.xp is not np:
            return placed(row, call, self._note_host, {**attributes, **around})
        return partial(row.evaluate, call, **attributes, **around)

    def _note_host(self, domain: str, name: str, reason: str) -> None:
        self.served_by[domain, name] = f"NumPy on the host: {reason}"

    def check(self) -> None:
        """Raise UnsupportedOperatorError for the first operator that nothing implements."""
        for (domain, name, version), nodes in self.missing.items():
            more = f" (and {len(nodes) - 1} more nodes)" if len(nodes) > 1 else ""
            raise UnsupportedOperatorError(
                f"no implementation of {domain or 'ai.onnx'}::{name} (version {version})",
                where=f"{nodes[0]}{more} in runner engine",
                next_step=f"register {name}: --ops my_ops.py (docs/operators.md), or use --test ort",
            )


def call_function(*inputs: Any, body: Any) -> tuple[Any, ...]:
    """Run a model-local function."""
    result: tuple[Any, ...] = body(*inputs)
    return result


def declared(value: ir.Value | None) -> TensorType:
    """Return what the graph declares of a value; dims without a size are None."""
    if value is None or value.dtype in (None, ir.DataType.UNDEFINED):
        return TensorType()
    dtype = np.dtype(object) if value.dtype == ir.DataType.STRING else value.dtype.numpy()
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else None for d in value.shape)
    return TensorType(dtype, dims)


_VARIADIC_OUTPUTS = frozenset({"If", "Loop", "Scan", "Split"})


def listed_outputs(node: ir.Node) -> int:
    """Return how many outputs the node lists, trailing unnamed ones left out unless they are variadic."""
    count = len(node.outputs)
    if node.op_type in _VARIADIC_OUTPUTS:
        return count
    while count and not node.outputs[count - 1].name:
        count -= 1
    return count


def version_of(node: ir.Node, opsets: Mapping[str, int]) -> int:
    """Return the opset version that holds for a node."""
    domain = canonical_domain(node.domain)
    return opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)


def resolved(node: ir.Node, arguments: Mapping[str, ir.Attr]) -> Iterator[tuple[str, ir.Attr]]:
    """Yield a node's attributes by name; references are looked up in ``arguments``."""
    for name, attribute in node.attributes.items():
        actual = arguments.get(str(attribute.ref_attr_name)) if attribute.is_ref() else attribute
        if actual is not None and not actual.is_ref():
            yield name, actual


def split_attributes(
    node: ir.Node, arguments: Mapping[str, ir.Attr]
) -> tuple[dict[str, Any], dict[str, ir.Graph]]:
    """Return a node's plain attributes and its graphs."""
    attributes: dict[str, Any] = {}
    graphs: dict[str, ir.Graph] = {}
    for name, actual in resolved(node, arguments):
        if actual.type == ir.AttributeType.GRAPH:
            graphs[name] = actual.as_graph()
        else:
            attributes[name] = decode(actual)
    return attributes, graphs


def bound_attributes(
    function: ir.Function, node: ir.Node, arguments: Mapping[str, ir.Attr]
) -> dict[str, ir.Attr]:
    """Return the values of a function's attribute parameters at one call."""
    defaults = {name: default for name, default in function.attributes.items() if default.value is not None}
    return defaults | dict(resolved(node, arguments))


def _plan_frees(body: Body) -> None:
    """Fill ``captured`` and each step's ``frees``."""
    own = {*body.inputs, *body.constants, *(v for step in body.steps for v in step.outputs)}
    captured: dict[ir.Value, None] = {}
    last: dict[ir.Value, int] = {}
    for index, step in enumerate(body.steps):
        reads = [v for v in step.inputs if v is not None]
        reads += [v for inner in step.bodies.values() for v in inner.captured]
        for value in reads:
            if value in own:
                last[value] = index
            else:
                captured[value] = None
        for value in step.outputs:
            last.setdefault(value, index)
    captured.update((v, None) for v in body.outputs if v is not None and v not in own)
    body.captured = tuple(captured)
    _mark_fixed(body)
    kept = {*body.outputs, *body.constants}
    frees: dict[int, list[ir.Value]] = {}
    for value, index in last.items():
        if value not in kept:
            frees.setdefault(index, []).append(value)
    for index, step in enumerate(body.steps):
        step.frees = tuple(frees.get(index, ()))


def _mark_fixed(body: Body) -> None:
    """Leave ``fixed`` to the steps that read nothing but constants and results of other fixed steps."""
    fixed, outputs = set(body.constants), set(body.outputs)
    for step in body.steps:
        step.fixed = step.fixed and all(v is None or v in fixed for v in step.inputs)
        step.fixed = step.fixed and outputs.isdisjoint(step.outputs)
        if step.fixed:
            fixed.update(step.outputs)
