"""A run held against its baseline: the verdict, in the form that every report shows."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphdoc.baseline import Allowance, Baseline, Entry, tolerance
from graphdoc.compare.metrics import epsilon
from graphdoc.compare.result import Comparison, InputInfo, Kind, Layer, Limit, Side, Skip, Status, Verdict
from graphdoc.compare.target import Point
from graphdoc.fingerprint import Fingerprint, distance
from graphdoc.observation import Observation
from graphdoc.reports import words

INPUT_UNITS = 8.0
"""Units in the last place by which a seeded input may differ: sin and cos are not the same everywhere."""

UNMEASURED = 64.0
"""Units in the last place granted where float64 could not tell how much rounding to expect."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Tolerances as they were set by hand: those of the call go before the baseline's, then the project's."""

    call: Mapping[str, float]
    baseline: Mapping[str, float]
    project: Mapping[str, float]

    def limit(self, value: str, entry: Entry, *, same_inputs: bool) -> Limit:
        """Return a layer's limit and where it comes from.

        same_inputs: to the bit; what the layer differs by is its own then, and its own rounding bounds it.
        """
        sources = {"the call": self.call, "the baseline": self.baseline, "pyproject.toml": self.project}
        for source, rules in sources.items():
            found = tolerance(rules, value, entry.seen.dtype, entry.op)
            if found is not None:
                return Limit(value=found, reason=f"tolerance of {source}")
        if same_inputs:
            return Limit(
                value=entry.allowance.own, reason="rounding of this layer alone: its inputs are the same"
            )
        return Limit(value=entry.allowance.limit, reason="rounding measured when the baseline was made")


def make(
    observation: Observation, allowed: Mapping[str, Allowance], old: Baseline | None, rules: Rules
) -> Baseline:
    """Return a baseline of what was seen.

    allowed: rounding to expect, by value. old: its lines are kept where the run agrees with them, and its
    tolerances in any case.
    """
    kept = _agreeing(old, observation, rules) if old else {}
    layers = {}
    for point in observation.points:
        seen = observation.layers[point.key]
        guess = UNMEASURED * _epsilon(seen.dtype)
        allowance = allowed.get(point.key, Allowance(guess, guess))
        layers[point.key] = kept.get(point.key) or Entry(point.op, seen, allowance)
    tolerances = old.tolerances if old else {}
    inputs = old.inputs if old and kept else observation.inputs
    return Baseline(observation.model, observation.runner, inputs, layers, tolerances, observation.sha256)


def _agreeing(old: Baseline, observation: Observation, rules: Rules) -> dict[str, Entry]:
    """Return the entries that need no update: none at all once the inputs are others."""
    if _other_inputs(old, observation):
        return {}
    layers = _layers(old, observation, rules, _on_same_inputs(old, observation))
    return {layer.value: old.layers[layer.value] for layer in layers if layer.agrees}


def judge(baseline: Baseline, observation: Observation, rules: Rules, name: str) -> Comparison:
    """Hold a run (B) against a baseline (A). Falsy when a layer differs, is new or is gone.

    name: of the baseline, as shown to people.
    """
    exact = _on_same_inputs(baseline, observation)
    layers = tuple(_layers(baseline, observation, rules, exact))
    gone = tuple(key for key in baseline.layers if key not in observation.layers)
    new = tuple(point.key for point in observation.points if point.key not in baseline.layers)
    changed = _other_inputs(baseline, observation)
    return Comparison(
        verdict=_verdict(layers, gone, new, changed, exact, _cause(baseline, observation)),
        layers=layers,
        a=_side("A", "baseline", baseline.runner, name, ""),
        b=_side("B", observation.model, observation.runner, "", observation.settings),
        inputs=tuple(_input(key, seen, key in changed) for key, seen in observation.inputs.items()),
        skipped=(*_skips(gone, "gone: the model no longer has it"), *_skips(new, "new: not in the baseline")),
    )


def _cause(baseline: Baseline, observation: Observation) -> str:
    """Return what has changed since the baseline was written: the model's file, the runner, or nothing."""
    model = bool(baseline.sha256) and baseline.sha256 != observation.sha256
    causes = ["the model is another than the baseline was written from"] if model else []
    if baseline.runner != observation.runner:
        causes.append(f"the runner was {baseline.runner}, is {observation.runner}")
    same = "the model and the runner are those that the baseline was written with"
    return "; ".join(causes) or (same if baseline.sha256 else "")


