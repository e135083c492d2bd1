"""Limits that the user sets for some layers: by name, by operator or by dtype.

A rule is a name and the largest error, RMS(B − A) ÷ RMS(A), that counts as equal::

    encoder.block3*   a glob over names of values and nodes
    op:Softmax        every layer of an operator
    dtype:float16     every layer whose result has this dtype in A or B

Of several rules that fit a layer the most specific counts: a name without wildcards, a glob, an operator, a
dtype. Among equally specific ones that of the nearer source counts (the call before the project), and within
a source the last one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from graphdoc.compare.result import Limit
from graphdoc.engine.errors import UsageError

OPERATOR, DTYPE = "op:", "dtype:"

FLOATS = frozenset({"float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
INTEGERS = frozenset({f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)})
BARE_DTYPES = FLOATS | INTEGERS | {"bool", "string"}
"""Names that mean a dtype without ``dtype:`` too, as tables of pyproject.toml have them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One tolerance.

    source: where it was set, as reports say it. must_match: it is said when it fits nothing.
    """

    name: str
    value: float
    source: str = "--tolerance"
    must_match: bool = True

    @property
    def limit(self) -> Limit:
        """The rule as the limit of a layer."""
        return Limit(value=self.value, reason=f"given: {self.source} '{self.name}'")


@dataclass(frozen=True, slots=True)
class Described:
    """What rules look at in a layer."""

    value: str
    node: str
    op: str
    dtypes: tuple[str, ...]


def specificity(name: str, layer: Described) -> int:
    """Return how closely a rule's name fits a layer: 0 not at all, 1 dtype, 2 operator, 3 glob, 4 name."""
    if name in (layer.value, layer.node):
        return 4
    if name.startswith(OPERATOR):
        return 2 * (name.removeprefix(OPERATOR) == layer.op)
    if name.startswith(DTYPE) or name in BARE_DTYPES:
        return int(name.removeprefix(DTYPE) in layer.dtypes)
    return 3 * any(fnmatchcase(text, name) for text in (layer.value, layer.node) if text)


def find(rules: Sequence[Rule], layer: Described) -> Rule | None:
    """Return the rule that counts for a layer, None where none fits; nearer sources stand later."""
    ranked = [(specificity(rule.name, layer), place, rule) for place, rule in enumerate(rules)]
    fits = [row for row in ranked if row[0]]
    return max(fits, key=lambda row: row[:2])[2] if fits else None


def unmatched(rules: Iterable[Rule], layers: Sequence[Described]) -> list[Rule]:
    """Return the rules that fit no layer."""
    return [rule for rule in rules if not any(specificity(rule.name, layer) for layer in layers)]


def rules_of(table: Mapping[str, float], source: str, *, must_match: bool = True) -> tuple[Rule, ...]:
    """Return a table of tolerances as rules. Raises UsageError for a value that is no number from 0 on."""
    for name, value in table.items():
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(
                f"the tolerance of '{name}' is not a number of at least 0: {value!r}", where=source
            )
    return tuple(Rule(name, float(value), source, must_match) for name, value in table.items())


def parse(texts: Iterable[str]) -> dict[str, float]:
    """Return the table that ``--tolerance NAME=NUMBER`` options make. Raises UsageError."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not name or not equals or not (math.isfinite(value) and value >= 0):
            raise UsageError(
                f"cannot read the tolerance '{text}'",
                where="--tolerance",
                next_step="write it as 'encoder.*=1e-3', op:Softmax=1e-4 or dtype:float16=1e-2",
            )
        found.pop(name, None)
        found[name] = value
    return found
