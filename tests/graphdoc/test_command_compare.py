"""``graphdoc compare``: what is printed, written and returned; what is refused.

The figures are tested in tests/compare; here models are small and the answer is known from their making.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphdoc import cli
from tests.graphdoc import small_models

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

AGREES = """\
✓ agrees   4 of 4 layers agree within float32 rounding

  output    y    error 0, limit 0
  compared  A ort 0  against  B ort 0, 1 input, seed 0
"""

DIFFERS = """\
✗ differs   from #2 of 4 on; B is wrong, by this layer's own error

  where   #2 Mul  node_mul_2
"""

NAN = """\
∅ differs   the first NaN is born at #2 Mul in B (24 of 24 elements); A has none
            there

  where   #2 Mul  node_mul_2
"""

KEYS = {
    *("schema", "agrees", "compared", "differ", "first_divergence", "layers", "runners", "inputs"),
    "environment",
}
LAYER_KEYS = {
    *("value", "node", "op", "index", "dtype", "shape", "agrees", "tolerance", "max_abs", "max_rel", "rms"),
    *("cosine", "ulp", "own_error", "inherited_error"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own with a model ``a.onnx`` and three that differ from it."""
    monkeypatch.chdir(tmp_path)
    for name, scale in (("a", 1.0), ("same", 1.0), ("b", 1.01), ("nan", np.nan)):
        small_models.save(tmp_path, f"{name}.onnx", scale=scale)
    return tmp_path


def model(name: str, text: str) -> None:
    onnx.save(onnx.parser.parse_model(f"{HEADER} g {text}"), name)


def compare(*arguments: str) -> int:
    return cli.run(["compare", *arguments])


def names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def scrub(text: str) -> str:
    """Replace versions and errors, which vary with the machine, by 0."""
    text = re.sub(r"(ort|engine) [\d.]+", r"\1 0", text)
    return re.sub(r"(error|limit) [\d.e-]+", r"\1 0", text)


def strict(text: str) -> Any:
    """Parse strict JSON: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def failure(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of an error; nothing may be on stdout."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err.splitlines()


# What is printed


@pytest.mark.parametrize(
    ("other", "code", "start"),
    [("same.onnx", 0, AGREES), ("b.onnx", 1, DIFFERS), ("nan.onnx", 1, NAN)],
    ids=["agrees", "differs", "nan"],
)
def test_a_terminal_of_80_columns(
    other: str,
    code: int,
    start: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verdict is the first line, all is on a screen of 24 lines, no line is longer than 80."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert compare("a.onnx", other, "--test", "ort") == code
    text = capsys.readouterr().out

    assert scrub(text).startswith(start)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals_that_want_it(
    environment: dict[str, str],
    colored: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Colour on a terminal, unless NO_COLOR or TERM=dumb say otherwise."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    compare("a.onnx", "same.onnx", "--test", "ort", "-q")

    assert ("\x1b[" in capsys.readouterr().out) is colored


def test_quiet_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """``-q``: the verdict alone."""
    assert compare("a.onnx", "b.onnx", "--test", "ort", "-q") == 1

    assert capsys.readouterr().out.count("\n") == 1


def test_names_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Newlines, escape sequences and bidi characters of a name are shown, not obeyed."""
    evil = "a\nb\x1b[31m\u202e"
    graph = small_models.chain()
    for node in graph.graph.node:
        node.name = evil + node.name
    onnx.save(graph, "evil.onnx")

    assert compare("evil.onnx", "--test", "ort", "-v") == 0
    text = capsys.readouterr().out

    assert "a⟨U+000A⟩b⟨U+001B⟩[31m⟨U+202E⟩node_mul_2" in text
    assert not {"\x1b", "\u202e"} & set(text)


# What is written


