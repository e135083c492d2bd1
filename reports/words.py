"""Numbers, names and symbols as people read them: the one place that all reports share.

Numbers are those of ``compare/numbers.py``, with units added here: 2 significant digits for errors, 3 for
times and sizes; an unknown value is "–", never 0. The page's script formats the same way
(templates/core.js); a test holds the two together.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from graphdoc.compare.numbers import UNKNOWN as UNKNOWN
from graphdoc.compare.numbers import group as group
from graphdoc.compare.numbers import number as number
from graphdoc.compare.numbers import times as times
from graphdoc.compare.result import SYMBOLS, Comparison, Latency, Layer, Side, Status
from graphdoc.surgeon.verification import NotRun, Verification

NO_NAME = "(no name)"

SHORT_STATUS = {**{status: str(status) for status in Status}, Status.OWN: "own"}
"""The word of a status where room is scarce."""

ASCII_SYMBOLS = {"✓": "ok", "✗": "FAIL", "↳": "from", "∅": "nan", "▲": "note", "–": "skip"}
"""What a symbol becomes where the output cannot show it."""

COLORS = {"✓": "green", "✗": "red", "↳": "blue", "∅": "yellow", "▲": "yellow", "–": "plain"}
"""The colour that repeats what a symbol and its word say."""

FEWEST_RUNS = 3
CERTAIN = 2.0
"""With fewer runs, or where the runs of both sides overlap, a difference is named only from this ratio on."""

DIFFERENCE = 0.03
"""Two latencies closer than this share of the first are called the same."""

_ASCII = str.maketrans(
    {"×": "x", "–": "-", "−": "-", "…": "...", "→": "->", "≈": "~", "÷": "/", "⟨": "<", "⟩": ">"}
    | {"·": ".", "µ": "u", "±": "+-", "\N{RIGHT SINGLE QUOTATION MARK}": "'"}
    | {"\u00a0": " ", "\u202f": " ", "\u2009": " "}
)
_CONTINUES = frozenset({"from", "at", "up", "where"})
"""First words of a sentence that goes on after the verdict's word."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_LAYER_REFERENCE = re.compile(r"#(\d{1,9})\b")


# Numbers


def seconds(value: float | None) -> str:
    """Return a duration in a unit that suits it: 30.0 ms."""
    if not value:
        return UNKNOWN if value is None else "0 s"
    scale, prefix = next((row for row in _PREFIXES if abs(value) >= row[0] * 0.9995), _PREFIXES[-1])
    return f"{number(value / scale, 3)} {prefix}s"


def size(count: int | None) -> str:
    """Return a size in bytes: 4.75 MB."""
    if count is None:
        return UNKNOWN
    if count < 1000:
        return f"{count} B"
    scale, unit = next(
        row for row in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= row[0] * 0.9995 or row[0] == 1e3
    )
    return f"{number(count / scale, 3)} {unit}"


def percent(share: float | None) -> str:
    """Return a share of 1 in percent: 15.3 %."""
    if share is None:
        return UNKNOWN
    text = number(100 * share, 3)
    return f"{text.rstrip('0').rstrip('.') if '.' in text and 'e' not in text else text} %"


def shape(sizes: Sequence[int] | None) -> str:
    """Return a shape: 1×24×80×120, scalar, –."""
    if sizes is None:
        return UNKNOWN
    return "×".join(map(str, sizes)) or "scalar"


# Foreign text


def visible(text: str) -> str:
    """Return text in which control, bidi and other unseen characters are written as ⟨U+202E⟩.

    Nothing that comes out can break a row, reorder what is around it or be refused by XML or UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in _HIDDEN else c for c in text)


def ascii_only(text: str) -> str:
    """Return text with the signs graphdoc uses spelt in ASCII, and other characters as <U+5C42>."""
    return "".join(c if c.isascii() else f"<U+{ord(c):04X}>" for c in text.translate(_ASCII))


def shorten(text: str, width: int, mark: str = "…") -> str:
    """Return text of at most ``width`` cells, cut in the middle: the end of a name tells most."""
    if len(text) <= width and cells(text) <= width:
        return text
    room = max(0, width - len(mark))
    head = _first_cells(text, room // 3)
    tail = _first_cells(text[::-1], room - cells(head))[::-1]
    return f"{head}{mark}{tail}"


def _first_cells(text: str, width: int) -> str:
    """Return the longest start of ``text`` that takes at most ``width`` columns."""
    if text.isascii():
        return text[: max(0, width)]
    used = 0
    for position, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return text[:position]
    return text


def shorten_words(text: str, width: int) -> str:
    """Return text in which no word is longer than ``width`` cells."""
    return " ".join(shorten(word, width) for word in text.split(" "))


def cells(text: str) -> int:
    """Return how many columns a terminal uses for ``text``."""
    if text.isascii():
        return len(text)
    return sum(_cells(c) for c in text)


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def name(layer: Layer) -> str:
    """Return the visible name of a layer's node."""
    return visible(layer.node) or visible(layer.value) or NO_NAME


def layer_title(layer: Layer) -> str:
    """Return the index and operator: #321 BatchNormalization."""
    return f"#{layer.index} {visible(layer.op)}"


