"""A closer look at the layers that look wrong: float64, conditioning, ties, and the noise of rounding."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graphdoc.compare.findings import Finding, as_b_takes, is_fed, with_between
from graphdoc.compare.judge import NOISE_MARGIN, Evidence, Judgement
from graphdoc.compare.metrics import MismatchError, distance, epsilon, pairs, ratio
from graphdoc.compare.numbers import number
from graphdoc.compare.result import Limit, Status
from graphdoc.compare.runner import Runner, Values
from graphdoc.compare.target import Feeding, Target
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.engine.scope import Occurrences

MOST = 64
"""Suspects looked at closely, in topological order: the first ones decide the verdict."""

SEEDS = (1, 2)
CONDITION_MARGIN = 6.0
STEPS = frozenset({"Floor", "Ceil", "Round", "Sign", "Mod"})
"""Operators with steps: moving an input by its rounding tells nothing of how they should behave."""

WEIGHED = frozenset({"SVMClassifier", "SVMRegressor"})
"""Operators that sum over coefficients they hold themselves."""

_KERNEL_UNITS = 2.0
"""Units in the last place that a library's exp or tanh is off by."""

PICKS = {"ArgMax": 0, "ArgMin": 0, "TopK": 0}
"""Operators that pick indices, and the input they pick from."""

UNKNOWN = object()
"""In place of what B gives on A's inputs, where B cannot compute."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What an examination needs: both runners on their feeds, the model of A, and the dtypes of B."""

    a: Runner
    b: Runner
    feeds_a: Mapping[str, Any]
    feeds_b: Mapping[str, Any]
    target: Target
    feeding: Mapping[str, Feeding]
    budget: int
    patterns: Mapping[str, Any]


def examine(
    scene: Scene, findings: Sequence[Finding], judged: Sequence[Judgement], evidence: Evidence
) -> None:
    """Add to the evidence what tells faults from ill-conditioned layers, ties and rounding."""
    look = [f for f, j in zip(findings, judged, strict=True) if _worth(f, j)][:MOST]
    if not look:
        return
    try:
        _look(scene, look, evidence)
    except RunnerError as error:
        evidence.remarks.append(f"suspects were not checked against float64: {error.cause}")


def _worth(finding: Finding, judgement: Judgement) -> bool:
    picks = finding.point.op in PICKS and judgement.status is Status.INHERITED
    return judgement.status in (Status.OWN, Status.NAN) or picks


def values_for(scene: Scene, findings: Sequence[Finding]) -> tuple[Values, Values]:
    """Return A's values for some layers and what they read, and what B makes of A's values there."""
    wanted = dict.fromkeys(f.point.key for f in findings)
    wanted.update((n, None) for f in findings for n in (*f.point.inputs, *scene.feeding[f.point.key].sources))
    values_a = {**scene.feeds_a, **scene.a.run(scene.feeds_a, list(wanted)).values}
    fed = [f.point.key for f in findings if is_fed(scene.feeding[f.point.key], values_a, scene.feeding)]
    given = as_b_takes(values_a, scene.patterns)
    return values_a, scene.b.forced(scene.feeds_b, given, with_between(fed, scene.feeding)).values


def _look(scene: Scene, look: Sequence[Finding], evidence: Evidence) -> None:
    values_a, own_b = values_for(scene, look)
    look = [f for f in look if is_fed(scene.feeding[f.point.key], values_a, scene.feeding)]
    keys = [f.point.key for f in look]
    picks = [f.point.key for f in look if f.point.op in PICKS]
    run_b = scene.b.run(scene.feeds_b, picks).values if picks else {}
    truth = Interpreter(scene.target.model, truth=True)
    exact = forced(truth, scene.feeds_a, values_a, keys)
    moving = _shaken(scene, look) or truth
    moved = [forced(moving, scene.feeds_a, _perturbed(values_a, seed), keys) for seed in SEEDS]
    for finding in look:
        key = finding.point.key
        if key in exact and key in values_a:
            own = own_b.get(key) if getattr(scene.b, "computes", True) else UNKNOWN
            _compare_to_truth(finding, exact[key], values_a[key], own, moved, evidence)
        if key in picks and key in values_a and key in run_b:
            _check_ties(finding, values_a, run_b[key], evidence)


def forced(truth: Interpreter, feeds: Mapping[str, Any], given: Values, keys: Collection[str]) -> Values:
    """Return what an interpreter computes for some layers from given values."""
    wanted = frozenset(keys)
    found = truth.run(feeds, watch=Watch(taps=wanted, given=given, only=wanted))
    return {key: value for key, value in found.items() if key in wanted}


def _shaken(scene: Scene, look: Sequence[Finding]) -> Interpreter | None:
    """Return an interpreter whose suspects have coefficients that are off by rounding; None where none has.

    A sum over coefficients that cancel magnifies the rounding of what they are multiplied with, such as a
    support vector machine's kernel, which no rounding of the inputs shows where the kernel is saturated.
    """
    if not any(f.point.op in WEIGHED for f in look):
        return None
    shaken = Interpreter(scene.target.model, truth=True)
    rng = np.random.default_rng(SEEDS[0])
    for step in shaken.body.steps:
        if step.node.op_type in WEIGHED and "coefficients" in getattr(step.run, "keywords", {}):
            given = np.asarray(step.run.keywords["coefficients"], np.float32)
            off = _KERNEL_UNITS * epsilon(given.dtype) * rng.standard_normal(given.shape)
            step.run = partial(step.run, coefficients=(given * (1 + off)).tolist())
    return shaken


