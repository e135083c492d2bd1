"""The report of a simplification → what the terminal or a pipe shows, and JSON."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from graphdoc.reports import words
from graphdoc.reports.text import Style
from graphdoc.surgeon.simplified import Kept, Report
from graphdoc.surgeon.verification import Verification

LISTED = 3
"""Kinds of constants left alone that are shown without ``--explain``."""


def simplify_lines(
    report: Report,
    *,
    sizes: tuple[int | None, int | None],
    seconds: float,
    again: str,
    width: int = 80,
    color: bool = False,
    pipe: bool = False,
    unicode: bool = True,
    explain: bool = False,
) -> str:
    """Return the printed form of a report, ending in a newline.

    sizes: bytes of the file before and after. again: the command to repeat it with.
    explain: list every edit and every place where a rule almost matched.
    """
    style = Style(max(width, 40), color, pipe, unicode)
    rows = [_verdict(report, sizes, seconds, style), "", *_counts(report, style), *_refused(report, style)]
    rows += [*_kept(report, style)] if not explain else []
    rows += [*_check(report, style)]
    if explain:
        rows += [*_edits(report, style), *_misses(report, style)]
    elif report.dropped or report.kept:
        rows += [style.plain("next"), f"  {again} --explain"]
    return "\n".join(rows) + "\n"


def simplify_json(report: Report, sizes: tuple[int | None, int | None]) -> str:
    """Return a report as JSON text, ending in a newline."""
    document: dict[str, Any] = {**report.to_dict(), "bytes": list(sizes), "rules": report.by_rule()}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _verdict(report: Report, sizes: tuple[int | None, int | None], seconds: float, style: Style) -> str:
    nodes = f"{words.group(report.nodes_before)} → {words.group(report.nodes_after)} nodes"
    before, after = (words.size(size) for size in sizes)
    rest = f"{nodes}, {before} → {after}, {words.seconds(seconds)}"
    symbol, word = "✓", "simplified"
    if report.differs:
        symbol, word, rest = "✗", "not written", f"the outputs differ, {words.seconds(seconds)}"
    elif report.dropped:
        count = len(report.dropped)
        number = "one pass" if count == 1 else f"{words.group(count)} passes"
        symbol, word = "▲", f"simplified, {number} refused"
    elif report.unproven:
        symbol, word = "▲", "simplified, not verified"
    elif not report.changed:
        symbol, word = "✓", "nothing to simplify"
    mark = style.plain(f"{style.symbol(symbol)} {word}")
    return f"{style.paint(symbol, mark)}   {style.plain(rest)}"


def _counts(report: Report, style: Style) -> Iterator[str]:
    counts = report.removed_by()
    parts = [f"{name} {words.group(count)}" for name, count in counts.items()]
    if report.constants_before != report.constants_after:
        before, after = words.group(report.constants_before), words.group(report.constants_after)
        parts.append(f"constants {before} → {after}")
    yield style.plain("  " + "  ".join(parts))


def _refused(report: Report, style: Style) -> Iterator[str]:
    for item in report.dropped:
        yield from _set(f"refused  {item.rule} at {item.node}: {item.why}", style)


def _kept(report: Report, style: Style) -> Iterator[str]:
    """Yield what folding left alone, alike ones together."""
    folds = [item for item in report.kept if item.rule == "fold-constants"]
    kinds = Counter((item.op, _reason(item)) for item in folds)
    for (op, reason), count in kinds.most_common(LISTED):
        yield from _set(f"kept     {words.group(count)} {op} node{'s' * (count != 1)}: {reason}", style)


def _reason(item: Kept) -> str:
    return item.reason


def _check(report: Report, style: Style) -> Iterator[str]:
    checked = report.verification
    if checked is None:
        yield "  not checked: nothing was changed" if not report.changed else "  not checked: --no-verify"
        return
    without = "without that pass, " if report.dropped else ""
    yield from _set(f"checked: {without}{_outcome(checked)}", style)
    for what, why, important in words.left_out(checked):
        mark = f"{style.symbol('▲')} " if important else ""
        yield from _set(f"{mark}not run: {what}: {why}", style)
    for remark in checked.remarks:
        yield from _set(f"remark: {remark}", style)


def _outcome(checked: Verification) -> str:
    if not checked.verified:
        return checked.summary()
    worst = checked.worst
    kinds = len({run.inputs for run in checked.runs})
    runners = " and ".join(dict.fromkeys(run.runner for run in checked.runs))
    if worst is None or worst.error == 0:
        how = "outputs equal bit for bit"
    else:
        how = f"outputs agree (error {words.number(worst.error)}, limit {words.number(worst.limit)})"
    return f"{how} on {words.group(kinds)} kind{'s' * (kinds != 1)} of inputs, through {runners}"


def _edits(report: Report, style: Style) -> Iterator[str]:
    for item in report.done:
        place = f" at {item.node}" if item.node else ""
        yield from _set(f"edit     {item.rule}{place}: {item.text}", style)


def _misses(report: Report, style: Style) -> Iterator[str]:
    for item in report.kept:
        word = "kept  " if item.rule == "fold-constants" else "miss  "
        yield from _set(f"{word}   {item.rule} at {item.node}: {item.op}, {item.reason}", style)


def _set(text: str, style: Style) -> Iterator[str]:
    first, *more = style.wrap(text, 2)
    yield f"  {first}"
    yield from (f"    {line}" for line in more)
