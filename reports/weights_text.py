"""What ``graphdoc weights`` prints: statistics, what was pruned, stripped, put back or shared."""

import dataclasses
import json
from collections.abc import Sequence

from graphdoc.reports import words
from graphdoc.reports.inspect_text import table
from graphdoc.reports.text import Style
from graphdoc.surgeon.prune import PruneReport
from graphdoc.surgeon.stripping import Stub
from graphdoc.surgeon.weight_stats import SCHEMA, Shared, WeightStats

SHOWN = 12
"""Rows of a table, unless all are asked for."""


def style_of(*, width: int = 80, color: bool, pipe: bool, unicode: bool = True) -> Style:
    """Return how lines are set."""
    return Style(max(width, 40), color, pipe, unicode)


def stats_lines(name: str, rows: Sequence[WeightStats], style: Style) -> str:
    """Return one row per weight and what stands out, ending in a newline."""
    total = sum(row.bytes for row in rows)
    twice = [row for row in rows if row.equals]
    wasted = sum(row.bytes for row in twice)
    lines = [f"{style.plain(name)}   {words.group(len(rows))} constants, {words.size(total)}", ""]
    lines += table(
        ("weight", "dtype", "shape", "size", "min", "max", "mean", "std", "zeros", "int8", "remark"),
        [_stats_row(row) for row in rows],
        style,
        right=(3, 4, 5, 6, 7, 8, 9),
    )
    if twice:
        remark = f"{words.group(len(twice))} weights equal an earlier one ({words.size(wasted)})"
        lines += ["", f"{style.paint('▲', style.symbol('▲') + ' remark:')} {remark}: graphdoc weights dedup"]
    return "\n".join(lines) + "\n"


def _stats_row(row: WeightStats) -> tuple[str, ...]:
    numbers = (words.number(x) for x in (row.minimum, row.maximum, row.mean, row.std))
    remarks = [row.remark] if row.remark else []
    remarks += [f"{row.nan} NaN, {row.inf} Inf"] if row.nan or row.inf else []
    remarks += [f"{row.fp16_over} exceed fp16"] if row.fp16_over else []
    remarks += [f"{row.fp16_zero} become 0 in fp16"] if row.fp16_zero else []
    remarks += [f"equals {row.equals}"] if row.equals else []
    head = (row.name, row.dtype, words.shape(row.shape), words.size(row.bytes))
    return (*head, *numbers, words.percent(row.zeros), words.number(row.int8_error), "; ".join(remarks))


def stats_json(name: str, rows: Sequence[WeightStats]) -> str:
    """Return the statistics as JSON text, ending in a newline."""
    document = {"schema": SCHEMA, "name": name, "weights": [dataclasses.asdict(row) for row in rows]}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def prune_lines(report: PruneReport, style: Style, *, verbose: bool) -> str:
    """Return how much each layer lost, the most first, ending in a newline."""
    done, alone = report.pruned, [row for row in report.layers if row.reason]
    symbol, word = ("✓", "pruned") if done else ("–", "nothing pruned")
    mark = f"{style.symbol(symbol)} {word}"
    what = f"{words.group(len(done))} of {words.group(len(report.layers))} weights, 2:4"
    lines = [f"{style.paint(symbol, mark)}   {what}; {words.percent(report.lost)} of their norm is lost"]
    ranked = sorted(done, key=lambda row: -(row.lost or 0.0)) + alone
    rows = [
        (row.layer, row.weight, words.shape(row.shape), str(row.axis), words.percent(row.lost), row.reason)
        for row in (ranked if verbose else ranked[:SHOWN])
    ]
    if rows:
        lines += [
            "",
            *table(("layer", "weight", "shape", "axis", "lost", "left alone"), rows, style, right=(3, 4)),
        ]
    if len(ranked) > len(rows):
        lines.append(f"  … {words.group(len(ranked) - len(rows))} more: -v lists them")
    return "\n".join(lines) + "\n"


def stub_line(word: str, stubs: Sequence[Stub], style: Style, note: str) -> str:
    """Return how many weights were taken out or put back, ending in a newline."""
    total = sum(stub.bytes for stub in stubs)
    mark = style.paint("✓", f"{style.symbol('✓')} {word}")
    return f"{mark}   {words.group(len(stubs))} weights, {words.size(total)}; {note}\n"


def dedup_lines(shared: Sequence[Shared], style: Style, *, verbose: bool) -> str:
    """Return what is shared now, ending in a newline."""
    total = sum(row.bytes for row in shared)
    mark = style.paint("✓", f"{style.symbol('✓')} {'shared' if shared else 'nothing to share'}")
    lines = [f"{mark}   {words.group(len(shared))} weights, {words.size(total)} less"]
    rows = [(row.name, row.kept, words.size(row.bytes)) for row in (shared if verbose else shared[:SHOWN])]
    if rows:
        lines += ["", *table(("weight", "now reads", "size"), rows, style, right=(2,))]
    if len(shared) > len(rows):
        lines.append(f"  … {words.group(len(shared) - len(rows))} more: -v lists them")
    return "\n".join(lines) + "\n"
