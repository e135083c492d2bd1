"""ResultDiff → one HTML file that opens offline. It needs no script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from graphdoc.reports import resultdiff_words, words
from graphdoc.reports.html import LISTED, Figure, environment, left_out, source
from graphdoc.reports.resultdiff import Direction, ResultDiff

OPEN = 60
"""Tables of at most this many rows are shown unfolded."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that went one way. rows: index, operator, name and what changed."""

    key: str
    title: str
    rows: tuple[resultdiff_words.Cells, ...]
    more: str
    unfolded: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    diff: ResultDiff
    title: str
    tone: str
    symbol: str
    word: str
    headline: str
    figures: tuple[Figure, ...]
    settings: tuple[tuple[str, str, str], ...]
    facts: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]


def render_html(diff: ResultDiff) -> str:
    """Return the page of a difference; the same difference gives the same text."""
    style = Markup(source("report.css"))  # noqa: S704 - our own file
    return environment().get_template("resultdiff.html.j2").render(page=_page(diff), style=style)


def _page(diff: ResultDiff) -> Page:
    symbol, word = resultdiff_words.verdict(diff)
    sentence = words.shorten_words(words.visible(resultdiff_words.sentence(diff)), 160)
    return Page(
        diff=diff,
        title=f"{symbol} {word} — {diff.before_name}, {diff.after_name} — graphdoc",
        tone="ok" if diff else "bad",
        symbol=symbol,
        word=word[:1].upper() + word[1:],
        headline=sentence[:1].upper() + sentence[1:],
        figures=tuple(_figures(diff)),
        settings=tuple(
            (resultdiff_words.setting(item)[0], item.before, item.after)
            for item in resultdiff_words.ordered_settings(diff)
        ),
        facts=tuple(resultdiff_words.facts(diff)),
        groups=tuple(_groups(diff)),
    )


def _figures(diff: ResultDiff) -> Iterator[Figure]:
    total = words.group(diff.paired)
    yield Figure("Layers that got worse", words.group(len(diff.worse)), f"of {total} in both results")
    yield Figure("Layers that got better", words.group(len(diff.better)), f"of {total} in both results")
    differ = [len(result.differing) for result in (diff.before, diff.after)]
    yield Figure("Layers that differ", " → ".join(map(words.group, differ)), "before and after")
    for change in diff.latency:
        if change.side == "B":
            text = (
                f"{words.number(change.ratio, 3)} ×" if change.direction is not Direction.SAME else "≈ same"
            )
            yield Figure("Latency of B", text, resultdiff_words.latency(change))


def _groups(diff: ResultDiff) -> Iterator[Group]:
    changed = resultdiff_words.change_cells
    alone = resultdiff_words.layer_cells
    yield from _group("worse", "Worse", [changed(x) for x in diff.worse])
    yield from _group("better", "Better", [changed(x) for x in diff.better])
    yield from _group("lost", "No longer compared", [alone(x) for x in diff.lost])
    yield from _group("found", "Compared only now", [alone(x) for x in diff.found])


def _group(key: str, title: str, rows: Sequence[resultdiff_words.Cells]) -> Iterator[Group]:
    if rows:
        heading = f"{title}: {words.group(len(rows))} {'layer' if len(rows) == 1 else 'layers'}"
        yield Group(
            key, heading, tuple(rows[:LISTED]), left_out(len(rows)), len(rows) <= OPEN or key == "worse"
        )
