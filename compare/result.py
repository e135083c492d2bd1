"""The result of a comparison: plain frozen data, made once by the comparison and read by every report.

Words used everywhere: A is the reference, B the test. A *layer* is one compared value (a node output);
``index`` is its position in :attr:`Comparison.layers`, in topological order, from 0. *Error* is
RMS(B − A) ÷ RMS(A). *Own* error is the error of a layer when B computes it from A's inputs; *inherited*
is what B's inputs brought along.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from graphdoc.compare.picture import Picture

SCHEMA = "graphdoc.comparison/1"


class Status(StrEnum):
    """How one layer came out; the value is the word shown to people."""

    AGREES = "agrees"
    OWN = "own error"
    INHERITED = "inherited"
    NAN = "NaN or Inf"
    REMARK = "remark"
    SKIPPED = "skipped"


SYMBOLS = {
    Status.AGREES: "✓",
    Status.OWN: "✗",
    Status.INHERITED: "↳",
    Status.NAN: "∅",
    Status.REMARK: "▲",
    Status.SKIPPED: "–",
}


class Kind(StrEnum):
    """The class of a verdict, in the order in which they are tried."""

    NOTHING = "nothing"
    ONE_SIDE = "one side"
    OVERFLOW = "overflow"
    NAN = "nan"
    ILL_CONDITIONED = "ill-conditioned"
    OWN = "own"
    INHERITED = "inherited"
    RANDOM = "random"
    TIES = "ties"
    REMARK = "remark"
    UNSURE = "unsure"
    AGREES = "agrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest error that counts as rounding, and where that number comes from."""

    value: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """B against A, element by element. Floats are computed in float64; NaN or Inf in the same places agree.

    size: elements compared (over all occurrences).
    outside: share of elements further apart than the tolerance in force, 0..1.
    max_abs, mean_abs, rms: of |B − A| over elements finite on both sides.
    max_rel: largest |B − A| ÷ max(|A|, RMS(A)): near zero the tensor's scale counts.
    error: RMS(B − A) ÷ RMS(A); inf when A is all zero and B is not, or when NaN or Inf disagree.
    cosine, snr_db, ulp: None where they have no meaning (integers, strings, all zero).
    worst: index of the largest |B − A|; a_worst, b_worst: the two values there.
    nan_a … inf_b: counts. nonfinite_differ: elements where one side alone is NaN or Inf, or Inf has
    another sign.
    """

    size: int
    outside: float = 0.0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    rms: float = 0.0
    max_rel: float = 0.0
    error: float = 0.0
    cosine: float | None = None
    snr_db: float | None = None
    ulp: float | None = None
    worst: tuple[int, ...] | None = None
    a_worst: float | str | None = None
    b_worst: float | str | None = None
    a_min: float | None = None
    a_max: float | None = None
    b_min: float | None = None
    b_max: float | None = None
    rms_a: float = 0.0
    rms_b: float = 0.0
    nan_a: int = 0
    nan_b: int = 0
    inf_a: int = 0
    inf_b: int = 0
    zero_a: int = 0
    zero_b: int = 0
    nonfinite_differ: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One compared value.

    value: tap name (inside subgraphs with its path, see engine/scope.py). node: the node's name, or the
    value's name when the node has none. scope: "" in the main graph, else the path of the subgraph.
    occurrences: how often the value was computed (loop iterations); the metrics cover all of them.
    error, limit: B against A as run. own_error, own_limit: B on A's inputs; None when not measured.
    inherited_error: B as run against B on A's inputs, over RMS(A); None when not measured.
    truth_a, truth_b: distance of each side from float64 on A's inputs; None when not measured.
    time_a, time_b: seconds; None when the runner does not tell.
    propagated: relative error of the outputs that the layer's own error alone makes; propagated_share: its
    part in the sum of squares of all of them, 0..1, 0 for a layer that only passes on what others rounded;
    None where layers were not ranked, or this one could not be.
    inputs: indices of the layers that feed this one. picture: what to draw of it; a few layers have one.
    step: distance between two codes (RMS over channels) of a value that B quantises, else None.
    """

    index: int
    value: str
    node: str
    op: str
    domain: str = ""
    scope: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    status: Status = Status.AGREES
    is_output: bool = False
    occurrences: int = 1
    error: float | None = None
    limit: Limit | None = None
    own_error: float | None = None
    own_limit: Limit | None = None
    inherited_error: float | None = None
    metrics: Metrics | None = None
    truth_a: float | None = None
    truth_b: float | None = None
    propagated: float | None = None
    propagated_share: float | None = None
    time_a: float | None = None
    time_b: float | None = None
    inputs: tuple[int, ...] = ()
    note: str = ""
    picture: Picture | None = None
    step: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether this layer counts as equal."""
        return self.status in (Status.AGREES, Status.REMARK)

    @property
    def own_steps(self) -> float | None:
        """Own error (RMS) in steps of the layer's quantisation; None for a layer without, or not measured."""
        if not self.step or self.own_error is None or self.metrics is None:
            return None
        return self.own_error * self.metrics.rms_a / self.step

    @property
    def of_limit(self) -> float | None:
        """Own error over own limit (total over total limit when own was not measured); ranks layers."""
        error, limit = (
            (self.own_error, self.own_limit) if self.own_error is not None else (self.error, self.limit)
        )
        if error is None or limit is None:
            return None
        if limit.value > 0:
            return error / limit.value
        return 0.0 if error == 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of whole runs without taps: the median, and the 5th (low) and 95th (high) percentile."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two compared: its model and its runner.

    tap_gap: largest error between tapped and untapped outputs; None when it was not measured.
    fallbacks: operators that the runner's own table lacks and another implementation served.
    """

    label: str
    model: str
    size: int | None
    sha256: str
    runner: str
    version: str
    settings: str = ""
    latency: Latency | None = None
    tap_gap: float | None = None
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputInfo:
    """One input as it was fed; source says how it was made or where it comes from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A value that was not compared, and why."""

    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, in words that every form repeats.

    sentence: one sentence without symbol. facts: (label, text) such as ("where", "#321 …"), in order.
    next_steps: (purpose, command). first: index of the first layer that diverges.
    """

    kind: Kind
    exit_code: int
    symbol: str
    word: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    next_steps: tuple[tuple[str, str], ...] = ()
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How layers were ranked by what their own errors do to the outputs, and whether to trust it.

    passes: reverse passes through A. measured: relative error of the outputs, root of the mean square over
    them. predicted: √Σ of the squares of what the layers' own errors do, repeated roundings left out.
    together: what all own errors do at once to first order, their signs included. checked: the largest factor
    between prediction and run among the layers put in alone to check; None when none was. injected: layers
    whose effect was measured by putting their own error alone into A. untold: how many layers have an own
    error that could not be followed. missing: operators without a derivative, with the reason.
    trusted: whether the passes explain the error that was measured. sentence: all of it in words.
    """

    passes: int
    measured: float
    predicted: float
    together: float
    trusted: bool
    sentence: str
    checked: float | None = None
    injected: tuple[int, ...] = ()
    untold: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything a report shows. Truthy when the two sides agree.

    command: what to type to repeat it. environment: name → text (cpu, versions), no time and no path.
    ranking: None when layers were not ranked by what they do to the outputs.
    """

    verdict: Verdict
    layers: tuple[Layer, ...]
    a: Side
    b: Side
    inputs: tuple[InputInfo, ...] = ()
    skipped: tuple[Skip, ...] = ()
    seed: int | None = 0
    command: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    ranking: Ranking | None = None

    def __bool__(self) -> bool:
        return self.verdict.exit_code == 0

    @property
    def first_divergence(self) -> Layer | None:
        """The first layer, in topological order, that is wrong; None when all agree."""
        return None if self.verdict.first is None else self.layers[self.verdict.first]

    @property
    def differing(self) -> tuple[Layer, ...]:
        """Layers that count as different, in topological order."""
        return tuple(layer for layer in self.layers if not layer.agrees and layer.status != Status.SKIPPED)

    def worst(self, count: int = 5) -> tuple[Layer, ...]:
        """Layers with an error, the nearest to or furthest past their limit first, ties by index."""
        ranked = [layer for layer in self.layers if layer.of_limit]
        ranked.sort(key=lambda layer: (-(layer.of_limit or 0.0), layer.index))
        return tuple(ranked[:count])

    def most_effect(self, count: int = 5) -> tuple[Layer, ...]:
        """Layers by what their own errors do to the outputs, the largest first, ties by index."""
        moving = [layer for layer in self.layers if layer.propagated_share]
        moving.sort(key=lambda layer: (-(layer.propagated_share or 0.0), layer.index))
        return tuple(moving[:count])

    def to_frame(self) -> Any:
        """Return the layers as a pandas DataFrame, one row each, indexed by ``index``."""
        import pandas as pd

        return pd.DataFrame(list(self._rows())).set_index("index")

    def _rows(self) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            metrics = layer.metrics
            yield {
                "index": layer.index,
                "op": layer.op,
                "node": layer.node,
                "value": layer.value,
                "dtype": layer.dtype,
                "shape": layer.shape,
                "status": str(layer.status),
                "agrees": layer.agrees,
                "error": layer.error,
                "limit": layer.limit.value if layer.limit else None,
                "own_error": layer.own_error,
                "own_limit": layer.own_limit.value if layer.own_limit else None,
                "inherited_error": layer.inherited_error,
                "propagated": layer.propagated,
                "propagated_share": layer.propagated_share,
                "max_abs": metrics.max_abs if metrics else None,
                "max_rel": metrics.max_rel if metrics else None,
                "rms": metrics.rms if metrics else None,
                "cosine": metrics.cosine if metrics else None,
                "ulp": metrics.ulp if metrics else None,
                "time_a": layer.time_a,
                "time_b": layer.time_b,
            }