def _layers(
    baseline: Baseline, observation: Observation, rules: Rules, exact: frozenset[str]
) -> Iterator[Layer]:
    common = [point for point in observation.points if point.key in baseline.layers]
    indices = {point.key: index for index, point in enumerate(common)}
    statuses: dict[str, Status] = {}
    for index, point in enumerate(common):
        entry, seen = baseline.layers[point.key], observation.layers[point.key]
        error = distance(entry.seen, seen)
        limit = rules.limit(point.key, entry, same_inputs=point.key in exact)
        status = statuses[point.key] = _status(point, error <= limit.value, statuses)
        yield _layer(index, point, entry, seen, error, limit, status, indices)


def _layer(
    index: int,
    point: Point,
    entry: Entry,
    seen: Fingerprint,
    error: float,
    limit: Limit,
    status: Status,
    indices: Mapping[str, int],
) -> Layer:
    return Layer(
        index=index,
        value=point.key,
        node=point.node,
        op=point.op,
        domain=point.domain,
        scope=point.scope,
        dtype=seen.dtype,
        shape=_shape(seen.shape),
        status=status,
        is_output=point.is_output,
        error=error,
        limit=limit,
        inputs=tuple(indices[key] for key in point.inputs if key in indices),
        note="" if status is Status.AGREES else _change(entry.seen, seen),
    )


def _status(point: Point, agrees: bool, before: Mapping[str, Status]) -> Status:
    """Return how a layer came out; one whose inputs differ already is not blamed."""
    if agrees:
        return Status.AGREES
    fed = [before[key] for key in point.inputs if key in before]
    return Status.OWN if all(status is Status.AGREES for status in fed) else Status.INHERITED