def test_json_on_stdout_is_strict_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json -``: stdout parses, and holds every field that is promised, NaN or not."""
    assert compare("a.onnx", "nan.onnx", "--test", "ort", "--json", "-") == 1
    found = strict(capsys.readouterr().out)

    assert set(found) >= KEYS
    assert all(set(layer) >= LAYER_KEYS for layer in found["layers"])
    assert found["first_divergence"] == {"value": "mul_2", "node": "node_mul_2", "op": "Mul", "index": 2}
    assert (found["agrees"], found["compared"], len(found["layers"])) == (False, 4, 4)


def test_all_forms_at_once(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files and stdout do not get in each other's way, and nothing else is left in the folder."""
    before = names(folder)
    forms = ["-o", "r.html", "--json", "r.json", "--markdown", "-", "--junit", "r.xml"]

    assert compare("a.onnx", "b.onnx", "--test", "ort", *forms) == 1

    assert capsys.readouterr().out.startswith("<!-- graphdoc:compare -->\n### ✗ graphdoc")
    assert names(folder) - before == {"r.html", "r.json", "r.xml"}
    assert strict(pathlib.Path("r.json").read_text("utf-8"))["differ"] == 2
    assert ET.parse("r.xml").getroot().get("failures") != "0"  # noqa: S314 - our own file
    assert "</html>" in pathlib.Path("r.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("option", "start"),
    [
        ("-o", "<!doctype html>"),
        ("--json", "{"),
        ("--markdown", "<!-- graphdoc:compare -->\n### "),
        ("--junit", "<?xml"),
    ],
)
def test_every_form_goes_to_stdout(option: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``-`` is stdout for all forms, and no file of that name appears."""
    assert compare("a.onnx", "same.onnx", "--test", "ort", option, "-") == 0

    assert capsys.readouterr().out.lower().startswith(start)
    assert not pathlib.Path("-").exists()


def test_two_runs_write_the_same_bytes() -> None:
    """Times aside, JSON and page follow from the models, the options and the seed."""
    for name in ("1", "2"):
        arguments = ["a.onnx", "b.onnx", "--test", "ort", "--seed", "5"]
        assert compare(*arguments, "--json", f"{name}.json") == 1
    first, second = (timeless(strict(pathlib.Path(f"{n}.json").read_text("utf-8"))) for n in "12")

    assert first == second
    assert first["seed"] == 5


def timeless(value: Any) -> Any:
    """Return JSON data without the times."""
    if isinstance(value, dict):
        times = ("latency", "time_a", "time_b")
        return {key: timeless(item) for key, item in value.items() if key not in times}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def test_a_link_stays_a_link(folder: pathlib.Path) -> None:
    """Writing to a link writes the file behind it, and keeps its permissions."""
    pathlib.Path("real.json").write_text("old", "utf-8")
    pathlib.Path("real.json").chmod(0o640)
    pathlib.Path("link.json").symlink_to("real.json")

    assert compare("a.onnx", "same.onnx", "--test", "ort", "--json", "link.json") == 0

    assert pathlib.Path("link.json").is_symlink()
    assert strict(pathlib.Path("real.json").read_text("utf-8"))["agrees"]
    assert pathlib.Path("real.json").stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_and_not_replaced() -> None:
    """What is no file (a pipe, a device such as /dev/null) is written as it is."""
    os.mkfifo("pipe")
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True)

    assert compare("a.onnx", "same.onnx", "--test", "ort", "--json", "pipe") == 0

    assert strict(reader.communicate(timeout=10)[0])["agrees"]
    assert pathlib.Path("pipe").is_fifo()


# What is refused


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["a.onnx", "--rtol", "nan"], 2, "nan is not a finite number"),
        (["a.onnx", "--atol", "inf"], 2, "inf is not a finite number"),
        (["a.onnx", "--rtol", "-1"], 2, "-1.0 is not in the range"),
        (["a.onnx", "--seed", "-1"], 2, "-1 is not in the range"),
        (["a.onnx", "--threads", "10000"], 2, "10000 is not in the range"),
        (["a.onnx", "--memory", "lots"], 2, "not a size: 'lots'"),
        (["a.onnx", "--memory", "1"], 2, "too little memory to work with: '1'"),
        (["a.onnx", "--shape", "x=-1x16"], 2, "not a shape: 'x=-1x16'"),
        (["a.onnx", "--shape", "q=2x16"], 2, "no input or dimension 'q'"),
        (["a.onnx", "--test", "nonsense"], 2, "no runner is called 'nonsense'"),
        (["a.onnx", "--test", "engine:cuda"], 4, "CUDA device is not available: CuPy is not installed"),
        (["a.onnx", "-o", ""], 2, "-o needs the name of a file"),
        (["a.onnx", "-o", "a.onnx"], 2, "-o and the input a.onnx cannot both be 'a.onnx'"),
        (["a.onnx", "--json", "r", "-o", "./r"], 2, "--json and -o cannot both be 'r'"),
        (["a.onnx", "--json", "-", "--junit", "-"], 2, "--junit and --json cannot both be stdout"),
        (["a.onnx", "-o", "none/r.html"], 3, "there is no folder 'none'"),
        (["a.onnx", "-o", "."], 3, "it is a folder"),
        (["a.onnx", "-o", "a.onnx/r.html"], 3, "'a.onnx' is not a folder"),
        (["none.onnx"], 3, "no such file: 'none.onnx'"),
        (["a.onnx", "none.onnx"], 3, "no such file: 'none.onnx'"),
        (["a.onnx", "--inputs", "none.npz"], 3, "no such file: none.npz"),
        (["a.onnx", "--taps", "["], 5, "no tapped value exists on both sides"),
        (["a.onnx", "--taps", "none*"], 5, "no tapped value exists on both sides"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_refusals(
    arguments: list[str], code: int, words: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake has its code and words and a next step, and leaves no file."""
    before = names(folder)

    assert compare(*arguments) == code
    lines = failure(capsys)

    assert lines[0].startswith("✗ ")
    assert words in lines[0]
    assert lines[-1].startswith("  next   ")
    assert names(folder) == before


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ({}, "no value for input 'x'"),
        ({"x": np.zeros((3, 16), np.float32)}, "has shape [2, 16], the feed [3, 16]"),
        ({"x": np.zeros((2, 16), np.int64)}, "x"),
        ({"x": np.zeros((2, 16), np.float32), "q": np.zeros(1)}, "'q', which is no input of the model"),
    ],
    ids=["missing", "shape", "dtype", "extra"],
)
def test_inputs_that_do_not_fit(
    array: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that does not fit the model is exit code 3, and the message names the input."""
    np.savez("x.npz", **array)

    assert compare("a.onnx", "--inputs", "x.npz") == 3
    assert words in "\n".join(failure(capsys))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_both_agrees(value: float) -> None:
    """NaN and Inf in the inputs are no difference as long as both sides have them in the same places."""
    x = np.ones((2, 16), np.float32)
    x[0, 3] = value
    np.savez("x.npz", x=x)

    assert compare("a.onnx", "--inputs", "x.npz") == 0


# Two models


TWINS = {
    "float": "(float[4] x) => (float[4] y) { a = Relu(x) \n y = Exp(a) }",
    "half": "(float16[4] x) => (float16[4] y) { a = Relu(x) \n y = Exp(a) }",
    "double": "(double[4] x) => (double[4] y) { a = Relu(x) \n y = Exp(a) }",
    "renamed": "(float[4] q) => (float[4] y) { a = Relu(q) \n y = Exp(a) }",
    "longer": "(float[5] x) => (float[5] y) { a = Relu(x) \n y = Exp(a) }",
    "whole": "(int32[4] x) => (int32[4] y) { a = Relu(x) \n y = Abs(a) }",
    "two": "(float[4] x, float[4] z) => (float[4] y) { a = Relu(x) \n y = Add(a, z) }",
    "strange": "(float[4] x) => (float[4] yy) { aa = Relu(x) \n yy = Exp(aa) }",
}


@pytest.mark.parametrize(
    ("other", "runner", "code", "words"),
    [
        ("half", "engine", 0, "float32/float16"),
        ("half", "ort", 0, "float32/float16"),
        ("double", "engine", 0, "float32/float64"),
        ("double", "ort", 0, "float32/float64"),
        ("renamed", "ort", 0, "2 of 2 layers"),
        ("longer", "engine", 3, "A and B take different inputs"),
        ("longer", "ort", 3, "A and B take different inputs"),
        ("whole", "engine", 3, "A and B take different inputs"),
        ("two", "engine", 3, "B has an input 'z' that A lacks"),
        ("strange", "engine", 0, "2 of 2 values of A were paired with B's by structure"),
    ],
)
def test_models_that_are_not_alike(
    other: str, runner: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """B gets A's inputs in its own dtypes and names; what it cannot take is said before anything runs."""
    for name in ("float", other):
        model(f"{name}.onnx", TWINS[name])

    assert compare("float.onnx", f"{other}.onnx", "--test", runner) == code
    shown = capsys.readouterr()

    assert words in shown.out + shown.err


def test_subgraphs_that_one_runner_keeps_closed() -> None:
    """The engine computes what is inside an If when the other runner does not tell it."""
    model(
        "if.onnx",
        """(float[2] x) => (float[2] y) { c = ReduceMax <keepdims = 0> (x) \n b = Cast <to = 9> (c)
        y = If (b) <then_branch = t () => (float[2] r) { p = Exp(x) \n r = Neg(p) },
        else_branch = e () => (float[2] s) { q = Neg(x) \n s = Exp(q) }> }""",
    )

    assert compare("if.onnx", "--ref", "reference") == 0


# The process


def graphdoc(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "graphdoc", *arguments], capture_output=True, text=True, timeout=60, **options
    )


