"""A stripped model reads as zeros: whatever decides by weights refuses it, and edits keep its stubs."""

import pathlib
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from graphdoc import cli, surgeon
from graphdoc.engine.errors import ModelError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.diff import diff_models
from graphdoc.surgeon.lint_mend import fix_model
from graphdoc.surgeon.model import load, open_source, save
from graphdoc.surgeon.prune import prune
from graphdoc.surgeon.simplify import simplify
from graphdoc.surgeon.stripping import restore, strip
from graphdoc.surgeon.stubs import is_stripped
from graphdoc.surgeon.weight_stats import dedup, weight_stats
from tests.surgeon import build
from tests.surgeon import edit_models as m

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def layers(*, constants: bool = False) -> onnx.ModelProto:
    """Return two products and two sums; weights of equal shape and unequal content."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (4, 4), "w2": (4, 4), "b1": (4,), "b2": (4,)}
    weights = [build.weight(n, rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
    steps = [("MatMul", "x w1", "a"), ("Add", "a b1", "b"), ("MatMul", "b w2", "c"), ("Add", "c b2", "y")]
    nodes = [onnx.helper.make_node(op, names.split(), [out], name=f"n_{out}") for op, names, out in steps]
    made = [onnx.helper.make_node("Constant", [], [w.name], value=w) for w in weights] if constants else []
    return build.model(
        [*made, *nodes],
        inputs=[build.value("x", [1, 4])],
        outputs=[build.value("y", [1, 4])],
        weights=() if constants else weights,
    )


@pytest.fixture(params=[False, True], ids=["initializers", "constants"])
def whole(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """The model with its weights in either form."""
    return layers(constants=request.param)


WORK: dict[str, Callable[[onnx.ModelProto], object]] = {
    "simplify": lambda proto: simplify(load(proto)),
    "rewrite": lambda proto: surgeon.rewrite(load(proto), "identity"),
    "lint --fix": fix_model,
    "dedup": lambda proto: dedup(load(proto)),
    "prune": lambda proto: prune(load(proto)),
    "stats": lambda proto: list(weight_stats(load(proto))),
    "diff": lambda proto: diff_models(proto, proto),
    "fold": lambda proto: surgeon.fold(load(proto)),
    "convert_opset": lambda proto: surgeon.convert_opset(load(proto), 17),
    "freeze": lambda proto: surgeon.freeze(load(proto), {"x.0": 2}),
    "free": lambda proto: surgeon.free(load(proto), "x.0", "N"),
    "set_shape": lambda proto: surgeon.set_shape(load(proto), "x", ["N", 4]),
}


@pytest.mark.parametrize("work", WORK)
def test_work_on_weights_refuses_stubs(whole: onnx.ModelProto, work: str) -> None:
    """The same work takes the whole model."""
    bare, _ = strip(open_source(whole))
    WORK[work](whole)
    with pytest.raises(ModelError, match="stripped") as caught:
        WORK[work](bare)

    assert "graphdoc weights restore" in str(caught.value.next_step)


@pytest.mark.parametrize("verb", ["--fold", "--opset=20", "--freeze=x.0=1", "--set-shape=x=Nx4"])
def test_edits_that_read_constants_refuse_stubs(
    whole: onnx.ModelProto, verb: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written."""
    bare, out = tmp_path / "bare.onnx", tmp_path / "o.onnx"
    save(load(strip(open_source(whole))[0]), bare)
    option, _, text = verb.partition("=")

    assert cli.run(["edit", str(bare), "-o", str(out), option, *filter(None, [text])]) == 3
    assert "stripped" in capsys.readouterr().err
    assert not out.exists()


