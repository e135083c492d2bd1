"""The layers of a comparison as the page's script reads them: columns for all, details for those that matter.

Columns are short (a table of 10 000 layers must load at once), so names are shortened where there are many
and numbers keep just the digits that are shown. Details (metrics, reasons) are one JSON object a line, which
the script parses only when a layer is opened; they are written until DETAIL_BUDGET is used.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from graphdoc.compare.result import SYMBOLS, Comparison, Layer, Limit, Status
from graphdoc.reports import words
from graphdoc.reports.jsonform import plain

NAME_BUDGET = 1_000_000
DETAIL_BUDGET = 800_000
"""Bytes; together with the numbers of 10 000 layers they stay below 3 MB."""

_LONGEST_NAMES = (400, 200, 120, 80, 48, 32)
_LONGEST_IN_DETAIL = 2000
_SEVERITY = (Status.OWN, Status.NAN, Status.INHERITED, Status.REMARK, Status.SKIPPED, Status.AGREES)
_CLASSES = {
    Status.AGREES: "ok",
    Status.OWN: "own",
    Status.INHERITED: "inherited",
    Status.NAN: "nan",
    Status.REMARK: "remark",
    Status.SKIPPED: "skipped",
}

_NUMBERS: dict[str, tuple[int, Callable[[Layer], float | None]]] = {
    "error": (2, lambda layer: layer.error),
    "limit": (2, lambda layer: _value(layer.limit)),
    "own": (2, lambda layer: layer.own_error),
    "ownLimit": (2, lambda layer: _value(layer.own_limit)),
    "inherited": (2, lambda layer: layer.inherited_error),
    "ofLimit": (2, lambda layer: layer.of_limit),
    "effect": (2, lambda layer: layer.propagated_share),
    "truthA": (2, lambda layer: layer.truth_a),
    "truthB": (2, lambda layer: layer.truth_b),
    "timeA": (3, lambda layer: layer.time_a),
    "timeB": (3, lambda layer: layer.time_b),
}
"""Column → the significant digits that are shown of it, and where it comes from."""

_WORDS: dict[str, Callable[[Layer], str]] = {
    "op": lambda layer: words.visible(layer.op),
    "dtype": lambda layer: words.visible(layer.dtype),
    "shape": lambda layer: words.shape(layer.shape),
    "scope": lambda layer: words.shorten(words.visible(layer.scope), _LONGEST_NAMES[0]),
}
"""Columns with few distinct texts: the texts are listed once, the column holds positions in the list."""


def css_class(status: Status) -> str:
    """Return the class that colours a status."""
    return _CLASSES[status]


def columns(comparison: Comparison) -> dict[str, Any]:
    """Return everything the script needs for the charts and the table, ready for JSON."""
    layers = comparison.layers
    return {
        "count": len(layers),
        "first": comparison.verdict.first,
        "statuses": [
            [str(s), SYMBOLS[s], css_class(s), s in (Status.AGREES, Status.REMARK)] for s in _SEVERITY
        ],
        "status": [_SEVERITY.index(layer.status) for layer in layers],
        **_names(layers),
        **{name: _coded(map(text, layers)) for name, text in _WORDS.items()},
        **{name: _figures(map(get, layers), digits) for name, (digits, get) in _NUMBERS.items()},
        "inputs": [list(layer.inputs) for layer in layers],
        "outputs": [layer.index for layer in layers if layer.is_output],
        "occurrences": {str(x.index): x.occurrences for x in layers if x.occurrences != 1},
    }


def details(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield what the detail of a layer shows, the most wanted layers first, until the budget is used."""
    used = 0
    for layer in _by_interest(comparison):
        row = _detail(layer)
        used += len(htmlsafe_json_dumps(row))
        if used > DETAIL_BUDGET:
            return
        yield row


def _by_interest(comparison: Comparison) -> list[Layer]:
    """Return the layers: the first divergence and what feeds it, the outputs, the worst, all that differ."""
    first, layers = comparison.first_divergence, comparison.layers
    wanted = [first, *(layers[n] for n in first.inputs)] if first else []
    wanted += [layer for layer in layers if layer.is_output]
    wanted += [layer for layer in layers if layer.picture]
    order = [*wanted, *comparison.worst(500), *comparison.differing, *comparison.worst(len(layers)), *layers]
    return list({layer.index: layer for layer in order}.values())


def _detail(layer: Layer) -> dict[str, Any]:
    metrics = asdict(layer.metrics) if layer.metrics else {}
    row = {
        "i": layer.index,
        "node": words.shorten(words.visible(layer.node), _LONGEST_IN_DETAIL),
        "value": words.shorten(words.visible(layer.value), _LONGEST_IN_DETAIL),
        "domain": words.visible(layer.domain),
        "note": words.shorten(words.visible(layer.note), _LONGEST_IN_DETAIL),
        "limit": _reason(layer.limit),
        "ownLimit": _reason(layer.own_limit),
        "metrics": {key: _metric(value) for key, value in metrics.items() if value is not None},
        "picture": plain(layer.picture),
        "step": layer.step,
        "steps": layer.own_steps,
    }
    return {key: value for key, value in row.items() if value not in ("", None, {})}


def _reason(limit: Limit | None) -> str | None:
    return words.shorten(words.visible(limit.reason), _LONGEST_IN_DETAIL) if limit else None


def _value(limit: Limit | None) -> float | None:
    return limit.value if limit else None


def _metric(value: Any) -> Any:
    if isinstance(value, str):
        return {"text": words.shorten(words.visible(value), _LONGEST_NAMES[1])}
    return _strict(float(f"{value:.7g}")) if isinstance(value, float) else value


def _strict(value: float) -> float | str:
    """Return a number that JSON has, or the name by which the script's Number() knows it."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _figures(values: Iterable[float | None], digits: int) -> list[float | str | None] | None:
    """Return a column of numbers, or None when there is none in it."""
    column = [None if value is None else _short(value, digits) for value in values]
    return column if any(value is not None for value in column) else None


def _short(value: float, digits: int) -> float | str:
    """Return a value with two more digits than are shown, or all where rounding twice could show another."""
    if not math.isfinite(value) or abs(value) >= 10:
        return _strict(float(value))
    mantissa, exponent = f"{value:.{digits + 1}e}".split("e")
    return float(value) if mantissa.endswith("50") else float(f"{mantissa}e{exponent}")


def _coded(texts: Iterable[str]) -> dict[str, Any]:
    """Return the distinct texts and the position of each entry among them."""
    positions: dict[str, int] = {}
    column = [positions.setdefault(text, len(positions)) for text in texts]
    return {"texts": list(positions), "at": column}


def _names(layers: Sequence[Layer]) -> dict[str, list[str]]:
    """Return node and value names; a value that starts with its node's name is written "=" + the rest."""
    pairs = [(words.name(layer), words.visible(layer.value)) for layer in layers]
    for longest in _LONGEST_NAMES:
        nodes = [words.shorten(node, longest) for node, _ in pairs]
        values = [
            "=" + value.removeprefix(node) if value.startswith(node) else "!" + words.shorten(value, longest)
            for node, value in zip(nodes, (value for _, value in pairs), strict=True)
        ]
        if len(htmlsafe_json_dumps([nodes, values])) <= NAME_BUDGET:
            break
    return {"name": nodes, "value": values} if pairs else {"name": [], "value": []}
