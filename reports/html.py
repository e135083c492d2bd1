"""Comparison → one HTML file that opens offline.

The data come first (:class:`Page`, all text), the markup is in templates/. Jinja2 escapes everything; text
passes through ``words.visible`` on its way out. Verdict and worst layers are plain HTML; charts, table and
details are drawn by the script in the same file, the only one that the page's policy lets run.
"""

import base64
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from graphdoc.compare.result import Comparison, InputInfo, Layer, Side
from graphdoc.reports import layerdata, words
from graphdoc.reports.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("core.js", "depth.js", "table.js", "graph.js", "pictures.js", "detail.js", "latency.js", "page.js")
"""The page's script, in the order in which the parts need each other."""

LONGEST_WORD = 160
"""Names in sentences are cut in the middle from here on."""

Parts = tuple[tuple[str, int | None], ...]
"""A sentence split at its references to layers: text, and the layer it refers to."""

_HEADINGS = {
    "output": "What differs",
    "worst": "What differs",
    "where": "Where it starts",
    "own": "Whose fault",
    "error": "Whose fault",
    "truth": "Whose fault",
    "why": "Why",
    "how": "Why",
    "effect": "What moves the outputs",
    "ranking": "What moves the outputs",
    "limit": "How sure",
    "repair": "How sure",
    "inputs": "How sure",
    "only A": "Not compared",
    "only B": "Not compared",
    "skipped": "Not compared",
}
"""The label of a fact → its heading on the page, in the page's order; other labels keep their word."""

_PREFIXES = {
    "own": "Own error ",
    "error": "Error ",
    "limit": "Limit: ",
    "worst": "Largest difference: ",
    "inputs": "Conditioning: ",
    "only A": "Only A has ",
    "only B": "Only B has ",
}
"""What a fact says first where its heading does not."""

_TONES = {"green": "ok", "red": "bad", "blue": "inherited", "yellow": "warn", "plain": "warn"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the four key figures."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Fact:
    """What the verdict says under one heading."""

    heading: str
    sentences: tuple[Parts, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A layer of the table of worst layers."""

    index: int
    op: str
    name: str
    own: str
    of_limit: str
    inherited: str
    effect: str
    status: str
    tone: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency of one side: whole runs, and the sum of its layers."""

    label: str
    runner: str
    median: str
    spread: str
    runs: str
    layers: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why values were not compared."""

    text: str
    count: str
    values: tuple[str, ...]
    more: str


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    comparison: Comparison
    title: str
    tone: str
    word: str
    headline: Parts
    figures: tuple[Figure, ...]
    facts: tuple[Fact, ...]
    over: tuple[Row, ...]
    within: tuple[Row, ...]
    own_known: bool
    ranked: bool
    timings: tuple[Timing, ...]
    latency: str
    layer_times: bool
    sides: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    inputs: tuple[InputInfo, ...]
    setting: tuple[tuple[str, str], ...]
    reasons: tuple[Reason, ...]


def save_html(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page of a comparison to ``path``; raises OSError and leaves no half-written file."""
    write_text(render_html(comparison), path)


def render_html(comparison: Comparison) -> str:
    """Return the page of a comparison; the same comparison gives the same text."""
    script = Markup("\n".join(source(name) for name in SCRIPTS))  # noqa: S704 - our own files
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            page=_page(comparison),
            style=Markup(source("report.css")),  # noqa: S704
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            columns=_json(layerdata.columns(comparison)),
            details=Markup("\n").join(_json(row) for row in layerdata.details(comparison)),
        )
    )