EDITS = {
    "rename": ["--rename", "w1=kernel", "--rename", "y=out"],
    "prefix": ["--prefix", "p/"],
    "extract": ["--extract", "x:c", "--output", "a"],
    "external": ["--external", "w.data", "--external-from", "0"],
    "strip": ["--strip", "docs,metadata,types,names"],
    "order": ["--sort", "--cleanup"],
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_stubs_can_be_restored(
    whole: onnx.ModelProto, name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stripped, edited and restored is edited: every bit of the outputs, and no zeros left."""
    paths = {title: tmp_path / f"{title}.onnx" for title in ("whole", "bare", "edited", "again", "direct")}
    onnx.save(whole, paths["whole"])
    run = cli.run
    edits = EDITS[name]

    assert run(["weights", "strip", str(paths["whole"]), "-o", str(paths["bare"])]) == 0
    assert run(["edit", str(paths["bare"]), "-o", str(paths["edited"]), *edits]) == 0
    assert "zeros stood in place" in capsys.readouterr().out
    arguments = ["--weights", str(paths["whole"]), "-o", str(paths["again"])]
    assert run(["weights", "restore", str(paths["edited"]), *arguments]) == 0
    direct = [text.replace("w.data", "direct.data") for text in edits]
    assert run(["edit", str(paths["whole"]), "-o", str(paths["direct"]), *direct]) == 0
    again, wanted = load(paths["again"]), load(paths["direct"])
    feeds = {str(again.graph.inputs[0].name): X}
    found, expected = Interpreter(again).run(feeds), Interpreter(wanted).run(feeds)

    assert not is_stripped(again)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
        assert np.any(value)


def test_a_stripped_model_runs_and_compares(
    whole: onnx.ModelProto, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sparse tensors, in Constant nodes too, are read alike by ONNX Runtime and the engine: as zeros."""
    bare = tmp_path / "bare.onnx"
    save(load(strip(open_source(whole))[0]), bare)

    assert cli.run(["compare", str(bare)]) == 0
    assert "4 weights were stripped: zeros stand in their place" in capsys.readouterr().out
    assert cli.run(["run", str(bare), "--runner", "engine"]) == 0
    said = capsys.readouterr()
    assert (
        said.err == "note: 4 weights were stripped: zeros stand in their place, and the values mean little\n"
    )
    assert "note" not in said.out
    assert cli.run(["lint", str(bare)]) == 0
    assert "stripped-weight" in capsys.readouterr().out


def test_which_side_is_stripped_is_said(
    whole: onnx.ModelProto, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole model has no such remark."""
    paths = [tmp_path / name for name in ("whole.onnx", "bare.onnx")]
    onnx.save(whole, paths[0])
    save(load(strip(open_source(whole))[0]), paths[1])

    assert cli.run(["compare", *map(str, paths), "--test", "ort"]) == 1
    assert "B: 4 weights were stripped" in capsys.readouterr().out
    assert cli.run(["compare", str(paths[0])]) == 0
    assert "stripped" not in capsys.readouterr().out


def test_a_sparse_weight_that_is_no_stub(tmp_path: pathlib.Path) -> None:
    """It has a content: nothing refuses it, and it stays sparse under a new name."""
    proto = layers()
    dense = onnx.numpy_helper.to_array(proto.graph.initializer[2])
    where = onnx.numpy_helper.from_array(np.arange(4, dtype=np.int64))
    values = onnx.numpy_helper.from_array(dense, "b1")
    del proto.graph.initializer[2]
    proto.graph.sparse_initializer.add().CopyFrom(onnx.helper.make_sparse_tensor(values, where, [4]))
    model = load(proto)
    surgeon.rename_values(model, {"b1": "bias"})
    save(model, tmp_path / "m.onnx", layout=surgeon.Layout("w.data", threshold=0))
    found = onnx.load(tmp_path / "m.onnx")

    assert not is_stripped(model)
    assert [sparse.values.name for sparse in found.graph.sparse_initializer] == ["bias"]
    np.testing.assert_array_equal(m.run(found, x=X)["y"], m.run(layers(), x=X)["y"])
    simplify(model)


def test_restoring_gives_back_every_bit(whole: onnx.ModelProto) -> None:
    """Untouched in between."""
    bare, _ = strip(open_source(whole))
    again, stubs = restore(open_source(bare), open_source(whole))

    assert len(stubs) == 4
    for key, value in Interpreter(load(whole)).run({"x": X}).items():
        np.testing.assert_array_equal(Interpreter(again).run({"x": X})[key], value)
