"""The whole way from two models to a Comparison, in order."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from graphdoc.compare import half
from graphdoc.compare.bridges import AGAIN
from graphdoc.compare.causes import Fading, Suspect, explain
from graphdoc.compare.changes import Changes
from graphdoc.compare.environment import environment, memory_available
from graphdoc.compare.examine import MOST, Scene, examine, measure_noise
from graphdoc.compare.feeds import feeds_for
from graphdoc.compare.findings import Finding, Measured, Observe, Progress, measure_all
from graphdoc.compare.gallery import Gallery
from graphdoc.compare.hashing import hash_value
from graphdoc.compare.inputs import Inputs
from graphdoc.compare.judge import Evidence, Judgement, judge, suspects
from graphdoc.compare.metrics import MismatchError, Tolerance, distance, ratio
from graphdoc.compare.noise import measure_floor
from graphdoc.compare.pairing import paired
from graphdoc.compare.ranking import PASSES, OwnErrors
from graphdoc.compare.ranking_words import ranked, with_ranking
from graphdoc.compare.result import Comparison, InputInfo, Latency, Layer, Limit, Side, Skip, Status
from graphdoc.compare.rounding import Rounding
from graphdoc.compare.runner import Run, Runner, RunnerOptions, Values, open_runner
from graphdoc.compare.target import Feeding, Point, Target
from graphdoc.compare.tolerances import Described, Rule, find, unmatched
from graphdoc.compare.truth import magnification, measure_truth
from graphdoc.compare.wording import Case, verdict
from graphdoc.engine.errors import NothingComparedError, RunnerError
from graphdoc.surgeon.stubs import stripped_remark

LATENCY_SECONDS = 0.15
"""Time spent on whole untapped runs of each side."""

RESUMED = 64 << 20
"""Bytes of inner values held at a time where runs resume, so that more would save no time."""

LATENCY_RUNS = 20
LEAST_RUNS = 4
"""The first of them warms up."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compare.

    ref, test: runner names. taps: "all", "outputs", or globs over value and node names. rtol, atol: the
    user's tolerance, element by element as in numpy.allclose; None: limits by dtype and measurement.
    tolerances: the user's limits for some layers, those of nearer sources last (tolerances.py).
    memory: bytes for tapped values, None for an eighth of what is free. latency: time whole runs too.
    pictures: draw a few layers (compare/gallery.py).
    rank: rank layers by what their own errors do to the outputs, with so many reverse passes (ranking.py).
    truth: hold every layer against float64. noise: run A against itself, which widens limits.
    first_only: stop looking once a layer is known to be wrong by itself; untapped runs are left out.
    command: what to type to repeat the comparison. model, suspect: the reference and the test as typed.
    """

    ref: str = "ort"
    test: str = "engine"
    taps: tuple[str, ...] = ("all",)
    rtol: float | None = None
    atol: float | None = None
    tolerances: tuple[Rule, ...] = ()
    threads: int = 0
    seed: int = 0
    memory: int | None = None
    latency: bool = True
    first_only: bool = False
    truth: bool = False
    noise: bool = False
    rank: bool = False
    passes: int = PASSES
    pictures: bool = False
    command: str = ""
    model: str = ""
    suspect: str = ""

    @property
    def tolerance(self) -> Tolerance | None:
        """The user's tolerance, None when neither part is given."""
        if self.rtol is None and self.atol is None:
            return None
        return Tolerance(relative=self.rtol or 0.0, absolute=self.atol or 0.0)

    @property
    def given_limit(self) -> Limit | None:
        """The same, as reports show it."""
        used = self.tolerance
        if used is None:
            return None
        reason = f"given: rtol {used.relative:g}, atol {used.absolute:g}, element by element"
        return Limit(value=used.relative, reason=reason)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What untapped runs showed: how far taps move the outputs, and how long a run takes."""

    gap: float | None
    latency: Latency | None = None


def compare(
    ref: Target,
    test: Target,
    inputs: Callable[[], Inputs],
    options: Options,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two targets (the same one twice for two runners) on one set of inputs.

    inputs: makes them; called while runners that can open in the background.

    All layers are measured, whatever ``taps`` shows: what a value may differ by follows from the layers
    before it. With a tolerance of the user's own only the chosen ones are.

    Raises UsageError (unknown runner), RunnerError (a runner is missing or fails), NothingComparedError.
    """
    pairs = paired(ref, test)
    ref, test = pairs.ref, pairs.test
    settings = RunnerOptions(options.threads, options.seed, options.latency)
    chosen = choose(ref, test, options.taps)
    measured_points = chosen if options.tolerance and not options.rank else choose(ref, test, ("all",))
    errors = OwnErrors(_budget(options)) if options.rank else None
    with ExitStack() as opened:
        a, b = (
            opened.enter_context(_warm(open_runner(name, target, settings, option)))
            for name, target, option in ((options.ref, ref, "--ref"), (options.test, test, "--test"))
        )
        fed = inputs()
        feeds = (fed.feeds, feeds_for(fed.feeds, ref, test))
        feeding = test.feeding({point.key for point in measured_points})
        measured = _measure(a, b, feeds, measured_points, ref, test, options, feeding, progress, errors)
        scene = Scene(a, b, feeds[0], feeds[1], ref, feeding, _budget(options), measured.patterns)
        judged, evidence = _judge(scene, measured.findings, options, settings)
        sides = (
            _side("A", ref, a, _untouched(a, feeds[0], measured.outputs_a, measured.seconds_a, options)),
            _side("B", test, b, _untouched(b, feeds[1], measured.outputs_b, measured.seconds_b, options)),
        )
    wanted = {point.key for point in chosen}
    rows = [(f, j) for f, j in zip(measured.findings, judged, strict=True) if f.point.key in wanted]
    evidence.changes = _changes(rows, ref, test)
    evidence.remarks += [pairs.remark] if pairs.remark else []
    evidence.remarks += _stripped(ref, test) + _widened(ref, test, options)
    alone = _alone(ref, test)
    result = _result(rows, evidence, sides, fed, options, alone)
    if errors is None:
        return result
    found = ranked(ref, fed.feeds, errors, measured.findings, passes=options.passes, budget=_budget(options))
    return with_ranking(result, found, options.passes)


