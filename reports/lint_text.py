"""LintReport → what the terminal or a pipe shows, and JSON."""

import dataclasses
import json
from collections.abc import Iterator

from graphdoc.reports import words
from graphdoc.reports.text import Style
from graphdoc.surgeon.lint import SCHEMA, Finding, LintReport, Severity
from graphdoc.surgeon.lint_mend import LintFix
from graphdoc.surgeon.verification import Verification

SHOWN = 4
"""Findings of one rule that are listed, unless all are asked for."""

_SYMBOLS = {Severity.ERROR: "✗", Severity.WARNING: "▲", Severity.REMARK: "▲"}


def lint_lines(
    report: LintReport,
    *,
    width: int = 80,
    color: bool,
    pipe: bool,
    unicode: bool = True,
    verbose: bool = False,
) -> str:
    """Return the printed form of a report, ending in a newline.

    verbose: list every finding; else the first four of each rule, and how many more there are.
    """
    style = Style(max(width, 40), color, pipe, unicode)
    blocks = [[_verdict(report, style)]]
    for findings in _by_rule(report.findings):
        blocks.append(_rule(findings, style, len(findings) if verbose else SHOWN))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def mended_lines(
    found: LintFix,
    verification: Verification | None,
    *,
    written: bool,
    width: int = 80,
    color: bool,
    pipe: bool,
    unicode: bool = True,
) -> str:
    """Return what was mended and how the outputs compare, ending in an empty line.

    verification: None when nothing was run. written: False when the outputs differ.
    """
    style = Style(max(width, 40), color, pipe, unicode)
    symbol, word = ("✓", "mended") if found.mended else ("–", "nothing to mend")
    if not written:
        symbol, word = "✗", "not written"
    mark = style.paint(symbol, f"{style.symbol(symbol)} {word}")
    total = len(found.before.findings)
    count = max(0, total - len(found.after.findings))
    lines = [f"{mark}   {words.group(count)} of {words.group(total)} findings are gone"]
    for rule, texts in _mends(found).items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        lines += _entry(rule, f"{texts[0]}{more}", style)
    if verification is not None:
        lines += _entry("checked", verification.summary(), style)
        lines += [
            line for text in verification.differences[:SHOWN] for line in _entry("differs", text, style)
        ]
    elif found.mended:
        lines += _entry("checked", "not run against the original", style)
    return "\n".join(lines) + "\n\n"


def _mends(found: LintFix) -> dict[str, list[str]]:
    """Return what was mended, by rule."""
    by_rule: dict[str, list[str]] = {}
    for mended in found.mended:
        by_rule.setdefault(mended.rule, []).append(mended.what)
    return by_rule


def lint_json(report: LintReport) -> str:
    """Return a report as JSON text, ending in a newline."""
    counts = {str(severity): report.count(severity) for severity in Severity}
    document = {"schema": SCHEMA, **dataclasses.asdict(report), "counts": counts}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _verdict(report: LintReport, style: Style) -> str:
    name = style.plain(report.name)
    if not report.findings:
        mark = f"{style.symbol('✓')} clean"
        return f"{style.paint('✓', mark)}   {report.rules} rules find no fault in {name}"
    found = [(severity, report.count(severity)) for severity in Severity]
    counts = ", ".join(f"{words.group(n)} {severity}{'s' * (n != 1)}" for severity, n in found if n)
    symbol, word = ("▲", "sound") if report else ("✗", "faulty")
    mark = f"{style.symbol(symbol)} {word}"
    return f"{style.paint(symbol, mark)}   {counts} in {name}"


def _by_rule(findings: tuple[Finding, ...]) -> Iterator[list[Finding]]:
    """Yield the findings of each rule and severity together, in order."""
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.severity), []).append(finding)
    yield from groups.values()


def _rule(findings: list[Finding], style: Style, shown: int) -> list[str]:
    first = findings[0]
    symbol = _SYMBOLS[first.severity]
    mark = f"{style.symbol(symbol)} {first.severity}"
    lines = [f"{style.paint(symbol, mark)}  {first.rule}"]
    for finding in findings[:shown]:
        where = style.plain(finding.where)
        where = style.short(where, style.width // 2) if style.shortens else where
        lines += _entry("", f"{where}  {finding.what}" if style.pipe else f"{where}: {finding.what}", style)
    if len(findings) > shown:
        lines.append(f"  … {words.group(len(findings) - shown)} more: -v lists them")
    lines += _entry("harm", first.harm, style)
    lines += _entry("mend", first.mend, style)
    return [style.plain(line) if not style.color else line for line in lines]


def _entry(label: str, text: str, style: Style) -> list[str]:
    lead = f"  {label}  " if label else "  "
    start, *rest = style.wrap(text, len(lead))
    return [lead + start, *(" " * len(lead) + line for line in rest)]
