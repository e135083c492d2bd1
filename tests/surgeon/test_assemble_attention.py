"""Attention and rotary embeddings put together from their pieces."""

import numpy as np
import onnx
import pytest

from graphdoc.surgeon.writer import write_model
from tests.surgeon.rewriting_tools import agree, apply, by_engine, feeds, graph, half, ops, reasons

QKV = "float[2,4,5,8] q, float[2,4,7,8] k, float[2,4,7,8] v => float[2,4,5,8] y"
KT = "kt = Transpose <perm = [0,1,3,2]> (k) "
CONSTANTS = "float scale = {0.35}, float root = {0.6}, float inverse = {2.5}"
END = "w = Softmax <axis = -1> (s) y = MatMul (w, v)"

FORMS = {
    "no scale": KT + "s = MatMul (q, kt) " + END,
    "product times scale": KT + "p = MatMul (q, kt) s = Mul (scale, p) " + END,
    "product over a divisor": KT + "p = MatMul (q, kt) s = Div (p, inverse) " + END,
    "scaled query": KT + "z = Mul (q, scale) s = MatMul (z, kt) " + END,
    "scaled query and keys": KT + "z = Mul (q, root) u = Mul (kt, root) s = MatMul (z, u) " + END,
    "divided query": KT + "z = Div (q, inverse) s = MatMul (z, kt) " + END,
    "keys as they are": "s = MatMul (q, k) " + END,
    "keys folded while they are transposed": (
        "f = Reshape (k, flat) g = Transpose <perm = [0,2,1]> (f) kt = Reshape (g, whole) "
        "s = MatMul (q, kt) " + END
    ),
    "keys by length, heads": "kt = Transpose <perm = [0,2,3,1]> (k) s = MatMul (q, kt) " + END,
}
KEYS = {"keys as they are": "2,4,8,7", "keys by length, heads": "2,7,4,8"}
SHAPES = ", int64[3] flat = {-1, 7, 8}, int64[4] whole = {2, 4, 8, 7}"


def attributes(model: onnx.ModelProto, op: str) -> dict[str, object]:
    """Return the attributes of the first node of an operator."""
    node = next(node for node in model.graph.node if node.op_type == op)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_attention(form: str, dtype: str) -> None:
    """Every place of the scale and every way to transpose the keys becomes one Attention."""
    signature = QKV.replace("2,4,7,8] k", KEYS.get(form, "2,4,7,8") + "] k")
    model = graph(signature, FORMS[form], CONSTANTS + SHAPES)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert ops(result.model) == ["Transpose"] * (form in KEYS) + ["Attention"], reasons(result)
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("form", "scale"),
    [
        ("no scale", 1.0),
        ("product over a divisor", 0.4),
        ("scaled query and keys", 0.36),
        ("scaled query", 0.35),
    ],
)
def test_the_scale_is_written_out(form: str, scale: float) -> None:
    """Without the attribute the operator would take one over the root of the size."""
    result = apply(graph(QKV, FORMS[form], CONSTANTS + SHAPES), "assemble")

    assert attributes(write_model(result.model), "Attention")["scale"] == pytest.approx(scale, rel=1e-6)


PLAIN = FORMS["no scale"]
MASKED = KT + "p = MatMul (q, kt) m = Mul (p, scale) s = Add (m, mask) " + END


@pytest.mark.parametrize("shape", ["5,7", "1,5,7", "2,1,5,7", "1,4,1,7", "2,4,5,7"])
def test_attention_with_a_mask(shape: str) -> None:
    """A mask that is broadcast to the scores goes along."""
    model = graph(QKV.replace(" v =>", f" v, float[{shape}] mask =>"), MASKED, CONSTANTS)

    result = apply(model, "assemble")

    assert ops(result.model)[-1] == "Attention", reasons(result)
    assert ("Expand" in ops(result.model)) == (shape == "1,4,1,7")
    agree(model, result, feeds(model))


def test_attention_with_a_mask_that_rules_places_out() -> None:
    """Large negative entries leave no weight, in both."""
    model = graph(QKV.replace(" v =>", " v, float[5,7] mask =>"), MASKED, CONSTANTS)
    inputs = feeds(model)
    inputs["mask"] = np.where(inputs["mask"] > 0, 0, np.finfo(np.float32).min).astype(np.float32)
    inputs["mask"][:, 0] = 0

    result = apply(model, "assemble")

    assert ops(result.model) == ["Attention"]
    agree(model, result, inputs)


