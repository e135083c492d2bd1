"""Which layers get a picture, chosen while their values are at hand: a bounded number, whatever the model.

What the page will show is known only once all is measured, and by then the values are gone. So each group of
layers is judged on what is known so far. Chosen are the first WRONG layers that look wrong, the first OUTPUTS
outputs of the model, and the WORST layers by own error over own limit; one that falls out of the last list
gives its picture back.
"""

from collections.abc import Sequence

from graphdoc.compare.findings import Finding
from graphdoc.compare.judge import Evidence, Judgement, judge, suspects
from graphdoc.compare.pictures import picture
from graphdoc.compare.result import Limit
from graphdoc.compare.runner import Run

WRONG = 6
OUTPUTS = 4
WORST = 6


class Gallery:
    """The pictures of a comparison so far. given: the user's tolerance, None for measured limits."""

    def __init__(self, given: Limit | None = None) -> None:
        self._given = given
        self._known: dict[str, Judgement] = {}
        self._wrong: list[str] = []
        self._outputs: list[str] = []
        self._worst: list[Finding] = []

    def observe(self, group: Sequence[Finding], run_a: Run, run_b: Run) -> None:
        """Take a group of layers, in topological order, and draw those that are worth it."""
        wrong = suspects(group, judge(group, Evidence(), self._given, self._known))
        drawable = [finding for finding in group if finding.metrics is not None]
        new = [finding.point.key for finding in drawable if finding.point.key in wrong]
        self._wrong += new[: WRONG - len(self._wrong)]
        ends = [finding.point.key for finding in drawable if finding.point.is_output]
        self._outputs += ends[: OUTPUTS - len(self._outputs)]
        ranked = sorted([*self._worst, *drawable], key=_rank)[:WORST]
        before, self._worst = self._worst, [finding for finding in ranked if _of_limit(finding) > 0]
        kept = {*self._wrong, *self._outputs, *(finding.point.key for finding in self._worst)}
        for finding in before:
            if finding.point.key not in kept:
                finding.picture = None
        for finding in drawable:
            if finding.point.key in kept:
                key = finding.point.key
                finding.picture = picture(run_a.values[key], run_b.values[key])


def _of_limit(finding: Finding) -> float:
    own = finding.own or 0.0
    if finding.own_limit.value > 0:
        return own / finding.own_limit.value
    return float("inf") if own else 0.0


def _rank(finding: Finding) -> float:
    return -_of_limit(finding)
