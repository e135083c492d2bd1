"""What each layer's own error does to the outputs: by a few random reverse passes through A, then checked.

A layer's own error e (B on A's inputs, less A) alone says little: one layer's is amplified, another's dies
out. To first order it moves the outputs by J·e, J the derivative of the outputs by the layer's value. With
random signs u, scaled so that every output counts by its relative error, E (u·J·e)² is the square of the
outputs' relative error. One reverse pass gives u·J for all layers at once (engine/vjp.py), so a few passes
rank every layer at a cost that does not grow with their number.

Own errors that are independent add up to √Σ of the squares. Where that is far from the error that was
measured, or the largest layers do something else when their error alone is put into A, errors are too
large for a derivative, or not independent: then the largest are put in one by one, and it is said.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphdoc.compare.metrics import MismatchError, epsilon, pairs
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch, nbytes
from graphdoc.engine.scope import MAIN, Occurrences

if TYPE_CHECKING:
    from graphdoc.engine.vjp import Tape

PASSES = 8
"""Reverse passes without being told otherwise: enough for a rank correlation of 0.9 with brute force."""

FACTOR = 2.0
"""Predicted and measured error further apart than this: the prediction is not to be trusted."""

CHECKED = 3
"""Layers put in alone to check the prediction where it looks good."""

DWARFING = 1e6
"""Errors from here on are no rounding but the sizes of masks."""

SMALL = 1e-3
"""Errors of the outputs below it are put in in float64."""

CHECK_SECONDS = 2.0
INJECT_SECONDS = 10.0
MOST_INJECTED = 64
"""Bounds of putting layers in one by one where the prediction is not to be trusted."""


@dataclass(slots=True)
class OwnErrors:
    """The own errors of layers as they are measured: B on A's inputs, less A.

    budget: bytes to keep. found: by tap name; an array, or Occurrences of arrays. Layers without an error
    are not kept. broken: layers whose error is not a finite number. coarse: B's dtypes, of coarser ones.
    instead: what B makes of layers whose error dwarfs it (a mask of −3.4e38 becomes −65504, say): A's value
    and the error do not add up to it. full: the budget was used up.
    """

    budget: int
    found: dict[str, Any] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    coarse: dict[str, Any] = field(default_factory=dict)
    instead: dict[str, Any] = field(default_factory=dict)
    full: bool = False

    def note(self, key: str, a: Any, forced: Any) -> None:
        """Take what a layer of B made of A's inputs, and A's value."""
        if self.full:
            return
        try:
            parts = [_difference(x, y) for x, y in pairs(a, forced)]
        except (MismatchError, TypeError):
            return
        self.seen.add(key)
        if any(part is None for part in parts):
            self.broken.add(key)
        elif any(part.any() for part in parts if part is not None):
            self._keep(key, Occurrences(parts) if isinstance(a, Occurrences) else parts[0])
            if isinstance(forced, np.ndarray) and epsilon(forced.dtype) > epsilon(a.dtype):
                self.coarse[key] = forced.dtype
            if isinstance(forced, np.ndarray) and float(np.abs(self.found.get(key, 0.0)).max()) > DWARFING:
                self.instead[key] = forced

    def _keep(self, key: str, error: Any) -> None:
        self.budget -= nbytes(error)
        self.full = self.budget < 0
        if not self.full:
            self.found[key] = error


def _difference(a: Any, b: Any) -> Any:
    """Return b − a in float32 (float64 for doubles); None where it is not finite, or where one holds codes.

    TypeError for text.
    """
    if a.dtype == object:
        raise TypeError
    if bool(epsilon(a.dtype)) != bool(epsilon(b.dtype)):
        return None
    wide = np.float64 if np.float64 in (a.dtype, b.dtype) else np.float32
    with np.errstate(all="ignore"):
        error = b.astype(wide) - a.astype(wide)
    if error.size and not math.isfinite(float(np.abs(error).max())):
        same = (a == b) | ((a != a) & (b != b))  # NaN alone differs from itself
        error = np.where(same, wide(0), error)
    return error if not error.size or math.isfinite(float(np.abs(error).max())) else None


@dataclass(frozen=True, slots=True)
class Ranked:
    """What the ranking found, by tap name.

    effects: relative error of the outputs (root of the mean square over them) by a layer's own error alone;
    layers that could not be followed are missing. counted: the same without what the layer's inputs have been
    rounded to already: on A's exact values a copy seems to round, on B's it finds nothing left to round.
    injected: layers whose effect was measured by putting their error into A. elements: of all outputs that
    count. predicted: √Σ counted². together: with the signs of the passes, what these do at once, to first
    order. checked: largest ratio between an effect by running and by passes.
    missing: operators without a rule, with the reason. reason: why nothing was ranked, "" when it was.
    """

    effects: dict[str, float] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)
    injected: tuple[str, ...] = ()
    measured: float = 0.0
    predicted: float = 0.0
    together: float = 0.0
    checked: float | None = None
    passes: int = PASSES
    elements: int = 0
    untold: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def trusted(self) -> bool:
        """Whether the reverse passes alone explain the error that was measured."""
        return self.agrees and (self.checked is None or self.checked <= FACTOR * self.chance)

    @property
    def chance(self) -> float:
        """How far chance alone may put one layer's figure off: few passes are few samples."""
        return 1 + 2 / math.sqrt(self.passes)

    @property
    def agrees(self) -> bool:
        """Whether the predicted error lies near the measured one."""
        return _within(self.predicted, self.measured)


