"""Apply rewrite rules of one's own, or chosen ones that come along, to a model."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import Loadable, load
from graphdoc.surgeon.pattern_rule import PatternRule
from graphdoc.surgeon.rule_files import load_rules, of_class
from graphdoc.surgeon.rules import all_rules
from graphdoc.surgeon.rules.base import Rule
from graphdoc.surgeon.simplified import Simplified
from graphdoc.surgeon.simplify import Options, count_nodes, simplify
from graphdoc.surgeon.verification import Verify

RuleLike = Rule | type[PatternRule] | str | os.PathLike[str]

_EDITS_PER_NODE = 10
_EDITS_LEAST = 100
"""More edits than this many for each node, and a few, are rules that undo each other."""

_CLEAN = ("unused-initializers",)
"""Passes that run along: a rule leaves constants behind that nothing reads any more."""


def rewrite(
    model: Loadable,
    rules: RuleLike | Iterable[RuleLike],
    *,
    keep: Sequence[str] = (),
    verify: Verify | None = None,
    fresh: Callable[[], ir.Model] | None = None,
) -> Simplified:
    """Return the model after rules were applied until none matches, and the report.

    model: not changed. rules: classes or instances of rules, files that hold some, names or groups of rules
    that come along. keep: globs over names of nodes and values that must survive.
    verify: compares the original and the result; a rule that changes outputs is dropped, and named in the
    report.
    fresh: makes a copy of the model that may be edited; by default it is cloned.

    Raises UsageError for rules that do not exist, cannot be loaded, fail at work, or never come to an end.
    """
    chosen = resolve_rules(rules)
    own = [rule for rule in chosen if rule not in all_rules()]
    graph = load(model)
    limit = _EDITS_LEAST + _EDITS_PER_NODE * count_nodes(graph)
    only = (*dict.fromkeys(rule.name for rule in chosen), *_CLEAN)
    result = simplify(
        graph, Options(only=only, keep=tuple(keep), limit=limit), verify, rules=own, fresh=fresh
    )
    if len(result.report.done) >= limit:
        last = {edit.rule for edit in result.report.done[-_EDITS_LEAST:]}
        raise UsageError(
            f"the rules do not come to an end: {limit} edits were made",
            where=", ".join(sorted(last)),
            next_step="let a rule refuse what another one, or it itself, makes",
        )
    return result


def resolve_rules(rules: RuleLike | Iterable[RuleLike]) -> tuple[Rule, ...]:
    """Return rules for classes, instances, files and names, each once, in the order given.

    Raises UsageError for what is none of these.
    """
    single = isinstance(rules, str | os.PathLike | type) or hasattr(rules, "apply")
    found: dict[Rule, None] = {}
    for item in [rules] if single else list(rules):  # type: ignore[arg-type]
        found.update(dict.fromkeys(_resolve(item)))  # type: ignore[arg-type]
    if not found:
        raise UsageError("no rules are given", next_step="--rules FILE or --rules NAME")
    return tuple(found)


def _resolve(item: RuleLike) -> Sequence[Rule]:
    if isinstance(item, type):
        return [of_class(item)]
    if not isinstance(item, str | os.PathLike):
        return [item]
    named = [rule for rule in all_rules() if item in (rule.name, rule.group)]
    if named:
        return named
    path = Path(item)
    if path.suffix == ".py" or path.exists():
        return load_rules(path)
    raise UsageError(
        f"there is no rule and no file '{item}'",
        where="groups of rules: " + ", ".join(sorted({rule.group for rule in all_rules()})),
        next_step="name a Python file of rules (docs/rewrite.md), a rule or a group",
    )
