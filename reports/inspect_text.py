"""ModelSummary → what the terminal or a pipe shows, and JSON."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from graphdoc.reports import words
from graphdoc.reports.text import WIDE, Style
from graphdoc.surgeon.inspect import SCHEMA, LayerSummary, ModelSummary, ValueSummary, WeightSummary

_KINDS = 6
"""Operators named in the overview."""

_ELLIPSIS = "…"
_SHORTEST_NAME = 12


def inspect_lines(
    summary: ModelSummary, *, width: int = 80, color: bool, pipe: bool, unicode: bool = True
) -> str:
    """Return the printed form of a summary, ending in a newline.

    width: columns of the terminal. color: for a terminal. pipe: the reader is a program, nothing is
    shortened. unicode: False for ASCII.
    """
    style = Style(max(width, 40), color, pipe, unicode)
    blocks = [[_headline(summary, style)], _overview(summary, style)]
    blocks += [_operators(summary, style), _layers(summary.layers, style), _weights(summary.weights, style)]
    blocks.append(_remarks(summary, style))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def inspect_json(summary: ModelSummary) -> str:
    """Return a summary as JSON text, ending in a newline; the default domain is named ai.onnx."""
    document = {"schema": SCHEMA, **dataclasses.asdict(summary)}
    document["opsets"] = {domain or "ai.onnx": version for domain, version in summary.opsets.items()}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _headline(summary: ModelSummary, style: Style) -> str:
    parts = [words.size(summary.size), f"IR {summary.ir_version}"]
    parts += [f"{domain or 'ai.onnx'} {version}" for domain, version in summary.opsets.items()]
    parts.append(f"{_count(summary.layer_count, 'layer')} + {_count(summary.constant_count, 'constant')}")
    if summary.function_count:
        parts.append(_count(summary.function_count, "function"))
    lead = f"{style.plain(summary.name)}   "
    first, *rest = style.wrap(", ".join(parts), min(words.cells(lead), 40))
    return "\n".join([lead + first, *(" " * min(words.cells(lead), 40) + line for line in rest)])


def _count(number: int, noun: str) -> str:
    return f"{words.group(number)} {noun}{'' if number == 1 else 's'}"


def _overview(summary: ModelSummary, style: Style) -> list[str]:
    values = [("in", value) for value in summary.inputs] + [("out", value) for value in summary.outputs]
    names = [style.plain(value.name) for _, value in values]
    if style.shortens:
        names = [style.short(name, max(_SHORTEST_NAME, style.width // 2 - 8)) for name in names]
    longest = max((words.cells(name) for name in names), default=0)
    dtypes = max((len(value.dtype) for _, value in values), default=0)
    lines = []
    for (label, value), name in zip(values, names, strict=True):
        blanks = " " * (longest - words.cells(name))
        lead = f"  {label:<3}  {name}{blanks}  {value.dtype or words.UNKNOWN:<{dtypes}}  "
        room = None if style.pipe else style.width - words.cells(lead)
        lines.append((lead + style.plain(shape_words(value, room))).rstrip())
    return [*lines, *_kinds(summary, style)]


def _kinds(summary: ModelSummary, style: Style) -> list[str]:
    shown = [f"{op} {words.group(count)}" for op, count in summary.operator_counts[:_KINDS]]
    more = len(summary.operator_counts) - _KINDS
    if more > 0:
        shown.append(f"{more} more {'kind' if more == 1 else 'kinds'}")
    lines = style.wrap(", ".join(shown), 7)
    return [f"  ops  {lines[0]}", *(f"       {line}" for line in lines[1:])] if shown else []


def shape_words(value: ValueSummary, room: int | None = None) -> str:
    """Return a shape: batch × 3 × 224 × 224; an unknown size is ?; symbols that do not fit become …."""
    if value.shape is None:
        return words.UNKNOWN
    if not value.shape:
        return "scalar"
    dims = ["?" if dim is None else words.visible(str(dim)) for dim in value.shape]
    symbols = [place for place, dim in enumerate(value.shape) if isinstance(dim, str)]
    while room is not None and symbols and words.cells(" × ".join(dims)) > room:
        dims[symbols.pop()] = _ELLIPSIS
    return " × ".join(dims)


def _remarks(summary: ModelSummary, style: Style) -> list[str]:
    lines = []
    for remark in summary.remarks:
        lead = f"{style.symbol('▲')} remark: "
        first, *rest = style.wrap(remark, words.cells(lead))
        lines.append(f"{style.paint('▲', lead.rstrip())} {first}")
        lines += [" " * words.cells(lead) + line for line in rest]
    return lines


# Tables


def _operators(summary: ModelSummary, style: Style) -> list[str]:
    rows = [
        (
            f"{row.domain}::{row.op}" if row.domain else row.op,
            words.group(row.count),
            words.UNKNOWN if row.version is None else str(row.version),
            row.engine,
            row.ort or words.UNKNOWN,
            row.cuda,
        )
        for row in summary.operators
    ]
    titles = ("operator", "count", "version", "engine", "ort", "cuda")
    return table(titles, rows, style, right=(1, 2), name=0)


def _layers(layers: Sequence[LayerSummary], style: Style) -> list[str]:
    """Return one row per value, numbered as in a comparison."""
    wide = style.pipe or style.width >= WIDE
    rows = [_row(*pair, wide=wide) for layer in layers for pair in _values(layer)]
    titles = ("#", "op", "layer", *(("value",) if wide else ()), "dtype", "shape")
    return table(titles, rows, style, right=(0,), name=2)


def _values(layer: LayerSummary) -> Iterator[tuple[LayerSummary, int, ValueSummary]]:
    yield from ((layer, slot, value) for slot, value in enumerate(layer.outputs))


def _row(layer: LayerSummary, slot: int, value: ValueSummary, *, wide: bool) -> tuple[str, ...]:
    number = words.UNKNOWN if layer.index is None else str(layer.index + slot)
    op = "  " * layer.depth + (f"{layer.domain}::{layer.op}" if layer.domain else layer.op)
    qualified = (f"{layer.scope}{value.name}",) if wide else ()
    return (number, op, layer.name, *qualified, value.dtype or words.UNKNOWN, shape_words(value))


def _weights(weights: Sequence[WeightSummary], style: Style) -> list[str]:
    rows = [
        (
            f"{row.scope}{row.name}",
            row.dtype,
            words.shape(row.shape),
            words.size(row.bytes),
            words.number(row.minimum),
            words.number(row.maximum),
            words.number(row.absmax),
            words.percent(row.zeros),
            row.remark,
        )
        for row in weights
    ]
    titles = ("weight", "dtype", "shape", "size", "min", "max", "absmax", "zeros", "remark")
    return table(titles, rows, style, right=(3, 4, 5, 6, 7), name=0)


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: Style,
    *,
    right: Sequence[int] = (),
    name: int = 0,
) -> list[str]:
    """Return title row and rows, columns two spaces apart.

    right: columns set to the right. name: the column that is shortened when a terminal is too narrow.
    """
    if not rows:
        return []
    cells: list[list[Any]] = [list(titles), *([style.plain(text) for text in row] for row in rows)]
    widths = _widths(cells)
    if style.shortens:
        room = max(_SHORTEST_NAME, style.width - sum(widths) + widths[name] - 2 * len(titles))
        for row in cells:
            row[name] = style.short(row[name], room)
        widths = _widths(cells)
    return [_line(row, widths, right) for row in cells]


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(words.cells(text) for text in column) for column in zip(*cells, strict=True)]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    parts = []
    for place, (text, width) in enumerate(zip(row, widths, strict=True)):
        blanks = " " * (width - words.cells(text))
        parts.append(blanks + text if place in right else text + blanks)
    return ("  " + "  ".join(parts)).rstrip()