def _within(a: float, b: float) -> bool:
    low, high = sorted((a, b))
    return high == 0 or (math.isfinite(high) and high <= FACTOR * low)


def rank(
    target: Target,
    feeds: Mapping[str, Any],
    errors: OwnErrors,
    output_errors: Mapping[str, float],
    *,
    passes: int = PASSES,
    seed: int = 0,
    budget: int | None = None,
    seconds: float = INJECT_SECONDS,
) -> Ranked:
    """Return what the own errors do to A's outputs.

    target, feeds: A. output_errors: by output, the relative error of B as run. budget: bytes for A's values.
    seconds: bound of putting layers in one by one, where that is needed.

    Raises RunnerError where the engine cannot run A.
    """
    from graphdoc.engine.vjp import Tape, TooLargeError  # comparisons without a ranking do without it

    if errors.full:
        return Ranked(reason="the layers' own errors take more memory than is allowed (--memory)")
    if not errors.seen and not errors.broken:
        return Ranked(reason="no layer's own error was measured")
    try:
        tape = Tape(Interpreter(target.model), feeds, changing=errors.found, budget=budget)
    except TooLargeError:
        return Ranked(reason="A's values take more memory than is allowed (--memory)")
    scales = scales_of(tape.outputs, output_errors)
    if not scales:
        return Ranked(reason="no output is a tensor of floats that differs from 0")
    products, repeated, cut = reverse(tape, errors, scales, passes, seed)
    effects = {key: _root(p) for key, p in products.items() if key not in cut}
    effects |= {key: 0.0 for key in errors.seen - errors.broken if key not in products and key not in cut}
    new = added(target, errors, products, repeated, cut)
    counted = {key: _root(p) for key, p in new.items()}
    found = Ranked(
        effects,
        counted,
        measured=_mean_square([output_errors[name] for name in scales]),
        predicted=_total(counted),
        together=_root(np.sum(list(new.values()), axis=0)) if new else 0.0,
        passes=passes,
        elements=sum(tape.outputs[name].size for name in scales),
        untold=len(errors.broken) + len(cut & errors.found.keys()),
        missing=dict(tape.missing),
    )
    exact = found.measured < SMALL
    held = nbytes(list(tape.values().values())) * (2 if exact else 1)
    if budget is not None and held > budget:
        return found
    return _checked(found, Injection(target, feeds, scales, exact=exact), errors, seconds)


def scales_of(outputs: Mapping[str, Any], wanted: Collection[str]) -> dict[str, float]:
    """Return the RMS of the outputs that count: floats that are not all 0, by their finite elements."""
    found = {}
    for name, value in outputs.items():
        if name in wanted and isinstance(value, np.ndarray) and epsilon(value.dtype) and value.size:
            finite = value[np.isfinite(value.astype(np.float32))].astype(np.float64)
            if finite.size and (scale := math.sqrt(float(np.mean(finite * finite)))) > 0:
                found[name] = scale
    return found


