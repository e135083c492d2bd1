"""``graphdoc build`` and what the other commands do with a plan. ONNX Runtime is the oracle."""

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import graphdoc
from graphdoc import cli
from graphdoc.engine.errors import InputError, UsageError
from graphdoc.planning import build_plan, choices_of
from graphdoc.session import Session
from tests.graphdoc import small_models

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
OPEN = "(float[N, 4] x) => (float[N, 4] y) { s = Softmax (x) y = Mul (s, x) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own with the models ``m.onnx`` and ``open.onnx``, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    small_models.save(tmp_path)
    model("open.onnx", OPEN)
    return tmp_path


def model(name: str, text: str) -> None:
    onnx.save(onnx.parser.parse_model(f"{HEADER} g {text}"), name)


def load(name: str) -> dict[str, Any]:
    with np.load(name) as file:
        return dict(file)


def same_as_onnx_runtime(path: str, inputs: dict[str, Any], found: Any) -> None:
    expected = ort.InferenceSession(path).run(None, inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_a_plan_is_built_shown_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands, and that the plan's output is ONNX Runtime's."""
    assert cli.run(["build", "m.onnx", "-o", "m.plan"]) == 0
    built = capsys.readouterr().out
    assert cli.run(["inspect", "m.plan", "--layers"]) == 0
    shown = capsys.readouterr().out
    assert cli.run(["run", "m.plan", "--save", "o.npz", "--save-inputs", "i.npz"]) == 0
    ran = capsys.readouterr()

    for text in (built, shown):
        assert "in   x  float32 [2, 16]" in text
        assert "out  y  float32 [2, 12]" in text
        assert "fits this machine" in text
    assert "node_matmul_0" in shown
    assert "node_matmul_0" not in built
    assert [line.split()[:2] for line in ran.out.splitlines()] == [["in", "x"], ["out", "y"]]
    assert ran.err == ""
    same_as_onnx_runtime("m.onnx", load("i.npz"), load("o.npz")["y"])


def test_a_build_is_repeatable(folder: pathlib.Path) -> None:
    """The same file each time."""
    for name in ("a.plan", "b.plan"):
        assert cli.run(["build", "m.onnx", "-o", name]) == 0

    assert (folder / "a.plan").read_bytes() == (folder / "b.plan").read_bytes()


def test_profiles_make_a_program_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A run takes the program for its inputs; of a fixed plan no other is served."""
    profile = ["--profile", "N=1:3:8", "--fixed"]
    assert cli.run(["build", "open.onnx", "-o", "m.plan", *profile, "--threads", "1"]) == 0
    capsys.readouterr()
    assert cli.run(["inspect", "m.plan", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    for count in (1, 3, 8):
        arguments = ["--shape", f"x={count}x4", "--save", "o.npz", "--save-inputs", "i.npz"]
        assert cli.run(["run", "m.plan", *arguments]) == 0
        assert load("i.npz")["x"].shape == (count, 4)
        same_as_onnx_runtime("open.onnx", load("i.npz"), load("o.npz")["y"])

    assert [p["inputs"]["x"] for p in data["programs"]] == [["float32", [n, 4]] for n in (1, 3, 8)]
    assert data["threads"] == 1
    assert data["between"] == {}
    assert cli.run(["run", "m.plan", "--shape", "x=2x4"]) == 2
    assert "x=1x4; x=3x4; x=8x4" in capsys.readouterr().err


def test_shapes_between_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    """``inspect`` says which; a run makes a program for one; what lies outside is refused."""
    assert cli.run(["build", "open.onnx", "-o", "m.plan", "--profile", "N=2:8"]) == 0
    assert "serves  x  float32 [2 to 8, 4]" in capsys.readouterr().out
    assert cli.run(["inspect", "m.plan", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["between"] == {"x": ["float32", [[2, 8], [4, 4]]]}
    arguments = ["--shape", "x=5x4", "--save", "o.npz", "--save-inputs", "i.npz"]
    assert cli.run(["run", "m.plan", *arguments]) == 0
    assert load("i.npz")["x"].shape == (5, 4)
    same_as_onnx_runtime("open.onnx", load("i.npz"), load("o.npz")["y"])
    capsys.readouterr()
    for shape in ("x=1x4", "x=9x4", "x=5x3"):
        assert cli.run(["run", "m.plan", "--shape", shape]) == 2
        assert "x=2..8x4" in capsys.readouterr().err
    np.savez("o.npz", x=np.ones((9, 4), np.float32))
    assert cli.run(["run", "m.plan", "--inputs", "o.npz"]) == 3
    assert "x=2..8x4" in capsys.readouterr().err


def test_equal_weights_stay_apart_where_they_can_be_exchanged() -> None:
    """Both biases are ones; exchanging one of them leaves the other."""
    model(
        "two.onnx",
        """(float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
        <float[3] a = {1, 1, 1}, float[3] b = {1, 1, 1}> { y = Add (x, a) z = Add (x, b) }""",
    )
    plan = build_plan("two.onnx", refit=True)
    x = np.zeros((2, 3), np.float32)
    found = plan.refit({"a": np.full(3, 5, np.float32)}).run({"x": x})

    assert set(plan.weights) == {"a", "b"}
    assert found["y"].tolist() == [[5, 5, 5]] * 2
    assert found["z"].tolist() == [[1, 1, 1]] * 2


def test_inputs_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a plan with several programs the one that fits is taken; what fits none is refused."""
    assert cli.run(["build", "open.onnx", "-o", "m.plan", "--profile", "x=2x4:5x4"]) == 0
    x = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    np.savez("x.npz", x=x)
    np.savez("bad.npz", x=x[:1])

    assert cli.run(["run", "m.plan", "--inputs", "x.npz", "--save", "o.npz"]) == 0
    same_as_onnx_runtime("open.onnx", {"x": x}, load("o.npz")["y"])
    assert cli.run(["run", "m.plan", "--inputs", "bad.npz"]) == 3
    assert "1x4" in capsys.readouterr().err


def test_a_session_of_a_plan() -> None:
    """A path is enough; inner values are not kept."""
    assert cli.run(["build", "m.onnx", "-o", "m.plan"]) == 0
    session = Session("m.plan", threads=1)
    x = np.random.default_rng(0).standard_normal((2, 16), np.float32)

    same_as_onnx_runtime("m.onnx", {"x": x}, session.run({"x": x})["y"])
    assert session.taps == []
    with pytest.raises(UsageError, match="keeps no inner values"):
        session.run({"x": x}, taps=["relu_1"])
    with pytest.raises(InputError, match="no program for"):
        session.run({"x": x[:1]})
    assert graphdoc.Session is Session


def test_weights_that_can_be_exchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """Only where it was asked for."""
    assert cli.run(["build", "m.onnx", "-o", "m.plan", "--refit"]) == 0
    assert "1 weights can be exchanged" in capsys.readouterr().out
    assert cli.run(["build", "m.onnx", "-o", "n.plan"]) == 0
    assert "exchanged" not in capsys.readouterr().out


def test_a_portable_plan_has_no_code(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs all the same, and is smaller."""
    assert cli.run(["build", "m.onnx", "-o", "m.plan", "--portable"]) == 0
    assert "no machine code" in capsys.readouterr().out
    assert cli.run(["build", "m.onnx", "-o", "n.plan"]) == 0
    assert cli.run(["run", "m.plan", "--save", "o.npz", "--save-inputs", "i.npz"]) == 0
    same_as_onnx_runtime("m.onnx", load("i.npz"), load("o.npz")["y"])
    assert (folder / "m.plan").stat().st_size < (folder / "n.plan").stat().st_size


def test_a_timing_cache_settles_the_build(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is made, then read: the second build measures nothing and is the same to the byte."""
    for name in ("a.plan", "b.plan"):
        assert cli.run(["build", "m.onnx", "-o", name, "--timing-cache", "t.json"]) == 0
    times = json.loads((folder / "t.json").read_text("utf-8"))

    assert times["schema"] == "graphdoc-timings/1"
    assert any(machine for machine in times["machines"].values())
    assert (folder / "a.plan").read_bytes() == (folder / "b.plan").read_bytes()
    (folder / "t.json").write_text("{}", "utf-8")
    capsys.readouterr()
    assert cli.run(["build", "m.onnx", "-o", "c.plan", "--timing-cache", "t.json"]) == 3
    assert "no timing cache" in capsys.readouterr().err
    assert not (folder / "c.plan").exists()


def test_steps_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """``inspect --plan`` says which steps stand for which nodes, and what runs on level 0 and why."""
    assert cli.run(["inspect", "m.onnx", "--plan"]) == 0
    assert "node_matmul_0, node_relu_1" in capsys.readouterr().out
    model("odd.onnx", "(float[2, 3] x) => (float[2, 3] y) { r = RandomNormalLike (x) y = Add (x, r) }")
    assert cli.run(["inspect", "odd.onnx", "--plan"]) == 0
    assert "level 0  RandomNormalLike" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["odd.onnx", "-o", "o.plan"], 3, "RandomNormalLike"),
        (["text.onnx", "-o", "o.plan"], 3, "input 's' is none"),
        (["m.onnx", "-o", "-"], 2, "not to stdout"),
        (["m.onnx", "-o", "m.onnx"], 2, "cannot both be"),
        (["m.onnx"], 2, "-o"),
        (["m.onnx", "-o", "nowhere/o.plan"], 3, "no folder"),
        (["open.onnx", "-o", "o.plan", "--profile", "x"], 2, "not a profile"),
        (["open.onnx", "-o", "o.plan", "--profile", "x=1x4:"], 2, "not a profile"),
        (["open.onnx", "-o", "o.plan", "--profile", "N=1:2", "--profile", "x=1x4"], 2, "different numbers"),
        (["open.onnx", "-o", "o.plan", "--shape", "z=1"], 2, "z"),
    ],
)
def test_refusals(
    folder: pathlib.Path, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, and what is wrong is named."""
    model("odd.onnx", "(float[2, 3] x) => (float[2, 3] y) { r = RandomNormalLike (x) y = Add (x, r) }")
    model("text.onnx", "(string[2] s) => (string[2] y) { y = Identity (s) }")

    assert cli.run(["build", *arguments]) == code
    assert says in capsys.readouterr().err
    assert not (folder / "o.plan").exists()


def test_what_a_plan_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Another runner, inner values, a damaged file."""
    assert cli.run(["build", "m.onnx", "-o", "m.plan"]) == 0
    assert cli.run(["run", "m.plan", "--runner", "ort"]) == 2
    assert cli.run(["run", "m.plan", "--taps", "all"]) == 2
    with pathlib.Path("m.plan").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xfe")
    capsys.readouterr()
    for command in ("run", "inspect"):
        assert cli.run([command, "m.plan"]) == 3
        assert "damaged" in capsys.readouterr().err


def test_choices_go_together() -> None:
    """The n-th of each profile, with the shapes that hold for all."""
    assert choices_of(("k=1",), ("x=1x2:3x4", "n=5:6")) == [("k=1", "x=1x2", "n=5"), ("k=1", "x=3x4", "n=6")]
    assert choices_of(("k=1",), ()) == [("k=1",)]
