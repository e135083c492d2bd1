"""Parts of a model as models of their own, fed with the values that the rest would have computed."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper

from graphdoc.compare.derived import like
from graphdoc.compare.target import Target, is_constant, ordered, own_constants, reads
from graphdoc.compare.types import type_of


class CutError(Exception):
    """A part cannot stand alone: a value that it reads is not known, or is of a type that cannot be fed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A part as a model, and what it is fed."""

    model: onnx.ModelProto
    feeds: dict[str, Any]


class Whole:
    """A model whose nodes can be cut out by number.

    values: what is known of inner values and inputs, by name.
    """

    def __init__(self, target: Target, values: Mapping[str, Any]) -> None:
        self.target = target
        self.values = values
        self.proto = target.proto
        self.nodes = [node for node in ordered(self.proto.graph) if not is_constant(node)]

    @cached_property
    def _constants(self) -> dict[str, onnx.TensorProto | onnx.NodeProto | onnx.SparseTensorProto]:
        found: dict[str, Any] = dict(own_constants(self.proto.graph))
        found.update((s.values.name, s) for s in self.proto.graph.sparse_initializer)
        return found

    @cached_property
    def _makers(self) -> dict[str, int]:
        return {name: i for i, node in enumerate(self.nodes) for name in node.output if name}

    def maker(self, value: str) -> int:
        """Return the number of the node that computes a value."""
        return self._makers[value]

    def outer(self, key: str) -> str:
        """Return the value of the main graph that a tap name stands for or lies inside of.

        Inside a subgraph that is the first output of the node around it. Raises CutError for other names.
        """
        ends = [i for i, letter in enumerate(key) if letter == "."] if key not in self._makers else []
        name = next((key[:end] for end in ends if key[:end] in self._makers), key)
        if name not in self._makers:
            raise CutError(f"no node computes {key}")
        return name

    def ancestors(self, number: int) -> list[int]:
        """Return the nodes that a node's results depend on, itself included, in execution order."""
        seen, left = {number}, [number]
        while left:
            for name in reads(self.nodes[left.pop()]):
                maker = self._makers.get(name)
                if maker is not None and maker not in seen:
                    seen.add(maker)
                    left.append(maker)
        return sorted(seen)

    def cut(self, part: Collection[int], outputs: Collection[str] | None = None) -> Cut:
        """Return the nodes of ``part`` as a model.

        outputs: what it gives out; None: what no node of the part reads. Raises CutError.
        """
        nodes = [self.nodes[i] for i in sorted(part)]
        made = {name for node in nodes for name in node.output if name}
        read = list(dict.fromkeys(name for node in nodes for name in reads(node)))
        wanted = [n for n in made if n not in read] if outputs is None else list(outputs)
        if not set(wanted) <= made:
            raise CutError(f"{sorted(set(wanted) - made)[0]} is not computed")
        model = like(self.proto)
        self._add_constants(model.graph, (name for name in read if name not in made))
        feeds = {name: self._fed(name) for name in read if name not in made and name not in self._constants}
        model.graph.input.extend(_declared(name, value) for name, value in feeds.items())
        model.graph.node.extend(nodes)
        model.graph.output.extend(_declared(name, self.values.get(name)) for name in sorted(wanted))
        return Cut(model, feeds)

    def _add_constants(self, graph: onnx.GraphProto, names: Iterator[str]) -> None:
        for name in names:
            constant = self._constants.get(name)
            if isinstance(constant, onnx.NodeProto):
                graph.node.append(constant)
            elif isinstance(constant, onnx.TensorProto):
                graph.initializer.append(self._loaded(constant))
            elif constant is not None:
                graph.sparse_initializer.append(constant)

    def _loaded(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        inside = onnx.TensorProto()
        inside.CopyFrom(tensor)
        external_data_helper.load_external_data_for_tensor(inside, str(self.target.source.folder))
        inside.data_location = onnx.TensorProto.DEFAULT
        del inside.external_data[:]
        return inside

    def _fed(self, name: str) -> Any:
        value = self.values.get(name)
        if type_of(value) is None:
            raise CutError(f"{name} cannot be fed")
        return value


def _declared(name: str, value: Any) -> onnx.ValueInfoProto:
    """Return what a graph declares of an input or output: dtype, and shape where it is an array."""
    kind = type_of(value)
    if kind is not None and isinstance(value, np.ndarray):
        kind = onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, value.shape)
    return onnx.ValueInfoProto(name=name, type=kind) if kind else onnx.ValueInfoProto(name=name)
