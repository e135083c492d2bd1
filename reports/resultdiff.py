"""Two results of ``graphdoc compare`` → what got better and what got worse, layer by layer.

*Before* and *after* are the two results; A and B stay the two sides inside each. Layers are paired by name,
or where the names are others by structure (resultpairs.py). A change counts only where it is more than noise:

1. A layer that agreed and does not any more, or the reverse, counts always.
2. An error that has left its limit, or come back within it, counts always.
3. Any other error counts when it changed by FACTOR and the larger one is more than FLOOR of its limit: what
   lies below is the rounding of a few elements, which moves by such factors for no reason.
4. A latency counts when the spreads (low to high) of both results lie apart, after what the reference itself
   got faster or slower by, on the same machine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from graphdoc.compare.result import Comparison, Latency, Layer, Limit, Side, Status
from graphdoc.reports import words
from graphdoc.reports.resultpairs import pair_layers

FACTOR = 2.0
"""The least ratio of two errors that counts."""

FLOOR = 0.25
"""The share of its limit that the larger of two errors within limits must exceed to count."""


class Direction(StrEnum):
    """Which way something went; the value is the word shown to people."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"


_RANK = {0: 0, 1: 1, 5: 2, 3: 3, 4: 3}
"""Exit code of a verdict → how bad it is: agrees, differs, nothing was compared, did not run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something around the comparison that is not as it was.

    matters: figures cannot be held against each other without a thought for it.
    """

    label: str
    before: str
    after: str
    matters: bool = False


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer whose agreement or error changed. what: the reasons, in words, the weightiest first.

    severity: 3 agreement, 2 an error crossed its limit, 1 an error changed by a factor.
    """

    before: Layer
    after: Layer
    direction: Direction
    severity: int
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LatencyChange:
    """Whole runs of one side. direction: of B, where it is beyond noise. note: why it does not count."""

    side: str
    before: Latency
    after: Latency
    direction: Direction = Direction.SAME
    note: str = ""

    @property
    def ratio(self) -> float:
        """After ÷ before; nan where before is 0."""
        return self.after.median / self.before.median if self.before.median > 0 else math.nan


@dataclass(frozen=True, slots=True)
class ResultDiff:
    """What changed from one result to the other. Truthy when nothing got worse.

    verdict: of the whole. settings: what is not as it was around it, models first. worse, better: layers in
    the order of severity, then of execution. lost: layers that were compared and are not any more; found: the
    reverse. lost_outputs: outputs among the lost, which counts as worse. steady: paired layers without a
    change that counts. pairing: how layers were paired, "" where by name.
    """

    before: Comparison
    after: Comparison
    before_name: str
    after_name: str
    verdict: Direction
    settings: tuple[Setting, ...] = ()
    worse: tuple[LayerChange, ...] = ()
    better: tuple[LayerChange, ...] = ()
    lost: tuple[Layer, ...] = ()
    found: tuple[Layer, ...] = ()
    lost_outputs: tuple[Layer, ...] = ()
    latency: tuple[LatencyChange, ...] = ()
    steady: int = 0
    paired: int = 0
    pairing: str = ""

    def __bool__(self) -> bool:
        return not (self.verdict is Direction.WORSE or self.worse or self.lost_outputs or self.latency_worse)

    @property
    def latency_worse(self) -> bool:
        """Whether B got slower beyond noise."""
        return any(change.direction is Direction.WORSE for change in self.latency)

    @property
    def improved(self) -> bool:
        """Whether anything got better."""
        faster = any(change.direction is Direction.BETTER for change in self.latency)
        return self.verdict is Direction.BETTER or bool(self.better) or faster


def diff_results(
    before: Comparison, after: Comparison, before_name: str = "before", after_name: str = "after"
) -> ResultDiff:
    """Return what changed from ``before`` to ``after``; the names are those of the files."""
    settings = tuple(_settings(before, after))
    old, new = _compared(before), _compared(after)
    pairing = pair_layers(old, new)
    pairs = [(old[i], new[j]) for i, j in pairing.pairs]
    changes = [change for pair in pairs if (change := _layer_change(*pair))]
    changes.sort(key=lambda change: (-change.severity, change.after.index))
    kept, known = ({places[side] for places in pairing.pairs} for side in (0, 1))
    lost = tuple(layer for n, layer in enumerate(old) if n not in kept)
    return ResultDiff(
        before=before,
        after=after,
        before_name=before_name,
        after_name=after_name,
        verdict=_verdict(before, after),
        settings=settings,
        worse=tuple(change for change in changes if change.direction is Direction.WORSE),
        better=tuple(change for change in changes if change.direction is Direction.BETTER),
        lost=lost,
        found=tuple(layer for n, layer in enumerate(new) if n not in known),
        lost_outputs=tuple(layer for layer in lost if layer.is_output),
        latency=tuple(_latencies(before, after, settings)),
        steady=len(pairs) - len(changes),
        paired=len(pairs),
        pairing=pairing.remark,
    )


def _compared(comparison: Comparison) -> list[Layer]:
    return [layer for layer in comparison.layers if layer.status is not Status.SKIPPED]


def _verdict(before: Comparison, after: Comparison) -> Direction:
    old, new = (_RANK.get(result.verdict.exit_code, 3) for result in (before, after))
    return _direction(new - old)


def _direction(amount: float) -> Direction:
    return Direction.WORSE if amount > 0 else Direction.BETTER if amount < 0 else Direction.SAME


# What is around the comparison


def _settings(before: Comparison, after: Comparison) -> Iterator[Setting]:
    for label in ("a", "b"):
        yield from _side_settings(label.upper(), getattr(before, label), getattr(after, label))
    yield from _input_settings(before, after)
    yield from _differing("seed", before.seed, after.seed)
    tolerance = (_given(before), _given(after))
    yield from _differing("tolerance", *tolerance, matters=True)
    old, new = before.environment, after.environment
    for name in sorted({*old, *new}):
        matters = name in ("machine", "cpu")
        yield from _differing(name, old.get(name, ""), new.get(name, ""), matters=matters)


def _differing(label: str, before: object, after: object, *, matters: bool = False) -> Iterator[Setting]:
    if before != after:
        old, new = ("none" if value in ("", None) else str(value) for value in (before, after))
        yield Setting(label, old, new, matters)


def _side_settings(label: str, before: Side, after: Side) -> Iterator[Setting]:
    if before.sha256 != after.sha256:
        yield Setting(f"model {label}", *_apart(_model(before), _model(after), before, after), matters=True)
    if before.runner != after.runner:
        yield Setting(f"runner {label}", words.runner(before), words.runner(after), matters=True)
    else:
        yield from _differing(f"runner {label}", words.runner(before), words.runner(after))
    yield from _differing(f"settings {label}", before.settings, after.settings)


def _model(side: Side) -> str:
    return f"{side.model}, {words.size(side.size)}"


def _apart(old: str, new: str, before: Side, after: Side) -> tuple[str, str]:
    """Return both texts, with their hashes where nothing else tells them apart."""
    if old != new:
        return old, new
    return f"{old}, sha256 {before.sha256[:8] or 'unknown'}", f"{new}, sha256 {after.sha256[:8] or 'unknown'}"


def _input_settings(before: Comparison, after: Comparison) -> Iterator[Setting]:
    old, new = ({x.name: x for x in result.inputs} for result in (before, after))
    for name in [*old, *(name for name in new if name not in old)]:
        a, b = old.get(name), new.get(name)
        texts = [f"{x.dtype} {words.shape(x.shape)}, {x.source}" if x else "none" for x in (a, b)]
        if a and b and (a.sha256, a.shape, a.dtype) == (b.sha256, b.shape, b.dtype):
            continue
        if a and b and texts[0] == texts[1]:
            texts = [f"{text}, sha256 {x.sha256[:8]}" for text, x in zip(texts, (a, b), strict=True)]
        yield Setting(f"input {name}", texts[0], texts[1], matters=True)


def _given(comparison: Comparison) -> str:
    """Return the tolerance that the user gave, "" where limits were found by measurement."""
    reasons = {layer.limit.reason for layer in comparison.layers if layer.limit}
    return next((reason for reason in sorted(reasons) if reason.startswith("given:")), "")


# Layers


def _layer_change(before: Layer, after: Layer) -> LayerChange | None:
    """Return what changed of a layer, None where nothing counts."""
    found = [*_agreement(before, after), *_errors(before, after)]
    if not found:
        return None
    found.sort(key=lambda item: -item[0])
    direction = found[0][1]
    texts = tuple(text for _, way, text in found if way is direction)
    against = tuple(text for _, way, text in found if way is not direction)
    return LayerChange(before, after, direction, found[0][0], texts + against)


Found = tuple[int, Direction, str]
"""Severity, direction, words."""


def _agreement(before: Layer, after: Layer) -> Iterator[Found]:
    if before.agrees != after.agrees:
        way = Direction.BETTER if after.agrees else Direction.WORSE
        yield 3, way, f"{before.status} → {after.status}"


def _errors(before: Layer, after: Layer) -> Iterator[Found]:
    pairs = (
        ("own error", before.own_error, before.own_limit, after.own_error, after.own_limit),
        ("error", before.error, before.limit, after.error, after.limit),
    )
    for label, old, old_limit, new, new_limit in pairs:
        if old is None or new is None:
            continue
        severity = _error_severity(old, old_limit, new, new_limit)
        if severity:
            text = (
                f"{label} {words.number(old)} → {words.number(new)}{_limits(severity, old_limit, new_limit)}"
            )
            yield severity, _error_direction(old, new, old_limit, new_limit), text


def _limits(severity: int, old: Limit | None, new: Limit | None) -> str:
    """Return the limit that was crossed, "" where none was."""
    if severity < 2:
        return ""
    texts = dict.fromkeys(words.number(limit.value if limit else None) for limit in (old, new))
    return f", limit {' → '.join(texts)}"


def _error_severity(old: float, old_limit: Limit | None, new: float, new_limit: Limit | None) -> int:
    """Return 2 where an error crossed its limit, 1 where it changed by a factor that counts, else 0."""
    if _beyond(old, old_limit) != _beyond(new, new_limit):
        return 2
    low, high = sorted((old, new))
    if not low < high or high < FACTOR * low:  # NaN never counts
        return 0
    limit = new_limit if new >= old else old_limit
    return int(limit is None or high > FLOOR * limit.value)


def _beyond(error: float, limit: Limit | None) -> bool:
    return limit is not None and error > limit.value


def _error_direction(old: float, new: float, old_limit: Limit | None, new_limit: Limit | None) -> Direction:
    crossed = _beyond(new, new_limit) - _beyond(old, old_limit)
    return _direction(crossed or new - old)


# Latency


def _latencies(
    before: Comparison, after: Comparison, settings: tuple[Setting, ...]
) -> Iterator[LatencyChange]:
    a = _pair("A", before.a, after.a)
    b = _pair("B", before.b, after.b)
    if a:
        yield replace(a, note="the yardstick: not judged")
    if b:
        moved = any(s.label in ("machine", "cpu") for s in settings)
        yardstick = a if a and _same_yardstick(before.a, after.a) else None
        yield replace(b, note="not the same machine: not judged") if moved else _judged(b, yardstick)


def _pair(label: str, before: Side, after: Side) -> LatencyChange | None:
    if before.latency is None or after.latency is None:
        return None
    return LatencyChange(label, before.latency, after.latency)


def _same_yardstick(before: Side, after: Side) -> bool:
    keys = ("sha256", "runner", "version", "settings")
    return all(getattr(before, key) == getattr(after, key) for key in keys)


def _judged(change: LatencyChange, yardstick: LatencyChange | None) -> LatencyChange:
    """Return the change of B's latency with its direction, the machine's own change taken out."""
    drift = yardstick.ratio if yardstick and _apart_in_time(yardstick, 1.0) else 1.0
    ratio = change.ratio / drift
    if math.isnan(ratio) or abs(ratio - 1) < words.DIFFERENCE:
        note = "with A the machine changed as much" if drift != 1.0 else "≈ same"
        return replace(change, note=note)
    few = min(change.before.runs, change.after.runs) < words.FEWEST_RUNS
    if few and max(ratio, 1 / ratio) < words.CERTAIN:
        return replace(change, note="too few runs to tell")
    if not few and not _apart_in_time(change, drift):
        return replace(change, note="within the spread of the runs")
    note = f"A's own {words.number(drift, 3)} × taken out" if drift != 1.0 else ""
    return replace(change, direction=_direction(ratio - 1), note=note)


def _apart_in_time(change: LatencyChange, drift: float) -> bool:
    """Whether the spreads lie apart once the machine's change is taken out."""
    old, new = change.before, change.after
    return new.low > old.high * drift or new.high < old.low * drift
