"""``graphdoc build``."""

import time
from pathlib import Path
from typing import Any

import click

from graphdoc.commands.common import THREADS, busy, ops_option, unicode_wanted
from graphdoc.commands.targets import STDOUT, check_targets


@click.command("build")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", metavar="OUT.plan", required=True, help="Where the plan goes.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Shape of an input.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME=1x3:4x3:8x3",
    help="Shapes of an input, a program for each; others between them are served too; repeatable.",
)
@click.option("--fixed", is_flag=True, help="Serve the shapes of the profiles alone, none between.")
@click.option("--threads", type=THREADS, default=0, help="Threads to run with (0: one per processor).")
@click.option("--portable", is_flag=True, help="Leave out machine code; it is made when the plan is loaded.")
@click.option("--refit", is_flag=True, help="Find out which weights can be exchanged later.")
@click.option("--no-simplify", is_flag=True, help="Take the graph as it is.")
@click.option("--timing-cache", metavar="FILE", help="Measure tactics; keep what was measured in this file.")
@ops_option
def command(**options: Any) -> int:
    """Build a plan: the model as programs and machine code, to be loaded in milliseconds.

    A plan is for given shapes: those of --shape, or of --profile, smallest to largest as in min:opt:max.
    There is a program for each choice. A shape between gets one at its first run, from the graph, which the
    plan then holds too; others are refused. A plan runs on any machine; where its machine code does not fit,
    the code is made anew at load. Load plans only from those whose programs you would run.

    \b
      graphdoc build m.onnx -o m.plan --shape x=1x3x224x224
      graphdoc build m.onnx -o m.plan --profile N=1:4:16
      graphdoc run m.plan
    """
    started = time.perf_counter()
    from graphdoc.engine.errors import UsageError
    from graphdoc.planning import build_plan
    from graphdoc.reports.files import whole_file

    if options["output"] == STDOUT:
        raise UsageError("a plan is written to a file, not to stdout", where="-o -", next_step="-o OUT.plan")
    targets = {"-o": options["output"], "--timing-cache": options["timing_cache"]}
    check_targets(targets, reads=(options["model"],))
    with busy("build"):
        plan = build_plan(
            options["model"],
            options["shapes"],
            options["profiles"],
            threads=options["threads"] or None,
            simplify=not options["no_simplify"],
            portable=options["portable"],
            refit=options["refit"],
            fixed=options["fixed"],
            timing_cache=options["timing_cache"],
        )
    with whole_file(options["output"]) as file:
        plan.write(file)
    _print(plan, options["output"], time.perf_counter() - started)
    return 0


def _print(plan: Any, path: str, seconds: float) -> None:
    from graphdoc.reports.plan_text import plan_data, plan_lines
    from graphdoc.reports.words import ascii_only

    lines = [
        *plan_lines(plan_data(plan), path, Path(path).stat().st_size, steps=False),
        f"       {seconds:.1f} s",
    ]
    for line in lines:
        click.echo(line if unicode_wanted() else ascii_only(line))