@cache
def environment() -> jinja2.Environment:
    """Return the settings that all pages share."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    environment.filters |= {
        "number": words.number,
        "size": words.size,
        "shape": words.shape,
        "group": words.group,
        "shorten": words.shorten,
    }
    return environment


def _seen(value: Any) -> Any:
    """Return what a template prints; text that is not markup has its hidden characters shown."""
    return words.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def source(name: str) -> str:
    """Return the text of a file of templates/."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _json(value: Any) -> Markup:
    """Return JSON that cannot end the script element it stands in."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


# From the comparison to the page


def _page(comparison: Comparison) -> Page:
    verdict = comparison.verdict
    models = ", ".join(dict.fromkeys((comparison.a.model, comparison.b.model)))
    worst = words.worst_rows(comparison)
    ranked = comparison.ranking is not None
    over = [x for x in worst if ranked or x.index == verdict.first or (x.of_limit or 0) > 1]
    return Page(
        comparison=comparison,
        title=f"{verdict.symbol} {verdict.word} — {models} — graphdoc",
        tone=_TONES[words.COLORS.get(verdict.symbol, "plain")],
        word=verdict.word[:1].upper() + verdict.word[1:],
        headline=_parts(words.headline(comparison), comparison),
        figures=tuple(_figures(comparison)),
        facts=tuple(_facts(comparison)),
        over=tuple(_row(layer) for layer in over),
        within=tuple(_row(layer) for layer in worst if layer not in over),
        own_known=any(x.own_error is not None for x in comparison.layers),
        ranked=ranked,
        timings=tuple(_timings(comparison)),
        latency=words.latency_change(comparison.a.latency, comparison.b.latency),
        layer_times=any(x.time_a is not None or x.time_b is not None for x in comparison.layers),
        sides=tuple((side.label, tuple(_side(side))) for side in (comparison.a, comparison.b)),
        inputs=comparison.inputs,
        setting=tuple(_setting(comparison)),
        reasons=tuple(_reasons(comparison)),
    )


def _parts(text: str, comparison: Comparison) -> Parts:
    text = words.shorten_words(words.visible(text), LONGEST_WORD)
    return words.link_parts(text, len(comparison.layers))


def _facts(comparison: Comparison) -> Iterator[Fact]:
    """Yield the facts under their headings, in the page's order."""
    found: dict[str, list[Parts]] = {heading: [] for heading in _HEADINGS.values()}
    rank = {label: position for position, label in enumerate(_HEADINGS)}
    for label, text in sorted(words.facts(comparison), key=lambda fact: rank.get(fact[0], len(rank))):
        heading = _HEADINGS.get(label, label[:1].upper() + label[1:])
        if comparison and label == "output":
            heading = "Output"
        found.setdefault(heading, []).append(_parts(_PREFIXES.get(label, "") + text, comparison))
    for heading, sentences in found.items():
        if sentences:
            yield Fact(heading, tuple(sentences))


def _row(layer: Layer) -> Row:
    return Row(
        index=layer.index,
        op=words.visible(layer.op),
        name=words.shorten(words.name(layer), LONGEST_WORD),
        own=words.number(layer.own_error),
        of_limit=words.times(layer.of_limit),
        inherited=words.number(layer.inherited_error),
        effect=words.effect(layer),
        status=words.status(layer),
        tone=layerdata.css_class(layer.status),
    )


# Key figures


def _figures(comparison: Comparison) -> Iterator[Figure]:
    if not comparison.layers:
        return
    yield _count_figure(comparison)
    yield from _layer_figure(comparison)
    yield from _output_figure(comparison)
    yield from _latency_figure(comparison)


def _count_figure(comparison: Comparison) -> Figure:
    total, differ = len(comparison.layers), len(comparison.differing)
    agree = sum(layer.agrees for layer in comparison.layers)
    label, value = ("Layers that differ", differ) if differ else ("Layers that agree", agree)
    left_out = sum(len(values) for _, values in words.skip_reasons(comparison))
    left = f"{words.group(left_out)} {'value was' if left_out == 1 else 'values were'} not compared"
    note = words.counts(comparison) if agree < total else left if left_out else "none was left out"
    return Figure(label, f"{words.group(value)} of {words.group(total)}", note)


def _layer_figure(comparison: Comparison) -> Iterator[Figure]:
    """Yield the error at the first divergence, or how close the closest layer is to its limit."""
    first = comparison.first_divergence
    if first is not None:
        own = first.own_error is not None
        error, limit = (first.own_error, first.own_limit) if own else (first.error, first.limit)
        note = (
            f"limit {words.number(limit.value)}, {words.times(first.of_limit)} of it" if limit else "no limit"
        )
        yield Figure(f"{'Own error' if own else 'Error'} at #{first.index}", words.number(error), note)
    else:
        for layer in comparison.worst(1):
            yield Figure("Closest to its limit", words.times(layer.of_limit), words.layer_title(layer))


