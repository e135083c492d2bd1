"""``graphdoc simplify``: what it writes, prints and returns, for every option and every mistake."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from graphdoc import cli
from graphdoc.commands.simplify import byte_count
from graphdoc.surgeon import rules
from graphdoc.surgeon.rules.base import Context, Edit, rule
from tests.surgeon import build

CHAIN = """g (float[N,3] x) => (float[N,3] y) <float one = {1}>
{ a = Identity(x) b = Mul(a, one) c = Relu(b) d = Exp(c) y = Identity(d) }"""

GROWS = """g (float[64,64] x) => (float[64,64] y) <int64[2] s = {64,64}, float[1,1] v = {2}>
{ e = Expand(v, s) y = Mul(x, e) }"""

REFUSES = """g (float[N] x) => (float[N] y) <float z = {0}> { a = Add(x, z) y = Reciprocal(a) }"""

LOCAL = """g (float[N] x) => (float[N] y) { a = local.twice(x) y = Relu(a) }
<opset_import: ["" : 18], domain: "local">
twice (v) => (w) { w = Add(v, v) }"""


def _write(name: str, body: str, opset: int = 18, extra: str = "") -> None:
    onnx.save(build.text(body, opset, ir_version=8, extra=extra), name)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with models, made the present one."""
    monkeypatch.chdir(tmp_path)
    _write("m.onnx", CHAIN)
    return tmp_path


def simplify(*arguments: str) -> int:
    """Run the command; return its exit code."""
    return cli.run(["simplify", *arguments])


def operators(path: str | pathlib.Path) -> list[str]:
    """Return the operators of a file, in order."""
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def report(*arguments: str) -> Any:
    """Simplify m.onnx to out.onnx; return the report that --json wrote."""
    simplify("m.onnx", "-o", "out.onnx", *arguments, "--json", "report.json")
    return json.loads(pathlib.Path("report.json").read_text("utf-8"))


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rule come along that makes an Abs of an Exp: what verification must find."""

    @rule("wrong-exp", "linear", "Exp")
    def wrong_exp(node: ir.Node, context: Context) -> Edit:
        context.replace(node.outputs[0], context.node("Abs", [node.inputs[0]], like=node)[0])
        return Edit("broke it")

    known = rules.usual_rules()
    monkeypatch.setattr(rules, "usual_rules", lambda: (*known, wrong_exp))


# ---- the result


def test_writes_and_says_what_was_done(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of outcome, the counts, what was checked."""
    assert simplify("m.onnx", "-o", "out.onnx") == 0

    shown = capsys.readouterr()
    assert shown.out.startswith("✓ simplified   5 → 2 nodes, ")
    assert "removed 3" in shown.out
    assert "checked: outputs equal bit for bit" in shown.out
    assert "through ort and engine" in shown.out
    assert shown.err == ""
    assert operators("out.onnx") == ["Relu", "Exp"]


