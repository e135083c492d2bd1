"""Level 0: run a model operator by operator, with every value within reach.

This is the engine's own oracle. It computes each operator as ``ops/`` states it, in the dtypes of the
model (float16 is true half precision), or with ``truth=True`` in float64 wherever the model has a float.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from graphdoc.engine.body import Body, Builder, Settings, Step, declared
from graphdoc.engine.device.placement import fetch, place
from graphdoc.engine.errors import GraphdocError, RunnerError
from graphdoc.engine.misfit import input_names, reason, unlike_inputs
from graphdoc.engine.ops.table import TensorType
from graphdoc.engine.scope import MAIN, Occurrences, qualified

Feeds = Mapping[str, Any]
Frame = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Watch:
    """What a run does besides computing the outputs.

    taps: names of inner values to return; inside subgraphs as :mod:`graphdoc.engine.scope` spells them. A
        tapped value of a subgraph comes as Occurrences, one entry per execution.
    given: values to continue with in place of the computed ones: each layer then runs on these inputs, so
        that its result differs by the layer's own error alone.
    only: the layers to compute; of all others the given values are used. None: all.
    noise: relative size, by value name, of a random change put on each float result.
    budget: bytes of tapped values to keep; later taps are left out. None: no bound.
    timings: filled with seconds per step, by the name of its first output.
    sink: takes each tapped value outside subgraphs, with its name, as soon as it is there; none is kept.
    """

    taps: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    only: frozenset[str] | None = None
    noise: Mapping[str, float] | None = None
    seed: int = 0
    budget: int | None = None
    timings: dict[str, float] | None = None
    sink: Callable[[str, Any], None] | None = None


class Interpreter:
    """A model bound to an array namespace, ready to run any number of times.

    model: not changed, not copied; editing it afterwards has no effect on the interpreter's steps.
    xp: NumPy or CuPy.
    truth: compute float16, bfloat16 and float32 as float64.
    seed: for random operators that have no seed of their own.

    Raises UnsupportedOperatorError when the table lacks an operator of the model.
    """

    def __init__(self, model: ir.Model, *, xp: Any = np, truth: bool = False, seed: int = 0) -> None:
        self._truth = truth
        self._xp = xp
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._state = self._rng.bit_generator.state
        settings = Settings(xp, truth, model.functions, self._rng, self.place, self._nested)
        builder = Builder(settings)
        self.body = builder.graph(model.graph, model.opset_imports)
        builder.check()
        self.served_by = builder.served_by
        self.input_names = [str(v.name) for v in model.graph.inputs]
        self.output_names = [str(v.name) for v in model.graph.outputs]

    def run(self, feeds: Feeds, taps: Iterable[str] = (), *, watch: Watch | None = None) -> dict[str, Any]:
        """Return the outputs and the tapped values by name.

        feeds: every input without an initializer, as NumPy arrays (or lists of them for sequences).
        watch: more than taps; see :class:`Watch`.

        Raises RunnerError that names the node when an operator fails.
        """
        run = BodyRun(self, watch or Watch(taps=frozenset(taps)))
        self._rng.bit_generator.state = self._state
        with np.errstate(all="ignore"):
            frame: Frame = {
                value: self.place(feeds[str(value.name)])
                for value in self.body.inputs
                if str(value.name) in feeds
            }
            outputs = run.body(self.body, frame)
        results = dict(zip(self.output_names, map(self.fetch, outputs), strict=True))
        return {**results, **run.tapped}

    def _nested(self, model: ir.Model) -> Callable[[Feeds], dict[str, Any]]:
        """Return the run of a model that stands in for one node."""
        return Interpreter(model, xp=self._xp, truth=self._truth, seed=self._seed).run

    def place(self, value: Any) -> Any:
        """Return a value where the interpreter computes, promoted in truth mode."""
        if isinstance(value, list):
            return type(value)(self.place(item) for item in value)
        value = self.normal(value)
        if not isinstance(value, np.ndarray) or value.dtype == object:
            return value
        return value if self._xp is np else place(self._xp, value)

    def fetch(self, value: Any) -> Any:
        """Return a value on the host."""
        return value if self._xp is np else fetch(value)

    def normal(self, value: Any) -> Any:
        """Return scalars of NumPy and texts as arrays of rank 0, and floats promoted in truth mode."""
        if isinstance(value, np.generic):
            value = np.asarray(value)
        elif isinstance(value, str):  # what NumPy makes of a single element of an object array
            value = np.asarray(value, dtype=object)
        if not self._truth:
            return value
        if hasattr(value, "dtype") and value.dtype.name in _PROMOTED:
            return value.astype(np.float64)
        return value


_PROMOTED = frozenset({"float32", "float16", "bfloat16"})
_NOISY = frozenset({*_PROMOTED, "float64"})


KEPT = 1 << 27
"""Bytes that a body keeps of what follows from constants alone: dequantised weights, shapes, masks."""


def _frozen(value: Any) -> Any:
    """Return a value that every run will read: NumPy refuses to write to it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


