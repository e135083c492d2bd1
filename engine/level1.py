"""Level 1: a model as programs, specialised to the shapes of its inputs.

:class:`Compiled` runs like :class:`graphdoc.engine.interpreter.Interpreter` and means the same, up to rounding. What
cannot be a program (strings, sequences, random numbers, shapes that follow from contents) runs on level 0
between programs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine import body as level0
from graphdoc.engine.body import Body, Settings, declared
from graphdoc.engine.device.numpy import NumpyDevice
from graphdoc.engine.device.protocol import Device
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Feeds, Interpreter, _failure
from graphdoc.engine.ops.table import TensorType
from graphdoc.engine.program import Program
from graphdoc.engine.scope import Occurrences
from graphdoc.engine.stage import (
    Builder,
    Hosted,
    HostNode,
    Known,
    Place,
    Rest,
    Segment,
    Source,
    Stage,
    State,
    Visit,
)

Pass = Callable[[Program], Program]

_KEPT = 32
"""Specialisations kept of a graph, or of what follows a value; the one unused for longest goes."""


class Compiled:
    """A model ready to run on a device.

    model: not changed. device: where programs run; NumPy by default. passes: what is done to each program before
    the device gets it (fusion). seed: for random operators that have none of their own.

    Raises UnsupportedOperatorError when the table lacks an operator of the model.
    """

    def __init__(
        self, model: ir.Model, *, device: Device | None = None, passes: Sequence[Pass] = (), seed: int = 0
    ) -> None:
        self.device: Device = device or NumpyDevice()
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        settings = Settings(np, False, model.functions, self._rng, _placed, _on_level_0(seed))
        builder = level0.Builder(settings)
        body = builder.graph(model.graph, model.opset_imports)
        builder.check()
        self.served_by = builder.served_by
        self.input_names = [str(v.name) for v in model.graph.inputs]
        self.output_names = [str(v.name) for v in model.graph.outputs]
        self.graph = Graph(body, model.opset_imports, self.device, tuple(passes))

    def run(self, feeds: Feeds, taps: Iterable[str] = ()) -> dict[str, Any]:
        """Return the outputs and the tapped values by name; as Interpreter.run."""
        self._rng.bit_generator.state = np.random.default_rng(self._seed).bit_generator.state
        given = {v: _placed(feeds[str(v.name)]) for v in self.graph.body.inputs if str(v.name) in feeds}
        tapped: dict[str, Any] = {}
        outputs = self.graph.run(given, frozenset(taps), tapped)
        return {**dict(zip(self.output_names, outputs, strict=True)), **tapped}

    def stages(self) -> list[Stage]:
        """Return the stages made so far, those of bodies left out."""
        return list(self.graph.made())


def _placed(value: Any) -> Any:
    if isinstance(value, list):
        return type(value)(map(_placed, value))
    return np.asarray(value) if isinstance(value, np.generic) else value


def _on_level_0(seed: int) -> Any:
    return lambda model: Interpreter(model, seed=seed).run


@dataclass(slots=True)
class Graph:
    """A graph and the stages made of it, by the types of what goes in."""

    body: Body
    opsets: Mapping[str, int]
    device: Device
    passes: tuple[Pass, ...]
    stages: OrderedDict[Any, Stage] = field(default_factory=OrderedDict)
    shared: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    inner: dict[int, "Graph"] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)

    def run(
        self, given: Mapping[ir.Value, Any], taps: frozenset[str], tapped: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Return the outputs; ``tapped`` is filled. given: inputs and captured values."""
        env = {str(value.name): array for value, array in given.items()}
        signature = (taps, tuple((value, _kind(array)) for value, array in given.items()))
        stage = self._stage(self.stages, signature, lambda: self._first(given), taps)
        while True:
            self._run(stage, env, taps, tapped)
            rest = stage.rest
            if rest is None:
                return tuple(None if s is None else _value(env, s) for s in stage.results)
            found = tuple(_asked(env[key], key in rest.conditions) for key in rest.asked)
            stage = self._stage(stage.next, found, lambda: _refined(rest, env), taps)

    def made(self) -> Iterable[Stage]:
        """Yield every stage."""
        pending = list(self.stages.values())
        while pending:
            stage = pending.pop(0)
            yield stage
            pending += stage.next.values()

    # ---- making -----------------------------------------------------------------------------------

    def _stage(self, table: Any, key: Any, rest: Callable[[], Rest], taps: frozenset[str]) -> Stage:
        with self.lock:
            stage: Stage | None = table.get(key)
            if stage is None:
                stage = table[key] = self._made(rest(), taps)
                while len(table) > _KEPT:
                    table.pop(next(iter(table)))
            return stage

    def _made(self, rest: Rest, taps: frozenset[str]) -> Stage:
        stage = Builder(self.body, rest, self.opsets, taps, self.shared).build()
        for part in stage.parts:
            if isinstance(part, Segment):
                for each in self.passes:
                    part.program = each(part.program)
                part.executable = self.device.load(part.program)
        return stage

    def _first(self, given: Mapping[ir.Value, Any]) -> Rest:
        states: dict[Place, State] = {(0, v): Known(array) for v, array in self.body.constants.items()}
        for value, array in given.items():
            states[0, value] = _hosted(str(value.name), array)
        for value in self.body.inputs:
            states.setdefault((0, value), Known(None))
        items = [Visit(node, 0) for node in self.body.steps]
        return Rest(list(items), states, [-1], fresh=True)

    # ---- running ----------------------------------------------------------------------------------

    def _run(self, stage: Stage, env: dict[str, Any], taps: frozenset[str], tapped: dict[str, Any]) -> None:
        for part, frees in zip(stage.parts, stage.frees, strict=True):
            if isinstance(part, Segment):
                program = part.program
                results = part.executable.run([env[key] for key in program.inputs])
                env.update(zip(program.outputs, results, strict=True))
            else:
                self._host(part, env, taps, tapped)
            for key in frees:
                env.pop(key, None)
        for key, (source, nested) in stage.taps.items():
            _tap(tapped, key, _value(env, source), nested=nested)

    def _host(
        self, part: HostNode, env: dict[str, Any], taps: frozenset[str], tapped: dict[str, Any]
    ) -> None:
        arguments = [_value(env, source) for source in part.inputs]
        bodies = {
            name: Bound(self._inner(body), [_value(env, s) for s in part.captured[name]], taps, tapped)
            for name, body in part.node.bodies.items()
        }
        try:
            with np.errstate(all="ignore"):
                results = part.node.run(*arguments, **bodies)
        except GraphdocError:
            raise
        except Exception as error:
            raise _failure(part.node, arguments, error) from error
        listed = results if isinstance(results, tuple) else (results,)
        env.update(zip(part.outputs, map(_placed, listed), strict=False))

    def _inner(self, body: Body) -> "Graph":
        with self.lock:
            found = self.inner.get(id(body))
            if found is None:
                found = self.inner[id(body)] = Graph(body, self.opsets, self.device, self.passes)
            return found


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The body of a loop over the values around it (a GraphCallable)."""

    graph: Graph
    captured: Sequence[Any]
    taps: frozenset[str]
    tapped: dict[str, Any]

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tuple(declared(value) for value in self.graph.body.outputs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        body = self.graph.body
        given = dict(zip(body.captured, self.captured, strict=True))
        given.update(zip(body.inputs, inputs, strict=False))
        return self.graph.run(given, self.taps, self.tapped)


def _value(env: Mapping[str, Any], source: Source) -> Any:
    return source.value if isinstance(source, Known) else env[source]


def _kind(value: Any) -> Any:
    """Return what a specialisation depends on of a value: dtype and shape of an array."""
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value)


def _hosted(key: str, value: Any) -> Hosted:
    if isinstance(value, np.ndarray):
        return Hosted(key, -1, TensorType(value.dtype, value.shape))
    return Hosted(key, -1, TensorType(), settled=True)


def _asked(value: Any, condition: bool) -> Any:
    return bool(np.reshape(value, ())) if condition else _kind(value)


def _refined(rest: Rest, env: Mapping[str, Any]) -> Rest:
    """Return what is left to do, with what this run found filled in."""
    states: dict[Place, State] = {}
    for place, state in rest.states.items():
        if isinstance(state, Hosted) and state.key in rest.conditions:
            states[place] = Known(env[state.key])
        elif isinstance(state, Hosted) and state.key in rest.asked:
            states[place] = _hosted(state.key, env[state.key])
        else:
            states[place] = state
    return Rest(list(rest.items), states, rest.parents)


def _tap(tapped: dict[str, Any], key: str, value: Any, *, nested: bool) -> None:
    if nested:
        tapped.setdefault(key, Occurrences()).append(value)
    else:
        tapped[key] = value
