"""Comparison ↔ JSON, as docs/json-schema.md describes it.

The text is strict JSON (RFC 8259): numbers that are not finite are the strings "NaN", "Infinity" and
"-Infinity". Reading checks every type, so that what a report shows was checked no matter where it comes from.
"""

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from itertools import cycle
from typing import Any, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

from graphdoc.compare.picture import APART, CELLS, EQUAL, LEVELS, Picture
from graphdoc.compare.result import SCHEMA, Comparison, Layer, Side, Status
from graphdoc.engine.errors import InputError

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_IN_LAYER = ("max_abs", "max_rel", "rms", "cosine", "ulp")
"""Metrics that stand in the layer itself, since they are what most readers look for."""

_LIMITS = {"limit": "tolerance", "own_limit": "own_tolerance"}
"""Attribute of a layer → its name in JSON; the reason is at the same name with _reason."""

_NEXT_STEP = "write the file again:  graphdoc compare REF TEST --json FILE"


# Writing


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text, ending in a newline; the same comparison gives the same text."""
    layers = [_layer(layer) for layer in comparison.layers]
    head = {key: value for key, value in _document(comparison).items() if key != "layers"}
    text = json.dumps(head, indent=2, allow_nan=False)
    rows = ",\n    ".join(json.dumps(row, allow_nan=False) for row in layers)
    listed = f"[\n    {rows}\n  ]" if rows else "[]"
    return f'{text[:-2]},\n  "layers": {listed}\n}}\n'


def _document(comparison: Comparison) -> dict[str, Any]:
    first = comparison.first_divergence
    return {
        "schema": SCHEMA,
        "agrees": bool(comparison),
        "compared": sum(layer.status is not Status.SKIPPED for layer in comparison.layers),
        "differ": len(comparison.differing),
        "first_divergence": None if first is None else {k: getattr(first, k) for k in _FIRST},
        "verdict": plain(comparison.verdict),
        "runners": {label: _side(getattr(comparison, label)) for label in ("a", "b")},
        "inputs": plain(comparison.inputs),
        **{key: plain(getattr(comparison, key)) for key in _rest()},
    }


_FIRST = ("value", "node", "op", "index")
_DONE = frozenset({"verdict", "layers", "a", "b", "inputs"})


def _rest() -> list[str]:
    return [f.name for f in dataclasses.fields(Comparison) if f.name not in _DONE]


def _side(side: Side) -> dict[str, Any]:
    row: dict[str, Any] = plain(side)
    return {"name": row.pop("runner"), **row}


def _layer(layer: Layer) -> dict[str, Any]:
    row: dict[str, Any] = plain(layer)
    row["agrees"] = layer.agrees
    for attribute, key in _LIMITS.items():
        limit = row.pop(attribute) or {"value": None, "reason": None}
        row |= {key: limit["value"], f"{key}_reason": limit["reason"]}
    metrics = row.pop("metrics")
    row |= {key: metrics.pop(key) if metrics else None for key in _IN_LAYER}
    return {**row, "metrics": metrics}


def plain(value: Any) -> Any:
    """Return a value in the types of JSON."""
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if dataclasses.is_dataclass(value):
        return {f.name: _field(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


def _field(name: str, value: Any) -> Any:
    """Return a field; an element that is text is kept apart from the names of numbers."""
    if name in ("a_worst", "b_worst") and isinstance(value, str):
        return {"text": value}
    return plain(value)


# Reading


def from_json(text: str) -> Comparison:
    """Return the comparison that :func:`to_json` wrote.

    Raises InputError when the text is not strict JSON, not of this schema, or contradicts itself; the error
    names the place, such as layers[3].error.
    """
    try:
        document = _object(_parse(text))
        _check_schema(document.get("schema"))
        comparison: Comparison = _reader(Comparison)(_arranged(document))
        _check(comparison)
    except _BadValueError as error:
        cause = f"not a comparison in JSON: {error}"
        raise InputError(cause, where=error.path() or "the file", next_step=_NEXT_STEP) from error
    return comparison


class _BadValueError(Exception):
    """A value that does not fit; each level it passes adds its part of the path."""

    def __init__(self, cause: str, *path: str | int) -> None:
        super().__init__(cause)
        self.parts = list(path)

    def path(self) -> str:
        """Return the way to the value: layers[3].error."""
        steps = (f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in reversed(self.parts))
        return "".join(steps).lstrip(".")


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique)
    except RecursionError as error:
        raise _BadValueError("nested too deep") from error
    except ValueError as error:
        raise _BadValueError(str(error)) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _check_schema(schema: Any) -> None:
    if schema != SCHEMA:
        raise _BadValueError(f"expected {SCHEMA!r}, found {_describe(schema)}", "schema")


def _arranged(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the attributes of :class:`Comparison` in their places."""
    with _at("runners"):
        sides = _object(document.get("runners"))
        a, b = ({**_object(sides.get(label)), "runner": sides[label].get("name")} for label in ("a", "b"))
    with _at("layers"):
        layers = [_nested(row, n) for n, row in enumerate(_array(document.get("layers")))]
    return {**document, "a": a, "b": b, "layers": layers}


def _nested(value: Any, position: int) -> dict[str, Any]:
    """Return a layer with its limits and metrics as :class:`Layer` has them."""
    with _at(position):
        row = dict(_object(value))
        for attribute, key in _LIMITS.items():
            limit = {"value": row.get(key), "reason": row.get(f"{key}_reason")}
            row[attribute] = None if limit["value"] is None else limit
        if row.get("metrics") is not None:
            row["metrics"] = {**_object(row["metrics"]), **{key: row.get(key) for key in _IN_LAYER}}
    return row