class Owner(Protocol):
    """Where the values of a run lie."""

    def place(self, value: Any) -> Any: ...

    def fetch(self, value: Any) -> Any: ...

    def normal(self, value: Any) -> Any: ...


class BodyRun:
    """One run: what is tapped, forced and timed so far."""

    def __init__(self, owner: Owner, watch: Watch) -> None:
        self.owner = owner
        self.watch = watch
        self.tapped: dict[str, Any] = {}
        self._turn: dict[str, int] = {}
        self._left = watch.budget
        self._noise = np.random.default_rng(watch.seed) if watch.noise else None
        self._watched = bool(watch.taps or watch.given or watch.noise)
        self._whole = not self._watched and watch.only is None and watch.timings is None

    def body(self, body: Body, frame: Frame) -> tuple[Any, ...]:
        """Run all steps of a body over ``frame``, which holds inputs and captured values."""
        if self._whole and body.constants.keys().isdisjoint(frame):
            return self._straight(body, frame)
        frame = {**body.constants, **frame}
        if body.scope != MAIN and (self.watch.given or self.watch.taps):
            for value in body.inputs:
                frame[value] = self._record(
                    qualified(body.scope, str(value.name)), frame.get(value), nested=True
                )
        nested, all_wanted = body.scope != MAIN, self.watch.only is None
        for step in body.steps:
            if all_wanted or self._wanted(step, nested=nested):
                self._step(step, frame, nested=nested)
            else:
                self._skip(step, frame)
            for value in step.frees:
                frame.pop(value, None)
        return tuple(None if v is None else frame.get(v) for v in body.outputs)

    def _straight(self, body: Body, frame: Frame) -> tuple[Any, ...]:
        """Run a body that nobody watches; from the second time on without the steps that give the same again.

        Not for a frame that replaces constants: what was kept may follow from them.
        """
        if body.known is None:
            return self._first(body, frame)
        frame = {**body.known, **frame}
        normal = self.owner.normal
        results: Any
        for step in body.rest:
            if step.bodies:
                results = self._compute(step, frame)
            else:
                arguments = [frame.get(value) for value in step.inputs]
                try:
                    results = step.run(*arguments)
                except GraphdocError:
                    raise
                except Exception as error:
                    raise failure(step, arguments, error) from error
            if isinstance(results, tuple):
                frame.update(zip(step.outputs, map(normal, results), strict=False))
            else:
                frame[step.outputs[0]] = normal(results)
            for value in step.frees:
                frame.pop(value, None)
        return tuple(None if v is None else frame.get(v) for v in body.outputs)

    def _first(self, body: Body, frame: Frame) -> tuple[Any, ...]:
        """Run a body for the first time: look at dtypes, and keep what every run gives again."""
        frame = {**body.constants, **frame}
        found: dict[ir.Value, Any] = {}
        left = KEPT
        for step in body.steps:
            check_dtypes(step, [frame.get(value) for value in step.inputs])
            self._step(step, frame, nested=body.scope != MAIN)
            size = sum(nbytes(frame[value]) for value in step.outputs) if step.fixed else left + 1
            if size <= left:
                found.update((value, _frozen(frame[value])) for value in step.outputs)
                left -= size
            for value in step.frees:
                frame.pop(value, None)
        body.keep(found)
        return tuple(None if v is None else frame.get(v) for v in body.outputs)

    def _wanted(self, step: Step, *, nested: bool) -> bool:
        only = self.watch.only
        if only is None or not only.isdisjoint(step.keys):
            return True
        if nested and any(key and key not in self.watch.given for key in step.keys):
            return True  # whoever gave the values did not look into subgraphs; the node around needs this one
        return any(key.startswith(body.scope) for body in step.bodies.values() for key in only)

    def _skip(self, step: Step, frame: Frame) -> None:
        for value, key in zip(step.outputs, step.keys, strict=True):
            if key in self.watch.given:
                frame[value] = self._given(key, None)

    def _step(self, step: Step, frame: Frame, *, nested: bool) -> None:
        timings = self.watch.timings
        results = self._compute(step, frame) if timings is None else self._timed(step, frame, timings)
        for value, key, result in zip(step.outputs, step.keys, results, strict=False):
            result = self.owner.normal(result)
            if self._watched:
                result = self._record(key, self._noisy(key, result), nested=nested)
            frame[value] = result

    def _timed(self, step: Step, frame: Frame, timings: dict[str, float]) -> tuple[Any, ...]:
        started = time.perf_counter()
        results = self._compute(step, frame)
        timings[step.keys[0]] = timings.get(step.keys[0], 0.0) + time.perf_counter() - started
        return results

    def _compute(self, step: Step, frame: Frame) -> tuple[Any, ...]:
        arguments = [frame.get(value) for value in step.inputs]
        try:
            if step.bodies:
                bodies = {name: _Bound(self, body, frame) for name, body in step.bodies.items()}
                results = step.run(*arguments, **bodies)
            else:
                results = step.run(*arguments)
        except GraphdocError:
            raise
        except Exception as error:
            raise failure(step, arguments, error) from error
        return results if isinstance(results, tuple) else (results,)

    def _record(self, key: str, value: Any, *, nested: bool) -> Any:
        """Note a value if it is tapped; return the one to continue with."""
        if key in self.watch.taps and self._affordable(key, value):
            self._tap(key, self.owner.fetch(value), nested=nested)
        return self._given(key, value) if key in self.watch.given else value

    def _tap(self, key: str, value: Any, *, nested: bool) -> None:
        if nested:
            self.tapped.setdefault(key, Occurrences()).append(value)
        elif self.watch.sink is not None:
            self.watch.sink(key, value)
        else:
            self.tapped[key] = value

    def _affordable(self, key: str, value: Any) -> bool:
        if self._left is None or key in self.tapped:
            return True
        if self._left <= 0:
            return False
        self._left -= nbytes(value)
        return True

    def _given(self, key: str, computed: Any) -> Any:
        replacement = self.watch.given[key]
        if isinstance(replacement, Occurrences):
            turn = self._turn.get(key, 0)
            self._turn[key] = turn + 1
            if turn >= len(replacement):
                return computed
            replacement = replacement[turn]
        return self.owner.place(replacement)

    def _noisy(self, key: str, value: Any) -> Any:
        size = 0.0 if self.watch.noise is None else self.watch.noise.get(key, 0.0)
        rng = self._noise
        if not size or rng is None or not hasattr(value, "dtype") or value.dtype.name not in _NOISY:
            return value
        change = rng.standard_normal(value.shape, dtype=np.float32) * np.float32(size)
        return (value * self.owner.place(1 + change)).astype(value.dtype)