def test_nothing_to_simplify(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run changes nothing, says so, and still writes."""
    simplify("m.onnx", "-o", "a.onnx")
    capsys.readouterr()

    assert simplify("a.onnx", "-o", "b.onnx") == 0
    assert "✓ nothing to simplify   2 → 2 nodes" in capsys.readouterr().out
    assert onnx.load("a.onnx") == onnx.load("b.onnx")


def test_no_verify_runs_nothing(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--no-verify does not even make a verifier."""
    monkeypatch.setattr("graphdoc.compare.verify.Verifier", None)

    assert simplify("m.onnx", "-o", "out.onnx", "--no-verify") == 0
    assert "not checked: --no-verify" in capsys.readouterr().out


def test_explain(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every edit with its place, and every place where a rule almost matched."""
    _write("r.onnx", REFUSES)
    assert simplify("r.onnx", "-o", "out.onnx", "--explain") == 0
    refused = " ".join(capsys.readouterr().out.split())
    assert simplify("m.onnx", "-o", "out.onnx", "--explain") == 0
    done = " ".join(capsys.readouterr().out.split())

    assert "miss add-zero at a: Add, adding +0.0 turns -0.0 into 0.0" in refused
    assert "edit multiply-one at b: Mul gives back its input" in done
    assert "next" not in done


def test_json(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report as data, alone on stdout; every number means what its name says."""
    assert simplify("m.onnx", "-o", "out.onnx", "--json", "-") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "graphdoc.simplify/1"
    assert document["ok"] is True
    assert document["nodes"] == [5, 2]
    assert document["weights"] == [4, 0]
    assert document["bytes"] == [pathlib.Path(name).stat().st_size for name in ("m.onnx", "out.onnx")]
    assert (document["folded"], document["fused"], document["removed"]) == (0, 0, 3)
    assert document["rules"] == {"identity": 2, "multiply-one": 1, "unused-initializers": 1}
    assert document["done"][0].keys() == {"rule", "group", "node", "op", "text", "removed"}
    assert document["kept"] == document["dropped"] == []
    assert document["verification"]["agrees"] is True
    assert {"runs", "summary", "differences", "not_run", "remarks"} <= document["verification"].keys()
    assert {run["runner"] for run in document["verification"]["runs"]} == {"ort", "engine"}


def test_json_of_what_was_refused(folder: pathlib.Path) -> None:
    """Refusals name rule, node, operator and reason; without a check there is no verification."""
    _write("m.onnx", REFUSES)
    document = report("--no-verify")

    assert document["kept"] == [
        {"rule": "add-zero", "node": "a", "op": "Add", "reason": "adding +0.0 turns -0.0 into 0.0"}
    ]
    assert document["verification"] is None


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_works_without_stdin_or_stdout(folder: pathlib.Path, closed: str) -> None:
    """As in a job that has neither."""
    command = f"{sys.executable} -m graphdoc simplify m.onnx -o out.onnx --no-verify {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert operators("out.onnx") == ["Relu", "Exp"]


# ---- options


def test_only_skip_and_also(folder: pathlib.Path) -> None:
    """Rules and groups are chosen by name."""
    assert report("--no-verify", "--only", "multiply-one")["rules"] == {"multiply-one": 1}
    assert report("--no-verify", "--only", "multiply-one", "--only", "clean")["nodes"] == [5, 4]
    assert ("Mul" in report("--no-verify", "--skip", "multiply-one") and operators("out.onnx")) or True
    assert operators("out.onnx") == ["Mul", "Relu", "Exp"]
    assert report("--no-verify", "--skip", "identity")["nodes"] == [5, 5]


def test_rules_on_request(folder: pathlib.Path) -> None:
    """--also adds rules that do not run by default; by name or by group."""
    _write("m.onnx", "g (float[N] x) => (float[N] y) { s = Sigmoid(x) y = Mul(x, s) }", opset=24)

    assert report("--no-verify")["rules"] == {}
    assert report("--also", "assemble")["rules"] == {"assemble-swish": 1}
    assert operators("out.onnx") == ["Swish"]
    assert report("--no-verify", "--only", "assemble-swish")["rules"] == {"assemble-swish": 1}
    assert report("--no-verify", "--also", "assemble", "--skip", "assemble-swish")["rules"] == {}


def test_keep(folder: pathlib.Path) -> None:
    """What matches a glob stays under its name."""
    report("--keep", "b*")
    assert "b" in [name for node in onnx.load("out.onnx").graph.node for name in node.output]


def test_shape(folder: pathlib.Path) -> None:
    """The result is made for the size given; it is verified at that size."""
    document = report("--shape", "x=2x3")
    [given] = onnx.load("out.onnx").graph.input

    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [2, 3]
    assert document["ok"]
    assert report("--shape", "N=4")["ok"]
    [given] = onnx.load("out.onnx").graph.input
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [4, 3]


def test_freeze(folder: pathlib.Path) -> None:
    """An input with a default becomes a constant."""
    proto = build.text("g (float[N] x, float w) => (float[N] y) <float w = {1}> { y = Mul(x, w) }")
    onnx.save(proto, "m.onnx")

    assert report("--no-verify")["nodes"] == [1, 1]
    report("--no-verify", "--freeze", "w")
    assert [value.name for value in onnx.load("out.onnx").graph.input] == ["x"]
    assert operators("out.onnx") == ["Identity"]


@pytest.mark.parametrize(
    ("size", "ops"), [("1kB", ["Expand", "Mul"]), ("16383", ["Expand", "Mul"]), ("2MiB", ["Mul"])]
)
def test_max_growth(folder: pathlib.Path, size: str, ops: list[str]) -> None:
    """Constants past the limit stay computed."""
    _write("m.onnx", GROWS)
    report("--no-verify", "--max-growth", size)

    assert operators("out.onnx") == ops


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("4096", 4096), ("1MiB", 2**20), ("20 kB", 20_000), ("1.5GiB", 3 * 2**29)]
)
def test_sizes(text: str, number: int) -> None:
    """Sizes are written with and without units."""
    assert byte_count(text) == number


