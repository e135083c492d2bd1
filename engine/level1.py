"""Level 1: a model as programs, specialised to the shapes of its inputs.

:class:`Compiled` runs like :class:`graphdoc.engine.interpreter.Interpreter` and means the same, up to
rounding. What cannot be a program (strings, sequences, random numbers, shapes that follow from contents)
runs on level 0 between programs.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine import body as level0
from graphdoc.engine.body import Body, Settings, call_function, declared
from graphdoc.engine.calls import Bodies, Call, calls_of, placed, value_of
from graphdoc.engine.chain import Chain, chain, owned
from graphdoc.engine.columns import nothing
from graphdoc.engine.device.numpy import NumpyDevice
from graphdoc.engine.device.protocol import Device
from graphdoc.engine.direct import Direct, direct
from graphdoc.engine.interpreter import BodyRun, Feeds, Interpreter, Watch
from graphdoc.engine.ops.table import TensorType, canonical_domain, find
from graphdoc.engine.parts import (
    Hosted,
    HostNode,
    Known,
    Part,
    Place,
    Rest,
    Segment,
    Source,
    Stage,
    State,
    Visit,
    Wishes,
    holds,
)
from graphdoc.engine.profile import Spent, spent
from graphdoc.engine.program import Program
from graphdoc.engine.scope import Occurrences
from graphdoc.engine.sound import check
from graphdoc.engine.stage import Builder
from graphdoc.engine.weights import Weights

Pass = Callable[[Program], Program]

_GIVEN = "given: "
"""Marks the keys of given values among a run's arrays."""

_MANY = 8
"""Specialisations of a graph after which new shapes must come twice to get one."""

_SMALL = 64
"""Elements up to which what follows from shapes is a constant of a body."""

_KEPT = 32
"""Specialisations kept of a graph, or of what follows a value; the one unused for longest goes."""


class Compiled:
    """A model ready to run on a device.

    model: not changed. device: where programs run; NumPy by default. passes: what is done to each program
    before the device gets it (fusion). seed: for random operators that have none of their own.
    unchanged: called before weights are read, once programs are made; raises where they are no longer there.

    Raises UnsupportedOperatorError when the table lacks an operator of the model.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        device: Device | None = None,
        passes: Sequence[Pass] = (),
        seed: int = 0,
        unchanged: Callable[[], None] | None = None,
    ) -> None:
        self._unchanged = unchanged
        self.device: Device = device or NumpyDevice()
        self._rng = np.random.default_rng(seed)
        self._start = self._rng.bit_generator.state
        settings = Settings(np, False, model.functions, self._rng, placed, _on_level_0(seed))
        builder = level0.Builder(settings)
        body = builder.graph(model.graph, model.opset_imports)
        builder.check()
        self.served_by = builder.served_by
        self.input_names = [str(v.name) for v in model.graph.inputs]
        self.output_names = [str(v.name) for v in model.graph.outputs]
        self.graph = Graph(body, self.device, tuple(passes))
        self._draws = draws(body)
        self._short: Direct | Chain | None = None

    def run(
        self, feeds: Feeds, taps: Iterable[str] = (), *, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the outputs and the tapped values by name; as Interpreter.run.

        given: values of the main graph to go on with in place of the computed ones, so that each layer runs
        on these inputs; each set of names is a program of its own.
        """
        if self._short is not None and not taps and not given:
            found = self.quick(feeds)
            if found is not None:
                return found
        if self._draws:
            self._rng.bit_generator.state = self._start
        if self._unchanged is not None:
            self._unchanged()
        fed = self._fed(feeds)
        run = Run(frozenset(taps), {_GIVEN + key: placed(value) for key, value in (given or {}).items()})
        outputs = _owned(self.graph.run(fed, run), run.last, fed)
        if not run.taps and not run.given:
            self._short = self._way(run.stage, feeds)
        return {**dict(zip(self.output_names, outputs, strict=True)), **run.tapped}

    def _way(self, stage: Stage | None, feeds: Feeds) -> Direct | Chain | None:
        """Return the short way through a stage for arrays like these."""
        if stage is None or self._draws:
            return None
        names, arrays = list(feeds), list(feeds.values())
        short = direct(stage, names, arrays)
        if short is not None and short.computed:
            return short
        return chain(stage, names, arrays, self.graph.follow, Run())

    @property
    def short(self) -> Direct | None:
        """The way through the program of the last run, None where it was more than one program."""
        return self._short if isinstance(self._short, Direct) else None

    def quick(self, feeds: Feeds) -> dict[str, Any] | None:
        """Return the outputs if these arrays are of the types of the last run and have a short
        way; None: ask :meth:`run`. What was fed then has been checked, so this needs no check."""
        if self._unchanged is not None and isinstance(self._short, Chain):  # programs have their own copies
            self._unchanged()
        found = None if self._short is None else self._short.feed(feeds)
        return None if found is None else dict(zip(self.output_names, found, strict=True))

    def _fed(self, feeds: Feeds) -> dict[ir.Value, Any]:
        return {v: placed(feeds[str(v.name)]) for v in self.graph.body.inputs if str(v.name) in feeds}

    def profile(self, feeds: Feeds, runs: int = 5) -> list[Spent]:
        """Return what each step and host node takes on these inputs: the least of several runs.

        Steps are timed one by one, with a wait of all threads between them.
        """
        self.run(feeds)
        found: list[list[Spent]] = []
        for _ in range(runs):
            run = Run(spent=[])
            self.graph.run(self._fed(feeds), run)
            found.append(run.spent or [])
        return [min(row, key=lambda spent: spent.seconds) for row in zip(*found, strict=True)]

    def stage(self, feeds: Feeds) -> Stage:
        """Return the first stage for inputs of these dtypes and shapes, made anew; contents do not count."""
        fed = self._fed(feeds)
        return self.graph.new(fed)

    def stages(self) -> list[Stage]:
        """Return the stages made so far, those of bodies left out."""
        return list(self.graph.made())


