"""Where data files of a model may be written: never over a file that something else may still need."""

import mmap
from collections.abc import Iterator
from pathlib import Path

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.external import external_tensors, locate, reference
from graphdoc.surgeon.files import read_file

MODELS = frozenset({".onnx", ".ort", ".pb", ".onnxmodel", ".model"})
"""Endings of files that are looked into for other readers of a data file."""


def data_target(location: str, path: Path) -> Path:
    """Return where the data file of a model that is written to ``path`` lies.

    Raises ModelError for a location that leaves the model's folder, is a folder, or the model itself.
    """
    try:
        target = locate(location, path.parent)
    except ModelError as error:
        raise ModelError(
            f"weights cannot go to '{location}': a model reads data files in its own folder only",
            where=f"external data of {path.name}",
            next_step=f"a name relative to that folder: --external {path.name}.data",
        ) from error
    folder = location.endswith("/")
    if folder and target.exists() and not target.is_dir():
        raise _refused(f"'{location}' is a file", path)
    if not folder and target.resolve() == path.resolve():
        raise _refused(f"'{location}' is the model itself", path)
    if not folder and target.is_dir():
        raise _refused(f"'{location}' is a folder", path)
    return target


def _refused(cause: str, path: Path) -> ModelError:
    return ModelError(
        cause,
        where=f"external data of {path.name}",
        next_step=f"--external {path.name}.data, or a folder with a slash at the end",
    )


def check_replaceable(target: Path, path: Path) -> None:
    """Raise ModelError when writing a data file would destroy what is there.

    A file may be replaced when it is the data of the very model that is replaced with it, and no other model
    beside either of the two reads it.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_file() or not _owns(path, target):
        raise _in_the_way(target, path, f"it is no data file of '{path.name}'")
    other = next((model for model in _neighbours(target, path) if _may_read(model, target)), None)
    if other is not None:
        raise _in_the_way(target, path, f"'{other.name}' reads it too")


def _in_the_way(target: Path, path: Path, why: str) -> ModelError:
    free = (f"{path.name}{number}.data" for number in ("", *(f".{n}" for n in range(1, 1000))))
    name = next((name for name in free if not (path.parent / name).exists()), "another.data")
    return ModelError(
        f"'{target.name}' exists and would be overwritten: {why}",
        where=str(target),
        next_step=f"another name: --external {name}",
    )


def _owns(path: Path, target: Path) -> bool:
    try:
        return path.is_file() and _reads(path, target)
    except ModelError:  # what stands there is no model
        return False


def _neighbours(target: Path, path: Path) -> Iterator[Path]:
    """Yield the model files in the folders from the model's down to the data file's, the model aside."""
    folders = {path.parent, *(folder for folder in target.parents if folder.is_relative_to(path.parent))}
    for folder in sorted(folders):
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in MODELS and file.is_file() and not file.samefile(path):
                yield file


def _may_read(model: Path, target: Path) -> bool:
    """Whether a file may be a model that reads the data; one that cannot be parsed but names it counts."""
    if model.samefile(target):
        return False
    try:
        return _names(model, target.name) and _reads(model, target)
    except ModelError:
        return True


def _names(model: Path, name: str) -> bool:
    """Whether a name stands in a file: a look that is far quicker than to parse the model."""
    if not model.stat().st_size:
        return False
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


def _reads(model: Path, target: Path) -> bool:
    """Whether a tensor of a model lies in a file. Raises ModelError when the model cannot be read."""
    locations = {reference(tensor).location for tensor in external_tensors(read_file(model))}
    return any((model.parent / location).resolve() == target.resolve() for location in locations if location)
