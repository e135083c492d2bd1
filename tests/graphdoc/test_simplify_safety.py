"""``graphdoc simplify`` and ``rewrite``: what is not written, and what is no fault of the edit."""

import io
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import graphdoc
from graphdoc import cli
from graphdoc.commands import common
from graphdoc.compare import verify
from graphdoc.engine.errors import UsageError
from graphdoc.engine.ops import custom, table
from graphdoc.surgeon import simplify as driver
from graphdoc.surgeon.inspect import inspect_model
from graphdoc.surgeon.model import open_source
from tests.surgeon import build

CHAIN = """g (float[N,3] x) => (float[N,3] y) <float[3] w = {1, 2, 3}>
{ a = Identity(x) b = Add(a, w) y = Identity(b) }"""

WRONG_OUTPUT = """g (float[N,4] x) => (float[N] y) <int64[1] s = {-1}>
{ a = Identity(x) b = Reshape(a, s) y = Identity(b) }"""

OPEN = """g (float[-1,"?","?"] x) => (float[-1,"?","?"] y) { a = Identity(x) y = Relu(a) }"""

OWN = """g (float[N,3] x) => (float[N,3] y) { a = own.Strange(x) b = Identity(a) y = Neg(b) }"""

STRANGE = """
import graphdoc

@graphdoc.op("Strange", 1, domain="own")
def strange(call, x):
    return call.xp.abs(x)
"""

COMMANDS = [("simplify",), ("rewrite", "--rules", "identity")]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder, made the present one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(body: str) -> None:
    onnx.save(build.text(body, 18, ir_version=8), "m.onnx")


def _run(command: tuple[str, ...], *arguments: str) -> int:
    return cli.run([command[0], "m.onnx", "-o", "out.onnx", *command[1:], *arguments])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model be damaged before any rule runs: no rule can be dropped for it."""
    right: Callable[[ir.Model, Any], Any] = driver.prepare

    def damage(model: ir.Model, options: Any) -> Any:
        done = right(model, options)
        model.graph.initializers["w"].const_value = ir.tensor(np.array([1, 2, 4], np.float32))
        return done

    monkeypatch.setattr(driver, "prepare", damage)


# ---- outputs that differ


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_differs_is_not_written(
    folder: pathlib.Path, broken: None, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """The file that was there stays as it was; the first line says that nothing was written."""
    _write(CHAIN)
    pathlib.Path("out.onnx").write_bytes(b"of before")

    assert _run(command) == 1
    assert pathlib.Path("out.onnx").read_bytes() == b"of before"
    shown = capsys.readouterr().out
    assert shown.startswith("✗ not written   the outputs differ")
    assert "differs: ort, seeded at 'y': off by" in " ".join(shown.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_report_of_what_differs_is_written(
    folder: pathlib.Path, broken: None, command: tuple[str, ...]
) -> None:
    """--json tells why there is no model."""
    _write(CHAIN)

    assert _run(command, "--json", "report.json") == 1
    assert not pathlib.Path("out.onnx").exists()
    assert '"agrees": false' in pathlib.Path("report.json").read_text("utf-8")


def test_no_verify_writes_what_differs(folder: pathlib.Path, broken: None) -> None:
    """Who asks for no check gets the file."""
    _write(CHAIN)

    assert _run(("simplify",), "--no-verify") == 0
    weights = [numpy_helper.to_array(weight) for weight in onnx.load("out.onnx").graph.initializer]
    np.testing.assert_array_equal(weights, [[1, 2, 4]])


def test_a_conversion_is_checked_where_no_rule_applies(
    folder: pathlib.Path, broken: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than rules changes the model: another opset, sizes, functions."""
    _write("g (float[N,3] x) => (float[N,3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")

    assert _run(("simplify",), "--to-opset", "19") == 1
    assert capsys.readouterr().out.startswith("✗ not written")
    assert not pathlib.Path("out.onnx").exists()


# ---- declarations of the original that are wrong


