"""Programs kept on disk: a model opened before is not simplified, lowered and fused again.

What is kept is a program as the processor runs it (:mod:`graphdoc.engine.plan_cpu`): weights laid out,
kernels, memory, machine code. Its name follows from all that it depends on: the model's bytes, the types of
the inputs, this processor, this compiler, the code of graphdoc itself, and the packages it computes with. So
nothing is ever out of date; it is found or it is not. Only models that are one program from end to end, with
no data files of their own, are kept: half a program would need the model anyway.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from graphdoc.engine.cache import cache_folder
from graphdoc.engine.device.cpu import CpuExecutable
from graphdoc.engine.device.llvm.compiler import host_target, objects, symbol, toolchain
from graphdoc.engine.device.llvm.objects import ObjectCache
from graphdoc.engine.direct import COMPUTED, Direct
from graphdoc.engine.errors import ModelError
from graphdoc.engine.plan_codec import Decoder, Encoder, Store
from graphdoc.engine.plan_cpu import CpuPart, Prepared
from graphdoc.engine.plan_file import packed, read

LIMIT = 1 << 30
"""Bytes of programs that may be kept; past it those not used for longest go."""

LARGEST = LIMIT // 8
"""Bytes of one program, above which it is not kept."""

_LOADED = 32
"""Programs of a model that stay loaded: those asked for first."""

_PACKAGES = ("numpy", "onnx", "onnx_ir", "ml_dtypes")
"""What programs are computed with."""

_WRONG = (ModelError, OSError, KeyError, ValueError, TypeError, AttributeError, IndexError, ImportError)
"""What reading a file raises that is not what it should be."""


@dataclass(frozen=True, slots=True)
class Found:
    """A program that was kept. names: of the model's outputs, in order. short: runs it."""

    names: tuple[str, ...]
    short: Direct

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs, None for arrays of other types."""
        found = self.short.feed(feeds)
        return None if found is None else dict(zip(self.names, found, strict=True))


class Kept:
    """The programs of one model file.

    path: the model. how: whatever else its programs depend on (whether it is simplified, say). cache: where
    programs lie; None: with the user's other caches.

    Raises OSError where the path is no file, or it cannot be read.
    """

    def __init__(self, path: "str | os.PathLike[str]", how: str, cache: ObjectCache | None = None) -> None:
        self._cache = user_programs() if cache is None else cache
        self._path = Path(path)
        self._state = _state(self._path)
        self._prefix = _digest(_hash(self._path), how, *_surroundings())[:32]
        self._loaded: dict[tuple[str, int | None], Found] = {}

    @property
    def known(self) -> bool:
        """Whether a program of the model is there, for some types of inputs."""
        return self._cache.holds(self._prefix)

    def find(self, feeds: Mapping[str, Any], threads: int | None) -> Found | None:
        """Return the program for arrays of these types, loaded; None where none is there that is whole."""
        name = self._name(feeds)
        if name is None:
            return None
        found = self._loaded.get((name, threads))
        if found is None:
            found = self._load(name, feeds, threads)
            if found is not None and len(self._loaded) < _LOADED:
                self._loaded[name, threads] = found
        return found

    def _load(self, name: str, feeds: Mapping[str, Any], threads: int | None) -> Found | None:
        path = self._cache.path(name)
        if path is None:
            return None
        try:
            content, blobs = read(path)
            return _decoded(content, blobs, feeds, threads)
        except _WRONG:
            self._cache.drop(name)
            return None

    def keep(self, names: Sequence[str], short: Direct, feeds: Mapping[str, Any]) -> None:
        """Keep the program of a model's last run. names: of the outputs. feeds: what it was run on."""
        name = self._name(feeds)
        executable = getattr(short.call, "__self__", None)
        if name is None or not short.computed or not isinstance(executable, CpuExecutable):
            return
        if None in executable.kernels or self._cache.path(name) is not None:
            return
        if not self._unchanged():  # the program may be of other bytes than the hash
            return
        parts = _encoded(names, short, executable)
        if sum(memoryview(part).nbytes for part in parts) <= LARGEST:
            self._cache.write(name, parts)

    def _unchanged(self) -> bool:
        try:
            return _state(self._path) == self._state
        except OSError:
            return False

    def _name(self, feeds: Mapping[str, Any]) -> str | None:
        """Return the name of the program for these arrays, None where they are no plain arrays."""
        if not all(type(array) is np.ndarray and array.dtype.kind != "O" for array in feeds.values()):
            return None
        kinds = sorted((name, a.dtype.str, a.dtype.name, a.shape) for name, a in feeds.items())
        return f"{self._prefix}-{_digest(repr(kinds))[:24]}"