def _change(a: Fingerprint, b: Fingerprint) -> str:
    """Return in words what a layer was and is."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"was {a.dtype} {a.shape}, is {b.dtype} {b.shape}"
    if not a.samples:
        return "other strings" if a.dtype == "string" else "other content"
    if a.exact != b.exact:
        return "NaN, infinities or exact parts are not where they were"
    was, now = ("  ".join(words.number(x, 4) for x in side.samples[:3]) for side in (a, b))
    rms = f"RMS {words.number(a.rms, 4)} → {words.number(b.rms, 4)}"
    return f"{rms}, samples {was} → {now}" if was != now else rms


def _verdict(
    layers: tuple[Layer, ...],
    gone: tuple[str, ...],
    new: tuple[str, ...],
    inputs: tuple[str, ...],
    exact: frozenset[str],
    cause: str,
) -> Verdict:
    """Return the answer. Other inputs go first, since nothing can be said of the layers then.

    exact: layers whose inputs are the same to the bit. cause: what changed since the baseline was written.
    """
    since = [("since", cause)] if cause else []
    if inputs:
        return _failed(Kind.REMARK, f"the inputs are not those of the baseline: {', '.join(inputs)}", since)
    if not layers:
        return _failed(Kind.NOTHING, "nothing was compared: the baseline holds none of the model's values")
    facts = [("layers", _counts(layers, gone, new)), *since]
    if not all(layer.agrees for layer in layers):
        return _differs(layers, facts, exact)
    if gone or new:
        return _failed(Kind.REMARK, f"the model's layers changed: {len(new)} new, {len(gone)} gone", facts)
    equal = sum(layer.error == 0 for layer in layers)
    sentence = f"{words.group(len(layers))} layers agree with the baseline, {words.group(equal)} bit for bit"
    return Verdict(kind=Kind.AGREES, exit_code=0, symbol="✓", word="agrees", sentence=sentence)


def _failed(kind: Kind, sentence: str, facts: list[tuple[str, str]] | None = None) -> Verdict:
    symbol, word = ("–", "nothing compared") if kind is Kind.NOTHING else ("✗", "changed")
    code = 5 if kind is Kind.NOTHING else 1
    return Verdict(
        kind=kind, exit_code=code, symbol=symbol, word=word, sentence=sentence, facts=tuple(facts or ())
    )


def _differs(layers: tuple[Layer, ...], facts: list[tuple[str, str]], exact: frozenset[str]) -> Verdict:
    first = next(layer for layer in layers if not layer.agrees)
    sentence = f"differs from #{first.index} of {words.group(len(layers))} on"
    if first.value in exact:
        sentence += "; its inputs are the same to the bit, so the layer itself or its weights changed"
    label = "own" if first.value in exact else "error"
    rows = [("where", f"{words.layer_title(first)}  {words.name(first)}"), (label, _error(first))]
    outputs = [_output(layer) for layer in layers if layer.is_output][:3]
    rows += [("change", first.note), *facts, *(("output", text) for text in outputs)]
    return Verdict(
        kind=Kind.OWN,
        exit_code=1,
        symbol="✗",
        word="differs",
        sentence=sentence,
        facts=tuple(rows),
        first=first.index,
    )


def _output(layer: Layer) -> str:
    limit = layer.limit.value if layer.limit else None
    return f"{layer.value}    error {words.number(layer.error)}, limit {words.number(limit)}"


def _error(layer: Layer) -> str:
    limit = layer.limit.value if layer.limit else 0.0
    if layer.error is None or math.isinf(layer.error):
        return "no common measure"
    ratio = f"{words.times(layer.error / limit)} its limit of {words.number(limit)}" if limit else "limit 0"
    return f"{words.number(layer.error)}, {ratio}"


def _counts(layers: tuple[Layer, ...], gone: tuple[str, ...], new: tuple[str, ...]) -> str:
    agree = sum(layer.agrees for layer in layers)
    own = sum(layer.status is Status.OWN for layer in layers)
    parts = {"agree": agree, "changed": own, "inherited": len(layers) - agree - own, "new": len(new)}
    parts["gone"] = len(gone)
    return ", ".join(f"{words.group(count)} {word}" for word, count in parts.items() if count)


def _on_same_inputs(baseline: Baseline, observation: Observation) -> frozenset[str]:
    """Return the layers whose inputs, weights aside, are the same to the bit."""
    same = {"", *observation.constants}
    for old, new in ((baseline.inputs, observation.inputs), (_prints(baseline), observation.layers)):
        same.update(key for key, seen in new.items() if key in old and old[key].digest == seen.digest)
    return frozenset(point.key for point in observation.points if same.issuperset(point.inputs))


def _prints(baseline: Baseline) -> dict[str, Fingerprint]:
    return {key: entry.seen for key, entry in baseline.layers.items()}


def _other_inputs(baseline: Baseline, observation: Observation) -> tuple[str, ...]:
    """Return the names of inputs that are not what they were."""
    names = dict.fromkeys([*baseline.inputs, *observation.inputs])
    return tuple(
        name
        for name in names
        if name not in baseline.inputs
        or name not in observation.inputs
        or distance(baseline.inputs[name], observation.inputs[name])
        > INPUT_UNITS * _epsilon(baseline.inputs[name].dtype)
    )


def _epsilon(dtype: str) -> float:
    """Return the gap after 1 of the coarsest of the described dtypes, 0 for integers and strings."""
    names = {word.rpartition(" * ")[2] for word in dtype.split(", ")} - {"nothing", "string"}
    return max((epsilon(name) for name in names), default=0.0)


def _shape(described: str) -> tuple[int, ...] | None:
    if described == "scalar":
        return ()
    sizes = described.split("x")
    return tuple(map(int, sizes)) if all(size.isdigit() for size in sizes) else None


def _input(name: str, seen: Fingerprint, changed: bool) -> InputInfo:
    source = "not what the baseline was made with" if changed else "as in the baseline"
    return InputInfo(
        name=name, dtype=seen.dtype, shape=_shape(seen.shape) or (), sha256=seen.digest, source=source
    )


def _side(label: str, model: str, runner: str, name: str, settings: str) -> Side:
    kind, _, version = runner.partition(" ")
    settings = f"baseline {name}" if name else settings
    return Side(
        label=label, model=model, size=None, sha256="", runner=kind, version=version, settings=settings
    )


def _skips(values: tuple[str, ...], reason: str) -> Iterator[Skip]:
    return (Skip(value=value, reason=reason) for value in values)
