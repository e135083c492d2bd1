"""Commands that write a model refuse "-": it would become a file of that name."""

import pathlib

import numpy as np
import onnx
import pytest

from graphdoc import cli
from tests.surgeon import build

COMMANDS = {
    "simplify": ["simplify", "m.onnx", "-o"],
    "edit": ["edit", "m.onnx", "--rename", "y=z", "-o"],
    "rewrite": ["rewrite", "m.onnx", "--rules", "assemble", "-o"],
    "lint": ["lint", "m.onnx", "--fix", "-o"],
    "prune": ["weights", "prune", "m.onnx", "-o"],
    "strip": ["weights", "strip", "m.onnx", "-o"],
    "restore": ["weights", "restore", "m.onnx", "--weights", "m.onnx", "-o"],
    "dedup": ["weights", "dedup", "m.onnx", "-o"],
    "demo": ["demo", "--model"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_model_goes_to_stdout(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what to write instead, and no file."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build.add(np.ones(2, np.float32)), "m.onnx")

    assert cli.run([*COMMANDS[name], "-"]) == 2
    said = capsys.readouterr()
    assert "a model is written to a file, not to stdout" in said.err
    assert f"{COMMANDS[name][-1]} OUT.onnx" in said.err
    assert not said.out
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_may_be_called_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its folder, as the message says."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build.add(np.ones(2, np.float32)), "m.onnx")

    assert cli.run(["weights", "strip", "m.onnx", "-o", "./-"]) == 0
    assert (tmp_path / "-").is_file()
