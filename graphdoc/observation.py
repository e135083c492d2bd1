"""One run of a model, kept as fingerprints: what a baseline is made from and compared with."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphdoc.compare.comparison import choose
from graphdoc.compare.runner import Runner, RunnerOptions, open_runner
from graphdoc.compare.target import Point, Target
from graphdoc.fingerprint import Fingerprint, fingerprint

BUDGET = 1 << 30
"""Bytes of tapped values held at a time; more layers than that are run in several goes."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a runner computed.

    runner: name and version. points: the tapped values in execution order, those the run did not reach left
    out. constants: names of weights and literals. sha256: of the model.
    """

    model: str
    runner: str
    inputs: Mapping[str, Fingerprint]
    layers: Mapping[str, Fingerprint]
    points: tuple[Point, ...]
    constants: frozenset[str] = frozenset()
    settings: str = ""
    sha256: str = ""


def observe(
    target: Target, feeds: Mapping[str, Any], *, runner: str, taps: str = "all", seed: int = 0
) -> Observation:
    """Run a model once and return the fingerprints of what it computed.

    taps: "all", "outputs" or a glob over names of values and nodes. Raises NothingComparedError when it
    matches nothing.
    """
    points = choose(target, target, (taps,))
    with open_runner(runner, target, RunnerOptions(seed=seed)) as opened:
        layers = dict(_seen(opened, feeds, [point.key for point in points]))
        return Observation(
            model=target.source.name,
            runner=f"{opened.name} {opened.version}",
            inputs={name: fingerprint(value) for name, value in feeds.items()},
            layers=layers,
            points=tuple(point for point in points if point.key in layers),
            constants=frozenset(target.constants),
            settings=opened.settings,
            sha256=target.source.sha256,
        )


def _seen(
    runner: Runner, feeds: Mapping[str, Any], keys: Collection[str]
) -> Iterator[tuple[str, Fingerprint]]:
    """Yield fingerprints, run by run, until a run brings no new one (a branch not taken brings none)."""
    pending, found = dict.fromkeys(keys), True
    while pending and found:
        values = runner.run(feeds, list(pending), budget=BUDGET).values
        found = False
        for key in [key for key in pending if key in values]:
            del pending[key]
            found = True
            yield key, fingerprint(values[key])
