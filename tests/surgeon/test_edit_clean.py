"""Order, dead parts, constants, versions, metadata, scripts, and where weights lie."""

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import GraphdocError, ModelError, UsageError
from graphdoc.surgeon.edit_text import NodeText, parse_node
from tests.surgeon import build
from tests.surgeon import edit_models as m

W = np.array([1.0, -2.0, 0.5], np.float32)


def test_cleanup() -> None:
    """What no output needs goes: nodes one after another, weights, functions; then inputs on request."""
    model = m.model("""
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
g (float[2] x, float[2] idle) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] lost = {1.0, 2.0}> {
  a = Mul(x, w)  b = local.Twice(a)  y = Relu(x)
}
<domain: "local", opset_import: ["" : 18]> Twice (a) => (b) { b = Add(a, a) }""")
    found = surgeon.cleanup(model)
    assert (found.nodes, found.initializers, found.functions, found.inputs) == (2, 2, ("local::Twice",), ())

    assert surgeon.cleanup(model, inputs=True).inputs == ("idle",)
    np.testing.assert_allclose(m.run(model, x=[-1, 1])["y"], [0, 1])


def test_cleanup_in_subgraphs_keeps_what_is_captured() -> None:
    """A branch's dead node goes; the values that branches capture stay."""
    model = m.model(m.BRANCHES.replace("inner = Neg(h)", "dead = Exp(h)\n inner = Neg(h)"))
    assert surgeon.cleanup(model).nodes == 1
    np.testing.assert_allclose(m.run(model, x=[1, 2], flag=np.array(False))["y"], [1, 2])


def test_toposort() -> None:
    """Nodes out of order are sorted; a cycle is named."""
    model = m.model(m.CHAIN)
    nodes = list(model.graph)
    model.graph.remove(nodes[0])
    model.graph.append(nodes[0])
    surgeon.toposort(model)
    assert m.ops(model) == ["Mul", "Relu", "Neg", "Abs"]

    nodes[0].replace_input_with(0, nodes[2].outputs[0])
    with pytest.raises(ModelError, match="cycle"):
        surgeon.toposort(model)


def test_fold() -> None:
    """What is the same in every run is computed once."""
    model = m.model(m.CHAIN)
    surgeon.to_initializer(model, "a", m.X)
    assert len(surgeon.fold(model)) == 3
    assert not m.ops(model)


def test_strip() -> None:
    """Documentation, metadata, types and names; the interface keeps its types."""
    proto = build.text(m.CHAIN)
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "text"
    proto.graph.node[1].metadata_props.add(key="k", value="v")
    proto.metadata_props.add(key="author", value="me")
    model = surgeon.load(proto)
    surgeon.strip(model, ["docs", "metadata", "types", "names"])
    found = m.proto_of(model)

    assert b"text" not in found.SerializeToString()
    assert not any(node.name or node.metadata_props for node in found.graph.node)
    assert found.metadata_props[0].value == "me"
    with pytest.raises(UsageError, match="cannot strip 'weights'"):
        surgeon.strip(model, ["weights"])


def test_metadata() -> None:
    """Set and removed."""
    model = m.model(m.CHAIN)
    surgeon.set_metadata(model, "author", "me")
    assert m.proto_of(model).metadata_props[0].key == "author"
    surgeon.set_metadata(model, "author", None)
    with pytest.raises(UsageError, match="no metadata 'author'"):
        surgeon.set_metadata(model, "author", None)


def test_ir_version() -> None:
    """Not below what the model holds."""
    model = m.model(m.FUNCTION)
    surgeon.set_ir_version(model, 8)
    assert m.proto_of(model).ir_version == 8
    for version, kind, words in ((7, ModelError, "functions"), (99, UsageError, "cannot be written")):
        with pytest.raises(kind, match=words):
            surgeon.set_ir_version(model, version)


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_opset(opset: int) -> None:
    """Names, docs and captured values survive; outputs are the same."""
    proto = build.text(m.CHAIN.replace("b = Relu(a)", "b = Softmax(a)"), opset=11)
    proto.graph.node[1].doc_string = "kept"
    model = surgeon.load(proto)
    expected = m.run(proto, x=m.X)["y"]

    assert surgeon.convert_opset(model, opset)
    assert model.opset_imports[""] == opset
    assert [node.name for node in model.graph if node.op_type == "Softmax"] == ["second"]
    assert "kept" in {node.doc_string for node in model.graph}
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], expected, rtol=1e-6)


