"""Apply the safe mends of the lint rules to a model, and look again."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphdoc.surgeon.lint import Finding, LintReport, lint_model, rules
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.stubs import refuse_stripped

ORDER = ("no-ir-version", "initializer-name", "unsorted-nodes", "unused-node", "unused-initializer")
"""Mends that others build on, first; nodes that go may leave weights and domains without use."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What a mend did. rule: whose fault it was. what: in words."""

    rule: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFix:
    """A mended model.

    before, after: the findings. mended: what was done, in order. left: findings that take a person.
    """

    model: ir.Model
    proto: onnx.ModelProto
    before: LintReport
    after: LintReport
    mended: tuple[Mended, ...]

    @property
    def left(self) -> tuple[Finding, ...]:
        """What is still found."""
        return self.after.findings


def fix_model(model: Loadable | Source) -> LintFix:
    """Mend what can be mended without changing results, and lint again. The model given is not changed.

    Raises ModelError when the model cannot be read, is not sound, or is stripped of its weights.
    """
    source = open_source(model)
    before = lint_model(source)
    found = {finding.rule for finding in before.findings}
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    mended = tuple(_apply(proto, found))
    fixed = read_model(proto, source.folder)
    refuse_stripped(fixed, "mending")  # not sooner: what is to be mended may be what cannot be read
    after = lint_model(Source(source.path, source.name, proto=proto))
    return LintFix(model=fixed, proto=proto, before=before, after=after, mended=mended)


def _apply(proto: onnx.ModelProto, found: set[str]) -> Iterator[Mended]:
    table = {rule.name: rule.fix for rule in rules() if rule.fix is not None}
    order = [*ORDER, *(name for name in table if name not in ORDER)]
    follow = {"unused-initializer", "opset-unused", "stale-value-info"} if "unused-node" in found else set()
    for name in order:
        fix = table.get(name)
        if fix is not None and name in found | follow:
            yield from (Mended(name, what) for what in fix(proto))
