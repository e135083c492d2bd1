"""One graph of a model on ONNX Runtime: the main graph, or a subgraph run as a model of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from graphdoc.compare import derived
from graphdoc.compare.ort_session import OrtSession, SessionFactory
from graphdoc.compare.target import Constants, bodies, captures, first_output, is_constant, own_constants
from graphdoc.compare.types import type_of
from graphdoc.engine.scope import MAIN, enter, qualified

Env = Mapping[str, Any]


class UnreachableError(Exception):
    """A subgraph cannot be run as a model of its own; the text says why."""


@dataclass(slots=True)
class Control:
    """A control-flow node and the scopes of its bodies, by attribute."""

    node: onnx.NodeProto
    scopes: "dict[str, Scope]"


@dataclass
class Scope:
    """A graph, its place in the model, and the sessions made for it so far.

    constants: initializers and Constant nodes of the enclosing graphs.
    """

    proto: onnx.ModelProto
    graph: onnx.GraphProto
    path: str
    constants: Constants
    factory: SessionFactory
    controls: list[Control] = field(default_factory=list)
    _sessions: dict[Any, OrtSession] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {**self.constants, **own_constants(self.graph)}
        self.known = own
        self.layers = {
            name for node in self.graph.node if not is_constant(node) for name in node.output if name
        }
        self.inputs = [value.name for value in self.graph.input]
        self.outputs = [value.name for value in self.graph.output]
        self.captured = captures(self.graph)
        for node in self.graph.node:
            scopes = {
                name: Scope(self.proto, graph, enter(self.path, first_output(node), name), own, self.factory)
                for name, graph in bodies(node)
            }
            if scopes:
                self.controls.append(Control(node, scopes))

    def key(self, name: str) -> str:
        """Return the tap name of a value of this graph."""
        return qualified(self.path, name)

    def local(self, taps: Collection[str]) -> list[str]:
        """Return the names of this graph's layers among the taps, in the graph's order."""
        return [
            n for node in self.graph.node for n in node.output if n in self.layers and self.key(n) in taps
        ]

    def needed(self, taps: Collection[str]) -> list[str]:
        """Return the layers whose values are needed to run the subgraphs that hold taps."""
        names: dict[str, None] = {}
        for control in self.controls:
            if any(has_taps(scope, taps) for scope in control.scopes.values()):
                reads = [*control.node.input, *(n for s in control.scopes.values() for n in s.captured)]
                names.update((name, None) for name in reads if name in self.layers)
        return list(names)

    def run(self, env: Env, fetch: Collection[str]) -> dict[str, Any]:
        """Run the graph on inputs and captured values; return the fetched layers by name."""
        names = list(dict.fromkeys(fetch))
        if not names:
            return {}
        if self.path == MAIN:
            return self.open_tapped().run(names, env)
        feeds = self._feeds(env)
        types = self._types(feeds)
        key = ("body", tuple(names), tuple(sorted((n, t.SerializeToString()) for n, t in types.items())))
        session = self._session(
            key,
            lambda: derived.body(self.proto, self.graph, types, self.constants, names).SerializeToString(),
        )
        return session.run(names, feeds)

    def open_tapped(self) -> OrtSession:
        """Return the session of the whole model with every layer of the main graph as output."""
        return self._session("tapped", lambda: derived.tapped(self.proto, sorted(self.layers)))

    def run_isolated(self, env: Env, fetch: Collection[str]) -> dict[str, Any]:
        """Run each fetched layer on the values of ``env``; return them by name."""
        names = list(dict.fromkeys(fetch))
        if not names:
            return {}
        available = {n: v for n, v in env.items() if n not in self.known and type_of(v) is not None}
        types = self._types(available)
        key = ("isolated", tuple(names), tuple(sorted((n, t.SerializeToString()) for n, t in types.items())))
        try:
            session = self._session(
                key,
                lambda: derived.isolated(
                    self.proto, self.graph, types, self.constants, names
                ).SerializeToString(),
            )
        except KeyError as error:
            raise UnreachableError(f"no value is known for {error}") from error
        found = session.run([name + derived.OWN for name in names], available)
        return {name.removesuffix(derived.OWN): value for name, value in found.items()}

    def forget_isolated(self) -> None:
        """Let the sessions of isolated layers go, which hold their weights once more."""
        for key in [key for key in self._sessions if key[0] == "isolated"]:
            self._sessions.pop(key).close()

    def lookup(self, name: str, env: Env) -> Any:
        """Return a value by name: computed, fed, captured or constant."""
        if name in env:
            return env[name]
        constant = self.known.get(name)
        if isinstance(constant, onnx.TensorProto):
            return numpy_helper.to_array(constant, self.factory.folder)
        if constant is None:
            raise UnreachableError(f"no value is known for '{name}'")
        return _literal(constant, self.factory.folder)

    def _feeds(self, env: Env) -> dict[str, Any]:
        names = [*self.inputs, *(n for n in self.captured if n not in self.constants)]
        missing = [name for name in names if name not in env]
        if missing:
            raise UnreachableError(f"no value is known for '{missing[0]}'")
        return {name: env[name] for name in names}

    def _types(self, feeds: Env) -> dict[str, onnx.TypeProto]:
        declared = {value.name: value.type for value in self.graph.input}
        types: dict[str, onnx.TypeProto] = {}
        for name, value in feeds.items():
            kind = type_of(value) or _without_shape(declared.get(name))
            if kind is None:
                raise UnreachableError(f"the type of '{name}' is not known")
            types[name] = kind
        return types

    def _session(self, key: Any, build: Any) -> OrtSession:
        if key not in self._sessions:
            self._sessions[key] = self.factory.open(build(), optimise=False, profile=key == "tapped")
        return self._sessions[key]

    def close(self) -> None:
        """Let all sessions go, those of the subgraphs too."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        for control in self.controls:
            for scope in control.scopes.values():
                scope.close()

    def timings(self) -> dict[str, float]:
        """Return the least seconds of each main-graph layer over the tapped runs, by tap name."""
        session = self._sessions.get("tapped")
        return session.timings(self.graph) if session else {}


def has_taps(scope: Scope, taps: Collection[str]) -> bool:
    """Whether any tap lies in the scope or deeper."""
    return any(tap.startswith(scope.path) for tap in taps)


def _without_shape(kind: onnx.TypeProto | None) -> onnx.TypeProto | None:
    if kind is None or not kind.WhichOneof("value"):
        return None
    result = onnx.TypeProto()
    result.CopyFrom(kind)
    if result.HasField("tensor_type"):
        result.tensor_type.ClearField("shape")
    return result


_LITERALS: dict[str, Any] = {
    "value_int": lambda a: np.asarray(a.i, np.int64),
    "value_ints": lambda a: np.asarray(a.ints, np.int64),
    "value_float": lambda a: np.asarray(a.f, np.float32),
    "value_floats": lambda a: np.asarray(a.floats, np.float32),
}


def _literal(node: onnx.NodeProto, folder: str) -> Any:
    for attribute in node.attribute:
        if attribute.name == "value":
            return numpy_helper.to_array(attribute.t, folder)
        if attribute.name in _LITERALS:
            return _LITERALS[attribute.name](attribute)
    raise UnreachableError(f"constant '{node.output[0]}' has a form that is not read here")
