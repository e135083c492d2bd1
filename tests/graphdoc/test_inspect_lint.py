"""``graphdoc inspect`` and ``graphdoc lint``: what they print, in terminals and pipes, and their JSON."""

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc import cli
from graphdoc.reports.inspect_text import inspect_json, inspect_lines, shape_words
from graphdoc.reports.lint_text import lint_json, lint_lines
from graphdoc.reports.words import cells
from graphdoc.surgeon.inspect import ValueSummary, inspect_model
from graphdoc.surgeon.lint import lint_model
from tests import sources
from tests.surgeon import build
from tests.surgeon.lint_models import FAULTY, node

PIPE = {"color": False, "pipe": True}
TERMINAL = {"color": False, "pipe": False, "width": 80}


def detector() -> onnx.ModelProto:
    """Return a model with long names, a weight beyond fp16, many kinds of operators."""
    ops = ["Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Floor", "Ceil"]
    chain = [node(op, f"v{n}", f"v{n + 1}", name=f"/backbone/stage/{op}") for n, op in enumerate(ops)]
    first = node("Mul", "input w", "v0", name="/backbone/scale")
    last = node("Identity", f"v{len(ops)}", "a.very.long.output.name/that/goes/on/and/on/for/ever/and/ever")
    shape = ("batch", 3, "height_of_the_image", "width_of_the_image")
    return build.model(
        [first, *chain, last],
        inputs=[build.value("input", shape)],
        outputs=[build.value(last.output[0], shape)],
        weights=[build.weight("w", np.float32(9.8e7).reshape(1))],
    )


def test_inspect_as_drawn() -> None:
    """The overview: size, versions and counts, then inputs, outputs, operators, and the remark."""
    summary = inspect_model(detector())
    lines = inspect_lines(summary, **TERMINAL).splitlines()

    assert lines == [
        "g   723 B, IR 10, ai.onnx 18, 10 layers + 1 constant",
        "",
        "  in   input                             float32  batch × 3 × … × …",
        "  out  a.very.lon…/on/for/ever/and/ever  float32  batch × 3 × … × …",
        "  ops  Abs 1, Ceil 1, Exp 1, Floor 1, Identity 1, Mul 1, 4 more kinds",
        "",
        "▲ remark: w reaches 9.8e7; fp16 ends at 65 504",
    ]


def test_a_pipe_shortens_nothing() -> None:
    """In a pipe every name and symbol is whole, one row a line."""
    text = inspect_lines(inspect_model(detector(), layers=True), **PIPE)

    assert "a.very.long.output.name/that/goes/on/and/on/for/ever/and/ever" in text
    assert "batch × 3 × height_of_the_image × width_of_the_image" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [60, 80, 119])
def test_a_narrow_terminal_is_not_overrun(width: int) -> None:
    """The overview stays within the terminal: names and symbols are cut, sentences wrap."""
    text = inspect_lines(inspect_model(detector()), color=False, pipe=False, width=width)

    assert max(cells(line) for line in text.splitlines()) <= width


def test_layers_show_numbers_types_and_depth() -> None:
    """One row per value, numbered as in a comparison; what lies in a branch is indented."""
    body = helper.make_graph([node("Abs", "x", "p")], "b", [], [build.value("p")])
    proto = build.model(
        [node("If", "c", "y", then_branch=body, else_branch=body)],
        inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)],
    )
    rows = inspect_lines(inspect_model(proto, layers=True), **PIPE).split("\n\n")[2].splitlines()

    assert [row.split() for row in rows] == [
        ["#", "op", "layer", "value", "dtype", "shape"],
        ["0", "Abs", "p", "y.else_branch/p", "float32", "2"],
        ["1", "Abs", "p", "y.then_branch/p", "float32", "2"],
        ["2", "If", "y", "y", "float32", "2"],
    ]
    assert rows[1].startswith("  0    Abs")


def test_weights_and_operators() -> None:
    """The tables of weights and operators, with what fp16 loses and who serves what."""
    summary = inspect_model(build.add([0, 7e4]), weights=True, operators=True)
    blocks = inspect_lines(summary, **PIPE).split("\n\n")

    assert blocks[2].splitlines()[1].split() == ["Add", "1", "14", "ops", "table", "kernel", "CuPy"]
    assert blocks[3].splitlines()[1].split()[:4] == ["w", "float32", "2", "8"]
    assert blocks[3].splitlines()[1].endswith("50 %  1 of 2 exceed fp16 (65504)")


def test_foreign_names_cannot_break_a_row() -> None:
    """Control and bidi characters are shown, not sent to the terminal."""
    name = "a\x1b[31m\n\u202eb"
    proto = build.model(
        [helper.make_node("Abs", ["x"], [name], name=name), helper.make_node("Relu", [name], ["y"])]
    )
    for text in (
        inspect_lines(inspect_model(proto, layers=True), **PIPE),
        lint_lines(lint_model(proto), **PIPE),
        lint_lines(lint_model(proto), color=True, pipe=False, width=80),
    ):
        assert "⟨U+001B⟩[31m⟨U+000A⟩⟨U+202E⟩b" in text
        assert "\x1b[31m\n" not in text
        assert "\u202e" not in text


def test_ascii_output() -> None:
    """Where the output cannot show more, everything is ASCII."""
    proto = build.add([1, 9.8e7])
    for text in (
        inspect_lines(inspect_model(proto, layers=True), unicode=False, **PIPE),
        lint_lines(lint_model(proto), unicode=False, **PIPE),
        lint_lines(lint_model(build.relu()), unicode=False, **PIPE),
    ):
        assert text.isascii()


