"""Float64 as third party: how far each side lies from it layer by layer, and how the whole model magnifies.

Distances are those of :mod:`graphdoc.compare.examine`: both sides and float64 compute each layer from A's
values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphdoc.compare.examine import Scene, error_of, forced, values_for
from graphdoc.compare.findings import Finding
from graphdoc.compare.judge import Evidence
from graphdoc.compare.metrics import MismatchError, epsilon
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter

AT_A_TIME = 64
"""Layers whose float64 values are held at a time."""

DIRECTIONS = (1, 2, 3)
"""Seeds of the directions in which inputs are moved."""


def measure_truth(scene: Scene, findings: Sequence[Finding], evidence: Evidence) -> None:
    """Note the distance of both sides from float64 for every layer that the engine can compute."""
    truth = Interpreter(scene.target.model, truth=True)
    for start in range(0, len(findings), AT_A_TIME):
        part = [f for f in findings[start : start + AT_A_TIME] if not f.absent and f.dtype != "object"]
        try:
            values, own_b = values_for(scene, part)
            exact = forced(truth, scene.feeds_a, values, [f.point.key for f in part])
        except RunnerError as error:
            evidence.remarks.append(f"some layers were not held against float64: {error.cause}")
            continue
        for key, value in exact.items():
            if key in values and key in own_b and key not in evidence.truth:
                with_b = _distance(value, own_b[key])
                evidence.truth[key] = (_distance(value, values[key]), with_b)


def _distance(exact: Any, value: Any) -> float:
    try:
        return error_of(exact, value)
    except MismatchError:
        return math.inf


def magnification(scene: Scene) -> tuple[float, float] | None:
    """Return the relative change that one unit in the last place of every float input is, and what it makes
    of the outputs (the largest over them): measured in float64, the median over a few random directions.

    None where no input is a float, no output is one, or the engine cannot run the model.
    """
    sizes = [epsilon(v.dtype) for v in scene.feeds_a.values() if isinstance(v, np.ndarray)]
    step = max(sizes, default=0.0)
    if not step:
        return None
    truth = Interpreter(scene.target.model, truth=True)
    try:
        plain = truth.run(scene.feeds_a)
        moved = [
            max(_changes(plain, truth.run(_stepped(scene.feeds_a, s))), default=None) for s in DIRECTIONS
        ]
    except RunnerError:
        return None
    known = [change for change in moved if change is not None]
    return (step, float(np.median(known))) if known else None


def _stepped(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the inputs with every float one unit in the last place higher or lower, in float64."""
    rng = np.random.default_rng(seed)
    return {name: _step(value, rng) for name, value in feeds.items()}


def _step(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or not epsilon(value.dtype):
        return value
    signs = rng.integers(0, 2, value.shape) * 2 - 1
    return value.astype(np.float64) * (1 + epsilon(value.dtype) * signs)


def _changes(plain: Mapping[str, Any], moved: Mapping[str, Any]) -> Iterator[float]:
    for name, value in plain.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            yield _distance(value, moved[name])
