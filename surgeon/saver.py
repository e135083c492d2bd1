"""Write a model and its external data: all of it or nothing."""

import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.data_files import check_replaceable, data_target
from graphdoc.surgeon.external import locate
from graphdoc.surgeon.layout import Layout, stored
from graphdoc.surgeon.tensors import Densified
from graphdoc.surgeon.writer import write_model

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes that one protobuf message may have."""

_HEADROOM = 2**24
"""Bytes left for everything but weights, when deciding whether they fit."""

SMALLEST_MOVED = 1024
"""Bytes from which on a tensor moves to a file, when the model is too large for one message."""

Write = Callable[[IO[bytes]], object]


def save_model(
    model: ir.Model, path: Path, *, limit: int = PROTOBUF_LIMIT, layout: Layout | None = None
) -> None:
    """Write a model; see :func:`graphdoc.surgeon.model.save`."""
    path = path.resolve() if path.is_symlink() else path
    _check_target(path)
    tensors = list(all_tensors(model))
    _check_own_data(path, tensors)
    with _Batch(path) as batch:
        placed = {} if layout is None else _lay_out(model, layout, batch, path)
        rest = [tensor for tensor in tensors if id(tensor) not in placed]
        for location, source in _external_files(rest):
            batch.copy(source, path.parent / locate(location, path.parent).relative_to(path.parent))
        placed |= _place(model, rest, batch, path, limit) if layout is None else {}
        data = _serialize(write_model(model, placed), limit)
        batch.write(path, lambda file: file.write(data))


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise ModelError(
            f"cannot write: '{path}' is a folder", next_step=f"give a file name: {path}/model.onnx"
        )
    if path.exists() and not path.is_file():  # a rename would put a file in the place of a device
        raise ModelError(f"cannot write: '{path}' is no ordinary file", next_step="give a file name")
    if not path.parent.is_dir():
        raise ModelError(f"cannot write: no folder '{path.parent}'", next_step=f"mkdir -p {path.parent}")


def _check_own_data(path: Path, tensors: Iterable[ir.TensorProtocol]) -> None:
    files = {Path(t.base_dir) / str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)}
    if path.exists() and any(file.exists() and file.samefile(path) for file in files):
        raise ModelError(
            f"cannot write: '{path.name}' holds weights of the model",
            where=str(path),
            next_step=f"give another name: {path.stem}.onnx",
        )


def _serialize(proto: onnx.ModelProto, limit: int) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise _too_large(limit) from error
    if len(data) > limit:
        raise _too_large(limit)
    return data


def _too_large(limit: int) -> ModelError:
    return ModelError(
        f"the model does not fit into one protobuf message of {limit / 2**30:.3g} GiB",
        where="its graph, or tensors in attributes, which cannot move to a file",
        next_step="turn large Constant nodes into initializers",
    )


def all_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors of initializers and attributes, in subgraphs and functions too."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, Densified):
                yield from value.const_value.parts
            elif value.const_value is not None:
                yield value.const_value
    nodes = chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    for attribute in (attribute for node in nodes for attribute in node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            yield attribute.value
        elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
            yield from attribute.value


def _external_files(tensors: Iterable[ir.TensorProtocol]) -> Iterator[tuple[str, Path]]:
    """Yield location and path of each external file, once.

    Raises ModelError when tensors of two models lie in different files of the same location.
    """
    found: dict[str, Path] = {}
    for tensor in tensors:
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = str(tensor.location)
        path = locate(location, Path(tensor.base_dir), tensor.name or "")
        if location not in found:
            found[location] = path
            yield location, path
        elif found[location] != path and not found[location].samefile(path):
            raise ModelError(
                f"two different data files are named '{location}'",
                where=f"{found[location]} and {path}",
                next_step="read one of them into memory first: value.const_value = ir.Tensor(tensor.numpy())",
            )


def _lay_out(model: ir.Model, layout: Layout, batch: "_Batch", path: Path) -> dict[int, onnx.TensorProto]:
    """Write the weights where ``layout`` says; return what stands in their place in the model."""
    placed: dict[int, onnx.TensorProto] = {}
    if layout.location:
        data_target(layout.location, path)
    for location, tensors in layout.files(stored(model)).items():
        target = data_target(location, path)
        check_replaceable(target, path)
        batch.folders(target)
        batch.write(target, partial(_write_weights, tensors=tensors, location=location, placed=placed))
    for tensor in all_tensors(model):
        if isinstance(tensor, ir.ExternalTensor) and id(tensor) not in placed:
            placed[id(tensor)] = _inside(tensor)
    return placed


def _inside(tensor: ir.ExternalTensor) -> onnx.TensorProto:
    """Return a tensor with its bytes in the message."""
    dims = [int(size) for size in tensor.shape.numpy()]
    proto = onnx.TensorProto(name=tensor.name or "", data_type=tensor.dtype.value, dims=dims)
    proto.raw_data = tensor.tobytes()
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    return proto


def _place(
    model: ir.Model, tensors: list[ir.TensorProtocol], batch: "_Batch", path: Path, limit: int
) -> dict[int, onnx.TensorProto]:
    """Write the weights to a file of their own if they do not fit; return what stands in their place."""
    inside = [tensor for tensor in tensors if not isinstance(tensor, ir.ExternalTensor)]
    if sum(tensor.nbytes for tensor in inside if tensor.dtype != ir.DataType.STRING) < limit - min(
        _HEADROOM, limit // 8
    ):
        return {}
    moved = [
        value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and _moves(value.const_value)
    ]
    location = _free_name(path, tensors)
    check_replaceable(path.parent / location, path)
    placed: dict[int, onnx.TensorProto] = {}
    batch.write(path.parent / location, lambda file: _write_weights(file, moved, location, placed))
    return placed


def _moves(tensor: ir.TensorProtocol) -> bool:
    inside = not isinstance(tensor, ir.ExternalTensor) and tensor.dtype != ir.DataType.STRING
    return inside and tensor.nbytes >= SMALLEST_MOVED


def _free_name(path: Path, tensors: Iterable[ir.TensorProtocol]) -> str:
    """Return a name beside the model that none of its own external files has."""
    taken = {str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)}
    names = (f"{path.name}.data", *(f"{path.name}.{number}.data" for number in range(1, len(taken) + 1)))
    return next(name for name in names if name not in taken)


def _write_weights(
    file: IO[bytes], tensors: Iterable[Any], location: str, placed: dict[int, onnx.TensorProto]
) -> None:
    for tensor in tensors:
        if id(tensor) in placed:
            continue
        proto = onnx.TensorProto(
            name=tensor.name or "", data_type=tensor.dtype.value, dims=[int(d) for d in tensor.shape.numpy()]
        )
        proto.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": location, "offset": str(file.tell()), "length": str(tensor.nbytes)}
        for key, value in entries.items():
            proto.external_data.add(key=key, value=value)
        if tensor.doc_string:
            proto.doc_string = tensor.doc_string
        file.write(tensor.tobytes())
        placed[id(tensor)] = proto


class _Batch:
    """Files that appear together: written under temporary names, renamed at the end, removed on failure.

    The last file written (the model) is renamed last. Files that were there before are either replaced
    whole or left as they were.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[tuple[Path, Path]] = []
        self._folders: list[Path] = []

    def __enter__(self) -> "_Batch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            try:
                self._commit()
            except OSError as failure:
                self._discard()
                raise self._failure(failure) from failure
            return
        self._discard()
        if isinstance(error, OSError):
            raise self._failure(error) from error

    def write(self, target: Path, write: Write) -> None:
        """Write a file under a temporary name in the folder of ``target``."""
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
        self._files.append((Path(name), target))
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(name).chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())

    def copy(self, source: Path, target: Path) -> None:
        """Copy a data file, unless it is there already; one with other content is not replaced."""
        if target.exists():
            if not (target.samefile(source) or filecmp.cmp(source, target, shallow=False)):
                raise ModelError(
                    f"'{target.name}' exists with other content, and the model's weights have that name too",
                    where=str(target),
                    next_step="save into another folder",
                )
            return
        self.folders(target)

        def content(file: IO[bytes]) -> None:
            with source.open("rb") as data:
                shutil.copyfileobj(data, file, 2**20)

        self.write(target, content)

    def folders(self, target: Path) -> None:
        """Make the folders that a file needs; they go again on failure."""
        for folder in reversed([folder for folder in target.parents if not folder.exists()]):
            folder.mkdir()
            self._folders.append(folder)

    def _commit(self) -> None:
        while self._files:
            temporary, target = self._files[0]
            temporary.replace(target)
            self._files.pop(0)

    def _discard(self) -> None:
        for temporary, _ in self._files:
            temporary.unlink(missing_ok=True)
        for folder in reversed(self._folders):
            if not any(folder.iterdir()):
                folder.rmdir()

    def _failure(self, error: OSError) -> ModelError:
        return ModelError(
            f"cannot write '{self._path.name}': {(error.strerror or str(error)).lower()}",
            where=str(self._path),
            next_step=f"df -h {self._path.parent}    ls -ld {self._path.parent}",
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
