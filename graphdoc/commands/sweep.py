"""``graphdoc sweep``."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from graphdoc.commands.common import SEED, THREADS, TOLERANCE, Finite, progress_bar, tolerance_option
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_targets

if TYPE_CHECKING:
    from graphdoc.reports.sweep import Sweep
    from graphdoc.sweep_run import Plan

_POSITIVE = click.IntRange(min=1, max=256)

_PASSED_ON = (
    ("ref_runner", "--ref"),
    ("test_runner", "--test"),
    ("taps", "--taps"),
    ("shapes", "--shape"),
    ("rtol", "--rtol"),
    ("atol", "--atol"),
    ("tolerances", "--tolerance"),
    ("ops", "--ops"),
)
"""Parameters that every case gets, and their option of ``graphdoc compare``."""


@click.command("sweep")
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option("--ref", "ref_runner", default="ort", show_default=True, metavar="RUNNER", help="Runs side A.")
@click.option(
    "--test", "test_runner", default="engine", show_default=True, metavar="RUNNER", help="Runs side B."
)
@click.option("--against", metavar="FOLDER", help="Models to test, under the same names as those of WHAT.")
@click.option(
    "--inputs", multiple=True, metavar="FILE|FOLDER|GLOB", help="Run each model on each; repeatable."
)
@click.option("--seed", "seeds", multiple=True, type=SEED, help="Seeds of made-up inputs; repeatable.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Shape of an input.")
@click.option("--taps", multiple=True, metavar="all|outputs|GLOB", help="Values to compare; repeatable.")
@click.option("--ops", multiple=True, metavar="FILE.py", help="Python file that registers operators.")
@click.option("--rtol", type=TOLERANCE, help="Relative tolerance, element by element.")
@click.option("--atol", type=TOLERANCE, help="Absolute tolerance, element by element.")
@tolerance_option
@click.option("-j", "--jobs", type=_POSITIVE, help="Cases at a time (default: 1, which also times them).")
@click.option("--dask", metavar="ADDRESS", help="Spread over the workers of a Dask scheduler.")
@click.option("--threads", type=THREADS, help="Threads of ONNX Runtime a case.")
@click.option("--memory", metavar="SIZE", help="Memory for inner values, of all cases together.")
@click.option("--timeout", type=Finite(min=0, min_open=True), help="Seconds a case may take.")
@click.option("-o", "folder", metavar="FOLDER", help="Write a page and JSON per case, and index.html.")
@click.option("--fresh", is_flag=True, help="Compare again what the folder already holds.")
@click.option("--json", "json_", metavar="FILE|-", help="Write the summary as JSON; - is stdout.")
@click.option("--markdown", metavar="FILE|-", help="Write the summary as a review comment.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every case.")
def command(**options: Any) -> int:
    """Compare many models on many inputs, each in a process of its own.

    WHAT is models, folders (all .onnx files below), globs in quotes, or list files (.txt) with one case a
    line: MODEL [TEST] [INPUTS]. With -o, a second call goes on where the first one stopped: results whose
    models, inputs and versions are the same are taken over.

    The exit code is the largest of all cases: 0 agree, 1 one differs, 2 usage, 3 a model or input is
    invalid, 4 a runner failed or a case was killed, 5 nothing was compared.

    \b
      graphdoc sweep models/ -o report                          every model, ONNX Runtime against the engine
      graphdoc sweep models/ --against fp16/ --test ort -j 4 -o report
      graphdoc sweep m.onnx --inputs 'data/*.npz' --seed 0 -o report
    """
    from graphdoc.sweeping import StoppedError

    check_targets({"--json": options["json_"], "--markdown": options["markdown"]})
    try:
        with _terminated_as_interrupted():
            sweep = _sweep(options)
    except StoppedError as error:
        _write(error.sweep, options)
        raise
    _write(sweep, options)
    return sweep.exit_code


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the cases that run and keep what is finished, as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sweep(options: dict[str, Any]) -> "Sweep":
    from pathlib import Path

    from graphdoc.config import all_rules
    from graphdoc.sweep_cases import find_cases
    from graphdoc.sweep_store import Store
    from graphdoc.sweeping import Shelf, sweep_cases

    cases = find_cases(
        options["what"],
        against=options["against"],
        inputs=options["inputs"],
        seeds=options["seeds"] or (0,),
    )
    plan = _plan(options)
    asked: tuple[str, ...] = () if options["threads"] is None else ("--threads", str(options["threads"]))
    asked += tuple(str(rule) for rule in all_rules(options["tolerances"]) if not rule.must_match)
    files = tuple(options["ops"])
    store = Store(Path(options["folder"]), (*plan.options, *asked), files) if options["folder"] else None
    shelf = Shelf(store, options["fresh"])
    with progress_bar("sweep", "cases") as progress:
        return sweep_cases(cases, plan, shelf, dask=options["dask"], progress=progress)


def _plan(options: dict[str, Any]) -> "Plan":
    from graphdoc.compare.memory import parse_size
    from graphdoc.engine.errors import UsageError
    from graphdoc.sweep_run import Plan

    if options["dask"] and options["jobs"]:
        raise UsageError(
            "--dask and --jobs do not go together",
            where="--jobs",
            next_step="leave --jobs out: the threads of the Dask workers say how many cases run at a time",
        )
    words: list[str] = []
    for name, option in _PASSED_ON:
        values = options[name] if isinstance(options[name], tuple) else (options[name],)
        words += [word for value in values if value is not None for word in (option, str(value))]
    return Plan(
        options=tuple(words),
        jobs=options["jobs"] or 1,
        memory=parse_size(options["memory"]),
        threads=options["threads"],
        timeout=options["timeout"],
        bounded=not any(":" in options[name] for name in ("ref_runner", "test_runner")),
    )


def _write(sweep: "Sweep", options: dict[str, Any]) -> None:
    from graphdoc.reports.sweep_text import sweep_json, sweep_lines, sweep_markdown

    forms = ((options["json_"], sweep_json), (options["markdown"], sweep_markdown))
    if STDOUT not in (options["json_"], options["markdown"]):
        index = f"{options['folder'].rstrip('/')}/index.html" if options["folder"] else ""
        settings = print_settings(options["color"])
        click.echo(sweep_lines(sweep, verbose=options["verbose"], folder=index, **settings), nl=False)
    for target, render in forms:
        if target:
            write_or_print(render(sweep), target)
