"""Benchmark → one HTML page: the answer, the spread of each runner's times, the steps."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from graphdoc.compare.latency import Benchmark, Timing
from graphdoc.reports import bench_text, words
from graphdoc.reports.files import write_text
from graphdoc.reports.html import Figure, environment, source

WIDTH, ROW = 720, 46
"""Of the picture, in its own units: one row per runner."""

MOST_DOTS = 400


@dataclass(frozen=True, slots=True)
class Strip:
    """A runner's row in the picture: dots from left (0 s) to right, and where its percentiles stand."""

    name: str
    y: int
    dots: tuple[float, ...]
    median: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A step: its share of the run as a width in percent."""

    label: str
    nodes: str
    time: str
    share: str
    reached: str
    width: float


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    title: str
    symbol: str
    word: str
    sentence: str
    figures: tuple[Figure, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strips: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    height: int
    steps: tuple[tuple[str, tuple[Bar, ...]], ...]
    remarks: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def save_html(bench: Benchmark, path: str | os.PathLike[str]) -> None:
    """Write the page. Raises OSError; an older file is left as it was then."""
    write_text(render_html(bench), path)


def render_html(bench: Benchmark) -> str:
    """Return the page; the same benchmark gives the same text."""
    style = Markup(source("report.css"))  # noqa: S704 - our own file
    return environment().get_template("bench.html.j2").render(page=_page(bench), style=style, width=WIDTH)


def _page(bench: Benchmark) -> Page:
    symbol, word, sentence = bench_text.verdict(bench)
    reach = max(timing.percentile(99) for timing in bench.timings) * 1.05
    return Page(
        title=f"{symbol} {word} — {bench.model} — graphdoc",
        symbol=symbol,
        word=word,
        sentence=sentence,
        figures=tuple(_figures(bench)),
        head=bench_text.TITLES,
        rows=tuple(bench_text.cells(timing) for timing in bench.timings),
        strips=tuple(_strip(timing, k, reach) for k, timing in enumerate(bench.timings)),
        ticks=tuple((WIDTH * k / 4, words.seconds(reach * k / 4)) for k in range(5)),
        height=ROW * len(bench.timings) + 24,
        steps=tuple((t.name, tuple(_bars(t))) for t in bench.timings if t.steps),
        remarks=tuple(bench_text.remarks(bench)),
        facts=(*bench.inputs, *bench.environment.items()),
    )


def _figures(bench: Benchmark) -> Iterator[Figure]:
    for timing in bench.timings:
        note = f"p99 {words.seconds(timing.percentile(99))}, {words.group(len(timing.samples))} runs"
        yield Figure(timing.name, words.seconds(timing.median), note)
    for found in bench.ratios:
        span = f"95 % interval {words.number(found.low, 3)} to {words.number(found.high, 3)}"
        yield Figure(f"{found.test} ÷ {found.ref}", words.number(found.value, 3), span)


def _strip(timing: Timing, place: int, reach: float) -> Strip:
    def x(value: float) -> float:
        return round(WIDTH * min(value / reach, 1.0), 1)

    every = max(1, len(timing.samples) // MOST_DOTS)
    ends = timing.percentile(5), timing.percentile(90)
    text = (
        f"{timing.name}: median {words.seconds(timing.median)}, p5 {words.seconds(ends[0])}, "
        f"p90 {words.seconds(ends[1])}"
    )
    dots = tuple(x(value) for value in timing.samples[::every])
    return Strip(timing.name, ROW * place + 30, dots, x(timing.median), x(ends[0]), x(ends[1]), text)


def _bars(timing: Timing) -> Iterator[Bar]:
    total = sum(step.seconds for step in timing.steps) or 1.0
    largest = max(step.seconds for step in timing.steps) or 1.0
    for step in sorted(timing.steps, key=lambda step: -step.seconds):
        _, _, seconds, share, reached = bench_text.step_cells(step, total)
        width = round(100 * step.seconds / largest, 1)
        yield Bar(step.label, _joined(step.nodes), seconds, share, reached, width)


def _joined(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) or words.UNKNOWN
