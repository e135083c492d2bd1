"""Are two results the same but for rounding? Held against float64, not against a tolerance out of the air.

The original's own distance from a run in float64 says how much rounding the model has; the edited model may
be no further from float64 than a few times that. Where float64 cannot tell (the run is too heavy, the model
is float64 itself, or decisions fall otherwise there), inputs that are off by half a unit in the last place
show what rounding does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from graphdoc.compare.metrics import MismatchError, epsilon, pairs
from graphdoc.compare.numbers import number
from graphdoc.compare.verify_inputs import is_float

Array: TypeAlias = np.ndarray[Any, Any]
Values: TypeAlias = Mapping[str, Any]
_Others: TypeAlias = Callable[[], Sequence[Array | None]]

UNITS = 4.0
"""Units in the last place of the largest element that any result may be off by."""

MARGIN = 8.0
"""How many times further from float64 than the original's worst element the edited model's may be."""

RMS_MARGIN = 4.0
"""The same for the root of the mean square, which chance moves less."""

SHAKEN_MARGIN = 8.0
"""How many times further the edited model may be off than inputs half a unit apart make the original."""

FEW = 64
"""Elements below which chance may have put the original's worst one close to float64."""

LOST_ROUNDING = 16.0
"""An edited model that is so many times closer to float64 has lost a rounding step that the original makes on
purpose: a cast to a narrower dtype and back, say."""

CHAOS = 0.1
"""Rounding that moves a result by so much of its largest element leaves nothing to compare."""


class Verdict(IntEnum):
    """How a value came out, the worst last."""

    AGREES = 0
    UNSURE = 1
    DIFFERS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """One output's verdict; error and limit relative to the original's largest finite element."""

    verdict: Verdict
    error: float = 0.0
    limit: float = 0.0
    reason: str = ""

    @property
    def rank(self) -> tuple[int, float]:
        """Larger is worse."""
        return (self.verdict, self.error / self.limit if self.limit else 0.0)


@dataclass(frozen=True)
class Evidence:
    """What can be asked about the original, each costly and asked only when needed.

    truth: its outputs in float64, None when that cannot be run.
    shaken: its outputs when rounding falls otherwise: on inputs that are off by half a unit in the last
        place, and as the engine computes them; empty when there are none.
    depth: the number of its nodes. extreme: whether the inputs are so large that sums may overflow in one
        order and not in another.
    """

    truth: Callable[[], Values | None]
    shaken: Callable[[], Sequence[Values]]
    depth: int
    extreme: bool = False


def judge(name: str, a: Any, b: Any, evidence: Evidence, *, exact: bool) -> Outcome:
    """Return how an output of the edited model, ``b``, compares with the original's, ``a``.

    exact: the edit may change no bit.
    """
    try:
        found = list(pairs(a, b))
    except MismatchError as mismatch:
        return _mismatch(name, a, str(mismatch), evidence)
    outcomes = [_pair(x, y, _Part(name, index, evidence), exact=exact) for index, (x, y) in enumerate(found)]
    return max(outcomes, key=lambda outcome: outcome.rank, default=Outcome(Verdict.AGREES))


@dataclass(frozen=True)
class _Part:
    """One array of an output, and what is known of its rounding."""

    name: str
    index: int
    evidence: Evidence

    def truth(self, like: Array) -> Array | None:
        values = self.evidence.truth()
        return None if values is None else self._of(values, like)

    def shaken(self, like: Array) -> list[Array | None]:
        """Return the array of each shaken run, None where it has another shape."""
        return [self._of(values, like) for values in self.evidence.shaken()]

    def _of(self, values: Values, like: Array) -> Array | None:
        try:
            array = list(pairs(values[self.name], values[self.name]))[self.index][0]
        except (KeyError, IndexError):
            return None
        array = _flat(array) if array.dtype.kind == "c" else array
        return array if array.shape == like.shape else None


