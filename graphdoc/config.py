"""The table ``[tool.graphdoc]`` of pyproject.toml: what holds for a whole project.

::

    [tool.graphdoc]
    runner = "ort"              # who runs the model of graphdoc.check
    seed = 0
    report = "graphdoc-report"  # where HTML reports of failing tests go

    [tool.graphdoc.tolerances]  # by dtype, operator or glob over names, as for --tolerance
    float16 = 2e-2
    "op:Softmax" = 1e-4
    "head/*" = 1e-4
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphdoc.engine.errors import UsageError

if TYPE_CHECKING:
    from graphdoc.compare.tolerances import Rule


@dataclass(frozen=True, slots=True)
class Config:
    """A project's settings.

    runner: as named on the command line. seed: for inputs and random operators. report: folder for HTML
    reports, None for none. tolerances: largest error by dtype or glob.
    """

    runner: str = "engine"
    seed: int = 0
    report: str | None = None
    tolerances: Mapping[str, float] = field(default_factory=dict)


def all_rules(texts: Iterable[str], folder: Path | None = None) -> tuple["Rule", ...]:
    """Return the tolerances of the nearest pyproject.toml, then those of ``--tolerance`` options.

    folder: where to look, the working directory by default. Raises UsageError.
    """
    from graphdoc.compare.tolerances import parse, rules_of

    given = rules_of(parse(texts), "--tolerance")
    table = load_config(folder or Path.cwd()).tolerances
    return (*rules_of(table, "pyproject.toml", must_match=False), *given)


_EXAMPLES: dict[str, Any] = {
    "runner": "ort",
    "seed": 0,
    "report": "graphdoc-report",
    "tolerances": {"float16": 2e-2},
}
"""A right value of every key: its type is the one asked for."""


def load_config(folder: Path) -> Config:
    """Return the settings of the nearest pyproject.toml with a table ``tool.graphdoc``, from ``folder`` up.

    Raises UsageError for a file that cannot be read, an unknown key or a wrong type.
    """
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if path.is_file() and (table := _table(path)) is not None:
            return parse_config(table, str(path.name))
    return Config()


def parse_config(table: Mapping[str, Any], where: str) -> Config:
    """Return the settings that a table holds. Raises UsageError."""
    for name, value in table.items():
        check_key(name, [f.name for f in fields(Config)], where)
        if type(value) is not type(_EXAMPLES[name]):
            raise UsageError(
                f"'{name}' must be of the kind of {_EXAMPLES[name]!r}, not {value!r}",
                where=f"{where}, [tool.graphdoc]",
            )
    return Config(**{**table, "tolerances": numbers(table.get("tolerances", {}), where)})


def numbers(table: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return tolerances as floats. Raises UsageError for anything that is not a number of at least 0."""
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(
                f"the tolerance of '{name}' is not a number of at least 0: {value!r}", where=where
            )
    return {name: float(value) for name, value in table.items()}


def check_key(name: str, known: list[str], where: str) -> None:
    """Raise UsageError, with the nearest known name, for a key that means nothing."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"
        raise UsageError(f"unknown key '{name}'", where=where, next_step=hint)


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} cannot be read: {error}", where=path.name) from error
    table = data.get("tool", {}).get("graphdoc")
    if table is not None and not isinstance(table, dict):
        raise UsageError("[tool.graphdoc] must be a table", where=path.name)
    return table
