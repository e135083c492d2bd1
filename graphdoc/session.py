"""Run a model on the engine."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphdoc.engine.device import NAMESPACES
from graphdoc.engine.errors import UsageError
from graphdoc.engine.plan_file import is_plan

if TYPE_CHECKING:  # a model whose program was kept needs none of them
    from graphdoc.api import Model
    from graphdoc.compare.target import Target
    from graphdoc.engine.interpreter import Interpreter
    from graphdoc.engine.kept import Found, Kept
    from graphdoc.engine.level1 import Compiled
    from graphdoc.engine.plan import Plan

_KEPT = 256
"""Types of inputs that were found right and are not checked again."""


class Session:
    """A model ready to run.

    model: a path, bytes, ModelProto or onnx_ir.Model; or the path of a plan (``graphdoc build``), for which
        all but ``threads`` is settled.
    device: "cpu", or "cuda" (CuPy). level: 0 (operator by operator), or on the CPU 1 (optimised: fused, as
    machine code made for the shapes of the inputs). truth: compute floats in float64 (level 0).
    threads: of level 1; None: one per processor. simplify: whether level 1 simplifies the model first; values
    that this does away with cannot be tapped.
    keep: whether level 1 keeps the program of a model file with the user's caches, and takes one that an
    earlier session kept: opening the same model again is quick.

    Raises ModelError, UnsupportedOperatorError, UsageError for a device or level this version lacks,
    RunnerError where CuPy or a card is missing.
    """

    def __init__(
        self,
        model: "Model",
        *,
        device: str = "cpu",
        level: int = 0,
        truth: bool = False,
        seed: int = 0,
        threads: int | None = None,
        simplify: bool = True,
        keep: bool = True,
    ) -> None:
        _check(device, level, truth)
        self._plan = _plan(model)
        self._threads = threads
        self._compiled: Compiled | None = None
        self._checked: set[Any] = set()
        self._kept: Kept | None = None
        self._found: Found | None = None
        if self._plan is not None:
            return
        self._make = partial(_optimised, model, simplify, threads, seed)
        if level == 1:
            self._kept = _kept(model, simplify, seed) if keep else None
        else:
            self._make = partial(_plain, model, device, truth, seed)
        if self._kept is None or not self._kept.known:
            _ = self._opened

    @cached_property
    def _opened(self) -> "_Opened":
        """The model and what runs it; where its program was kept, opened when something else is asked for."""
        opened = self._make()
        self._compiled = opened.compiled
        return opened

    @property
    def taps(self) -> list[str]:
        """Names of all inner values that :meth:`run` can return, in execution order."""
        return [] if self._plan is not None else [point.key for point in self._opened.target.points]

    def run(self, feeds: Mapping[str, Any], taps: Iterable[str] = ()) -> dict[str, Any]:
        """Return the outputs, and the inner values named in ``taps``, as NumPy arrays by name.

        Values inside If, Loop and Scan come as lists, one entry per execution.

        Raises InputError when the feeds do not fit, RunnerError when an operator fails.
        """
        if self._plan is not None:
            return _run_plan(self._plan, feeds, tuple(taps), self._threads)
        if not taps:
            found = self._quick(feeds)
            if found is not None:
                return found
        opened = self._opened
        kinds = tuple(_kind(name, value) for name, value in feeds.items())
        fresh = None in kinds or kinds not in self._checked
        if fresh:
            from graphdoc.engine.feeds import check_feeds

            check_feeds(opened.target.model, feeds)
            if len(self._checked) < _KEPT:
                self._checked.add(kinds)
        outputs = opened.runs.run(feeds, taps)
        if fresh and not taps:
            self._keep(feeds)
        return outputs

    def _quick(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs where a program for these arrays is at hand: the last one, or one kept."""
        if self._compiled is not None:
            found = self._compiled.quick(feeds)
            if found is not None:
                return found
        if self._kept is None:
            return None
        last = self._found
        found = None if last is None else last.run(feeds)
        if found is None and self._compiled is None:
            self._found = last = self._kept.find(feeds, self._threads)
            found = None if last is None else last.run(feeds)
        return found

    def _keep(self, feeds: Mapping[str, Any]) -> None:
        """Keep the program of the last run, if the model was one, and all of it in one file."""
        compiled, kept = self._compiled, self._kept
        if compiled is None or compiled.short is None or kept is None:
            return
        if len(self._opened.files) == 1:
            kept.keep(compiled.output_names, compiled.short, feeds)


