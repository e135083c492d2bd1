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
@click.option("--json", "json_", metavar="FILE|-", help="Write what was asked for as JSON.")
@click.option("--color/--no-color", default=None, help="Colour the output.")
def command(**options: Any) -> int:
    """Show what is in a model, without running it.

    \b
      graphdoc inspect m.onnx
      graphdoc inspect m.onnx --layers --json layers.json
    """
    from graphdoc.reports.inspect_text import inspect_json, inspect_lines
    from graphdoc.surgeon.inspect import inspect_model

    check_targets({"--json": options["json_"]}, reads=(options["model"],))
    summary = inspect_model(
        options["model"], layers=options["layers"], weights=options["weights"], operators=options["ops"]
    )
    if options["json_"]:
        write_or_print(inspect_json(summary), options["json_"])
    if options["json_"] != "-":
        click.echo(inspect_lines(summary, **print_settings(options["color"])), nl=False)
    return 0