def reverse(
    tape: "Tape", errors: OwnErrors, scales: Mapping[str, float], passes: int, seed: int
) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """Return u·J·e of every layer, one number a pass; the same of what rounding its inputs to B's dtype does
    to it; and the layers that could not be followed.
    """
    rng = np.random.default_rng(seed)
    products: dict[str, Any] = {}
    repeated: dict[str, Any] = {}
    cut: set[str] = set()
    for number in range(passes):
        seeds = {name: _signs(rng, tape.outputs[name], scale, len(scales)) for name, scale in scales.items()}

        def note(key: str, turn: int, cotangent: Any, complete: bool, number: int = number) -> None:
            error = errors.found.get(key)
            if error is None:
                return
            if not complete:
                cut.add(key)
            elif cotangent is not None:
                error = error[turn] if isinstance(error, Occurrences) else error
                products.setdefault(key, np.zeros(passes))[number] += _product(cotangent, error)

        def pass_on(keys: Sequence[str], name: str, value: Any, part: Any, number: int = number) -> None:
            key = next((key for key in keys if key in errors.found), None)
            if key is not None and name in errors.coarse:
                rounding = _difference(value, value.astype(errors.coarse[name]))
                if rounding is not None:
                    repeated.setdefault(key, np.zeros(passes))[number] += _product(part, rounding)

        tape.back(seeds, note, pass_on if errors.coarse else None)
    return products, repeated, cut


def _product(cotangent: Any, change: Any) -> float:
    return float(np.vdot(cotangent.astype(change.dtype, copy=False), change))


def _root(products: Any) -> float:
    """Return the root of the mean square over passes."""
    return float(np.sqrt(np.mean(products * products)))


def _signs(rng: np.random.Generator, value: Any, scale: float, outputs: int) -> Any:
    """Return random signs, so that the square of their product with a change is its relative error's."""
    finite = np.isfinite(value.astype(np.float32))
    size = 1 / (scale * math.sqrt(max(1, int(np.count_nonzero(finite))) * outputs))
    return np.where(finite, rng.choice([-size, size], value.shape), 0).astype(np.float32)


def _mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


def _total(effects: Mapping[str, float]) -> float:
    return math.sqrt(math.fsum(e * e for e in effects.values()))


def added(
    target: Target,
    errors: OwnErrors,
    products: Mapping[str, Any],
    repeated: Mapping[str, Any],
    cut: Collection[str],
) -> dict[str, Any]:
    """Return the products of what layers add in B, without what their inputs have been rounded to already."""
    repeats = _repeats(target, errors.found)
    return {
        key: p - repeated.get(key, 0.0)
        for key, p in products.items()
        if key not in cut and key not in repeats
    }


