"""ResultDiff → the words, figures and cells that all its forms share."""

from collections.abc import Iterator

from graphdoc.compare.result import Comparison, Layer
from graphdoc.reports import words
from graphdoc.reports.resultdiff import Direction, LatencyChange, LayerChange, ResultDiff, Setting

Cells = tuple[str, str, str, str]
"""A row of a table of layers: index, operator, name, what changed."""

TITLES = ("#", "op", "layer", "what")


def verdict(diff: ResultDiff) -> tuple[str, str]:
    """Return symbol and word: ✗ worse, ✓ better, ✓ same."""
    if not diff:
        return "✗", "worse"
    return "✓", "better" if diff.improved else "same"


def sentence(diff: ResultDiff) -> str:
    """Return the answer in one sentence, without the verdict's word; the weightiest reason comes first."""
    parts = list(_worse(diff)) if not diff else list(_better(diff))
    if parts:
        return "; ".join(parts[:2])
    if not diff.paired:
        return "no layer is in both results"
    return f"{_of(diff.steady, diff.paired)} are as before"


def _of(count: int, total: int) -> str:
    return f"{words.group(count)} of {words.group(total)} {_layers(total)}"


def _layers(count: int) -> str:
    return "layer" if count == 1 else "layers"


def _worse(diff: ResultDiff) -> Iterator[str]:
    if diff.worse:
        first = diff.worse[0]
        start = "" if len(diff.worse) == 1 else ", the first at "
        count = "" if len(diff.worse) == 1 else f"{words.group(len(diff.worse))} {_layers(len(diff.worse))}"
        yield f"{count}{start}{words.layer_title(first.after)}: {first.what[0]}"
    elif diff.verdict is Direction.WORSE:
        yield f"the verdict was '{_word(diff.before)}' and is '{_word(diff.after)}'"
    if diff.lost_outputs:
        names = ", ".join(words.shorten(words.visible(x.value), 40) for x in diff.lost_outputs[:3])
        yield f"no longer compared: {_count(len(diff.lost_outputs), 'output')} ({names})"
    if diff.latency_worse:
        yield from (f"B is slower: {latency(x)}" for x in diff.latency if x.direction is Direction.WORSE)


def _better(diff: ResultDiff) -> Iterator[str]:
    if diff.better:
        yield f"{_of(len(diff.better), diff.paired)}, none worse"
    elif diff.verdict is Direction.BETTER:
        yield f"the verdict was '{_word(diff.before)}' and is '{_word(diff.after)}'"
    yield from (f"B is faster: {latency(x)}" for x in diff.latency if x.direction is Direction.BETTER)


def _count(count: int, noun: str) -> str:
    return f"{words.group(count)} {noun}{'' if count == 1 else 's'}"


def _word(result: Comparison) -> str:
    return words.visible(result.verdict.word)


def latency(change: LatencyChange) -> str:
    """Return both medians, the ratio, and why it does not count: 30.0 ms → 42.6 ms, 1.42 ×."""
    medians = f"{words.seconds(change.before.median)} → {words.seconds(change.after.median)}"
    ratio = "" if change.ratio != change.ratio else f", {words.number(change.ratio, 3)} ×"
    return f"{medians}{ratio}{f' ({change.note})' if change.note else ''}"


def setting(item: Setting) -> tuple[str, str]:
    """Return label and text: ("not the same model B", "x.onnx, 4.7 MB → y.onnx, 4.7 MB")."""
    label = f"not the same {item.label}" if item.matters else item.label
    return label, f"{item.before} → {item.after}"


def ordered_settings(diff: ResultDiff) -> list[Setting]:
    """Return the settings, those first that the figures depend on."""
    return sorted(diff.settings, key=lambda item: not item.matters)


def facts(diff: ResultDiff) -> Iterator[tuple[str, str]]:
    """Yield label and text of what else the first screen says."""
    yield "verdict", f"{_result(diff.before)} → {_result(diff.after)}"
    if diff.before.first_divergence or diff.after.first_divergence:
        yield "first", f"{_first(diff.before)} → {_first(diff.after)}"
    yield "layers", counts(diff)
    if diff.pairing:
        yield "paired", diff.pairing
    for change in diff.latency:
        yield f"time {change.side}", latency(change)


def _result(result: Comparison) -> str:
    return f"{words.visible(result.verdict.symbol)} {_word(result)}"


def _first(result: Comparison) -> str:
    first = result.first_divergence
    return "none" if first is None else f"{words.layer_title(first)} {words.name(first)}"


def counts(diff: ResultDiff) -> str:
    """Return how many layers went which way: 326 as before, 3 worse, 1 better, 2 no longer compared."""
    rows = (
        (diff.steady, "as before"),
        (len(diff.worse), "worse"),
        (len(diff.better), "better"),
        (len(diff.lost), "no longer compared"),
        (len(diff.found), "compared only now"),
    )
    return ", ".join(f"{words.group(count)} {text}" for count, text in rows if count) or "none"


def change_cells(change: LayerChange) -> Cells:
    """Return the row of a layer that changed; the index of before too where it moved."""
    before, after = change.before.index, change.after.index
    index = str(after) if before == after else f"{before} → {after}"
    name = words.shorten(words.name(change.after), 200)
    return index, words.visible(change.after.op), name, "; ".join(change.what)


def layer_cells(layer: Layer) -> Cells:
    """Return the row of a layer that only one result has."""
    role = "output, " if layer.is_output else ""
    name = words.shorten(words.name(layer), 200)
    return str(layer.index), words.visible(layer.op), name, f"{role}{words.status(layer)}"
