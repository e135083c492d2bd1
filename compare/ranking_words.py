"""The ranking of layers (ranking.py) put into a comparison, and into words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphdoc.compare.findings import Finding
from graphdoc.compare.numbers import group, number
from graphdoc.compare.ranking import OwnErrors, Ranked, rank
from graphdoc.compare.result import Comparison, Layer, Ranking
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError

ROUNDING = 1e-5
"""Errors of outputs below it are the rounding of float32, added up."""

FEW = 30
"""Elements of the outputs below which the sum of many errors is one throw of the dice."""

LISTED = 3
"""Layers that the fact names."""


def ranked(
    target: Target,
    feeds: Mapping[str, Any],
    errors: OwnErrors,
    findings: Iterable[Finding],
    *,
    passes: int,
    budget: int,
) -> Ranked:
    """Return the ranking of a comparison's layers, or why there is none: the engine cannot run A, say."""
    outputs = {f.point.key: f.metrics.error for f in findings if f.point.is_output and f.metrics is not None}
    try:
        return rank(target, feeds, errors, outputs, passes=passes, budget=budget)
    except RunnerError as error:
        return Ranked(reason=f"the engine cannot run A: {error.cause}")


def with_ranking(comparison: Comparison, found: Ranked, passes: int) -> Comparison:
    """Return a comparison with its layers ranked, or with a remark that says why they are not."""
    if found.reason:
        remark = f"layers were not ranked by their effect on the outputs: {found.reason}"
        return replace(comparison, remarks=(*comparison.remarks, remark))
    total = sum(e * e for e in found.counted.values())
    layers = tuple(_layer(layer, found, total) for layer in comparison.layers)
    index = {layer.value: layer.index for layer in layers}
    ranking = Ranking(
        passes=passes,
        measured=found.measured,
        predicted=found.predicted,
        together=found.together,
        trusted=found.trusted,
        sentence=sentence(found, passes),
        checked=found.checked,
        injected=tuple(sorted(index[key] for key in found.injected if key in index)),
        untold=found.untold,
        missing=tuple(f"{op}: {reason}" for op, reason in sorted(found.missing.items())),
    )
    result = replace(comparison, layers=layers, ranking=ranking)
    facts = (*comparison.verdict.facts, *_facts(result))
    return replace(result, verdict=replace(comparison.verdict, facts=facts))


def _layer(layer: Layer, found: Ranked, total: float) -> Layer:
    effect = found.effects.get(layer.value)
    if effect is None:
        return layer
    counted = found.counted.get(layer.value, 0.0)
    share = counted * counted / total if total > 0 else 0.0
    return replace(layer, propagated=effect, propagated_share=share)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the layers that move the outputs most, and how far the ranking can be trusted."""
    most = comparison.most_effect(LISTED)
    if comparison.ranking is None:
        return
    if most:
        yield "effect", ", ".join(f"#{x.index} {x.op} {_percent(x.propagated_share)}" for x in most)
    yield "ranking", comparison.ranking.sentence


def _percent(share: float | None) -> str:
    return f"{number(100 * (share or 0.0))} %"


def sentence(found: Ranked, passes: int) -> str:
    """Return what the ranking rests on, and whether to trust it."""
    by = f"{passes} reverse pass{'es' if passes != 1 else ''}"
    if found.measured == 0 and found.predicted == 0:
        return f"{by}: no layer's own error reaches the outputs"
    figures = f"{number(found.predicted)} of the outputs (√Σ over layers), measured {number(found.measured)}"
    parts = [f"{by} predict {figures}", *_doubts(found)]
    if found.untold:
        parts.append(_untold(found))
    return "; ".join(parts)


def _doubts(found: Ranked) -> Iterator[str]:
    """Yield what the check by running showed."""
    if found.trusted:
        if found.checked is not None:
            yield f"the largest, put in alone, do what was predicted within {number(found.checked)} ×"
        return
    if not found.agrees:
        yield f"too far apart to trust: {_why(found)}"
    else:
        yield f"not to be trusted: the largest, put in alone, differ by {number(found.checked)} ×"
    if found.injected:
        count = f"{group(len(found.injected))} layer{'s were' if len(found.injected) != 1 else ' was'}"
        yield f"so {count} put in one by one; the others are predictions"


def _why(found: Ranked) -> str:
    if max(found.predicted, found.measured) < ROUNDING:
        return "what is left is rounding, which falls otherwise on other values"
    if found.elements < FEW:
        return f"in the {group(found.elements)} elements of the outputs, errors cancel or add up by chance"
    near = sorted((found.together, found.measured))
    if near[0] > 0 and near[1] <= 2 * near[0]:
        return "the errors of layers are not independent"
    return "errors too large for a derivative, or other ones on B's own values"


def _untold(found: Ranked) -> str:
    missing = f" ({', '.join(sorted(found.missing))} has no derivative)" if len(found.missing) == 1 else ""
    if len(found.missing) > 1:
        missing = f" ({_joined(sorted(found.missing))} have no derivative)"
    return f"{group(found.untold)} layers with an own error could not be followed{missing}"


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