def link_parts(text: str, count: int) -> tuple[tuple[str, int | None], ...]:
    """Split text at its references to layers: ("from ", None), ("#321", 321), (" on", None).

    count: the number of layers; a number from there on is no reference.
    """
    parts: list[tuple[str, int | None]] = []
    end = 0
    for match in _LAYER_REFERENCE.finditer(text):
        if int(match[1]) < count:
            parts += [(text[end : match.start()], None), (match[0], int(match[1]))]
            end = match.end()
    parts.append((text[end:], None))
    return tuple(part for part in parts if part[0])


# The result in words


def effect(layer: Layer) -> str:
    """Return a layer's part in the error of the outputs: 34 %, or <0.01 %."""
    share = layer.propagated_share
    if share is None:
        return UNKNOWN
    return "<0.01 %" if 0 < share < 1e-4 else f"{number(100 * share)} %"


def status(layer: Layer) -> str:
    """Return symbol and word: ✗ own error."""
    return f"{SYMBOLS[layer.status]} {layer.status}"


def headline(comparison: Comparison) -> str:
    """Return the verdict's sentence as one that stands alone: "from #3 on" needs its word, "differs"."""
    verdict = comparison.verdict
    sentence = visible(verdict.sentence)
    if sentence.partition(" ")[0] in _CONTINUES:
        sentence = f"{visible(verdict.word)} {sentence}"
    return sentence[:1].upper() + sentence[1:]


def opening(comparison: Comparison) -> str:
    """Return the verdict's sentence as it follows the verdict's word: the word is not said twice."""
    verdict = comparison.verdict
    sentence, word = visible(verdict.sentence), visible(verdict.word)
    if word and sentence.lower().startswith(word.lower() + " "):
        return sentence[len(word) + 1 :]
    return sentence


def counts(comparison: Comparison) -> str:
    """Return how many layers came out how: 321 agree, 1 own error, 8 inherited."""
    tally = Counter(layer.status for layer in comparison.layers)
    words = {Status.AGREES: "agree", Status.REMARK: "with a remark"}
    return ", ".join(f"{group(tally[s])} {words.get(s, s)}" for s in Status if tally[s])


def facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return the verdict's facts, and how much was not compared if no fact says so."""
    rows = comparison.verdict.facts
    reasons = skip_reasons(comparison)
    if reasons and not any(label in _TELL_SKIPPED for label, _ in rows):
        rows = (*rows, ("skipped", _skipped(reasons)))
    return rows


_TELL_SKIPPED = frozenset({"skipped", "only A", "only B"})
"""Facts that say what was not compared."""

Reasons = tuple[tuple[str, tuple[str, ...]], ...]
"""Each reason for leaving values out, with the values."""


def _skipped(reasons: Reasons) -> str:
    total = sum(len(values) for _, values in reasons)
    text = f"{group(total)} {'value was' if total == 1 else 'values were'} not compared"
    parts = [reason if len(reasons) == 1 else f"{reason} ({group(len(v))})" for reason, v in reasons[:2]]
    others = len(reasons) - 2
    more = f", {others} more reason{'s' if others > 1 else ''}" if others > 0 else ""
    return f"{text}: {', '.join(parts)}{more}"


def skip_reasons(comparison: Comparison) -> Reasons:
    """Return each reason for a skip with the values it applies to, the commonest first."""
    pairs = {layer.value: layer.note for layer in comparison.layers if layer.status is Status.SKIPPED}
    pairs |= {skip.value: skip.reason for skip in comparison.skipped}
    found: dict[str, list[str]] = {}
    for value, reason in pairs.items():
        found.setdefault(reason or "no reason given", []).append(value)
    rows = sorted(found.items(), key=lambda row: (-len(row[1]), row[0]))
    return tuple((reason, tuple(values)) for reason, values in rows)


def worst_rows(comparison: Comparison, count: int = 5) -> tuple[Layer, ...]:
    """Return the worst layers, at most ``count``; the first divergence is always among them.

    Where layers were ranked by their effect on the outputs, by that; else by error over limit.
    """
    rows = comparison.most_effect(count) if comparison.ranking else comparison.worst(count)
    first = comparison.first_divergence
    if first is None or any(row.index == first.index for row in rows):
        return rows
    return (first, *rows[: count - 1])


def latency_change(a: Latency | None, b: Latency | None) -> str:
    """Return what B's time is against A's: ≈ same, 1.42 × A, or not clear where the runs overlap."""
    if a is None or b is None or a.median <= 0:
        return UNKNOWN
    ratio = b.median / a.median
    if abs(ratio - 1) < DIFFERENCE:
        return "≈ same"
    blurred = min(a.runs, b.runs) < FEWEST_RUNS or (a.low <= b.high and b.low <= a.high)
    if blurred and max(ratio, 1 / ratio) < CERTAIN:
        return "not clear"
    return f"{number(ratio, 3)} × A"


def runner(side: Side) -> str:
    """Return runner and version: ort 1.32.0."""
    return f"{side.runner} {side.version}".strip()


def left_out(checked: Verification) -> list[tuple[str, str, bool]]:
    """Return what a verification did not run, why, and whether that matters; one line for each reason."""
    reasons: dict[str, list[NotRun]] = {}
    for item in checked.not_run:
        reasons.setdefault(item.why, []).append(item)
    return [
        (", ".join(item.what for item in items), why, any(item.important for item in items))
        for why, items in reasons.items()
    ]
