"""Sweep → index.html: a table of the cases that can be sorted, each linked to its page."""

import base64
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from graphdoc.reports import sweep as sweeps
from graphdoc.reports import words
from graphdoc.reports.html import Figure, environment, source
from graphdoc.reports.sweep import Sweep, SweepRow

_TONES = {"✗": "bad", "∅": "warn", "▲": "warn", "–": "skipped"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table: what is shown, and the number it is sorted by where it has one."""

    text: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. link: the case's page, "" for none."""

    tone: str
    status: str
    rank: int
    name: str
    link: str
    models: str
    what: str
    numbers: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    title: str
    tone: str
    symbol: str
    word: str
    counts: str
    figures: tuple[Figure, ...]
    rows: tuple[Row, ...]


def render_html(sweep: Sweep) -> str:
    """Return the page of a sweep; the same sweep gives the same text."""
    script = Markup(source("sweep.js"))  # noqa: S704 - our own file
    return (
        environment()
        .get_template("sweep.html.j2")
        .render(
            page=_page(sweep),
            style=Markup(source("report.css")),  # noqa: S704
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _page(sweep: Sweep) -> Page:
    symbol, word = sweeps.verdict(sweep)
    return Page(
        title=f"{symbol} {word} — graphdoc",
        tone="ok" if sweep else "bad",
        symbol=symbol,
        word="All agree" if sweep else "Not all agree",
        counts=f"{word[:1].upper()}{word[1:]}: {sweeps.counts(sweep)}",
        figures=tuple(_figures(sweep)),
        rows=tuple(_row(rank, row) for rank, row in enumerate(sweep.rows)),
    )


def _figures(sweep: Sweep) -> Iterator[Figure]:
    total = len(sweep.rows)
    agree = sum(row.exit_code == 0 for row in sweep.rows)
    layers = sum(row.compared or 0 for row in sweep.rows)
    models = len({row.ref for row in sweep.rows})
    yield Figure("Cases that agree", f"{words.group(agree)} of {words.group(total)}", sweeps.counts(sweep))
    differ = sum(row.differ or 0 for row in sweep.rows)
    yield Figure("Layers that differ", words.group(differ), f"of {words.group(layers)} compared")
    yield Figure("Models", words.group(models), "each may run on several inputs")
    worst = max((row for row in sweep.rows if row.worst is not None), key=_worst, default=None)
    if worst:
        yield Figure("Furthest from its limit", words.times(worst.worst), worst.name)


def _worst(row: SweepRow) -> tuple[float, str]:
    value = row.worst or 0.0
    return (0.0 if math.isnan(value) else value), row.name


def _row(rank: int, row: SweepRow) -> Row:
    models = [row.ref, row.test, row.inputs]
    numbers = (
        _number(row.compared, words.UNKNOWN if row.compared is None else words.group(row.compared)),
        _number(row.differ, words.UNKNOWN if row.differ is None else words.group(row.differ)),
        _number(row.worst, words.times(row.worst)),
        _number(row.error, words.number(row.error)),
        _number(row.latency, words.UNKNOWN if row.latency is None else f"{words.number(row.latency, 3)} ×"),
        _number(row.seconds, words.seconds(row.seconds) + (" *" if row.taken_over else "")),
    )
    return Row(
        tone=_TONES.get(row.symbol, "ok"),
        status=f"{row.symbol} {row.word}",
        rank=rank,
        name=row.name,
        link=quote(row.page),
        models=", ".join(text for text in models if text),
        what=words.shorten_words(sweeps.what(row), 100),
        numbers=numbers,
    )


def _number(value: float | None, text: str) -> Cell:
    """Return a cell that sorts by its number; unknown ones come before all others."""
    known = value is not None and not math.isnan(value)
    return Cell(text, repr(min(float(value or 0), 1e300)) if known else "-1")
