"""``graphdoc compare --rank``: what is printed, written and repeated; what is refused."""

import json
import pathlib

import numpy as np
import onnx
import onnx.parser
import pytest

from graphdoc import cli

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own with two models that differ in two constants, and inputs."""
    monkeypatch.chdir(tmp_path)
    for name, c, t in (("a", 2.0, 1.0), ("b", 2.002, 1.0005)):
        text = f"""{HEADER} g (float[2,4] x) => (float[2,4] y)
            <float c = {{{c}}}, float s = {{3.0}}, float t = {{{t}}}>
            {{ p = Mul(x, c) q = Mul(p, s) r = Add(x, t) y = Add(q, r) }}"""
        onnx.save(onnx.parser.parse_model(text), f"{name}.onnx")
    np.savez("x.npz", x=np.arange(1, 9, dtype=np.float32).reshape(2, 4))
    return tmp_path


def run(*words: str) -> int:
    return cli.run(["compare", *words, "--ref", "engine", "--inputs", "x.npz", "--no-latency"])


def test_prints_and_writes_the_ranking(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fact, the column, the JSON, and the command that repeats it."""
    code = run("a.onnx", "b.onnx", "--rank", "--passes", "64", "--json", "r.json", "-o", "r.html")
    printed = capsys.readouterr().out

    result = json.loads((folder / "r.json").read_text("utf-8"))
    assert code == 1
    assert "64 reverse passes predict" in printed
    assert "effect" in printed
    rows = {layer["value"]: layer for layer in result["layers"]}
    assert rows["p"]["propagated"] > 3 * rows["r"]["propagated"] > 0
    assert rows["p"]["propagated_share"] + rows["r"]["propagated_share"] == pytest.approx(1)
    assert result["ranking"]["trusted"]
    assert result["ranking"]["passes"] == 64
    assert "--rank" in result["command"]
    assert "--passes 64" in result["command"]
    assert ">effect</th>" in (folder / "r.html").read_text("utf-8")


def test_without_it_nothing_of_it_shows(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No column, no fact, null in JSON."""
    run("a.onnx", "b.onnx", "--json", "r.json", "-o", "r.html")

    result = json.loads((folder / "r.json").read_text("utf-8"))
    assert "effect" not in capsys.readouterr().out
    assert result["ranking"] is None
    assert ">effect</th>" not in (folder / "r.html").read_text("utf-8")


def test_a_tolerance_of_ones_own_ranks_all_layers(folder: pathlib.Path) -> None:
    """With taps and a tolerance fewer layers are compared; the prediction rests on all of them."""
    run("a.onnx", "b.onnx", "--rank", "--rtol", "0.1", "--taps", "r", "--json", "r.json")

    result = json.loads((folder / "r.json").read_text("utf-8"))
    assert {layer["value"] for layer in result["layers"]} == {"r", "y"}
    assert result["ranking"]["predicted"] == pytest.approx(result["ranking"]["measured"], rel=0.7)
    assert result["ranking"]["predicted"] > 0


@pytest.mark.parametrize("passes", ["0", "-1", "1000", "x"])
def test_refuses_numbers_of_passes(passes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Passes are whole numbers from 1 to 256."""
    assert run("a.onnx", "b.onnx", "--rank", "--passes", passes) == 2
    assert "--passes" in capsys.readouterr().err
