"""A user's own files and odd arguments lead to no wrong model, no silent exit and no traceback."""

import pathlib

import numpy as np
import onnx
import pytest
from onnx import helper

from graphdoc import cli
from graphdoc.engine.errors import UsageError
from graphdoc.engine.ops.custom import load_operators
from graphdoc.rewriting import rewrite_model as rewrite
from graphdoc.surgeon import PatternRule, Refusal
from tests.surgeon import build
from tests.surgeon import edit_models as m

CHAIN = "g (float[4] x) => (float[4] y) <float[4] w = {1, 1, 1, 1}> { a = Relu(x) y = Add(a, w) }"

IN_PLACE = """
from graphdoc.surgeon import PatternRule, Refusal

class Sneaky(PatternRule):
    def pattern(self, op, x):
        return op.Relu(x)

    def rewrite(self, op, x):
        x.consumers()[0].op_type = "Neg"
        return Refusal("no")
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with a model."""
    monkeypatch.chdir(tmp_path)
    onnx.save(build.text(CHAIN), "m.onnx")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int, words: str) -> None:
    """Run a command that must fail with these words, a next step, no traceback and no file."""
    assert cli.run([arguments[0], "m.onnx", "-o", "o.onnx", *arguments[1:]]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert "next" in shown
    assert "Traceback" not in shown
    assert not pathlib.Path("o.onnx").exists()


@pytest.mark.parametrize("more", [(), ("--no-verify",)])
def test_a_rule_that_edits_and_refuses_is_an_error(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """It changed the model and said that it did not: named, and nothing is written."""
    pathlib.Path("r.py").write_text(IN_PLACE)
    refused(capsys, "rewrite", "--rules", "r.py", *more, code=2, words="rule 'sneaky' changed the graph")


def test_a_rule_that_edits_far_away_is_verified(folder: pathlib.Path) -> None:
    """Where no edit is noted the result is held against the original all the same."""

    class Far(PatternRule):
        def pattern(self, op, x):  # type: ignore[no-untyped-def]
            return op.Relu(x)

        def rewrite(self, op, x, context):  # type: ignore[no-untyped-def]
            context.model.graph.node(-1).op_type = "Sub"
            return Refusal("no")

    result = rewrite("m.onnx", Far())
    assert not result
    assert result.report.differs
    assert not result.report.done


def test_a_file_that_leaves_python_is_an_error(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """sys.exit(0) in a file of rules, of operators or of edits does not end the command well."""
    pathlib.Path("e.py").write_text("import sys\nsys.exit(0)\n")
    pathlib.Path("s.py").write_text("def edit(model):\n    import sys\n    sys.exit(0)\n")
    refused(capsys, "rewrite", "--rules", "e.py", code=2, words="SystemExit")
    refused(capsys, "edit", "--script", "e.py", code=2, words="SystemExit")
    refused(capsys, "edit", "--script", "s.py", code=2, words="SystemExit")
    with pytest.raises(UsageError, match="SystemExit"):
        load_operators("e.py")


SCRIPTS = {
    "list(m.graph)[0].replace_input_with(0, None)": "without its input 0",
    "m.graph.inputs[0].name = ''": "without a name",
    "m.graph.inputs[0].name = None": "without a name",
    "list(m.graph)[0].outputs[0].name = ''": "without a name",
    "list(m.graph)[0].outputs[0].name = 'x'": "'x'",
}


@pytest.mark.parametrize("body", SCRIPTS)
@pytest.mark.parametrize("more", [(), ("--no-verify",)])
def test_what_a_script_leaves_must_be_a_model(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], body: str, more: tuple[str, ...]
) -> None:
    """A file that nobody could load is not written, verified or not."""
    pathlib.Path("s.py").write_text(f"def edit(m):\n    {body}\n")
    refused(capsys, "edit", "--script", "s.py", *more, code=3, words=SCRIPTS[body])


def test_what_a_script_makes_must_load_where_the_original_does(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody computes an operator that is not there."""
    pathlib.Path("s.py").write_text("def edit(m):\n    list(m.graph)[0].op_type = 'Nothing'\n")
    refused(capsys, "edit", "--script", "s.py", code=3, words="Nothing")


def test_a_baked_size_is_told_from_a_free_one(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Slice that ends at the old size gives the first slice alone, whatever comes behind it."""
    text = (
        """g (float[2,4] x) => (float[2,4] y) <int64[1] a = {0}, int64[1] e = {2}> { y = Slice(x, a, e) }"""
    )
    onnx.save(build.text(text), "m.onnx")
    assert cli.run(["edit", "m.onnx", "-o", "o.onnx", "--free", "x.0=N"]) == 1
    shown = capsys.readouterr().out
    assert "'y' is that of the first slice alone" in shown
    assert "slice by slice" not in shown


def test_an_output_that_no_input_sets_may_stay(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for every slice, it is the same for both together."""
    text = """g (float[2,4] x) => (float[2,4] y, float[3] z) <float[3] w = {1,2,3}>
    { y = Relu(x) z = Neg(w) }"""
    onnx.save(build.text(text), "m.onnx")
    assert cli.run(["edit", "m.onnx", "-o", "o.onnx", "--free", "x.0=N"]) == 0
    assert "slice by slice" in capsys.readouterr().out


BRANCH = """g (float[4] x, bool c) => (float[4] y) {
  [choose] y = If (c) <
    then_branch = yes () => (float[4] r) { r = Neg(x) },
    else_branch = no () => (float[4] s) { s = Exp(x) }
  >
}"""

ODD = {
    "--set-shape": ("x=-4", 2, "'-4' is no size"),
    "--free": ("x.0=-4", 2, "'-4' is no symbol"),
    "--set-shape  ": ("x=1.5", 2, "'1.5' is no size"),
    "--set-attr": ("choose:then_branch=3", 3, "it needs GRAPH"),
    "--meta": ("a=\udcff", 2, "no UTF-8"),
    "--rename": ("x=\udcff", 2, "no UTF-8"),
    "--prefix": ("\udcff", 2, "no UTF-8"),
    "--external": ("\udcff.data", 2, "no UTF-8"),
}


@pytest.mark.parametrize("option", ODD)
def test_odd_arguments(folder: pathlib.Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """What no model can hold is refused where it is given (the shell's byte 255 arrives as U+DCFF)."""
    onnx.save(build.text(BRANCH), "m.onnx")
    text, code, words = ODD[option]
    refused(capsys, "edit", option.strip(), text, code=code, words=words)


ANNOTATED = """g (float[4] x) => (float[4] y)
<float[4] w = {1, 1, 1, 1}, float[4] v = {1, 1, 1, 1}, float sc = {0.1}, float zp = {0.1}, float idle = {2}>
{ t = Add(x, w) y = Add(t, v) }"""

KEEPERS = {
    "simplify": ["simplify", "m.onnx", "-o", "o.onnx"],
    "lint": ["lint", "m.onnx", "--fix", "-o", "o.onnx"],
    "dedup": ["weights", "dedup", "m.onnx", "-o", "o.onnx"],
    "cleanup": ["edit", "m.onnx", "-o", "o.onnx", "--cleanup"],
}


@pytest.mark.parametrize("command", KEEPERS)
def test_what_quantization_annotations_name_stays(folder: pathlib.Path, command: str) -> None:
    """Scales and zero points that no node reads, and the annotated weight itself."""
    model = build.text(ANNOTATED)
    for name in ("t", "v"):
        annotation = model.graph.quantization_annotation.add(tensor_name=name)
        for key, value in (("SCALE_TENSOR", "sc"), ("ZERO_POINT_TENSOR", "zp")):
            annotation.quant_parameter_tensor_names.add(key=key, value=value)
    onnx.save(model, "m.onnx")
    assert cli.run(KEEPERS[command]) in (0, 1)
    edited = onnx.load("o.onnx").graph
    assert edited.quantization_annotation == model.graph.quantization_annotation
    kept = {tensor.name for tensor in edited.initializer}
    assert {"w", "v", "sc", "zp"} <= kept
    assert ("idle" in kept) == (command == "dedup")


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("more", [(), ("--max-loss", "0.01")])
def test_weights_without_a_norm_are_not_pruned(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], odd: float, more: tuple[str, ...]
) -> None:
    """What is lost of NaN cannot be told, so it is not judged to be little."""
    held = np.arange(32, dtype=np.float32).reshape(8, 4)
    held[0] = odd
    model = build.text("g (float[1,8] x) => (float[1,4] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(build.weight("w", held))
    onnx.save(model, "m.onnx")
    assert cli.run(["weights", "prune", "m.onnx", "-o", "o.onnx", *more]) == 0
    assert "its norm is not finite" in " ".join(capsys.readouterr().out.split())
    assert onnx.load("o.onnx").graph.initializer == model.graph.initializer


IMPOSSIBLE = {
    "op.NoSuch(x)": "has no operator NoSuch",
    "op.Abs(x, x)": "does not take 2 inputs",
    "op.Abs()": "does not take 0 inputs",
    "op.Abs(None)": "needs its input 0",
    "op.Abs(x, _outputs=2)[0]": "does not take 2 outputs",
    "op.Cast(x)": "needs the attribute to",
    "op.Upsample(x, w)": "is withdrawn",
}


@pytest.mark.parametrize("made", IMPOSSIBLE)
def test_nodes_that_the_specification_does_not_have_are_refused(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], made: str
) -> None:
    """A rule cannot write what nobody could load, verified or not; the reason is listed."""
    pathlib.Path("r.py").write_text(
        "from graphdoc.surgeon import PatternRule\n\nclass Made(PatternRule):\n"
        "    def pattern(self, op, x, w):\n        return op.Add(op.Relu(x), w)\n\n"
        f"    def rewrite(self, op, x, w):\n        return {made}\n"
    )
    arguments = ["rewrite", "m.onnx", "-o", "o.onnx", "--rules", "r.py", "--no-verify", "--explain"]
    assert cli.run(arguments) == 0
    assert IMPOSSIBLE[made] in " ".join(capsys.readouterr().out.split())
    assert [node.op_type for node in onnx.load("o.onnx").graph.node] == ["Relu", "Add"]


OTHER_OPSETS = {
    "hardmax": ("Hardmax", 11, 6, "13", {}),
    "softmax": ("Softmax", 13, 7, "11", {"axis": 1}),
}


@pytest.mark.parametrize("name", OTHER_OPSETS)
def test_another_opset_is_verified(folder: pathlib.Path, name: str) -> None:
    """Where the version converter changes the meaning nothing is written, although no rule edits."""
    op, opset, ir_version, to, attributes = OTHER_OPSETS[name]
    shape = [2, 3, 4]
    model = build.model(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        inputs=[build.value("x", shape)],
        outputs=[build.value("y", shape)],
        opset=opset,
        ir_version=ir_version,
    )
    onnx.save(model, "m.onnx")
    code = cli.run(["simplify", "m.onnx", "-o", "o.onnx", "--to-opset", to])
    if code == 0:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        wanted, found = m.run(model, x=x)["y"], m.run(onnx.load("o.onnx"), x=x)["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        assert not pathlib.Path("o.onnx").exists()


@pytest.mark.parametrize("location", ["w.data", "m.onnx"])
def test_external_data_does_not_replace_what_the_source_needs(folder: pathlib.Path, location: str) -> None:
    """Neither the source's data file nor the source itself is written over."""
    held = np.arange(4096, dtype=np.float32).reshape(64, 64)
    model = build.text("g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(build.weight("w", held))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    np.save("z.npy", np.zeros((64, 64), np.float32))
    before = {path: pathlib.Path(path).read_bytes() for path in ("m.onnx", "w.data")}
    more = ["--set-initializer", "w=z.npy", "--external", location, "--external-from", "0"]
    assert cli.run(["edit", "m.onnx", "-o", "o.onnx", *more]) == 3
    assert {path: pathlib.Path(path).read_bytes() for path in before} == before
    assert not pathlib.Path("o.onnx").exists()
