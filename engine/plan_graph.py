"""The graph that a plan makes programs from, for sizes between those that it was built for.

A plan with programs for several shapes serves all shapes between the smallest and the largest. Those that it
has no program for are lowered when they first come, from this graph; most of their kernels are in the plan
already, since kernels take sizes when they run.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from graphdoc.engine.errors import ModelError
from graphdoc.engine.plan_codec import Store, at

if TYPE_CHECKING:
    from graphdoc.engine.plan import Entry

Span = tuple[np.dtype[Any], tuple[tuple[int, int], ...]]
"""Of an input: its dtype, and the smallest and the largest size of each axis."""

LONG = 1 << 10
"""Bytes from which a weight is kept beside the graph, once with that of the programs."""


def spans(choices: Sequence[Mapping[str, tuple[Any, tuple[int, ...]]]]) -> dict[str, Span]:
    """Return what lies between choices of input types: the least and the most of each size.

    Empty where there is nothing between: one choice, or inputs whose ranks or dtypes differ.
    """
    found: dict[str, Span] = {}
    for name, (dtype, shape) in choices[0].items():
        kinds = {(row[name][0], len(row[name][1])) for row in choices}
        if kinds != {(dtype, len(shape))}:
            return {}
        sizes = list(zip(*(row[name][1] for row in choices), strict=True))
        found[name] = np.dtype(dtype), tuple((min(axis), max(axis)) for axis in sizes)
    open_ = any(low < high for _, axes in found.values() for low, high in axes)
    return found if open_ else {}


def within(span: Span, dtype: Any, shape: Sequence[int]) -> bool:
    """Return whether an input of this dtype and shape lies between."""
    kind, axes = span
    if dtype != kind or len(shape) != len(axes):
        return False
    return all(low <= size <= high for (low, high), size in zip(axes, shape, strict=True))


def spelled(spans_: Mapping[str, Span]) -> str:
    """Return spans as messages show them: ``x=1..8x3x224x224``."""
    return " ".join(
        f"{name}={'x'.join(str(a) if a == b else f'{a}..{b}' for a, b in axes) or '()'}"
        for name, (_, axes) in spans_.items()
    )


@dataclass(frozen=True, slots=True)
class Held:
    """A weight beside its graph. kind: the name of its ONNX data type. data: its bytes, under any dtype."""

    kind: str
    shape: tuple[int, ...]
    data: Any


@dataclass(slots=True)
class Graph:
    """A model without its long weights, and those, by the name of an initializer of the main graph.

    text: the ModelProto, as bytes.
    """

    text: Any
    weights: dict[str, Held]
    _compiled: Any = None
    _lock: Any = field(default_factory=RLock)

    @classmethod
    def of(cls, model: Any) -> "Graph":
        """Return the graph of an onnx_ir.Model, which is as it was afterwards.

        Raises ModelError where it cannot be written as protobuf.
        """
        import onnx_ir as ir

        held = {
            name: value.const_value
            for name, value in model.graph.initializers.items()
            if value.const_value is not None and value.const_value.nbytes >= LONG
        }
        held = {name: tensor for name, tensor in held.items() if tensor.dtype != ir.DataType.STRING}
        try:
            for name, tensor in held.items():
                stub = ir.Tensor(np.zeros(0, tensor.dtype.numpy()), dtype=tensor.dtype, name=name)
                model.graph.initializers[name].const_value = stub
            text = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
        except Exception as error:
            raise ModelError(
                f"the model cannot be kept in a plan: {str(error).splitlines()[0]}",
                next_step="graphdoc build --fixed, which keeps programs alone",
            ) from error
        finally:
            for name, tensor in held.items():
                model.graph.initializers[name].const_value = tensor
        weights = {n: Held(t.dtype.name, tuple(t.shape.numpy()), t.numpy()) for n, t in held.items()}
        return cls(text, weights)

    def model(self) -> Any:
        """Return the onnx_ir.Model, made anew."""
        import onnx
        import onnx_ir as ir

        model = ir.serde.deserialize_model(onnx.ModelProto.FromString(bytes(self.text)))
        for name, held in self.weights.items():
            kind = ir.DataType[held.kind]
            value = model.graph.initializers[name]
            value.const_value = ir.Tensor(
                held.data.view(kind.numpy()).reshape(held.shape), dtype=kind, name=name
            )
            value.shape = ir.Shape(held.shape)
        return model

    def entry(self, feeds: Mapping[str, Any]) -> "Entry":
        """Return the program for inputs like these.

        Raises InputError where they contradict each other, ModelError where part of the model is no program.
        """
        from graphdoc.engine.feeds import check_feeds
        from graphdoc.engine.plan_build import entry, prepared

        with self._lock:
            if self._compiled is None:
                try:
                    model = self.model()
                except Exception as error:
                    raise ModelError("the plan is damaged: its graph cannot be read") from error
                self._compiled = model, prepared(model)
            model, compiled = self._compiled
            check_feeds(model, feeds)
            return entry(compiled, {name: (v.dtype, v.shape) for name, v in feeds.items()})

    def refitted(self, weights: Mapping[str, Any]) -> "Graph":
        """Return the graph with other contents of some weights, of the dtypes and sizes that they had."""
        changed = {n: replace(h, data=weights[n]) if n in weights else h for n, h in self.weights.items()}
        short = {name: array for name, array in weights.items() if name not in self.weights}
        return Graph(self._with_short(short) if short else self.text, changed)

    def _with_short(self, weights: Mapping[str, Any]) -> bytes:
        """Return the text with other contents of weights that stand in it."""
        import onnx
        import onnx_ir as ir

        proto = onnx.ModelProto.FromString(bytes(self.text))
        for tensor in proto.graph.initializer:
            if tensor.name in weights:
                array = np.ascontiguousarray(weights[tensor.name]).reshape(tuple(tensor.dims))
                tensor.CopyFrom(ir.serde.serialize_tensor(ir.Tensor(array, name=tensor.name)))
        text: bytes = proto.SerializeToString(deterministic=True)
        return text


def encoded(graph: Graph, store: Store, apart: Container[str]) -> dict[str, Any]:
    """Return a graph as plain data. apart: names of weights that the store keeps apart from equal ones."""
    return {
        "text": store.add(bytes(graph.text)),
        "weights": [
            [name, held.kind, list(held.shape), store.add(held.data, name if name in apart else "")]
            for name, held in graph.weights.items()
        ],
    }


def decoded(row: Mapping[str, Any], blobs: Sequence[Any]) -> Graph:
    """Return what :func:`encoded` wrote; raises ValueError and the like of wrong data.

    The text is parsed when it is needed.
    """
    weights = {
        str(name): Held(str(kind), tuple(map(int, shape)), at(blobs, number))
        for name, kind, shape, number in row["weights"]
    }
    return Graph(at(blobs, row["text"]), weights)
