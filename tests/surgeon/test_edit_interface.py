"""Inputs, outputs, weights and dtypes."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import GraphdocError, ModelError, UsageError
from tests.surgeon import edit_models as m

W = np.array([1.0, -2.0, 0.5], np.float32)


def test_an_inner_value_comes_out() -> None:
    """With dtype and shape, though the file declares neither."""
    model = m.model(m.CHAIN)
    value = surgeon.add_output(model, "a")

    assert (value.dtype, list(value.shape or ())) == (ir.DataType.FLOAT, [2, 3])
    np.testing.assert_allclose(m.run(model, x=m.X)["a"], m.X * W)


def test_the_dtype_of_an_unknown_operator_must_be_stated() -> None:
    """Nobody knows what a foreign operator gives."""
    text = "g (float[2] x) => (float[2] y) {\n  k = acme.Foo(x)\n  y = acme.Bar(k)\n}"
    model = m.model(f'<ir_version: 9, opset_import: ["": 18, "acme": 1]>\n{text}')
    with pytest.raises(ModelError, match="unknown"):
        surgeon.add_output(model, "k")

    assert surgeon.add_output(model, "k", dtype="int64", shape=[None]).dtype == ir.DataType.INT64


def test_remove_output_prunes() -> None:
    """Nodes that only it needed go, unless told otherwise; the last output stays."""
    model = m.model(m.DIAMOND)
    surgeon.remove_output(model, "y")

    assert m.ops(model) == ["Relu", "Neg", "Sigmoid"]
    with pytest.raises(UsageError, match="only output"):
        surgeon.remove_output(model, "z")


def test_inputs_come_and_go() -> None:
    """A new input is read by nobody; one that is read cannot go."""
    model = m.model(m.CHAIN)
    surgeon.add_input(model, "mask", "bool", ["N"])
    assert [v.name for v in model.graph.inputs] == ["x", "mask"]
    surgeon.remove_input(model, "mask")
    with pytest.raises(UsageError, match="read by Mul first"):
        surgeon.remove_input(model, "x")
    with pytest.raises(UsageError, match="taken"):
        surgeon.add_input(model, "a", "float32")


def test_reorder() -> None:
    """Given names first, the others follow."""
    model = m.model(m.DIAMOND)
    surgeon.reorder(model, inputs=["s"], outputs=["z"])

    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["s", "x", "z", "y"]
    with pytest.raises(UsageError, match="twice"):
        surgeon.reorder(model, inputs=["s", "s"])
    with pytest.raises(UsageError, match="nearest: 's'"):
        surgeon.reorder(model, inputs=["ss"])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bf16"])
def test_set_dtype_of_input_and_output(dtype: str) -> None:
    """Casts stand between; the inside computes as before."""
    model = m.model(m.CHAIN)
    surgeon.set_dtype(model, "x", dtype)
    surgeon.set_dtype(model, "y", dtype)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bf16" else dtype)
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == ir.DataType.from_numpy(kind)
    if dtype != "bf16":
        found = m.run(model, x=m.X.astype(kind))["y"]
        np.testing.assert_array_equal(found, np.maximum(m.X * W, 0).astype(kind))
    assert m.proto_of(model)


def test_to_input_and_back() -> None:
    """A weight becomes an input that must be fed; a content makes it a weight again."""
    model = m.model(m.CHAIN)
    surgeon.to_input(model, "w")
    np.testing.assert_allclose(m.run(model, x=m.X, w=W * 2)["y"], 2 * np.maximum(m.X * W, 0))

    surgeon.to_initializer(model, "w", W)
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], np.maximum(m.X * W, 0))


def test_a_constant_in_a_branch_becomes_an_input() -> None:
    """It moves to the main graph, where it can be fed."""
    text = m.BRANCHES.replace(
        "inner = Neg(h)", "k = Constant <value_floats = [1.0, 1.0]> ()\n inner = Sub(h, k)"
    )
    model = m.model(text)
    surgeon.to_input(model, "t.else_branch/k")

    np.testing.assert_allclose(m.run(model, x=[1, 2], flag=np.array(False), k=[5, 5])["y"], [4, 3])


@pytest.mark.parametrize("name", ["x", "b", "y"])
def test_any_value_can_be_fixed(name: str) -> None:
    """Inputs, inner values and outputs; what computed them goes."""
    model = m.model(m.CHAIN)
    fixed = np.full((2, 3), 7, np.float32)
    surgeon.to_initializer(model, name, fixed)
    expected = {"x": np.maximum(fixed * W, 0), "b": fixed, "y": fixed}[name]

    feeds = {value.name: m.X for value in model.graph.inputs}
    np.testing.assert_allclose(m.run(model, **feeds)["y"], expected)  # type: ignore[arg-type]


def test_set_initializer() -> None:
    """Of initializers and Constant nodes; dtypes below a byte and bfloat16 too."""
    model = m.model(m.CHAIN)
    surgeon.set_initializer(model, "w", W * 3)
    np.testing.assert_allclose(m.run(model, x=m.X)["y"], 3 * np.maximum(m.X * W, 0))
    np.testing.assert_array_equal(surgeon.weight(model, "w"), W * 3)

    model = m.model(
        "g (float[2] x) => (float[2] y) {\n k = Constant <value_float = 2.0> ()\n y = Mul(x, k)\n}"
    )
    surgeon.set_initializer(model, "k", np.float32(5))
    np.testing.assert_allclose(m.run(model, x=[1, 2])["y"], [5, 10])


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Return zeros, float32 unless told otherwise."""
    return np.zeros(shape, dtype)


