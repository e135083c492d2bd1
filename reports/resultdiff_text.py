"""ResultDiff → what the terminal or a pipe shows, JSON, and a review comment."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from graphdoc.compare.result import Layer
from graphdoc.reports import resultdiff_words, words
from graphdoc.reports.inspect_text import table
from graphdoc.reports.jsonform import plain
from graphdoc.reports.markdown import code, prose
from graphdoc.reports.resultdiff import FACTOR, FLOOR, LayerChange, ResultDiff
from graphdoc.reports.text import Style

SCHEMA = "graphdoc.resultdiff/1"
MARKER = "<!-- graphdoc:report-diff -->"
"""First line of every comment: the way to find it again and edit it in place."""

SETTINGS, WORSE, BETTER = 3, 4, 2
"""Rows of each part, unless all are asked for: the answer fits on a screen."""

_IN_COMMENT = 5


def result_diff_lines(
    diff: ResultDiff,
    *,
    width: int = 80,
    color: bool,
    pipe: bool,
    unicode: bool = True,
    verbose: bool = False,
) -> str:
    """Return the printed form of a difference, ending in a newline. verbose: list every layer."""
    style = Style(max(width, 40), color, pipe, unicode)
    tables = [
        ("worse", [resultdiff_words.change_cells(x) for x in diff.worse], WORSE),
        ("better", [resultdiff_words.change_cells(x) for x in diff.better], BETTER),
        ("no longer compared", [resultdiff_words.layer_cells(x) for x in diff.lost], 0),
        ("compared only now", [resultdiff_words.layer_cells(x) for x in diff.found], 0),
    ]
    blocks = [
        style.headline(*resultdiff_words.verdict(diff), resultdiff_words.sentence(diff)),
        _facts(diff, style, verbose=verbose),
    ]
    blocks += [_layers(title, rows, len(rows) if verbose else most, style) for title, rows, most in tables]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _facts(diff: ResultDiff, style: Style, *, verbose: bool) -> list[str]:
    settings = [resultdiff_words.setting(item) for item in resultdiff_words.ordered_settings(diff)]
    shown = settings if verbose else settings[:SETTINGS]
    if len(settings) > len(shown):
        shown.append(("more", f"{len(settings) - len(shown)} settings changed besides: -v lists them"))
    rows = [
        (style.plain(label), style.plain(text)) for label, text in [*shown, *resultdiff_words.facts(diff)]
    ]
    column = max(words.cells(label) for label, _ in rows)
    lines = (f"  {label:<{column}}  {text}" for label, text in rows)
    return [style.short(line, style.width) if style.shortens else line for line in lines]


def _layers(title: str, rows: Sequence[Sequence[str]], most: int, style: Style) -> list[str]:
    if not rows or not most:
        return []
    titles = ("#", "op", title, resultdiff_words.TITLES[3])
    lines = table(titles, rows[:most], style, right=(0,), name=2)
    if style.shortens:
        lines = [style.short(line, style.width) for line in lines]
    if len(rows) > most:
        lines.append(f"  {style.plain('…')} {words.group(len(rows) - most)} more: -v lists them")
    return lines


# JSON


def result_diff_json(diff: ResultDiff) -> str:
    """Return a difference as JSON text, ending in a newline; numbers that are not finite are texts."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "worse": not diff,
        "better": diff.improved,
        "before": _side(diff, "before"),
        "after": _side(diff, "after"),
        "rule": {"factor": FACTOR, "floor": FLOOR},
        "settings": plain(diff.settings),
        "pairing": diff.pairing,
        "counts": {"paired": diff.paired, "steady": diff.steady}
        | {key: len(getattr(diff, key)) for key in ("worse", "better", "lost", "found")},
        "latency": [
            {**plain(x), "direction": str(x.direction), "ratio": plain(x.ratio)} for x in diff.latency
        ],
        "worse_layers": [_change(x) for x in diff.worse],
        "better_layers": [_change(x) for x in diff.better],
        "lost": [_layer(x) for x in diff.lost],
        "found": [_layer(x) for x in diff.found],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _side(diff: ResultDiff, label: str) -> dict[str, Any]:
    result = getattr(diff, label)
    first = result.first_divergence
    return {
        "file": getattr(diff, f"{label}_name"),
        "verdict": plain(result.verdict.word),
        "exit_code": result.verdict.exit_code,
        "first_divergence": _layer(first) if first else None,
    }


def _layer(layer: Layer) -> dict[str, Any]:
    names = ("index", "value", "node", "op", "is_output", "status", "error", "own_error")
    row = {name: plain(getattr(layer, name)) for name in names}
    limits = {"tolerance": layer.limit, "own_tolerance": layer.own_limit}
    return row | {key: plain(limit.value) if limit else None for key, limit in limits.items()}


def _change(change: LayerChange) -> dict[str, Any]:
    return {
        "value": change.after.value,
        "what": list(change.what),
        "severity": change.severity,
        "before": _layer(change.before),
        "after": _layer(change.after),
    }


# Markdown


def result_diff_markdown(diff: ResultDiff) -> str:
    """Return a difference as a review comment: verdict, what is not the same, at most ten layers."""
    symbol, word = resultdiff_words.verdict(diff)
    rows = [resultdiff_words.setting(item) for item in resultdiff_words.ordered_settings(diff)[:8]]
    facts = [*rows, *resultdiff_words.facts(diff)]
    blocks = [
        f"{MARKER}\n### {symbol} graphdoc: {code(_model(diff))} {word}",
        prose(resultdiff_words.sentence(diff)),
        "\n".join(f"- **{prose(label)}** {prose(text)}" for label, text in facts),
        "\n".join(_comment_table("worse", diff.worse)),
        "\n".join(_comment_table("better", diff.better)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _model(diff: ResultDiff) -> str:
    return diff.after.b.model.replace("\\", "/").rpartition("/")[2].removesuffix(".onnx")


def _comment_table(title: str, changes: Sequence[LayerChange]) -> Iterator[str]:
    if not changes:
        return
    yield f"| # | op | {title} | what |"
    yield "|--:|----|-------|------|"
    for change in changes[:_IN_COMMENT]:
        index, op, name, what = resultdiff_words.change_cells(change)
        cells = (index, prose(op, table=True), code(name, table=True), prose(what, table=True))
        yield f"| {' | '.join(cells)} |"
    if len(changes) > _IN_COMMENT:
        yield f"| | | … {words.group(len(changes) - _IN_COMMENT)} more | |"
