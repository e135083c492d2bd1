"""ModelDiff → what the terminal or a pipe shows, and JSON."""

import dataclasses
import json
from typing import Any

from graphdoc.reports import diff_words, words
from graphdoc.reports.inspect_text import table
from graphdoc.reports.text import Style
from graphdoc.surgeon.diff import SCHEMA, ModelDiff

SHOWN = 6
"""Rows of a table, unless all are asked for: the answer fits on a screen."""

NODE_TITLES = ("node", "op", "name", "what")
WEIGHT_TITLES = ("weight", "name", "type", "change", "largest", "note")


def diff_lines(
    diff: ModelDiff,
    *,
    width: int = 80,
    color: bool,
    pipe: bool,
    unicode: bool = True,
    verbose: bool = False,
) -> str:
    """Return the printed form of a difference, ending in a newline. verbose: list every change."""
    style = Style(max(width, 40), color, pipe, unicode)
    blocks = [style.headline(*diff_words.verdict(diff), diff_words.sentence(diff))]
    blocks.append(_facts(diff, style))
    nodes = [diff_words.node_cells(change) for change in diff.nodes]
    weights = [diff_words.weight_cells(change) for change in diff.weights]
    blocks.append(_table(NODE_TITLES, nodes, style, verbose=verbose, name=2))
    blocks.append(_table(WEIGHT_TITLES, weights, style, verbose=verbose, name=1, right=(3, 4)))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _facts(diff: ModelDiff, style: Style) -> list[str]:
    rows = list(diff_words.facts(diff))
    column = max(words.cells(label) for label, _ in rows)
    lines = []
    for label, text in rows:
        lead = f"  {label:<{column}}  "
        start, *rest = style.wrap(text, len(lead))
        lines += [lead + start, *(" " * len(lead) + line for line in rest)]
    return lines


def _table(
    titles: tuple[str, ...],
    rows: list[Any],
    style: Style,
    *,
    verbose: bool,
    name: int,
    right: tuple[int, ...] = (),
) -> list[str]:
    shown = rows if verbose else rows[:SHOWN]
    lines = table(titles, shown, style, right=right, name=name)
    if style.shortens:
        lines = [
            style.short(line, style.width) if words.cells(line) > style.width else line for line in lines
        ]
    if len(rows) > len(shown):
        lines.append(f"  … {words.group(len(rows) - len(shown))} more: -v lists them")
    return lines if style.unicode else [style.plain(line) for line in lines]


def diff_json(diff: ModelDiff) -> str:
    """Return a difference as JSON text, ending in a newline; the default domain is named ai.onnx."""
    document: dict[str, Any] = {"schema": SCHEMA, "same": bool(diff), **dataclasses.asdict(diff)}
    for side in ("a", "b"):
        opsets = document[side]["opsets"]
        document[side]["opsets"] = {domain or "ai.onnx": version for domain, version in opsets.items()}
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Return JSON data in which infinite numbers are texts, as in the other results."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