def test_inline(folder: pathlib.Path) -> None:
    """Calls of the model's functions are replaced by their bodies."""
    _write("m.onnx", LOCAL, extra=', "local" : 1')

    report("--no-verify")
    assert operators("out.onnx") == ["twice", "Relu"]
    report("--inline")
    assert operators("out.onnx") == ["Add", "Relu"]


def test_to_opset(folder: pathlib.Path) -> None:
    """The model is converted first, and verified against what it was."""
    document = report("--to-opset", "20")

    assert onnx.load("out.onnx").opset_import[0].version == 20
    assert document["verification"]["agrees"] is True


@pytest.mark.parametrize("option", ["--color", "--no-color"])
def test_no_colour_in_a_pipe(folder: pathlib.Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """What a program reads holds no escape sequences."""
    assert simplify("m.onnx", "-o", "out.onnx", "--no-verify", option) == 0
    assert "\x1b[" not in capsys.readouterr().out


# ---- verification


def test_a_wrong_rule_is_dropped_and_named(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], wrong: None
) -> None:
    """Exit code 1; everything else is done, and the result is right."""
    assert simplify("m.onnx", "-o", "out.onnx", "--json", "report.json") == 1

    shown = capsys.readouterr().out
    assert shown.startswith("▲ simplified, one pass refused   5 → 2 nodes")
    assert "refused  wrong-exp at d: differs" in shown
    assert "without that pass, outputs equal bit for bit" in " ".join(shown.split())
    assert operators("out.onnx") == ["Relu", "Exp"]
    document = json.loads(pathlib.Path("report.json").read_text("utf-8"))
    assert document["ok"] is False
    assert [item["rule"] for item in document["dropped"]] == ["wrong-exp"]


def test_without_verification_a_wrong_rule_stays(folder: pathlib.Path, wrong: None) -> None:
    """Which shows that it was verification that found it."""
    assert simplify("m.onnx", "-o", "out.onnx", "--no-verify") == 0
    assert operators("out.onnx") == ["Relu", "Abs"]