def _mismatch(name: str, a: Any, text: str, evidence: Evidence) -> Outcome:
    """Another structure is a difference, unless rounding alone gives the original another one too."""
    for values in evidence.shaken():
        try:
            list(pairs(a, values[name]))
        except MismatchError:
            return Outcome(Verdict.UNSURE, reason="rounding alone changes the shape of the original's")
    words = text.replace("A has", "the original has").replace(", B ", ", the edited model ")
    return Outcome(Verdict.DIFFERS, math.inf, 0.0, words.replace("A and B", "original and edited model"))


def _pair(a: Array, b: Array, part: _Part, *, exact: bool) -> Outcome:
    if a.dtype != b.dtype:
        return Outcome(Verdict.DIFFERS, math.inf, 0.0, f"{a.dtype} has become {b.dtype}")
    if same_bits(a, b):
        return Outcome(Verdict.AGREES)
    if exact or a.dtype == object:
        return _differs(a, b, ~_same(a, b), "not the same bits: " if exact else "")
    if a.dtype.kind == "c":
        return _real(_flat(a), _flat(b), part, epsilon(a.dtype))
    if is_float(a.dtype):
        return _real(a, b, part, epsilon(a.dtype))
    return _whole(a, b, part)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one dtype and shape are equal: NaN equals NaN, −0.0 does not equal 0.0."""
    if a.dtype == object:
        return bool(np.all(a == b))
    if a.tobytes() == b.tobytes():
        return True
    return bool(_same(a, b).all())


def _same(a: Array, b: Array) -> Array:
    if a.dtype == object or not (is_float(a.dtype) or a.dtype.kind == "c"):
        return np.asarray(a == b)
    if a.dtype.kind == "c":
        return np.asarray(_same(a.real, b.real) & _same(a.imag, b.imag))
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y)))


def _flat(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype)


def _differs(
    a: Array,
    b: Array,
    where: Array,
    text: str,
    error: float = math.inf,
    limit: float = 0.0,
    worst: int | None = None,
) -> Outcome:
    """Return the verdict on elements that differ, with the worst if known, else the first."""
    count = int(where.sum())
    flat = int(where.argmax()) if worst is None else worst
    place = tuple(int(i) for i in np.unravel_index(flat, where.shape))
    which = "" if count == 1 else ", the first" if worst is None else ", the worst"
    index = "" if not place else f"{which} at [" + ", ".join(map(str, place)) + "]"
    words = f"{text}{count} of {a.size} element{'s' * (a.size != 1)}{index}: {a[place]} became {b[place]}"
    return Outcome(Verdict.DIFFERS, error, limit, words)


# ---- whole numbers ------------------------------------------------------------------------------------


def _whole(a: Array, b: Array, part: _Part) -> Outcome:
    """Whole numbers and truth values are equal, except where rounding decides, as for the original."""
    where = np.asarray(a != b)
    count = int(where.sum())
    truth = part.truth(a)
    if truth is not None:
        own, limit = int((a != truth).sum()), max(1.0, CHAOS * a.size)
        other = int((b != truth).sum())
        if 0 < own <= limit and other <= MARGIN * own and _step(b, truth) <= MARGIN * _step(a, truth):
            return Outcome(Verdict.AGREES, count / a.size, MARGIN * own / a.size, _DECIDED)
    flips = [np.asarray(a != other) if other is not None else None for other in part.shaken(a)]
    if any(flip is None for flip in flips):
        return Outcome(Verdict.UNSURE, reason="rounding alone changes the shape of the original's")
    flipped = max((int(flip.sum()) for flip in flips if flip is not None), default=0)
    if flipped and count <= MARGIN * flipped:
        return Outcome(Verdict.UNSURE, reason=f"rounding alone changes {flipped} of {a.size} elements")
    return _differs(a, b, where, "", _step(a, b))


_DECIDED = "rounding decides; float64 differs from the original too"


def _step(a: Array, b: Array) -> float:
    if not a.size:
        return 0.0
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


# ---- real numbers -------------------------------------------------------------------------------------


def _real(a: Array, b: Array, part: _Part, eps: float) -> Outcome:
    x, y = a.astype(np.float64), b.astype(np.float64)
    if np.array_equal(x, y, equal_nan=True):
        return Outcome(Verdict.AGREES, 0.0, 0.0, "zeros of the other sign")
    broken = _classes(x) != _classes(y)
    if broken.any():
        broken = _unexplained(x, y, broken, a, part)
        if broken.any():
            return _differs(a, b, broken, "NaN or infinite where it was not, or the reverse: ")
    finite = np.isfinite(x) & np.isfinite(y)
    return _rounding(a, b, finite, part, eps)


def _classes(x: Array) -> Array:
    """Return 0 for finite, 1 for NaN, 2 and 3 for the infinities."""
    return np.where(np.isnan(x), 1, np.where(np.isposinf(x), 2, np.where(np.isneginf(x), 3, 0)))


def _unexplained(x: Array, y: Array, broken: Array, a: Array, part: _Part) -> Array:
    """Return where one of the two is NaN or infinite without an excuse.

    Where the inputs are extreme, the original overflowed on the way and the edited model has what float64
    has when rounded to the dtype, the edit is no fault.
    """
    truth = part.truth(a) if part.evidence.extreme else None
    if truth is None:
        return broken
    with np.errstate(all="ignore"):
        rounded = truth.astype(np.float64).astype(a.dtype).astype(np.float64)
    kinds = _classes(rounded)
    return np.asarray(broken & ~((kinds == _classes(y)) & (kinds != _classes(x))))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What two results hold where both are finite, in float64.

    unit: one unit in the last place of the largest element.
    """

    x: Array
    y: Array
    scale: float
    eps: float
    unit: float

    @property
    def worst(self) -> float:
        """The largest difference."""
        return float(np.abs(self.y - self.x).max(initial=0.0))


