"""docs/edit.md: every line of code in its tables is run, every command and Python block too."""

import os
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from graphdoc import surgeon
from graphdoc.commands import edit as edit_command
from graphdoc.surgeon import edit
from tests import documents, sources
from tests.surgeon import build
from tests.surgeon import edit_models as m
from tests.test_documents import graphdoc

PAGE = sources.ROOT / "docs" / "edit.md"
TEXT = PAGE.read_text("utf-8")
LINES = re.findall(r"^\| .* \| `((?:surgeon|model|list|\[).*)` \|$", TEXT, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A working directory with the model that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build.text(m.CHAIN), "m.onnx")
    yield tmp_path
    os.chdir(sources.ROOT)


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_tables_runs(folder: pathlib.Path, line: str) -> None:
    """On a fresh model, which is sound afterwards."""
    names = {"surgeon": surgeon, "np": np, "model": surgeon.load("m.onnx")}
    exec(line, names)  # noqa: S102 - the page is part of the repository

    surgeon.check(names["model"])  # type: ignore[arg-type]


def test_the_tables_are_long() -> None:
    """The pattern above finds the lines."""
    assert len(LINES) > 40


def test_commands_and_blocks_run(folder: pathlib.Path) -> None:
    """With the output that is shown."""
    assert documents.run_document(PAGE, graphdoc) == 3


def test_every_verb_and_option_is_on_the_page() -> None:
    """What is exported and offered is explained."""
    verbs = [name for name in vars(edit) if name.isidentifier() and not name.startswith("_")]

    assert [name for name in verbs if not re.search(rf"\b{name}\b", TEXT)] == []
    assert [row[0] for row in (*edit_command._VERBS, *edit_command._FLAGS) if f"--{row[0]}" not in TEXT] == []