def test_without_onnxruntime(folder: pathlib.Path) -> None:
    """A missing ONNX Runtime is named with the option that asked for it; exit code 4."""
    shim = folder / "shim" / "onnxruntime"
    shim.mkdir(parents=True)
    (shim / "__init__.py").write_text('raise OSError("libort.so: cannot open")', "utf-8")
    path = {**os.environ, "PYTHONPATH": str(shim.parent)}

    done = graphdoc("compare", "a.onnx", "--ref", "engine", "--test", "ort", env=path)

    assert done.returncode == 4
    assert done.stderr.splitlines()[1] == "  where  --test ort"
    assert "libort.so" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")  # noqa: PTH110
def test_a_full_disk() -> None:
    """A full disk is exit code 3 and a message, on stdout as well as in a file."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "graphdoc", "compare", "a.onnx", "-q"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 3
    assert "where  stdout" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_stops_onnx_runtime() -> None:
    """A loop that never ends in ONNX Runtime's own code ends on Ctrl-C: exit code 130, no file left."""
    endless = onnx.parser.parse_model(f"""{HEADER} g (float[4] x, int64 n, bool c) => (float[4] y) {{
        y = Loop (n, c, x) <body = b (int64 i, bool ci, float[4] v) => (bool co, float[4] w)
        {{ co = Identity(ci) \n w = Neg(v) }}> }}""")
    onnx.save(endless, "endless.onnx")
    np.savez("x.npz", x=np.ones(4, np.float32), n=np.int64(10**12), c=np.bool_(True))
    command = ["run", "endless.onnx", "--inputs", "x.npz", "--runner", "ort", "--save", "o.npz"]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphdoc", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert err.strip() == "✗ stopped"
    assert out == ""
    assert not list(pathlib.Path().glob("*o.npz*"))
