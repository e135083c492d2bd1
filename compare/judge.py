"""Findings → statuses: which layer is wrong by itself, which only carries on, what is mere rounding.

A layer's own error is held against its own limit, so that no layer is blamed for what it was handed. Its
total error is held against what the measured own errors before it add up to, or, where that is exceeded,
against a measured noise floor (examine.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphdoc.compare.findings import Finding
from graphdoc.compare.limits import INNER_QUANTISING, MARGIN, QUANTISING, total_limit
from graphdoc.compare.metrics import epsilon
from graphdoc.compare.numbers import number
from graphdoc.compare.result import Limit, Status
from graphdoc.compare.target import BODIES

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators whose results never follow from their inputs."""


ADDITIVE = frozenset(
    {
        *("Add", "Sub", "Sum", "Mean", "Concat", "Where", "Max", "Min", "Relu", "Clip", "LeakyRelu"),
        *("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Slice", "Split", "Gather", "GatherND"),
    }
)
"""Operators that add their inputs, put them side by side, or pick from them: absolute errors stay."""

AVERAGING = frozenset({"ReduceMean", "ReduceSum", "AveragePool", "GlobalAveragePool"})
"""Operators that sum terms of either sign, which may cancel."""

FLIPS = 2.0
"""Quantised values count from 0, not from their zero point, which makes their RMS look larger."""


@dataclass(slots=True)
class Evidence:
    """What closer examination of suspects brought to light, by tap name.

    own_limits: limits widened by measured conditioning. noise: error of the value when every layer rounds
    differently. floor: error of A against itself as other threads and optimisations run it. truth: distances
    of A and of B from float64. ties: how often another index among equal values was picked. changes: what the
    two models do differently at a layer. magnified: one unit in the last place of the inputs, and what it
    makes of the outputs.
    """

    own_limits: dict[str, Limit] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)
    truth: dict[str, tuple[float, float]] = field(default_factory=dict)
    ties: dict[str, int] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    given: dict[str, Limit] = field(default_factory=dict)
    magnified: tuple[float, float] | None = None
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Judgement:
    """The outcome for one finding.

    reach: the own errors on the way to it, added as independent ones. noise: measured, of it or of the values
    before it. rms: of A's value. coarse: it went through a grid of 8 bits or so. unreliable: the layer that
    makes it a matter of chance. broken: NaN or Inf stand on one side alone.
    """

    status: Status
    own_limit: Limit
    limit: Limit
    reach: float = 0.0
    noise: float = 0.0
    rms: float = 0.0
    coarse: bool = False
    unreliable: str = ""
    broken: bool = False
    note: str = ""


NOISE_MARGIN = 6.0
"""Total error may be this many times the measured noise: a handful of runs underestimate its spread."""


CHAOS = 0.1
"""Noise beyond which a value says nothing: rounding alone changes it past recognition."""

FAR = 0.5
"""Even of a value behind codes no more may be off."""

UNSURE = "cannot be judged"
"""How the note of such a value begins."""


def judge(
    findings: Sequence[Finding],
    evidence: Evidence,
    given: Limit | None = None,
    known: dict[str, Judgement] | None = None,
) -> list[Judgement]:
    """Judge findings in topological order.

    given: the user's tolerance, which replaces ours. known: of the layers before these; it grows.
    """
    verdicts: dict[str, Judgement] = {} if known is None else known
    inside = _Inside()
    for finding in findings:
        before = [verdicts[name] for name in finding.point.inputs if name in verdicts]
        judged = _judge(finding, before, evidence, given, inside.of(finding))
        verdicts[finding.point.key] = judged
        inside.note(finding, judged)
    return [verdicts[finding.point.key] for finding in findings]


@dataclass(slots=True)
class _Inside:
    """The rounding that adds up inside If, Loop and Scan, by the tap name of the node's first output.

    Such a node runs whole, so that its own error is all that its layers round one after the other.
    """

    reach: dict[str, float] = field(default_factory=dict)
    latest: float = 0.0

    def note(self, finding: Finding, judged: Judgement) -> None:
        """Note a layer inside; what several rounds of a loop add is taken as independent."""
        owner = finding.point.scope.rstrip("/").rpartition(".")[0]
        if owner:
            reach = judged.reach * math.sqrt(finding.occurrences)
            self.reach[owner] = max(self.reach.get(owner, 0.0), reach)

    def of(self, finding: Finding) -> float:
        """Return what adds up inside the layer's node; a node's outputs follow one another."""
        if finding.point.op not in BODIES:
            return 0.0
        self.latest = self.reach.get(finding.point.key, self.latest if finding.point.slot else 0.0)
        return self.latest


