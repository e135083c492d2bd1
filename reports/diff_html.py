"""ModelDiff → one HTML file that opens offline. It needs no script."""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from graphdoc.reports import diff_words, words
from graphdoc.reports.html import LISTED, Figure, environment, left_out, source
from graphdoc.surgeon.diff import ModelDiff, NodeChange

OPEN = 40
"""Groups of at most this many rows are shown unfolded."""


@dataclass(frozen=True, slots=True)
class Group:
    """Node changes of one kind and operator. rows: operator, name and details of each."""

    title: str
    count: str
    rows: tuple[tuple[str, str, str], ...]
    more: str
    unfolded: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template shows."""

    diff: ModelDiff
    title: str
    tone: str
    symbol: str
    word: str
    headline: str
    figures: tuple[Figure, ...]
    facts: tuple[tuple[str, str], ...]
    model: tuple[tuple[str, str, str], ...]
    groups: tuple[Group, ...]
    weights: tuple[tuple[str, ...], ...]
    more_weights: str


def render_html(diff: ModelDiff) -> str:
    """Return the page of a difference; the same difference gives the same text."""
    style = Markup(source("report.css"))  # noqa: S704 - our own file
    return environment().get_template("diff.html.j2").render(page=_page(diff), style=style)


def _page(diff: ModelDiff) -> Page:
    symbol, word = diff_words.verdict(diff)
    sentence = words.visible(diff_words.sentence(diff))
    return Page(
        diff=diff,
        title=f"{symbol} {word} — {diff.a.name}, {diff.b.name} — graphdoc",
        tone="ok" if diff else "bad",
        symbol=symbol,
        word=word[:1].upper() + word[1:],
        headline=sentence[:1].upper() + sentence[1:],
        figures=tuple(_figures(diff)),
        facts=tuple(diff_words.facts(diff)),
        model=tuple(_model(diff)),
        groups=tuple(_groups(diff)),
        weights=tuple(diff_words.weight_cells(change) for change in diff.weights[:LISTED]),
        more_weights=left_out(len(diff.weights)),
    )


def _figures(diff: ModelDiff) -> Iterator[Figure]:
    total = diff.same_nodes + sum(change.kind != "added" for change in diff.nodes)
    yield Figure(
        "Nodes that are equal",
        f"{words.group(diff.same_nodes)} of {words.group(total)}",
        f"B has {words.group(diff.b.nodes)}",
    )
    counts = {
        kind: sum(diff_words.KINDS[c.kind] == kind for c in diff.nodes)
        for kind in ("changed", "removed", "added")
    }
    note = ", ".join(f"{words.group(n)} {kind}" for kind, n in counts.items())
    yield Figure("Nodes that differ", words.group(len(diff.nodes)), note)
    changed = sum(change.kind == "changed" for change in diff.weights)
    one_sided = words.group(len(diff.weights) - changed)
    note = f"{words.group(diff.same_weights)} are equal, {one_sided} only on one side"
    yield Figure("Weights that changed", words.group(changed), note)
    yield Figure("Size", f"{words.size(diff.a.bytes)} → {words.size(diff.b.bytes)}", "external data included")


def _model(diff: ModelDiff) -> Iterator[tuple[str, str, str]]:
    """Yield what changed, before and after."""
    for change in diff.fields:
        yield change.field, change.a or words.UNKNOWN, change.b or words.UNKNOWN
    for port in diff.interface:
        yield (
            f"{port.role} {port.name} {port.kind}".replace("  ", " "),
            port.a or words.UNKNOWN,
            port.b or words.UNKNOWN,
        )


def _groups(diff: ModelDiff) -> Iterator[Group]:
    """Yield the node changes by kind and operator, in the order of the kinds, the commonest first."""
    found: dict[tuple[str, str], list[NodeChange]] = {}
    for change in diff.nodes:
        found.setdefault((change.kind, diff_words.node_cells(change)[1]), []).append(change)
    order = list(diff_words.TITLES)
    for (kind, op), changes in sorted(
        found.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0][1])
    ):
        rows = tuple(diff_words.node_cells(change)[1:] for change in changes[:LISTED])
        title = f"{op}: {diff_words.TITLES[kind]}"
        yield Group(title, words.group(len(changes)), rows, left_out(len(changes)), len(changes) <= OPEN // 4)
