"""Run a model on the engine."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphdoc.api import Model
from graphdoc.compare.target import Target
from graphdoc.engine.device import NAMESPACES
from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import check_feeds
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled, compiled
from graphdoc.engine.plan import Plan
from graphdoc.engine.plan_file import is_plan
from graphdoc.surgeon.mapped import open_mapped
from graphdoc.surgeon.model import open_source
from graphdoc.surgeon.simplify import simplify as simplified

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

    Raises ModelError, UnsupportedOperatorError, UsageError for a device or level this version lacks,
    RunnerError where CuPy or a card is missing.
    """

    def __init__(
        self,
        model: Model,
        *,
        device: str = "cpu",
        level: int = 0,
        truth: bool = False,
        seed: int = 0,
        threads: int | None = None,
        simplify: bool = True,
    ) -> None:
        _check(device, level, truth)
        self._plan = _plan(model)
        self._threads = threads
        self._compiled: Compiled | None = None
        self._checked: set[Any] = set()
        if self._plan is not None:
            return
        self._runs: Interpreter | Compiled
        if level == 1:
            mapped = None if not isinstance(model, str | os.PathLike) else open_mapped(Path(model))
            graph = open_source(model).model if mapped is None else mapped.model
            self._target = Target(open_source(simplified(graph).model if simplify else graph))
            unchanged = None if mapped is None else mapped.check
            self._runs = self._compiled = compiled(
                self._target.model, threads=threads, seed=seed, unchanged=unchanged
            )
        else:
            self._target = Target(open_source(model))
            xp = NAMESPACES[device]()
            self._runs = Interpreter(self._target.model, xp=xp, truth=truth, seed=seed)

    @property
    def taps(self) -> list[str]:
        """Names of all inner values that :meth:`run` can return, in execution order."""
        return [] if self._plan is not None else [point.key for point in self._target.points]

    def run(self, feeds: Mapping[str, Any], taps: Iterable[str] = ()) -> dict[str, Any]:
        """Return the outputs, and the inner values named in ``taps``, as NumPy arrays by name.

        Values inside If, Loop and Scan come as lists, one entry per execution.

        Raises InputError when the feeds do not fit, RunnerError when an operator fails.
        """
        if self._plan is not None:
            return _run_plan(self._plan, feeds, tuple(taps), self._threads)
        if self._compiled is not None and not taps:
            found = self._compiled.quick(feeds)
            if found is not None:
                return found
        kinds = tuple(_kind(name, value) for name, value in feeds.items())
        if None in kinds or kinds not in self._checked:
            check_feeds(self._target.model, feeds)
            if len(self._checked) < _KEPT:
                self._checked.add(kinds)
        return self._runs.run(feeds, taps)


def _kind(name: str, value: Any) -> tuple[str, Any, tuple[int, ...]] | None:
    """Return all that a check looks at of an array of numbers; None for others, whose contents count."""
    if type(value) is not np.ndarray or value.dtype == object:
        return None
    return name, value.dtype, value.shape


def _plan(model: Model) -> Plan | None:
    """Return the plan that a path leads to, None for a model."""
    if isinstance(model, str | os.PathLike) and is_plan(model):
        return Plan.load(os.fspath(model))
    return None


def _run_plan(
    plan: Plan, feeds: Mapping[str, Any], taps: tuple[str, ...], threads: int | None
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