def test_a_row_that_is_ruled_out_is_the_mean_as_the_specification_says() -> None:
    """In the engine; ONNX Runtime's kernel gives 0 there, which is why verification runs such masks."""
    model = graph(QKV.replace(" v =>", " v, float[5,7] mask =>"), MASKED, CONSTANTS)
    inputs = {**feeds(model), "mask": np.full((5, 7), np.finfo(np.float32).min)}

    (found,) = by_engine(write_model(apply(model, "assemble").model), inputs)

    np.testing.assert_allclose(found, by_engine(model, inputs)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found, np.broadcast_to(inputs["v"].mean(2, keepdims=True), found.shape), atol=1e-6
    )


def test_attention_of_dynamic_sizes() -> None:
    """Batch and lengths may be symbols, as long as the same one stands where the same size must be."""
    model = graph(
        "float[B,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v, float[B,1,S,T] mask => float[B,4,S,8] y",
        MASKED,
        CONSTANTS,
    )

    result = apply(model, "assemble")

    assert ops(result.model) == ["Attention"], reasons(result)
    agree(model, result, feeds(model, {"B": 2, "S": 3, "T": 6}))


def test_one_head_of_keys_serves_all() -> None:
    """Keys and values of one head are shared by all heads of the query in both."""
    model = graph(
        "float[2,4,5,8] q, float[2,1,7,8] k, float[2,1,7,8] v => float[2,4,5,8] y", FORMS["no scale"]
    )

    result = apply(model, "assemble")

    assert ops(result.model) == ["Attention"], reasons(result)
    agree(model, result, feeds(model))


@pytest.mark.parametrize(
    ("signature", "nodes", "constants", "reason"),
    [
        (QKV, PLAIN.replace("axis = -1", "axis = 2"), CONSTANTS, "axis is 2, the pattern wants the last"),
        (QKV, FORMS["product times scale"], CONSTANTS.replace("0.35", "-0.35"), "the scale is -0.35"),
        (QKV + ", float[2,4,5,7] w", PLAIN, CONSTANTS,
         "'w' of Softmax w is an output of the graph"),
        ("float[2,4,5,8] q, float[1,4,7,8] k, float[1,4,7,8] v => float[2,4,5,8] y", PLAIN, CONSTANTS,
         "Q, K and V may differ in batch: 2, 1, 1"),
        ("float[2,4,5,8] q, float[2,1,7,8] k, float[2,4,7,8] v => float[2,4,5,8] y", PLAIN, CONSTANTS,
         "Q, K and V differ in heads: 4, 1, 4"),
        (QKV, PLAIN.replace("y = MatMul (w, v)", "n = IsNaN (w) g = Where (n, nil, w) y = MatMul (g, v)"),
         CONSTANTS + ", float nil = {0}", "weights that are NaN become 0, which the operator does not do"),
        (QKV.replace(" v =>", " v, float[5,1] mask =>"), MASKED, CONSTANTS, "the last axis of the mask is 1"),
        ("float[2,4,1,8] q, float[2,4,7,8] k, float[2,4,7,8] v, float[3,7] mask => float[2,4,3,8] y", MASKED,
         CONSTANTS, "the mask 3 × 7 may be larger than the scores 2 × 4 × 1 × 7"),
        ("float[4,5,8] q, float[4,8,7] k, float[4,7,8] v => float[4,5,8] y", FORMS["keys as they are"], "",
         "Q, K and V are not known to have four axes"),
    ],
)  # fmt: skip
def test_what_is_no_attention_stays(signature: str, nodes: str, constants: str, reason: str) -> None:
    """Another axis, a negative scale, weights that are needed, broadcast batches and masks refuse."""
    result = apply(graph(signature, nodes, constants), "assemble")

    assert "Attention" not in ops(result.model)
    assert reason in reasons(result)


def test_attention_needs_opset_23() -> None:
    """The reason names the opset."""
    result = apply(graph(QKV, FORMS["no scale"], opset=22), "assemble")

    assert "Attention" not in ops(result.model)
    assert "Attention exists from opset 23 on, the model has 22" in reasons(result)