def test_opset_without_a_change_of_operators() -> None:
    """Only the number changes, so weights and subgraphs are not touched."""
    model = m.model(m.BRANCHES, opset=17)
    node = model.graph.node(0)
    assert not surgeon.convert_opset(model, 18)
    assert model.graph.node(0) is node


@pytest.mark.parametrize(("opset", "kind"), [(0, UsageError), (999, UsageError), (6, ModelError)])
def test_opsets_that_cannot_be(opset: int, kind: type[GraphdocError]) -> None:
    """Versions that do not exist, and operators that an old opset lacks."""
    model = m.model("g (float[2] x) => (float[2] y) { y = Mish(x) }")
    with pytest.raises(kind) as caught:
        surgeon.convert_opset(model, opset)
    assert caught.value.next_step


def weighty() -> ir.Model:
    """Return a model with a weight of 4 kB, one of 12 bytes, and one of 2 kB under an odd name."""
    weights = [
        build.weight("big", np.arange(1000, dtype=np.float32)),
        build.weight("small", W),
        build.weight("a/b:0", np.ones(500, np.float32)),
    ]
    nodes = [
        onnx.helper.make_node("ReduceSum", ["big"], ["s"]),
        onnx.helper.make_node("ReduceSum", ["a/b:0"], ["t"]),
        onnx.helper.make_node("Sum", ["s", "t", "x"], ["u"]),
        onnx.helper.make_node("Add", ["u", "small"], ["y"]),
    ]
    shapes: dict[str, Any] = {"inputs": [build.value("x", [3])], "outputs": [build.value("y", [3])]}
    return surgeon.load(build.model(nodes, weights=weights, **shapes))


def files(folder: pathlib.Path) -> dict[str, int]:
    """Return the files below a folder and their sizes."""
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def test_split_and_join(tmp_path: pathlib.Path) -> None:
    """One file, a file each, and back into the model: always the same weights."""
    expected = m.run(weighty(), x=[0, 0, 0])["y"]
    one, each, joined = (tmp_path / name for name in ("one", "each", "joined"))
    for folder in (one, each, joined):
        folder.mkdir()
    surgeon.save(weighty(), one / "m.onnx", layout=surgeon.Layout("m.data"))
    surgeon.save(surgeon.load(one / "m.onnx"), each / "m.onnx", layout=surgeon.Layout("w/", threshold=0))
    surgeon.save(surgeon.load(each / "m.onnx"), joined / "m.onnx", layout=surgeon.Layout())

    assert files(one)["m.data"] == 6000
    assert set(files(each)) == {"m.onnx", "w/big", "w/a_b_0"}  # 3 elements always stay in the model
    assert set(files(joined)) == {"m.onnx"}
    for folder in (one, each, joined):
        np.testing.assert_array_equal(m.run(onnx.load(folder / "m.onnx"), x=[0, 0, 0])["y"], expected)


def test_shapes_stay_in_the_model(tmp_path: pathlib.Path) -> None:
    """ONNX Runtime refuses a model whose Reshape has its target in a file."""
    target = build.weight("t", np.array([1] * 18 + [2], np.int64))
    proto = build.model([onnx.helper.make_node("Reshape", ["x", "t"], ["y"])], weights=[target])
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * 19)
    surgeon.save(surgeon.load(proto), tmp_path / "m.onnx", layout=surgeon.Layout("w/", threshold=0))

    ort.InferenceSession(tmp_path / "m.onnx")
    assert set(files(tmp_path)) == {"m.onnx"}


def test_a_layout_in_place(tmp_path: pathlib.Path) -> None:
    """The data file that is read is written over at the end, not before."""
    path = tmp_path / "m.onnx"
    surgeon.save(weighty(), path, layout=surgeon.Layout("m.data"))
    surgeon.save(surgeon.load(path), path, layout=surgeon.Layout("m.data", threshold=3000))

    assert files(tmp_path)["m.data"] == 4000
    assert m.run(onnx.load(path), x=[0, 0, 0])["y"][0] == 500_001