@contextmanager
def _at(part: str | int) -> Iterator[None]:
    """Add a part of the path to what is raised inside."""
    try:
        yield
    except _BadValueError as error:
        error.parts.append(part)
        raise


def _check(comparison: Comparison) -> None:
    """Refuse a comparison that points to layers it does not have."""
    count = len(comparison.layers)
    for n, layer in enumerate(comparison.layers):
        if layer.index != n:
            raise _BadValueError(f"index {layer.index} in place {n}", "index", n, "layers")
        if any(not 0 <= source < count for source in layer.inputs):
            raise _BadValueError(f"names a layer that is not among the {count}", "inputs", n, "layers")
        if layer.picture is not None:
            with _at("layers"), _at(n), _at("picture"):
                _check_picture(layer.picture)
    first = comparison.verdict.first
    if first is not None and not 0 <= first < count:
        raise _BadValueError(f"{first} is not among the {count} layers", "first", "verdict")
    if not 0 <= comparison.verdict.exit_code <= 5:
        raise _BadValueError(f"{comparison.verdict.exit_code} is no exit code", "exit_code", "verdict")


def _check_picture(picture: Picture) -> None:
    """Refuse drawings that contradict themselves."""
    for name in ("histogram", "magnitudes"):
        drawn = getattr(picture, name)
        if drawn is not None and not (len(drawn.a) == len(drawn.b) and 0 < len(drawn.a) <= _MOST_BINS):
            raise _BadValueError(f"expected 1 to {_MOST_BINS} counts, as many for a as for b", name)
        if drawn is not None and not 0 <= min(*drawn.a, *drawn.b) <= max(*drawn.a, *drawn.b) < _LARGEST:
            raise _BadValueError("a count is negative or too large", name)
    if picture.histogram and not -math.inf < picture.histogram.low <= picture.histogram.high < math.inf:
        raise _BadValueError("expected a range", "low", "histogram")
    if picture.magnitudes and abs(picture.magnitudes.low) > _FURTHEST_POWER:
        raise _BadValueError("no power of two of a float", "low", "magnitudes")
    heat = picture.heat
    if heat is None:
        return
    widths = {len(row) for row in heat.cells}
    if len(widths) != 1 or not 0 < max(widths) <= CELLS or len(heat.cells) > CELLS:
        raise _BadValueError(f"expected rows of one length, 1 to {CELLS} cells each way", "cells", "heat")
    if not set("".join(heat.cells)) <= {*LEVELS, EQUAL, APART}:
        raise _BadValueError("unknown letter", "cells", "heat")
    if not (0 <= heat.largest < math.inf and 0 < min(heat.shape) <= max(heat.shape) < _LARGEST):
        raise _BadValueError("expected a difference and a shape", "heat")


_MOST_BINS = 400
"""More than any picture has; a bound on what a page has to draw."""

_LARGEST = 2**53
"""Whole numbers below it are exact in the page's script, too."""

_FURTHEST_POWER = 1100


# Readers: one function per type, which checks a value of JSON and returns it as that type


Reader: TypeAlias = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> Reader:
    """Return the reader of an annotated type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return _mapping(_reader(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _record(hint)
    return _SCALARS.get(hint) or _enum(hint)


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)]
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def read(value: Any) -> Any:
        row = _object(value)
        for name in needed:
            if name not in row:
                raise _BadValueError("the key is missing", name)
        found = {}
        name = ""
        try:
            for name, reader in fields:
                if name in row:
                    found[name] = reader(row[name])
        except _BadValueError as error:
            error.parts.append(name)
            raise
        return kind(**found)

    return read


def _optional(kinds: tuple[Any, ...]) -> Reader:
    """Return the reader of ``X | None``; text beside a number comes as {"text": …}."""
    inner = _reader(next(kind for kind in kinds if kind is not type(None)))
    empty, text = type(None) in kinds, str in kinds and kinds[0] is not str

    def read(value: Any) -> Any:
        if value is None and empty:
            return None
        return _string(value.get("text")) if text and isinstance(value, dict) else inner(value)

    return read


def _tuple(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds if kind is not Ellipsis]
    repeated = kinds[-1] is Ellipsis

    def read(value: Any) -> tuple[Any, ...]:
        items = _array(value)
        if not repeated and len(items) != len(readers):
            raise _BadValueError(f"expected {len(readers)} entries, found {len(items)}")
        found: list[Any] = []
        try:
            for reader, item in zip(cycle(readers), items, strict=False):
                found.append(reader(item))
        except _BadValueError as error:
            error.parts.append(len(found))
            raise
        return tuple(found)

    return read


def _mapping(reader: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in _object(value).items():
            with _at(key):
                found[key] = reader(item)
        return found

    return read


def _enum(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(_string(value))
        except ValueError as error:
            raise _BadValueError(f"unknown word {value[:60]!r}") from error

    return read


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _BadValueError(f"expected a number, found {_describe(value)}")
    try:
        float(value)
    except OverflowError as error:
        raise _BadValueError("the number is too large") from error
    return value


def _checked(kind: type, name: str) -> Reader:
    """Return the reader of a type of JSON; true is no number."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _BadValueError(f"expected {name}, found {_describe(value)}")
        return value

    return read


def _describe(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


_object = _checked(dict, "an object")
_array = _checked(list, "a list")
_string = _checked(str, "text")
_SCALARS: dict[Any, Reader] = {
    float: _float,
    int: _checked(int, "a whole number"),
    str: _string,
    bool: _checked(bool, "true or false"),
}
