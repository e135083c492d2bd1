"""Extracting parts: fed with tapped values, a part gives the tapped outputs."""

import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import ModelError, UsageError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.edit_extract import extract
from graphdoc.surgeon.edit_find import Index
from graphdoc.surgeon.edit_flow import ancestors, reads
from graphdoc.surgeon.subject import constant
from tests import sources
from tests.surgeon import edit_models as m


@pytest.mark.parametrize(
    ("inputs", "outputs", "ops"),
    [
        (["a"], ["c"], ["Relu", "Neg"]),
        (["x"], ["a"], ["Mul"]),
        (["x", "w"], ["a"], ["Mul"]),
        (None, ["b"], ["Mul", "Relu"]),
        (["b"], None, ["Neg", "Abs"]),
        (["a", "a"], ["b", "c", "b"], ["Relu", "Neg"]),
    ],
)
def test_between_values(inputs: list[str] | None, outputs: list[str] | None, ops: list[str]) -> None:
    """Between any values; inputs of the part are typed though the file says nothing of them."""
    model = m.model(m.CHAIN)
    before = m.frozen(model)
    part = extract(model, inputs, outputs)
    wanted = list(dict.fromkeys(outputs or ["y"]))
    values = Interpreter(model).run({"x": m.X}, taps=["a", "b", "c"])
    values |= {"x": m.X, "w": np.array([1.0, -2.0, 0.5], np.float32)}

    assert m.ops(part) == ops
    assert all(value.dtype == ir.DataType.FLOAT for value in part.graph.inputs)
    found = m.run(part, **{str(v.name): values[str(v.name)] for v in part.graph.inputs})
    assert list(found) == wanted
    for name in wanted:
        np.testing.assert_allclose(found[name], values[name])
    assert m.frozen(model) == before


def test_symbols_and_metadata_survive() -> None:
    """Dims keep their symbols; the model's own texts come along."""
    model = m.model(m.DIAMOND)
    model.metadata_props["author"] = "me"
    part = extract(model, ["a"], ["z"])

    assert [str(dim) for dim in part.graph.inputs[0].shape or ()] == ["N", "4"]
    assert part.metadata_props == {"author": "me"}


def test_what_a_subgraph_captures_comes_along() -> None:
    """The If reads 'h', 'x' and 'w' inside its branches."""
    part = extract(m.model(m.BRANCHES), ["h", "x", "flag"], ["y"])

    assert [v.name for v in part.graph.inputs] == ["h", "x", "flag"]
    np.testing.assert_allclose(m.run(part, h=[1, 2], x=[10, 20], flag=np.array(True))["y"], [13, 28])


def test_a_part_of_a_branch() -> None:
    """A branch becomes a model; what lies around it is an input or comes along."""
    model = m.model(m.BRANCHES)
    part = extract(model, ["h", "x"], ["yes_out"])
    np.testing.assert_allclose(m.run(part, h=[1, 2], x=[10, 20])["yes_out"], [13, 28])

    whole = extract(model, ["x"], ["yes_out"])
    assert m.ops(whole) == ["Relu", "Mul", "Add"]
    np.testing.assert_allclose(m.run(whole, x=[1, 2])["yes_out"], [4, 10])


def test_the_body_of_a_loop() -> None:
    """The loop's own inputs must be given."""
    model = m.model(m.LOOP)
    with pytest.raises(UsageError, match=r"depend on 'y\.body/state'"):
        extract(model, None, ["next"])
    part = extract(model, ["state"], ["next"])

    np.testing.assert_allclose(m.run(part, state=[1, 2])["next"], [2, 8])


def test_functions_come_along_when_called() -> None:
    """And only then."""
    model = m.model(m.FUNCTION)
    part = extract(model, ["h"], ["k"])
    np.testing.assert_allclose(m.run(part, h=[1, 2])["k"], [2, 4])

    assert len(part.functions) == 1
    assert not extract(model, ["k"], ["y"]).functions


def test_a_part_of_a_function() -> None:
    """Where it takes nothing from the call; types must be known."""
    model = m.model(m.FUNCTION)
    part = extract(model, ["Twice/t"], ["Twice/b"])
    np.testing.assert_allclose(m.run(part, t=[1, 2])["b"], [1, 2])

    with pytest.raises(UsageError, match="from the call"):
        extract(model, ["Twice/a"], ["Twice/b"])


