"""Values for inputs out of files: npz, npy, ONNX test data (``.pb``), JSON."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from graphdoc.compare.inputs_npy import read_npy, read_npz
from graphdoc.compare.polygraphy import decode, feeds_of
from graphdoc.engine.errors import InputError
from graphdoc.engine.feeds import SEQUENCE, TENSOR, InputSpec

JSON_BYTES = 64 << 20
"""The largest JSON file that is read."""

FORMATS = "give an .npz, .npy, .pb or .json file, or a folder of input_0.pb, input_1.pb …"


@dataclass(frozen=True)
class Contents:
    """What a file or folder holds, before it is matched with a model.

    values: by name, or by position ("0", "1" …) where the file gives no names. positional: which is so.
    origin: the file or folder in words.
    """

    values: Mapping[str, Any]
    positional: bool
    origin: str


@dataclass(frozen=True)
class Raw:
    """A protobuf that is read once it is known for which input: its bytes say not whether it is a tensor,
    a sequence or an optional."""

    data: bytes = field(repr=False)
    file: str

    def named(self) -> str:
        """Return the name in the message; tensors have it in another field than sequences."""
        tensor = _parse(onnx.TensorProto, self.data)
        if tensor is not None and tensor.name:
            return str(tensor.name)
        other = _parse(onnx.SequenceProto, self.data)
        return str(other.name) if other is not None else ""


def read_contents(path: Path) -> Contents:
    """Return what a file or folder holds. Raises InputError for everything that cannot be read."""
    try:
        if path.is_dir():
            return _read_folder(path)
        with path.open("rb") as file:
            start = file.read(8)
        return _reader(path, start)(path)
    except FileNotFoundError as error:
        raise InputError(f"no such file: {path}", where="--inputs", next_step=FORMATS) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot read {path}: {reason}", where="--inputs", next_step=FORMATS) from error


def _reader(path: Path, start: bytes) -> Callable[[Path], Contents]:
    """Choose by content where that is plain, else by the name's ending."""
    if start.startswith(b"PK"):
        return _npz
    if start.startswith(b"\x93NUMPY"):
        return _npy
    reader = {".npz": _npz, ".npy": _npy, ".pb": _pb, ".json": _json}.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"cannot tell what kind of file {path.name} is", where="--inputs", next_step=FORMATS)
    return reader


def _npz(path: Path) -> Contents:
    values = read_npz(path)
    numbered = bool(values) and all(re.fullmatch(r"arr_\d+", name) for name in values)
    if numbered:
        values = {name.removeprefix("arr_"): array for name, array in values.items()}
    return Contents(values, numbered, f"file {path.name}")


def _npy(path: Path) -> Contents:
    return Contents({"0": read_npy(path)}, True, f"file {path.name}")


def _pb(path: Path) -> Contents:
    return _protobufs([path], f"file {path.name}")


def _json(path: Path) -> Contents:
    if path.stat().st_size > JSON_BYTES:
        raise InputError(
            f"{path.name} is too large for JSON", where="--inputs", next_step="write an .npz file"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        text = str(error).splitlines()[0]
        raise InputError(
            f"{path.name} is not JSON: {text}", where="--inputs", next_step='{"input name": [[1, 2], [3, 4]]}'
        ) from error
    saved = feeds_of(data)
    if saved is not None:
        values = {name: decode(value, f"{name} in {path.name}") for name, value in saved.items()}
        return Contents(values, False, f"file {path.name}")
    named = isinstance(data, dict)
    return Contents(data if named else {"0": data}, not named, f"file {path.name}")


# ---- folders and protobufs ----------------------------------------------------------------------------


def data_sets(path: Path) -> list[Path]:
    """Return the folders ``test_data_set_0``, ``test_data_set_1`` … of a folder, in their order."""
    found = [p for p in path.glob("test_data_set_*") if p.is_dir()]
    return sorted(found, key=lambda p: (len(p.name), p.name))


def _read_folder(path: Path) -> Contents:
    sets = data_sets(path)
    if sets:
        inner = _read_folder(sets[0])
        more = f" (1 of {len(sets)} sets)" if len(sets) > 1 else ""
        return Contents(inner.values, inner.positional, f"{sets[0].name}{more}")
    files = sorted(path.glob("input_*.pb"), key=lambda p: (len(p.name), p.name))
    if files:
        return _protobufs(files, f"folder {path.name}")
    arrays = sorted(path.glob("*.npy"))
    if arrays:
        return Contents({p.stem: read_npy(p) for p in arrays}, False, f"folder {path.name}")
    raise InputError(f"no inputs in the folder {path.name}", where="--inputs", next_step=FORMATS)


def _protobufs(files: Iterable[Path], origin: str) -> Contents:
    """Return messages by position, as ONNX numbers test data; by name where all have one."""
    raws = [Raw(path.read_bytes(), path.name) for path in files]
    numbers = [re.search(r"input_(\d+)$", path.stem) for path in files]
    names = [raw.named() for raw in raws]
    if all(names) and len(set(names)) == len(names):
        return Contents(dict(zip(names, raws, strict=True)), False, origin)
    places = [match.group(1) if match else "0" for match in numbers]
    return Contents({str(int(k)): raw for k, raw in zip(places, raws, strict=True)}, True, origin)


def _parse(kind: Any, data: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def decode_protobuf(raw: Raw, spec: InputSpec) -> Any:
    """Return the value of a message for an input of known kind. Raises InputError."""
    kinds = {TENSOR: onnx.TensorProto, SEQUENCE: onnx.SequenceProto}
    message = _parse(kinds.get(spec.kind, onnx.OptionalProto), raw.data)
    try:
        value = None if message is None else _value(message)
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as error:
        raise _unreadable(raw, spec, str(error).splitlines()[0] if str(error) else "damaged") from error
    if message is None or (value is None and spec.kind in (TENSOR, SEQUENCE)):
        raise _unreadable(raw, spec, "no such message, or it ends early")
    return value


def _unreadable(raw: Raw, spec: InputSpec, reason: str) -> InputError:
    return InputError(
        f"cannot read {raw.file} as {spec.kind}: {reason}",
        where=str(spec),
        next_step="write it with onnx.numpy_helper.from_array(x, name).SerializeToString()",
    )


def _value(message: Any) -> Any:
    if isinstance(message, onnx.TensorProto):
        return _tensor(message)
    if isinstance(message, onnx.SequenceProto):
        return [_tensor(item) for item in message.tensor_values]
    if message.elem_type == onnx.OptionalProto.TENSOR:
        return _tensor(message.tensor_value)
    return _value(message.sequence_value) if message.elem_type == onnx.OptionalProto.SEQUENCE else None


def _tensor(proto: onnx.TensorProto) -> Any:
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its data lies in another file")
    if proto.data_type == onnx.TensorProto.UNDEFINED:
        return None
    array = onnx.numpy_helper.to_array(proto)
    if proto.data_type != onnx.TensorProto.STRING:
        return array
    texts = [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in array.flat
    ]
    result = np.empty(len(texts), dtype=object)
    result[:] = texts
    return result.reshape(array.shape)
