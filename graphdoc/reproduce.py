"""What to type to repeat a comparison."""

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from graphdoc.compare.comparison import Options
from graphdoc.engine.ops.custom import loaded_files


def command_line(
    model: Any,
    test: Any,
    options: Options,
    inputs: Any,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None,
) -> str:
    """Return the ``graphdoc compare`` that does the same; "" for models that are not files.

    Options for output, and inputs that were given as arrays, are left out.
    """
    models = [m for m in (model, test) if m is not None]
    if not all(isinstance(m, str | os.PathLike) for m in models):
        return ""
    usual = Options()
    pairs: list[tuple[str, Any]] = [
        ("--ref", options.ref if options.ref != usual.ref else None),
        ("--test", options.test if options.test != usual.test else None),
        *(("--taps", tap) for tap in options.taps if options.taps != usual.taps),
        ("--inputs", inputs if isinstance(inputs, str | os.PathLike) else None),
        *(("--shape", text) for text in _shape_texts(shapes)),
        ("--seed", options.seed or None),
        *(("--ops", path) for path in loaded_files()),
        ("--rtol", options.rtol),
        ("--atol", options.atol),
        *(("--tolerance", f"{rule.name}={rule.value:g}") for rule in options.tolerances if rule.must_match),
        ("--passes", options.passes if options.rank and options.passes != usual.passes else None),
    ]
    words = [word for name, value in pairs if value is not None for word in (name, str(value))]
    words += [f"--{name}" for name in ("truth", "noise", "rank") if getattr(options, name)]
    return shlex.join(["graphdoc", "compare", *map(os.fspath, models), *words])


def _shape_texts(shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None) -> list[str]:
    if isinstance(shapes, Mapping):
        return [f"{name}={'x'.join(map(str, sizes))}" for name, sizes in shapes.items()]
    return list(shapes or ())
