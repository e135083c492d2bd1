"""Two models side by side and in a chain."""

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import ModelError, UsageError
from tests.surgeon import edit_models as m

HEAD = """
head (float[N, 3] x, float[3] bias) => (float[N, 3] y) <float[1] w = {2.0}> {
  [first] a = Softmax <axis = 1> (x)
  [second] b = Mul(a, w)
  [third] y = Add(b, bias)
}"""
BIAS = np.array([1.0, 2.0, 3.0], np.float32)


def chain_of(x: np.ndarray) -> np.ndarray:
    """Return what :data:`CHAIN` computes."""
    return np.maximum(x * np.array([1.0, -2.0, 0.5], np.float32), 0)


def head_of(x: np.ndarray) -> np.ndarray:
    """Return what :data:`HEAD` computes."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return 2 * e / e.sum(axis=1, keepdims=True) + BIAS


def test_side_by_side() -> None:
    """All inputs and outputs of both; names that clash get a prefix, others stay."""
    found = surgeon.merge(m.model(m.CHAIN), m.model(HEAD))
    assert [v.name for v in found.model.graph.inputs] == ["x", "head/x", "bias"]
    assert found.renamed["y"] == "head/y"
    outputs = m.run(found.model, **{"x": m.X, "head/x": m.X * 2, "bias": BIAS})

    np.testing.assert_allclose(outputs["y"], chain_of(m.X))
    np.testing.assert_allclose(outputs["head/y"], head_of(m.X * 2), rtol=1e-6)


def test_both_models_stay_as_they_are() -> None:
    """The merged model is a new one."""
    first, second = m.model(m.CHAIN), m.model(HEAD)
    before = m.frozen(first), m.frozen(second)
    surgeon.merge(first, second)
    surgeon.chain(first, second, {"y": "x"})

    assert (m.frozen(first), m.frozen(second)) == before


def test_a_model_with_itself() -> None:
    """Everything clashes, subgraphs included."""
    found = surgeon.merge(m.model(m.BRANCHES), m.model(m.BRANCHES), prefix="b.")
    flags = {"flag": np.array(True), "b.flag": np.array(False)}
    outputs = m.run(found.model, **{"x": [1, 2], "b.x": [1, 2]}, **flags)

    np.testing.assert_allclose(outputs["y"], [4, 10])
    np.testing.assert_allclose(outputs["b.y"], [1, 2])


def test_chain_by_name() -> None:
    """Said or by equal names; what is not fed stays an input."""
    found = surgeon.chain(m.model(m.CHAIN), m.model(HEAD), {"y": "x"}).model
    assert [v.name for v in found.graph.inputs] == ["x", "bias"]
    assert [v.name for v in found.graph.outputs] == ["head/y"]
    np.testing.assert_allclose(m.run(found, x=m.X, bias=BIAS)["head/y"], head_of(chain_of(m.X)), rtol=1e-6)

    second = m.model(HEAD)
    surgeon.rename_values(second, {"x": "y", "y": "out"})
    found = surgeon.chain(m.model(m.CHAIN), second).model
    np.testing.assert_allclose(m.run(found, x=m.X, bias=BIAS)["out"], head_of(chain_of(m.X)), rtol=1e-6)


def test_chain_keeps_outputs_on_request() -> None:
    """And always those that nothing reads."""
    found = surgeon.chain(m.model(m.CHAIN), m.model(HEAD), {"y": "x"}, keep_outputs=True).model
    np.testing.assert_allclose(m.run(found, x=m.X, bias=BIAS)["y"], chain_of(m.X))

    found = surgeon.chain(
        m.model(m.DIAMOND), m.model("g (float[N, 4] q) => (float[N, 4] r) {\n r = Neg(q)\n}"), {"z": "q"}
    ).model
    assert [v.name for v in found.graph.outputs] == ["y", "r"]


def test_the_only_output_feeds_the_only_input() -> None:
    """Without names, where there is no choice; the chained shape reaches the end."""
    second = m.model("g (float[N, 3] q) => (float[N, 3] r) {\n r = Neg(q)\n}")
    found = surgeon.chain(m.model(m.CHAIN), second).model

    assert list(found.graph.outputs[0].shape or ()) == [2, 3]
    np.testing.assert_allclose(m.run(found, x=m.X)["r"], -chain_of(m.X))


def test_an_input_that_is_an_output() -> None:
    """The second model gives out its input as it is."""
    second = m.model("g (float[N, 3] q) => (float[N, 3] q, float[N, 3] r) {\n r = Neg(q)\n}")
    found = surgeon.chain(m.model(m.CHAIN), second, {"y": "q"}).model

    np.testing.assert_allclose(m.run(found, x=m.X)["q"], chain_of(m.X))


def test_symbols_of_both_models_stay_apart() -> None:
    """N of one model is not N of the other."""
    found = surgeon.merge(m.model(m.DIAMOND), m.model(HEAD)).model
    dims = {str(v.name): str((v.shape or [None])[0]) for v in found.graph.inputs}

    assert (dims["x"], dims["head/x"]) == ("N", "N_2")


def test_the_older_opset_is_raised() -> None:
    """Softmax changed its meaning at 13: the converter takes care."""
    text = HEAD.replace("[N, 3]", "[2, 3, 2]").replace("float[3] bias", "float[1] bias")
    old = m.model(text, opset=12)
    found = surgeon.merge(m.model(m.CHAIN), old)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    expected = m.run(old, x=x, bias=[1.0])["y"]

    assert found.converted == ("second model from opset 12 to 18",)
    outputs = m.run(found.model, **{"x": m.X, "head/x": x, "bias": [1.0]})
    np.testing.assert_allclose(outputs["head/y"], expected, rtol=1e-6)


def test_functions_of_one_name() -> None:
    """Equal ones are shared, others renamed with their calls."""
    same = surgeon.merge(m.model(m.FUNCTION), m.model(m.FUNCTION)).model
    assert len(same.functions) == 1
    other = m.model(m.FUNCTION.replace("Mul(a, f)", "Sub(a, f)"))
    both = surgeon.merge(m.model(m.FUNCTION), other).model

    assert sorted(f.name for f in both.functions.values()) == ["Twice", "Twice_2"]
    outputs = m.run(both, **{"x": [1, 2], "called/x": [1, 2]})
    np.testing.assert_allclose(outputs["y"], [-2, -4])
    np.testing.assert_allclose(outputs["called/y"], [1, 0])


def unfit(dtype: str, shape: str) -> ir.Model:
    """Return a model whose input has this type."""
    return m.model(
        f"g ({dtype}[{shape}] q, float[2, 3] more) => ({dtype}[{shape}] r) {{\n r = Identity(q)\n}}"
    )


@pytest.mark.parametrize(
    ("second", "connections", "kind", "words"),
    [
        (unfit("int64", "2, 3"), {"y": "q"}, ModelError, "takes int64"),
        (unfit("float", "2, 4"), {"y": "q"}, ModelError, "takes 2×4"),
        (unfit("float", "6"), {"y": "q"}, ModelError, "takes 6"),
        (unfit("float", "2, 3"), {"yy": "q"}, UsageError, "nearest: 'y'"),
        (unfit("float", "2, 3"), {"y": "qq"}, UsageError, "nearest: 'q'"),
        (unfit("float", "2, 3"), None, UsageError, "no output of the first"),
    ],
)
def test_ends_that_do_not_fit(
    second: ir.Model, connections: dict[str, str] | None, kind: type[Exception], words: str
) -> None:
    """Dtype, shape and names are checked before anything is joined."""
    with pytest.raises(kind, match=words):
        surgeon.chain(m.model(m.CHAIN), second, connections)


def test_other_domains_cannot_be_converted() -> None:
    """Two versions of a foreign domain stand against each other."""
    text = "g (float[2] x) => (float[2] y) {\n  y = acme.Foo(x)\n}"
    first, second = (m.model(f'<ir_version: 9, opset_import: ["": 18, "acme": {v}]>\n{text}') for v in (1, 2))
    with pytest.raises(ModelError, match="different versions of acme: 1 and 2"):
        surgeon.merge(first, second)
