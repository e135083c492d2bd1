"""What is refused at load, with place and reason; what is merely odd is not refused.

The command line's tests cover each fault once (tests/graphdoc/bad_models.py); here is what they leave open.
"""

import onnx
import onnx.checker
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.validate import validate
from tests.graphdoc.bad_models import CASES, Bad
from tests.surgeon import build


def runs_on_ort(proto: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime loads the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


HARSHER = {
    "no outputs",
    "value name not utf-8",
    "doc string not utf-8",
    "metadata not utf-8",
    "symbol not utf-8",
}
"""Refused here alone. ONNX Runtime loads a model without outputs, which has nothing to run or compare, and
takes texts as bytes, which Python cannot name or write back.
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_what_is_refused_is_refused_elsewhere(case: Bad) -> None:
    """ONNX Runtime or onnx.checker refuses it too: the oracle that these checks are not too strict."""
    accepted = _accepted(case.make())

    assert accepted == (case.name in HARSHER)


def _accepted(data: bytes) -> bool:
    """Whether both the checker and ONNX Runtime take the bytes for a model."""
    try:
        proto = onnx.ModelProto.FromString(data)
        onnx.checker.check_model(proto)
    except Exception:
        return False
    return runs_on_ort(proto)


def _named(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    proto.graph.name = name
    return proto


def _unsorted() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])])


def _captured_late() -> onnx.ModelProto:
    """A branch reads a value that a later node of the outer graph makes."""
    body = helper.make_graph([helper.make_node("Relu", ["late"], ["a"])], "b", [], [build.value("a")])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Abs", ["x"], ["late"]),
    ]
    return build.model(nodes, inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])


def _first_ir_version() -> onnx.ModelProto:
    """No opset, attributes without a type: the first version of the format."""
    proto = build.model([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)])
    proto.ir_version = 1
    del proto.opset_import[:]
    proto.graph.node[0].attribute[0].ClearField("type")
    return proto


def _duplicate_weight() -> onnx.ModelProto:
    proto = build.add()
    proto.graph.initializer.append(build.weight("w", [3, 4]))
    return proto


ODD = {
    "unsorted": _unsorted,
    "captured late": _captured_late,
    "first IR version": _first_ir_version,
    "weight listed twice": _duplicate_weight,
    "no graph name": lambda: _named(build.relu(), ""),
    "odd graph name": lambda: _named(build.relu(), "\u202e\n"),
    "output is an input": lambda: build.model(
        [helper.make_node("Relu", ["x"], ["z"])], outputs=[build.value("x")]
    ),
    "no nodes": lambda: build.model([], outputs=[build.value("x")]),
    "empty weight": lambda: build.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        weights=[helper.make_tensor("w", TensorProto.FLOAT, [0, 10**12], [])],
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_read(name: str) -> None:
    """Models that can be run are read, whatever they look like."""
    model = read_model(ODD[name](), None)

    assert [output.name for output in model.graph.outputs] in (["y"], ["x"])


def test_attributes_without_a_type_get_that_of_their_field() -> None:
    """The first models stated no attribute types."""
    model = read_model(_first_ir_version(), None)

    assert model.graph[0].attributes["alpha"].as_float() == 0.5


def test_the_last_weight_of_a_name_holds() -> None:
    """Of two initializers of a name ONNX Runtime takes the last; so does the graph in memory."""
    weight = read_model(_duplicate_weight(), None).graph.initializers["w"].const_value

    assert weight is not None
    assert weight.numpy().tolist() == [3, 4]


def test_a_sorted_capture() -> None:
    """Sorting sees what subgraphs capture."""
    assert [node.op_type for node in read_model(_captured_late(), None).graph] == ["Abs", "If"]


def test_the_way_to_an_inner_fault_is_told() -> None:
    """The place names node and branch, from the outside in."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["nope"], ["a"], name="r")], "b", [], [build.value("a")]
    )
    middle = helper.make_graph(
        [helper.make_node("If", ["c"], ["m"], name="in", then_branch=inner, else_branch=inner)],
        "m",
        [],
        [build.value("m")],
    )
    outer = helper.make_node("If", ["c"], ["y"], name="out", then_branch=middle, else_branch=middle)
    proto = build.model([outer], inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])

    with pytest.raises(ModelError) as caught:
        validate(proto)
    assert caught.value.where == (
        "graph 'g', node 0 If out, else_branch, node 0 If in, else_branch, node 0 Relu r"
    )


def test_a_long_cycle_is_shortened() -> None:
    """The message names the way of a cycle, at most six nodes of it."""
    nodes = [helper.make_node("Abs", [f"v{n}"], [f"v{(n + 1) % 40}"]) for n in range(40)]
    proto = build.model([*nodes, helper.make_node("Relu", ["v0"], ["y"])])

    with pytest.raises(ModelError) as caught:
        validate(proto)
    assert caught.value.where is not None
    assert caught.value.where.count("→") == 6
    assert caught.value.where.endswith("…")


def test_nesting_in_memory_has_an_end() -> None:
    """A model built in memory may be nested deeper than a file; past a hundred graphs it is refused."""
    proto = build.relu()
    graph = proto.graph
    for _ in range(120):
        node = graph.node.add(op_type="Odd", domain="odd", output=["z"])
        graph = node.attribute.add(name="g", type=onnx.AttributeProto.GRAPH).g
        graph.output.add(name="q")
        graph.node.add(op_type="Odd", domain="odd", output=["q"])
    proto.opset_import.add(domain="odd", version=1)

    with pytest.raises(ModelError, match="more than 100 subgraphs"):
        validate(proto)


def test_a_function_overload_may_call_its_namesake() -> None:
    """Two overloads are two functions: that one calls the other is no recursion."""
    imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 18)]
    inner = helper.make_function("own", "F", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], imports)
    inner.overload = "b"
    call = helper.make_node("F", ["p"], ["q"], domain="own", overload="b")
    outer = helper.make_function("own", "F", ["p"], ["q"], [call], imports)
    proto = build.model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[outer, inner])
    proto.opset_import.add(domain="own", version=1)

    validate(proto)


@pytest.mark.parametrize("seconds", [10])
def test_ten_thousand_nodes_are_quick(seconds: int) -> None:
    """A long chain, in reverse order, is read without deep recursion."""
    import time

    nodes = [helper.make_node("Abs", [f"v{n}"], [f"v{n + 1}"]) for n in range(10_000)]
    proto = build.model(
        [helper.make_node("Abs", ["v10000"], ["y"]), *reversed(nodes)], inputs=[build.value("v0")]
    )
    started = time.process_time()

    assert next(iter(read_model(proto, None).graph)).inputs[0].name == "v0"
    assert time.process_time() - started < seconds


def test_a_default_attribute_of_a_function_may_be_a_graph() -> None:
    """A function may have a graph among the defaults of its attributes."""
    function = helper.make_function(
        "own", "F", ["p"], ["q"], [helper.make_node("Relu", ["p"], ["q"])], [helper.make_opsetid("", 18)]
    )
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value_int=1)], "d", [], [build.value("k")]
    )
    function.attribute_proto.append(helper.make_attribute("body", inner))
    proto = build.model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[function])
    proto.opset_import.add(domain="own", version=1)

    found = next(iter(read_model(proto, None).functions.values()))
    assert found.attributes["body"].as_graph()[0].op_type == "Constant"