def test_what_cannot_be_run_is_said(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A custom operator is no reason to fail, and no silent pass either."""
    node = helper.make_node("Strange", ["x"], ["a"], domain="own")
    proto = build.model(
        [node, helper.make_node("Identity", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["y"])]
    )
    proto.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(proto, "m.onnx")

    assert simplify("m.onnx", "-o", "out.onnx") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not verified, nothing was run" in shown
    assert operators("out.onnx") == ["Strange", "Relu"]


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["m.onnx"], 2, "Missing option"),
        ([], 2, "Missing argument"),
        (["m.onnx", "-o", "out.onnx", "--only", "nothing"], 2, "there is no rule 'nothing'"),
        (["m.onnx", "-o", "out.onnx", "--skip", "nothing"], 2, "there is no rule 'nothing'"),
        (["m.onnx", "-o", "out.onnx", "--also", "nothing"], 2, "there is no rule 'nothing'"),
        (["m.onnx", "-o", "out.onnx", "--max-growth", "12xx"], 2, "'12xx' is no size"),
        (["m.onnx", "-o", "out.onnx", "--max-growth", "-1"], 2, "'-1' is no size"),
        (["m.onnx", "-o", "out.onnx", "--max-growth", "nan"], 2, "'nan' is no size"),
        (["m.onnx", "-o", "out.onnx", "--max-growth", "9" * 400], 2, "is no size"),
        (["m.onnx", "-o", "out.onnx", "--max-growth", ""], 2, "'' is no size"),
        (["m.onnx", "-o", "out.onnx", "--shape", "x"], 2, "not a shape: 'x'"),
        (["m.onnx", "-o", "out.onnx", "--shape", "x=2x4"], 2, "has 3 where 4 is asked for"),
        (["m.onnx", "-o", "out.onnx", "--shape", "q=2"], 2, "no input and no size 'q'"),
        (["m.onnx", "-o", "out.onnx", "--freeze", "x"], 2, "no input with a default value is called 'x'"),
        (["m.onnx", "-o", "out.onnx", "--to-opset", "0"], 2, "there is no opset 0"),
        (["m.onnx", "-o", "out.onnx", "--to-opset", "two"], 2, "'two' is not a valid integer"),
        (["m.onnx", "-o", "m.onnx"], 2, "-o and the input m.onnx cannot both be 'm.onnx'"),
        (["m.onnx", "-o", "./m.onnx"], 2, "cannot both be"),
        (["m.onnx", "-o", "out.onnx", "--json", "m.onnx"], 2, "cannot both be 'm.onnx'"),
        (["m.onnx", "-o", "out.onnx", "--json", "out.onnx"], 2, "cannot both be 'out.onnx'"),
        (["m.onnx", "-o", "-"], 2, "not to stdout"),
        (["m.onnx", "-o", ""], 2, "-o needs the name of a file"),
        (["m.onnx", "-o", "."], 3, "it is a folder"),
        (["m.onnx", "-o", "none/out.onnx"], 3, "there is no folder 'none'"),
        (["none.onnx", "-o", "out.onnx"], 3, "none.onnx"),
        (["text.onnx", "-o", "out.onnx"], 3, "text.onnx"),
        (["empty.onnx", "-o", "out.onnx"], 3, "empty.onnx"),
    ],
)
def test_mistakes(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Each names what is wrong and what to do next; nothing is written, the input is as it was."""
    (folder / "text.onnx").write_text("no model\n")
    (folder / "empty.onnx").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert simplify(*arguments) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert "next" in shown.err
    assert "Traceback" not in shown.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_pipe_is_not_replaced(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no file stays what it is."""
    os.mkfifo("pipe")

    assert simplify("m.onnx", "-o", "pipe", "--no-verify") == 3
    assert "no ordinary file" in capsys.readouterr().err
    assert pathlib.Path("pipe").is_fifo()


def test_a_failed_write_leaves_what_was_there(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older result is there whole when the new one cannot be written."""
    pathlib.Path("out.onnx").write_bytes(b"older")
    names = sorted(path.name for path in folder.iterdir())

    def fail(self: pathlib.Path, target: pathlib.Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", fail)
    assert simplify("m.onnx", "-o", "out.onnx", "--no-verify") == 3
    assert "no space left" in capsys.readouterr().err
    assert pathlib.Path("out.onnx").read_bytes() == b"older"
    assert sorted(path.name for path in folder.iterdir()) == names


def test_external_data_goes_along(folder: pathlib.Path) -> None:
    """Weights in files stay in files, beside the result."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    proto = build.model(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Identity", ["a"], ["y"])],
        inputs=[build.value("x", ["N", 3])],
        outputs=[build.value("y", ["N", 4])],
        weights=[build.weight("w", weights)],
    )
    onnx.save(proto, "e.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "out").mkdir()

    assert simplify("e.onnx", "-o", "out/e.onnx") == 0
    edited = onnx.load("out/e.onnx")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["e.onnx", "w.bin"]
    assert np.array_equal(numpy_helper.to_array(edited.graph.initializer[0]), weights)


# ---- start-up


def test_starts_lean(folder: pathlib.Path) -> None:
    """Without verification neither runners nor patterns are loaded."""
    code = (
        "import sys; from graphdoc import cli\n"
        "assert cli.run(['simplify', 'm.onnx', '-o', 'out.onnx', '--no-verify']) == 0\n"
        "names = ('onnxruntime', 'pandas', 'llvmlite', 'jinja2', 'rich', 'graphdoc.compare.verify',\n"
        "         'graphdoc.surgeon.rules.assemble', 'graphdoc.surgeon.pattern')\n"
        "print(sorted(set(names) & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == "[]"