class _Opened(NamedTuple):
    """A model, what runs it, the same if that is level 1, and the files that the model lies in."""

    target: "Target"
    runs: "Interpreter | Compiled"
    compiled: "Compiled | None"
    files: Sequence[Any]


def _plain(model: "Model", device: str, truth: bool, seed: int) -> _Opened:
    """Return a model and its level 0."""
    from graphdoc.compare.target import Target
    from graphdoc.engine.interpreter import Interpreter
    from graphdoc.surgeon.model import open_source

    target = Target(open_source(model))
    runs = Interpreter(target.model, xp=NAMESPACES[device](), truth=truth, seed=seed)
    return _Opened(target, runs, None, ())


def _optimised(model: "Model", simplify: bool, threads: int | None, seed: int) -> _Opened:
    """Return a model and its level 1."""
    from graphdoc.compare.target import Target
    from graphdoc.engine.level1 import compiled
    from graphdoc.surgeon.mapped import open_mapped
    from graphdoc.surgeon.model import open_source
    from graphdoc.surgeon.simplify import simplify as simplified

    mapped = open_mapped(Path(model)) if isinstance(model, str | os.PathLike) else None
    source = open_source(model if mapped is None else mapped.model)
    target = Target(open_source(simplified(source.model).model if simplify else source.model))
    if mapped is not None:
        mapped.let_go()
    unchanged = None if mapped is None else mapped.check
    runs = compiled(target.model, threads=threads, seed=seed, unchanged=unchanged)
    return _Opened(target, runs, runs, source.files if mapped is None else (mapped.path,))


def _kept(model: "Model", simplify: bool, seed: int) -> "Kept | None":
    """Return where programs of a model file are kept, None where they are not."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        from graphdoc.engine.kept import Kept

        return Kept(model, f"{simplify} {seed}")
    except (ImportError, OSError, ValueError):  # without llvmlite; no file; a name that no file can have
        return None


def _kind(name: str, value: Any) -> tuple[str, Any, tuple[int, ...]] | None:
    """Return all that a check looks at of an array of numbers; None for others, whose contents count."""
    if type(value) is not np.ndarray or value.dtype == object:
        return None
    return name, value.dtype, value.shape


def _plan(model: "Model") -> "Plan | None":
    """Return the plan that a path leads to, None for a model."""
    if isinstance(model, str | os.PathLike) and is_plan(model):
        from graphdoc.engine.plan import Plan

        return Plan.load(os.fspath(model))
    return None


def _run_plan(
    plan: "Plan", feeds: Mapping[str, Any], taps: tuple[str, ...], threads: int | None
) -> dict[str, Any]:
    if taps:
        raise UsageError(
            "a plan keeps no inner values",
            where=f"taps {', '.join(taps)}",
            next_step="Session(MODEL, level=1)",
        )
    return plan.run(feeds, threads)


def _check(device: str, level: int, truth: bool) -> None:
    """Raise UsageError for what this version does not run."""
    if device in NAMESPACES and (level == 0 or (level == 1 and device == "cpu" and not truth)):
        return
    wanted = f"level {level} on '{device}'" + (" in float64" if truth else "")
    raise UsageError(
        f"this version runs level 0 on {' and '.join(NAMESPACES)} and level 1 on cpu, not {wanted}",
        next_step='Session(model, device="cpu", level=0)',
    )
