"""Runners on the engine: ``engine`` (level 0), ``engine:1`` (optimised), ``truth`` (level 0 in float64)."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from graphdoc import __version__
from graphdoc.compare.runner import Run, RunnerOptions, Sink, Values
from graphdoc.compare.target import Target
from graphdoc.engine.device import cupy
from graphdoc.engine.interpreter import Interpreter, Watch, nbytes
from graphdoc.engine.level1 import Compiled, compiled
from graphdoc.engine.scope import Occurrences


class EngineRunner:
    """The engine's interpreter as a runner."""

    version = __version__
    taps_are_free = True

    def __init__(self, name: str, settings: str, interpreter: Interpreter) -> None:
        self.name = name
        self.settings = settings
        self.interpreter = interpreter

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Operators that the table itself does not hold."""
        return _fallbacks(self.interpreter.served_by)

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs, no value tapped."""
        return self.interpreter.run(feeds)

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """See Runner.run."""
        timings: dict[str, float] = {}
        watch = Watch(taps=frozenset(taps), budget=budget, timings=timings)
        values = self.interpreter.run(feeds, watch=watch)
        return Run(values, timings, cut=budget is not None and nbytes(list(values.values())) >= budget)

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """See Runner.forced."""
        return Run(self._forced(feeds, given, frozenset(taps), None))

    def forced_each(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str], sink: Sink) -> None:
        """See Runner.forced_each."""
        wanted = frozenset(taps)
        for key, value in self._forced(feeds, given, wanted, sink).items():
            sink(key, value)

    def _forced(
        self, feeds: Mapping[str, Any], given: Values, wanted: frozenset[str], sink: Sink | None
    ) -> Values:
        watch = Watch(taps=wanted, given=given, only=wanted, sink=sink)
        found = self.interpreter.run(feeds, watch=watch)
        outputs = frozenset(self.interpreter.output_names) if sink else frozenset()
        return {key: value for key, value in found.items() if key in wanted and key not in outputs}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace


class CompiledRunner:
    """Level 1 as a runner: the model as it is, in programs.

    A tapped value is an output of its program, which fusion then keeps; the untouched run is fused freely.
    """

    version = __version__

    def __init__(self, name: str, model: Compiled) -> None:
        self.name = name
        self.settings = f"level 1, {model.device.name}"
        self._compiled = model

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Operators that the table itself does not hold."""
        return _fallbacks(self._compiled.served_by)

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs, no value tapped."""
        return self._compiled.run(feeds)

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """See Runner.run."""
        names = list(taps)
        size = len(names) or 1 if budget is None else _PART
        values: Values = {}
        cut = False
        for start in range(0, len(names) or 1, size):
            values.update(self._compiled.run(feeds, names[start : start + size]))
            cut = budget is not None and nbytes(list(values.values())) >= budget
            if cut:
                break
        return Run(values, cut=cut)

    def profile(self, feeds: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], float, float]]:
        """Return each step: its kind, its nodes, seconds, and the least seconds at this machine's limits."""
        from graphdoc.engine.limits import limits

        machine = limits()
        threads = getattr(self._compiled.device, "threads", 1)
        return [
            (step.label, step.nodes, step.seconds, machine.least(step.operations, step.bytes, threads))
            for step in self._compiled.profile(feeds)
        ]

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """See Runner.forced. Values inside subgraphs and functions are not forced, so not told either."""
        main = {key: value for key, value in given.items() if not isinstance(value, Occurrences)}
        found = self._compiled.run(feeds, taps, given=main)
        wanted = frozenset(taps)
        values = {k: v for k, v in found.items() if k in wanted and not isinstance(v, Occurrences)}
        return Run(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace


_PART = 256
"""Taps of one run under a memory bound."""


def _fallbacks(served_by: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    return tuple(f"{domain or 'ai.onnx'}::{op}: {by}" for (domain, op), by in sorted(served_by.items()))


def open_engine(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine on the CPU, operator by operator."""
    return EngineRunner("engine", "level 0, NumPy", Interpreter(target.model, seed=options.seed))


def open_engine_1(target: Target, options: RunnerOptions) -> CompiledRunner:
    """Open the engine on the CPU, optimised."""
    model = compiled(target.model, threads=options.threads or None, seed=options.seed)
    return CompiledRunner("engine:1", model)


def open_truth(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine with every float computed in float64."""
    interpreter = Interpreter(target.model, truth=True, seed=options.seed)
    return EngineRunner("truth", "level 0, floats in float64", interpreter)


def open_engine_cuda(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine on CuPy arrays, operator by operator. Raises RunnerError without CuPy or a card."""
    xp = cupy.namespace()
    interpreter = Interpreter(target.model, xp=xp, seed=options.seed)
    return EngineRunner("engine:cuda", f"level 0, {cupy.version()}", interpreter)