@pytest.mark.parametrize("location", ["../out.data", "/abs.data", "a/../../b.data", "m.onnx"])
def test_a_layout_that_leaves_the_folder(tmp_path: pathlib.Path, location: str) -> None:
    """Refused, and nothing is written; so is the model's own name."""
    with pytest.raises(ModelError) as caught:
        surgeon.save(weighty(), tmp_path / "m.onnx", layout=surgeon.Layout(location))
    assert caught.value.next_step
    assert files(tmp_path) == {}


def test_names_that_differ_only_in_signs(tmp_path: pathlib.Path) -> None:
    """Each weight has a file of its own."""
    arrays = {"w:1": 1.0, "w/1": 2.0, "W_1": 3.0, "..": 4.0}
    weights = [build.weight(name, [value] * 20) for name, value in arrays.items()]
    proto = build.model([onnx.helper.make_node("Concat", list(arrays), ["y"], axis=0)], weights=weights)
    surgeon.save(surgeon.load(proto), tmp_path / "m.onnx", layout=surgeon.Layout("w/", threshold=0))

    assert len(files(tmp_path)) == 5
    np.testing.assert_array_equal(m.run(onnx.load(tmp_path / "m.onnx"), x=[0, 0])["y"][::20], [1, 2, 3, 4])


def script(folder: pathlib.Path, text: str) -> pathlib.Path:
    """Write a script and return its path."""
    path = folder / "edits.py"
    path.write_text(text, "utf-8")
    return path


def test_scripts(tmp_path: pathlib.Path) -> None:
    """In place, or with another model as result."""
    path = script(
        tmp_path, "import graphdoc.surgeon as s\ndef edit(model):\n    s.insert(model, 'b', 'Neg')\n"
    )
    assert m.ops(surgeon.run_script(m.model(m.CHAIN), path)) == ["Mul", "Relu", "Neg", "Neg", "Abs"]

    path = script(
        tmp_path,
        "import graphdoc.surgeon as s\ndef edit(model):\n    return s.extract(model, ['a'], ['b'])\n",
    )
    assert m.ops(surgeon.run_script(m.model(m.CHAIN), path)) == ["Relu"]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("def edit(model)\n", UsageError, "is no Python"),
        ("def change(model):\n    pass\n", UsageError, "no function edit"),
        ("def edit(model):\n    return 3\n", ModelError, "returned int"),
        ("def edit(model):\n    x = 1\n    raise KeyError('k')\n", ModelError, "line 3"),
        ("1 / 0\n", ModelError, "ZeroDivisionError"),
        (
            "import graphdoc.surgeon as s\ndef edit(model):\n    s.bypass(model, 'nope')\n",
            UsageError,
            "no node",
        ),
    ],
)
def test_scripts_that_fail(tmp_path: pathlib.Path, text: str, kind: type[GraphdocError], words: str) -> None:
    """The line of the script is named."""
    with pytest.raises(kind) as caught:
        surgeon.run_script(m.model(m.CHAIN), script(tmp_path, text))
    assert words in str(caught.value)
    assert caught.value.next_step


def test_a_missing_script(tmp_path: pathlib.Path) -> None:
    """No traceback."""
    with pytest.raises(UsageError, match="no such file"):
        surgeon.run_script(m.model(m.CHAIN), tmp_path / "none.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Clip(x, 0.0, 6.0)", NodeText("Clip", outputs=("y",), inputs=("x", 0.0, 6.0))),
        ("[n] a, b = acme.Op <axis = 1> (x)", NodeText("Op", "acme", "n", ("a", "b"), ("x",), {"axis": 1})),
        ('R <m = "no"> (x,, [1, 2])', NodeText("R", inputs=("x", None, [1, 2]), attributes={"m": "no"})),
        ('"p q" = Relu(/a/b:0)', NodeText("Relu", outputs=("p q",), inputs=("/a/b:0",))),
        ("Relu", NodeText("Relu")),
    ],
)  # fmt: skip
def test_nodes_in_text(text: str, expected: NodeText) -> None:
    """Names, numbers, lists, attributes; what is left out."""
    assert parse_node(text) == expected


@pytest.mark.parametrize("text", ["y = Relu x", "", "y = (x)", "y = Relu <axis> (x)"])
def test_text_that_is_no_node(text: str) -> None:
    """The form is shown."""
    with pytest.raises(UsageError) as caught:
        parse_node(text)
    assert "Clip" in str(caught.value)