ROTARY = "float[2,4,5,8] x, float[B,5,4] angle => float[2,4,5,8] y"
DOUBLED = (
    "two = Concat <axis = -1> (angle, angle) a = Cos (two) b = Sin (two) "
    "cos = Unsqueeze (a, one) sin = Unsqueeze (b, one) "
)
TURN = (
    "low = Slice (x, zero, four, three, one) high = Slice (x, four, most, three, one) minus = Neg (high) "
    "turned = Concat <axis = -1> (minus, low) "
)
SUM = "c = Mul (x, cos) s = Mul (turned, sin) y = Add (c, s)"
NUMBERS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64[1] four = {4}, "
    "int64[1] most = {9223372036854775807}"
)
SPLIT = (
    "low, high = Split <axis = -1, num_outputs = 2> (x) minus = Neg (high) "
    "turned = Concat <axis = -1> (minus, low) "
)
SCALED = DOUBLED.replace("a = Cos (two)", "f = Cos (two) a = Mul (f, k)")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("batch", [2, 1])
@pytest.mark.parametrize(
    "nodes",
    [DOUBLED + TURN + SUM, DOUBLED + SPLIT + SUM, SCALED + TURN + SUM],
    ids=["slices", "split", "scaled cosine"],
)
def test_rotary_embedding(nodes: str, batch: int, dtype: str) -> None:
    """The halves by Slice or Split; angles for each batch entry, or for all of them."""
    constants = NUMBERS + ", float k = {1.5}"
    model = graph(ROTARY.replace("[B,", f"[{batch},"), nodes, constants)
    model = half(model) if dtype == "float16" else model

    result = apply(model, "assemble")

    assert "RotaryEmbedding" in ops(result.model), reasons(result)
    assert not {"Neg", "Add"} & set(ops(result.model))
    agree(model, result, feeds(model))


def test_rotary_embedding_of_a_dynamic_batch_with_angles_for_all() -> None:
    """The angles are spread over the batch at run time."""
    model = graph("float[N,4,5,8] x, float[1,5,4] angle => float[N,4,5,8] y", DOUBLED + TURN + SUM, NUMBERS)

    result = apply(model, "assemble")

    assert "RotaryEmbedding" in ops(result.model), reasons(result)
    agree(model, result, feeds(model, {"N": 3}))


def test_rotary_embedding_with_tables() -> None:
    """Constant tables whose halves are equal are tables of half the size."""
    rng = np.random.default_rng(0)
    tables = [np.tile(rng.standard_normal((1, 1, 5, 4)), 2).astype(np.float32) for _ in range(2)]
    model = graph("float[1,4,5,8] x => float[1,4,5,8] y", TURN + SUM, NUMBERS + ", " + spelt(*tables))

    result = apply(model, "assemble")

    assert "RotaryEmbedding" in ops(result.model), reasons(result)
    agree(model, result, feeds(model))


def spelt(cos: np.ndarray, sin: np.ndarray) -> str:  # type: ignore[type-arg]
    """Return two tables as constants in ONNX's text form."""
    rows = [
        f"float[1,1,5,8] {n} = {{{', '.join(map(str, a.ravel()))}}}" for n, a in (("cos", cos), ("sin", sin))
    ]
    return ", ".join(rows)


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        (DOUBLED + TURN + SUM, NUMBERS.replace("four = {4}", "four = {3}"), "x is cut at 3"),
        (DOUBLED + TURN.replace("(x, four, most,", "(x, three, seven,") + SUM,
         NUMBERS + ", int64[1] seven = {7}", "middle is 'three' in one place and 'four' in another"),
        (DOUBLED.replace("(angle, angle)", "(angle, other)") + TURN + SUM, NUMBERS,
         "the halves of cos are not known to be equal"),
        (DOUBLED + TURN.replace("(minus, low)", "(low, minus)") + SUM, NUMBERS, ""),
        (DOUBLED + TURN.replace("Neg (high)", "Neg (low)") + SUM, NUMBERS, ""),
    ],
)  # fmt: skip
def test_what_is_no_rotary_embedding_stays(nodes: str, constants: str, reason: str) -> None:
    """Another cut, different halves, or another order refuse."""
    signature = ROTARY.replace("[B,5,4] angle", "[2,5,4] angle, float[2,5,4] other")
    result = apply(graph(signature, nodes, constants), "assemble")

    assert "RotaryEmbedding" not in ops(result.model)
    assert reason in reasons(result)
