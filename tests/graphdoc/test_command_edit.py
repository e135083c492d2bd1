"""``graphdoc edit``: every option, what is printed, exit codes, and that a failure writes nothing."""

import itertools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from graphdoc import cli, editing
from graphdoc.commands import edit as edit_command
from graphdoc.engine.errors import UsageError
from graphdoc.reports.edit_text import edit_lines
from graphdoc.surgeon.edit_find import Index
from graphdoc.surgeon.edited import Edited
from tests.surgeon import build
from tests.surgeon import edit_models as m

W = np.array([1.0, -2.0, 0.5], np.float32)
RELU = np.maximum(m.X * W, 0)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with models and arrays."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("m", m.CHAIN), ("d", m.DIAMOND), ("b", m.BRANCHES)):
        onnx.save(build.text(text), f"{name}.onnx")
    np.save("w.npy", W * 2)
    np.save("b.npy", np.ones((2, 3), np.float32))
    return tmp_path


def edit(*arguments: str, model: str = "m.onnx") -> int:
    """Run the command on a model; the result is o.onnx."""
    return cli.run(["edit", model, "-o", "o.onnx", *arguments])


def outputs(**feeds: object) -> dict[str, np.ndarray]:
    """Return what the result computes."""
    return m.run(onnx.load("o.onnx"), **feeds)


SAME = {
    "rename": ["--rename", "b=inner"],
    "rename an output": ["--rename", "y=out"],
    "rename-node": ["--rename-node", "first=scale"],
    "prefix": ["--prefix", "p/"],
    "order": ["--order-inputs", "x", "--order-outputs", "y"],
    "freeze": ["--set-shape", "x=Nx3", "--freeze", "N=2"],
    "free": ["--free", "x.0=N"],
    "add": ["--add", "e = Exp(a)"],
    "remove": ["--add", "e = Exp(a)", "--remove", "e"],
    "external": ["--external", "o.data", "--external-from", "0"],
    "inline": ["--inline"],
    "fold": ["--fold"],
    "cleanup": ["--cleanup"],
    "sort": ["--sort"],
    "strip": ["--strip", "docs,metadata,types,names"],
    "opset": ["--opset", "20"],
    "ir-version": ["--ir-version", "9"],
    "meta": ["--meta", "author=me"],
}


