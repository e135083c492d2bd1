"""Options and habits that several commands share."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_INPUT_OPTIONS = (
    click.option("--inputs", metavar="FILE", help="Inputs: .npz, .npy, .pb, or a folder of .pb test data."),
    click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Shape of an input."),
    click.option("--seed", default=0, show_default=True, help="Seed of inputs that are made up."),
)

QUIET_SECONDS = 0.5
"""Work shorter than this shows no progress bar."""


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
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"{title:<9}"), BarColumn(), TextColumn("{task.completed} of {task.total} " + unit))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=None)
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        if time.monotonic() - started > QUIET_SECONDS and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()