def _judge(
    finding: Finding, before: Sequence[Judgement], evidence: Evidence, given: Limit | None, inside: float
) -> Judgement:
    told = evidence.given.get(finding.point.key)
    given = None if told else given
    own_limit = given or told or evidence.own_limits.get(finding.point.key) or _own_limit(finding, before)
    if inside and not (given or told) and "float" in finding.dtype:
        own_limit = total_limit(own_limit, inside)
    rms = finding.metrics.rms_a if finding.metrics else 0.0
    coarse = (
        finding.coarse or finding.point.op in QUANTISING | INNER_QUANTISING or any(b.coarse for b in before)
    )
    carried = _carried(finding.point.op, rms, [(b.rms, b.reach) for b in before])
    reach = _reach(finding, own_limit, carried if coarse else min(carried, _most(finding)))
    noise = _carried(finding.point.op, rms, [(b.rms, b.noise) for b in before])
    noise = evidence.noise.get(finding.point.key, noise)
    limit = given or told or _limit(own_limit, reach, noise, evidence.floor.get(finding.point.key, 0.0))
    unreliable = _unreliable(finding, before, evidence)
    broken = bool(finding.metrics and finding.metrics.nonfinite_differ)
    result = Judgement(Status.AGREES, own_limit, limit, reach, noise, rms, coarse, unreliable, broken)
    result.status, result.note = _status(finding, result, before, evidence, user=given is not None)
    return result


def _own_limit(finding: Finding, before: Sequence[Judgement]) -> Limit:
    """Return the layer's own limit; wider for sums that cancel, whose error follows the size of the terms."""
    limit, rms = finding.own_limit, finding.metrics.rms_a if finding.metrics else 0.0
    terms = before[0].rms if before else 0.0
    if finding.point.op not in AVERAGING or not 0 < rms < terms:
        return limit
    factor = terms / rms
    return Limit(value=limit.value * factor, reason=f"{limit.reason} {number(factor)} × larger than it")


def _carried(op: str, rms: float, inputs: Sequence[tuple[float, float]]) -> float:
    """Return the relative error that a result takes over from its inputs' (RMS, relative error).

    1. Sums and picks take over absolute errors: a mean of nearly 0 may be wrong in every digit and not
       matter to x − mean, while the difference of two large numbers magnifies theirs.
    2. Rounding to a grid turns a small error into whole steps in a few elements: with an error of e steps a
       share e of the elements falls on the other side, which is √e as RMS.
    3. Everything else takes over the largest relative error.
    """
    largest = max((error for _, error in inputs), default=0.0)
    if op in ADDITIVE and rms > 0:
        return math.hypot(*(size * error / rms for size, error in inputs))
    if op in QUANTISING and rms > 0:
        return FLIPS * math.sqrt(largest / rms)
    return largest


def _most(finding: Finding) -> float:
    """Return what is believed of rounding that adds up without a measurement: half of the dtype's digits."""
    eps = epsilon(finding.dtype) if finding.dtype not in ("", "object") else 0.0
    return math.sqrt(eps) if eps else 1.0


def _reach(finding: Finding, limit: Limit, carried: float) -> float:
    """Return the rounding on the way to a value; an error past its limit is a fault, not rounding."""
    own = finding.own if finding.own is not None else limit.value
    return math.hypot(min(own, limit.value) if math.isfinite(own) else limit.value, carried)


def _limit(own: Limit, reach: float, noise: float, floor: float) -> Limit:
    limit = total_limit(own, reach)
    if NOISE_MARGIN * max(noise, floor) <= limit.value or math.isinf(floor):
        return limit
    if floor > noise:
        how = "other threads or optimisations in A"
        reason = f"{NOISE_MARGIN:.0f} × measured noise: {how} move it by {number(floor)}"
        return Limit(value=NOISE_MARGIN * floor, reason=reason)
    reason = f"{NOISE_MARGIN:.0f} × measured noise: other rounding in every layer moves it by {number(noise)}"
    return Limit(value=NOISE_MARGIN * noise, reason=reason)


