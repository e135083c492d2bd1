"""Sweep → what the terminal or a pipe shows, JSON, and a review comment."""

import dataclasses
import json

from graphdoc.reports import sweep as sweeps
from graphdoc.reports import words
from graphdoc.reports.inspect_text import table
from graphdoc.reports.jsonform import plain
from graphdoc.reports.markdown import code, prose
from graphdoc.reports.sweep import Sweep, SweepRow
from graphdoc.reports.text import Style

SCHEMA = "graphdoc.sweep/1"
MARKER = "<!-- graphdoc:sweep -->"
"""First line of every comment: the way to find it again and edit it in place."""

SHOWN = 18
"""Rows on a terminal, unless all are asked for."""

_IN_COMMENT = 20
_SHORTEST_NAME = 16


def sweep_lines(
    sweep: Sweep,
    *,
    width: int = 80,
    color: bool,
    pipe: bool,
    unicode: bool = True,
    verbose: bool = False,
    folder: str = "",
) -> str:
    """Return the printed form of a sweep, ending in a newline. verbose: list all cases. folder: its index."""
    style = Style(max(width, 40), color, pipe, unicode)
    symbol, word = sweeps.verdict(sweep)
    lines = [style.paint(symbol, f"{style.symbol(symbol)} {word}") + f"   {sweeps.counts(sweep)}", ""]
    shown = sweep.rows if verbose or pipe else sweep.rows[:SHOWN]
    lines += _table(shown, style)
    if len(shown) < len(sweep.rows):
        more = f"… {words.group(len(sweep.rows) - len(shown))} more: -v lists them"
        lines.append(f"  {style.plain(more)}")
    if folder:
        lines += ["", f"  {style.plain(folder)}"]
    return "\n".join(lines) + "\n"


def _table(rows: tuple[SweepRow, ...], style: Style) -> list[str]:
    narrow = style.shortens
    cells = [
        (
            f"{style.symbol(row.symbol)} {row.word}",
            style.short(row.name, max(_SHORTEST_NAME, style.width // 3)) if narrow else row.name,
            sweeps.what(row),
            words.times(row.worst),
            words.seconds(row.seconds),
        )
        for row in rows
    ]
    lines = table(("", "case", "what", "of limit", "took"), cells, style, right=(3, 4), name=2)
    return [style.short(line, style.width) for line in lines] if narrow else lines


def sweep_json(sweep: Sweep) -> str:
    """Return a sweep as JSON text, ending in a newline."""
    document = {
        "schema": SCHEMA,
        "agrees": bool(sweep),
        "exit_code": sweep.exit_code,
        "not_run": sweep.stopped,
        "cases": [plain(dataclasses.asdict(row)) for row in sweep.rows],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def sweep_markdown(sweep: Sweep) -> str:
    """Return a sweep as a review comment: the verdict, and the cases that did not agree."""
    symbol, word = sweeps.verdict(sweep)
    failing = [row for row in sweep.rows if row.exit_code]
    lines = [MARKER, f"### {symbol} graphdoc: {word}", "", prose(sweeps.counts(sweep))]
    if failing:
        lines += ["", "| | case | what | of limit |", "|---|------|------|---------:|"]
        lines += [_comment_row(row) for row in failing[:_IN_COMMENT]]
    if len(failing) > _IN_COMMENT:
        lines.append(f"| | … {words.group(len(failing) - _IN_COMMENT)} more | | |")
    return "\n".join(lines) + "\n"


def _comment_row(row: SweepRow) -> str:
    name, text = code(row.name, table=True), prose(sweeps.what(row), table=True)
    return f"| {row.symbol} {prose(row.word, table=True)} | {name} | {text} | {words.times(row.worst)} |"
