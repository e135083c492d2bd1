"""Level 0: run a model operator by operator, with every value within reach.

This is the engine's own oracle. It computes each operator as ``ops/`` states it, in the dtypes of the
model (float16 is true half precision), or with ``truth=True`` in float64 wherever the model has a float.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from graphdoc.engine.body import Body, Builder, Settings, Step
from graphdoc.engine.errors import GraphdocError, RunnerError
from graphdoc.engine.scope import MAIN, Occurrences, qualified

Feeds = Mapping[str, Any]
Frame = dict[Any, Any]


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
        settings = Settings(xp, truth, model.functions, self._rng, self._place)
        builder = Builder(settings)
        self._body = builder.graph(model.graph, model.opset_imports)
        builder.check()
        self.served_by = builder.served_by
        self.input_names = [str(v.name) for v in model.graph.inputs]
        self.output_names = [str(v.name) for v in model.graph.outputs]

    def run(
        self,
        feeds: Feeds,
        taps: Collection[str] = (),
        *,
        given: Mapping[str, Any] | None = None,
        timings: dict[str, float] | None = None,
    ) -> dict[str, Any]:
        """Return the outputs and the tapped values by name.

        feeds: every input without an initializer.
        taps: names of inner values; inside subgraphs as :func:`graphdoc.engine.scope.qualified` spells
            them. A tapped value of a subgraph comes as Occurrences, one entry per execution.
        given: values to continue with in place of the computed ones: each layer then runs on these
            inputs, so that a result differs by the layer's own error alone.
        timings: filled with seconds per step, by the name of its first output.
        """
        run = _Run(self, frozenset(taps), given or {}, timings)
        self._rng.bit_generator.state = np.random.default_rng(self._seed).bit_generator.state
        with np.errstate(all="ignore"):
            frame: Frame = {
                value: self._place(feeds[str(value.name)])
                for value in self._body.inputs
                if str(value.name) in feeds
            }
            outputs = run.body(self._body, frame)
        results = dict(zip(self.output_names, outputs, strict=True))
        return {**run.tapped, **results}

    def _place(self, value: Any) -> Any:
        """Return a value where the interpreter computes, promoted in truth mode."""
        if isinstance(value, list):
            return type(value)(self._place(item) for item in value)
        if not isinstance(value, np.ndarray) or value.dtype == object:
            return value
        if self._truth:
            value = _promote(value)
        return value if self._xp is np else self._xp.asarray(value)


def _promote(value: Any) -> Any:
    if value.dtype == np.float64 or value.dtype.name not in ("float32", "float16", "bfloat16"):
        return value
    return value.astype(np.float64)


class _Run:
    """One run: what is tapped, forced and timed."""

    def __init__(
        self,
        owner: Interpreter,
        taps: frozenset[str],
        given: Mapping[str, Any],
        timings: dict[str, float] | None,
    ) -> None:
        self.owner = owner
        self.taps = taps
        self.given = given
        self.timings = timings
        self.tapped: dict[str, Any] = {}
        self._turn: dict[str, int] = {}

    def body(self, body: Body, frame: Frame) -> tuple[Any, ...]:
        """Run all steps of a body over ``frame``, which holds inputs and captured values."""
        for value, constant in body.constants.items():
            frame.setdefault(value, constant)
        if self.given or self.taps:
            self._inputs(body, frame)
        for step in body.steps:
            self._step(step, frame, body.scope)
            for value in step.frees:
                frame.pop(value, None)
        return tuple(None if v is None else frame.get(v) for v in body.outputs)

    def _inputs(self, body: Body, frame: Frame) -> None:
        if body.scope == MAIN:
            return
        for value in body.inputs:
            key = qualified(body.scope, str(value.name))
            frame[value] = self._record(key, frame.get(value), nested=True)

    def _step(self, step: Step, frame: Frame, scope: str) -> None:
        started = time.perf_counter() if self.timings is not None else 0.0
        arguments = [None if v is None else frame.get(v) for v in step.inputs]
        run = step.run
        try:
            if step.bodies:
                results = run(*arguments, **{name: self._bind(b, frame) for name, b in step.bodies.items()})
            else:
                results = run(*arguments)
        except GraphdocError:
            raise
        except Exception as error:
            raise _failure(step, arguments, error) from error
        if not isinstance(results, tuple):
            results = (results,)
        if self.timings is not None:
            self.timings[step.keys[0]] = self.timings.get(step.keys[0], 0.0) + time.perf_counter() - started
        for value, key, result in zip(step.outputs, step.keys, results, strict=False):
            frame[value] = self._record(key, self._normal(result), nested=scope != MAIN)

    def _bind(self, body: Body, frame: Frame) -> Callable[..., tuple[Any, ...]]:
        def bound(*inputs: Any) -> tuple[Any, ...]:
            inner: Frame = {value: frame.get(value) for value in body.captured}
            inner.update(zip(body.inputs, inputs, strict=False))
            return self.body(body, inner)

        return bound

    def _normal(self, value: Any) -> Any:
        """Return NumPy scalars as arrays of rank 0, and floats promoted in truth mode."""
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if self.owner._truth and hasattr(value, "dtype"):
            return _promote(value)
        return value

    def _record(self, key: str, value: Any, *, nested: bool) -> Any:
        """Note a value if it is tapped; return the one to continue with."""
        if key in self.taps:
            if nested:
                self.tapped.setdefault(key, Occurrences()).append(value)
            else:
                self.tapped[key] = value
        if key not in self.given:
            return value
        replacement = self.given[key]
        if isinstance(replacement, Occurrences):
            turn = self._turn.get(key, 0)
            self._turn[key] = turn + 1
            if turn >= len(replacement):
                return value
            replacement = replacement[turn]
        return self.owner._place(replacement)


def _failure(step: Step, arguments: list[Any], error: Exception) -> RunnerError:
    shapes = ", ".join(_describe(a) for a in arguments)
    name = step.node.name or step.keys[0]
    return RunnerError(
        f"runner engine failed at {step.node.op_type} '{name}': {error}",
        where=f"inputs {shapes or 'none'}",
        next_step="look at the layer and its inputs:  graphdoc inspect MODEL --layers",
    )


def _describe(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return (
        f"{value.dtype}[{'×'.join(map(str, value.shape))}]"
        if hasattr(value, "dtype")
        else type(value).__name__
    )
