"""``graphdoc compare``."""

from importlib import import_module
from typing import Any

import click

from graphdoc.commands.common import (
    THREADS,
    TOLERANCE,
    input_options,
    ops_option,
    progress_bar,
    tolerance_option,
)
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_targets

_FORMS = {
    "html": ("-o", "html", "render_html"),
    "json_": ("--json", "jsonform", "to_json"),
    "markdown": ("--markdown", "markdown", "render_markdown"),
    "junit": ("--junit", "junit", "render_junit"),
}
"""Parameter → its option, and the module of graphdoc.reports and function that make the text."""


@click.command("compare")
@click.argument("ref", type=click.Path())
@click.argument("test", type=click.Path(), required=False)
@click.option("--ref", "ref_runner", default="ort", show_default=True, metavar="RUNNER", help="Runs side A.")
@click.option(
    "--test",
    "test_runner",
    default="engine",
    show_default=True,
    metavar="RUNNER",
    help="Runs TEST (or REF again), side B: ort, engine, reference, truth, saved:FILE.",
)
@click.option(
    "--taps",
    multiple=True,
    default=("all",),
    metavar="all|outputs|GLOB",
    help="Values to compare: all, outputs, or globs over names of values and nodes; repeatable.",
)
@input_options
@ops_option
@click.option("--rtol", type=TOLERANCE, help="Relative tolerance, element by element.")
@click.option("--atol", type=TOLERANCE, help="Absolute tolerance, element by element.")
@tolerance_option
@click.option("--truth", is_flag=True, help="Hold every layer of both sides against float64.")
@click.option("--noise", is_flag=True, help="Measure how much A differs from itself; limits follow.")
@click.option("--rank", is_flag=True, help="Rank layers by what their own errors do to the outputs.")
@click.option(
    "--passes", type=click.IntRange(1, 256), default=8, show_default=True, help="Reverse passes of --rank."
)
@click.option("--threads", type=THREADS, default=0, help="Threads of ONNX Runtime.")
@click.option("--memory", metavar="SIZE", help="Memory for inner values, as in 2GiB.")
@click.option("-o", "html", metavar="FILE|-", help="Write the page (HTML).")
@click.option("--json", "json_", metavar="FILE|-", help="Write the result as JSON; - is stdout.")
@click.option("--markdown", metavar="FILE|-", help="Write a review comment.")
@click.option("--junit", metavar="FILE|-", help="Write JUnit XML.")
@click.option(
    "--latency/--no-latency", default=None, help="Time whole runs (default: where something is written)."
)
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict alone.")
@click.option("-v", "--verbose", is_flag=True, help="Print the layers that agree too.")
def command(**options: Any) -> int:
    """Compare two models, or one model on two runners, layer by layer.

    Exit codes: 0 agrees, 1 differs, 2 usage, 3 model or input invalid, 4 a runner failed, 5 nothing was
    compared.

    \b
      graphdoc compare m.onnx                        ONNX Runtime against the engine
      graphdoc compare m.onnx fixed.onnx --test ort  two models on ONNX Runtime
      graphdoc compare m.onnx --inputs x.npz -o report.html
    """
    from graphdoc.api import compare_models
    from graphdoc.compare.memory import bounded_memory, keep_freed_memory, parse_size
    from graphdoc.config import all_rules

    rules = all_rules(options["tolerances"])
    keep_freed_memory()
    targets = {flag: options[name] for name, (flag, _, _) in _FORMS.items()}
    check_targets(targets, reads=(options["ref"], options["test"], options["inputs"]))
    bound = bounded_memory((options["ref_runner"], options["test_runner"]))
    with bound, progress_bar("taps", "layers") as progress:
        result = compare_models(
            options["ref"],
            options["test"],
            inputs=options["inputs"],
            ref=options["ref_runner"],
            test_runner=options["test_runner"],
            taps=options["taps"],
            rtol=options["rtol"],
            atol=options["atol"],
            tolerances=rules,
            shapes=options["shapes"],
            seed=options["seed"],
            truth=options["truth"],
            noise=options["noise"],
            rank=options["rank"],
            passes=options["passes"],
            threads=options["threads"],
            memory=parse_size(options["memory"]),
            latency=any(targets.values()) if options["latency"] is None else options["latency"],
            pictures=bool(options["html"] or options["json_"]),
            progress=progress,
        )
    write(result, options)
    return int(result.verdict.exit_code)


def write(result: Any, options: dict[str, Any]) -> None:
    """Print the terminal's form unless stdout is taken, then write every form that was asked for.

    The verdict comes first, so that it is seen even if a file cannot be written after all.
    """
    from graphdoc.reports.text import comparison_lines

    if not any(options[name] == STDOUT for name in _FORMS):
        settings = print_settings(options["color"])
        text = comparison_lines(result, verbose=options["verbose"], quiet=options["quiet"], **settings)
        click.echo(text, nl=False)
    for name, (_, module, function) in _FORMS.items():
        if options[name]:
            render = getattr(import_module(f"graphdoc.reports.{module}"), function)
            write_or_print(render(result), options[name])
