"""What a simplification did, left and refused: plain data for the printed form and for programs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from graphdoc.surgeon.verification import Verification

FOLDED = frozenset({"fold"})
REMOVED = frozenset({"clean", "identity"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One edit. node: the node's name (or its first output's). removed: nodes fewer than before it."""

    rule: str
    group: str
    node: str
    op: str
    text: str
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A place where a rule almost matched, or a node that folding left: why."""

    rule: str
    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A rule that verification found guilty, the place, and the difference it made."""

    rule: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done, kept and refused. Truthy when no rule had to be dropped and the result agrees.

    nodes_before, nodes_after: of the graph, its subgraphs and functions, Constant nodes aside.
    constants_before, constants_after: Constant nodes and initializers. size_before, size_after: their bytes.
    verification: None when it was not asked for.
    """

    nodes_before: int
    nodes_after: int
    constants_before: int
    constants_after: int
    size_before: int
    size_after: int
    done: tuple[Done, ...] = ()
    kept: tuple[Kept, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    verification: Verification | None = None

    def __bool__(self) -> bool:
        return not self.dropped and not self.differs

    @property
    def differs(self) -> bool:
        """Whether the outputs were found to differ although what was at fault could not be left out."""
        return self.verification is not None and not self.verification.agrees

    @property
    def unproven(self) -> bool:
        """Whether outputs should have been compared, and neither model could be run on anything."""
        return self.verification is not None and self.verification.agrees and not self.verification.runs

    @property
    def changed(self) -> bool:
        """Whether anything was edited."""
        return bool(self.done)

    def removed_by(self) -> dict[str, int]:
        """Return how many nodes folding, fusing and removing took away."""
        counts: Counter[str] = Counter({"folded": 0, "fused": 0, "removed": 0})
        for edit in self.done:
            kind = "folded" if edit.group in FOLDED else "removed" if edit.group in REMOVED else "fused"
            counts[kind] += edit.removed
        return dict(counts)

    def by_rule(self) -> dict[str, int]:
        """Return the number of edits of each rule, the busiest first."""
        return dict(Counter(edit.rule for edit in self.done).most_common())

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data (``--json``)."""
        checked = self.verification
        return {
            "schema": "graphdoc.simplify/1",
            "ok": bool(self),
            "nodes": [self.nodes_before, self.nodes_after],
            "constants": [self.constants_before, self.constants_after],
            "weights": [self.size_before, self.size_after],
            **self.removed_by(),
            "done": [_plain(item) for item in self.done],
            "kept": [_plain(item) for item in self.kept],
            "dropped": [_plain(item) for item in self.dropped],
            "verification": None if checked is None else _checked(checked),
        }


def _plain(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in type(item).__slots__}


def _checked(checked: Verification) -> dict[str, Any]:
    return {
        "agrees": checked.agrees,
        "summary": checked.summary(),
        "runs": [_plain(run) | {"error": _finite(run.error)} for run in checked.runs],
        "differences": list(checked.differences),
        "not_run": [_plain(item) for item in checked.not_run],
        "remarks": list(checked.remarks),
    }


def _finite(number: float) -> float | str:
    return number if number == number and abs(number) != float("inf") else str(number)


@dataclass(frozen=True, slots=True, repr=False)
class Simplified:
    """The result of :func:`graphdoc.simplify`: the edited model and the report. Truthy as the report is."""

    model: ir.Model
    report: Report

    def __bool__(self) -> bool:
        return bool(self.report)

    def __repr__(self) -> str:
        report = self.report
        nodes = f"{report.nodes_before} → {report.nodes_after} nodes"
        dropped = [f"dropped {', '.join(item.rule for item in report.dropped)}"] if report.dropped else []
        checked = "not verified" if report.verification is None else report.verification.summary()
        return f"<Simplified: {'; '.join([nodes, *dropped, checked])}>"
