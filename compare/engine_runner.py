"""Runners on the engine: ``engine`` (level 0) and ``truth`` (the same in float64)."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from graphdoc import __version__
from graphdoc.compare.runner import Run, RunnerOptions, Sink, Values
from graphdoc.compare.target import Target
from graphdoc.engine.device import cupy
from graphdoc.engine.interpreter import Interpreter, Watch, nbytes


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
        served = self.interpreter.served_by.items()
        return tuple(f"{domain or 'ai.onnx'}::{op}: {by}" for (domain, op), by in sorted(served))

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


def open_engine(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine on the CPU, operator by operator."""
    return EngineRunner("engine", "level 0, NumPy", Interpreter(target.model, seed=options.seed))


def open_truth(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine with every float computed in float64."""
    interpreter = Interpreter(target.model, truth=True, seed=options.seed)
    return EngineRunner("truth", "level 0, floats in float64", interpreter)


def open_engine_cuda(target: Target, options: RunnerOptions) -> EngineRunner:
    """Open the engine on CuPy arrays, operator by operator. Raises RunnerError without CuPy or a card."""
    xp = cupy.namespace()
    interpreter = Interpreter(target.model, xp=xp, seed=options.seed)
    return EngineRunner("engine:cuda", f"level 0, {cupy.version()}", interpreter)