@pytest.mark.parametrize("name", SAME)
def test_edits_that_change_no_output(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They are verified by running both models."""
    assert edit(*SAME[name]) == 0
    printed = capsys.readouterr().out
    found = next(iter(m.run(onnx.load("o.onnx"), **{onnx.load("o.onnx").graph.input[0].name: m.X}).values()))

    assert printed.startswith("✓ edited")
    assert "verified:" in printed
    np.testing.assert_allclose(found, RELU)


OTHER: dict[str, tuple[list[str], object]] = {
    "extract": (["--extract", "x:b"], RELU),
    "extract to outputs": (["--extract", "x:"], RELU),
    "output": (["--output", "a"], RELU),
    "remove-output": (["--output", "a", "--remove-output", "a"], RELU),
    "set-dtype": (["--set-dtype", "y=float16"], RELU.astype(np.float16)),
    "set-initializer": (["--set-initializer", "w=w.npy"], 2 * RELU),
    "to-initializer": (["--to-initializer", "b=b.npy", "--add", "u = Neg(x)", "--output", "u"], 1.0),
    "insert": (["--insert", "Mul(b, 3.0)"], 3 * RELU),
    "replace": (["--replace", "c = Mul(b, -5.0)"], 5 * RELU),
    "bypass": (["--bypass", "second"], np.abs(m.X * W)),
    "set-attr": (["--insert", "[leak] LeakyRelu(a)", "--set-attr", "leak:alpha=0.5"], RELU),
    "script": (["--script", "s.py"], 7 * RELU),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_edits_that_change_the_model(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They are checked and loaded."""
    pathlib.Path("s.py").write_text(
        "import graphdoc.surgeon as s\ndef edit(model):\n    s.insert(model, 'b', 'Mul', [7.0])\n"
    )
    arguments, expected = OTHER[name]
    assert edit(*arguments) == 0
    assert "ONNX Runtime and the engine load it" in " ".join(capsys.readouterr().out.split())
    found = outputs(x=m.X)

    np.testing.assert_allclose(found.get("y", next(iter(found.values()))), expected)


def test_a_part_is_held_against_the_whole(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fed with tapped values it gives the tapped outputs; a part that does not is not written."""
    for ends in ("a:c", "x:y", "x,w:a"):
        assert edit("--extract", ends) == 0
        assert "bit for bit" in capsys.readouterr().out
    assert edit("--extract", "h,x:yes_out", model="b.onnx") == 0
    assert "not run: 'yes_out' lies inside a subgraph" in capsys.readouterr().out
    pathlib.Path("o.onnx").unlink()

    def wrong(session: editing.Session, text: str) -> list[str]:
        session.model.graph.node(2).op_type = "Exp"
        return ["oops"]

    monkeypatch.setitem(editing.VERBS, "extract", editing.Verb(wrong))  # type: ignore[arg-type]
    assert edit("--extract", "x:y") == 1
    assert "is not what the whole model computes" in capsys.readouterr().out
    assert not pathlib.Path("o.onnx").exists()


def test_weights_as_inputs(folder: pathlib.Path) -> None:
    """And inputs that nothing reads can go."""
    assert edit("--to-input", "w") == 0
    np.testing.assert_allclose(outputs(x=m.X, w=W)["y"], RELU)
    assert edit("--bypass", "left", "--remove-input", "s", model="d.onnx") == 0
    assert [v.name for v in onnx.load("o.onnx").graph.input] == ["x"]


def test_merge_and_chain(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clashes are printed."""
    assert edit("--merge", "d.onnx") == 0
    assert "renamed x → diamond/x" in capsys.readouterr().out
    onnx.save(build.text("g (float[N, 3] q) => (float[N, 3] r) { r = Neg(q) }"), "n.onnx")
    for text in ("n.onnx", "n.onnx:y=q"):
        assert edit("--chain", text) == 0
        np.testing.assert_allclose(outputs(x=m.X)["r"], -RELU)


def test_dims(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Symbols are renamed, freed sizes checked slice by slice, fixed ones changed."""
    assert edit("--rename-dim", "N=batch", model="d.onnx") == 0
    assert onnx.load("o.onnx").graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert edit("--free", "x.0=N") == 0
    assert "slice by slice" in capsys.readouterr().out
    assert edit("--set-shape", "x=5x3") == 0
    assert "takes other sizes" in " ".join(capsys.readouterr().out.split())


def test_what_is_not_repaired_exits_1(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is written, and the places are named."""
    onnx.save(build.text("g (float[1, 3] x) => (float[3] y) { y = Squeeze(x) }"), "q.onnx")
    assert edit("--free", "x.0=N", model="q.onnx") == 1
    assert "1 place not repaired" in capsys.readouterr().out
    assert pathlib.Path("o.onnx").exists()


def test_the_order_is_that_of_the_command_line(folder: pathlib.Path) -> None:
    """The same edits in another order mean something else."""
    assert edit("--rename", "a=k", "--output", "k", "--rename", "k=a") == 0
    assert edit("--output", "k", "--rename", "a=k") == 2
    assert edit("--insert", "Mul(b, 3.0)", "--bypass", "second", "--insert", "Add(y, 1.0)") == 0
    np.testing.assert_allclose(outputs(x=m.X)["y"], np.abs(m.X * W * 3) + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "no edits are given"),
        (["--rename", "bb=c"], 2, "nearest: 'b'"),
        (["--rename", "b"], 2, "has no '='"),
        (["--rename", "b=y"], 2, "taken"),
        (["--extract", "a"], 2, "does not say where to end"),
        (["--extract", "aa:b"], 2, "no value is named 'aa'"),
        (["--extract", "b:a"], 2, "depend on 'x'"),
        (["--insert", "y Relu x"], 2, "not a node"),
        (["--insert", "Relu"], 2, "names no values"),
        (["--insert", "Mul(b, c)"], 2, "cycle"),
        (["--insert", "Cast <to = 7> (b)"], 2, "add a Cast"),
        (["--insert", "Foo(b)"], 3, "no operator Foo"),
        (["--replace", "Relu(a)"], 2, "names no outputs"),
        (["--remove", "first"], 2, "needed by"),
        (["--set-attr", "second"], 2, "sets no attribute"),
        (["--set-attr", "second:alpha=1"], 3, "no attribute 'alpha'"),
        (["--freeze", "N=x"], 2, "is no size"),
        (["--set-shape", "x=3x"], 2, "not a shape"),
        (["--set-shape", "x=1x2x3"], 2, "has 2 dims"),
        (["--to-initializer", "x=none.npy"], 3, "cannot read an array"),
        (["--to-initializer", "x=m.onnx"], 3, "cannot read an array"),
        (["--set-initializer", "w=b.npy"], 3, "its content 2×3"),
        (["--merge", "none.onnx"], 3, "no such file"),
        (["--chain", "d.onnx"], 2, "say which feeds which"),
        (["--chain", "d.onnx:y=x"], 3, "takes N×4"),
        (["--chain", "d.onnx:zz=x"], 2, "no output is named 'zz'"),
        (["--external", "../w.data"], 3, "in its own folder only"),
        (["--external", "w.data", "--external-from", "many"], 2, "many"),
        (["--opset", "many"], 2, "is no version"),
        (["--opset", "99"], 2, "there is no opset 99"),
        (["--ir-version", "1"], 2, "cannot be written"),
        (["--meta", "author="], 2, "no metadata 'author'"),
        (["--strip", "weights"], 2, "cannot strip"),
        (["--script", "none.py"], 2, "no such file"),
        (["--json", "o.onnx", "--sort"], 2, "cannot both be"),
    ],
)
def test_what_cannot_be_done(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], code: int, words: str
) -> None:
    """Cause, exit code and next step; nothing is written."""
    assert edit(*arguments) == code
    shown = capsys.readouterr()

    assert words in shown.err
    assert "next" in shown.err
    assert "Traceback" not in shown.err
    assert not pathlib.Path("o.onnx").exists()