def _perturbed(values: Values, seed: int) -> Values:
    rng = np.random.default_rng(seed)
    return {key: _moved(value, rng) for key, value in values.items()}


def _moved(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return type(value)(_moved(item, rng) for item in value)
    if not isinstance(value, np.ndarray) or not epsilon(value.dtype):
        return value
    wide = value.astype(np.float64)
    return wide * (1 + 0.5 * epsilon(value.dtype) * rng.standard_normal(value.shape))


def _compare_to_truth(
    finding: Finding, exact: Any, a: Any, b: Any, moved: Sequence[Values], evidence: Evidence
) -> None:
    key = finding.point.key
    try:
        if b is not UNKNOWN:
            to_b = float("inf") if b is None else error_of(exact, b)
            evidence.truth[key] = (error_of(exact, a), to_b)
        spread = max(error_of(exact, other[key]) for other in moved if key in other)
    except MismatchError:
        return
    smooth = epsilon(finding.dtype) and finding.point.op not in STEPS
    if smooth and CONDITION_MARGIN * spread > finding.own_limit.value:
        reason = f"measured: rounding of its inputs alone moves this layer by {number(spread)}"
        evidence.own_limits[key] = Limit(value=CONDITION_MARGIN * spread, reason=reason)


def _check_ties(finding: Finding, values_a: Values, picked_b: Any, evidence: Evidence) -> None:
    """Note a pick of another index whose value equals the reference's within rounding."""
    source = values_a.get(finding.point.inputs[PICKS[finding.point.op]])
    picked_a = values_a[finding.point.key]
    if not isinstance(source, np.ndarray) or isinstance(picked_a, Occurrences):
        return
    try:
        (index_a, index_b), *_ = pairs(picked_a, picked_b)
    except MismatchError:
        return
    differ = index_a != index_b
    axis = _picking_axis(source.shape, index_a.shape)
    if axis is None or index_a.dtype.kind not in "iu":
        return
    shape = index_a if index_a.ndim == source.ndim else np.expand_dims(index_a, axis)
    other = index_b if index_b.ndim == source.ndim else np.expand_dims(index_b, axis)
    gap = np.abs(np.take_along_axis(source, shape, axis) - np.take_along_axis(source, other, axis))
    scale = float(np.abs(source.astype(np.float64)).max(initial=0.0))
    if float(gap.max(initial=0.0)) <= 16 * epsilon(source.dtype) * scale:
        evidence.ties[finding.point.key] = int(np.count_nonzero(differ))


def _picking_axis(source: tuple[int, ...], index: tuple[int, ...]) -> int | None:
    """Return the axis along which ``index`` picks from ``source``; None when it is not plain."""
    if len(source) == len(index):
        differ = [i for i, (s, k) in enumerate(zip(source, index, strict=True)) if s != k]
        return differ[0] if len(differ) == 1 else (len(source) - 1 if not differ else None)
    for axis in range(len(source)):
        if source[:axis] + source[axis + 1 :] == index:
            return axis
    return None


def measure_noise(
    scene: Scene, findings: Sequence[Finding], judged: Sequence[Judgement], evidence: Evidence
) -> None:
    """Run the engine with every layer's rounding replaced by chance; note how far values move.

    Done only when values differ by more than the own errors before them explain by simple addition: a
    layer that magnifies its input's error does the same to this noise.
    """
    wanted = {f.point.key: f for f, j in zip(findings, judged, strict=True) if j.status is Status.INHERITED}
    if not wanted:
        return
    size = {f.point.key: _rounding(f, j) for f, j in zip(findings, judged, strict=True)}
    watch = Watch(taps=frozenset(wanted), only=_up_to(scene.target, wanted), budget=scene.budget)
    try:
        interpreter = Interpreter(scene.target.model)
        clean = interpreter.run(scene.feeds_a, watch=watch)
        for seed in SEEDS:
            noisy = interpreter.run(scene.feeds_a, watch=replace(watch, noise=size, seed=seed))
            for key in wanted.keys() & clean.keys() & noisy.keys():
                evidence.noise[key] = max(evidence.noise.get(key, 0.0), _apart(clean[key], noisy[key]))
            if all(_explained(f, evidence.noise.get(key, 0.0)) for key, f in wanted.items()):
                return
    except RunnerError as error:
        evidence.remarks.append(f"the noise of rounding was not measured: {error.cause}")


def _up_to(target: Target, wanted: Collection[str]) -> frozenset[str]:
    """Return every layer up to the last wanted one; what comes later need not run."""
    keys = [point.key for point in target.points]
    last = max(i for i, key in enumerate(keys) if key in wanted)
    return frozenset(keys[: last + 1])


def _explained(finding: Finding, noise: float) -> bool:
    return finding.metrics is not None and finding.metrics.error <= NOISE_MARGIN * noise


def _rounding(finding: Finding, judgement: Judgement) -> float:
    """Return the relative size of a layer's rounding: its measured own error, within its limit.

    A layer that both sides compute alike gets none: a whole number kept in a float must stay whole.
    """
    own = finding.own if finding.own is not None else 0.0
    return min(own, judgement.own_limit.value)


def _apart(clean: Any, noisy: Any) -> float:
    try:
        return error_of(clean, noisy)
    except MismatchError:
        return float("inf")


def error_of(a: Any, b: Any) -> float:
    """Return RMS(b − a) ÷ RMS(a); texts have no distance, they are equal or not."""
    found = list(pairs(a, b))
    if any(x.dtype == object for x, _ in found):
        return 0.0 if all(np.array_equal(x, y) for x, y in found) else float("inf")
    return ratio(*distance(a, b))
