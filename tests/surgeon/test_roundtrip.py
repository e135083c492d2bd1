"""load → save gives back the protobuf that was there; an edit changes what was edited, and no more."""

import filecmp
import pathlib
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from graphdoc.surgeon.model import load, open_source, save
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.writer import write_model
from tests import sources
from tests.surgeon import build
from tests.surgeon.strategies import models


def again(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model read and written; the one given must not change on the way."""
    before = proto.SerializeToString(deterministic=True)
    result = write_model(read_model(proto, None))

    assert proto.SerializeToString(deterministic=True) == before
    return result


def official(kind: str) -> list[tuple[str, onnx.ModelProto]]:
    """Return the official backend models of a kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their making overflows on purpose
        cases = load_model_tests(kind=kind)
    found = []
    for case in cases:
        if case.model is not None:
            found.append((case.name, case.model))
        elif case.model_dir and (path := pathlib.Path(case.model_dir, "model.onnx")).exists():
            found.append((case.name, onnx.load(path, load_external_data=False)))
    return found


@pytest.mark.parametrize("kind", ["node", "simple", "pytorch-operator", "pytorch-converted"])
def test_official_models_come_back(kind: str) -> None:
    """Every model of the official backend suite is equal after load and save."""
    cases = official(kind)

    assert len(cases) > 20
    assert [name for name, model in cases if again(model) != model] == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_odd_models_come_back(model: onnx.ModelProto) -> None:
    """Models with every field, listed twice, out of order, half typed, are equal after load and save."""
    stored = onnx.ModelProto.FromString(model.SerializeToString())

    assert again(stored) == stored


@pytest.mark.parametrize("path", sources.real_models())
def test_real_models_come_back(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Real models and their external data are equal after load and save into another folder."""
    source = open_source(path)
    save(load(path), tmp_path / "again.onnx")

    saved = onnx.load(tmp_path / "again.onnx", load_external_data=False)
    assert saved == source.proto
    data = [file.relative_to(path.parent) for file in source.files[1:]]
    assert filecmp.cmpfiles(path.parent, tmp_path, list(map(str, data)), shallow=False)[1:] == ([], [])


def test_the_comparison_can_fail() -> None:
    """An edited model is not equal."""
    model = read_model(build.add(), None)
    next(iter(model.graph)).name = "renamed"

    assert write_model(model) != build.add()


# What onnx_ir alone loses


def test_sparse_initializer_is_dense_in_memory_and_sparse_in_the_file() -> None:
    """A sparse initializer reads as a dense tensor and is written as it was."""
    proto = build.model([helper.make_node("Add", ["x", "w"], ["y"])])
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [3.0, 4.0])
    indices = helper.make_tensor("", TensorProto.INT64, [2, 2], [0, 1, 1, 2])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))

    model = read_model(proto, None)

    dense = model.graph.initializers["w"].const_value
    assert dense is not None
    assert dense.numpy().tolist() == [[0, 3, 0], [0, 0, 4]]
    assert write_model(model) == proto


def test_replaced_sparse_initializer_is_written_dense() -> None:
    """An edited sparse initializer becomes a plain one, and is there once."""
    proto = build.model([helper.make_node("Add", ["x", "w"], ["y"])])
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [3.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    model = read_model(proto, None)

    model.graph.initializers["w"].const_value = ir.Tensor(np.array([5, 6], np.float32))
    written = write_model(model).graph

    assert len(written.sparse_initializer) == 0
    assert numpy_helper.to_array(written.initializer[0]).tolist() == [5, 6]


@pytest.mark.parametrize("field", ["s", "strings"])
def test_bytes_that_are_no_text_survive(field: str) -> None:
    """String attributes that are not UTF-8 come as bytes and go out unchanged."""
    node = helper.make_node("Odd", ["x"], ["y"], domain="odd")
    attribute = node.attribute.add(name="blob")
    if field == "s":
        attribute.type, attribute.s = onnx.AttributeProto.STRING, b"\xff\x00"
    else:
        attribute.type = onnx.AttributeProto.STRINGS
        attribute.strings.extend([b"ok", b"\xff"])
    proto = build.model([node])
    proto.opset_import.add(domain="odd", version=1)

    model = read_model(proto, None)

    value = next(iter(model.graph)).attributes["blob"].value
    assert value == (b"\xff\x00" if field == "s" else ("ok", b"\xff"))
    assert write_model(model) == proto


def test_map_types_survive_an_edit_elsewhere() -> None:
    """A type that onnx_ir does not know is unknown in memory and kept in the file."""
    proto = build.model(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1])]
    )
    proto.opset_import.add(domain="ai.onnx.ml", version=1)
    map_type = proto.graph.output[0].type.sequence_type.elem_type.map_type
    map_type.key_type = TensorProto.INT64
    map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model = read_model(proto, None)

    assert model.graph.outputs[0].type is None
    next(iter(model.graph)).name = "edited"
    assert write_model(model).graph.output[0] == proto.graph.output[0]


def test_unsorted_nodes_are_sorted_in_memory_alone() -> None:
    """Nodes out of order can be walked in order, and are saved as they were."""
    second, first = helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])
    proto = build.model([second, first])
    model = read_model(proto, None)

    assert [node.op_type for node in model.graph] == ["Abs", "Relu"]
    assert write_model(model) == proto


def test_unsorted_nodes_stay_sorted_when_one_is_added() -> None:
    """After an edit of the node list the saved order is that of the memory."""
    proto = build.model([helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])])
    model = read_model(proto, None)
    first = model.graph[0]
    model.graph.insert_after(first, ir.Node("", "Neg", [first.outputs[0]], name="new"))

    assert [node.op_type for node in write_model(model).graph.node] == ["Abs", "Neg", "Relu"]


def test_names_of_nodes_are_left_alone() -> None:
    """Missing and equal names of nodes are what they are, in memory and in the file."""
    chain = [helper.make_node("Abs", ["x"], ["a"], name="n"), helper.make_node("Abs", ["a"], ["b"], name="n")]
    proto = build.model([*chain, helper.make_node("Abs", ["b"], ["y"])])
    model = read_model(proto, None)

    assert [node.name for node in model.graph] == ["n", "n", ""]
    assert write_model(model) == proto


def test_the_last_of_two_opsets_holds() -> None:
    """The default domain listed twice, in both spellings: the last holds, as in ONNX Runtime."""
    proto = build.relu()
    proto.opset_import.add(domain="ai.onnx", version=17)

    model = read_model(proto, None)

    assert dict(model.opset_imports) == {"": 17}
    assert write_model(model) == proto


# Edits


def test_changed_opset_is_written_once() -> None:
    """A new version replaces all entries of the domain."""
    proto = build.relu()
    proto.opset_import.add(domain="", version=18)
    model = read_model(proto, None)
    model.opset_imports[""] = 19

    assert [(item.domain, item.version) for item in write_model(model).opset_import] == [("", 19)]


def test_renaming_reaches_every_place() -> None:
    """A new name reaches inputs, nodes, value_info and weights; the message loaded is not touched."""
    proto = build.model(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        weights=[build.weight("w", [1, 2])],
    )
    proto.graph.value_info.extend([build.value("a"), build.value("w")])
    model = read_model(proto, None)
    for name, node in (("x", 0), ("w", 0)):
        value = next(v for v in model.graph[node].inputs if v is not None and v.name == name)
        value.name = f"{name}2"
    model.graph[0].outputs[0].name = "a2"
    written = write_model(model).graph

    assert [info.name for info in written.input] == ["x2"]
    assert list(written.node[0].input) == ["x2", "w2"]
    assert [tensor.name for tensor in written.initializer] == ["w2"]
    assert [info.name for info in written.value_info] == ["a2"]
    assert proto.graph.initializer[0].name == "w"


def test_learned_shapes_are_written_and_others_are_not_repeated() -> None:
    """A shape found in memory goes to value_info; initializers, inputs and outputs are not added there."""
    proto = build.model(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        weights=[build.weight("w", [1, 2])],
    )
    model = read_model(proto, None)
    inner = model.graph[0].outputs[0]
    inner.type, inner.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2])
    written = write_model(model)

    assert list(written.graph.value_info) == [build.value("a")]
    written.graph.ClearField("value_info")
    assert written == proto


def test_value_info_goes_with_its_value() -> None:
    """A removed node takes its value_info along; a description of nothing stays."""
    proto = build.model([helper.make_node("Abs", ["x"], ["dead"]), helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.value_info.extend([build.value("dead"), build.value("never")])
    model = read_model(proto, None)
    model.graph.remove(model.graph[0], safe=True)

    assert [info.name for info in write_model(model).graph.value_info] == ["never"]


def test_a_new_weight_of_another_type_drops_its_old_description() -> None:
    """value_info of an initializer must not contradict the weight that replaced it."""
    proto = build.add()
    proto.graph.value_info.append(build.value("w"))
    model = read_model(proto, None)
    model.graph.initializers["w"].const_value = ir.Tensor(np.ones(2, np.float16))
    written = write_model(model).graph

    assert written.initializer[0].data_type == TensorProto.FLOAT16
    assert len(written.value_info) == 0


def test_an_edited_subgraph_is_written() -> None:
    """An edit inside a branch is seen although the attribute that holds the branch is the same object."""
    proto = build.text(
        """g (bool c, float[2] x) => (float[2] y) {
          y = If (c) <then_branch = t () => (float[2] a) { a = Abs(x) },
                      else_branch = e () => (float[2] b) { b = Neg(x) }>
        }"""
    )
    model = read_model(proto, None)
    branch = model.graph[0].attributes["then_branch"].as_graph()
    branch[0].op_type = "Relu"
    written = write_model(model).graph.node[0]

    assert [a.g.node[0].op_type for a in written.attribute] == ["Relu", "Neg"]
    assert written.attribute[1] == proto.graph.node[0].attribute[1]


def test_a_clone_is_written_like_its_original() -> None:
    """A copy of the graph keeps what onnx_ir has no place for."""
    proto = build.add()
    proto.graph.node[0].attribute.add(name="old")  # without a type, as in the first models
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "odd", "Odd"
    proto.opset_import.add(domain="odd", version=1)
    model = read_model(proto, None)
    copy = ir.Model(model.graph.clone(), ir_version=model.ir_version)

    assert write_model(copy).graph == proto.graph
