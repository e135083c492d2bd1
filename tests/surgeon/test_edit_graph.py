"""Nodes added, inserted, replaced, removed and bypassed: outputs through ONNX Runtime, and every refusal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import GraphdocError, ModelError, UsageError
from tests.surgeon import edit_models as m

W = np.array([1.0, -2.0, 0.5], np.float32)


def test_insert_moves_every_reader() -> None:
    """All that read the value read the result."""
    model = m.model(m.CHAIN)
    node = surgeon.insert(model, "b", "Mul", [3.0], output="tripled")

    assert m.ops(model) == ["Mul", "Relu", "Mul", "Neg", "Abs"]
    assert node.outputs[0].name == "tripled"
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], 3 * np.maximum(m.X * W, 0))


def test_insert_before_an_output_keeps_its_name() -> None:
    """The model still gives out 'y', now after the new node."""
    model = m.model(m.CHAIN)
    surgeon.insert(model, "y", "Clip", [None, 1.0])

    np.testing.assert_allclose(m.run(model, x=m.X)["y"], np.minimum(np.maximum(m.X * W, 0), 1))


def test_insert_after_an_input_and_a_weight() -> None:
    """Inputs and initializers have no producer; their readers move all the same."""
    model = m.model(m.CHAIN)
    surgeon.insert(model, "x", "Neg")
    surgeon.insert(model, "w", "Neg")

    np.testing.assert_allclose(m.run(model, x=m.X)["y"], np.maximum(m.X * W, 0))


def test_insert_reaches_readers_in_subgraphs() -> None:
    """A branch that captures the value reads the new one too."""
    model = m.model(m.BRANCHES)
    surgeon.insert(model, "h", "Mul", [2.0])
    flags = {True: 2 * np.array([3.0, 0]) + [1, -1], False: [2.0, 0.0]}

    for flag, expected in flags.items():
        np.testing.assert_allclose(m.run(model, x=[1, -1], flag=np.array(flag))["y"], np.abs(expected))


def test_insert_inside_a_subgraph() -> None:
    """The node goes into the branch, an initializer with it."""
    model = m.model(m.BRANCHES)
    surgeon.insert(model, "t.then_branch/inner", "Mul", [10.0])

    np.testing.assert_allclose(m.run(model, x=[1, 2], flag=np.array(True))["y"], [31, 82])
    np.testing.assert_allclose(m.run(model, x=[1, 2], flag=np.array(False))["y"], [1, 2])


def test_insert_inside_a_function() -> None:
    """Functions hold no initializers: the number becomes a Constant node."""
    model = m.model(m.FUNCTION)
    surgeon.insert(model, "Twice/t", "Add", [1.0])

    np.testing.assert_allclose(m.run(model, x=[1, 2])["y"], [-3, -5])


def test_literals_take_the_dtype_that_the_operator_asks_for() -> None:
    """2.0 beside a float16 value is float16; axes stay int64."""
    text = m.CHAIN.replace("float[", "float16[").replace("{1.0, -2.0, 0.5}", "{15360, 49152, 14336}")
    model = m.model(text)
    surgeon.insert(model, "a", "Mul", [2.0])
    node = surgeon.add_node(model, "ReduceSum", ["a", [0]], ["total"])

    assert node.inputs[1].dtype == ir.DataType.INT64
    assert m.proto_of(model)


def test_replace_a_chain_by_one_node() -> None:
    """What lay between goes with all that only it needed, weights too."""
    model = m.model(m.CHAIN)
    surgeon.replace(model, ["c"], "Sigmoid", ["x"])

    assert m.ops(model) == ["Sigmoid", "Abs"]
    assert not model.graph.initializers
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], 1 / (1 + np.exp(-m.X)), rtol=1e-4)


def test_replace_keeps_what_others_need() -> None:
    """A node between the values that has other readers stays."""
    model = m.model(m.DIAMOND)
    surgeon.replace(model, ["y"], "Max", ["a", "b"])

    assert sorted(m.ops(model)) == ["Max", "Mul", "Neg", "Relu", "Sigmoid"]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(m.run(model, x=x, s=[0, 1, 2, 3])["y"], [[1, 1, 2, 3]] * 2)


def test_replace_several_outputs_at_once() -> None:
    """One node with two outputs takes the place of two."""
    model = m.model("g (float[4] x) => (float[2] p, float[2] q) {\n"
                    "  k = Constant <value_ints = [2, 2]> ()\n"
                    "  a, b = Split(x, k)\n  p = Neg(a)\n  q = Neg(b)\n}")  # fmt: skip
    surgeon.replace(model, ["a", "b"], "Split", ["x"], attributes={"num_outputs": 2})

    assert "Constant" not in m.ops(model)
    np.testing.assert_allclose(m.run(model, x=[1, 2, 3, 4])["q"], [-3, -4])


def test_replace_node_keeps_name_and_inputs() -> None:
    """Same inputs, same outputs, another operator."""
    model = m.model(m.CHAIN)
    node = surgeon.replace_node(model, "second", "LeakyRelu", attributes={"alpha": 1})

    assert (node.name, node.attributes["alpha"].as_float()) == ("second", 1.0)
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], np.abs(m.X * W))


def test_a_new_shape_reaches_the_outputs() -> None:
    """Declared shapes of what follows are inferred anew."""
    model = m.model(m.CHAIN)
    surgeon.replace_node(model, "third", "Transpose")

    assert list(model.graph.outputs[0].shape or ()) == [3, 2]
    assert m.run(model, x=m.X)["y"].shape == (3, 2)


def test_outline_and_call() -> None:
    """A part becomes a function; its weights are passed."""
    model = m.model(m.CHAIN)
    surgeon.outline(model, ["x"], ["c"], "Block")

    assert m.ops(model) == ["Block", "Abs"]
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], np.maximum(m.X * W, 0))


@pytest.mark.parametrize("node", ["second", "third", "fourth"])
def test_bypass(node: str) -> None:
    """The readers of the output read the input; the last node's output keeps its name."""
    model = m.model(m.CHAIN)
    surgeon.bypass(model, node)
    steps: dict[str, Callable[[Any], Any]] = {
        "second": lambda v: np.maximum(v, 0),
        "third": np.negative,
        "fourth": np.abs,
    }
    expected = m.X * W
    for name, step in steps.items():
        expected = expected if name == node else step(expected)

    np.testing.assert_allclose(m.run(model, x=m.X)["y"], expected)


