"""Columns of a table of strings, each looked up on its own: one walk over the table for all of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from graphdoc.engine.ops.table import canonical_domain
from graphdoc.engine.parts import HostNode, Known, Part, Stage


class Codes:
    """From strings to where they stand among the names, the last of equal ones; int64 of the same shape.

    −1 where nowhere; strict: then ValueError.
    """

    def __init__(self, names: Sequence[str], *, strict: bool = False) -> None:
        self.find: Callable[[str], int] = _Places((name, k) for k, name in enumerate(names)).__getitem__
        self.strict = strict

    def __call__(self, x: Any) -> Any:
        """Return the codes of an object array."""
        return self.checked(np.fromiter(map(self.find, x.ravel().tolist()), np.int64, x.size)).reshape(
            x.shape
        )

    def checked(self, codes: Any) -> Any:
        """Return the codes. Raises ValueError for one that is nowhere, where that is not allowed."""
        if self.strict and codes.size and codes.min() < 0:
            raise ValueError("unknown category, and zeros is 0")
        return codes


class _Places(dict[str, int]):
    """Where names stand; −1 for any other."""

    def __missing__(self, name: str) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is looked up: the parts that take it and find its codes, and what they are about."""

    gather: int
    coder: int
    place: int
    codes: Codes
    target: str


def columns_of(stage: Stage) -> dict[str, list[Column]]:
    """Return, by the key of a table, the columns of it that a stage takes for nothing but their codes.

    Tables with one such column are left out.
    """
    hosts = {n: part for n, part in enumerate(stage.parts) if isinstance(part, HostNode)}
    taken = {part.outputs[0]: n for n, part in hosts.items() if _place(part) is not None}
    reads = _reads(stage)
    found: dict[str, list[Column]] = {}
    for n, part in hosts.items():
        key = part.inputs[0] if part.inputs else None
        if not isinstance(part.node.run, Codes) or not isinstance(key, str):
            continue
        if key not in taken or reads[key] != 1:
            continue
        source = hosts[taken[key]]
        table, place = source.inputs[0], _place(source)
        if isinstance(table, str) and place is not None:
            column = Column(taken[key], n, place, part.node.run, part.outputs[0])
            found.setdefault(table, []).append(column)
    return {table: columns for table, columns in found.items() if len(columns) > 1}


def _place(part: HostNode) -> int | None:
    """Return which column of a table a host node takes, None for any other node."""
    node = part.node.node
    if (canonical_domain(node.domain), node.op_type) != ("", "Gather"):
        return None
    table, index = part.inputs
    known = index.value if isinstance(index, Known) else None
    axis = part.node.run.keywords.get("axis", 0) if hasattr(part.node.run, "keywords") else 0
    if not isinstance(known, np.ndarray) or known.shape != (1,) or axis != 1 or not isinstance(table, str):
        return None
    return int(known[0])


def _reads(stage: Stage) -> dict[str, int]:
    """Return how often each key is read."""
    counts: dict[str, int] = {}
    for key in chain(_by_parts(stage.parts), (s for s in stage.results if isinstance(s, str))):
        counts[key] = counts.get(key, 0) + 1
    for key in chain(
        (s for s, _ in stage.taps.values() if isinstance(s, str)),
        () if stage.rest is None else (s.key for s in stage.rest.states.values() if not isinstance(s, Known)),
    ):
        counts[key] = counts.get(key, 0) + 1
    return counts


def _by_parts(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, HostNode):
            yield from (s for s in part.inputs if isinstance(s, str))
            yield from (s for sources in part.captured.values() for s in sources if isinstance(s, str))
        else:
            yield from part.program.inputs


def looked_up(
    table: str, columns: Sequence[Column], otherwise: Sequence[Callable[[dict[str, Any], Any], None]]
) -> Callable[[dict[str, Any], Any], None]:
    """Return the function that finds the codes of columns in one walk.

    otherwise: the parts one by one, for what is no table or lacks a column: they word what is wrong.
    """
    targets = [column.target for column in columns]
    finds = [column.codes.find for column in columns]
    strict = [(n, column.codes) for n, column in enumerate(columns) if column.codes.strict]
    places = [column.place for column in columns]
    least, most = min(places), max(places)

    def run(env: dict[str, Any], run: Any) -> None:
        x = env[table]
        if x.ndim != 2 or not x.size or not -x.shape[1] <= least <= most < x.shape[1]:
            for call in otherwise:
                call(env, run)
            return
        rows = list(zip(*x.tolist()))  # noqa: B905 (rows of one array)
        walk = chain.from_iterable(map(find, rows[place]) for find, place in zip(finds, places))  # noqa: B905
        codes = np.fromiter(walk, np.int64, len(places) * len(x)).reshape(len(places), len(x), 1)
        if any(codes[n].min() < 0 for n, _ in strict):
            for call in otherwise:
                call(env, run)
            return
        env.update(zip(targets, codes))  # noqa: B905

    return run


def merged(
    stage: Stage, calls: Sequence[Callable[[dict[str, Any], Any], None]]
) -> list[Callable[[dict[str, Any], Any], None]]:
    """Return the calls of a stage's parts, those of a table's columns replaced by one."""
    found = list(calls)
    groups: Mapping[str, list[Column]] = columns_of(stage)
    for table, columns in groups.items():
        parts = sorted({n for column in columns for n in (column.gather, column.coder)})
        found[parts[0]] = looked_up(table, columns, [calls[n] for n in parts])
        for n in parts[1:]:
            found[n] = nothing
    return found


def nothing(env: dict[str, Any], run: Any) -> None:
    """Stand for a part that an earlier one has done."""