DISCRETE = frozenset(
    {
        *("Floor", "Ceil", "Round", "Sign", "Mod", "NonMaxSuppression", "Equal"),
        *("Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
    }
)
"""Operators that turn the last digit of an input into a step of their result."""

BOTH_NEAR = "both sides are within rounding of float64"
"""The note of a layer whose sides differ by more than one of them may, and are right both."""


def _both_near(distances: tuple[float, float] | None, limit: Limit) -> bool:
    return distances is not None and max(distances) <= limit.value


def _flips(finding: Finding, before: Sequence[Judgement]) -> bool:
    """Whether a layer with steps gives the same from the same inputs, and its inputs agree."""
    to_whole = (
        finding.point.op == "Cast" and finding.dtype not in ("object", "") and not epsilon(finding.dtype)
    )
    if finding.own != 0 or not (finding.point.op in DISCRETE or to_whole):
        return False
    return all(b.status is Status.AGREES for b in before)


def _unreliable(finding: Finding, before: Sequence[Judgement], evidence: Evidence) -> str:
    """Return the layer that makes this value a matter of chance: a random operator, or a tie."""
    if is_random(finding) or finding.point.key in evidence.ties:
        return finding.point.key
    if _flips(finding, before) and _differs(finding, finding.own_limit, user=False):
        return finding.point.key
    return next((b.unreliable for b in before if b.unreliable), "")


def _status(
    finding: Finding, so_far: Judgement, before: Sequence[Judgement], evidence: Evidence, *, user: bool
) -> tuple[Status, str]:
    if finding.absent:
        return Status.SKIPPED, finding.absent
    if is_random(finding):
        return Status.REMARK, "random: only shape and dtype were compared"
    if finding.point.key in evidence.ties:
        return Status.REMARK, f"ties: another index among equal values, {evidence.ties[finding.point.key]} ×"
    if so_far.broken and finding.narrowed and not user and not any(b.broken for b in before):
        return Status.NAN, ""
    own_rules = user or finding.point.key in evidence.given
    if _own_fault(finding, so_far.own_limit, user=user):
        near = not own_rules and _both_near(evidence.truth.get(finding.point.key), so_far.own_limit)
        return (Status.AGREES, BOTH_NEAR) if near else _blame(finding)
    if not _differs(finding, so_far.limit, user=user):
        return _agreement(finding, so_far, user=own_rules)
    if not own_rules and _cancelled(finding, before):
        return Status.AGREES, CANCELLED
    excuse = _excuse(finding, so_far, before, user=own_rules)
    if excuse:
        return Status.REMARK, excuse
    if finding.own is None and all(b.status in (Status.AGREES, Status.REMARK) for b in before):
        return Status.OWN, finding.mismatch or "its inputs agree"
    return Status.INHERITED, finding.mismatch


CANCELLED = "0 in A: held against the size of its inputs"
"""The note of a layer whose error has no scale of its own."""


def _cancelled(finding: Finding, before: Sequence[Judgement]) -> bool:
    """Whether sums or picks are 0 in A, and as near to it in B as the inputs agree: no ratio tells that."""
    metrics = finding.metrics
    if metrics is None or metrics.rms_a > 0 or finding.point.op not in ADDITIVE:
        return False
    carried = math.hypot(*(b.rms * b.reach for b in before))
    return all(b.status is Status.AGREES for b in before) and metrics.rms <= MARGIN * carried


def _excuse(finding: Finding, so_far: Judgement, before: Sequence[Judgement], *, user: bool) -> str:
    """Return why a value that differs without its layer's fault is set aside; "" where it is not."""
    if _flips(finding, before):
        return "ties: its inputs agree, but lie on different sides of a step"
    if so_far.unreliable:
        return f"depends on {so_far.unreliable}"
    if user or finding.metrics is None:
        return ""
    if so_far.coarse and so_far.limit.value > CHAOS:
        return f"{UNSURE}: steps of 8 bits alone may move it by {number(so_far.limit.value)}"
    return f"{UNSURE}: rounding alone moves it by {number(so_far.noise)}" if so_far.noise > CHAOS else ""


def _agreement(finding: Finding, so_far: Judgement, *, user: bool) -> tuple[Status, str]:
    """Agree, unless the limit is so wide that it would let anything pass.

    Behind codes, an inner value may be off by what the own errors on the way add up to.
    """
    error = finding.metrics.error if finding.metrics else 0.0
    if user or error <= CHAOS or so_far.limit.value == 0 or "float" not in finding.dtype:
        return Status.AGREES, ""
    if so_far.coarse and not finding.point.is_output and error <= min(so_far.reach, FAR):
        return Status.AGREES, ""
    return Status.REMARK, f"{UNSURE}: its limit is {number(so_far.limit.value)}, {so_far.limit.reason}"


def _own_fault(finding: Finding, limit: Limit, *, user: bool) -> bool:
    if finding.own is None:
        return False
    return finding.own_outside if user else finding.own > limit.value


def _differs(finding: Finding, limit: Limit, *, user: bool) -> bool:
    if finding.metrics is None:
        return True
    return finding.metrics.outside > 0 if user else finding.metrics.error > limit.value


def _blame(finding: Finding) -> tuple[Status, str]:
    metrics = finding.metrics
    if metrics is not None and metrics.nonfinite_differ and finding.own == math.inf:
        return Status.NAN, ""
    return Status.OWN, finding.mismatch


def is_random(finding: Finding) -> bool:
    """Whether a result does not follow from its inputs: a random operator, or a Dropout that drops."""
    if finding.point.op in RANDOM:
        return True
    in_training = finding.point.op == "Dropout" and len(finding.point.inputs) > 2 and finding.point.inputs[2]
    return bool(in_training) and finding.own is not None and finding.own > finding.own_limit.value


def is_wrong(status: Status) -> bool:
    """Whether a status counts as a difference."""
    return status in (Status.OWN, Status.INHERITED, Status.NAN)


def suspects(findings: Sequence[Finding], judged: Sequence[Judgement]) -> Mapping[str, Finding]:
    """Return the findings that look wrong, by tap name."""
    return {f.point.key: f for f, j in zip(findings, judged, strict=True) if is_wrong(j.status)}
