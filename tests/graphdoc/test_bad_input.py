"""Bad model files through the command line: named for what they are, exit code 3, nothing left."""

import os
import pathlib
import time

import numpy as np
import pytest
from onnx import helper

from graphdoc import cli
from tests.graphdoc.bad_models import CASES, Bad
from tests.surgeon import build

COMMANDS = {
    "inspect": ("inspect", "{model}", "--json", "{out}/out.json"),
    "lint": ("lint", "{model}", "--json", "{out}/out.json"),
    "compare": ("compare", "{model}", "-o", "{out}/out.html", "--json", "{out}/out.json"),
    "run": ("run", "{model}", "--save", "{out}/out.npz"),
}
SECONDS = 20
"""Far more than any of these takes; what hangs takes longer."""


def call(command: str, model: object, out: pathlib.Path) -> int:
    """Run a command in-process; return its exit code."""
    return cli.run([part.format(model=model, out=out) for part in COMMANDS[command]])


def errors(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what went to stderr; stdout must be empty and there must be no traceback."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_there_are_enough_kinds() -> None:
    """The table holds at least forty kinds, each with its own name."""
    assert len({case.name for case in CASES}) == len(CASES) >= 40


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_file(
    case: Bad, command: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command names the fault, says where and what next, and exits 3."""
    path = tmp_path / "bad.onnx"
    path.write_bytes(case.make())
    out = tmp_path / "out"
    out.mkdir()
    started = time.monotonic()

    code = call(command, path, out)

    lines = errors(capsys).splitlines()
    assert code == 3
    assert case.words in lines[0]
    assert [line[:8] for line in lines[1:]] == ["  where ", "  next  "]
    assert list(out.iterdir()) == []
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "words"),
    [("gone.onnx", "no such file"), (".", "is a folder, not a model"), ("fifo", "not a regular file")],
)
def test_no_file(
    name: str, words: str, command: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, a folder, a pipe that nobody writes to: named, and nothing waits."""
    os.mkfifo(tmp_path / "fifo")
    out = tmp_path / "out"
    out.mkdir()

    assert call(command, tmp_path / name, out) == 3
    assert words in errors(capsys)
    assert list(out.iterdir()) == []


def test_the_nearest_file_is_offered(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped name gets a suggestion; a folder names a model inside it."""
    (tmp_path / "model.onnx").write_bytes(build.relu().SerializeToString())

    assert cli.run(["inspect", str(tmp_path / "modell.onnx")]) == 3
    assert "did you mean" in errors(capsys)
    assert cli.run(["inspect", str(tmp_path)]) == 3
    assert "graphdoc inspect" in errors(capsys)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that may not be read is said to be so."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.relu().SerializeToString())
    path.chmod(0)

    assert cli.run(["inspect", str(path)]) == 3
    assert "permission denied" in errors(capsys)


def test_permission_is_refused_by_the_system(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where the tests run as root and nothing is refused."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.relu().SerializeToString())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    assert cli.run(["inspect", str(path)]) == 3
    assert "cannot read 'm.onnx': permission denied" in errors(capsys)


@pytest.mark.parametrize("location", ["gone.bin", "../w.bin", "/etc/hostname"])
def test_external_data(location: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that is missing or outside: inspect shows the rest, lint finds it, compare and run refuse."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.external(location).SerializeToString())
    words = "no such file" if location == "gone.bin" else "outside the model's folder"

    assert cli.run(["inspect", str(path), "--weights", "--layers", "--ops"]) == 0
    assert words in capsys.readouterr().out
    assert cli.run(["lint", str(path)]) == 1
    assert "external-data" in capsys.readouterr().out
    for command in ("compare", "run"):
        assert call(command, path, tmp_path) == 3
        assert words in errors(capsys)
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "arguments",
    [["inspect"], ["inspect", "m.onnx", "--nonsense"], ["lint"], ["lint", "a", "b"], ["inspekt", "m.onnx"]],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Misuse exits 2 and points to the help."""
    assert cli.run(arguments) == 2
    assert "--help" in errors(capsys)


@pytest.mark.parametrize("command", ["inspect", "lint"])
def test_a_result_that_cannot_be_written(
    command: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing folder for the result is an error with the file's name, not a traceback."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.relu().SerializeToString())

    assert cli.run([command, str(path), "--json", str(tmp_path / "no" / "out.json")]) in (2, 3)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "out.json" in captured.err
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]


def test_a_huge_declared_value_is_no_fault_of_the_file(tmp_path: pathlib.Path) -> None:
    """A ConstantOfShape of 10^12 elements is sound: what it costs is known when it runs."""
    shape = helper.make_tensor("s", 7, [1], [10**12])
    proto = build.model(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])],
        weights=[shape],
        outputs=[build.value("y", [10**12])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())

    assert cli.run(["inspect", str(path), "--layers"]) == 0
    assert cli.run(["lint", str(path)]) == 0


def test_every_cut_of_a_file_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model cut at any byte is refused or, where the cut leaves a sound smaller one, still not a crash."""
    whole = build.add(np.arange(2)).SerializeToString()
    path = tmp_path / "m.onnx"
    codes = []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        codes.append(cli.run(["lint", str(path)]))
        assert "Traceback" not in capsys.readouterr().err

    assert set(codes) <= {0, 1, 3}
    assert codes.count(3) > 0.9 * len(whole)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_never_crash(
    seed: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random damage gives an answer with a known exit code, never a traceback."""
    rng = np.random.default_rng(seed)
    whole = bytearray(build.add().SerializeToString())
    for place in rng.integers(0, len(whole), 3):
        whole[place] = rng.integers(0, 256)
    path = tmp_path / "m.onnx"
    path.write_bytes(bytes(whole))

    for command in ("inspect", "lint"):
        assert cli.run([command, str(path)]) in (0, 1, 3)
        assert "Traceback" not in capsys.readouterr().err
