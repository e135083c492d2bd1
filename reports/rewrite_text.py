"""The report of a rewrite → what the terminal or a pipe shows, and JSON."""

import json
from collections import Counter
from collections.abc import Iterator

from graphdoc.reports import words
from graphdoc.reports.text import Style
from graphdoc.surgeon.simplified import Done, Report

SCHEMA = "graphdoc.rewrite/1"


def rewrite_lines(
    report: Report, *, width: int = 80, color: bool, pipe: bool, unicode: bool = True, explain: bool = False
) -> str:
    """Return the printed form of a report, ending in a newline.

    explain: list every edit and every place where a rule almost matched.
    """
    style = Style(max(width, 40), color, pipe, unicode)
    rows = [
        _verdict(report, style),
        *_counts(report, style),
        *_dropped(report, style),
        *_check(report, style),
    ]
    if explain:
        rows += [*_edits(report, style), *_misses(report, style)]
    elif report.kept:
        count = len(report.kept)
        rows.append(
            f"  almost matched at {words.group(count)} place{'s' * (count != 1)}: --explain lists them"
        )
    return "\n".join(rows) + "\n"


def rewrite_json(report: Report) -> str:
    """Return a report as JSON text, ending in a newline."""
    document = {**report.to_dict(), "schema": SCHEMA, "rules": dict(_counted(report))}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _verdict(report: Report, style: Style) -> str:
    nodes = f"{words.group(report.nodes_before)} → {words.group(report.nodes_after)} nodes"
    symbol, word, rest = "✓", "rewritten", nodes
    if report.differs:
        symbol, word, rest = "✗", "not written", "the outputs differ"
    elif report.dropped:
        symbol, word = "▲", f"rewritten, {len(report.dropped)} dropped"
    elif report.unproven and _made(report):
        symbol, word = "▲", "rewritten, not verified"
    elif not _made(report):
        symbol, word, rest = "–", "unchanged", "no rule matched"
    mark = style.plain(f"{style.symbol(symbol)} {word}")
    return f"{style.paint(symbol, mark)}   {style.plain(rest)}"


def _made(report: Report) -> list[Done]:
    """Return the edits of the rules; tidying up behind them is not worth a line."""
    return [edit for edit in report.done if edit.group != "clean"]


def _counted(report: Report) -> list[tuple[str, int]]:
    """Return the number of edits of each rule, the busiest first."""
    return Counter(edit.rule for edit in _made(report)).most_common()


def _counts(report: Report, style: Style) -> Iterator[str]:
    for rule, count in _counted(report):
        yield style.plain(f"  {words.group(count):>4} × {rule}")


def _dropped(report: Report, style: Style) -> Iterator[str]:
    for item in report.dropped:
        yield from _set(f"dropped  {item.rule} at {item.node}: {item.why}", style)


def _check(report: Report, style: Style) -> Iterator[str]:
    checked = report.verification
    if checked is not None:
        yield from _set(checked.summary(), style)
        for what, why, important in words.left_out(checked):
            mark = f"{style.symbol('▲')} " if important else ""
            yield from _set(f"{mark}not run  {what}: {why}", style)
        for remark in checked.remarks:
            yield from _set(f"remark   {remark}", style)
    elif _made(report):
        yield "  not verified: --no-verify"


def _edits(report: Report, style: Style) -> Iterator[str]:
    for item in _made(report):
        yield from _set(f"edit     {item.rule} at {item.node}: {item.text}", style)


def _misses(report: Report, style: Style) -> Iterator[str]:
    for item in report.kept:
        yield from _set(f"miss     {item.rule} at {item.node}: {item.reason}", style)


def _set(text: str, style: Style) -> Iterator[str]:
    first, *more = style.wrap(text, 2)
    yield f"  {first}"
    yield from (f"    {line}" for line in more)
