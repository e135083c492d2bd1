"""``graphdoc diff``."""

from typing import Any

import click

from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_targets


@click.command("diff")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("-o", "html", metavar="FILE|-", help="Write the page (HTML).")
@click.option("--json", "json_", metavar="FILE|-", help="Write all changes as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every change.")
def command(**options: Any) -> int:
    """Show what changed from model A to model B, without running them.

    Nodes are paired by structure and weights: names inside may differ, nodes may be fused, casts and
    quantisation inserted, constants folded.

    Exit codes: 0 the same (names of inner values aside), 1 they differ, 3 a model cannot be read.

    \b
      graphdoc diff before.onnx after.onnx
      graphdoc diff before.onnx after.onnx -o diff.html --json diff.json
    """
    from graphdoc.reports.diff_html import render_html
    from graphdoc.reports.diff_text import diff_json, diff_lines
    from graphdoc.surgeon.diff import diff_models

    check_targets({"-o": options["html"], "--json": options["json_"]}, reads=(options["a"], options["b"]))
    diff = diff_models(options["a"], options["b"])
    if STDOUT not in (options["html"], options["json_"]):
        click.echo(diff_lines(diff, verbose=options["verbose"], **print_settings(options["color"])), nl=False)
    if options["html"]:
        write_or_print(render_html(diff), options["html"])
    if options["json_"]:
        write_or_print(diff_json(diff), options["json_"])
    return 0 if diff else 1
