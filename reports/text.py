"""Comparison → what the terminal or a pipe shows.

The verdict is the first line; facts, worst layers and next commands follow, on one screen. In a pipe every
row is whole and on one line, columns are two or more spaces apart, and there is no colour.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from graphdoc.compare.result import SYMBOLS, Comparison, Kind, Layer
from graphdoc.engine.errors import GraphdocError
from graphdoc.reports import words

SENTENCE_WIDTH = 80
WIDE = 120
SCREEN = 23
"""Lines of a screen, less the one that the prompt takes."""

_NARROWEST = 40
_LONGEST_OPERATOR = 24
_SHORTEST_NAME = 10
_ANSI = {"red": "31", "green": "32", "yellow": "33", "blue": "34"}
_TOKEN = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|['"\\])+""")


@dataclass(frozen=True, slots=True)
class Style:
    """How lines are set.

    width: columns of the terminal. color: colour symbols and their words. pipe: neither wrap nor shorten.
    unicode: False where the output cannot show more than ASCII.
    """

    width: int
    color: bool
    pipe: bool
    unicode: bool

    @property
    def text_width(self) -> int:
        """Columns for sentences."""
        return min(self.width, SENTENCE_WIDTH)

    @property
    def shortens(self) -> bool:
        """Whether names are cut to fit."""
        return not self.pipe and self.width < WIDE

    def plain(self, text: str) -> str:
        """Return visible text in the characters that the output can show."""
        text = words.visible(text)
        return text if self.unicode else words.ascii_only(text)

    def short(self, text: str, width: int) -> str:
        """Return text cut in the middle to ``width`` columns."""
        return words.shorten(text, width, "…" if self.unicode else "...")

    def symbol(self, symbol: str) -> str:
        """Return a symbol as the output can show it."""
        return symbol if self.unicode else words.ASCII_SYMBOLS.get(symbol, self.plain(symbol))

    def paint(self, symbol: str, text: str) -> str:
        """Return text in the colour of its symbol."""
        code = _ANSI.get(words.COLORS.get(symbol, ""))
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and not self.pipe else text

    def wrap(self, text: str, indent: int) -> list[str]:
        """Return the lines of a sentence that stands ``indent`` columns from the left."""
        text = self.plain(text)
        room = max(_NARROWEST // 2, self.text_width - indent)
        return [text] if self.pipe else _fill([self.short(word, room) for word in text.split(" ")], room)

    def headline(self, symbol: str, word: str, sentence: str) -> list[str]:
        """Return the lines that answer the question: symbol, word, and a sentence that is set beside them."""
        mark = f"{self.symbol(symbol)} {word}"
        lead = f"{mark}   "
        return _hang(self.wrap(sentence, words.cells(lead)), lead, f"{self.paint(symbol, mark)}   ")


def comparison_lines(
    comparison: Comparison,
    *,
    width: int = 80,
    color: bool,
    pipe: bool,
    verbose: bool = False,
    quiet: bool = False,
    unicode: bool = True,
) -> str:
    """Return the printed form of a comparison, ending in a newline.

    width: columns of the terminal; from 120 on tables have more columns. color: for a terminal. pipe: the
    reader is a program. verbose: list every layer. quiet: the verdict alone. unicode: False for ASCII.
    """
    style = Style(max(width, _NARROWEST), color, pipe, unicode)
    blocks = [_verdict(comparison, style)]
    if not quiet:
        blocks += _body(comparison, style, verbose=verbose)
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def error_lines(error: GraphdocError, *, color: bool = False, unicode: bool = True) -> str:
    """Return the printed form of an error: cause, where, next step; ends in a newline."""
    style = Style(SENTENCE_WIDTH, color, pipe=False, unicode=unicode)
    first, *rest = (style.plain(line) for line in error.lines())
    return "\n".join([f"{style.paint('✗', style.symbol('✗'))} {first}", *rest]) + "\n"


def _body(comparison: Comparison, style: Style, *, verbose: bool) -> Iterator[list[str]]:
    yield _facts(comparison, style)
    if comparison.differing or comparison.verdict.kind is Kind.REMARK or verbose or comparison.ranking:
        yield _table(words.worst_rows(comparison, _rows_left(comparison)), style)
    if verbose:
        yield _table(comparison.layers, style)
    yield _next_steps(comparison, style)
    yield _remarks(comparison, style)


def _verdict(comparison: Comparison, style: Style) -> list[str]:
    verdict = comparison.verdict
    mark = f"{style.symbol(verdict.symbol)} {style.plain(verdict.word)}"
    lines = style.wrap(words.opening(comparison), words.cells(mark) + 3)
    return _hang(lines, f"{mark}   ", style.paint(verdict.symbol, mark) + "   ")


def _hang(lines: Sequence[str], lead: str, shown: str | None = None) -> list[str]:
    """Return lines after ``lead`` (``shown`` is what is printed of it), the others indented as deep."""
    first, *rest = lines
    return [(shown or lead) + first, *(" " * words.cells(lead) + line for line in rest)]


def _facts(comparison: Comparison, style: Style) -> list[str]:
    rows = [(style.plain(label), text) for label, text in words.facts(comparison)]
    column = max((words.cells(label) for label, _ in rows), default=0)
    lines: list[str] = []
    for label, text in rows:
        lead = f"  {_pad(label, column)}  "
        lines += _hang(style.wrap(text, words.cells(lead)), lead)
    return lines


def _remarks(comparison: Comparison, style: Style) -> list[str]:
    lines: list[str] = []
    for remark in comparison.remarks:
        lead = f"{style.symbol('▲')} remark: "
        lines += _hang(style.wrap(remark, words.cells(lead)), lead, style.paint("▲", lead.rstrip()) + " ")
    return lines


def _next_steps(comparison: Comparison, style: Style) -> list[str]:
    steps = comparison.verdict.next_steps
    lines = [line for _, command in steps for line in _command(command, style)]
    return ["next", *lines] if lines else []


def _command(command: str, style: Style) -> list[str]:
    """Return a command that can be pasted, folded between options where it is too long for the width."""
    command = style.plain(command)
    if style.pipe:
        return [f"  {command}"]
    lines = _fill(_arguments(command), style.text_width - 8)
    return [
        ("  " if n == 0 else "      ") + line + (" \\" if n < len(lines) - 1 else "")
        for n, line in enumerate(lines)
    ]


def _arguments(command: str) -> list[str]:
    """Return a command's words, each option with its value; quoted text stays whole."""
    parts: list[str] = []
    for token in _TOKEN.findall(command):
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and not token.startswith("-"):
            parts[-1] += f" {token}"
        else:
            parts.append(token)
    return parts


def _fill(parts: Sequence[str], room: int) -> list[str]:
    """Return the parts set into lines of at most ``room`` columns, one space between them."""
    lines = [""]
    for n, part in enumerate(parts):
        if n and words.cells(lines[-1]) + 1 + words.cells(part) <= room:
            lines[-1] += f" {part}"
        elif n:
            lines.append(part)
        else:
            lines[-1] = part
    return [line.rstrip() for line in lines]


# Tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the layer table; on a terminal narrower than ``least`` it is left out."""

    title: str
    text: Callable[[Layer], str]
    right: bool = False
    least: int = 0


_STATUS = Column("status", lambda layer: words.SHORT_STATUS[layer.status])
_NAME = Column("layer", words.name)
_OPERATOR = Column("op", lambda layer: words.visible(layer.op), least=60)
_EFFECT = Column("effect", lambda layer: words.effect(layer), right=True, least=60)
"""Shown where layers were ranked by their effect on the outputs."""
_STEPS = Column("steps", lambda layer: words.number(layer.own_steps), right=True, least=60)
"""Own error in steps of the layer's codes; shown where B quantises."""

_COLUMNS = (
    Column("#", lambda layer: str(layer.index), right=True),
    _OPERATOR,
    _NAME,
    Column("value", lambda layer: words.visible(layer.value), least=WIDE),
    Column("shape", lambda layer: words.shape(layer.shape), least=WIDE),
    Column("own", lambda layer: words.number(layer.own_error), right=True, least=52),
    _STEPS,
    Column("inherited", lambda layer: words.number(layer.inherited_error), right=True, least=WIDE),
    Column("total", lambda layer: words.number(layer.error), right=True, least=WIDE),
    Column("of limit", lambda layer: words.times(layer.of_limit), right=True),
    _EFFECT,
    _STATUS,
)


def _rows_left(comparison: Comparison) -> int:
    """Return how many layers, 1 to 5, leave everything on one screen; 5 where a ranking was asked for.

    It is counted for 80 columns whatever the output, so that a pipe gets the same rows.
    """
    style = Style(SENTENCE_WIDTH, color=False, pipe=False, unicode=True)
    others = (_verdict, _facts, _next_steps, _remarks)
    lines = [len(block(comparison, style)) for block in others]
    least = 5 if comparison.ranking else 1
    return max(least, min(5, SCREEN - sum(n + 1 for n in lines if n) - 1))


def _table(layers: Sequence[Layer], style: Style) -> list[str]:
    """Return title row and one row per layer."""
    if not layers:
        return []
    columns = [c for c in _COLUMNS if style.width >= c.least or (style.pipe and c.least < WIDE)]
    if all(layer.propagated_share is None for layer in layers):
        columns = [c for c in columns if c is not _EFFECT]
    if all(layer.own_steps is None for layer in layers):
        columns = [c for c in columns if c is not _STEPS]
    texts = {c.title: [style.plain(c.text(layer)) for layer in layers] for c in columns}
    marks = [style.symbol(SYMBOLS[layer.status]) for layer in layers]
    texts[_STATUS.title] = [f"{m} {t}" for m, t in zip(marks, texts[_STATUS.title], strict=True)]
    if style.shortens:
        _shorten(columns, texts, style)
    widths = {c.title: _width(c, texts) for c in columns}
    rows = [_row(columns, widths, {c.title: c.title for c in columns})]
    for n, layer in enumerate(layers):
        cells = {title: column[n] for title, column in texts.items()}
        plain = _row(columns, widths, cells)
        head = plain[: len(plain) - len(cells[_STATUS.title])]
        rows.append(head + style.paint(SYMBOLS[layer.status], cells[_STATUS.title]))
    return rows


def _width(column: Column, texts: dict[str, list[str]]) -> int:
    least = 3 if column.title == "#" else len(column.title)
    return max(least, *(words.cells(text) for text in texts[column.title]))


def _shorten(columns: Sequence[Column], texts: dict[str, list[str]], style: Style) -> None:
    """Cut operators and names so that the rows fit into the width."""
    if _OPERATOR in columns:
        texts[_OPERATOR.title] = [style.short(text, _LONGEST_OPERATOR) for text in texts[_OPERATOR.title]]
    others = sum(_width(c, texts) + 2 for c in columns if c is not _NAME)
    room = max(_SHORTEST_NAME, style.width - others - 2)
    texts[_NAME.title] = [style.short(text, room) for text in texts[_NAME.title]]


def _row(columns: Sequence[Column], widths: dict[str, int], cells: dict[str, str]) -> str:
    return ("  " + "  ".join(_pad(cells[c.title], widths[c.title], right=c.right) for c in columns)).rstrip()


def _pad(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * (width - words.cells(text))
    return blanks + text if right else text + blanks
