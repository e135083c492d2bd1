"""Tables: which categories and which ranges the encoders, scalers and trees of a model were fitted to."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs_facts import Facts
from graphdoc.compare.inputs_uses import Part, Use, Walker
from graphdoc.engine.attributes import to_array

Array: TypeAlias = np.ndarray[Any, Any]
Fit: TypeAlias = tuple[Array, Array]
"""Centre and spread of each column of what an operator reads."""

MODEL_OPERATORS = frozenset(
    {
        "Scaler",
        "Imputer",
        "Normalizer",
        "Binarizer",
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
        "SVMClassifier",
        "SVMRegressor",
        "LinearClassifier",
        "LinearRegressor",
        "FeatureVectorizer",
    }
)

_MOST = 4_000_000
"""Elements of a constant that is still looked at."""


def attribute(node: ir.Node, name: str) -> Any:
    """Return an attribute's value, tensors as arrays, None when it is not there."""
    found = node.attributes.get(name)
    if found is None or found.is_ref():
        return None
    return to_array(found.value) if found.type == ir.AttributeType.TENSOR else found.value


# ---- categories ---------------------------------------------------------------------------------------

_CATEGORIES: dict[str, tuple[str, ...]] = {
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
    "LabelEncoder": ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "classes_strings"),
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "TfIdfVectorizer": ("pool_strings", "pool_int64s"),
}


def categories(facts: Facts) -> list[tuple[Part | None, list[Any], str]]:
    """Return the known categories of the input or of parts of it: part, choices, encoder in words."""
    found = []
    for use in facts.uses:
        choices = _choices(facts, use)
        if choices:
            found.append((use.path.part, choices, f"{use.op} {use.node.name}".strip()))
    return found


def _choices(facts: Facts, use: Use) -> list[Any]:
    names = _CATEGORIES.get(use.op, ())
    lists = [list(value) for name in names if (value := attribute(use.node, name)) is not None]
    if use.op == "Equal":
        constant = facts.walker.constant(use.node.inputs[1 - use.slot])
        lists = [] if constant is None or facts.kind != "O" else [list(constant.reshape(-1))]
    text = facts.kind == "O"
    return next((c for c in lists if c and isinstance(c[0], str) == text), [])


# ---- ranges -------------------------------------------------------------------------------------------


def fitted(facts: Facts, columns: int) -> tuple[Array, Array, str] | None:
    """Return centre and spread per column of the input and what they come from; None when nothing tells."""
    found = [(rank, use, fit) for use in facts.uses for rank, fit in _fits(facts.walker, use, columns)]
    if not found:
        return None
    centre, spread = np.zeros(columns), np.ones(columns)
    for _, use, (middle, width) in sorted(found, key=lambda item: -item[0]):
        for inner, outer in _pairs(use, len(middle), columns):
            if np.isfinite(middle[inner]):
                centre[outer], spread[outer] = middle[inner], width[inner]
    best = min(found, key=lambda item: item[0])[1]
    return centre, spread, f"{best.op} {best.node.name}".strip()


