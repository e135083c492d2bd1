"""``graphdoc rewrite``: what it writes, prints and returns."""

import json
import pathlib

import numpy as np
import onnx
import pytest

import graphdoc
from graphdoc import cli
from graphdoc.rewriting import rewrite_model as rewrite
from graphdoc.surgeon import PatternRule
from tests.surgeon import build
from tests.surgeon.rewriting_tools import graph

RULES = """
from graphdoc.surgeon import PatternRule, Refusal

class TwoRelus(PatternRule):
    def pattern(self, op, x):
        return op.Relu(op.Relu(x))

    def rewrite(self, op, x):
        return op.Relu(x)

class WrongNeg(PatternRule):
    def pattern(self, op, x):
        return op.Neg(x)

    def rewrite(self, op, x):
        return op.Abs(x)

class Refused(PatternRule):
    def pattern(self, op, x):
        return op.Sigmoid(x)

    def check(self, match, context):
        return Refusal("it is fine as it is")

    def rewrite(self, op, x):
        return x
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with a model and two files of rules."""
    monkeypatch.chdir(tmp_path)
    model = graph(
        "float[2,3] x => float[2,3] y", "a = Relu (x) b = Relu (a) s = Sigmoid (b) y = Identity (s)"
    )
    onnx.save(model, tmp_path / "m.onnx")
    onnx.save(
        graph("float[2,3] x => float[2,3] y", "a = Relu (x) b = Relu (a) y = Neg (b)"), tmp_path / "neg.onnx"
    )
    (tmp_path / "rules.py").write_text(RULES)
    return tmp_path


def operators(path: pathlib.Path) -> list[str]:
    """Return the operators of a file."""
    return [node.op_type for node in onnx.load(path).graph.node]


def test_rules_are_applied_and_the_result_is_verified(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written; the summary counts the edits and tells what was run."""
    code = cli.run(["rewrite", "m.onnx", "-o", "out.onnx", "--rules", "rules.py"])

    shown = capsys.readouterr().out
    assert code == 0
    assert operators(folder / "out.onnx") == ["Relu", "Sigmoid", "Identity"]
    assert "✓ rewritten   4 → 3 nodes" in shown
    assert "1 × two-relus" in shown
    assert "verified: " in shown
    assert "almost matched at 1 place: --explain lists them" in shown


def test_explain_lists_edits_and_misses(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where, and why."""
    code = cli.run(["rewrite", "m.onnx", "-o", "out.onnx", "--rules", "rules.py", "--explain", "--no-verify"])

    shown = capsys.readouterr().out
    assert code == 0
    assert "two-relus at" in shown
    assert "2 Relu → Relu" in shown
    assert "refused at s: it is fine as it is" in shown
    assert "not verified: --no-verify" in shown


def test_a_rule_that_changes_outputs_is_dropped(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest is kept and written; the exit code says that something was wrong."""
    code = cli.run(["rewrite", "neg.onnx", "-o", "out.onnx", "--rules", "rules.py"])

    shown = capsys.readouterr().out
    assert code == 1
    assert operators(folder / "out.onnx") == ["Relu", "Neg"]
    assert "▲ rewritten, 1 dropped" in shown
    assert "dropped  wrong-neg at" in shown


def test_without_verification_the_user_is_believed(folder: pathlib.Path) -> None:
    """--no-verify runs nothing."""
    assert cli.run(["rewrite", "neg.onnx", "-o", "out.onnx", "--rules", "rules.py", "--no-verify"]) == 0
    assert operators(folder / "out.onnx") == ["Relu", "Abs"]


def test_json(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report as data, alone on stdout."""
    cli.run(["rewrite", "m.onnx", "-o", "out.onnx", "--rules", "rules.py", "--json", "-"])

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "graphdoc.rewrite/1"
    assert document["rules"] == {"two-relus": 1}
    assert document["nodes"] == [4, 3]
    assert document["kept"][0]["reason"] == "it is fine as it is"


def test_built_in_rules_by_name_and_group(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A group applies all of its rules; where none matches, that is said."""
    onnx.save(graph("float[4] x => float[4] y", "s = Sigmoid (x) y = Mul (x, s)"), folder / "silu.onnx")

    assert cli.run(["rewrite", "silu.onnx", "-o", "a.onnx", "--rules", "assemble"]) == 0
    assert cli.run(["rewrite", "silu.onnx", "-o", "b.onnx", "--rules", "assemble-mish"]) == 0

    assert operators(folder / "a.onnx") == ["Swish"]
    assert operators(folder / "b.onnx") == ["Sigmoid", "Mul"]
    assert "– unchanged   no rule matched" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["m.onnx", "-o", "out.onnx", "--rules", "none.py"], 2, "there is no file 'none.py'"),
        (["m.onnx", "-o", "out.onnx", "--rules", "nothing"], 2, "there is no rule and no file 'nothing'"),
        (["m.onnx", "-o", "out.onnx", "--rules", "broken.py"], 2, "'broken.py' cannot be loaded"),
        (["m.onnx", "-o", "m.onnx", "--rules", "rules.py"], 2, "cannot both be 'm.onnx'"),
        (["m.onnx", "-o", "rules.py", "--rules", "rules.py"], 2, "cannot both be 'rules.py'"),
        (["m.onnx", "--rules", "rules.py"], 2, "Missing option"),
        (["none.onnx", "-o", "out.onnx", "--rules", "rules.py"], 3, "none.onnx"),
    ],
)
def test_mistakes(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Each names what is wrong and exits with its code; nothing is written."""
    (folder / "broken.py").write_text("def f(:\n")

    assert cli.run(["rewrite", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not (folder / "out.onnx").exists()


def test_in_python(folder: pathlib.Path) -> None:
    """The same with classes, verified; the result is truthy when all is well."""

    class TwoRelus(PatternRule):
        def pattern(self, op, x):  # type: ignore[no-untyped-def]
            return op.Relu(op.Relu(x))

        def rewrite(self, op, x):  # type: ignore[no-untyped-def]
            return op.Relu(x)

    result = rewrite("m.onnx", TwoRelus)

    assert result
    assert result.report.verification is not None
    assert result.report.verification.verified
    graphdoc.save(result.model, "out.onnx")
    assert operators(folder / "out.onnx") == ["Relu", "Sigmoid", "Identity"]


def test_large_weights_are_not_touched(folder: pathlib.Path) -> None:
    """What no rule reads is as it was, to the bit."""
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = build.model(
        [
            onnx.helper.make_node(op, *io)
            for op, *io in (("Add", ["x", "w"], ["a"]), ("Relu", ["a"], ["b"]), ("Relu", ["b"], ["y"]))
        ],
        inputs=[build.value("x", (2, 3))],
        outputs=[build.value("y", (2, 3))],
        weights=[build.weight("w", weights)],
    )
    onnx.save(model, folder / "w.onnx")

    assert cli.run(["rewrite", "w.onnx", "-o", "out.onnx", "--rules", "rules.py"]) == 0
    assert onnx.load(folder / "out.onnx").graph.initializer[0] == model.graph.initializer[0]
