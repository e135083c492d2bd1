"""What a sweep compares: arguments of the command → one case per model, inputs and seed."""

import glob
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphdoc.engine.errors import InputError, UsageError

LIST_SUFFIXES = (".txt", ".list", ".lst")
"""Ends of the names of files that list cases."""

MODEL_SUFFIX = ".onnx"
_LONGEST_NAME = 100
_WORDS = 3
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. name: of its files in the folder of results; the other parts are as for ``compare``."""

    name: str
    ref: str
    test: str | None = None
    inputs: str | None = None
    seed: int = 0

    def words(self) -> list[str]:
        """Return the case's part of the command line of ``graphdoc compare``."""
        given = [self.ref, *([self.test] if self.test else [])]
        inputs = ["--inputs", self.inputs] if self.inputs else []
        # "--": a model may be named -x.onnx
        return [*inputs, "--seed", str(self.seed), "--", *given]

    def identity(self) -> str:
        """Return what makes the case another one than the rest."""
        return "\n".join([self.ref, self.test or "", self.inputs or "", str(self.seed)])


def find_cases(
    what: Sequence[str],
    *,
    against: str | None = None,
    inputs: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
) -> tuple[Case, ...]:
    """Return the cases, in the order of the arguments, without duplicates, every name once.

    what: models, folders (every .onnx below, sorted), globs, list files. against: a folder with the models to
    test, under the same names as those of ``what``. inputs: files, folders, globs; every model runs on each;
    a folder of ``test_data_set_…`` counts as many. seeds: of inputs that are made up.

    Raises UsageError where nothing is found, InputError for a bad list.
    """
    feeds = [path for text in inputs for path in _expanded(text, "--inputs")]
    feeds = [part for path in feeds for part in _data_sets(path)]
    cases = [case for text in what for case in _of_argument(text, against)]
    cases = [one for case in cases for one in _on_inputs(case, feeds)]
    cases = [replace(case, seed=seed) for case in cases for seed in _seeds(case, seeds)]
    unique = {case.identity(): case for case in cases}
    return _named(tuple(unique.values()), several_seeds=len(set(seeds)) > 1)


def _seeds(case: Case, seeds: Sequence[int]) -> Sequence[int]:
    """Return the seeds that matter: a case with inputs from a file has one."""
    return seeds[:1] if case.inputs else seeds


def _on_inputs(case: Case, feeds: Sequence[str]) -> Iterator[Case]:
    if case.inputs:
        yield from (replace(case, inputs=part) for part in _data_sets(case.inputs))
    elif feeds:
        yield from (replace(case, inputs=path) for path in feeds)
    else:
        yield case


def _data_sets(path: str) -> list[str]:
    """Return the sets of a folder of ONNX test data, the path itself where it is none."""
    from graphdoc.compare.inputs_files import data_sets

    return [str(found) for found in data_sets(Path(path))] or [path]


# Arguments


def _of_argument(text: str, against: str | None) -> Iterator[Case]:
    if Path(text).is_file() and text.endswith(LIST_SUFFIXES):
        if against:
            raise UsageError(
                "--against and a list do not go together",
                where=f"--against {against}",
                next_step="write both models in the list: MODEL TEST, one pair a line",
            )
        yield from _of_list(Path(text))
        return
    for model, relative in _models(text):
        test = str(Path(against) / relative) if against else None
        yield Case(relative, model, test)


def _models(text: str) -> Iterator[tuple[str, str]]:
    """Yield the models of an argument, each with its name below the folder that was given."""
    for path in _expanded(text, "WHAT"):
        if not Path(path).is_dir():
            yield path, Path(path).name
            continue
        found = sorted(p for p in Path(path).rglob(f"*{MODEL_SUFFIX}") if p.is_file())
        if not found:
            raise UsageError(
                f"no model in '{path}'",
                where=f"looked for *{MODEL_SUFFIX} there and below",
                next_step=f"name a folder that holds {MODEL_SUFFIX} files, or a glob in quotes: '{path}/*'",
            )
        yield from ((str(p), str(p.relative_to(path))) for p in found)


def _expanded(text: str, option: str) -> list[str]:
    """Return the paths that a glob stands for, sorted; a path that exists stands for itself."""
    if not _MAGIC.search(text) or Path(text).exists():
        return [text]
    found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - the pattern may be absolute
    if not found:
        raise UsageError(
            f"no file matches '{text}'", where=option, next_step=f"ls -d {text}   shows what there is"
        )
    return found


# Lists


def _of_list(path: Path) -> Iterator[Case]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _bad_line(path, None, "the file is not UTF-8 text") from error
    found = False
    for number, line in enumerate(lines, 1):
        words = _split(line, path, number)
        if words:
            found = True
            yield _of_line(words, path, number)
    if not found:
        raise _bad_line(path, None, "the list is empty")


def _split(line: str, path: Path, number: int) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise _bad_line(path, number, str(error).lower()) from error


def _of_line(words: list[str], path: Path, number: int) -> Case:
    """Return the case of a line: MODEL, MODEL TEST, MODEL INPUTS or MODEL TEST INPUTS; "-" is none."""
    if len(words) > _WORDS:
        raise _bad_line(path, number, f"a line has at most {_WORDS} names, this one {len(words)}")
    model, *rest = words
    if len(rest) == 1:
        rest = [rest[0], "-"] if rest[0].endswith(MODEL_SUFFIX) else ["-", rest[0]]
    test, inputs = (_beside(path, word) for word in (*rest, "-", "-")[:2])
    return Case(model, str(path.parent / model), test, inputs)


def _beside(path: Path, word: str) -> str | None:
    return None if word == "-" else str(path.parent / word)


def _bad_line(path: Path, number: int | None, cause: str) -> InputError:
    return InputError(
        f"not a list of cases: {cause}",
        where=f"{path}, line {number}" if number else str(path),
        next_step="one case a line: MODEL [TEST] [INPUTS]; quote names with blanks, # starts a remark",
    )


# Names


def _named(cases: tuple[Case, ...], *, several_seeds: bool) -> tuple[Case, ...]:
    names = [_name(case, several_seeds=several_seeds) for case in cases]
    counts = Counter(name.lower() for name in names)  # some file systems do not tell a from A
    return tuple(
        replace(case, name=_unique(name, case) if counts[name.lower()] > 1 or name == "index" else name)
        for case, name in zip(cases, names, strict=True)
    )


def _name(case: Case, *, several_seeds: bool) -> str:
    """Return a name for files that says what is compared: resnet-test_data_set_0, sub-m-seed1."""
    parts = [case.name.removesuffix(MODEL_SUFFIX)]
    if case.test and Path(case.test).name != Path(case.ref).name:
        parts.append(Path(case.test).name.removesuffix(MODEL_SUFFIX))
    if case.inputs:
        parts.append(Path(case.inputs).stem)
    elif several_seeds:
        parts.append(f"seed{case.seed}")
    name = "-".join(_slugs(parts)) or "case"
    return name if len(name) <= _LONGEST_NAME else _unique(name, case)


def _slugs(parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts with what file systems and links do not take replaced; none starts with a dot."""
    for part in parts:
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.")
        if slug:
            yield slug


def _unique(name: str, case: Case) -> str:
    """Return the name with a few digits that stay the same whatever else is in the sweep."""
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(case.identity().encode()).hexdigest()[:8]}"
