"""The folder of a sweep's results, and which of them still hold.

``NAME.json`` and ``NAME.html`` are a case's result. ``NAME.state.json`` is written last and says of what: a
hash over everything the result follows from. A case is taken over only where that hash is the same and both
files are as they were written.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from graphdoc.compare.environment import environment
from graphdoc.engine.errors import GraphdocError, UsageError
from graphdoc.reports.files import write_text
from graphdoc.sweep_cases import Case
from graphdoc.sweep_run import Outcome

MARK = ".graphdoc-sweep"
"""A file that says whose folder it is, so that a sweep writes into no other."""

SETTLED = (0, 1)
"""Exit codes of results that hold; where a runner failed, memory may have been short: it is tried again."""

_MARKED = "Written by graphdoc sweep; its files may be written over.\n"


@dataclass(frozen=True)
class Store:
    """A folder of results.

    options: what all cases share and results depend on. files: read besides, such as those of --ops.
    """

    folder: Path
    options: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    _known: dict[str, str] = field(default_factory=dict)
    """Models → their hashes: many cases may share one."""

    def prepare(self) -> None:
        """Make the folder and mark it. Raises UsageError where it is somebody else's, OSError."""
        mark = self.folder / MARK
        if self.folder.exists() and not mark.exists() and any(self.folder.iterdir()):
            raise UsageError(
                f"'{self.folder}' holds files that are no results of a sweep",
                where=f"-o {self.folder}",
                next_step=f"name a new folder: -o {shlex.quote(str(self.folder / 'sweep'))}",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(_MARKED, mark)

    def key(self, case: Case) -> str | None:
        """Return the hash of what a case's result follows from; None where a file cannot be read."""
        models = [case.ref, *([case.test] if case.test else [])]
        try:
            hashes = [self._model(path) for path in models]
            hashes += [_hash(Path(path)) for path in ([case.inputs] if case.inputs else [])]
        except (OSError, GraphdocError):
            return None
        return _digest([case.words(), hashes, self._shared])

    def _model(self, path: str) -> str:
        if path not in self._known:
            self._known[path] = _model_hash(path)
        return self._known[path]

    @cached_property
    def _shared(self) -> list[Any]:
        return [self.options, [_hash(Path(path)) for path in self.files], sorted(environment().items())]

    def held(self, case: Case, key: str) -> Outcome | None:
        """Return an earlier result of a case that still holds."""
        try:
            state = json.loads(self._path(case, ".state.json").read_text(encoding="utf-8"))
            text = self._path(case, ".json").read_text(encoding="utf-8")
            page = self._path(case, ".html").read_text(encoding="utf-8")
            same = state["key"] == key and state["files"] == [_digest(text), _digest(page)]
            if not same or state["exit_code"] not in SETTLED:
                return None
            return Outcome(int(state["exit_code"]), text, page, seconds=float(state["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, case: Case, key: str | None, outcome: Outcome) -> None:
        """Write the result of a case, or remove an older one where there is none."""
        for suffix in (".state.json", ".json", ".html"):
            self._path(case, suffix).unlink(missing_ok=True)
        if not outcome.text:
            return
        write_text(outcome.text, self._path(case, ".json"))
        write_text(outcome.page, self._path(case, ".html"))
        state = {
            "key": key or "",
            "files": [_digest(outcome.text), _digest(outcome.page)],
            "exit_code": outcome.exit_code,
            "seconds": round(outcome.seconds, 3),
        }
        write_text(json.dumps(state, indent=2) + "\n", self._path(case, ".state.json"))

    def _path(self, case: Case, suffix: str) -> Path:
        return self.folder / f"{case.name}{suffix}"


def _digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _model_hash(path: str) -> str:
    """Return the hash of a model, its external data included."""
    from graphdoc.surgeon.model import open_source

    return open_source(path).sha256


def _hash(path: Path) -> str:
    """Return the hash of a file, or of all files in a folder with their names."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return _digest(list(_listed(path)))


def _listed(folder: Path) -> Iterator[Sequence[str]]:
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        yield path.relative_to(folder).as_posix(), _hash(path)