def _stripped(ref: Target, test: Target) -> list[str]:
    """Return remarks on models whose weights were taken out."""
    sides = {"": ref} if test is ref else {"A: ": ref, "B: ": test}
    found = {side: stripped_remark(target.source.model) for side, target in sides.items()}
    return [f"{side}{text}" for side, text in found.items() if text]


def _widened(ref: Target, test: Target, options: Options) -> list[str]:
    """Return remarks on sides whose float16 ONNX Runtime computes in float32."""
    sides = {"A": (options.ref, ref), "B": (options.test, test)}
    found = (half.remark(label, target) for label, (runner, target) in sides.items() if runner == "ort")
    return [text for text in found if text and not options.first_only]


def _changes(rows: Sequence[tuple[Finding, Judgement]], ref: Target, test: Target) -> dict[str, str]:
    """Return what the two models do differently at the layers that are wrong by themselves."""
    wrong = [f.point.key for f, j in rows if j.status in (Status.OWN, Status.NAN)]
    if test is ref or not wrong:
        return {}
    changes = Changes(ref, test)
    return {key: changes.at(key) for key in wrong[:MOST]}


def _warm(runner: Runner) -> Runner:
    warm = getattr(runner, "warm", None)
    if warm is not None:
        warm()
    return runner


def choose(ref: Target, test: Target, taps: Sequence[str]) -> list[Point]:
    """Return the points of ``ref`` that are compared: those that ``test`` has too and ``taps`` wants.

    The models' outputs are always among them. Raises NothingComparedError when there are none.
    """
    shared = {point.key for point in test.points} if test is not ref else None
    points = [p for p in ref.points if shared is None or p.key in shared]
    wanted = [p for p in points if p.is_output or _matches(p, taps)]
    matched = [p for p in points if _matches(p, taps)]
    if not wanted or not (matched or "outputs" in taps):
        raise NothingComparedError(
            "nothing was compared: no tapped value exists on both sides",
            where=f"--taps {' '.join(taps)} matches {len(matched)} of {len(points)} values"
            if points
            else f"A has {len(ref.points)} values, B {len(test.points)}; no name is the same",
            next_step=f"graphdoc inspect {ref.source.name} --layers",
        )
    return wanted


