"""``graphdoc run``: outputs, inner values, files, and what is refused. ONNX Runtime is the oracle."""

import pathlib
import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from graphdoc import cli
from graphdoc.compare import memory
from graphdoc.values import save_npz
from tests.graphdoc import small_models

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own with the model ``m.onnx``."""
    monkeypatch.chdir(tmp_path)
    small_models.save(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    return cli.run(["run", *arguments])


def model(name: str, text: str) -> None:
    onnx.save(onnx.parser.parse_model(f"{HEADER} g {text}"), name)


def load(name: str) -> dict[str, Any]:
    with np.load(name) as file:
        return dict(file)


def names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("runner", ["ort", "engine", "reference", "truth"])
def test_outputs_are_those_of_onnx_runtime(runner: str) -> None:
    """Whatever the runner, the saved output is ONNX Runtime's for the saved input, but for rounding."""
    assert run("m.onnx", "--runner", runner, "--save", "o.npz", "--save-inputs", "i.npz") == 0

    expected = ort.InferenceSession("m.onnx").run(None, load("i.npz"))[0]
    np.testing.assert_allclose(load("o.npz")["y"], expected, rtol=1e-5)


def test_inner_values(capsys: pytest.CaptureFixture[str]) -> None:
    """``--taps`` takes globs, with brackets too, and shows and saves what they match."""
    assert run("m.onnx", "--taps", "[mr]*_[0-2]", "--save", "o.npz") == 0

    assert set(load("o.npz")) == {"y", "matmul_0", "relu_1", "mul_2"}
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        *("x", "y", "matmul_0", "relu_1", "mul_2")
    ]


def test_saved_inputs_give_the_same_outputs() -> None:
    """A run on saved inputs repeats the run that saved them, to the byte."""
    run("m.onnx", "--seed", "3", "--save", "first.npz", "--save-inputs", "i.npz")
    run("m.onnx", "--inputs", "i.npz", "--save", "second.npz")

    assert pathlib.Path("first.npz").read_bytes() == pathlib.Path("second.npz").read_bytes()


def test_names_that_numpy_keeps_for_itself() -> None:
    """Values may be called ``file`` or ``allow_pickle``, like parameters of numpy.savez."""
    model("f.onnx", "(float[4] file) => (float[4] allow_pickle) { allow_pickle = Relu(file) }")

    assert run("f.onnx", "--save", "o.npz", "--save-inputs", "i.npz") == 0
    assert run("f.onnx", "--inputs", "i.npz") == 0
    assert set(load("o.npz")) == {"allow_pickle"}


def test_values_that_are_no_arrays() -> None:
    """Sequences, maps and strings are stored element by element; what is absent is left out."""
    values = {
        "list": [np.arange(2), np.arange(3)],
        "maps": [{"a": 1.5}],
        "text": np.array(["é", "b"], object),
        "none": None,
    }
    save_npz("v.npz", values)
    found = load("v.npz")

    assert set(found) == {"list[0]", "list[1]", "maps[0][a]", "text"}
    assert found["text"].tolist() == ["é", "b"]


def test_content_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in the elements of a string tensor are shown, not obeyed."""
    text = '(float[1] x) => (string[1] y) { y = Constant <value = string[1] {"a"}> () }'
    onnx.save(onnx.parser.parse_model(f"{HEADER} g {text}"), "s.onnx")
    proto = onnx.load("s.onnx")
    proto.graph.node[0].attribute[0].t.string_data[0] = b"\x1b[31m\n"
    onnx.save(proto, "s.onnx")

    assert run("s.onnx") == 0
    text = capsys.readouterr().out

    assert "⟨U+001B⟩[31m⟨U+000A⟩" in text
    assert text.count("\n") == 2


def test_a_terminal_shortens_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of 10 000 characters takes 40 columns of a terminal, and all of them in a pipe."""
    name = "n" * 10_000
    model("long.onnx", f"(float[4] {name}) => (float[4] y) {{ y = Relu({name}) }}")
    run("long.onnx")
    piped = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run("long.onnx")

    assert name in piped
    assert max(map(len, capsys.readouterr().out.splitlines())) < 120


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["m.onnx", "--save", "o.txt"], 2, "not an .npz file: 'o.txt'"),
        (["m.onnx", "--save", ""], 2, "--save needs the name of a file"),
        (["m.onnx", "--save", "o.npz", "--save-inputs", "./o.npz"], 2, "cannot both be './o.npz'"),
        (["m.onnx", "--save", "none/o.npz"], 3, "there is no folder 'none'"),
        (["m.onnx", "--taps", "none*"], 2, "--taps matches none of 4 values"),
        (["m.onnx", "--seed", "-1"], 2, "-1 is not in the range"),
        (["m.onnx", "--runner", "nonsense"], 2, "no runner is called 'nonsense'"),
        (["m.onnx", "--runner", "engine:cuda"], 4, "CUDA device is not available: CuPy is not installed"),
        (["none.onnx"], 3, "no such file: 'none.onnx'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(
    arguments: list[str], code: int, words: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake has its code, words and next step, and leaves no file."""
    before = names(folder)

    assert run(*arguments) == code
    shown = capsys.readouterr()

    assert words in shown.err.splitlines()[0]
    assert shown.err.splitlines()[-1].startswith("  next   ")
    assert shown.out == ""
    assert names(folder) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this limit")
@pytest.mark.parametrize("runner", ["engine", "ort", "reference"])
def test_a_tensor_that_does_not_fit(
    runner: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor larger than the memory is an error of the runner, and not the end of the process."""
    monkeypatch.setattr(memory, "memory_available", lambda: 1 << 30)
    model(
        "big.onnx",
        "(float[1] x) => (float y) { n = Constant <value = int64[1] {1000000000}> () \n"
        "e = Expand(x, n) \n r = Exp(e) \n y = ReduceMax <keepdims = 0> (r) }",
    )

    assert run("big.onnx", "--runner", runner) == 4
    assert "llocate" in capsys.readouterr().err


def test_the_limit_ends_with_the_command() -> None:
    """What a command may take does not bind the process that called it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)

    assert run("m.onnx") == 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
