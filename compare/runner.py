"""What a runner is, and how one is opened by name."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError, UsageError

Values = dict[str, Any]
"""Tap name → array, list (sequence), list of dicts, or Occurrences (inside subgraphs)."""

Sink: TypeAlias = Callable[[str, Any], None]
"""Takes a tap name and its value."""


@dataclass(slots=True)
class Run:
    """What a runner found.

    values: outputs and taps. cut: the budget was used up, so taps past the last one present are missing and
        are asked for again.
    timings: seconds by tap name of a node's first output, where the runner can tell.
    unreachable: reason by scope, for subgraphs the runner could not look into.
    """

    values: Values
    timings: dict[str, float] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class Runner(Protocol):
    """Runs one model. Third parties register a factory ``(target, options) → Runner`` as an entry point in
    the group ``graphdoc.runners``.

    A runner may also have ``warm()``, which starts opening what it needs in the background,
    ``taps_are_free = True``, which says that a run with taps is the same run as one without, and
    ``forced_each(feeds, given, taps, sink)``, which is ``forced`` that hands over each value once it is there
    and keeps none. ``resumes = True`` says that a run for the layers after those of the run before costs no
    more than these layers, so that a small budget costs no time. ``computes = False`` says that its values
    were saved before: it has neither times nor ``forced``.

    name: as typed on the command line. version: of the library behind it. settings: in words.
    fallbacks: operators that another implementation serves, in words.
    """

    name: str
    version: str
    settings: str

    @property
    def fallbacks(self) -> tuple[str, ...]: ...

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs of the model as it is, with the runner's usual settings."""

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """Return outputs and taps; at least one tap per call whatever the budget in bytes."""

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """Return what each tapped layer computes from the given values of the layers before it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """threads: intra-operator threads, 0 for the runner's default. seed: for random operators.

    times: tell the seconds per layer where that costs extra.
    """

    threads: int = 0
    seed: int = 0
    times: bool = True


Factory = Callable[[Target, RunnerOptions], Runner]

BUILT_IN = {
    "ort": "graphdoc.compare.ort_runner:open_cpu",
    "ort:cuda": "graphdoc.compare.ort_runner:open_cuda",
    "ort:tensorrt": "graphdoc.compare.ort_runner:open_tensorrt",
    "engine": "graphdoc.compare.engine_runner:open_engine",
    "engine:1": "graphdoc.compare.engine_runner:open_engine_1",
    "engine:cuda": "graphdoc.compare.engine_runner:open_engine_cuda",
    "truth": "graphdoc.compare.engine_runner:open_truth",
    "reference": "graphdoc.compare.reference_runner:open_reference",
}
"""Name → module:function; each is imported only when it is asked for."""


def runner_names() -> list[str]:
    """Return every name that :func:`open_runner` knows."""
    return [*BUILT_IN, *sorted(e.name for e in entry_points(group="graphdoc.runners"))]


def factory(name: str, option: str = "") -> Factory:
    """Return the function that opens a runner.

    Raises UsageError for an unknown name, RunnerError where its library is missing.
    """
    if name in BUILT_IN:
        module, function = BUILT_IN[name].split(":")
        try:
            found: Factory = getattr(import_module(module), function)
        except RunnerError as error:  # the library behind it is missing
            error.where = f"{option} {name}".strip()
            raise
        return found
    if name.startswith("saved:"):
        return partial(import_module("graphdoc.compare.saved_runner").open_saved, name)
    for entry in entry_points(group="graphdoc.runners", name=name):
        loaded: Factory = entry.load()
        return loaded
    raise UsageError(
        f"no runner is called '{name}'",
        where=f"{option} {name}".strip(),
        next_step=f"choose one of: {', '.join(runner_names())}, saved:FILE",
    )


def open_runner(name: str, target: Target, options: RunnerOptions | None = None, option: str = "") -> Runner:
    """Open a runner on a model; use it as a context manager.

    Raises UsageError (unknown name), RunnerError (library or device missing, model refused).
    """
    return factory(name, option)(target, options or RunnerOptions())
