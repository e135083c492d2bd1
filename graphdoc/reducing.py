"""The Python side of ``graphdoc reduce``: from a model that fails to the smallest part that does."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from graphdoc.api import Model, resolve_inputs
from graphdoc.compare.reduce import (
    Reduction,
    Setting,
    reduce_check,
    reduce_crash,
    reduce_mismatch,
    reduce_nan,
)
from graphdoc.compare.reduce_part import Cut
from graphdoc.compare.target import Target
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import open_source

Fails: TypeAlias = Literal["mismatch", "nan", "crash"] | Callable[[Cut], str]

WAYS: Mapping[str, Callable[[Setting], Reduction]] = {
    "mismatch": reduce_mismatch,
    "nan": reduce_nan,
    "crash": reduce_crash,
}


def reduce_model(
    model: Model,
    reference: Model | None = None,
    *,
    fails: Fails = "mismatch",
    runner: str | None = None,
    inputs: Any = None,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None = None,
    seed: int = 0,
    threads: int = 0,
) -> Reduction:
    """Return the smallest part of a model that fails as the whole does: ``.cut.model`` and ``.cut.feeds``.

    reference: what it differs from: another model with the same names, or the name of a runner that is
        trusted. By default "ort", and "engine" where ONNX Runtime runs the model.
    fails: "mismatch", results that differ; "nan", NaN or Inf made of finite values; "crash", the runner
        stops; or a function that takes a part (``.model``, ``.feeds``) and returns how it fails in words, ""
        when it does not.
    runner: who runs the model; "engine", and "ort" against another model. inputs, shapes, seed: as for
        ``compare_models``. threads: of ONNX Runtime, 0 for its default.

    Raises DoesNotFailError (a GraphdocError) when the whole model does not fail; UsageError, ModelError,
    InputError and RunnerError as ``compare_models`` does.
    """
    setting = setting_for(model, reference, runner, inputs, shapes, seed, threads)
    return reduced(setting, fails)


def setting_for(
    model: Model,
    reference: Model | None,
    runner: str | None,
    inputs: Any,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None,
    seed: int,
    threads: int,
) -> Setting:
    """Return who runs what."""
    target = Target(open_source(model))
    named = isinstance(reference, str) and not (reference.endswith(".onnx") or Path(reference).is_file())
    other = None if reference is None or named else Target(open_source(reference))
    test = runner or ("engine" if other is None else "ort")
    trusted = test if other is not None else "engine" if test.startswith("ort") else "ort"
    return Setting(
        target,
        str(reference) if named else trusted,
        test,
        lambda: resolve_inputs(other or target, inputs, shapes, seed),
        other,
        threads,
        seed,
    )


def reduced(setting: Setting, fails: Fails) -> Reduction:
    """Return the smallest part that fails in a way."""
    if callable(fails):
        return reduce_check(setting, fails)
    if fails not in WAYS:
        raise UsageError(f"'{fails}' is no way to fail", next_step=f"one of {', '.join(WAYS)}, or a function")
    return WAYS[fails](setting)