def _output_figure(comparison: Comparison) -> Iterator[Figure]:
    outputs = [layer for layer in comparison.layers if layer.is_output and layer.error is not None]
    if outputs:
        worst = max(outputs, key=lambda layer: (_share(layer), -layer.index))
        limit = f"limit {words.number(worst.limit.value)}, " if worst.limit else ""
        name = words.shorten(words.visible(worst.value), 34)
        label = (
            "Error at the output" if len(outputs) == 1 else f"Error at the worst of {len(outputs)} outputs"
        )
        yield Figure(label, words.number(worst.error), f"{limit}{name}")


def _share(layer: Layer) -> float:
    """Return a layer's total error over its total limit."""
    error = layer.error or 0.0
    if layer.limit is None or error == 0:
        return error
    return error / layer.limit.value if layer.limit.value > 0 else float("inf")


def _latency_figure(comparison: Comparison) -> Iterator[Figure]:
    a, b = comparison.a.latency, comparison.b.latency
    medians = [f"{side} {words.seconds(x.median)}" for side, x in (("A", a), ("B", b)) if x]
    if a and b and a.median > 0:
        change = (b.median / a.median - 1) * 100
        sign = "+" if change >= 0 else "−"
        note = f"{', '.join(medians)} ({sign}{words.number(abs(change))} %)"
        yield Figure("Latency", words.latency_change(a, b), note)
    elif medians:
        yield Figure("Latency", medians[0], "the other side was not measured")


# Latency and provenance


def _timings(comparison: Comparison) -> Iterator[Timing]:
    sums = {
        "A": [layer.time_a for layer in comparison.layers if layer.time_a is not None],
        "B": [layer.time_b for layer in comparison.layers if layer.time_b is not None],
    }
    for label, side in (("A", comparison.a), ("B", comparison.b)):
        x, layers = side.latency, sums[label]
        if x or layers:
            yield Timing(
                label=label,
                runner=words.runner(side),
                median=words.seconds(x.median if x else None),
                spread=f"{words.seconds(x.low)} to {words.seconds(x.high)}" if x else words.UNKNOWN,
                runs=words.group(x.runs) if x else words.UNKNOWN,
                layers=words.seconds(sum(layers)) if layers else words.UNKNOWN,
            )


def _side(side: Side) -> Iterator[tuple[str, str]]:
    yield "model", f"{side.model}, {words.size(side.size)}" if side.size is not None else side.model
    yield "sha256", side.sha256 or words.UNKNOWN
    yield "runner", words.runner(side)
    if side.settings:
        yield "settings", side.settings
    yield "taps change it?", _tap_gap(side.tap_gap)
    if side.fallbacks:
        yield "served by others", ", ".join(side.fallbacks)


def _tap_gap(gap: float | None) -> str:
    if gap is None:
        return "not measured"
    if gap == 0:
        return "no: tapped and untapped outputs are equal"
    return f"tapped and untapped outputs differ by at most {words.number(gap)}"


def _setting(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "seed", words.UNKNOWN if comparison.seed is None else str(comparison.seed)
    yield from sorted(comparison.environment.items())


def _reasons(comparison: Comparison) -> Iterator[Reason]:
    for reason, values in words.skip_reasons(comparison):
        shown = tuple(words.shorten(words.visible(value), LONGEST_WORD) for value in values[:50])
        more = f"and {words.group(len(values) - 50)} more" if len(values) > 50 else ""
        yield Reason(reason, words.group(len(values)), shown, more)


LISTED = 2000
"""Rows of a table without a script at most; the JSON has all."""


def left_out(count: int) -> str:
    """Return what is said under a table of which only the first rows are shown, "" when all are."""
    return f"and {words.group(count - LISTED)} more, which the JSON lists" if count > LISTED else ""
