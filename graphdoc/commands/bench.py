"""``graphdoc bench``."""

from typing import Any

import click

from graphdoc.commands.common import THREADS, Finite, input_options, ops_option, progress_bar
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_targets

_SECONDS = Finite(min=0.05, max=3600)


@click.command("bench")
@click.argument("model", type=click.Path())
@click.option(
    "--runner",
    "runners",
    multiple=True,
    metavar="NAME",
    help="Runner to measure; repeatable, the first is what the others are held against.",
)
@input_options
@ops_option
@click.option("--threads", type=THREADS, default=0, help="Threads of each runner (0: its own choice).")
@click.option("--streams", type=click.IntRange(1, 64), default=1, help="Runs at the same time, for runs/s.")
@click.option("--warmup", type=_SECONDS, default=0.3, show_default=True, help="Seconds before measuring.")
@click.option("--duration", type=_SECONDS, default=2.0, show_default=True, help="Seconds per runner.")
@click.option("--profile", is_flag=True, help="Show the steps of runners that can tell them.")
@click.option("--json", "json_", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
@click.option("-o", "out", metavar="FILE.html", help="Write a page.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every step.")
def command(**options: Any) -> int:
    """Measure latency, throughput and memory of runners side by side.

    Runners take turns in short bursts, so that a busy machine slows all of them; the ratio comes with its
    95 % interval, and a difference is named only where the interval excludes 1.

    \b
      graphdoc bench m.onnx
      graphdoc bench m.onnx --runner ort --runner engine:1 --threads 2 --profile
    """
    from graphdoc.benching import bench
    from graphdoc.compare.latency import Plan
    from graphdoc.reports.bench_text import bench_json, bench_lines

    check_targets(
        {"--json": options["json_"], "-o": options["out"]}, reads=(options["model"], options["inputs"])
    )
    plan = Plan(
        options["warmup"],
        options["duration"],
        options["threads"],
        options["streams"],
        options["profile"],
        options["seed"],
    )
    with progress_bar("measure", "ms") as show:
        found = bench(
            options["model"], options["runners"], plan, options["inputs"], options["shapes"], show=show
        )
    if options["json_"]:
        write_or_print(bench_json(found), options["json_"])
    if options["out"]:
        from graphdoc.reports.bench_html import save_html

        save_html(found, options["out"])
    if options["json_"] != "-":
        click.echo(
            bench_lines(found, verbose=options["verbose"], **print_settings(options["color"])), nl=False
        )
    return 0