def test_bypass_to_an_input_copies_it() -> None:
    """An output cannot bear an input's name: an Identity stands between."""
    model = m.model("g (float[2] x) => (float[2] y) {\n  y = Relu(x)\n}")
    surgeon.bypass(model, "y")

    assert m.ops(model) == ["Identity"]
    np.testing.assert_allclose(m.run(model, x=[-1, 1])["y"], [-1, 1])


def test_remove_and_add() -> None:
    """A node that nothing reads can go; a new one can read anything."""
    model = m.model(m.CHAIN)
    node = surgeon.add_node(model, "Exp", ["a"], ["e"])
    surgeon.add_output(model, "e")
    np.testing.assert_allclose(m.run(model, x=m.X)["e"], np.exp(m.X * W), rtol=1e-6)

    surgeon.remove_output(model, "e", prune=False)
    surgeon.remove_node(model, node)
    assert m.ops(model) == ["Mul", "Relu", "Neg", "Abs"]


def test_set_attribute() -> None:
    """The schema decides the type; what follows is inferred anew."""
    model = m.model("g (float[2, 3] x) => (float[3, 2] y) {\n  [t] y = Transpose <perm = [1, 0]> (x)\n}")
    surgeon.set_attribute(model, "t", "perm", [0, 1])

    assert m.run(model, x=m.X)["y"].shape == (2, 3)


def test_old_models_list_new_weights_as_inputs() -> None:
    """Up to IR version 3 every initializer is an input."""
    model = m.model(m.CHAIN.replace("(float[2, 3] x)", "(float[2, 3] x, float[3] w)"), opset=9, ir_version=3)
    surgeon.insert(model, "a", "Mul", [2.0])

    assert {v.name for v in model.graph.initializers.values()} <= {v.name for v in model.graph.inputs}
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], 2 * np.maximum(m.X * W, 0))


