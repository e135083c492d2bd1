"""``graphdoc compare``."""

import shlex
import shutil
import sys
from typing import Any

import click

from graphdoc.commands.common import color_wanted, input_options, progress_bar, unicode_wanted

_FORMS = {"html": "save_html", "json": "save_json", "markdown": "save_markdown", "junit": "save_junit"}


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
    help="Runs TEST (or REF again), side B: ort, engine, reference, truth.",
)
@click.option(
    "--taps",
    multiple=True,
    default=("all",),
    metavar="all|outputs|GLOB",
    help="Values to compare: all, outputs, or globs over names of values and nodes; repeatable.",
)
@input_options
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance, element by element.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance, element by element.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="Threads of ONNX Runtime.")
@click.option("--memory", metavar="SIZE", help="Memory for inner values, as in 2GiB.")
@click.option("-o", "html", metavar="FILE", help="Write the page (HTML).")
@click.option("--json", "json_", metavar="FILE|-", help="Write the result as JSON; - is stdout.")
@click.option("--markdown", metavar="FILE|-", help="Write a review comment.")
@click.option("--junit", metavar="FILE", help="Write JUnit XML.")
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
    from graphdoc.compare.memory import parse_size

    with progress_bar("taps", "layers") as progress:
        result = compare_models(
            options["ref"],
            options["test"],
            inputs=options["inputs"],
            ref_runner=options["ref_runner"],
            test_runner=options["test_runner"],
            taps=options["taps"],
            rtol=options["rtol"],
            atol=options["atol"],
            shapes=options["shapes"],
            seed=options["seed"],
            threads=options["threads"],
            memory=parse_size(options["memory"]),
            command=command_line(options),
            progress=progress,
        )
    write(result, options)
    return int(result.verdict.exit_code)


def command_line(options: dict[str, Any]) -> str:
    """Return what to type to repeat the comparison, output options left out."""
    words = ["graphdoc", "compare", options["ref"], *([options["test"]] if options["test"] else [])]
    pairs: list[tuple[str, Any]] = [
        ("--ref", options["ref_runner"] if options["ref_runner"] != "ort" else None),
        ("--test", options["test_runner"] if options["test_runner"] != "engine" else None),
        *(("--taps", tap) for tap in options["taps"] if options["taps"] != ("all",)),
        ("--inputs", options["inputs"]),
        *(("--shape", shape) for shape in options["shapes"]),
        ("--seed", options["seed"] or None),
        ("--rtol", options["rtol"]),
        ("--atol", options["atol"]),
    ]
    words += [word for name, value in pairs if value is not None for word in (name, str(value))]
    return shlex.join(words)


def write(result: Any, options: dict[str, Any]) -> None:
    """Write every form that was asked for, then the terminal's form unless stdout is taken."""
    from graphdoc.reports.text import comparison_lines

    to_stdout = {"json_": result.to_json, "markdown": result.to_markdown}
    taken = [name for name in to_stdout if options[name] == "-"]
    for name in taken:
        click.echo(to_stdout[name]().rstrip("\n"))
    for name, method in (("html", "html"), ("json_", "json"), ("markdown", "markdown"), ("junit", "junit")):
        if options[name] and name not in taken:
            getattr(result, _FORMS[method])(options[name])
    if not taken:
        pipe = not sys.stdout.isatty()
        text = comparison_lines(
            result,
            width=shutil.get_terminal_size().columns,
            color=color_wanted(options["color"]),
            pipe=pipe,
            verbose=options["verbose"],
            quiet=options["quiet"],
            unicode=unicode_wanted(),
        )
        click.echo(text.rstrip("\n"))
