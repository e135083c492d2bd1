"""``graphdoc lint``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from graphdoc.commands.common import ops_option
from graphdoc.commands.printed import print_settings, write_or_print
from graphdoc.commands.targets import check_model_target, check_targets
from graphdoc.engine.errors import UsageError

_DECLARED = frozenset({"negative-dim", "shape-contradicts", "type-contradicts"})
"""Rules whose mends change what the model declares of its inputs and outputs."""


@click.command("lint")
@click.argument("model", type=click.Path())
@click.option("--fix", is_flag=True, help="Mend what can be mended without changing results; needs -o.")
@click.option("-o", "out", metavar="OUT", help="The mended model.")
@ops_option
@click.option("--no-verify", is_flag=True, help="Do not run the mended model against the original.")
@click.option("--json", "json_", metavar="FILE|-", help="Write all findings as JSON; - is stdout.")
@click.option("--color/--no-color", default=None, help="Colour (default: on a terminal).")
@click.option("-v", "--verbose", is_flag=True, help="List every finding, not only the first of each rule.")
def command(**options: Any) -> int:
    """Find faults in a model without running it, and mend those that need no decision.

    With --fix the model is mended, linted again and run against the original; findings are those that are
    left. A mended model whose outputs differ is not written.

    Exit codes: 0 no errors (warnings and remarks may be), 1 errors, 3 the model cannot be read.

    \b
      graphdoc lint m.onnx
      graphdoc lint m.onnx --fix -o mended.onnx
      graphdoc lint m.onnx --json findings.json
    """
    from graphdoc.reports.lint_text import lint_json, lint_lines, mended_lines
    from graphdoc.surgeon.lint import lint_model

    if options["fix"] != bool(options["out"]):
        raise UsageError(
            "--fix and -o go together",
            where="graphdoc lint",
            next_step=f"graphdoc lint {options['model']} --fix -o mended.onnx",
        )
    check_model_target(options["out"])
    check_targets({"--json": options["json_"], "-o": options["out"]}, reads=(options["model"],))
    settings = print_settings(options["color"])
    written, text = True, ""
    if options["fix"]:
        found, verification, written = mend(options["model"], options["out"], verify=not options["no_verify"])
        report = replace(found.after, name=Path(options["out"]).name) if written else found.before
        text = mended_lines(found, verification, written=written, **settings)
    else:
        report = lint_model(options["model"])
    if options["json_"]:
        write_or_print(lint_json(report), options["json_"])
    if options["json_"] != "-":
        click.echo(text + lint_lines(report, verbose=options["verbose"], **settings), nl=False)
    return 0 if report and written else 1


def mend(model: str, out: str, *, verify: bool) -> tuple[Any, Any, bool]:
    """Mend a model and write it if its outputs are the same.

    Returns what was done, how the outputs compare (None: nothing was run), and whether it was written.
    """
    from graphdoc.compare.verify import verify as hold_against
    from graphdoc.surgeon.lint_mend import fix_model
    from graphdoc.surgeon.model import open_source, save

    source = open_source(model)
    found = fix_model(source)
    checked = hold_against(source, found.model) if verify and found.mended else None
    if checked is not None and not _DECLARED.isdisjoint(row.rule for row in found.mended):
        checked = replace(checked, interface=())  # other declarations are what was asked for
    written = checked is None or checked.agrees
    if written:
        save(found.model, out)
    return found, checked, written