def compiled(
    model: ir.Model,
    *,
    threads: int | None = None,
    seed: int = 0,
    unchanged: Callable[[], None] | None = None,
) -> Compiled:
    """Return a model as level 1 runs it: fused, as machine code, or by NumPy where llvmlite is missing.

    threads: how many share a step; None: one per processor. unchanged: see :class:`Compiled`.
    """
    from graphdoc.engine.fuse import fuse

    try:
        from graphdoc.engine.device.cpu import CpuDevice

        device: Device = CpuDevice(threads)
    except (ImportError, OSError):
        device = NumpyDevice()
    return Compiled(model, device=device, passes=(fuse,), seed=seed, unchanged=unchanged)


@dataclass(slots=True)
class Run:
    """What one run is to do besides, and what it has found: the tapped values, the first and the last stage.

    given: arrays by key of the run.
    """

    taps: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    tapped: dict[str, Any] = field(default_factory=dict)
    stage: Stage | None = None
    last: Stage | None = None
    spent: list[Spent] | None = None

    def wishes(self) -> Wishes:
        """Return what a stage must know of it."""
        return Wishes(self.taps, {k.removeprefix(_GIVEN): _hosted(k, v) for k, v in self.given.items()})

    def signature(self) -> Any:
        """Return what a stage depends on of it."""
        return self.taps, tuple((key, _kind(value)) for key, value in self.given.items())


class _Host:
    """Arrays are where they are (an owner of BodyRun)."""

    place = fetch = normal = staticmethod(placed)


_HOST = _Host()


def _owned(outputs: Sequence[Any], last: Stage | None, fed: Mapping[ir.Value, Any]) -> list[Any]:
    """Return the outputs, those copied that are weights or share memory with what was fed."""
    sources = (None,) * len(outputs) if last is None else last.results
    arrays = [array for array in fed.values() if isinstance(array, np.ndarray)]
    return [owned(value, source, arrays) for source, value in zip(sources, outputs, strict=True)]


def draws(body: Body) -> bool:
    """Return whether an operator of a graph, or of a body inside, draws random numbers."""
    for node in body.steps:
        if isinstance(node.run, partial):
            row = find(canonical_domain(node.node.domain), node.node.op_type, node.run.args[0].version)
            if row is not None and row.random:
                return True
        elif node.run is not call_function:
            return True  # served in another way: nobody knows
        if any(map(draws, node.bodies.values())):
            return True
    return False


def _on_level_0(seed: int) -> Any:
    return lambda model: Interpreter(model, seed=seed).run


