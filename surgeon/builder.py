"""Makes the nodes of a replacement: the ``op`` of a rule's ``rewrite``."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx.defs
import onnx_ir as ir

from graphdoc.engine.ops.table import canonical_domain, find
from graphdoc.surgeon.rules.base import Context
from graphdoc.surgeon.schemas import exists, newest, required_inputs, signature


class Impossible(Exception):  # noqa: N818 - it is a refusal on its way, not a mistake
    """A node that the model's opset does not allow; the rule refuses with these words."""


class Builder:
    """Inserts nodes before the anchor of a match: ``op.Mul(x, 0.5)`` returns the new node's output.

    Inputs are values, None for an omitted one, numbers and NumPy arrays, which become constants. A number has
    the dtype that the specification wants there: mostly that of the other inputs.
    Keywords are attributes (None: not given); ``_domain`` and ``_outputs`` are as in patterns.

    Raises Impossible, which the rule hands on as its refusal, for what the model's opset does not have: the
    operator, the attribute, or the operator for this dtype.
    """

    def __init__(self, context: Context, anchor: ir.Node) -> None:
        self.context = context
        self.anchor = anchor
        self.nodes: list[ir.Node] = []
        self._constants: list[ir.Value] = []
        self._graph = anchor.graph
        self._touched = dict(context.touched)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[:1].isupper():
            raise AttributeError(name)
        return lambda *inputs, **keywords: self.node(name, *inputs, **keywords)

    def node(self, op: str, *inputs: Any, _domain: str = "", _outputs: int = 1, **attributes: Any) -> Any:
        """Insert a node; return its output, or a tuple of them when ``_outputs`` is more than one."""
        domain = canonical_domain(_domain)
        version = self._version(op, domain)
        schema = _schema(domain, op, version)
        if schema is None:
            self._check_known(op, domain, version)
        else:
            _check_form(schema, inputs, _outputs, attributes, version)
        values = [self._input(schema, index, inputs) for index in range(len(inputs))]
        if schema is not None:
            _check_dtypes(schema, [self.context.type_of(value).dtype for value in values], version)
        given = {key: value for key, value in attributes.items() if value is not None}
        typed = {key: _attribute(schema, key, value, version) for key, value in given.items()}
        made = self.context.node(op, values, typed, _outputs, domain, like=self.anchor)
        node = made[0].producer()
        if node is not None:
            self.nodes.append(node)
        return made[0] if _outputs == 1 else tuple(made)

    def constant(self, content: Any, dtype: Any = None) -> ir.Value:
        """Return a constant: an array, or a number or list of ``dtype`` (float32 and int64 unless given)."""
        array = np.asarray(content)
        if dtype is None and not isinstance(content, np.ndarray | np.generic):
            dtype = {"f": np.float32, "i": np.int64}.get(array.dtype.kind)
        value = self.context.constant(array if dtype is None else array.astype(dtype), self.anchor)
        self._constants.append(value)
        return value

    def undo(self) -> None:
        """Take back all that was made; nothing near it needs to be tried again."""
        for node in reversed(self.nodes):
            self.context.remove(node)
        for value in self._constants:
            maker = value.producer()
            if maker is not None:
                self.context.remove(maker)
            elif value.graph is not None:
                value.graph.initializers.pop(str(value.name))
        self.context.touched.clear()
        self.context.touched.update(self._touched)

    def sort(self) -> None:
        """Put the nodes of the graph in an order in which each stands after what it reads."""
        if self._graph is not None:
            self._graph.sort()

    def _version(self, op: str, domain: str) -> int:
        imports = self.context.root.opset_imports
        if domain not in ("", *imports):
            imports[domain] = 1
        version = self.context.opset(domain)
        if exists(domain, op) and signature(domain, op, version) is None:
            first = min(
                s.since_version
                for s in onnx.defs.get_all_schemas_with_history()
                if s.name == op and s.domain == domain
            )
            raise Impossible(f"{op} exists from opset {first} on, the model has {version}")
        return version

    def _check_known(self, op: str, domain: str, version: int) -> None:
        """Raise Impossible for an operator that a domain of the specification does not have."""
        own = {(canonical_domain(f.domain), f.name) for f in self.context.model.functions.values()}
        if newest(domain) is not None and (domain, op) not in own and find(domain, op, version) is None:
            raise Impossible(f"{domain or 'ai.onnx'} of opset {version} has no operator {op}")

    def _input(self, schema: Any, index: int, inputs: tuple[Any, ...]) -> ir.Value | None:
        given = inputs[index]
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, np.ndarray | np.generic):
            return self.constant(given)
        return self.constant(given, self._dtype(schema, index, inputs))

    def _dtype(self, schema: Any, index: int, inputs: tuple[Any, ...]) -> Any:
        """Return the dtype for a number: that of another input which must have the same, else None."""
        kind = None if schema is None else _formal(schema, index).type_str
        others = (
            each
            for i, each in enumerate(inputs)
            if isinstance(each, ir.Value) and (schema is None or _formal(schema, i).type_str == kind)
        )
        known = (self.context.type_of(each).dtype for each in others)
        return next((dtype for dtype in known if dtype is not None), None)


