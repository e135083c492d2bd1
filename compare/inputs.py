"""The inputs of a comparison: read from files, or seeded values that suit the model."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import InputError, UsageError
from graphdoc.engine.feeds import InputSpec, check_feeds, nearest, required_inputs

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Inputs:
    """What is fed to both sides.

    feeds: input name → array (object arrays of ``str`` for strings, lists for sequences, None for an
        empty optional).
    sources: input name → where its values come from, in words.
    seed: None when every value comes from a file.
    """

    feeds: dict[str, Any]
    sources: dict[str, str]
    seed: int | None


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return ``--shape`` options as name → sizes.

    ``x=1x3x224x224`` sets an input, ``x=`` one of rank 0, ``N=4`` a symbol (or an input of rank 1). Whether
    the names exist is checked where the model is known. Raises UsageError.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sizes = _parse_shape(text)
        if shapes.setdefault(name, sizes) != sizes:
            raise UsageError(f"--shape gives '{name}' twice", where=f"--shape {text}", next_step="keep one")
    return shapes


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    parts = sizes.replace("×", "x").replace(",", "x").split("x") if sizes.strip() else []
    if not equals or not name.strip() or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(
            f"not a shape: '{text}'",
            where=f"--shape {text}",
            next_step="write --shape NAME=1x3x224x224, or --shape SYMBOL=4",
        )
    return name.strip(), tuple(int(part) for part in parts)


def make_inputs(model: ir.Model, *, shapes: Shapes | None = None, seed: int = 0) -> Inputs:
    """Return seeded inputs for every input without an initializer."""
    feeds: dict[str, Any] = {}
    for name, spec in required_inputs(model).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        feeds[name] = _values(spec, _shape(spec, shapes or {}), rng)
    check_feeds(model, feeds)
    return Inputs(feeds, dict.fromkeys(feeds, f"seed {seed}"), seed)


def load_inputs(model: ir.Model, path: str | Path) -> Inputs:
    """Return the inputs in an npz file."""
    with np.load(path) as file:
        feeds = {name: file[name] for name in file.files}
    check_feeds(model, feeds)
    return Inputs(feeds, {name: f"file {Path(path).name}" for name in feeds}, None)


def _shape(spec: InputSpec, shapes: Shapes) -> tuple[int, ...]:
    if spec.name in shapes:
        return shapes[spec.name]
    if spec.shape is None:
        raise UsageError(
            f"input shape unknown: {spec.name}", where=str(spec), next_step=f"--shape {spec.name}=1x3x224x224"
        )
    given = (shapes.get(dim, (1,))[0] if isinstance(dim, str) else dim for dim in spec.shape)
    return tuple(1 if dim is None else dim for dim in given)


def _values(spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if spec.dtype is None or spec.kind != "tensor":
        raise InputError(f"cannot make up a {spec.kind}", where=str(spec), next_step="--inputs FILE.npz")
    if spec.dtype == object:
        return np.full(shape, "word", dtype=object)
    if spec.dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(spec.dtype)
    return rng.standard_normal(shape).astype(spec.dtype)


__all__ = ["InputSpec", "Inputs", "load_inputs", "make_inputs", "nearest", "parse_shapes"]