def _rounding(a: Array, b: Array, finite: Array, part: _Part, eps: float) -> Outcome:
    """Judge the elements that are finite on both sides."""
    x, y = a.astype(np.float64)[finite], b.astype(np.float64)[finite]
    scale = float(np.abs(x).max(initial=0.0))
    numbers = _Numbers(x, y, scale, eps, eps * scale + _smallest(a.dtype))
    small = _Limit(numbers.worst, UNITS * numbers.unit, f"{UNITS:.0f} units in the last place")
    if small.holds:
        return _outcome(small, numbers)
    wide = a.dtype == np.float64  # the run in float64 would be the original itself
    limit = None if wide else _truth_limit(numbers, part.truth(a), lambda: part.shaken(a), finite)
    if limit is not None and limit.allowed <= CHAOS * scale and (limit.holds or limit.certain):
        return _outcome(limit, numbers) if limit.holds else _too_far(a, b, finite, limit, numbers)
    shaken = _shaken_limit(a, numbers, part, finite)
    if shaken is None:
        return Outcome(Verdict.UNSURE, reason="rounding alone changes the shape of the original's")
    if limit is not None and limit.allowed > shaken.allowed:
        shaken = limit
    if shaken.allowed > CHAOS * scale > 0 and numbers.worst <= shaken.allowed / CHAOS:
        return Outcome(Verdict.UNSURE, reason=f"rounding alone moves it by {number(shaken.allowed / scale)}")
    return _outcome(shaken, numbers) if shaken.holds else _too_far(a, b, finite, shaken, numbers)


@dataclass(frozen=True, slots=True)
class _Limit:
    """An error and what it may be, both in the value's own units; certain: nothing looser may excuse it."""

    error: float
    allowed: float
    reason: str
    certain: bool = False

    @property
    def holds(self) -> bool:
        return self.error <= self.allowed


def _outcome(limit: _Limit, numbers: _Numbers) -> Outcome:
    scale = numbers.scale or 1.0
    error, allowed = limit.error / scale, limit.allowed / scale
    return Outcome(Verdict.AGREES, error, allowed, limit.reason)