def _pairs(use: Use, width: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield columns of the value an operator reads with the input's columns they come from."""
    part = use.path.part
    if part is None:
        yield from ((i, i) for i in range(min(width, columns)))
        return
    for offset, column in enumerate(part.indices):
        if part.start + offset < width and column < columns:
            yield part.start + offset, column


def _fits(walker: Walker, use: Use, columns: int) -> Iterator[tuple[int, Fit]]:
    """Yield how sure the source is (0: surest) and what the operator was fitted to."""
    for rank, (operators, rule) in enumerate(_FITS):
        if use.op in operators and use.path.scale == 1.0:
            fit = rule(walker, use, columns)
            if fit is not None:
                yield rank, fit


def _scaler(_walker: Walker, use: Use, columns: int) -> Fit | None:
    offset, scale = attribute(use.node, "offset"), attribute(use.node, "scale")
    if not offset or not scale:
        return None
    width = max(len(offset), len(scale), columns if len(offset) == 1 else 0)
    middle = np.broadcast_to(np.asarray(offset, float), (width,))
    inverse = np.broadcast_to(np.asarray(scale, float), (width,))
    return middle, np.abs(np.divide(1.0, inverse, out=np.ones(width), where=inverse != 0))


def _trees(_walker: Walker, use: Use, _columns: int) -> Fit | None:
    features = attribute(use.node, "nodes_featureids")
    limits = attribute(use.node, "nodes_values")
    limits = attribute(use.node, "nodes_splits") if limits is None else limits
    if limits is None:
        limits = attribute(use.node, "nodes_values_as_tensor")
    modes = attribute(use.node, "nodes_modes")
    if features is None or limits is None or not len(features):
        return None
    ids, values = np.asarray(features), np.asarray(limits, float)
    inner = np.asarray([mode != "LEAF" for mode in modes]) if isinstance(modes, list | tuple) else ids >= 0
    return _by_feature(ids[inner], values[inner])


def _by_feature(ids: Array, values: Array) -> Fit | None:
    """Return median and spread of the thresholds of each feature, NaN where a feature has none."""
    if not ids.size:
        return None
    middle = np.full(int(ids.max()) + 1, np.nan)
    width = np.ones_like(middle)
    order = np.argsort(ids, kind="stable")
    names, starts = np.unique(ids[order], return_index=True)
    for feature, chunk in zip(names, np.split(values[order], starts[1:]), strict=True):
        middle[feature] = np.median(chunk)
        width[feature] = chunk.std() or abs(middle[feature]) * 0.3 or 1.0
    return middle, width


def _vectors(_walker: Walker, use: Use, _columns: int) -> Fit | None:
    vectors = attribute(use.node, "support_vectors")
    per_class = attribute(use.node, "vectors_per_class")
    count = sum(per_class) if per_class else attribute(use.node, "n_supports")
    if not vectors or not count or len(vectors) % count:
        return None
    return _rows(np.asarray(vectors, float).reshape(count, -1))


def _rows(table: Array) -> Fit:
    spread = table.std(axis=0)
    return table.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _imputed(_walker: Walker, use: Use, _columns: int) -> Fit | None:
    values = attribute(use.node, "imputed_value_floats") or attribute(use.node, "imputed_value_int64s")
    if not values:
        return None
    middle = np.asarray(values, float)
    return middle, np.maximum(np.abs(middle) * 0.3, 0.1)


def _examples(walker: Walker, use: Use, columns: int) -> Fit | None:
    """Return the rows an input is compared with (nearest neighbours), or the means it is freed of."""
    other = walker.origin(use.node.inputs[1 - use.slot]) if len(use.node.inputs) == 2 else None
    tensor = None if other is None else other.const_value
    if tensor is None or not 1 <= len(tensor.shape) <= 2 or tensor.shape[-1] != columns or columns < 2:
        return None
    table = np.asarray(to_array(tensor)) if tensor.size <= _MOST else None
    if table is None or table.dtype.kind != "f" or not np.isfinite(table).all():
        return None
    return (
        _rows(table.astype(float))
        if table.ndim == 2 and len(table) > 1
        else (table.reshape(-1), _ones(table))
    )


def _ones(table: Array) -> Array:
    return np.ones(table.shape[-1])


_FITS: tuple[tuple[frozenset[str], Callable[[Walker, Use, int], Fit | None]], ...] = (
    (frozenset({"Scaler"}), _scaler),
    (frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble"}), _trees),
    (frozenset({"SVMClassifier", "SVMRegressor"}), _vectors),
    (frozenset({"Sub", "CDist"}), _examples),
    (frozenset({"Imputer"}), _imputed),
)


def missing_marker(facts: Facts) -> bool:
    """Whether NaN is among the values the model expects: its Imputer replaces it."""
    use = facts.first(("Imputer",))
    marker = None if use is None else attribute(use.node, "replaced_value_float")
    return marker is not None and bool(np.isnan(marker))


def widths(facts: Facts) -> list[int]:
    """Return how many columns the operators that read the whole input take, surest first."""
    found = []
    for use in facts.uses:
        if use.path.part is None and use.op in MODEL_OPERATORS:
            found += [len(fit[0]) for _, fit in _fits(facts.walker, use, 0)]
            coefficients = attribute(use.node, "coefficients")
            labels = _targets(use.node)
            if coefficients and use.op.startswith("Linear") and labels:
                found.append(len(coefficients) // labels)
    return [width for width in found if width > 0]


def _targets(node: ir.Node) -> int:
    intercepts = attribute(node, "intercepts")
    targets = attribute(node, "targets")
    return len(intercepts) if intercepts else int(targets or 1)
