"""Rewrite rules: one module per family, each with a tuple ``RULES`` of what it offers."""

from collections.abc import Iterable
from functools import cache

from graphdoc.surgeon.rules.base import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule that comes along, in the order in which they are tried at a node."""
    from graphdoc.surgeon.rules import assemble

    return (*assemble.rules(), *usual_rules())


@cache
def usual_rules() -> tuple[Rule, ...]:
    """Return the rules but for those that assemble operators: their patterns take a while to be made."""
    from graphdoc.surgeon.rules import chains, clean, control, fold, identity, linear, shapes

    modules = (clean, fold, control, identity, shapes, chains, linear)
    return tuple(rule for module in modules for rule in module.RULES)


def rules_for(names: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules among which are all with one of these names or groups; every rule for unknown names."""
    usual = usual_rules()
    known = {name for rule in usual for name in (rule.name, rule.group)}
    return usual if known.issuperset(names) else all_rules()