def _matches(point: Point, taps: Iterable[str]) -> bool:
    return any(
        tap == "all" or fnmatchcase(point.key, tap) or fnmatchcase(point.node, tap)
        for tap in taps
        if tap != "outputs"
    )


def _alone(ref: Target, test: Target) -> dict[str, list[Point]]:
    """Return, for A and for B, the values that only it has of two different models.

    Codes that are compared as what they stand for have their partner.
    """
    keys_a, keys_b = ({point.key for point in target.points} for target in (ref, test))
    bridged = {key for key in keys_a | keys_b if key.endswith(AGAIN)}
    bridged |= {key.removesuffix(AGAIN) for key in bridged}
    return {
        "A": [p for p in ref.points if p.key not in keys_b | bridged],
        "B": [p for p in test.points if p.key not in keys_a | bridged],
    }


def _skips(alone: Mapping[str, Sequence[Point]]) -> list[Skip]:
    return [
        Skip(value=point.key, reason=f"only {label} has a value of this name")
        for label, points in alone.items()
        for point in points
    ]


def _budget(options: Options) -> int:
    return options.memory or min(4 << 30, memory_available() // 8)


def _measure(
    a: Runner,
    b: Runner,
    feeds: tuple[Mapping[str, Any], Mapping[str, Any]],
    points: Sequence[Point],
    ref: Target,
    test: Target,
    options: Options,
    feeding: Mapping[str, Feeding],
    progress: Progress | None,
    errors: OwnErrors | None,
) -> Measured:
    shapes = dict(ref.constants)
    shapes.update((n, v.shape) for n, v in feeds[0].items() if isinstance(v, np.ndarray))
    both_resume = all(getattr(runner, "resumes", False) for runner in (a, b))
    return measure_all(
        a,
        b,
        feeds,
        points,
        ref.outputs,
        shapes,
        budget=options.memory or (RESUMED if both_resume else _budget(options)),
        tolerance=options.tolerance,
        feeding=feeding,
        progress=progress,
        observe=_observers(options, Rounding(ref, test, feeding, feeds[0]) if test is not ref else None),
        collect=errors.note if errors else None,
    )


def _observers(options: Options, rounding: Rounding | None) -> Observe | None:
    """Return what looks at the values of each group."""
    found: list[Observe] = [rounding.observe] if rounding is not None and rounding.is_needed else []
    found += [Gallery(options.given_limit).observe] if options.pictures else []

    def observe(findings: Sequence[Finding], run_a: Run, run_b: Run) -> None:
        for each in found:
            each(findings, run_a, run_b)

    return observe if found else None


def _untouched(
    runner: Runner, feeds: Mapping[str, Any], tapped: Values, timings: Mapping[str, float], options: Options
) -> _Whole:
    """Run the untapped model: once to hold its outputs against the tapped ones, then for its latency.

    A long run is spared where taps are free: then the tapped run was the untapped one.
    """
    if options.first_only or not getattr(runner, "computes", True):
        return _Whole(None)
    if getattr(runner, "taps_are_free", False) and sum(timings.values()) > LATENCY_SECONDS / 2:
        total = sum(timings.values())
        return _Whole(0.0, Latency(median=total, low=total, high=total, runs=1))
    seconds = [_timed(runner, feeds)]
    gap = _gap(seconds[0][1], tapped)
    while options.latency and _is_unsettled([spent for spent, _ in seconds]):
        seconds.append((_timed(runner, feeds)[0], {}))
    warm = [s for s, _ in seconds[1:]] or [seconds[0][0]]
    low, median, high = np.quantile(warm, [0.05, 0.5, 0.95])
    return _Whole(gap, Latency(median=float(median), low=float(low), high=float(high), runs=len(warm)))


def _is_unsettled(seconds: Sequence[float]) -> bool:
    if seconds[0] > LATENCY_SECONDS:
        return False
    return len(seconds) < LEAST_RUNS or (len(seconds) < LATENCY_RUNS and sum(seconds) < LATENCY_SECONDS)


def _timed(runner: Runner, feeds: Mapping[str, Any]) -> tuple[float, Values]:
    started = time.perf_counter()
    outputs = runner.untouched(feeds)
    return time.perf_counter() - started, outputs


def _gap(outputs: Values, tapped: Values) -> float | None:
    """Return the largest error between outputs with and without taps."""
    gaps = [_error(value, tapped[name]) for name, value in outputs.items() if name in tapped]
    known = [gap for gap in gaps if gap is not None]
    return max(known, default=None)


def _error(left: Any, right: Any) -> float | None:
    try:
        return ratio(*distance(left, right)) if _numeric(left) else None
    except MismatchError:
        return math.inf


def _numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != object


def _judge(
    scene: Scene, findings: Sequence[Finding], options: Options, settings: RunnerOptions
) -> tuple[list[Judgement], Evidence]:
    """Judge; where something looks wrong, look closer and judge again."""
    evidence, given = _told(findings, options.tolerances), options.given_limit
    if options.noise:
        measure_floor(scene.a, scene.target, scene.feeds_a, findings, settings, evidence)
    if options.truth:
        measure_truth(scene, findings, evidence)
    judged = judge(findings, evidence, given)
    steps: tuple[Callable[..., None], ...] = (examine,) if given else (examine, measure_noise)
    for step in steps:
        found = options.first_only and any(j.status in (Status.OWN, Status.NAN) for j in judged)
        if suspects(findings, judged) and not (found and step is measure_noise):
            step(scene, findings, judged, evidence)
            judged = judge(findings, evidence, given)
    adds_up = any(j.status is Status.INHERITED for j in judged)
    if options.truth or (adds_up and not given and not options.first_only):
        evidence.magnified = magnification(scene)
    return judged, evidence


def _told(findings: Sequence[Finding], rules: Sequence[Rule]) -> Evidence:
    """Return evidence that holds the user's limits, and remarks on rules that fit nothing."""
    layers = {
        f.point.key: Described(f.point.key, f.point.node, f.point.op, (f.dtype, f.dtype_b)) for f in findings
    }
    found = {key: find(rules, layer) for key, layer in layers.items()} if rules else {}
    idle = unmatched((rule for rule in rules if rule.must_match), list(layers.values()))
    return Evidence(
        given={key: rule.limit for key, rule in found.items() if rule is not None},
        remarks=[f"the tolerance '{rule.name}' fits no layer" for rule in idle],
    )


def _side(label: str, target: Target, runner: Runner, whole: _Whole) -> Side:
    source = target.source
    return Side(
        label=label,
        model=source.name,
        size=source.size,
        sha256=source.sha256,
        runner=runner.name,
        version=runner.version,
        settings=runner.settings,
        latency=whole.latency,
        tap_gap=whole.gap,
        fallbacks=runner.fallbacks,
    )


def _result(
    found: Sequence[tuple[Finding, Judgement]],
    evidence: Evidence,
    sides: tuple[Side, Side],
    inputs: Inputs,
    options: Options,
    alone: Mapping[str, Sequence[Point]],
) -> Comparison:
    rows = [(f, j) for f, j in found if not f.absent]
    absent = [Skip(value=f.point.key, reason=f.absent) for f, _ in found if f.absent]
    skipped = absent + _skips(alone)
    index = {f.point.key: i for i, (f, _) in enumerate(rows)}
    runners = (sides[0].runner, sides[1].runner)
    fade = Fading({f.point.key: (index[f.point.key], f) for f, _ in rows})
    layers = tuple(_layer(f, j, index, evidence, runners, fade) for f, j in rows)
    model = options.model or sides[0].model
    command = options.command or f"graphdoc compare {model}"
    case = Case(
        layers,
        sides[0],
        sides[1],
        absent,
        len(inputs.feeds),
        inputs.seed,
        command,
        model,
        options.suspect or model,
        {label: _operators(points) for label, points in alone.items()},
        evidence.magnified,
    )
    return Comparison(
        verdict=verdict(case),
        layers=layers,
        a=sides[0],
        b=sides[1],
        inputs=tuple(_input(name, value, inputs) for name, value in inputs.feeds.items()),
        skipped=tuple(skipped),
        seed=inputs.seed,
        command=command,
        environment=environment(),
        remarks=tuple(evidence.remarks),
    )


def _operators(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the operators of the nodes that compute some values."""
    nodes = dict.fromkeys((point.scope, point.op, point.inputs) for point in points)
    return tuple(op for _, op, _ in nodes)


def _layer(
    finding: Finding,
    judged: Judgement,
    index: Mapping[str, int],
    evidence: Evidence,
    runners: tuple[str, str],
    fade: Fading,
) -> Layer:
    point = finding.point
    truth_a, truth_b = evidence.truth.get(point.key, (None, None))
    dtype = finding.dtype if finding.dtype in ("", finding.dtype_b) else f"{finding.dtype}/{finding.dtype_b}"
    notes = [judged.note]
    if judged.status in (Status.OWN, Status.NAN):
        changed = "" if finding.coarse else evidence.changes.get(point.key, "")
        notes += [changed, *finding.notes, fade.note(finding)]
        farther = "" if truth_a is None or truth_b is None else runners[truth_b > truth_a]
        notes.append(explain(Suspect((point.op, *finding.ops), finding.dtype_b, finding.metrics, farther)))
    if judged.status is not Status.AGREES and dtype != finding.dtype and finding.dtype_b:
        notes.append(f"A is {finding.dtype}, B {finding.dtype_b}")
    return Layer(
        index=index[point.key],
        value=point.key,
        node=point.node,
        op=point.op,
        domain=point.domain,
        scope=point.scope,
        dtype=dtype,
        shape=finding.shape,
        status=judged.status,
        is_output=point.is_output,
        occurrences=finding.occurrences,
        error=finding.metrics.error if finding.metrics else (math.inf if finding.mismatch else None),
        limit=judged.limit,
        own_error=finding.own,
        own_limit=judged.own_limit,
        inherited_error=finding.inherited,
        metrics=finding.metrics,
        truth_a=truth_a,
        truth_b=truth_b,
        time_a=finding.time_a,
        time_b=finding.time_b,
        inputs=tuple(sorted({index[name] for name in point.inputs if name in index})),
        note="; ".join(note for note in notes if note),
        picture=finding.picture,
        step=finding.step,
    )


def _input(name: str, value: Any, inputs: Inputs) -> InputInfo:
    dtype = value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__
    return InputInfo(
        name=name,
        dtype="string" if dtype == "object" else dtype,
        shape=tuple(getattr(value, "shape", ())),
        sha256=hash_value(value),
        source=inputs.sources.get(name, ""),
    )


def require_layers(comparison: Comparison) -> None:
    """Raise when nothing at all was compared: an empty comparison is a failure, not an agreement."""
    if not comparison.layers:
        raise NothingComparedError(
            "nothing was compared: A and B share no value",
            where=comparison.skipped[0].reason if comparison.skipped else None,
            next_step=f"graphdoc inspect {comparison.a.model} --layers",
        )


__all__ = ["Options", "RunnerError", "choose", "compare", "require_layers"]
