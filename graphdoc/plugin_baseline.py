"""One check against a baseline: run the model, judge, and write the baseline where that is asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphdoc.api import Feeds, compare_models, resolve_inputs
from graphdoc.baseline import Allowance, Baseline, read, write
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
    """What came of a check.

    word: "agrees", "differs", "written" or "missing" (a baseline; there is no comparison then).
    changes: what was written into the baseline, a line per layer.
    """

    word: str
    comparison: Comparison | None
    changes: tuple[str, ...] = ()


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
    stale = old is not None and old.sha256 != seen.sha256
    if found is not None and (not update or (found and not stale)):
        return Outcome("agrees" if found else "differs", found)
    new = make(seen, _allowed(case, target, feeds), old, rules)
    write(path, new)
    return Outcome("written", judge(new, seen, rules, path.stem), tuple(_changes(old, new, found)))


def _changes(old: Baseline | None, new: Baseline, found: Comparison | None) -> Iterator[str]:
    """Yield what an update did to a baseline, a line per layer: + new, - gone, ~ changed."""
    if old is None or found is None:
        yield f"+ {len(new.layers)} layers, a new baseline"
        return
    notes = {layer.value: layer.note for layer in found.layers}
    for key in (key for key in old.layers if key not in new.layers):
        yield f"- {key}  {old.layers[key].op}"
    for key, entry in new.layers.items():
        before = old.layers.get(key)
        if before is None:
            yield f"+ {key}  {entry.op}  {entry.seen.dtype} {entry.seen.shape}"
        elif before != entry:
            yield f"~ {key}  {entry.op}  {notes.get(key) or 'taken anew: the inputs are others'}"
    if old.sha256 != new.sha256:
        yield f"~ sha256  {old.sha256[:12] or 'unknown'} → {new.sha256[:12]}"


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