def nbytes(value: Any) -> int:
    """Return the memory of a value: an array, or a list or dict of values."""
    if isinstance(value, Mapping):
        return 64 * len(value)
    if isinstance(value, Collection) and not isinstance(value, str) and not hasattr(value, "dtype"):
        return sum(nbytes(item) for item in value)
    return int(getattr(value, "nbytes", 64))


@dataclass(slots=True, eq=False)
class _Bound:
    """A subgraph or function body over the frame of the node that holds it (a GraphCallable)."""

    run: BodyRun
    body: Body
    frame: Frame

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tuple(declared(value) for value in self.body.outputs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        inner: Frame = {value: self.frame.get(value) for value in self.body.captured}
        inner.update(zip(self.body.inputs, inputs, strict=False))
        return self.run.body(self.body, inner)


def check_dtypes(step: Step, arguments: list[Any]) -> None:
    """Raise RunnerError where inputs of one type variable have several dtypes: NumPy would promote them."""
    dtypes = {value.dtype for value in arguments if hasattr(value, "dtype")}
    complaint = unlike_inputs(step.node, step.run, arguments) if len(dtypes) > 1 else ""
    if complaint:
        raise failure(step, arguments, TypeError(complaint), complaint)


def failure(step: Step, arguments: list[Any], error: Exception, why: str = "") -> RunnerError:
    """Return what is raised when an operator fails: the node, why, and the shapes of its inputs."""
    why = why or reason(step.node, step.run, arguments, error)
    names = input_names(step.node, step.run)
    shapes = ", ".join(f"{name} {_describe(a)}" for name, a in zip(names, arguments, strict=False))
    name = step.node.name or step.keys[0]
    return RunnerError(
        f"runner engine failed at {step.node.op_type} '{name}': {why}",
        where=f"inputs {shapes or 'none'}",
        next_step="look at the layer and its inputs:  graphdoc inspect MODEL --layers",
    )


def _describe(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    if not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype}[{'×'.join(map(str, value.shape))}]"
