"""Runner ``saved:FILE``: hands out values that were saved before, here or on a machine that is not at hand.

FILE is what ``polygraphy run --save-outputs`` wrote, or the ``.npz`` of ``graphdoc run --save``. Of several
runners in a file one is chosen by how its name begins: ``saved:FILE#trt``.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from graphdoc.compare.inputs_npy import read_npz
from graphdoc.compare.polygraphy import SavedRun, decode, kind, read_runs
from graphdoc.compare.runner import Run, RunnerOptions, Values
from graphdoc.compare.target import Target
from graphdoc.engine.errors import InputError, UsageError
from graphdoc.engine.interpreter import nbytes

PREFIX = "saved:"


class SavedRunner:
    """Values by name; nothing is computed."""

    computes = False
    resumes = True
    version = ""

    def __init__(self, name: str, target: Target, run: SavedRun) -> None:
        self.name = name
        more = f", the first of {run.iterations} iterations" if run.iterations > 1 else ""
        self.settings = f"values saved by {run.runner}{more}"
        self._outputs = target.outputs
        self._values = run.values

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """None: nothing is computed."""
        return ()

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs that were saved."""
        return self.run(feeds, ()).values

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """See Runner.run."""
        values: Values = {}
        cut = False
        for name in dict.fromkeys([*self._outputs, *taps]):
            if name in self._values and not cut:
                values[name] = self._value(name)
                cut = budget is not None and nbytes(list(values.values())) >= budget
        return Run(values, cut=cut)

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """Return nothing: what these layers give for other inputs is not known."""
        return Run({})

    def _value(self, name: str) -> Any:
        value = self._values[name]
        return decode(value, f"{name} in {self.name}") if kind(value) else value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace


def open_saved(name: str, target: Target, options: RunnerOptions) -> SavedRunner:
    """Open ``saved:FILE`` or ``saved:FILE#RUNNER``. Raises UsageError, InputError."""
    text = name.removeprefix(PREFIX)
    path, _, wanted = (text, "", "") if Path(text).exists() else text.rpartition("#")
    path = path or wanted
    try:
        runs = _runs(Path(path))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        step = "give the file that  polygraphy run --save-outputs  or  graphdoc run --save  wrote"
        raise InputError(f"cannot read {path}: {reason}", where=name, next_step=step) from error
    return SavedRunner(name, target, _chosen(runs, wanted if path != wanted else "", name))


def _runs(path: Path) -> list[SavedRun]:
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"PK":
        return [SavedRun("graphdoc run", read_npz(path), None)]
    return read_runs(path)


def _chosen(runs: list[SavedRun], wanted: str, name: str) -> SavedRun:
    fitting = [run for run in runs if run.runner.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(run.runner for run in runs) or "none"
    cause = f"{len(fitting)} saved runners fit" if wanted else f"the file holds {len(runs)} runners"
    raise UsageError(
        cause, where=f"{name}: {names}", next_step=f"choose one: {name.split('#')[0]}#START-OF-NAME"
    )
