"""Encoders, look-ups and maps of ai.onnx.ml.

Strings are object arrays on the host whatever the array namespace; a look-up by string gives an array of
``call.xp`` when its values are numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.host import to_host
from graphdoc.engine.ops.ml_scores import texts
from graphdoc.engine.ops.table import Array, Call, ContainerType, Dim, TensorType, op

ML = "ai.onnx.ml"
UNUSED = "_Unused"
STRING = np.dtype(object)


def _position(call: Call, keys: np.ndarray[Any, Any], x: Array, *, last: bool = False) -> Array:
    """Return where each element of x stands among the keys, −1 where nowhere; int64 of x's shape.

    A repeated key counts where it stands first, or last. NaN equals NaN. The keys are the node's attributes:
    what is made of them is kept.
    """
    memo = call.memo
    if x.dtype == STRING:
        if "index" not in memo:
            order = range(len(keys)) if last else range(len(keys) - 1, -1, -1)
            memo["index"] = {keys[i]: i for i in order}
        index = memo["index"]
        found = np.fromiter((index.get(item, -1) for item in x.ravel()), np.int64, x.size)
        return found.reshape(x.shape)
    if not len(keys):
        return call.xp.full(x.shape, -1, np.int64)
    if "sorted" not in memo:
        order_of = len(keys) - 1 - np.arange(len(keys)) if last else np.arange(len(keys))
        sorted_keys, first = np.unique(keys[order_of], return_index=True)
        memo["sorted"] = call.xp.asarray(sorted_keys), call.xp.asarray(order_of[first])
    table, standing = memo["sorted"]
    at = call.xp.minimum(call.xp.searchsorted(table, x), len(table) - 1)
    nearest = table[at]
    equal = nearest == x
    if table.dtype.kind == "f":
        equal |= (nearest != nearest) & (x != x)
    return call.xp.where(equal, standing[at], -1)


def _look_up(
    call: Call,
    keys: np.ndarray[Any, Any],
    values: np.ndarray[Any, Any],
    default: Any,
    x: Array,
    *,
    last: bool = False,
) -> Array:
    """Return the value of each element's key, ``default`` where there is none, in the dtype of ``values``."""
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values")
    at = _position(call, keys, x, last=last)
    table = np.empty(len(values) + 1, values.dtype)
    table[:-1] = values
    table[-1] = default
    return table[to_host(at)] if table.dtype == STRING else call.xp.asarray(table)[call.xp.asarray(at)]


# ---- LabelEncoder, CategoryMapper ---------------------------------------------------------------------


def _swap(call: Call, x: TensorType, **attributes: Any) -> TensorType:
    """Strings become int64, int64 becomes strings."""
    return TensorType(
        None if x.dtype is None else (np.dtype(np.int64) if x.dtype == STRING else STRING), x.shape
    )


@op("LabelEncoder", 1, domain=ML, infer=_swap)
def label_encoder_1(
    call: Call,
    X: Array,
    *,
    classes_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = UNUSED,
) -> Array:
    """Strings to their position among the classes, or positions to strings; ai.onnx.ml version 1."""
    names, numbers = texts(classes_strings), np.arange(len(classes_strings))
    if X.dtype == STRING:
        return _look_up(call, names, numbers, default_int64, X)
    return _look_up(call, numbers, names, default_string, X)


@op("CategoryMapper", 1, domain=ML, infer=_swap)
def category_mapper(
    call: Call,
    X: Array,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = UNUSED,
) -> Array:
    """Strings to the integers beside them, or the other way; ai.onnx.ml version 1.

    Of equal keys the last counts.
    """
    names, numbers = texts(cats_strings), np.asarray(cats_int64s, np.int64)
    if X.dtype == STRING:
        return _look_up(call, names, numbers, default_int64, X, last=True)
    return _look_up(call, numbers, names, default_string, X, last=True)


KINDS: Mapping[str, Callable[[Any], np.ndarray[Any, Any]]] = {
    "tensor": lambda values: np.asarray(values).reshape(-1),
    "strings": texts,
    "int64s": lambda values: np.asarray(values, np.int64),
    "floats": lambda values: np.asarray(values, np.float32),
}


