"""Where a command may write: held against the file system before the work starts."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from graphdoc.engine.errors import GraphdocError, UsageError

STDOUT = "-"


def check_targets(targets: Mapping[str, str | None], reads: Iterable[str | None] = ()) -> None:
    """Raise for a file that cannot be written, so that nobody waits for a result that is then lost.

    targets: option → file, "-" for stdout, None when the option was not given. reads: files that the command
    reads, which must not be written over.

    Raises UsageError for names that make no sense; GraphdocError where the file system says no.
    """
    given = [(option, target) for option, target in targets.items() if target is not None]
    for option, target in given:
        if not target:
            raise UsageError(f"{option} needs the name of a file", where=option, next_step=f"{option} FILE")
    _check_distinct(given, [path for path in reads if path])
    for option, target in given:
        if target != STDOUT:
            _check_writable(option, target)


def check_model_target(target: str | None, option: str = "-o") -> None:
    """Raise UsageError for "-": a model goes to a file, with its data files beside it."""
    if target == STDOUT:
        raise UsageError(
            "a model is written to a file, not to stdout",
            where=f"{option} -",
            next_step=f"{option} OUT.onnx; a file called - is ./-",
        )


def _check_distinct(given: list[tuple[str, str]], reads: list[str]) -> None:
    seen = {os.path.realpath(path): f"the input {path}" for path in reads}
    for option, target in given:
        key = target if target == STDOUT else os.path.realpath(target)
        if key in seen:
            place = "stdout" if target == STDOUT else f"'{target}'"
            raise UsageError(
                f"{option} and {seen[key]} cannot both be {place}",
                where=f"{option} {target}",
                next_step=f"give {option} a file of its own",
            )
        if target == STDOUT or not _is_device(target):
            seen[key] = option


def _is_device(target: str) -> bool:
    path = Path(target)
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_writable(option: str, target: str) -> None:
    for reason, next_step in _obstacles(Path(target)):
        raise GraphdocError(
            f"cannot write '{target}': {reason}", where=f"{option} {target}", next_step=next_step
        )


def _obstacles(path: Path) -> Iterator[tuple[str, str]]:
    """Yield why a file cannot be written and what helps."""
    if path.is_dir():
        yield "it is a folder", f"name a file in it: {shlex.quote(str(path / 'report'))}"
    elif not path.parent.exists():
        yield f"there is no folder '{path.parent}'", f"mkdir -p {shlex.quote(str(path.parent))}"
    elif not path.parent.is_dir():
        yield f"'{path.parent}' is not a folder", "name a file in a folder"
    elif not os.access(path if _is_device(str(path)) else path.parent, os.W_OK):
        yield "no permission", "name a file in a folder of yours"