COPIES = frozenset(
    {
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat", "Split"),
        *("Gather", "GatherElements", "GatherND", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth"),
        *(
            "Relu",
            "MaxPool",
            "GlobalMaxPool",
            "ReduceMax",
            "ReduceMin",
            "Max",
            "Min",
            "Where",
            "TopK",
            "Dropout",
        ),
        *("ReverseSequence", "Compress", "Trilu", "Abs", "Neg", "ScatterND", "ScatterElements"),
    }
)
"""Operators whose results are elements of their inputs, or 0, or those with another sign."""


def _repeats(target: Target, errors: Collection[str]) -> frozenset[str]:
    """Return the layers that only pass on what the layers before them have rounded already.

    On A's exact values they seem to round; on B's they find nothing left to round.
    """
    layers = {point.key for point in target.points}
    return frozenset(
        point.key
        for point in target.points
        if point.op in COPIES
        and point.key in errors
        and any(name in errors for name in point.inputs)
        and all(name in errors or name not in layers for name in point.inputs)
    )


# ---- putting errors in one by one ----------------------------------------------------------------------


class Injection:
    """A, with one layer's value changed and all that follows from it run again.

    scales: the outputs that count, and their RMS. exact: in float64, so that errors of the size of float32's
    rounding are told from what running again in float32 does.

    Raises RunnerError where the engine cannot run A.
    """

    def __init__(
        self, target: Target, feeds: Mapping[str, Any], scales: Mapping[str, float], *, exact: bool
    ) -> None:
        self.points = target.points
        self.main = {point.key for point in target.points if point.scope == MAIN}
        self._interpreter = Interpreter(target.model, truth=exact)
        self._values = self._interpreter.run(feeds, self.main)
        self._feeds = feeds
        self._scales = scales

    def effect(self, key: str, errors: OwnErrors) -> float:
        """Return the relative error of the outputs when a layer's own error alone is put into A.

        Raises RunnerError where A does not run with it.
        """
        outputs = self._interpreter.run(self._feeds, watch=self._watch(key, errors))
        return _mean_square([_relative(self._values[n], outputs[n], s) for n, s in self._scales.items()])

    def _watch(self, key: str, errors: OwnErrors) -> Watch:
        """Return what changes one layer, and runs what follows from it; all of A for one in a subgraph."""
        if key not in self.main:
            (value,) = self._interpreter.run(self._feeds, [key])[key]
            return Watch(given={key: Occurrences([_changed(value, errors, key)])})
        after = self._after(key)
        given = {name: value for name, value in self._values.items() if name not in after}
        given[key] = _changed(self._values[key], errors, key)
        return Watch(given=given, only=frozenset(after))

    def _after(self, key: str) -> set[str]:
        found = {key}
        for point in self.points:
            if not found.isdisjoint(point.inputs):
                found.add(point.key)
        return found - {key}


def _changed(value: Any, errors: OwnErrors, key: str) -> Any:
    """Return A's value with a layer's own error in it, in A's dtype."""
    if key in errors.instead:
        return errors.instead[key].astype(value.dtype)
    error = errors.found[key]
    error = error[0] if isinstance(error, Occurrences) else error
    moved = value.astype(np.result_type(value, error) if epsilon(value.dtype) else error.dtype) + error
    return (moved if epsilon(value.dtype) else np.rint(moved)).astype(value.dtype)


def _relative(a: Any, b: Any, scale: float) -> float:
    finite = np.isfinite(a.astype(np.float32))
    gap = b[finite].astype(np.float64) - a[finite].astype(np.float64)
    return math.sqrt(float(np.mean(gap * gap))) / scale if gap.size else 0.0


def _checked(found: Ranked, injection: Injection, errors: OwnErrors, seconds: float) -> Ranked:
    """Put in the largest to check them; where the prediction is not to be trusted, as many as time allows."""
    order = sorted(errors.found, key=lambda key: -found.effects.get(key, math.inf))
    plain = [key for key in order if _has_one_turn(errors.found[key])]
    few = [key for key in plain if found.effects.get(key, 0.0) > 0][:CHECKED]
    measured = _inject(injection, errors, few, min(seconds, CHECK_SECONDS), {})
    pairs_ = [(measured[key], found.effects[key]) for key in measured]
    checked = max((max(a, b) / min(a, b) if min(a, b) > 0 else math.inf for a, b in pairs_), default=None)
    found = replace(found, checked=checked)
    if found.trusted and not found.untold:
        return found
    measured = _inject(injection, errors, plain[:MOST_INJECTED], seconds, measured)
    whole = {
        key: value for key, value in measured.items() if key in found.counted or key not in found.effects
    }
    untold = max(0, found.untold - len(measured.keys() - found.effects.keys()))
    return replace(
        found,
        effects={**found.effects, **measured},
        counted={**found.counted, **whole},
        injected=tuple(sorted(measured)),
        untold=untold,
    )


def _has_one_turn(error: Any) -> bool:
    """Whether a value is computed once: put into one turn of a loop, an error would not reach the next."""
    return not isinstance(error, Occurrences) or len(error) == 1


def _inject(
    injection: Injection, errors: OwnErrors, keys: Sequence[str], seconds: float, known: Mapping[str, float]
) -> dict[str, float]:
    """Return the effects of layers put in one by one, until the time is used up."""
    measured, started = dict(known), time.monotonic()
    for key in keys:
        if time.monotonic() - started > seconds:
            break
        if key not in measured:
            try:
                measured[key] = injection.effect(key, errors)
            except RunnerError:  # the error leads where A cannot run: an index out of range, say
                measured[key] = math.inf
    return measured
