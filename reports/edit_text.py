"""What was edited → what the terminal or a pipe shows, and JSON."""

import dataclasses
import json
from collections.abc import Iterator

from graphdoc.reports import words
from graphdoc.reports.text import Style
from graphdoc.surgeon.edited import SCHEMA, Edited

SHOWN = 16
"""Lines of edits that are listed on a terminal; a pipe gets all."""


def edit_lines(result: Edited, *, width: int = 80, color: bool, pipe: bool, unicode: bool = True) -> str:
    """Return the printed form, ending in a newline: the verdict, what was done, how it was checked."""
    style = Style(max(width, 40), color, pipe, unicode)
    return "\n".join([_verdict(result, style), "", *_steps(result, style), *_ends(result, style)]) + "\n"


def edit_json(result: Edited) -> str:
    """Return the result as JSON text, ending in a newline."""
    steps = [{"verb": verb, "done": text} for verb, text in result.steps]
    document = {"schema": SCHEMA, "written": not result.wrong, **dataclasses.asdict(result), "steps": steps}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _verdict(result: Edited, style: Style) -> str:
    nodes = f"{words.group(result.nodes_before)} → {words.group(result.nodes_after)} nodes, {result.out}"
    symbol, word, rest = "✓", "edited", nodes
    if result.wrong:
        symbol, word, rest = "✗", "not written", "the outputs differ, though these edits must not change them"
    elif result.left:
        count = len(result.left)
        symbol, word = "▲", f"edited, {count} place{'s' * (count != 1)} not repaired"
    elif result.doubtful:
        symbol, word = "▲", "edited, not verified"
    mark = style.plain(f"{style.symbol(symbol)} {word}")
    return f"{style.paint(symbol, mark)}   {style.plain(rest)}"


def _steps(result: Edited, style: Style) -> Iterator[str]:
    width = max(len(verb) for verb, _ in result.steps)
    shown = result.steps if style.pipe else result.steps[:SHOWN]
    for verb, text in shown:
        lead = f"  {verb:<{width}}  "
        first, *more = style.wrap(text, len(lead))
        yield lead + first
        yield from (" " * len(lead) + line for line in more)
    if len(shown) < len(result.steps):
        yield f"  … {words.group(len(result.steps) - len(shown))} more lines: --json -"


def _ends(result: Edited, style: Style) -> Iterator[str]:
    rows = [("left", line) for line in result.left]
    rows += [("differs", result.wrong)] if result.wrong else []
    rows += [("checked", result.checked or "not checked: --no-verify")]
    for label, text in rows:
        lead = f"  {label}: "
        first, *more = style.wrap(text, len(lead))
        yield lead + first
        yield from (" " * len(lead) + line for line in more)
