"""Renaming: everywhere a name occurs, and nowhere else."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_names import arithmetic, dim_symbols
from graphdoc.surgeon.reader import QUANTIZATION
from tests.surgeon import build
from tests.surgeon import edit_models as m


def names_of(proto: onnx.ModelProto) -> set[str]:
    """Return every name of a value that stands in the file, subgraphs included."""
    found: set[str] = set()
    graphs = [proto.graph]
    for graph in graphs:
        infos = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        found |= {info.name for info in infos}
        for node in graph.node:
            found |= {*node.input, *node.output}
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


@pytest.mark.parametrize(("old", "new"), [("x", "image"), ("h", "features"), ("w", "scale"), ("y", "out")])
def test_a_renamed_value_has_no_trace_of_the_old_name(old: str, new: str) -> None:
    """Inputs, inner values, weights and outputs; captures inside branches follow."""
    model = m.model(m.BRANCHES)
    surgeon.rename_values(model, {old: new})
    proto = m.proto_of(model)

    assert old not in names_of(proto)
    assert new in names_of(proto)
    feeds: dict[str, Any] = {"image" if old == "x" else "x": [1, 2], "flag": np.array(True)}
    np.testing.assert_allclose(next(iter(m.run(model, **feeds).values())), [4, 10])


def test_names_can_be_exchanged() -> None:
    """All names change at once."""
    model = m.model(m.CHAIN)
    surgeon.rename_values(model, {"x": "y", "y": "x", "w": "a", "a": "w"})

    assert m.proto_of(model).graph.initializer[0].name == "a"
    np.testing.assert_allclose(m.run(model, y=m.X)["x"], m.run(m.model(m.CHAIN), x=m.X)["y"])


def test_a_value_of_one_branch_is_renamed_alone() -> None:
    """The other branch's value of the same name stays."""
    model = m.model(m.BRANCHES)
    surgeon.rename_values(model, {"t.then_branch/inner": "product"})

    assert {"product", "inner"} <= names_of(m.proto_of(model))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("h", "x", "taken"),
        ("h", "", "empty"),
        ("h", "yes_out", "taken"),
        ("t.then_branch/inner", "w", "taken"),
        ("t.then_branch/innr", "w", "no value is named"),
    ],
)
def test_names_that_clash_are_refused(old: str, new: str, words: str) -> None:
    """Also with values around a subgraph, and inside one: that would hide the outer value."""
    model = m.model(m.BRANCHES)
    before = m.frozen(model)

    with pytest.raises(UsageError, match=words) as caught:
        surgeon.rename_values(model, {old: new})
    assert caught.value.next_step
    assert m.frozen(model) == before


def test_branches_may_share_a_name() -> None:
    """Two branches do not see each other."""
    model = m.model(m.BRANCHES)
    surgeon.rename_values(model, {"yes_out": "out", "no_out": "out"})

    np.testing.assert_allclose(m.run(model, x=[1, 2], flag=np.array(True))["y"], [4, 10])


def test_quantization_annotations_follow() -> None:
    """Annotations name tensors by text."""
    proto = build.text(m.CHAIN)
    note = proto.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    model = surgeon.load(proto)
    surgeon.rename_values(model, {"w": "scale", "a": "scaled"})
    note = m.proto_of(model).graph.quantization_annotation[0]

    assert (note.tensor_name, note.quant_parameter_tensor_names[0].value) == ("scaled", "scale")
    assert model.graph.node(0).outputs[0].meta[QUANTIZATION] == {"SCALE_TENSOR": "scale"}


def test_rename_node() -> None:
    """By its name or by that of its output; a name is given once."""
    model = m.model(m.CHAIN)
    surgeon.rename_node(model, "second", "act")
    surgeon.rename_node(model, "c", "minus")

    assert [node.name for node in model.graph] == ["first", "act", "minus", "fourth"]
    with pytest.raises(UsageError, match="taken by another node"):
        surgeon.rename_node(model, "first", "act")


def sized(*dims: Any) -> ir.Model:
    """Return y = Relu(x) with these dims."""
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    return surgeon.load(
        build.model([node], inputs=[build.value("x", dims)], outputs=[build.value("y", dims)])
    )


def test_rename_dim_in_expressions() -> None:
    """A symbol is renamed as a whole word."""
    model = sized("N", "2*N + 1", "NN", 3)
    surgeon.rename_dim(model, "N", "batch")

    assert dim_symbols(model) == ["batch", "2*batch + 1", "NN"]


@pytest.mark.parametrize(
    ("old", "new", "words"), [("M", "K", "no dim"), ("N", "NN", "exists"), ("N", " ", "empty")]
)
def test_rename_dim_refuses(old: str, new: str, words: str) -> None:
    """Unknown symbols, and new names that would state that two sizes are equal."""
    with pytest.raises(UsageError, match=words):
        surgeon.rename_dim(sized("N", "NN"), old, new)


@pytest.mark.parametrize("text", [m.CHAIN, m.BRANCHES, m.LOOP, m.FUNCTION])
def test_prefix(text: str) -> None:
    """Every value and node of the graph and its subgraphs; functions keep their names."""
    model = m.model(text)
    surgeon.add_prefix(model, "net/")
    proto = m.proto_of(model)

    assert all(name.startswith("net/") for name in names_of(proto) if name)
    assert all(node.name.startswith("net/") for node in proto.graph.node)
    assert [f.name for f in proto.functions] == ([] if text is not m.FUNCTION else ["Twice"])


def test_prefix_without_the_interface() -> None:
    """Inputs and outputs may stay; an empty prefix is refused."""
    model = m.model(m.CHAIN)
    surgeon.add_prefix(model, "net/", interface=False)

    np.testing.assert_allclose(m.run(model, x=m.X)["y"], m.run(m.model(m.CHAIN), x=m.X)["y"])
    with pytest.raises(UsageError, match="empty"):
        surgeon.add_prefix(model, "")


@pytest.mark.parametrize(
    ("text", "size"),
    [("2*3 + 1", 7), ("floor(7/2)", 3), ("max(2, 5)", 5), ("7/2", None), ("N", None), ("1-2", None),
     ("__import__('os')", None), ("2**9999999", None), ("", None)],
)  # fmt: skip
def test_arithmetic(text: str, size: int | None) -> None:
    """Only sums of numbers are worked out; nothing of Python is run."""
    assert arithmetic(text) == size