def test_a_wrong_declaration_of_the_original_is_a_remark(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[N] was wrong for N=1 before --shape made it [1]."""
    _write(WRONG_OUTPUT)

    assert _run(("simplify",), "--shape", "N=1") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "remark: output 'y' is declared [1] and has shape [4], in the original too" in shown
    assert pathlib.Path("out.onnx").exists()


# ---- sizes written as -1 or "?"


def test_open_sizes_in_any_spelling_can_be_fixed(folder: pathlib.Path) -> None:
    """-1 is no size, and two question marks need not be the same one."""
    _write(OPEN)

    assert _run(("simplify",), "--shape", "x=2x3x5") == 0
    shape = onnx.load("out.onnx").graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [2, 3, 5]


@pytest.mark.parametrize(("option", "text"), [("?=3", "no size '?'"), ("x=2x3", "has 3 dimensions")])
def test_what_cannot_be_fixed_is_said(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    """An unknown size has no name, and the rank stands."""
    _write(OPEN)

    assert _run(("simplify",), "--shape", option) == 2
    assert text in capsys.readouterr().err


# ---- operators of one's own


@pytest.fixture
def unregistered() -> Iterator[None]:
    """Leave the table of operators as it was."""
    yield
    table.unregister("own", "Strange")
    custom._loaded.clear()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_operators_of_ones_own_are_verified(
    folder: pathlib.Path, unregistered: None, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """With --ops the engine runs what ONNX Runtime does not know."""
    onnx.save(build.text(OWN, 18, ir_version=8, extra=', "own" : 1'), "m.onnx")
    pathlib.Path("ops.py").write_text(STRANGE, "utf-8")

    assert _run(command) == 0
    assert "not verified, nothing was run" in " ".join(capsys.readouterr().out.split())
    assert _run(command, "--ops", "ops.py") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bit" in shown
    assert "nothing was run" not in shown


# ---- what was left out to save time


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_weak_verification_is_marked(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    """A slow model is not run on zeros, large values and NaN: that is said with a warning."""
    _write(CHAIN)
    _run(command)
    assert "▲" not in capsys.readouterr().out
    monkeypatch.setattr(verify, "BUDGET", {"ort": 0.0, "engine": 0.0})

    assert _run(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "▲ not run" in shown
    assert "left out to save time: NaN, large values, zeros" in shown


# ---- what is counted


COUNTED = """g (float[N,3] x, bool c) => (float[N,3] y) {
    one = Constant<value = float {1}>() a = Mul(x, one) b = local.twice(a)
    y = If(c) <then_branch = t () => (float[N,3] p) { two = Constant<value = float {2}>() p = Add(b, two) },
               else_branch = e () => (float[N,3] q) { n = Neg(b) o = Neg(n) q = Exp(o) }> }
<opset_import: ["" : 18], domain: "local">
twice (v) => (w) { k = Constant<value = float {0.5}>() h = Mul(v, k) w = Add(h, h) }"""


def test_nodes_are_counted_as_inspect_counts_them(folder: pathlib.Path) -> None:
    """Constant nodes are constants; what the rules took away adds up."""
    onnx.save(build.text(COUNTED, 18, ir_version=8, extra=', "local" : 1'), "m.onnx")

    assert _run(("simplify",), "--json", "report.json") == 0
    report = json.loads(pathlib.Path("report.json").read_text("utf-8"))
    counted = [inspect_model(open_source(name)) for name in ("m.onnx", "out.onnx")]
    assert report["nodes"] == [9, 6] == [summary.layer_count + 1 for summary in counted]  # and the call
    assert report["constants"] == [3, 2] == [summary.constant_count for summary in counted]
    assert report["folded"] + report["fused"] + report["removed"] == 3


def test_the_limit_that_applies_is_named(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result made of nearly nothing may take a 64th only; many small ones share the rest."""
    _write("""g (float[64,64] x) => (float[64,64] y) <int64[2] s = {64,64}, float[1,1] v = {2}>
{ e = Expand(v, s) y = Mul(x, e) }""")

    assert _run(("simplify",), "--max-growth", "16384", "--only", "fold-constants") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "folding would add 16.4 kB, more than 64 times what it is made from (limit 0.256 kB)" in shown
    assert _run(("simplify",), "--max-growth", "8192", "--only", "fold-constants") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "folding would add 16.4 kB (limit 8.19 kB)" in shown


# ---- names that are not there


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--skip", "linearr"), "there is no rule 'linearr'", "did you mean 'linear'"),
        (("--only", "add-zer"), "there is no rule 'add-zer'", "did you mean 'add-zero'"),
        (("--skip", "xyzzy"), "there is no rule 'xyzzy'", "docs/simplify.md lists them"),
        (("--keep", "xyzzy*"), "no node and no value is called 'xyzzy*'", "--layers lists the names"),
        (("--keep", "layerr"), "no node and no value is called 'layerr'", "did you mean 'layer'"),
    ],
)
def test_names_that_are_not_there(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
    hint: str,
) -> None:
    """The nearest ones are offered, in a few lines."""
    _write("g (float[N,3] x) => (float[N,3] y) { layer = Identity(x) y = Neg(layer) }")

    assert _run(("simplify",), *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert hint in shown
    assert len(shown.splitlines()) <= 4
    assert not pathlib.Path("out.onnx").exists()


@pytest.mark.parametrize("name", ["x", "w", "inner", "insid*", "y"])
def test_names_that_can_be_kept(folder: pathlib.Path, name: str) -> None:
    """Inputs, weights, values, those inside subgraphs, outputs."""
    _write("""g (float[N,3] x, bool c) => (float[N,3] y) <float[3] w = {1, 2, 3}> {
    inner = Add(x, w)
    y = If(c) <then_branch = t () => (float[N,3] p) { inside = Neg(inner) p = Abs(inside) },
               else_branch = e () => (float[N,3] q) { q = Exp(inner) }> }""")

    assert _run(("simplify",), "--keep", name, "--no-verify") == 0


# ---- in Python


@pytest.mark.parametrize("name", ["only", "skip", "request", "keep", "freeze"])
def test_a_text_is_no_list_of_texts(folder: pathlib.Path, name: str) -> None:
    """It would be read letter by letter."""
    _write(CHAIN)
    arguments: dict[str, Any] = {name: "linear"}

    with pytest.raises(UsageError, match=f"{name} is a list of texts") as refusal:
        graphdoc.simplify("m.onnx", **arguments)
    assert refusal.value.next_step == f"{name}=['linear']"


def test_growth_is_a_number(folder: pathlib.Path) -> None:
    """Only the command line reads units."""
    _write(CHAIN)
    growth: Any = "1MiB"

    with pytest.raises(UsageError, match="max_growth is a number of bytes, not '1MiB'"):
        graphdoc.simplify("m.onnx", max_growth=growth)


def test_a_result_is_shown_in_a_line(folder: pathlib.Path) -> None:
    """Not as the whole model."""
    _write(CHAIN)

    assert repr(graphdoc.simplify("m.onnx", verify=False)) == "<Simplified: 3 → 1 nodes; not verified>"
    assert "nodes; verified: " in repr(graphdoc.simplify("m.onnx"))


# ---- on a terminal


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, True), (0.0, False)])
def test_long_work_is_shown_on_a_terminal(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seconds: float, shown: bool
) -> None:
    """After a moment only, and on stderr."""
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(common, "QUIET_SECONDS", 0.1)

    with common.busy("simplify"):
        time.sleep(seconds)
    assert ("simplify" in written.getvalue()) == shown


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_nothing_run_is_no_success(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """Sizes that the model cannot take: the first line warns; why is told once for all kinds of inputs."""
    _write("""g (float[N,M] x) => (float[N,1] y) <int64[1] last = {7}>
{ a = Identity(x) y = Gather<axis=1>(a, last) }""")

    assert _run(command, "--shape", "x=2x5") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("▲ simplified, not verified", "▲ rewritten, not verified"))
    assert "NaN, large values, zeros" in " ".join(shown.split())
    assert "one run of this model takes it too long" not in " ".join(shown.split())
    assert len(shown.splitlines()) < 20
