"""Making values from a file fit what the model declares, and saying what was done."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.compare.inputs_files import Contents, Raw, decode_protobuf
from graphdoc.engine.errors import InputError
from graphdoc.engine.feeds import SEQUENCE, InputSpec, nearest

Array = np.ndarray[Any, Any]


def fit(contents: Contents, specs: Mapping[str, InputSpec]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by input name, and where each comes from and how it was changed, in words.

    Names that the model does not have are refused with the nearest one; missing inputs are left out.
    """
    required = [name for name, spec in specs.items() if spec.required]
    feeds: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in contents.values.items():
        name = (
            _position(key, required, contents)
            if contents.positional
            else _name(key, specs, contents, required)
        )
        decoded = decode_protobuf(value, specs[name]) if isinstance(value, Raw) else value
        feeds[name], note = _fit(specs[name], decoded)
        sources[name] = contents.origin + (f" ({note})" if note else "")
    return feeds, sources


def _position(key: str, required: list[str], contents: Contents) -> str:
    if int(key) < len(required):
        return required[int(key)]
    raise InputError(
        f"the {contents.origin} has a value number {key}, the model takes {len(required)} inputs (0 to "
        f"{len(required) - 1})",
        where="inputs of the model: " + (", ".join(required) or "none"),
        next_step="name the values: numpy.savez('inputs.npz', **{'input name': array})",
    )


def _name(key: str, specs: Mapping[str, InputSpec], contents: Contents, required: list[str]) -> str:
    """Return the input a name stands for; a lone value with another name is the lone input's."""
    if key in specs:
        return key
    lone = len(contents.values) == 1 == len(required)
    if lone and isinstance(next(iter(contents.values.values())), Raw):
        return required[0]
    guess = nearest(key, required or list(specs))
    raise InputError(
        f"the {contents.origin} has '{key}', which is no input of the model",
        where="inputs of the model: " + (", ".join(specs) or "none"),
        next_step=f"did you mean '{guess}'?" if guess else "leave it out",
    )


def _fit(spec: InputSpec, value: Any) -> tuple[Any, str]:
    if value is None and spec.kind.startswith("optional"):
        return None, ""
    if spec.kind.endswith(SEQUENCE) and isinstance(value, list):
        parts = [_fit_array(spec, item) for item in value]
        return [array for array, _ in parts], next((note for _, note in parts if note), "")
    return _fit_array(spec, value)


def _fit_array(spec: InputSpec, value: Any) -> tuple[Any, str]:
    array = value if isinstance(value, np.ndarray) else _listed(spec, value)
    wanted = spec.dtype
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if wanted is None or array.dtype == wanted:
        return _checked_strings(spec, array) if array.dtype == object else array, ""
    if wanted.kind == "O":
        return _to_strings(spec, array)
    for rule in (_viewed, _converted, _low_precision):
        found = rule(array, wanted)
        if found is not None:
            return found
    raise _wrong_dtype(spec, array)


# ---- plain data (JSON) --------------------------------------------------------------------------------


def _listed(spec: InputSpec, value: Any) -> Array:
    """Return nested lists, or {"shape", "data"}, as an array of the input's dtype. Raises InputError."""
    shape = None
    if isinstance(value, dict):
        if "data" not in value:
            raise _not_data(spec, "an object needs 'data' and may have 'shape'")
        shape, value = value.get("shape"), value["data"]
    try:
        array = np.array(value, dtype=object if spec.dtype == object else None)
        array = array if shape is None else array.reshape([int(size) for size in shape])
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_data(spec, str(error).splitlines()[0]) from error
    if spec.dtype == object or spec.dtype is None:
        return array
    if array.dtype.kind not in "iufb" and array.size:
        raise _not_data(spec, "it holds something else than numbers")
    return _numbers(spec, array, spec.dtype)