def column(side: str, attributes: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return keys_* or values_* as an array, whichever form the node has."""
    for kind, convert in KINDS.items():
        values = attributes.get(f"{side}_{kind}")
        if values is not None and len(values):
            return convert(values)
    raise ValueError(f"one of the {side}_* attributes is needed")


def default(values: np.ndarray[Any, Any], attributes: Mapping[str, Any]) -> Any:
    """Return the default that belongs to the kind of the values."""
    tensor = attributes.get("default_tensor")
    if tensor is not None and np.size(tensor):
        return np.asarray(tensor).reshape(-1)[0]
    if values.dtype == STRING:
        return attributes.get("default_string", UNUSED)
    if values.dtype.kind == "i":
        return attributes.get("default_int64", -1)
    return attributes.get("default_float", -0.0)


def _infer_label_encoder(call: Call, x: TensorType, **attributes: Any) -> TensorType:
    return TensorType(call.real(column("values", attributes).dtype), x.shape)


@op("LabelEncoder", 2, 4, domain=ML, infer=_infer_label_encoder)
def label_encoder(call: Call, X: Array, **attributes: Any) -> Array:
    """Map each element from a key to the value beside it, ai.onnx.ml versions 2 and 4 (…_tensor forms).

    NaN finds a NaN key and −0 equals 0. Of equal keys the last counts from version 4 on, as the
    specification says; before that it says nothing, and the first counts, as in ONNX Runtime (which keeps
    to the first in version 4 too).
    """
    keys, values = column("keys", attributes), column("values", attributes)
    if keys.dtype.kind == "f":
        keys = keys.astype(X.dtype) + 0
    if (keys.dtype == STRING) != (X.dtype == STRING):
        raise ValueError(f"keys of type {keys.dtype} for an input of type {X.dtype}")
    if values.dtype.kind == "f":
        values = values.astype(call.real(values.dtype))
    return _look_up(call, keys, values, default(values, attributes), X, last=call.version >= 4)


# ---- OneHotEncoder, ArrayFeatureExtractor, FeatureVectorizer ------------------------------------------


def _infer_one_hot(
    call: Call,
    x: TensorType,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    **attributes: Any,
) -> TensorType:
    width = len(cats_int64s or cats_strings or ())
    return TensorType(call.real(np.float32), None if x.shape is None else (*x.shape, width))


@op("OneHotEncoder", 1, domain=ML, infer=_infer_one_hot)
def one_hot_encoder(
    call: Call,
    X: Array,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    zeros: int = 1,
) -> Array:
    """float32 of X's shape and one axis more, 1 at the element's category; ai.onnx.ml version 1.

    Floats are cut to integers. Of equal categories the last counts.

    Raises ValueError for an unknown category when ``zeros`` is 0.
    """
    xp = call.xp
    if X.dtype == STRING:
        width = len(cats_strings or cats_int64s or ())
        at = _position(call, texts(cats_strings or ()), X, last=True)
    else:
        width = len(cats_int64s or cats_strings or ())
        at = _position(call, np.asarray(cats_int64s or (), np.int64), X.astype(np.int64), last=True)
    at = xp.asarray(at)
    if not zeros and bool((at < 0).any()):
        raise ValueError("unknown category, and zeros is 0")
    return (at[..., None] == xp.arange(width)).astype(call.real(np.float32))


def _infer_extractor(call: Call, x: TensorType, y: TensorType, **attributes: Any) -> TensorType:
    if x.shape is None:
        return TensorType(x.dtype)
    count: Dim = None
    if y.shape is not None and all(isinstance(dim, int) for dim in y.shape):
        count = int(np.prod([dim for dim in y.shape if isinstance(dim, int)]))
    return TensorType(x.dtype, (*(x.shape[:-1] if len(x.shape) > 1 else (1,)), count))


@op("ArrayFeatureExtractor", 1, domain=ML, infer=_infer_extractor)
def array_feature_extractor(call: Call, X: Array, Y: Array) -> Array:
    """Pick indices of the last axis, ai.onnx.ml version 1.

    X: [..., F], rank 1 gives [1, indices]. Y: int64, its elements in order.

    Raises ValueError for an index outside 0 … F − 1.
    """
    if not X.ndim:
        raise ValueError("the input has no axis to pick from")
    index = Y.reshape(-1)
    if bool(((index < 0) | (index >= X.shape[-1])).any()):
        raise ValueError(f"an index is outside 0 … {X.shape[-1] - 1}")
    x = X if X.ndim > 1 else X[None]
    return x[..., index if x.dtype != STRING else to_host(index)]


def _infer_vectorizer(
    call: Call, *inputs: TensorType, inputdimensions: Sequence[int] | None = None
) -> TensorType:
    first = inputs[0].shape
    batch = None if first is None else (first[0] if len(first) > 1 else 1)
    return TensorType(call.real(np.float32), (batch, sum(inputdimensions) if inputdimensions else None))


@op("FeatureVectorizer", 1, domain=ML, infer=_infer_vectorizer)
def feature_vectorizer(call: Call, *inputs: Array, inputdimensions: Sequence[int] | None = None) -> Array:
    """Inputs [N, C] (or [C]) side by side as float32, ai.onnx.ml version 1.

    inputdimensions: columns of each input; what an input has more is left out, what it has less is 0.
    """
    sizes = inputdimensions or [x.shape[-1] for x in inputs]
    if len(sizes) != len(inputs):
        raise ValueError(f"{len(sizes)} inputdimensions for {len(inputs)} inputs")
    rows = [x.reshape(1 if x.ndim == 1 else x.shape[0], -1) for x in inputs]
    result = call.xp.zeros((len(rows[0]), sum(sizes)), call.real(np.float32))
    start = 0
    for x, size in zip(rows, sizes, strict=True):
        kept = min(size, x.shape[1])
        result[:, start : start + kept] = x[:, :kept]
        start += size
    return result


# ---- maps ---------------------------------------------------------------------------------------------


def _maps_type(call: Call, x: TensorType, **_: Any) -> TensorType:
    rows: Dim = None
    if x.shape is not None:
        rows = x.shape[0] if len(x.shape) == 2 else 1
    return ContainerType(kind="sequence", length=rows)


@op("ZipMap", 1, domain=ML, infer=_maps_type)
def zip_map(
    call: Call,
    X: Array,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> list[dict[Any, float]]:
    """One dict label → score per row of X [N, C] (or [C]), ai.onnx.ml version 1."""
    labels = list(classlabels_strings or classlabels_int64s or ())
    scores = to_host(X if X.ndim == 2 else X[None])
    if scores.shape[1] != len(labels):
        raise ValueError(f"{len(labels)} class labels for {scores.shape[1]} scores")
    return [dict(zip(labels, row, strict=True)) for row in scores.tolist()]


def _vector_type(
    call: Call,
    x: TensorType,
    *,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> TensorType:
    return TensorType(None, (1, len(string_vocabulary or int64_vocabulary or ())))


@op("DictVectorizer", 1, domain=ML, infer=_vector_type)
def dict_vectorizer(
    call: Call,
    X: Mapping[Any, Any],
    *,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> Array:
    """The map's values in the order of the vocabulary, [1, vocabulary]; missing keys give 0 or "".

    ai.onnx.ml version 1; the leading axis is ONNX Runtime's. Keys outside the vocabulary are left out.
    """
    words = list(string_vocabulary or int64_vocabulary or ())
    sample = next(iter(X.values()), 0.0)
    if isinstance(sample, str):
        return texts([X.get(word, "") for word in words])[None]
    dtype = _number_type(sample)
    return call.xp.asarray(np.array([[X.get(word, 0) for word in words]], call.real(dtype)))


def _number_type(sample: Any) -> np.dtype[Any]:
    """Return the dtype of a map's values: plain Python floats stand for float32."""
    if isinstance(sample, np.generic | np.ndarray):
        return sample.dtype
    return np.dtype(np.int64 if isinstance(sample, int) else np.float32)


def _c_number(text: str) -> float:
    return float(text.strip())


CASTS: Mapping[str, Callable[[Any], Any]] = {
    "TO_FLOAT": lambda value: _c_number(value) if isinstance(value, str) else float(value),
    "TO_INT64": lambda value: int(value),
    "TO_STRING": lambda value: value if isinstance(value, str) else f"{float(value):f}",
}
PADS = {"TO_FLOAT": 0.0, "TO_INT64": 0, "TO_STRING": "0.f"}


_CAST_DTYPES = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": np.object_}


def _cast_map_type(
    call: Call, x: TensorType, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> TensorType:
    dtype = call.real(_CAST_DTYPES[cast_to]) if cast_to in _CAST_DTYPES else None
    return TensorType(dtype, (1, max_map if map_form == "SPARSE" else None))


@op("CastMap", 1, domain=ML, infer=_cast_map_type)
def cast_map(
    call: Call,
    X: Mapping[int, Any],
    *,
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
) -> Array:
    """The map's values by ascending key, [1, C], ai.onnx.ml version 1.

    DENSE: the values alone. SPARSE: the value of key k stands at k, C = max_map, and what is missing is 0
    (the text "0.f", as ONNX Runtime writes it).
    """
    if cast_to not in CASTS or map_form not in ("DENSE", "SPARSE"):
        raise ValueError(f"unknown cast_to '{cast_to}' or map_form '{map_form}'")
    if map_form == "SPARSE" and any(key < 0 for key in X):
        raise ValueError("a sparse map cannot have negative keys")
    keys = range(max_map) if map_form == "SPARSE" else sorted(X)
    values: list[Any] = [CASTS[cast_to](X[key]) if key in X else PADS[cast_to] for key in keys]
    if cast_to == "TO_STRING":
        return texts(values)[None]
    return call.xp.asarray(np.array([values], call.real(np.float32) if cast_to == "TO_FLOAT" else np.int64))
