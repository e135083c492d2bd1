"""Find faults in a model without running it: a table of rules, and what they find.

A rule is a generator over the model that yields where and what; its row says how bad that is, what harm it
does and how it is mended. Rules live in surgeon/lint_*.py, each registered with :func:`rule`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module

import onnx

from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.subject import Subject

SCHEMA = "graphdoc.lint/1"

FAMILIES = ("lint_graph", "lint_names", "lint_types", "lint_weights", "lint_numerics")
"""Modules that register rules; a report lists them in this order."""

FIXES = "lint_fix"
"""The module that registers safe mends."""


class Severity(StrEnum):
    """error: some runtime refuses the model, or its results are wrong. warning: likely not meant so.
    remark: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    REMARK = "remark"


@dataclass(frozen=True, slots=True)
class Fault:
    """One place that a rule objects to. severity: where it differs from the rule's."""

    where: str
    what: str
    severity: Severity | None = None


Check = Callable[[Subject], Iterator[Fault]]
Fix = Callable[[onnx.ModelProto], Iterator[str]]
"""Mends a model in place without changing its results; yields what was mended, in words."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: name, severity, the harm that the fault does, and how it is mended.

    fix: mends it without changing results; None where that takes a person.
    """

    name: str
    severity: Severity
    harm: str
    mend: str
    check: Check
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with the words of its rule. where: node, value or field, with the way to its subgraph."""

    rule: str
    severity: Severity
    where: str
    what: str
    harm: str
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """All findings, errors first. Truthy when there are no errors."""

    name: str
    rules: int
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return not self.count(Severity.ERROR)

    def count(self, severity: Severity) -> int:
        """Return how many findings have a severity."""
        return sum(finding.severity == severity for finding in self.findings)


_RULES: dict[str, Rule] = {}


def rule(name: str, severity: Severity, *, harm: str, mend: str) -> Callable[[Check], Check]:
    """Register the decorated generator as a rule."""

    def register(check: Check) -> Check:
        if name in _RULES:
            raise ValueError(f"rule {name} is registered twice")
        _RULES[name] = Rule(name, severity, harm, mend, check)
        return check

    return register


def fix(name: str) -> Callable[[Fix], Fix]:
    """Register the decorated generator as the safe mend of a rule."""

    def register(mend: Fix) -> Fix:
        _RULES[name] = replace(_RULES[name], fix=mend)
        return mend

    return register


def rules() -> tuple[Rule, ...]:
    """Return all rules, family by family."""
    for family in (*FAMILIES, FIXES):
        import_module(f"graphdoc.surgeon.{family}")
    return tuple(_RULES.values())


def lint_model(model: Loadable | Source) -> LintReport:
    """Return the faults of a model; nothing is run. Weights are read, in bounded pieces.

    Raises ModelError when the model cannot be read or is not sound (surgeon/checks.py).
    """
    source = open_source(model)
    subject = Subject(source)
    found = [
        Finding(row.name, fault.severity or row.severity, fault.where, fault.what, row.harm, row.mend)
        for row in rules()
        for fault in row.check(subject)
    ]
    order = list(Severity)
    found.sort(key=lambda finding: order.index(finding.severity))
    return LintReport(name=source.name, rules=len(rules()), findings=tuple(found))