def _numbers(spec: InputSpec, array: Array, wanted: np.dtype[Any]) -> Array:
    """Return numbers typed by hand in the input's dtype; integers must stay what they are."""
    result = array.astype(wanted)
    if _is_float(wanted) or not array.size or np.array_equal(result.astype(array.dtype), array):
        return result
    raise _not_data(spec, f"a value does not fit {spec.dtype_name}")


def _not_data(spec: InputSpec, reason: str) -> InputError:
    return InputError(
        f"cannot make an array for input '{spec.name}': {reason}",
        where=str(spec),
        next_step='write {"' + spec.name + '": [[1, 2], [3, 4]]}, every row of the same length',
    )


# ---- strings ------------------------------------------------------------------------------------------


def _checked_strings(spec: InputSpec, array: Array) -> Array:
    for item in array.flat:
        if not isinstance(item, str):
            raise InputError(
                f"input '{spec.name}' takes strings, an element is {type(item).__name__}",
                where=str(spec),
                next_step="save it as x.astype(str)",
            )
    return array


def _to_strings(spec: InputSpec, array: Array) -> tuple[Array, str]:
    if array.dtype.kind == "U":
        return array.astype(object), ""
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8").astype(object), "bytes read as UTF-8"
        except UnicodeDecodeError as error:
            raise _wrong_dtype(spec, array) from error
    raise _wrong_dtype(spec, array)


# ---- dtypes -------------------------------------------------------------------------------------------


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _is_low(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of ml_dtypes'."""
    return dtype.type.__module__.split(".")[0] == "ml_dtypes"


def _viewed(array: Array, wanted: np.dtype[Any]) -> tuple[Array, str] | None:
    """Raw bits: uint16 or 2 bytes for bfloat16, uint8 or 1 byte for float8."""
    bits = {1: np.uint8, 2: np.uint16}.get(wanted.itemsize)
    raw = array.dtype == bits or (array.dtype.kind == "V" and not _is_low(array.dtype))
    if not _is_low(wanted) or not _is_float(wanted) or not raw or array.dtype.itemsize != wanted.itemsize:
        return None
    return array.view(wanted), f"bits of {array.dtype.name} read as {wanted.name}"


def _converted(array: Array, wanted: np.dtype[Any]) -> tuple[Array, str] | None:
    """float64 → float32, wider floats, integers and booleans whose values all fit."""
    source = array.dtype
    floats = source.kind == "f" and wanted.kind == "f" and not _is_low(source)
    if floats and (np.can_cast(source, wanted) or (source.itemsize, wanted.itemsize) == (8, 4)):
        return array.astype(wanted), f"converted from {source.name}"
    whole = source.kind in "iub" and (wanted.kind in "iub" or "int" in wanted.name) and not _is_float(wanted)
    if whole and (not array.size or _fits(array, wanted)):
        return array.astype(wanted), f"converted from {source.name}, all values fit"
    return None


def _fits(array: Array, wanted: np.dtype[Any]) -> bool:
    low, high = int(array.min()), int(array.max())
    if wanted.kind == "b":
        return low >= 0 and high <= 1
    info: Any = ml_dtypes.iinfo(wanted)  # type: ignore[no-untyped-call]
    return int(info.min) <= low and high <= int(info.max)


def _low_precision(array: Array, wanted: np.dtype[Any]) -> tuple[Array, str] | None:
    """float32 → bfloat16, float8, float4: NumPy itself cannot hold these."""
    if not _is_low(wanted) or not _is_float(wanted) or array.dtype not in (np.float32, np.float64):
        return None
    return array.astype(wanted), f"{array.dtype.name} rounded to {wanted.name}"


def _wrong_dtype(spec: InputSpec, array: Array) -> InputError:
    target = "str" if spec.dtype == object else spec.dtype_name
    key = repr(spec.name)
    return InputError(
        f"input '{spec.name}' is {spec.dtype_name}, the file has {array.dtype.name}",
        where=str(spec),
        next_step="python -c \"import numpy as np; d = dict(np.load('in.npz')); "
        f"d[{key}] = d[{key}].astype('{target}'); np.savez('fixed.npz', **d)\"",
    )
