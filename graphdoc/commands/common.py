"""Options and habits that several commands share."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Finite(click.FloatRange):
    """A number that is neither NaN nor infinite: under either everything agrees, and no wait ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


TOLERANCE = Finite(min=0)
SEED = click.IntRange(min=0, max=2**63 - 1)
THREADS = click.IntRange(min=0, max=512)
"""ONNX Runtime starts all of them at once, several times over; thousands bring a machine to a halt."""

_INPUT_OPTIONS = (
    click.option("--inputs", metavar="FILE", help="Inputs: .npz, .npy, .pb, .json, a folder of .pb files."),
    click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Shape of an input."),
    click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of inputs that are made up."),
)


def _load_operators(context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]) -> None:
    del context, parameter
    if paths:
        from graphdoc.engine.ops.custom import load_operators

        for path in paths:
            load_operators(path)


ops_option = click.option(
    "--ops",
    multiple=True,
    metavar="FILE.py",
    expose_value=False,
    callback=_load_operators,
    help="Python file that registers operators; repeatable.",
)
"""For commands that run models; the operators are there once the options have been read."""

QUIET_SECONDS = 0.5
"""Work shorter than this shows no progress bar."""


tolerance_option = click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="NAME=ERROR",
    help="Largest error RMS(B − A) ÷ RMS(A) of some layers: 'encoder.*=1e-3' (name or glob), "
    "op:Softmax=1e-4, dtype:float16=1e-2; repeatable, the most specific counts.",
)


def input_options(function: F) -> F:
    """Add the options that say what is fed to the model."""
    for option in reversed(_INPUT_OPTIONS):
        function = option(function)
    return function


def color_wanted(choice: bool | None) -> bool:
    """Whether to colour stdout: as asked, else on a terminal that wants it."""
    if choice is not None:
        return choice
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def unicode_wanted() -> bool:
    """Whether stdout can show symbols outside ASCII."""
    return "utf" in (sys.stdout.encoding or "").lower()


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function (done, total) that draws a bar on stderr; None when stderr is not a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"{title:<9}"), BarColumn(), TextColumn("{task.completed} of {task.total} " + unit))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=None)
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - started > QUIET_SECONDS and done < total and not bar.live.is_started:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def busy(title: str) -> Iterator[None]:
    """Show on a terminal, after a moment, that work goes on of which nobody knows how much is left."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(title, total=None)
    later = threading.Timer(QUIET_SECONDS, bar.start)
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()
        later.join()
        bar.stop()
