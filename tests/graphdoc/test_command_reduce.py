"""``graphdoc reduce``: what it writes, what it says, and what it refuses."""

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import parser

from graphdoc.cli import run
from tests.compare import reduce_models

NAN = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {
    a = Tanh (x)
    b = Sub (a, a)
    c = Div (b, b)
    y = Tanh (c) }"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with a right model, a wrong one, and one that makes NaN."""
    monkeypatch.chdir(tmp_path)
    onnx.save(reduce_models.whole(), "right.onnx")
    onnx.save(reduce_models.broken("bias shifted")[0], "wrong.onnx")
    onnx.save(parser.parse_model(NAN), "nan.onnx")
    return tmp_path


def test_the_script_repeats_the_failure_with_onnx_runtime_alone(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails on what was written, and passes once the fault is mended."""
    assert run(["reduce", "wrong.onnx", "-o", "part.onnx", "--compare", "right.onnx"]) == 0
    printed = capsys.readouterr().out

    assert "✓ reduced   1 of 234 nodes fails in the same way" in printed
    assert "Add 'ad4_node'" in printed
    assert {path.name for path in folder.glob("part.*")} == {
        "part.onnx", "part.npz", "part.py", "part.md", "part.expected.npz",
    }  # fmt: skip
    assert "import graphdoc" not in (folder / "part.py").read_text()
    done = subprocess.run([sys.executable, "part.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "ad4: RMS error 0.00568" in done.stdout

    model = onnx.load("part.onnx")
    right = next(t for t in onnx.load("right.onnx").graph.initializer if t.name == "B4")
    next(t for t in model.graph.initializer if t.name == "B4").CopyFrom(right)
    onnx.save(model, "part.onnx")
    assert subprocess.run([sys.executable, "part.py"], capture_output=True, check=False).returncode == 0


def test_the_report_says_what_where_and_how_to_repeat(folder: pathlib.Path) -> None:
    run(["reduce", "wrong.onnx", "-o", "part.onnx", "--compare", "right.onnx", "--seed", "3"])

    text = (folder / "part.md").read_text()

    assert "`Add 'ad4_node'`" in text
    assert "graphdoc reduce wrong.onnx -o part.onnx --compare right.onnx --seed 3" in text
    assert "python part.py" in text
    assert "`mm4`" in text
    assert "onnxruntime" in text


def test_nan(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reduce", "nan.onnx", "-o", "part.onnx", "--nan"]) == 0

    assert "Div 'c'" in capsys.readouterr().out
    assert np.load("part.npz").files == ["b"]
    done = subprocess.run([sys.executable, "part.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "NaN or Inf in: c\n")


def test_a_check_sees_each_part_and_its_inputs(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "check.py").write_text(
        "import os, sys, onnx, numpy\n"
        "model = onnx.load(sys.argv[1])\n"
        "names = {i.name for i in model.graph.input}\n"
        "assert names == set(numpy.load(os.environ['GRAPHDOC_INPUTS']).files)\n"
        "sys.exit(7 if 'Div' in [n.op_type for n in model.graph.node] else 0)\n"
    )

    assert run(["reduce", "nan.onnx", "-o", "part.onnx", "--check", f"{sys.executable} check.py {{}}"]) == 0

    printed = capsys.readouterr().out
    assert "1 of 4 nodes fails" in printed
    assert "the check ends with exit code 7" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["right.onnx", "-o", "p.onnx"], 5, "nothing to reduce"),
        (["right.onnx", "-o", "p.onnx", "--compare", "right.onnx"], 5, "nothing to reduce"),
        (["right.onnx", "-o", "p.onnx", "--nan"], 5, "no value is NaN"),
        (["right.onnx", "-o", "p.onnx", "--crash"], 5, "runs the model"),
        (["nan.onnx", "-o", "p.onnx", "--check", "true"], 5, "the check passes"),
        (["nan.onnx", "-o", "p.onnx", "--check", "no_such_command_here"], 2, "cannot be run"),
        (["nan.onnx", "-o", "p.onnx", "--check", " "], 2, "needs a command"),
        (["nan.onnx", "-o", "p.onnx", "--check", "x", "--nan"], 2, "--nan and --check cannot both"),
        (["nan.onnx", "-o", "p.onnx", "--check", "x", "--timeout", "0"], 2, "range x>0"),
        (["nan.onnx", "-o", "p.onnx", "--check", "x", "--timeout", "nan"], 2, "not a finite number"),
        (["nan.onnx", "-o", "p.txt", "--nan"], 2, "not an .onnx file"),
        (["nan.onnx", "-o", "nan.onnx", "--nan"], 2, "cannot both be"),
        (["nan.onnx", "-o", "no/p.onnx", "--nan"], 3, "there is no folder"),
        (["none.onnx", "-o", "p.onnx", "--nan"], 3, "none.onnx"),
        (["nan.onnx", "-o", "p.onnx", "--nan", "--runner", "abacus"], 2, "no runner is called 'abacus'"),
        (["nan.onnx", "-o", "p.onnx", "--compare", "abacus"], 2, "no runner is called 'abacus'"),
        (["nan.onnx"], 2, "-o"),
    ],
)
def test_refusals(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """A clear line, the right exit code, and nothing written."""
    before = sorted(path.name for path in folder.iterdir())

    assert run(["reduce", *arguments]) == code

    assert message in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_slow_check_is_a_failure_of_its_own(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} -c 'import time; time.sleep(9)'"

    assert run(["reduce", "nan.onnx", "-o", "p.onnx", "--check", command, "--timeout", "0.2"]) == 0

    assert "the check takes more than 0.2 s" in capsys.readouterr().out
