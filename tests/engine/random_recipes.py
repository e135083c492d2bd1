"""How random graphs get their nodes: the table of recipes.

A recipe adds one node, or a few that belong together, to a :class:`Builder`. It is registered for one or more
operators and the opsets in which it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.engine.random_builder import Builder

Build: TypeAlias = Callable[[Builder, str], object]


@dataclass(frozen=True)
class Recipe:
    """One way to add an operator; ``first`` and ``last`` are the opsets in which it holds.

    inner: fit for the body of a Loop, where contents change from turn to turn: nothing in it may depend on
    the content of a value.
    """

    op: str
    build: Build
    first: int = 1
    last: int = 1000
    inner: bool = False


RECIPES: list[Recipe] = []


def recipe(*ops: str, first: int = 1, last: int = 1000, inner: bool = False) -> Callable[[Build], Build]:
    """Register the decorated function for operators."""

    def register(build: Build) -> Build:
        RECIPES.extend(Recipe(op, build, first, last, inner) for op in ops)
        return build

    return register