@pytest.mark.parametrize(
    ("shape", "room", "expected"),
    [
        (None, None, "–"),
        ((), None, "scalar"),
        ((1, None, "n"), None, "1 × ? × n"),
        (("batch", 3, "height", "width"), 25, "batch × 3 × height × …"),
        (("batch", 3, "height", "width"), 1, "… × 3 × … × …"),
    ],
)
def test_shapes(shape: Any, room: int | None, expected: str) -> None:
    """Symbols give way from the end, sizes never."""
    assert shape_words(ValueSummary("v", "float32", shape), room) == expected


def test_inspect_json() -> None:
    """The JSON form holds what was asked for, under the names of the Python attributes, as strict JSON."""
    document = json.loads(inspect_json(inspect_model(detector(), layers=True, weights=True, operators=True)))

    assert document["schema"] == "graphdoc.inspect/1"
    assert document["opsets"] == {"ai.onnx": 18}
    assert document["layers"][0]["outputs"] == [
        {"name": "v0", "dtype": "float32", "shape": ["batch", 3, "height_of_the_image", "width_of_the_image"]}
    ]
    assert document["weights"][0]["absmax"] == 98000000.0
    assert document["operators"][0]["engine"] == "ops table"


# lint


def test_lint_as_drawn() -> None:
    """The verdict first, then rule by rule: places, harm, mend."""
    proto = build.add([1, np.nan])
    proto.graph.initializer.extend([build.weight(f"unused{n}", [1]) for n in range(6)])

    assert lint_lines(lint_model(proto), **TERMINAL).splitlines() == [
        "✗ faulty   1 error, 6 warnings in g",
        "",
        "✗ error  nan-weight",
        "  w: 1 of 2 values are NaN",
        "  harm  every result that depends on it is NaN",
        "  mend  find where training or conversion made it; export again",
        "",
        "▲ warning  unused-initializer",
        "  unused0: a weight of 1 that nothing reads",
        "  unused1: a weight of 1 that nothing reads",
        "  unused2: a weight of 1 that nothing reads",
        "  unused3: a weight of 1 that nothing reads",
        "  … 2 more: -v lists them",
        "  harm  the file and its loading are larger than need be",
        "  mend  remove the initializer",
    ]


def test_lint_verbose_lists_all() -> None:
    """With -v nothing is left out."""
    proto = build.relu()
    proto.graph.initializer.extend([build.weight(f"unused{n}", [1]) for n in range(6)])
    text = lint_lines(lint_model(proto), verbose=True, **PIPE)

    assert "unused5" in text
    assert "more" not in text


def test_clean() -> None:
    """A sound model is one line."""
    assert lint_lines(lint_model(build.relu()), **PIPE).startswith("✓ clean   ")


def test_lint_json() -> None:
    """The JSON form has every finding with the words of its rule, and the counts."""
    document = json.loads(lint_json(lint_model(build.add([1, np.nan]))))

    assert document["schema"] == "graphdoc.lint/1"
    assert document["counts"] == {"error": 1, "warning": 0, "remark": 0}
    assert document["findings"][0] == {
        "rule": "nan-weight",
        "severity": "error",
        "where": "w",
        "what": "1 of 2 values are NaN",
        "harm": "every result that depends on it is NaN",
        "mend": "find where training or conversion made it; export again",
    }


# The command line


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (build.relu, 0),
        (FAULTY["unused-initializer"], 0),
        (FAULTY["missing-node-name"], 0),
        (FAULTY["nan-weight"], 1),
    ],
)
def test_exit_codes_of_lint(
    make: Any, code: int, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 when there are no errors, 1 when there are."""
    path = tmp_path / "m.onnx"
    path.write_bytes(make().SerializeToString())

    assert cli.run(["lint", str(path)]) == code
    assert "m.onnx" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "lint"])
def test_json_on_stdout_is_json_alone(
    command: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json - stdout holds nothing else; with a file the printed form stays."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.relu().SerializeToString())

    assert cli.run([command, str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "m.onnx"
    assert cli.run([command, str(path), "--json", str(tmp_path / "out.json")]) == 0
    assert not capsys.readouterr().out.startswith("{")
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["name"] == "m.onnx"


def test_the_output_is_the_same_each_time(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No clock, no hash order, no path but the name that was typed."""
    path = tmp_path / "m.onnx"
    path.write_bytes(detector().SerializeToString())
    texts = []
    for _ in range(2):
        for command in (["inspect", str(path), "--layers", "--weights", "--ops"], ["lint", str(path)]):
            cli.run(command)
        texts.append(capsys.readouterr().out)

    assert texts[0] == texts[1]
    assert str(tmp_path) not in texts[0]


@pytest.mark.parametrize("command", ["inspect", "lint"])
def test_help_says_what_the_options_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help names every option and an example."""
    assert cli.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert f"graphdoc {command} m.onnx" in text


def test_a_model_may_have_any_file_name(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blanks, a leading dash behind "--", no suffix, other scripts."""
    monkeypatch.chdir(tmp_path)
    for name in ("a b.onnx", "-dash.onnx", "model", "模型.onnx"):
        pathlib.Path(name).write_bytes(build.relu().SerializeToString())

        assert cli.run(["inspect", "--", name]) == 0
        assert name in capsys.readouterr().out


@pytest.mark.parametrize("path", sources.real_models())
def test_real_models(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real models are shown and checked; none of them is refused."""
    assert cli.run(["inspect", str(path), "--layers", "--ops"]) == 0
    assert cli.run(["lint", str(path)]) == 0
    assert "Traceback" not in capsys.readouterr().err
