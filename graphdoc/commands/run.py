"""``graphdoc run``."""

import sys
from collections.abc import Iterator
from typing import Any

import click

from graphdoc.commands.common import THREADS, input_options, ops_option, unicode_wanted
from graphdoc.commands.targets import check_targets

_NAME_WIDTH = 40
"""Columns of a name on a terminal."""


@click.command("run")
@click.argument("model", type=click.Path())
@click.option("--runner", default="engine", show_default=True, help="ort, engine, reference, truth.")
@click.option(
    "--taps", multiple=True, metavar="all|GLOB", help="Inner values to show or save too; repeatable."
)
@input_options
@ops_option
@click.option("--save", metavar="FILE.npz", help="Write outputs and taps.")
@click.option("--save-inputs", metavar="FILE.npz", help="Write the inputs that were used.")
@click.option("--threads", type=THREADS, default=0, help="Threads of ONNX Runtime, or of a plan.")
def command(**options: Any) -> int:
    """Run a model, or a plan, and show or save its outputs and inner values.

    \b
      graphdoc run m.onnx --runner ort
      graphdoc run m.plan
      graphdoc run m.onnx --taps '*attention*' --save values.npz
    """
    from graphdoc.api import resolve_inputs
    from graphdoc.compare.memory import bounded_memory
    from graphdoc.compare.runner import RunnerOptions, open_runner
    from graphdoc.compare.target import Target
    from graphdoc.engine.plan_file import is_plan
    from graphdoc.surgeon.model import open_source
    from graphdoc.surgeon.stubs import stripped_remark
    from graphdoc.values import check_npz, save_npz

    saves = {"--save": options["save"], "--save-inputs": options["save_inputs"]}
    check_targets(saves, reads=(options["model"], options["inputs"]))
    for option, path in saves.items():
        if path is not None:
            check_npz(path, option)
    if is_plan(options["model"]):
        return _run_plan(options)
    target = Target(open_source(options["model"]))
    inputs = resolve_inputs(target, options["inputs"], options["shapes"], options["seed"])
    settings = RunnerOptions(options["threads"], options["seed"])
    bound = bounded_memory((options["runner"],))
    with bound, open_runner(options["runner"], target, settings, "--runner") as runner:
        if options["taps"]:
            found = runner.run(inputs.feeds, _wanted(target, options["taps"])).values
        else:
            found = runner.untouched(inputs.feeds)
    for path, values in ((options["save"], found), (options["save_inputs"], inputs.feeds)):
        if path:
            save_npz(path, values)
    if remark := stripped_remark(target.source.model):
        click.echo(f"note: {remark}", err=True)
    outputs = set(target.outputs)
    order = [*target.outputs, *(p.key for p in target.points if p.key not in outputs)]
    _print(found, [name for name in order if name in found], inputs)
    return 0


def _run_plan(options: dict[str, Any]) -> int:
    """Run a plan that ``graphdoc build`` made."""
    from graphdoc.engine.errors import UsageError
    from graphdoc.engine.plan import Plan
    from graphdoc.planning import plan_inputs
    from graphdoc.values import save_npz

    if options["taps"] or options["runner"] not in ("engine", "engine:1"):
        what = "--taps" if options["taps"] else f"--runner {options['runner']}"
        raise UsageError(
            "a plan runs on the engine and keeps no inner values",
            where=what,
            next_step="graphdoc run with the model it was built from",
        )
    plan = Plan.load(options["model"])
    inputs = plan_inputs(plan, options["inputs"], options["shapes"], options["seed"])
    found = plan.run(inputs.feeds, options["threads"] or None)
    for note in plan.notes:
        click.echo(note, err=True)
    for path, values in ((options["save"], found), (options["save_inputs"], inputs.feeds)):
        if path:
            save_npz(path, values)
    _print(found, list(found), inputs)
    return 0


def _wanted(target: Any, globs: tuple[str, ...]) -> list[str]:
    from fnmatch import fnmatchcase

    from graphdoc.engine.errors import UsageError

    keys = [p.key for p in target.points]
    found = [
        p.key
        for p in target.points
        if any(g == "all" or fnmatchcase(p.key, g) or fnmatchcase(p.node, g) for g in globs)
    ]
    if not found:
        raise UsageError(
            f"--taps matches none of {len(keys)} values",
            where=f"--taps {' '.join(globs)}",
            next_step=f"graphdoc inspect {target.source.name} --layers",
        )
    return found


def _print(values: dict[str, Any], names: list[str], inputs: Any) -> None:
    from graphdoc.reports.words import cells

    rows = [("in", _shown(name), value) for name, value in inputs.feeds.items()]
    rows += [("out", _shown(name), values[name]) for name in names]
    width = max((cells(name) for _, name, _ in rows), default=0)
    for kind, name, value in rows:
        for line in _describe(value):
            click.echo(f"{kind:<4} {name}{' ' * (width - cells(name))}  {_plain(line)}")


def _plain(text: str) -> str:
    """Return foreign text in characters that stdout can show."""
    from graphdoc.reports.words import ascii_only, visible

    return visible(text) if unicode_wanted() else ascii_only(visible(text))


def _shown(name: str) -> str:
    """Return a name as it is printed: on a terminal, cut in the middle."""
    from graphdoc.reports.words import shorten

    return shorten(_plain(name), _NAME_WIDTH) if sys.stdout.isatty() else _plain(name)


def _describe(value: Any) -> Iterator[str]:
    """Yield one line per array: dtype, shape, range, first elements."""
    import numpy as np

    from graphdoc.compare.numbers import number

    if isinstance(value, list):
        yield f"{len(value)} values"
        for item in value[:3]:
            yield from (f"  {line}" for line in _describe(item))
    elif not isinstance(value, np.ndarray):
        yield "empty optional" if value is None else str(value)[:60]
    else:
        shape = "×".join(map(str, value.shape)) or "scalar"
        text = f"{'string' if value.dtype == object else value.dtype.name} {shape}"
        if value.dtype == object or not value.size:
            first = ", ".join(str(item)[:60] for item in value.ravel()[:4])
            yield f"{text}  {first}" if value.size else text
            return
        wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64).real
        finite = wide[np.isfinite(wide)]
        bad = wide.size - finite.size
        span = f"{number(float(finite.min()), 4)} … {number(float(finite.max()), 4)}" if finite.size else "–"
        note = f"  {bad} NaN or Inf" if bad else ""
        yield f"{text}  {span}  mean {number(float(finite.mean()), 4) if finite.size else '–'}{note}"
