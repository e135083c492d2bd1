"""Rewrite rules: one module per family, each with a tuple ``RULES`` of what it offers."""

from functools import cache

from graphdoc.surgeon.rules.base import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule that comes along, in the order in which they are tried at a node."""
    from graphdoc.surgeon.rules import assemble, chains, clean, control, fold, identity, linear, shapes

    modules = (clean, fold, control, identity, shapes, chains, linear)
    return (*assemble.rules(), *(rule for module in modules for rule in module.RULES))
