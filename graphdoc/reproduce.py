"""What to type to repeat a comparison."""

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

DEFAULTS = {"ref": "ort", "test": "engine", "taps": ("all",), "seed": 0}


def command_line(
    model: Any,
    test: Any,
    *,
    ref: str,
    test_runner: str,
    taps: Iterable[str],
    inputs: Any,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None,
    seed: int,
    rtol: float | None,
    atol: float | None,
) -> str:
    """Return the ``graphdoc compare`` that does the same; "" for models that are not files.

    Options for output, and inputs that were given as arrays, are left out.
    """
    models = [m for m in (model, test) if m is not None]
    if not all(isinstance(m, str | os.PathLike) for m in models):
        return ""
    pairs: list[tuple[str, Any]] = [
        ("--ref", ref if ref != DEFAULTS["ref"] else None),
        ("--test", test_runner if test_runner != DEFAULTS["test"] else None),
        *(("--taps", tap) for tap in taps if tuple(taps) != DEFAULTS["taps"]),
        ("--inputs", inputs if isinstance(inputs, str | os.PathLike) else None),
        *(("--shape", text) for text in _shape_texts(shapes)),
        ("--seed", seed or None),
        ("--rtol", rtol),
        ("--atol", atol),
    ]
    options = [word for name, value in pairs if value is not None for word in (name, str(value))]
    return shlex.join(["graphdoc", "compare", *map(os.fspath, models), *options])


def _shape_texts(shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None) -> list[str]:
    if isinstance(shapes, Mapping):
        return [f"{name}={'x'.join(map(str, sizes))}" for name, sizes in shapes.items()]
    return list(shapes or ())
