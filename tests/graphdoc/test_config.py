"""[tool.graphdoc] in pyproject.toml."""

import pathlib

import pytest

from graphdoc.config import Config, load_config
from graphdoc.engine.errors import UsageError


def write(folder: pathlib.Path, text: str) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return folder


def test_all_keys_are_read(tmp_path: pathlib.Path) -> None:
    """Integers do as tolerances."""
    folder = write(
        tmp_path,
        '[tool.graphdoc]\nrunner = "ort"\nseed = 3\nreport = "out"\n'
        '[tool.graphdoc.tolerances]\nfloat16 = 2e-2\n"head/*" = 1\n',
    )

    assert load_config(folder) == Config("ort", 3, "out", {"float16": 2e-2, "head/*": 1.0})


def test_the_nearest_file_with_a_table_counts(tmp_path: pathlib.Path) -> None:
    """A pyproject.toml without the table is passed by."""
    write(tmp_path, "[tool.graphdoc]\nseed = 1\n")
    inner = write(tmp_path / "package", "[project]\nname = 'x'\n")

    assert load_config(inner / "tests").seed == 1


def test_without_a_file_the_defaults_hold(tmp_path: pathlib.Path) -> None:
    """The root of the file system is reached without an error."""
    assert load_config(tmp_path).runner == "engine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.graphdoc]\nruner = "ort"\n', "unknown key 'runer'"),
        ('[tool.graphdoc]\nseed = "3"\n', "'seed' must be of the kind of 0"),
        ("[tool.graphdoc]\nseed = true\n", "'seed' must be"),
        ("[tool.graphdoc]\ntolerances = 1e-3\n", "'tolerances' must be"),
        ('[tool.graphdoc.tolerances]\na = "x"\n', "is not a number of at least 0"),
        ("[tool.graphdoc.tolerances]\na = -1\n", "is not a number of at least 0"),
        ("[tool.graphdoc.tolerances]\na = nan\n", "is not a number of at least 0"),
        ("[tool]\ngraphdoc = 3\n", "must be a table"),
        ("[tool.graphdoc\n", "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path: pathlib.Path, text: str, message: str) -> None:
    """Each is a usage error that quotes what was written."""
    with pytest.raises(UsageError, match=message):
        load_config(write(tmp_path, text))
