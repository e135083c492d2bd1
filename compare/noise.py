"""The noise floor of the reference: A against itself with other threads, and with optimisations.

Other thread counts cut sums at other places; optimisations fuse and reorder. Both are right, so what they
change is no error of B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphdoc.compare.examine import error_of
from graphdoc.compare.findings import Finding
from graphdoc.compare.judge import Evidence
from graphdoc.compare.metrics import MismatchError
from graphdoc.compare.numbers import number
from graphdoc.compare.runner import Runner, RunnerOptions, open_runner
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError

THREADS = (1, 3)
"""Thread counts of the other runs: sums are cut in one piece, and at odd places."""

AT_A_TIME = 128
"""Layers whose values are held at a time."""


def measure_floor(
    a: Runner,
    target: Target,
    feeds: Mapping[str, Any],
    findings: Sequence[Finding],
    options: RunnerOptions,
    evidence: Evidence,
) -> None:
    """Note by how much A's layers move between runs of A that should be alike, and say it."""
    keys = [f.point.key for f in findings if not f.absent and f.dtype != "object"]
    runs = 0
    try:
        for threads in THREADS:
            with open_runner(a.name, target, replace(options, threads=threads, times=False)) as other:
                for start in range(0, len(keys), AT_A_TIME):
                    part = keys[start : start + AT_A_TIME]
                    _note(a.run(feeds, part).values, other.run(feeds, part).values, part, evidence)
            runs += 1
        outputs = a.untouched(feeds)
        _note(a.run(feeds, list(outputs)).values, outputs, list(outputs), evidence)
        runs += 1
    except RunnerError as error:
        evidence.remarks.append(f"the noise of A was not measured in full: {error.cause}")
    if runs:
        evidence.remarks.append(_said(evidence.floor, len(keys)))


def _note(a: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str], evidence: Evidence) -> None:
    for key in keys:
        if key in a and key in other:
            try:
                apart = error_of(a[key], other[key])
            except MismatchError:
                apart = float("inf")
            evidence.floor[key] = max(evidence.floor.get(key, 0.0), apart)


def _said(floor: Mapping[str, float], count: int) -> str:
    how = f"A against itself with {' and '.join(map(str, THREADS))} threads, and optimised"
    moving = {key: apart for key, apart in floor.items() if apart > 0}
    if not moving:
        return f"{how}: all {count} layers are the same to the bit"
    key = max(moving, key=lambda name: moving[name])
    return f"{how}: {len(moving)} of {count} layers move, {key} most, by {number(moving[key])}"
