"""``graphdoc bench``: what it prints and writes, and what it refuses."""

import json
import pathlib

import numpy as np
import pytest

from graphdoc.cli import run
from graphdoc.compare import latency
from graphdoc.engine.errors import RunnerError
from tests.graphdoc import small_models

FAST = ["--duration", "0.2", "--warmup", "0.05"]


@pytest.fixture
def model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a small model, in an empty folder."""
    import onnx

    monkeypatch.chdir(tmp_path)
    onnx.save(small_models.detector(), "m.onnx")
    return "m.onnx"


def test_two_runners_side_by_side(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer first, then a row per runner; the page and the JSON hold the same figures."""
    targets = ["--json", "b.json", "-o", "b.html"]
    assert run(["bench", model, "--runner", "ort", "--runner", "engine", *FAST, *targets]) == 0
    printed = capsys.readouterr().out

    first = printed.splitlines()[0]
    assert "× the time of ort (95 % interval" in first
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("  ")][:3] == [
        "runner",
        "ort",
        "engine",
    ]
    document = json.loads(pathlib.Path("b.json").read_text(encoding="utf-8"))
    assert document["schema"] == "graphdoc.bench/1"
    assert [r["name"] for r in document["runners"]] == ["ort", "engine"]
    assert all(r["p5"] <= r["median"] <= r["p99"] for r in document["runners"])
    page = pathlib.Path("b.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "ort" in page
    assert "http" not in page.replace("http-equiv", "")


def test_one_runner_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The median is the answer."""
    assert run(["bench", model, "--runner", "ort", *FAST]) == 0
    assert " a run   ort; p5 to p90 " in capsys.readouterr().out


def test_json_on_stdout_is_all_there_is(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read it."""
    assert run(["bench", model, "--runner", "engine", *FAST, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ratios"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bench", "none.onnx"], 3, "none.onnx"),
        (["bench", "m.onnx", "--runner", "nope"], 2, "no runner is called 'nope'"),
        (["bench", "m.onnx", "--runner", "ort", "--runner", "ort"], 2, "named twice"),
        (["bench", "m.onnx", "--duration", "0"], 2, "--duration"),
        (["bench", "m.onnx", "--duration", "nan"], 2, "not a finite number"),
        (["bench", "m.onnx", "--warmup", "inf"], 2, "--warmup"),
        (["bench", "m.onnx", "-o", "m.onnx"], 2, "m.onnx"),
    ],
)
def test_refusals(
    model: str, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named; nothing is measured."""
    del model
    assert run(arguments) == code
    assert said in capsys.readouterr().err


def test_a_runner_that_fails_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's own error is no traceback."""
    del model
    import onnx
    from onnx import parser

    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2] x, int64[1] at) => (float[1] y) {
        y = Gather(x, at) }"""
    onnx.save(parser.parse_model(text), "out.onnx")
    np.savez("far.npz", x=np.zeros(2, np.float32), at=np.array([7]))
    assert run(["bench", "out.onnx", "--inputs", "far.npz", "--runner", "ort", *FAST]) == 4
    assert capsys.readouterr().err.startswith("✗ ONNX Runtime failed while it ran the model: running Gather")


def test_a_stream_that_fails_ends_the_run() -> None:
    """Its error is raised, not printed while the others go on as if it had not been there."""

    times = iter(range(4))

    def run() -> None:
        if next(times, None) is None:
            raise RunnerError("no more")

    with pytest.raises(RunnerError, match="no more"):
        latency.streamed([run, run], 0.1)


def test_outputs_that_numpy_lacks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """bfloat16 goes through ONNX Runtime's own values."""
    del model
    import onnx
    from onnx import parser

    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (bfloat16[2] y) {
        y = Cast <to = 16> (x) }"""
    onnx.save(parser.parse_model(text), "cast.onnx")
    assert run(["bench", "cast.onnx", "--runner", "ort", *FAST]) == 0
    assert "a run   ort" in capsys.readouterr().out
