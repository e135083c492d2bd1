"""``graphdoc report``."""

from typing import TYPE_CHECKING, Any

import click

from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import STDOUT, check_targets

if TYPE_CHECKING:
    from graphdoc.compare.result import Comparison


@click.group("report")
def command() -> None:
    """Work with results that ``graphdoc compare --json`` wrote.

    \b
      graphdoc report diff before.json after.json
      graphdoc report diff before.json after.json -o diff.html --markdown comment.md
    """


@command.command("diff")
@click.argument("a", metavar="BEFORE.json", type=click.Path())
@click.argument("b", metavar="AFTER.json", type=click.Path())
@click.option("-o", "html", metavar="FILE|-", help="Write the page (HTML).")
@click.option("--json", "json_", metavar="FILE|-", help="Write all changes as JSON; - is stdout.")
@click.option("--markdown", metavar="FILE|-", help="Write a review comment.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every layer and setting that changed.")
def diff(**options: Any) -> int:
    """Show what got better and what got worse from one result to another, layer by layer.

    A layer counts where it stopped or started to agree, where an error crossed its limit, or where an error
    changed by a factor of 2 and is beyond a quarter of its limit. B's latency counts where the spreads of
    the runs lie apart. Models, inputs, runners and machine that are not the same are named first.

    Exit codes: 0 nothing got worse, 1 something did, 3 a file is no such result, 5 no layer is in
    both.
    """
    from graphdoc.engine.errors import NothingComparedError
    from graphdoc.reports.resultdiff import diff_results
    from graphdoc.reports.resultdiff_html import render_html
    from graphdoc.reports.resultdiff_text import result_diff_json, result_diff_lines, result_diff_markdown

    targets = {"-o": options["html"], "--json": options["json_"], "--markdown": options["markdown"]}
    check_targets(targets, reads=(options["a"], options["b"]))
    result = diff_results(read(options["a"]), read(options["b"]), options["a"], options["b"])
    if result and not result.paired:
        raise NothingComparedError(
            "nothing to hold against each other: no layer is in both results",
            where=f"{options['a']}, {options['b']}",
            next_step="compare with the same --taps, or models whose values have the same names",
        )
    if STDOUT not in targets.values():
        settings = print_settings(options["color"])
        click.echo(result_diff_lines(result, verbose=options["verbose"], **settings), nl=False)
    for target, render in zip(
        targets.values(), (render_html, result_diff_json, result_diff_markdown), strict=True
    ):
        if target:
            write_or_print(render(result), target)
    return 0 if result else 1


def read(path: str) -> "Comparison":
    """Return the comparison of a file. Raises InputError that names it, OSError."""
    from pathlib import Path

    from graphdoc.engine.errors import InputError
    from graphdoc.reports.jsonform import from_json

    data = Path(path).read_bytes()
    try:
        return from_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        cause = "not a comparison in JSON: the file is not UTF-8 text"
        step = "write the file again:  graphdoc compare REF TEST --json FILE"
        raise InputError(cause, where=f"{path}, byte {error.start}", next_step=step) from error
    except InputError as error:
        error.where = path if error.where in (None, "the file") else f"{path}: {error.where}"
        raise