def _state(path: Path) -> tuple[int, ...]:
    """Return what tells that a file has changed. Raises OSError where there is none, or it is a pipe."""
    if not path.is_file():
        raise FileNotFoundError(path)
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def user_programs() -> ObjectCache:
    """Return this user's programs; a cache that keeps nothing where the user has no home."""
    try:
        return ObjectCache(cache_folder() / "programs", LIMIT, ".program")
    except RuntimeError:
        return ObjectCache()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@cache
def _surroundings() -> tuple[str, ...]:
    """Return what programs depend on besides the model and its inputs, as texts."""
    target = host_target()
    engine = Path(__file__).parent
    code = [
        line
        for folder in (engine, _place("graphdoc.surgeon"), _place("graphdoc.compare"))
        for line in _code(folder)
    ]
    return (target.cpu, target.features, toolchain(), *map(_version, _PACKAGES), *code)


def _version(package: str) -> str:
    """Return the version of an installed package, by the name of its folder: the way to ask takes 50 ms."""
    place = _place(package)
    own = [name for name in os.listdir(place.parent) if name.startswith(f"{package}-")]  # noqa: PTH208
    state = (place / "__init__.py").stat()
    return f"{' '.join(sorted(own))} {state.st_size} {state.st_mtime_ns}"


def _place(package: str) -> Path:
    """Return the folder of a package, which is not imported."""
    spec = find_spec(package)
    return Path(next(iter((spec and spec.submodule_search_locations) or ())))


def _code(folder: Path) -> Iterator[str]:
    """Yield a line per source file of a folder: its name, size, and when it was changed last."""
    for root, _, files in sorted(os.walk(folder)):
        for name in sorted(files):
            if name.endswith(".py"):
                state = os.stat(os.path.join(root, name))  # noqa: PTH116, PTH118 (500 files: quick)
                yield f"{Path(root).name}/{name} {state.st_size} {state.st_mtime_ns}"


# ---- files ---------------------------------------------------------------------------------------------


def _encoded(names: Sequence[str], short: Direct, executable: CpuExecutable) -> list[Any]:
    """Return a file's runs of bytes."""
    target = host_target()
    kernels = [k for k in executable.kernels if k is not None]
    named = tuple(replace(k, text=symbol(k.text)) for k in kernels)
    ready = Prepared(executable.program, named, executable.memory)
    code = objects([k.text for k in kernels], target)
    part = CpuPart(target.cpu, target.features, toolchain(), (ready,), code)
    store = Store()
    encoder = Encoder(store)
    content = {
        "part": part.encoded(encoder),
        "names": list(names),
        "inputs": [short.names[k] for k in short.inputs],
        "results": [place for _, place in short.results],
        "tables": encoder.tables(),
    }
    return packed(content, store.blobs)


def _decoded(
    content: Mapping[str, Any], blobs: Sequence[Any], feeds: Mapping[str, Any], threads: int | None
) -> Found:
    """Return a program ready to run. Raises one of _WRONG for a file not as :func:`_encoded` writes it."""
    part = CpuPart.decoded(content["part"], Decoder(content["tables"], blobs), blobs)
    if part.misfit():
        raise ValueError(part.misfit())
    executable = part.load(0, threads)
    order = tuple(feeds)
    inputs = tuple(order.index(name) for name in content["inputs"])
    kinds = tuple((array.dtype, array.shape) for array in feeds.values())
    views = part.entries[0].program.inputs.values()
    if [kinds[k] for k in inputs] != [(view.dtype, view.shape) for view in views]:
        raise ValueError("a program for other inputs")
    results = tuple((COMPUTED, int(place)) for place in content["results"])
    short = Direct(order, frozenset(order), kinds, inputs, results, executable.run)
    return Found(tuple(map(str, content["names"])), short)
