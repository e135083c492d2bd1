"""Comparison → Markdown for a review comment (GitHub Flavored Markdown 0.29).

Only words and numbers stand as plain text. Everything else, so every name, stands in a code span, where it
can neither break the table, nor notify anyone (@name), nor link an issue (#1), nor become a link or HTML.
"""

import re

from graphdoc.compare.result import Comparison, Kind, Layer
from graphdoc.reports import words

MARKER = "<!-- graphdoc:compare -->"
"""First line of every comment: the way to find it again and edit it in place."""

_LONGEST_NAME = 120
_LONGEST_TEXT = 1000
"""Keeps a comment far below the 65 536 characters that GitHub accepts, whatever the names."""

_EDGES = re.compile(r"^(\(?)(.*?)([.,;:!?)]*)$", re.DOTALL)
_PLAIN = re.compile(
    r"[^\W_]+(?:['-][^\W_]+)*"  # words
    r"|[−+]?\d+(?:\.\d+)?(?:e-?\d+)?(?:×\d+)*"  # numbers and shapes
    r"|[×÷–−…≈→%✓✗↳∅▲]"
)
_INDEX = re.compile(r"\[\d+[,\]]:?|\d+\]:?")
"""The ends of an element's index, [0, 2, 5]: digits alone are no link."""

_LOOKS_LIKE_REFERENCE = re.compile(r"gh-\d+|[0-9a-f]{7,40}|\d+", re.IGNORECASE)


def render_markdown(comparison: Comparison) -> str:
    """Return a comparison as a review comment: verdict, facts, at most five layers, how to repeat it."""
    blocks = [
        f"{MARKER}\n### {_title(comparison)}",
        prose(words.headline(comparison)),
        "\n".join(
            _cut([f"- **{prose(label)}** {prose(text)}" for label, text in words.facts(comparison)], 12)
        ),
        _table(words.worst_rows(comparison)) if _has_table(comparison) else "",
        _summary(comparison),
        "\n".join(_cut([f"> {prose('▲')} {prose(remark)}" for remark in comparison.remarks], 6)),
        _details("Next steps", [command for _, command in comparison.verdict.next_steps][:6]),
        _details("Reproduce", [comparison.command] if comparison.command else []),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _cut(lines: list[str], most: int) -> list[str]:
    """Return the first lines, and how many more there are: a comment stays below 60 lines."""
    start = lines[0].split(" ", 1)[0] if lines else ""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{start} … {len(lines) - most + 1} more"]


def code(text: str, *, table: bool = False) -> str:
    """Return text as a code span that shows exactly it; in a table its pipes are escaped."""
    text = words.shorten(words.visible(text), _LONGEST_NAME)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if text[:1] in "` " or text[-1:] in "` " else ""
    span = f"{fence}{blank}{text or words.NO_NAME}{blank}{fence}"
    return span.replace("|", "\\|") if table else span


def prose(text: str, *, table: bool = False) -> str:
    """Return a sentence in which all but plain words and numbers stands in code spans."""
    tokens = words.shorten(words.visible(text), _LONGEST_TEXT).split()
    return " ".join(_token(token, first=n == 0, table=table) for n, token in enumerate(tokens))


def _token(token: str, *, first: bool, table: bool) -> str:
    if _INDEX.fullmatch(token) and not first:
        return token
    match = _EDGES.match(token)
    before, core, after = match.groups() if match else ("", token, "")
    if not core:
        return code(token, table=table)
    reference = _LOOKS_LIKE_REFERENCE.fullmatch(core)
    number = core.isdigit() and not (first and after)  # "1." would open a numbered list
    if _PLAIN.fullmatch(core) and (number or not reference or core.isalpha()):
        return token
    return f"{before}{code(core, table=table)}{after}"


def _title(comparison: Comparison) -> str:
    verdict, first = comparison.verdict, comparison.first_divergence
    model = code(re.split(r"[/\\]", comparison.b.model)[-1].removesuffix(".onnx"))
    start = f" from {code(f'#{first.index}')} on" if first and not comparison else ""
    return f"{words.visible(verdict.symbol)} graphdoc: {model} {prose(verdict.word)}{start}"


def _has_table(comparison: Comparison) -> bool:
    remarkable = comparison.verdict.kind is Kind.REMARK or comparison.ranking is not None
    return bool(comparison.differing) or remarkable


def _table(layers: tuple[Layer, ...]) -> str:
    ranked = any(layer.propagated_share is not None for layer in layers)
    more, line = (" effect |", "-------:|") if ranked else ("", "")
    rows = [
        f"| # | op | layer | own | of limit |{more} status |",
        f"|--:|----|-------|----:|---------:|{line}--------|",
    ]
    for layer in layers:
        own, ratio = words.number(layer.own_error), words.times(layer.of_limit)
        op, name = prose(layer.op, table=True), code(words.name(layer), table=True)
        effect = f" {words.effect(layer)} |" if ranked else ""
        rows.append(f"| {layer.index} | {op} | {name} | {own} | {ratio} |{effect} {words.status(layer)} |")
    return "\n".join(rows)


def _summary(comparison: Comparison) -> str:
    """Return the counts, unless a fact gives them, and the latency where it is known."""
    parts = []
    if comparison.layers and not any(label == "layers" for label, _ in comparison.verdict.facts):
        parts.append(f"{words.group(len(comparison.layers))} layers: {words.counts(comparison)}.")
    a, b = comparison.a.latency, comparison.b.latency
    if a and b:
        change = words.latency_change(a, b)
        parts.append(f"Latency {change} ({words.seconds(a.median)} → {words.seconds(b.median)}).")
    return " ".join(parts)


def _details(title: str, commands: list[str]) -> str:
    """Return commands in a block that opens on a click."""
    if not commands:
        return ""
    text = "\n".join(words.visible(command) for command in commands)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"<details><summary>{title}</summary>\n\n{fence}sh\n{text}\n{fence}\n\n</details>"