REFUSALS: dict[str, tuple[Callable[[ir.Model], Any], type[GraphdocError], str]] = {
    "unknown value": (lambda g: surgeon.insert(g, "bb", "Neg"), UsageError, "nearest: 'b'"),
    "unknown node": (lambda g: surgeon.remove_node(g, "secnd"), UsageError, "nearest: 'second'"),
    "cycle by insert": (lambda g: surgeon.insert(g, "a", "Add", ["c"]), UsageError, "cycle"),
    "cycle by replace": (lambda g: surgeon.replace(g, ["b"], "Neg", ["y"]), UsageError, "cycle"),
    "own output": (lambda g: surgeon.replace(g, ["b"], "Neg", ["b"]), UsageError, "both input and output"),
    "other dtype": (lambda g: surgeon.insert(g, "a", "Cast", attributes={"to": 10}), UsageError, "a Cast"),
    "dtype of replacement": (lambda g: surgeon.replace(g, ["b"], "IsNaN", ["a"]), UsageError, "float32"),
    "name taken": (lambda g: surgeon.insert(g, "a", "Neg", output="w"), UsageError, "taken"),
    "no operator": (lambda g: surgeon.insert(g, "a", "Negg"), ModelError, "nearest: Neg"),
    "too new": (lambda g: surgeon.insert(g, "a", "Gelu"), ModelError, "version 20"),
    "shapes": (lambda g: surgeon.add_node(g, "MatMul", ["x", "x"]), ModelError, "MatMul"),
    "types": (lambda g: surgeon.add_node(g, "And", ["x", "x"]), ModelError, "And"),
    "number of inputs": (lambda g: surgeon.add_node(g, "Mul", ["x"]), ModelError, "it takes 2"),
    "no attribute": (lambda g: surgeon.set_attribute(g, "second", "alpha", 1), ModelError, "no attribute"),
    "type of attribute": (
        lambda g: surgeon.add_node(g, "Softmax", ["x"], attributes={"axis": 0.5}), ModelError, "INT"
    ),
    "still needed": (lambda g: surgeon.remove_node(g, "first"), UsageError, "needed by Relu second"),
    "no node": (lambda g: surgeon.replace(g, ["w"], "Neg", ["x"]), UsageError, "no node computes it"),
    "no such input": (lambda g: surgeon.bypass(g, "first", 5), UsageError, "has no input"),
    "no outputs": (lambda g: surgeon.replace(g, [], "Neg", ["x"]), UsageError, "needs outputs"),
    "foreign value": (lambda g: surgeon.insert(g, ir.Value(name="a"), "Neg"), UsageError, "does not belong"),
    "no array": (lambda g: surgeon.insert(g, "a", "Mul", [np.array([object()])]), UsageError, "strings"),
    "function exists not": (lambda g: surgeon.outline(g, ["c"], ["b"], "F"), UsageError, "depend on 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(name: str) -> None:
    """The model is as it was, and the error names what helps."""
    m.assert_refuses(*REFUSALS[name])


def test_values_of_two_branches_cannot_meet() -> None:
    """A node cannot read values of two branches, nor the main graph what lies in one."""
    model = m.model(m.BRANCHES)
    for inputs in (["t.then_branch/inner", "t.else_branch/inner"],):
        with pytest.raises(UsageError, match="cannot be seen from"):
            surgeon.add_node(model, "Add", inputs)
    with pytest.raises(UsageError, match="cannot be seen from"):
        surgeon.insert(model, "h", "Add", ["t.then_branch/inner"])


def test_an_ambiguous_name_lists_the_ways() -> None:
    """Two branches use the same name: both ways are offered."""
    with pytest.raises(UsageError, match=r"2 values are named 'inner'") as caught:
        surgeon.insert(m.model(m.BRANCHES), "inner", "Neg")
    assert "t.else_branch/inner" in str(caught.value)


def test_a_cycle_through_a_subgraph_is_seen() -> None:
    """The If reads 'h' inside its branch, so 't' depends on it."""
    model = m.model(m.BRANCHES)
    with pytest.raises(UsageError, match="cycle"):
        surgeon.insert(model, "h", "Add", ["t"])