@dataclass(slots=True)
class Graph:
    """A graph and the stages made of it, by the types of what goes in.

    known: captured values that are the same in every run.
    """

    body: Body
    device: Device
    passes: tuple[Pass, ...]
    known: Mapping[ir.Value, Known] = field(default_factory=dict)
    stages: OrderedDict[Any, Stage] = field(default_factory=OrderedDict)
    seen: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    weights: Weights = field(default_factory=Weights)
    inner: OrderedDict[Any, "Graph"] = field(default_factory=OrderedDict)
    short: dict[Any, Direct | Chain] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)

    @property
    def captured(self) -> tuple[ir.Value, ...]:
        """Return the captured values that a run must give."""
        return tuple(value for value in self.body.captured if value not in self.known)

    def run(self, fed: Mapping[ir.Value, Any], run: Run) -> tuple[Any, ...]:
        """Return the outputs. fed: inputs, and captured values that are not known.

        Shapes that come once are not worth a program: where many have been seen, new ones run on level 0 the
        first time.
        """
        signature = (run.signature(), tuple((value, _kind(array)) for value, array in fed.items()))
        if signature not in self.stages and not run.given and self._is_rare(signature):
            return self._on_level_0(fed, run)
        env = {str(value.name): array for value, array in fed.items()}
        env.update(run.given)
        stage = run.stage = self._stage(self.stages, signature, lambda: self._first(fed), run)
        while True:
            self._run(stage, env, run)
            if stage.rest is None:
                run.last = stage
                return tuple(None if s is None else value_of(env, s) for s in stage.results)
            stage = self._next(stage, stage.rest, env, run)

    def _is_rare(self, signature: Any) -> bool:
        """Return whether shapes are seen for the first time after many others; note that they are seen."""
        with self.lock:
            rare = len(self.stages) >= _MANY and signature not in self.seen
            self.seen[signature] = None
            while len(self.seen) > 2 * _KEPT:
                self.seen.popitem(last=False)
            return rare

    def _on_level_0(self, fed: Mapping[ir.Value, Any], run: Run) -> tuple[Any, ...]:
        below = BodyRun(_HOST, Watch(taps=run.taps))
        below.tapped = run.tapped
        with np.errstate(all="ignore"):
            return below.body(self.body, {**{v: s.value for v, s in self.known.items()}, **fed})

    def _next(self, stage: Stage, rest: Rest, env: Mapping[str, Any], run: Run) -> Stage:
        return self._stage(stage.next, _answers(rest, env), lambda: _refined(rest, env), run)

    def follow(self, stage: Stage, rest: Rest, env: Mapping[str, Any]) -> Stage | None:
        """Return the stage after one, None where it is not made yet."""
        return stage.next.get(_answers(rest, env))

    def remember(self, kinds: Any, stage: Stage, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Keep the short way through a stage, if there is one, for arrays of these kinds."""
        way = direct(stage, names, arrays) or chain(stage, names, arrays, self.follow, Run(), inner=True)
        if way is not None:
            if len(self.short) >= 2 * _KEPT:
                self.short.clear()
            self.short[kinds] = way

    def made(self) -> Iterable[Stage]:
        """Yield every stage."""
        pending = list(self.stages.values())
        while pending:
            stage = pending.pop(0)
            yield stage
            pending += stage.next.values()

    # ---- making -----------------------------------------------------------------------------------

    def _stage(self, table: OrderedDict[Any, Stage], key: Any, rest: Callable[[], Rest], run: Run) -> Stage:
        stage = table.get(key)
        if stage is None:
            with self.lock:
                stage = table.get(key)
                if stage is None:
                    stage = table[key] = self._made(rest(), run)
                while len(table) > _KEPT:
                    table.popitem(last=False)
        with suppress(KeyError):  # another thread may have dropped it meanwhile
            table.move_to_end(key)
        return stage

    def new(self, fed: Mapping[ir.Value, Any]) -> Stage:
        """Return a stage that no run has asked for."""
        return self._made(self._first(fed), Run())

    def _made(self, rest: Rest, run: Run) -> Stage:
        stage = Builder(self.body, rest, run.wishes(), self.weights).build()
        for part in stage.parts:
            if isinstance(part, Segment):
                for each in self.passes:
                    part.program = each(part.program)
                for step in part.program.steps:
                    check(step)
                part.executable = self.device.load(part.program)
        stage.calls = calls_of(stage, self._bind)
        stage.busy = [call for call in stage.calls if call is not nothing]
        programs = (part.program for part in stage.parts if isinstance(part, Segment))
        stage.own = frozenset(key for program in programs for key in program.outputs)
        return stage

    def _first(self, fed: Mapping[ir.Value, Any]) -> Rest:
        states: dict[Place, State] = {(0, v): Known(a, shared=True) for v, a in self.body.constants.items()}
        states.update({(0, value): known for value, known in self.known.items()})
        for value, array in fed.items():
            states[0, value] = _hosted(str(value.name), array)
        for value in self.body.inputs:
            states.setdefault((0, value), Known(None))
        items = [Visit(node, 0) for node in self.body.steps]
        return Rest(list(items), states, [-1], fresh=True)

    # ---- running ----------------------------------------------------------------------------------

    def _run(self, stage: Stage, env: dict[str, Any], run: Run) -> None:
        if run.spent is None:
            for call in stage.busy:
                call(env, run)
        else:
            for part, call in zip(stage.parts, stage.calls, strict=True):
                run.spent += self._spent(part, call, env, run)
        for key, (source, nested) in stage.taps.items():
            _tap(run.tapped, key, value_of(env, source), nested=nested)

    def _spent(self, part: Part, call: Call, env: dict[str, Any], run: Run) -> list[Spent]:
        """Run a part, and return what its steps took."""
        if isinstance(part, Segment):
            arrays = [env[key] for key in part.program.inputs]
            call(env, run)
            return spent(part, arrays)
        started = time.perf_counter()
        call(env, run)
        seconds = time.perf_counter() - started
        name = part.node.node.name or part.outputs[0]
        return [Spent(f"level 0: {part.node.node.op_type}", (name,), seconds)]

    def _bind(self, part: HostNode) -> Bodies:
        """Return the function from a run's arrays to a node's bodies over what they read of them."""
        inner = {name: self._inner(body, part.captured[name]) for name, body in part.node.bodies.items()}
        reads = {name: [s for s in part.captured[name] if not _settled(s)] for name in inner}

        def bodies(env: Mapping[str, Any], run: Run) -> Mapping[str, Bound]:
            own = Run(run.taps, tapped=run.tapped)
            return {
                name: Bound(graph, [value_of(env, source) for source in reads[name]], own)
                for name, graph in inner.items()
            }

        return bodies

    def _inner(self, body: Body, captured: Sequence[Source]) -> "Graph":
        """Return the graph of a body in which what is settled around it is known."""
        settled = [s if isinstance(s, Known) and _settled(s) else None for s in captured]
        key = (id(body), *(s and _content(s) for s in settled))
        with self.lock:
            found = self.inner.get(key)
            if found is None:
                known = {v: s for v, s in zip(body.captured, settled, strict=True) if s is not None}
                found = Graph(body, self.device, self.passes, known, weights=self.weights)
                self.inner[key] = found
                while len(self.inner) > _KEPT:
                    self.inner.popitem(last=False)
            return found


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The body of a loop over the values around it (a GraphCallable)."""

    graph: Graph
    captured: Sequence[Any]
    run: Run

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tuple(declared(value) for value in self.graph.body.outputs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        graph, plain = self.graph, not self.run.taps
        arrays = [*self.captured, *inputs]
        if plain:
            kinds = tuple([_kind(array) for array in arrays])
            short = graph.short.get(kinds)
            found = None if short is None else short.run(arrays)
            if found is not None:
                return found
        fed = dict(zip(graph.captured, self.captured, strict=True))
        fed.update(zip(graph.body.inputs, inputs, strict=False))
        inner = Run(self.run.taps, tapped=self.run.tapped)
        results = graph.run(fed, inner)
        if plain and inner.stage is not None and len(fed) == len(arrays):
            graph.remember(kinds, inner.stage, [str(v.name) for v in fed], arrays)
        return results


def _settled(source: Source) -> bool:
    """Return whether a captured value is taken for a constant of the body: weights, and small arrays."""
    return isinstance(source, Known) and (
        source.shared or (isinstance(source.value, np.ndarray) and source.value.size <= _SMALL)
    )


def _content(known: Known) -> Any:
    """Return what tells one captured constant from another."""
    value = known.value
    return id(value) if known.shared or value.dtype == object else (*_kind(value), value.tobytes())


def _kind(value: Any) -> Any:
    """Return what a specialisation depends on of a value: dtype and shape of an array."""
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value)


def _hosted(key: str, value: Any) -> Hosted:
    if isinstance(value, np.ndarray):
        return Hosted(key, -1, TensorType(value.dtype, value.shape))
    return Hosted(key, -1, TensorType(), settled=True)


def _answers(rest: Rest, env: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a run tells of what is asked."""
    return tuple([_asked(env[key], key, key in rest.conditions) for key in rest.asked])


def _asked(value: Any, key: str, condition: bool) -> Any:
    return holds(value, key) if condition else _kind(value)


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