def test_a_wrong_edit_is_not_written(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that must not change the outputs, and does: exit 1, the difference is shown."""

    def wrong(session: editing.Session, text: str) -> list[str]:
        session.model.graph.node(2).op_type = "Exp"
        return ["oops"]

    monkeypatch.setitem(editing.VERBS, "sort", editing.Verb(wrong, same=True))  # type: ignore[arg-type]
    assert edit("--sort") == 1
    assert capsys.readouterr().out.startswith("✗ not written")
    assert not pathlib.Path("o.onnx").exists()


def test_a_result_that_is_not_sound_is_not_written(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script can do anything; what comes out is checked."""
    pathlib.Path("s.py").write_text("def edit(model):\n    model.graph.node(2).op_type = 'Not'\n")
    assert edit("--script", "s.py") == 3
    assert "contradict" in capsys.readouterr().err
    assert not pathlib.Path("o.onnx").exists()
    assert edit("--script", "s.py", "--no-verify") == 0


def test_in_place(folder: pathlib.Path) -> None:
    """The model may be written over."""
    assert cli.run(["edit", "m.onnx", "-o", "m.onnx", "--insert", "Mul(b, 3.0)"]) == 0
    np.testing.assert_allclose(m.run(onnx.load("m.onnx"), x=m.X)["y"], 3 * RELU)


def test_json(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was done, for programs."""
    assert edit("--rename", "b=k", "--sort", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)

    assert document["schema"] == "graphdoc.edit/1"
    assert document["written"]
    assert [step["verb"] for step in document["steps"]] == ["rename", "sort"]


def test_printed_form() -> None:
    """One screen on a terminal, names as data, sentences wrapped; all of it in a pipe."""
    steps = tuple(("rename", f"value{number} → \x1b{number}") for number in range(50))
    result = Edited("m.onnx", "o.onnx", steps, 4, 4, "checked " * 30, "", ("Squeeze q: no",))
    narrow = edit_lines(result, width=60, color=False, pipe=False).splitlines()
    wide = edit_lines(result, color=False, pipe=True, unicode=False)

    assert narrow[0] == "▲ edited, 1 place not repaired   4 → 4 nodes, o.onnx"
    assert len(narrow) < 30
    assert max(map(len, narrow)) <= 60
    assert "\x1b" not in "".join(narrow)
    assert wide.isascii()
    assert wide.count("rename") == 50


def test_every_verb_is_an_option() -> None:
    """The command and its meaning list the same verbs."""
    rows = (*edit_command._VERBS, *edit_command._FLAGS)

    assert {row[0] for row in rows} == set(editing.VERBS)
    assert {name for name, *_ in rows} == {
        option for option in editing.VERBS if option in {word for row in rows for word in row[:1]}
    }


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("Nx3x224", ["N", 3, 224]),
        ("max_len,3,?", ["max_len", 3, None]),
        ("", []),
        ("1×2", [1, 2]),
        ("?x4", [None, 4]),
    ],
)
def test_shapes_in_text(text: str, dims: list[object]) -> None:
    """Sizes, symbols, unknown; commas where a symbol holds an x."""
    assert editing.parse_dims(text) == dims
    with pytest.raises(UsageError):
        editing.parse_dims("1xx3")


def recurrent() -> onnx.ModelProto:
    """Return an RNN whose initial state is for a batch of 1, whatever its input declares."""
    rng = np.random.default_rng(0)
    weights = [
        build.weight("w", rng.standard_normal((1, 4, 3)).astype(np.float32)),
        build.weight("r", rng.standard_normal((1, 4, 4)).astype(np.float32)),
        build.weight("h", np.zeros((1, 1, 4), np.float32)),
    ]
    rnn = onnx.helper.make_node("RNN", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=4)
    shapes = {"inputs": [build.value("x", ["T", "N", 3])], "outputs": [build.value("y", ["T", 1, "N", 4])]}
    return build.model([rnn], weights=weights, **shapes)


def test_a_size_with_which_nothing_runs(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The original runs with a batch of 1; frozen to 2 the model loads and runs on no inputs: exit 1, why."""
    onnx.save(recurrent(), "r.onnx")
    assert edit("--freeze", "T=5", "--freeze", "N=1", model="r.onnx") == 0
    assert "verified:" in capsys.readouterr().out
    assert edit("--freeze", "T=5", "--freeze", "N=2", model="r.onnx") == 1
    shown = capsys.readouterr().out

    assert shown.startswith("▲ edited, 1 place not repaired")
    assert "it runs on no inputs" in shown


def test_nothing_could_be_run(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the original nor the result runs anywhere: written, with a warning in place of a tick."""
    node = onnx.helper.make_node("Unheard", ["x"], ["y"], domain="acme")
    proto = build.model([node], inputs=[build.value("x", [2])], outputs=[build.value("y", [2])])
    proto.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    onnx.save(proto, "u.onnx")

    assert edit("--rename", "x=image", model="u.onnx") == 0
    assert capsys.readouterr().out.startswith("▲ edited, not verified")
    assert edit("--rename", "x=image", "--no-verify", model="u.onnx") == 0


@pytest.mark.parametrize("dim", ["?", "", -1])
def test_dims_without_a_name_are_verified(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], dim: str | int
) -> None:
    """A nameless dim that is fixed has no symbol to give the original; the whole shape is given."""
    proto = build.text(m.CHAIN)
    for value in (proto.graph.input[0], proto.graph.output[0]):
        first = value.type.tensor_type.shape.dim[0]
        first.Clear()
        if isinstance(dim, int):
            first.dim_value = dim
        elif dim:
            first.dim_param = dim
        value.type.tensor_type.shape.dim[1].Clear()
    onnx.save(proto, "q.onnx")

    assert edit("--rename", "x=image", "--freeze", "image.1=3", model="q.onnx") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("✓")
    assert "verified:" in shown


def test_weights_that_an_old_model_lists_as_inputs(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """IR version 3: the part starts at the input that is fed; its weights are not shown beside it."""
    proto = build.text(m.CHAIN)
    proto.ir_version = 3
    proto.graph.input.append(build.value("w", [3]))
    onnx.save(proto, "old.onnx")

    assert edit("--extract", ":b", "--order-inputs", "x", model="old.onnx") == 0
    shown = capsys.readouterr().out
    assert "x → b: 2 of 4 nodes" in shown
    assert "order-inputs  x\n" in shown
    assert [value.name for value in onnx.load("o.onnx").graph.input] == ["x", "w"]


def test_operators_of_ones_own(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --ops the engine runs what it does not know, so the edit is verified."""
    node = onnx.helper.make_node("Triple", ["x"], ["y"], domain="edit.test")
    proto = build.model([node], inputs=[build.value("x", [2])], outputs=[build.value("y", [2])])
    proto.opset_import.append(onnx.helper.make_opsetid("edit.test", 1))
    onnx.save(proto, "t.onnx")
    text = (
        "from graphdoc.engine.ops.table import op\n\n\n"
        "@op('Triple', 1, domain='edit.test')\ndef triple(call, x):\n    return x * 3\n"
    )
    pathlib.Path("ops.py").write_text(text)

    assert edit("--rename", "y=z", "--ops", "ops.py", model="t.onnx") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("✓")
    assert "through engine" in shown


def test_help_keeps_the_examples_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, and no sign of how that is written."""
    assert cli.run(["edit", "--help"]) == 0
    shown = capsys.readouterr().out

    assert "\\b" not in shown
    assert "\n    graphdoc edit m.onnx -o part.onnx --extract conv1_out:pool5\n" in shown


def test_findings_do_not_replace_the_weights(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json under the name of the data file."""
    assert edit("--sort", "--external", "w.data", "--json", "w.data") == 2
    assert "cannot both be" in capsys.readouterr().err
    assert not pathlib.Path("w.data").exists()


@pytest.mark.parametrize(
    ("wrong", "near"), [("RELU", "way/block_1/Relu:0"), ("way/clip", "way/block_1/Relu:0")]
)
def test_names_typed_short(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], wrong: str, near: str
) -> None:
    """The nearest names hold what was typed, or start the same way."""
    proto = build.text(m.CHAIN)
    for node in proto.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = "way/block_1/Relu:0" if name == "b" else name
    onnx.save(proto, "n.onnx")

    assert edit("--output", wrong, model="n.onnx") == 2
    assert f"nearest: '{near}'" in capsys.readouterr().err


def _chain(count: int) -> None:
    names = [f"v{i}" for i in range(count + 1)]
    nodes = [onnx.helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    ends = [build.value("v0")], [build.value(names[-1])]
    onnx.save(build.model(nodes, inputs=ends[0], outputs=ends[1]), "m.onnx")


def _names() -> list[str]:
    return [name for node in onnx.load("o.onnx").graph.node for name in node.input]


def test_many_renames_read_the_names_once(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all names for each of them would take time that grows with the square."""
    _chain(60)
    made = []
    begin = Index.__init__

    def count(self: Index, model: object) -> None:
        made.append(model)
        begin(self, model)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "__init__", count)
    renames = [text for i in range(50) for text in ("--rename", f"v{i}=w{i}")]

    assert edit(*renames, "--no-verify") == 0
    assert _names() == [f"w{i}" for i in range(50)] + [f"v{i}" for i in range(50, 60)]
    assert len(made) <= 2


@pytest.mark.parametrize(
    ("renames", "code", "names"),
    [
        (["v1=a", "a=b", "v2=a"], 0, ["v0", "b", "a"]),
        (["v1=t", "v2=v1", "t=v2"], 0, ["v0", "v2", "v1"]),
        (["v1=v2", "v2=a"], 2, []),
        (["v1=a", "v2=a"], 2, []),
        (["v1=a", "v1=b"], 2, []),
        (["v1=a", "v2="], 2, []),
        (["v1=a", "gone=b"], 2, []),
    ],
)
def test_renames_follow_one_another(
    folder: pathlib.Path, renames: list[str], code: int, names: list[str]
) -> None:
    """In the order given, as if each were an edit of its own; one that fails writes nothing."""
    _chain(3)
    arguments = [text for rename in renames for text in ("--rename", rename)]

    assert edit(*arguments) == code
    assert pathlib.Path("o.onnx").exists() == (not code)
    if not code:
        assert _names() == names
