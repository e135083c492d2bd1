"""Runs both sides, group by group of taps, and measures every layer; keeps figures, lets values go."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from graphdoc.compare.limits import BOUNDED, own_limit
from graphdoc.compare.masks import largest, smallest
from graphdoc.compare.metrics import MismatchError, Tolerance, distance, epsilon, measure, ratio
from graphdoc.compare.picture import Picture
from graphdoc.compare.result import Limit, Metrics
from graphdoc.compare.runner import Run, Runner, Values
from graphdoc.compare.target import Feeding, Point
from graphdoc.engine.scope import Occurrences

EXACT = Limit(value=0.0, reason="results are exact")

Progress = Callable[[int, int], None]
"""Called with layers done and layers in all."""


Collect = Callable[[str, Any, Any], None]
"""Called with a tap name, A's value, and what B makes of A's inputs there."""


@dataclass(slots=True)
class Finding:
    """What was measured of one layer. op_b: B's operator, where it is another model.

    metrics: B against A as run; None with ``mismatch`` (why they cannot be held side by side) or ``absent``
    (why there is no value). own, own_metrics: B on A's inputs against A. inherited: B as run against B on
    A's inputs. step: distance of two codes, of a value that B quantises. coarse: B computes it from codes,
    by these ops.
    notes: what else there is to know when it is wrong. picture: what to draw of it.
    """

    point: Point
    op_b: str = ""
    dtype: str = ""
    dtype_b: str = ""
    shape: tuple[int, ...] | None = None
    occurrences: int = 1
    metrics: Metrics | None = None
    own: float | None = None
    own_outside: bool = False
    inherited: float | None = None
    own_limit: Limit = EXACT
    mismatch: str = ""
    absent: str = ""
    time_a: float | None = None
    time_b: float | None = None
    step: float | None = None
    coarse: bool = False
    ops: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    picture: Picture | None = None

    @property
    def narrowed(self) -> bool:
        """Whether B holds the value in a dtype of fewer digits than A."""
        return _coarser(self.dtype_b, self.dtype)


Observe = Callable[[Sequence[Finding], Run, Run], None]
"""Takes the findings of a group of layers while the values of both sides are at hand."""


@dataclass(slots=True)
class Measured:
    """All findings, the outputs of both sides as tapped, and what the runners told of the time per layer.

    patterns: B's values without their elements, for the dtypes.
    """

    findings: list[Finding]
    outputs_a: Values
    outputs_b: Values
    shapes: dict[str, tuple[int, ...]]
    seconds_a: dict[str, float] = field(default_factory=dict)
    seconds_b: dict[str, float] = field(default_factory=dict)
    patterns: dict[str, Any] = field(default_factory=dict)


def measure_all(
    a: Runner,
    b: Runner,
    feeds: tuple[Mapping[str, Any], Mapping[str, Any]],
    points: Sequence[Point],
    outputs: Collection[str],
    shapes: dict[str, tuple[int, ...]],
    *,
    budget: int,
    tolerance: Tolerance | None,
    feeding: Mapping[str, Feeding],
    progress: Progress | None = None,
    observe: Observe | None = None,
    collect: Collect | None = None,
) -> Measured:
    """Measure every point on both sides.

    feeds: for A and for B. shapes: of inputs and constants; grows by every tapped value. budget: bytes of
    tapped values held at a time and side. tolerance: the user's, if any. feeding: of B's layers.
    collect: takes each layer's name, A's value, and what B makes of A's inputs.
    """
    result = Measured([], {}, {}, shapes)
    left = list(points)
    with ThreadPoolExecutor(1) as pool:
        while left:
            group, run_a, run_b = _run_group(a, b, feeds, left, budget, feeding)
            result.patterns.update((key, _pattern(value)) for key, value in run_b.values.items())
            given = as_b_takes(run_a.values, result.patterns)
            pending = pool.submit(
                _own_errors, b, feeds[1], given, run_a, run_b, group, feeding, tolerance, collect
            )
            _keep(result, run_a, run_b, outputs)
            found = [
                _total(Finding(point, feeding[point.key].op), run_a, run_b, shapes, tolerance)
                for point in group
            ]
            for finding in found:
                _widen(finding, len(feeding[finding.point.key].between))
            own = pending.result()
            for finding in found:
                if finding.point.key in own and not finding.absent:
                    _note_own(finding, own[finding.point.key])
            if observe:
                observe(found, run_a, run_b)
            result.findings += found
            left = left[len(group) :]
            if progress:
                progress(len(result.findings), len(points))
    return result


def _keep(result: Measured, run_a: Run, run_b: Run, outputs: Collection[str]) -> None:
    """Keep what outlives a group: outputs, shapes, times."""
    result.outputs_a.update((name, run_a.values[name]) for name in outputs if name in run_a.values)
    result.outputs_b.update((name, run_b.values[name]) for name in outputs if name in run_b.values)
    result.seconds_a.update(run_a.timings)
    result.seconds_b.update(run_b.timings)
    result.shapes.update((k, v.shape) for k, v in run_a.values.items() if isinstance(v, np.ndarray))


def _run_group(
    a: Runner,
    b: Runner,
    feeds: tuple[Mapping[str, Any], Mapping[str, Any]],
    left: Sequence[Point],
    budget: int,
    feeding: Mapping[str, Feeding],
) -> tuple[list[Point], Run, Run]:
    """Run B as far as its taps fit the budget, then A for the same taps; return the points covered."""
    run_b = b.run(feeds[1], [point.key for point in left], budget=budget)
    group = list(_covered(left, run_b))
    wanted = dict.fromkeys(point.key for point in group)
    wanted.update((name, None) for point in group for name in (*point.inputs, *feeding[point.key].sources))
    return group, a.run(feeds[0], list(wanted)), run_b


def _covered(left: Sequence[Point], run: Run) -> Sequence[Point]:
    """Return the points that this run settles: all, or with a used-up budget those up to the last value."""
    reached = (i for i, point in enumerate(left) if point.key in run.values and not point.is_output)
    return left[: max(reached, default=len(left) - 1) + 1] if run.cut else left


@dataclass(frozen=True, slots=True)
class _Own:
    """B on A's inputs: against A, whether outside the user's tolerance, and RMS against B as run."""

    error: float = math.inf
    outside: bool = True
    apart: float = math.inf
    mismatch: str = ""


def _own_errors(
    b: Runner,
    feeds: Mapping[str, Any],
    given: Values,
    run_a: Run,
    run_b: Run,
    group: Sequence[Point],
    feeding: Mapping[str, Feeding],
    tolerance: Tolerance | None,
    collect: Collect | None,
) -> dict[str, _Own]:
    """Run B's layers on A's values (``given``, in the dtypes that B's layers take), and measure each at once.

    Values of B on A's inputs are not kept where the runner hands them over one by one: a third of the memory.
    """
    found: dict[str, _Own] = {}

    def note(key: str, forced: Any) -> None:
        if key in run_a.values and key in run_b.values:
            found[key] = _own(run_a.values[key], run_b.values[key], forced, tolerance)
            if collect:
                collect(key, run_a.values[key], forced)

    fed = [p.key for p in group if p.key in given and is_fed(feeding[p.key], given, feeding)]
    taps = with_between(fed, feeding)
    each = getattr(b, "forced_each", None)
    if each is not None:
        each(feeds, given, taps, note)
    else:
        for key, value in b.forced(feeds, given, taps).values.items():
            note(key, value)
    return found


def is_fed(layer: Feeding, given: Collection[str], layers: Collection[str]) -> bool:
    """Whether all is given that a layer reads of other layers: saved values may lack some."""
    return all(name in given for name in layer.sources if name in layers)


def with_between(keys: Collection[str], feeding: Mapping[str, Feeding]) -> list[str]:
    """Return the layers and those in between that have to be computed with them."""
    return list(dict.fromkeys([*(name for key in keys for name in feeding[key].between), *keys]))


def as_b_takes(values: Mapping[str, Any], patterns: Mapping[str, Any]) -> Values:
    """Return A's values in the dtypes of B's; what B has no value of stays as it is."""
    return {key: _as_dtype(value, patterns.get(key)) for key, value in values.items()}


def _pattern(value: Any) -> Any:
    """Return a value without its elements."""
    if isinstance(value, list):
        return type(value)(map(_pattern, value))
    return np.empty(0, value.dtype) if isinstance(value, np.ndarray) else None


def _as_dtype(value: Any, pattern: Any) -> Any:
    if isinstance(value, list) and isinstance(pattern, list):
        return type(value)(
            _as_dtype(v, pattern[min(i, len(pattern) - 1)]) for i, v in enumerate(value) if pattern
        )
    if (
        not isinstance(value, np.ndarray)
        or not isinstance(pattern, np.ndarray)
        or value.dtype == pattern.dtype
    ):
        return value
    both_float = epsilon(value.dtype) and epsilon(pattern.dtype)
    with np.errstate(all="ignore"):
        return _cast(value, pattern.dtype) if both_float else value


def _cast(value: Any, dtype: Any) -> Any:
    """Return floats as others; what is too large becomes the largest of them, what is too small the smallest.

    That a value overflows or vanishes is the doing of the layer before, and masks stay finite.
    """
    most = largest(dtype)
    if most >= largest(value.dtype):
        return value.astype(dtype)
    cast = np.where(np.isinf(value), value, np.clip(value, -most, most)).astype(dtype)
    gone = (cast == 0) & (value != 0)
    if gone.any():
        cast[gone] = np.copysign(smallest(dtype), value[gone]).astype(dtype)
    return cast


def _total(
    finding: Finding,
    run_a: Run,
    run_b: Run,
    shapes: Mapping[str, tuple[int, ...]],
    tolerance: Tolerance | None,
) -> Finding:
    point = finding.point
    finding.time_a, finding.time_b = run_a.timings.get(point.key), run_b.timings.get(point.key)
    finding.absent = _unspecified(point) or _absence(point, run_a, "A") or _absence(point, run_b, "B")
    if finding.absent:
        return finding
    left, right = run_a.values[point.key], run_b.values[point.key]
    finding.dtype, finding.shape = _kind(left)
    finding.dtype_b, _ = _kind(right)
    finding.occurrences = len(left) if isinstance(left, Occurrences) else 1
    limit = _limit(finding, shapes, 1.0)
    used = tolerance or Tolerance(of_rms=limit.value)
    try:
        finding.metrics = measure(left, right, used)
    except MismatchError as error:
        finding.mismatch = str(error)
    finding.own_limit = _limit(finding, shapes, finding.metrics.rms_a if finding.metrics else 0.0)
    if finding.metrics and finding.metrics.rms_a == 0 and _is_nothing(finding, finding.metrics.rms):
        finding.own_limit = Limit(value=math.inf, reason="A is 0, B below half a unit in the last place of 1")
    return finding


def _is_nothing(finding: Finding, rms: float) -> bool:
    """Whether a bounded function's approximation went all the way to 0 where the other one did not."""
    bounded = finding.point.op in BOUNDED and finding.op_b == finding.point.op
    return bounded and rms < epsilon(finding.dtype) / 2


def _widen(finding: Finding, between: int) -> None:
    """Allow each layer of B that A has no counterpart of the rounding of one more layer."""
    if between and finding.own_limit.value:
        reason = f"{finding.own_limit.reason}, and {between} more of B in between"
        finding.own_limit = Limit(value=finding.own_limit.value * (1 + between), reason=reason)
        finding.notes.append(f"{between} layers of B lead here that A has no counterpart of")


def _limit(finding: Finding, shapes: Mapping[str, tuple[int, ...]], rms_a: float) -> Limit:
    point = finding.point
    inputs = [shapes.get(name) for name in point.inputs]
    dtype = finding.dtype_b if _coarser(finding.dtype_b, finding.dtype) else finding.dtype
    op = point.op if finding.op_b == point.op or point.op not in BOUNDED else ""
    return own_limit(op, dtype, inputs, finding.shape, rms_a)


def _own(left: Any, right: Any, forced: Any, tolerance: Tolerance | None) -> _Own:
    text = _kind(left)[0] == "object"
    try:
        if tolerance is not None or text:
            own = measure(left, forced, tolerance or Tolerance())
            error, outside = own.error, own.outside > 0
        else:
            error, outside = ratio(*distance(left, forced)), False
    except MismatchError as mismatch:
        return _Own(mismatch=str(mismatch))
    return _Own(error, outside, _apart(forced, right) if error and not text else 0.0)


def _apart(forced: Any, right: Any) -> float:
    try:
        return distance(forced, right)[0]
    except MismatchError:
        return math.inf


def _note_own(finding: Finding, own: _Own) -> None:
    finding.own, finding.own_outside = own.error, own.outside
    if own.mismatch:
        finding.mismatch = own.mismatch
    elif finding.metrics is not None and finding.dtype != "object":
        same = own.error == 0
        finding.inherited = finding.metrics.error if same else ratio(own.apart, finding.metrics.rms_a)


def _coarser(dtype: str, other: str) -> bool:
    return all(d not in ("", "object") for d in (dtype, other)) and epsilon(dtype) > epsilon(other)


UNSPECIFIED = {"Dropout": 1, "BatchNormalization": 1}
"""Operators whose further outputs, from this slot on, the specification leaves open outside training."""


def _unspecified(point: Point) -> str:
    if point.slot >= UNSPECIFIED.get(point.op, point.slot + 1):
        return f"the specification leaves this output of {point.op} open outside training"
    return ""


def _absence(point: Point, run: Run, side: str) -> str:
    if point.key in run.values:
        return ""
    for scope, reason in run.unreachable.items():
        if point.scope.startswith(scope):
            return f"{side}: {reason}"
    return (
        f"{side} did not compute it: its branch was not taken" if point.scope else f"{side} has no such value"
    )


def _kind(value: Any) -> tuple[str, tuple[int, ...] | None]:
    """Return the dtype's name and the shape of a value; of the first element for lists."""
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, np.ndarray):
        return _dtype_name(value.dtype), tuple(value.shape)
    return "", None


@cache
def _dtype_name(dtype: Any) -> str:
    """Return the dtype's name, which NumPy puts together anew each time it is asked."""
    name: str = dtype.name
    return name