def _too_far(a: Array, b: Array, finite: Array, limit: _Limit, numbers: _Numbers) -> Outcome:
    scale = numbers.scale or 1.0
    error, allowed = limit.error / scale, limit.allowed / scale
    text = f"off by {number(error)} of the largest element, {number(allowed)} allowed: {limit.reason}; "
    gap = np.zeros(a.shape)
    gap[finite] = np.abs(numbers.y - numbers.x)
    over = gap > min(limit.allowed, gap.max(initial=0.0) / 2)  # some limits are not about the largest gap
    return _differs(a, b, over, text, error, allowed, worst=int(gap.argmax()))


def _truth_limit(numbers: _Numbers, truth: Array | None, others: _Others, finite: Array) -> _Limit | None:
    """Return how far both are from float64; None where that tells nothing."""
    if truth is None:
        return None
    t = truth.astype(np.float64)[finite]
    known = np.isfinite(t)
    x, t = numbers.x[known], t[known]
    own, other = np.abs(x - t), np.abs(numbers.y[known] - t)
    if not own.size or float(own.max()) > CHAOS * numbers.scale:
        return None  # decisions fall otherwise in float64
    first = _distances(own, other, x, numbers)
    if first.holds or not own.any():  # the original does not round at all: no chance is in play
        return replace(first, certain=True)
    elsewhere = [np.abs(v.astype(np.float64)[finite][known] - t) for v in others() if v is not None]
    usable = [distance for distance in elsewhere if float(distance.max()) <= CHAOS * numbers.scale]
    limits = [_distances(distance, other, x, numbers) for distance in usable]
    best = next((limit for limit in limits if limit.holds), first)
    return replace(best, certain=own.size >= FEW and not _by_few(other))


def _distances(own: Array, other: Array, x: Array, numbers: _Numbers) -> _Limit:
    """Hold the distances of both from float64 against each other: the largest, and the overall ones."""
    reason = "the original's own distance from float64"
    worst, worst_other = float(own.max()), float(other.max())
    largest = _Limit(worst_other, MARGIN * worst + UNITS * numbers.unit, f"{MARGIN:.0f} × {reason}")
    if not largest.holds or own.size < FEW:
        return largest
    rms, rms_other = _rms(own), _rms(other)
    unit = numbers.eps * _rms(x) + numbers.unit * numbers.eps
    if rms > LOST_ROUNDING * max(unit, rms_other):
        lost = "nearer to float64 than the original: a rounding step is gone"
        return _Limit(rms, LOST_ROUNDING * max(unit, rms_other), lost)
    overall = _Limit(
        rms_other, RMS_MARGIN * rms + unit, f"{RMS_MARGIN:.0f} × {reason}, root of the mean square"
    )
    return largest if overall.holds else overall


def _by_few(distances: Array) -> bool:
    """Whether a few of many elements make up most of a root of the mean square: chance makes that large."""
    if distances.size < FEW * FEW:
        return False
    squares = np.square(distances)
    return bool(np.partition(squares, -FEW)[-FEW:].sum() > squares.sum() / 2)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _shaken_limit(a: Array, numbers: _Numbers, part: _Part, finite: Array) -> _Limit | None:
    """Return how far inputs half a unit apart move the original; None where its shape changes."""
    spread = 0.0
    for other in part.shaken(a):
        if other is None:
            return None
        moved = np.abs(other.astype(np.float64)[finite] - numbers.x)
        spread = max(spread, float(moved[np.isfinite(moved)].max(initial=0.0)))
    steps = math.sqrt(part.evidence.depth)
    allowed = SHAKEN_MARGIN * spread + UNITS * numbers.unit * steps
    reason = f"{SHAKEN_MARGIN:.0f} × what inputs half a unit in the last place apart change"
    return _Limit(numbers.worst, allowed, reason)


def _smallest(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
