"""``graphdoc inspect``."""

from typing import Any

import click

from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_targets


@click.command("inspect")
@click.argument("model", type=click.Path())
@click.option("--layers", is_flag=True, help="List every layer, numbered as in a comparison.")
@click.option("--weights", is_flag=True, help="List every weight: size, range, zeros, what fp16 cannot hold.")
@click.option("--ops", is_flag=True, help="List the operators and who can run them.")
@click.option("--plan", is_flag=True, help="List the steps that level 1 makes of the nodes, and why.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="With --plan: shape of an input."
)
@click.option("--json", "json_", metavar="FILE|-", help="Write what was asked for as JSON.")
@click.option("--color/--no-color", default=None, help="Colour the output.")
def command(**options: Any) -> int:
    """Show what is in a model or a plan, without running it.

    \b
      graphdoc inspect m.onnx
      graphdoc inspect m.onnx --layers --json layers.json
      graphdoc inspect m.onnx --plan
      graphdoc inspect m.plan --layers
    """
    from graphdoc.engine.plan_file import is_plan
    from graphdoc.reports.inspect_text import inspect_json, inspect_lines
    from graphdoc.surgeon.inspect import inspect_model

    check_targets({"--json": options["json_"]}, reads=(options["model"],))
    if options["plan"] or is_plan(options["model"]):
        return _inspect_plan(options)
    summary = inspect_model(
        options["model"], layers=options["layers"], weights=options["weights"], operators=options["ops"]
    )
    if options["json_"]:
        write_or_print(inspect_json(summary), options["json_"])
    if options["json_"] != "-":
        click.echo(inspect_lines(summary, **print_settings(options["color"])), nl=False)
    return 0


def _inspect_plan(options: dict[str, Any]) -> int:
    """Show what is in a plan, or what level 1 makes of a model."""
    from pathlib import Path

    from graphdoc.commands.common import unicode_wanted
    from graphdoc.engine.plan import Plan
    from graphdoc.engine.plan_file import is_plan
    from graphdoc.planning import stage_of
    from graphdoc.reports import plan_text
    from graphdoc.reports.words import ascii_only

    path = Path(options["model"])
    if is_plan(path):
        data = plan_text.plan_data(Plan.load(path))
        lines = plan_text.plan_lines(data, path.name, path.stat().st_size, steps=options["layers"])
    else:
        data = plan_text.stage_data(stage_of(options["model"], options["shapes"]))
        lines = plan_text.stage_lines(data)
    if options["json_"]:
        write_or_print(plan_text.as_json(data), options["json_"])
    if options["json_"] != "-":
        for line in lines:
            click.echo(line if unicode_wanted() else ascii_only(line))
    return 0
