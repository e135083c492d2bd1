"""``graphdoc lint``."""

from typing import Any

import click

from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_targets


@click.command("lint")
@click.argument("model", type=click.Path())
@click.option("--json", "json_", metavar="FILE|-", help="Write all findings as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every finding, not only the first of each rule.")
def command(**options: Any) -> int:
    """Find faults in a model without running it.

    Exit codes: 0 no errors (warnings and remarks may be), 1 errors, 3 the model cannot be read.

    \b
      graphdoc lint m.onnx
      graphdoc lint m.onnx --json findings.json
    """
    from graphdoc.reports.lint_text import lint_json, lint_lines
    from graphdoc.surgeon.lint import lint_model

    check_targets({"--json": options["json_"]}, reads=(options["model"],))
    report = lint_model(options["model"])
    if options["json_"]:
        write_or_print(lint_json(report), options["json_"])
    if options["json_"] != "-":
        settings = print_settings(options["color"])
        click.echo(lint_lines(report, verbose=options["verbose"], **settings), nl=False)
    return 0 if report else 1