def test_defaults_of_inputs_stay() -> None:
    """An input with a default is one in the part, too, when all inputs are wanted."""
    model = m.model(m.CHAIN.replace("(float[2, 3] x)", "(float[2, 3] x, float[3] w)"))
    part = extract(model, None, ["b"])

    assert [v.name for v in part.graph.inputs] == ["x", "w"]
    np.testing.assert_allclose(m.run(part, x=m.X, w=[1, 1, 1])["b"], np.maximum(m.X, 0))
    assert len(m.run(part, x=m.X)) == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["a"], ["y"], "depend on 's' too"),
        (["z"], ["y"], "depend on 'x', 's' too"),
        (["s"], ["z"], "depend on 'x'"),
        (["a", "x"], ["z"], "not needed|lies before"),
        (["a"], ["a"], "both input and output"),
        (["aa"], ["y"], "nearest: 'a'"),
        (["a"], [], "no outputs"),
    ],
)
def test_parts_that_do_not_close_are_refused(inputs: list[str], outputs: list[str], words: str) -> None:
    """What is lacking is named, and the inputs that would do."""
    with pytest.raises(UsageError, match=words) as caught:
        extract(m.model(m.DIAMOND), inputs, outputs)
    assert caught.value.next_step


def test_a_lacking_input_is_offered() -> None:
    """The message ends with the inputs to give."""
    with pytest.raises(UsageError) as caught:
        extract(m.model(m.DIAMOND), ["a"], ["y"])
    assert caught.value.next_step == "add it to the inputs: a,s"
    assert caught.value.where == "read by Mul left"


def test_an_unknown_dtype_is_refused() -> None:
    """What follows from a foreign operator has no known type."""
    text = "g (float[2] x) => (float[2] y) {\n  k = acme.Foo(x)\n  y = Relu(k)\n}"
    with pytest.raises(ModelError, match="dtype of 'k' is unknown"):
        extract(m.model(f'<ir_version: 9, opset_import: ["": 18, "acme": 1]>\n{text}'), ["k"], ["y"])


def test_ten_thousand_nodes() -> None:
    """No recursion, and time grows with the size of the part."""
    nodes, last = [], ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    start = last
    for number in range(10_000):
        nodes.append(ir.Node("", "Neg", [last], num_outputs=1, name=f"n{number}"))
        last = nodes[-1].outputs[0]
        last.name = f"v{number}"
    last.type = ir.TensorType(ir.DataType.FLOAT)
    model = ir.Model(
        ir.Graph([start], [last], nodes=nodes, opset_imports={"": 18}, name="long"), ir_version=10
    )

    assert len(extract(model, ["v10"], ["v9990"]).graph) == 9980


def cut(model: ir.Model, rng: random.Random) -> tuple[list[ir.Value], ir.Value]:
    """Return the ends of a random part of the main graph: what it reads, and a value that it makes."""
    index = Index(model)
    place = {node: number for number, node in enumerate(model.graph)}
    late = [node for node in model.graph if place[node] >= len(place) // 4]
    out = rng.choice([value for node in late for value in node.outputs if value.name])
    before = [node for node in ancestors(index, out) if node in place]
    first = max(place[node] for node in before) - rng.randrange(1, 40)
    inside = {node for node in before if place[node] >= first}
    read = [v for node in inside for v in reads(node) if index.home[v].graph is model.graph]
    return list(dict.fromkeys(v for v in read if v.producer() not in inside and not v.is_initializer())), out


def tapped(model: ir.Model, feeds: dict[str, Any], values: Sequence[ir.Value]) -> dict[str, Any]:
    """Return what values become in a run of the whole model."""
    found = {**Interpreter(model).run(feeds, taps=[str(v.name) for v in values]), **feeds}
    return {str(v.name): found[str(v.name)] if str(v.name) in found else constant(v) for v in values}


@pytest.mark.parametrize("path", sources.real_models())
def test_parts_of_real_models(path: pathlib.Path) -> None:
    """A random part of each, fed with values of the whole, gives those of the whole."""
    from graphdoc.api import make_inputs

    if path.stat().st_size > 60e6:
        pytest.skip("a model of over 60 MB: each part is run twice, which takes minutes")
    model = surgeon.load(path)
    inputs, output = cut(model, random.Random(path.name))  # noqa: S311 - which part does not matter
    values = tapped(model, dict(make_inputs(model).feeds), [*inputs, output])
    part = extract(model, inputs, [output])
    feeds = {str(v.name): values[str(v.name)] for v in part.graph.inputs if not v.is_initializer()}

    found, expected = Interpreter(part).run(feeds)[str(output.name)], values[str(output.name)]
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
