"""``graphdoc simplify``."""

import shlex
import time
from typing import Any

import click

from graphdoc.commands.common import busy, ops_option
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_model_target, check_targets

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def byte_count(text: str) -> int:
    """Return a number of bytes: 4096, 1MiB, 20 kB. Raises click.BadParameter."""
    plain = text.strip().lower().removesuffix("b").strip()
    unit = plain.lstrip("0123456789.")
    number = plain[: len(plain) - len(unit)]
    try:
        return int(float(number) * _SIZES[unit.strip()])
    except (ValueError, KeyError, OverflowError) as error:
        raise click.BadParameter(f"'{text}' is no size; write 1MiB, 200kB or 4096") from error


@click.command("simplify")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", metavar="OUT", required=True, help="Where the result goes.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x224", help="Fix the size of an input.")
@click.option("--freeze", multiple=True, metavar="GLOB", help="Inputs with a default that become constants.")
@click.option("--keep", multiple=True, metavar="GLOB", help="Nodes and values that must survive.")
@click.option("--only", multiple=True, metavar="RULE", help="Apply this rule or group alone. Repeatable.")
@click.option("--skip", multiple=True, metavar="RULE", help="Leave a rule or group out. Repeatable.")
@click.option("--also", multiple=True, metavar="RULE", help="Apply a rule that does not run by default.")
@click.option("--max-growth", default="1MiB", metavar="SIZE", help="What folding may add (default: 1MiB).")
@click.option("--inline", is_flag=True, help="Replace calls of the model's functions by their bodies.")
@click.option("--to-opset", type=int, metavar="N", help="Convert to another opset first.")
@click.option("--no-verify", is_flag=True, help="Do not run original and result.")
@ops_option
@click.option("--explain", is_flag=True, help="List every edit, and what was left alone and why.")
@click.option("--json", "json_", metavar="FILE|-", help="Write the report as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
def command(**options: Any) -> int:
    """Make a model smaller without changing what it computes.

    Constants are folded, operators that do nothing go, scales and shifts move into weights. Original and
    result are run on inputs of many kinds; a rule that changes an output is dropped and named.

    Exit codes: 0 written and agrees, 1 a rule was dropped, or the outputs differ and nothing was written,
    2 an option makes no sense, 3 the model cannot be read.

    \b
      graphdoc simplify m.onnx -o out.onnx
      graphdoc simplify m.onnx -o out.onnx --shape x=1x3x224x224 --explain
    """
    started = time.perf_counter()
    from graphdoc.simplifying import simplify
    from graphdoc.surgeon.model import open_source, save

    growth = byte_count(options["max_growth"])
    check_model_target(options["output"])
    check_targets({"-o": options["output"], "--json": options["json_"]}, reads=(options["model"],))
    source = open_source(options["model"])
    before = source.size
    with busy("simplify"):
        result = simplify(
            source,
            only=options["only"],
            skip=options["skip"],
            request=options["also"],
            keep=options["keep"],
            max_growth=growth,
            shapes=options["shapes"],
            freeze=options["freeze"],
            to_opset=options["to_opset"],
            inline=options["inline"],
            verify=not options["no_verify"],
        )
    after = None
    if not result.report.differs:
        save(result.model, options["output"])
        after = open_source(options["output"]).size
    sizes = (before, after)
    _show(result.report, sizes, time.perf_counter() - started, options)
    return 0 if result else 1


def _show(report: Any, sizes: tuple[int, int | None], seconds: float, options: dict[str, Any]) -> None:
    from graphdoc.reports.simplify_text import simplify_json, simplify_lines

    if options["json_"]:
        write_or_print(simplify_json(report, sizes), options["json_"])
    if options["json_"] != "-":
        again = f"graphdoc simplify {shlex.quote(options['model'])} -o {shlex.quote(options['output'])}"
        settings = print_settings(options["color"])
        text = simplify_lines(
            report, sizes=sizes, seconds=seconds, again=again, explain=options["explain"], **settings
        )
        click.echo(text, nl=False)
