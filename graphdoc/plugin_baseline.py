"""One check against a baseline: run the model, judge, and write the baseline where that is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphdoc.api import Feeds, compare_models, resolve_inputs
from graphdoc.baseline import Allowance, read, write
from graphdoc.baseline_check import Rules, judge, make
from graphdoc.compare.result import Comparison
from graphdoc.compare.target import Target
from graphdoc.engine.errors import GraphdocError
from graphdoc.observation import observe
from graphdoc.surgeon.model import open_source

MOST = 0.5
"""No limit is wider: a check that lets everything pass is none."""


SPREAD = 3.0
"""The distance of two fingerprints is an estimate; one in three million is over three times too large."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a test asks for, see Checker.check. tolerances: of the call; project: those of pyproject.toml."""

    model: Any
    inputs: Any
    runner: str
    taps: str
    shapes: Mapping[str, tuple[int, ...]] | Sequence[str] | None
    seed: int
    tolerances: Mapping[str, float]
    project: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """word: "agrees", "differs", "written" or "missing" (a baseline; there is no comparison then)."""

    word: str
    comparison: Comparison | None


def run(case: Case, path: Path, *, update: bool) -> Outcome:
    """Hold a model against the baseline in ``path``; write it if ``update`` and it is missing or disagrees.

    Raises what loading, inputs and runners raise, and InputError for a baseline that cannot be read.
    """
    old = read(path)
    if old is None and not update:
        return Outcome("missing", None)
    target = Target(open_source(case.model))
    feeds = resolve_inputs(target, case.inputs, case.shapes, case.seed).feeds
    seen = observe(target, feeds, runner=case.runner, taps=case.taps, seed=case.seed)
    rules = Rules(case.tolerances, old.tolerances if old else {}, case.project)
    found = judge(old, seen, rules, path.stem) if old else None
    if found is not None and (found or not update):
        return Outcome("agrees" if found else "differs", found)
    new = make(seen, _allowed(case, target, feeds), old, rules)
    write(path, new)
    return Outcome("written", judge(new, seen, rules, path.stem))


def _allowed(case: Case, target: Target, feeds: Feeds) -> dict[str, Allowance]:
    """Return how much rounding to expect of every layer: measured against the same run in float64.

    Empty where float64 cannot run the model; an allowance from the dtype stands in for it then.
    """
    try:
        result = compare_models(
            target.source,
            inputs=feeds,
            ref="truth",
            test_runner=case.runner,
            taps=case.taps,
            latency=False,
        )
    except GraphdocError:
        return {}
    return {
        layer.value: Allowance(*(min(SPREAD * limit.value, MOST) for limit in (layer.limit, layer.own_limit)))
        for layer in result.layers
        if layer.limit is not None and layer.own_limit is not None
    }