def _schema(domain: str, op: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def _check_form(
    schema: Any, inputs: tuple[Any, ...], outputs: int, attributes: Mapping[str, Any], version: int
) -> None:
    """Raise Impossible for numbers of inputs and outputs that an operator forbids, or what it lacks."""
    title = f"{schema.name} of opset {version}"
    if schema.deprecated:
        raise Impossible(f"{title} is withdrawn")
    counts = (
        (len(inputs), schema.min_input, schema.max_input, "input"),
        (outputs, schema.min_output, schema.max_output, "output"),
    )
    for count, low, high, what in counts:
        if not low <= count <= high:
            raise Impossible(f"{title} does not take {count} {what}{'s' * (count != 1)}")
    needed = required_inputs(schema.domain, schema.name, version)
    lacking = next((place for place in needed if inputs[place] is None), None)
    if lacking is not None:
        raise Impossible(f"{title} needs its input {lacking}")
    absent = (
        name for name, item in schema.attributes.items() if item.required and attributes.get(name) is None
    )
    name = next(absent, None)
    if name is not None:
        raise Impossible(f"{title} needs the attribute {name}")


def _formal(schema: Any, index: int) -> Any:
    """Return the description of an input; the last one stands for all further ones."""
    return schema.inputs[min(index, len(schema.inputs) - 1)]


_NAMES = {"float": "float32", "double": "float64"}
"""Dtypes that the specification calls otherwise than NumPy."""


def _allowed(schema: Any, index: int) -> Iterator[str]:
    """Yield the dtypes that an input takes, by NumPy's names."""
    for text in _formal(schema, index).types:
        inner = text.removeprefix("tensor(").removesuffix(")")
        yield _NAMES.get(inner, inner)


def _check_dtypes(schema: Any, dtypes: list[Any], version: int) -> None:
    for index, dtype in enumerate(dtypes):
        if dtype is None or dtype.kind == "O":
            continue
        if dtype.name.replace("_", "") not in set(_allowed(schema, index)):
            raise Impossible(f"{schema.name} of opset {version} does not take {dtype.name}")


_NUMBERS: dict[int, Callable[[Any], Any]] = {
    int(ir.AttributeType.FLOAT): float,
    int(ir.AttributeType.INT): int,
    int(ir.AttributeType.FLOATS): lambda value: [float(each) for each in value],
    int(ir.AttributeType.INTS): lambda value: [int(each) for each in value],
}


def _attribute(schema: Any, name: str, value: Any, version: int) -> ir.Attr | Any:
    """Return an attribute of the type that the specification wants."""
    if isinstance(value, ir.Attr):
        return value
    if schema is None:
        return list(value) if isinstance(value, tuple) else value
    described = schema.attributes.get(name)
    if described is None:
        raise Impossible(f"{schema.name} of opset {version} has no attribute {name}")
    kind = int(getattr(described.type, "value", described.type))
    if kind in _NUMBERS:
        return ir.Attr(name, ir.AttributeType(kind), _NUMBERS[kind](value))
    return list(value) if isinstance(value, tuple) else value
