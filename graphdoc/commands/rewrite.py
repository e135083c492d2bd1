"""``graphdoc rewrite``."""

from typing import Any

import click

from graphdoc.commands.common import busy, ops_option
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_model_target, check_targets


@click.command("rewrite")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", metavar="OUT", required=True, help="Where the result goes.")
@click.option(
    "--rules",
    multiple=True,
    required=True,
    metavar="FILE|NAME",
    help="A Python file of rules, or a rule or group that comes along. Repeatable.",
)
@click.option("--keep", multiple=True, metavar="GLOB", help="Nodes and values that must survive.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Sizes to verify with.")
@click.option("--no-verify", is_flag=True, help="Do not run original and result.")
@ops_option
@click.option("--explain", is_flag=True, help="List every edit, and where a rule almost matched and why not.")
@click.option("--json", "json_", metavar="FILE|-", help="Write the report as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
def command(**options: Any) -> int:
    """Apply rewrite rules of your own to a model.

    Original and result are run on inputs of many kinds; a rule that changes an output is dropped and named.
    The rules of group "assemble" put standard operators together from the pieces that exporters write.

    Exit codes: 0 written and verified, 1 a rule was dropped, or the outputs differ and nothing was written,
    2 the rules cannot be used, 3 the model cannot be read.

    \b
      graphdoc rewrite m.onnx -o out.onnx --rules my_rules.py --explain
      graphdoc rewrite m.onnx -o out.onnx --rules assemble
    """
    from graphdoc.compare.inputs import parse_shapes
    from graphdoc.reports.rewrite_text import rewrite_json, rewrite_lines
    from graphdoc.rewriting import rewrite_model
    from graphdoc.surgeon.model import save

    check_model_target(options["output"])
    targets = {"-o": options["output"], "--json": options["json_"]}
    check_targets(targets, reads=(options["model"], *options["rules"]))
    with busy("rewrite"):
        result = rewrite_model(
            options["model"],
            options["rules"],
            verify=not options["no_verify"],
            keep=options["keep"],
            shapes=parse_shapes(options["shapes"]) if options["shapes"] else None,
        )
    if not result.report.differs:
        save(result.model, options["output"])
    if options["json_"]:
        write_or_print(rewrite_json(result.report), options["json_"])
    if options["json_"] != "-":
        settings = print_settings(options["color"])
        click.echo(rewrite_lines(result.report, explain=options["explain"], **settings), nl=False)
    return 0 if result else 1
