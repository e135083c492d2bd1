"""Categories of ai.onnx.ml: strings looked up by the host, their codes and all numbers as steps."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.columns import Codes
from graphdoc.engine.expr import DTYPES, F32, I64, Expr, apply, cast, const, index
from graphdoc.engine.lower import Named, NotLowered, Site, constant, lowering
from graphdoc.engine.lower_index import look_up
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_trees import ML
from graphdoc.engine.ops import ml_encode
from graphdoc.engine.ops.ml_scores import texts
from graphdoc.engine.program import View


def _categories(cats_strings: Sequence[str] | None = None, zeros: int = 1, **_: Any) -> Callable[[Any], Any]:
    return Codes(cats_strings or (), strict=not zeros)


ZERO = const(0, I64)

_CLOSE = 1 << 12
"""How far apart the keys of a table over whole numbers may be."""


def _texts_of(attributes: dict[str, Any]) -> list[str]:
    """Return the strings that are keys of an encoder, none where its keys are numbers."""
    for name in ("classes_strings", "keys_strings"):
        if attributes.get(name):
            return list(attributes[name])
    keys = attributes.get("keys_tensor")
    return list(np.ravel(keys)) if keys is not None and np.asarray(keys).dtype == object else []


def _encoded(**attributes: Any) -> Callable[[Any], Any] | None:
    """Return the codes of an encoder's keys; of equal keys versions choose differently: level 0 does."""
    names = _texts_of(attributes)
    return Codes(names) if names and len(set(names)) == len(names) else None


@lowering("LabelEncoder", domain=ML, codes=_encoded)
def label_encoder(at: Site, X: View, **attributes: Any) -> View | Named:
    """The value beside each key: strings by their codes, whole numbers where the keys lie close together."""
    return _values(at, X, attributes)


def _values(at: Site, X: View, attributes: dict[str, Any]) -> View | Named:
    """Return the values of an encoder for codes or numbers."""
    keys, values, default = _table(attributes, coded=at.coded)
    count = len(keys)
    if at.coded:
        places = at.map(lambda x: apply("select", apply("lt", x, ZERO), const(count, I64), x), X)
    else:
        places, values = _by_number(at, X, keys), _spread(keys, values, default)
        count = len(values)
    table = np.empty(count + 1, values.dtype)
    table[:-1], table[-1] = values, default
    if table.dtype == object:
        return Named(table, places)
    if table.dtype not in DTYPES:
        raise NotLowered(f"values of {table.dtype}")
    found = look_up(at, constant(table, at.name), at.reshape(places, (places.size,)), 0)
    return at.reshape(found, X.shape)


def _mapped(cats_strings: Sequence[str] = (), **_: Any) -> Callable[[Any], Any]:
    return Codes(cats_strings)


@lowering("CategoryMapper", domain=ML, codes=_mapped)
def category_mapper(
    at: Site,
    X: View,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = ml_encode.UNUSED,
) -> View | Named:
    """Strings to the whole numbers beside them, or the other way; of equal keys the last counts."""
    if len(cats_int64s) != len(cats_strings) or not cats_strings:
        raise NotLowered("as many strings as there are no numbers")
    names, numbers = list(cats_strings), list(cats_int64s)
    options: dict[str, Any] = {"repeated": True}
    if at.coded:
        options |= {"keys_strings": names, "values_int64s": numbers, "default_int64": default_int64}
    else:
        options |= {"keys_int64s": numbers, "values_strings": names, "default_string": default_string}
    return _values(at, X, options)


def _table(attributes: dict[str, Any], *, coded: bool) -> tuple[Any, Any, Any]:
    """Return keys and values (rank 1) and the default of an encoder of any version."""
    if "classes_strings" in attributes:
        names, numbers = texts(attributes["classes_strings"]), np.arange(len(attributes["classes_strings"]))
        if coded:
            return names, numbers, attributes.get("default_int64", -1)
        return numbers, names, attributes.get("default_string", ml_encode.UNUSED)
    keys, values = ml_encode.column("keys", attributes), ml_encode.column("values", attributes)
    twice = len(set(keys.tolist())) != len(keys) and not attributes.get("repeated")
    if len(keys) != len(values) or twice:
        raise NotLowered("keys that repeat, or that do not fit the values")
    return keys, values, ml_encode.default(values, attributes)


def _by_number(at: Site, x: View, keys: Any) -> View:
    """Return the places of whole numbers in a table from the least key to the largest, its end elsewhere."""
    if keys.dtype != I64 or x.dtype != I64 or int(keys.max()) - int(keys.min()) >= _CLOSE:
        raise NotLowered("keys that are no whole numbers close together")
    low, span = const(int(keys.min()), I64), const(int(keys.max()) - int(keys.min()) + 1, I64)

    def place(number: Expr) -> Expr:
        inside = apply("and", apply("le", low, number), apply("lt", apply("sub", number, low), span))
        return apply("select", inside, apply("sub", number, low), span)

    return at.map(place, x)


def _spread(keys: Any, values: Any, default: Any) -> Any:
    """Return the values by key, from the least to the largest, the default between them."""
    low = int(keys.min())
    table = np.empty(int(keys.max()) - low + 1, values.dtype)
    table[:] = default
    table[keys - low] = values
    return table


@lowering("OneHotEncoder", domain=ML, codes=_categories)
def one_hot_encoder(
    at: Site,
    X: View,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    zeros: int = 1,
) -> View:
    """One axis more, 1 at the element's category: its code, or the last category that is the number."""
    column = with_ones(X, [len(X.shape)])
    if at.coded:
        shape = (*X.shape, len(cats_strings or cats_int64s or ()))
        return at.map(lambda x: cast(apply("eq", x, index(len(X.shape))), F32), column, shape=shape)
    numbers = list(cats_int64s or ())
    if not zeros or len(set(numbers)) != len(numbers) or not numbers:
        raise NotLowered("unknown categories are refused, or categories repeat")
    table = constant(np.asarray(numbers, np.int64), at.name)

    def hit(x: Expr, category: Expr) -> Expr:
        return cast(apply("eq", cast(x, I64), category), F32)

    return at.map(hit, column, table)
