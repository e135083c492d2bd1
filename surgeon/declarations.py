"""What a graph declares of its values: inputs, outputs and value_info, as they were or as they are now."""

from collections.abc import Iterable
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.surgeon.pieces import describe


class Declarations:
    """Types and shapes of the values of one graph or function.

    alive: the values the graph has now. known: the names that had a value when it was loaded.
    """

    def __init__(self, graph: ir.Graph, source: Any, known: frozenset[str]) -> None:
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        self.alive = {str(value.name): value for value in values if value.name}
        self.known = known
        self._source = source
        self._given: dict[str, list[onnx.ValueInfoProto]] = {}
        inputs = list(getattr(source, "input", ())) if isinstance(source, onnx.GraphProto) else []
        outputs = list(source.output) if isinstance(source, onnx.GraphProto) else []
        names = {info.name for info in inputs}
        for info in (*inputs, *(i for i in source.value_info if i.name not in names), *outputs):
            self._given.setdefault(info.name, []).append(info)
        self._unchanged: dict[int, bool] = {}

    def unchanged(self, value: ir.Value) -> bool:
        """Whether the value is declared as it was when it was loaded."""
        key = id(value)
        if key not in self._unchanged:
            self._unchanged[key] = self._compare(value)
        return self._unchanged[key]

    def _compare(self, value: ir.Value) -> bool:
        again = ir.Value(name=value.name)
        if value.is_initializer() and value.const_value is not None and not value.is_graph_input():
            again.type = ir.TensorType(value.const_value.dtype)
            again.shape = ir.Shape(value.const_value.shape.numpy())
        for info in self._given.get(str(value.name), ()):
            describe(again, info)
        return (
            again.type == value.type
            and _same_shape(again.shape, value.shape)
            and (again.doc_string or "") == (value.doc_string or "")
            and again.metadata_props == value.metadata_props
        )

    def listed(self, into: Any, values: Iterable[ir.Value], source: Iterable[onnx.ValueInfoProto]) -> None:
        """Write the inputs or outputs."""
        spelled: dict[str, list[onnx.ValueInfoProto]] = {}
        for info in source:
            spelled.setdefault(info.name, []).append(info)
        for value in values:
            queue = spelled.get(value.name or "", [])
            if queue and self.unchanged(value):
                into.add().CopyFrom(queue.pop(0))
            else:
                into.add().CopyFrom(ir.serde.serialize_value(value))

    def inner(self, into: Any) -> None:
        """Write value_info: what was there for values that still exist, then what was learned since."""
        done: set[str] = set()
        for info in self._source.value_info:
            value = self.alive.get(info.name)
            if value is None and info.name in self.known:
                continue  # the value was removed
            if value is None or (self.unchanged(value) and _same_data(value)):
                into.add().CopyFrom(info)
                done.add(info.name)
        for name, value in self.alive.items():
            if name not in done and not self._listed(value) and not self.unchanged(value) and _known(value):
                into.add().CopyFrom(ir.serde.serialize_value(value))

    def _listed(self, value: ir.Value) -> bool:
        """Whether the type is declared where inputs and outputs are; functions list names alone."""
        graph = isinstance(self._source, onnx.GraphProto)
        return graph and (value.is_graph_input() or value.is_graph_output())


def _same_data(value: ir.Value) -> bool:
    """Whether a value has no weights, or still those it was loaded with; new ones speak for themselves."""
    tensor = value.const_value
    return not value.is_initializer() or hasattr(tensor, "proto") or hasattr(tensor, "sparse")


def _known(value: ir.Value) -> bool:
    """Whether there is anything to declare beyond what an initializer's tensor says itself."""
    more = bool(value.doc_string or value.metadata_props)
    return more if value.is_initializer() else more or value.type is not None or value.shape is not None


def _same_shape(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    if a is None or b is None:
        return a is b
    if len(a) != len(b) or a != b:
        return False
    return all((a.get_denotation(i) or "") == (b.get_denotation(i) or "") for i in range(len(a)))