REFUSALS: dict[str, tuple[Callable[[ir.Model], Any], type[GraphdocError], str]] = {
    "output twice": (lambda g: surgeon.add_output(g, "y"), UsageError, "already"),
    "input as output": (lambda g: surgeon.add_output(g, "x"), UsageError, "is an input"),
    "unknown output": (lambda g: surgeon.remove_output(g, "yy"), UsageError, "nearest: 'y'"),
    "dtype name": (lambda g: surgeon.set_dtype(g, "x", "float17"), UsageError, "nearest: 'float16'"),
    "inner dtype": (lambda g: surgeon.set_dtype(g, "w", "float16"), UsageError, "neither input nor output"),
    "complex": (lambda g: surgeon.set_dtype(g, "x", "complex64"), UsageError, "complex"),
    "no weight": (lambda g: surgeon.to_input(g, "a"), UsageError, "no weight"),
    "shape of content": (lambda g: surgeon.to_initializer(g, "b", zeros(2, 2)), ModelError, "2×3"),
    "dtype of content": (lambda g: surgeon.to_initializer(g, "x", zeros(2, 3, dtype="f8")), ModelError, "64"),
    "shape of weight": (lambda g: surgeon.set_initializer(g, "w", zeros(4)), ModelError, "content 4"),
    "weight of a node": (lambda g: surgeon.set_initializer(g, "a", zeros(2, 3)), UsageError, "no weight"),
    "read of a node": (lambda g: surgeon.weight(g, "a"), UsageError, "no weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(name: str) -> None:
    """The model is as it was, and the error names what helps."""
    m.assert_refuses(*REFUSALS[name])


def test_values_in_subgraphs_cannot_leave_the_model() -> None:
    """Outputs of the model lie in its main graph; loop states are fed by the loop."""
    with pytest.raises(UsageError, match="lies inside"):
        surgeon.add_output(m.model(m.BRANCHES), "t.then_branch/inner")
    with pytest.raises(UsageError, match="its node feeds it"):
        surgeon.to_initializer(m.model(m.LOOP), "state", zeros(2))
    with pytest.raises(UsageError, match="lies in a function"):
        surgeon.to_input(m.model(m.FUNCTION), "Twice/f")
