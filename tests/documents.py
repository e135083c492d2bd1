"""Runs a Markdown document: what stands in its code blocks, in order, in one folder.

* ```python        is executed; all of them share their variables
* ```python file=F  (any language) is written to the file F
* ```console       lines that begin with "$ " are run; the lines below are the output that must appear.
                   A remark "# exits N" gives the exit code. "…" stands for any text, on a line of its
                   own for any lines.
* other blocks are left alone.

Numbers are compared as numbers of any value, since the last digits differ from machine to machine.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXIT = re.compile(r"\s+# exits (\d)$")
_NUMBER = re.compile(r"[−-]?\d(?:[\d ]*\d)?(?:\.\d+)?(?:e[−-]?\d+)?|\binf\b")

PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")


@dataclass(frozen=True)
class Block:
    """A fenced block: language, file it goes to ("" for none), text."""

    language: str
    file: str
    text: str


@dataclass(frozen=True)
class Step:
    """A command and what it must print."""

    words: tuple[str, ...]
    code: int
    expected: tuple[str, ...]


def blocks(document: pathlib.Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for match in BLOCK.finditer(document.read_text("utf-8")):
        yield Block(match[1], match[2] or "", match[3])


def steps(text: str) -> Iterator[Step]:
    """Yield the commands of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.replace("\\\n", " ").splitlines()
        code = _EXIT.search(lines[0])
        words = tuple(shlex.split(_EXIT.sub("", lines[0])))
        yield Step(words, int(code[1]) if code else 0, tuple(line for line in lines[1:] if line.strip()))


def run_document(
    document: pathlib.Path, graphdoc: Callable[[list[str]], tuple[int, str]], *, outputs: bool = True
) -> int:
    """Run a document in the working directory; return how many commands and Python blocks were run.

    graphdoc: runs the command line, returns exit code and what was printed. outputs: compare what is printed.
    """
    names: dict[str, Any] = {"__name__": "__document__"}
    count = 0
    for block in blocks(document):
        if block.file:
            pathlib.Path(block.file).write_text(block.text, "utf-8")
        elif block.language == "python":
            exec(compile(block.text, str(document.name), "exec"), names)  # noqa: S102
            count += 1
        elif block.language == "console":
            for step in steps(block.text):
                _run(step, graphdoc, outputs=outputs)
                count += 1
    return count


def _run(step: Step, graphdoc: Callable[[list[str]], tuple[int, str]], *, outputs: bool) -> None:
    program, *arguments = step.words
    code, shown = graphdoc(arguments) if program == "graphdoc" else _process(program, arguments)
    assert code == step.code, f"{' '.join(step.words)} exits {code}:\n{shown}"
    if outputs and step.expected:
        wanted, found = [masked(line) for line in step.expected], [masked(x) for x in shown.splitlines()]
        assert fits(wanted, [line for line in found if line]), f"{' '.join(step.words)} prints:\n{shown}"


def _process(program: str, arguments: list[str]) -> tuple[int, str]:
    """Run pytest; any other program is a mistake in the document."""
    assert program == "pytest", f"cannot run {program}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *PYTEST, *arguments], capture_output=True, text=True, env=clean, encoding="utf-8"
    )
    return done.returncode, done.stdout + done.stderr


def masked(line: str) -> str:
    """Return a line with its numbers and the width of its gaps taken out."""
    return " ".join(_NUMBER.sub("N", line).split())


def fits(wanted: list[str], found: list[str]) -> bool:
    """Whether the found lines are the wanted ones, "…" standing for any text or any number of lines."""
    if not wanted:
        return not found
    if wanted[0] == "…":
        return any(fits(wanted[1:], found[start:]) for start in range(len(found) + 1))
    pattern = ".*".join(map(re.escape, wanted[0].split("…")))
    return bool(found) and bool(re.fullmatch(pattern, found[0])) and fits(wanted[1:], found[1:])
