"""Alignment finds what stands for what: names gone, nodes fused, casts and codes added, weights changed."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from graphdoc.surgeon.align import align
from graphdoc.surgeon.alignment import Alignment
from graphdoc.surgeon.model import load
from tests.surgeon import build
from tests.surgeon.lint_models import node

RNG = np.random.default_rng(7)
SIZE = 8


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    """Return a float32 weight of random numbers that its name and the seed decide."""
    rng = np.random.default_rng([seed, *name.encode()])
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def blocks(count: int, *, prefix: str = "", seed: int = 0, extra: str = "") -> onnx.ModelProto:
    """Return x → count × (MatMul, Relu, Tanh, Add of the block's input) → y; all blocks look alike.

    prefix: of inner names. seed: of the weights. extra: an operator to put behind each Relu.
    """
    nodes, weights, x = [], [], "x"
    for n in range(count):
        at = f"{prefix}{n}"
        weights.append(weight(f"w{n}", SIZE, SIZE, seed=seed))
        weights[-1].name = f"{prefix}w{n}"
        nodes += [node("MatMul", f"{x} {prefix}w{n}", f"a{at}"), node("Relu", f"a{at}", f"b{at}")]
        inner = f"b{at}"
        if extra:
            nodes.append(node(extra, inner, f"c{at}"))
            inner = f"c{at}"
        nodes += [node("Tanh", inner, f"d{at}"), node("Add", f"d{at} {x}", f"e{at}")]
        x = f"e{at}"
    nodes.append(node("Abs", x, "y"))
    interface = {"inputs": [build.value("x", ("n", SIZE))], "outputs": [build.value("y", ("n", SIZE))]}
    return build.model(nodes, weights=weights, **interface)


def scramble(model: ir.Model) -> ir.Model:
    """Rename everything in a model, inputs and outputs too."""
    for number, graph in enumerate(model.graphs()):
        for place, value in enumerate(_values(graph)):
            if value.name:
                value.name = f"v{number}_{place}"
        for place, item in enumerate(graph):
            item.name = f"n{number}_{place}"
    return model


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from [value for value in graph.initializers.values() if value not in graph.inputs]
    for item in graph:
        yield from item.outputs


def run(proto: onnx.ModelProto, names: list[str]) -> dict[str, np.ndarray]:
    """Return inner values as ONNX Runtime computes them without optimisation."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    have = {output.name for output in tapped.graph.output}
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(tapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 3 for d in i.shape]).astype(np.float32)
        for i in session.get_inputs()
    }
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def assert_close(a: onnx.ModelProto, b: onnx.ModelProto, found: Alignment, within: float) -> None:
    """Assert that every pair of main-graph values correlates: ONNX Runtime is the oracle."""
    fed = {value.name for value in (*a.graph.input, *b.graph.input)}
    pairs = [pair for pair in found.values if pair.form == "same" and pair.a_name not in fed]
    first, second = run(a, [p.a_name for p in pairs]), run(b, [p.b_name for p in pairs])
    for pair in pairs:
        x = first[pair.a_name].astype(np.float64).ravel()
        y = second[pair.b_name].astype(np.float64).ravel()
        assert np.linalg.norm(x - y) <= within * np.linalg.norm(x), (pair.a_name, pair.b_name)


SUBGRAPHS = """
agraph (float[2] x, bool c, int64 n) => (float[2] y, float[2] z) {
    y = If (c) <
        then_branch = yes () => (float[2] p) { q = Abs(x)  p = Neg(q) },
        else_branch = no () => (float[2] r) { r = Exp(x) }
    >
    k = Constant<value = bool {1}>()
    z = Loop (n, k, x) <body = body (int64 i, bool go, float[2] state) => (bool go2, float[2] state2)
        { go2 = Identity(go)  t = Sin(state)  state2 = Add(t, x) }>
}
"""

SELF: dict[str, Callable[[], onnx.ModelProto]] = {
    "blocks": lambda: blocks(6),
    "one node": build.relu,
    "a weight": build.add,
    "subgraphs": lambda: build.text(SUBGRAPHS),
    "twins": lambda: build.model([node("Abs", "x", "a"), node("Abs", "x", "b"), node("Sub", "a b", "y")]),
    "carriers": lambda: build.model(
        [node("Identity", "x", "a"), node("Cast", "a", "b", to=TensorProto.DOUBLE), node("Abs", "b", "y")],
        outputs=[build.value("y", (2,), TensorProto.DOUBLE)],
    ),
    "quantised": lambda: build.text(
        "agraph (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {3}>"
        "{ q, t, o = DynamicQuantizeLinear(x)  d = DequantizeLinear(q, t, o)  e = QuantizeLinear(d, s, z)"
        "  y = DequantizeLinear(e, s, z) }"
    ),
}


@pytest.mark.parametrize("name", SELF)
def test_a_model_against_itself_without_its_names(name: str) -> None:
    """Every node and every value finds itself, for certain."""
    a, b = load(SELF[name]()), scramble(load(SELF[name]()))
    mates = dict(zip(_all(a), _all(b), strict=True))
    found = align(a, b)

    real = [item for item in mates if item.op_type != "Constant"]
    assert {pair.a: pair.b for pair in found.nodes} == {item: mates[item] for item in real}
    assert {v for item in real for v in item.outputs if v.name} <= {pair.a for pair in found.values}
    assert found.only_a == found.only_b == ()
    assert all(pair.confidence == 1 for pair in found.values)


def _all(model: ir.Model) -> list[ir.Node]:
    return [item for graph in model.graphs() for item in graph]


def test_equal_work_finds_its_own_twin() -> None:
    """Two equal nodes are paired in order, one to one."""
    proto = SELF["twins"]()
    found = align(load(proto), load(proto))

    assert found.names() == {"x": "x", "a": "a", "b": "b", "y": "y"}


@pytest.mark.parametrize("extra", ["", "Identity", "Sqrt"])
def test_repeated_blocks_with_other_weights(extra: str) -> None:
    """Where no weight tells the blocks apart, they are paired in their order, whatever one side adds."""
    a, b = load(blocks(8)), load(blocks(8, prefix="q", seed=3, extra=extra))
    names = align(a, b).names()

    assert {a_name: names[a_name] for n in range(8) for a_name in (f"a{n}", f"d{n}", f"e{n}")} == {
        f"{letter}{n}": f"{letter}q{n}" for n in range(8) for letter in "ade"
    }


def test_the_same_models_give_the_same_answer() -> None:
    """Nothing depends on hashes of objects."""
    a, b = blocks(5), blocks(5, prefix="q", extra="Sqrt")
    answers = [align(load(a), load(b)) for _ in range(2)]

    assert answers[0].names() == answers[1].names()
    assert [row.node.name for row in answers[0].only_b] == [row.node.name for row in answers[1].only_b]


def conv_bn() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return Conv → BatchNormalization → Relu → Conv, and the same with the normalisation folded."""
    w, s, m = weight("w", 4, 3, 3, 3), weight("s", 4), weight("m", 4)
    shift = weight("t", 4)
    v = numpy_helper.from_array(np.abs(RNG.standard_normal(4)).astype(np.float32) + 0.5, "v")
    second = weight("u", 2, 4, 1, 1)
    io = {"inputs": [build.value("x", (1, 3, 6, 6))], "outputs": [build.value("y", (1, 2, 4, 4))]}
    a = build.model(
        [
            node("Conv", "x w", "c", kernel_shape=[3, 3]),
            node("BatchNormalization", "c s t m v", "n", epsilon=1e-5),
            node("Relu", "n", "r"),
            node("Conv", "r u", "y", kernel_shape=[1, 1]),
        ],
        weights=[w, s, shift, m, v, second],
        **io,
    )
    arrays = {t.name: numpy_helper.to_array(t) for t in a.graph.initializer}
    scale = arrays["s"] / np.sqrt(arrays["v"] + 1e-5)
    folded = numpy_helper.from_array(arrays["w"] * scale[:, None, None, None], "w2")
    bias = numpy_helper.from_array(arrays["t"] - arrays["m"] * scale, "b2")
    b = build.model(
        [
            node("Conv", "x w2 b2", "cn", kernel_shape=[3, 3]),
            node("Relu", "cn", "rr"),
            node("Conv", "rr u", "y", kernel_shape=[1, 1]),
        ],
        weights=[folded, bias, second],
        **io,
    )
    return a, b


def test_conv_with_batch_normalisation_folded() -> None:
    """The last value of the fused region is paired, and it holds the same."""
    a, b = conv_bn()
    found = align(load(a), load(b))

    assert found.names() == {"x": "x", "n": "cn", "r": "rr", "y": "y"}
    assert [(row.node.op_type, row.into.op_type) for row in found.only_a if row.into] == [
        ("BatchNormalization", "Conv")
    ]
    assert_close(a, b, found, 1e-5)


def test_matmul_add_against_gemm() -> None:
    """Gemm stands for MatMul and Add; its weight may lie the other way round."""
    shapes = {"inputs": [build.value("x", (3, 4))], "outputs": [build.value("y", (3, 5))]}
    w, c = weight("w", 4, 5), weight("c", 5)
    turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(w).T), "t")
    a = build.model(
        [node("MatMul", "x w", "m"), node("Add", "m c", "s"), node("Tanh", "s", "y")],
        weights=[w, c],
        **shapes,
    )
    b = build.model(
        [node("Gemm", "x t c", "g", transB=1), node("Tanh", "g", "y")], weights=[turned, c], **shapes
    )
    found = align(load(a), load(b))

    assert found.names() == {"x": "x", "s": "g", "y": "y"}
    assert {(pair.a_name, pair.b_name) for pair in found.weights} == {("w", "t"), ("c", "c")}
    assert_close(a, b, found, 1e-5)


NORM = """
agraph (float[2,8] x) => (float[2,8] y) {
    m = ReduceMean<keepdims=1>(x, axes)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<keepdims=1>(p, axes)
    e = Add(v, eps)  r = Sqrt(e)  n = Div(d, r)  s = Mul(n, g)  t = Add(s, h)  u = MatMul(t, w)  y = Relu(u)
}
"""


def test_a_decomposed_layer_norm_against_the_operator() -> None:
    """What goes in and what comes out is paired across nine nodes and one."""
    tensors = [weight("g", 8), weight("h", 8), weight("w", 8, 8)]
    a = build.text(NORM)
    a.graph.initializer.extend(tensors)
    for name, array in {"axes": np.array([-1]), "two": np.float32(2), "eps": np.float32(1e-5)}.items():
        a.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    body = "l = LayerNormalization(x, g, h)  o = MatMul(l, w)  y = Relu(o)"
    b = build.text(f"agraph (float[2,8] x) => (float[2,8] y) {{ {body} }}")
    b.graph.initializer.extend(tensors)
    found = align(load(a), load(b))

    assert found.names() == {"x": "x", "t": "l", "u": "o", "y": "y"}
    assert_close(a, b, found, 1e-4)


def test_half_precision_with_casts() -> None:
    """Casts between real types are looked through; rounded weights are recognised."""
    a = blocks(4)
    b = blocks(4, prefix="h")
    for tensor in b.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    first, last = b.graph.node[0], b.graph.node[-1]
    for item in b.graph.node:
        item.input[:] = ["x16" if name == "x" else name for name in item.input]
    last.output[0] = "y16"
    b.graph.node.insert(0, node("Cast", "x", "x16", to=TensorProto.FLOAT16))
    b.graph.node.append(node("Cast", "y16", "y", to=TensorProto.FLOAT, name="out"))
    found = align(load(a), load(b))

    assert first.input[0] == "x16"
    assert found.names()["e2"] == "eh2"
    assert found.names()["y"] == "y"
    assert len(found.weights) == 4
    assert [row.node.op_type for row in found.only_b] == ["Cast", "Cast"]
    assert_close(a, b, found, 1e-2)


def test_quantised_and_dequantised() -> None:
    """QuantizeLinear and DequantizeLinear are looked through; codes are paired with what they mean."""
    shapes = {"inputs": [build.value("x", (2, SIZE))], "outputs": [build.value("y", (2, SIZE))]}
    w = weight("w", SIZE, SIZE)
    a = build.model([node("MatMul", "x w", "m"), node("Relu", "m", "y")], weights=[w], **shapes)
    scale = np.float32(np.abs(numpy_helper.to_array(w)).max() / 127)
    codes = np.rint(numpy_helper.to_array(w) / scale).astype(np.int8)
    tensors = {"c": codes, "s": scale, "z": np.int8(0), "xs": np.float32(0.03), "xz": np.uint8(128)}
    b = build.model(
        [
            node("QuantizeLinear", "x xs xz", "q"),
            node("DequantizeLinear", "q xs xz", "d"),
            node("DequantizeLinear", "c s z", "wd"),
            node("MatMul", "d wd", "mm"),
            node("Relu", "mm", "y"),
        ],
        weights=[numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
        **shapes,
    )
    found = align(load(a), load(b))

    assert found.names() == {"x": "x", "m": "mm", "y": "y"}
    assert [(pair.a_name, pair.b_name) for pair in found.weights] == [("w", "wd")]
    assert_close(a, b, found, 0.05)


def test_a_folded_constant_is_said() -> None:
    """A node that depends on constants alone is marked: the other side may have folded it."""
    w = weight("w", 2)
    a = build.model([node("Neg", "w", "n"), node("Add", "x n", "y")], weights=[w])
    b = build.model(
        [node("Add", "x m", "y")], weights=[numpy_helper.from_array(-numpy_helper.to_array(w), "m")]
    )
    found = align(load(a), load(b))

    assert [(row.node.op_type, row.constant) for row in found.only_a] == [("Neg", True)]
    assert found.names() == {"x": "x", "y": "y"}


def test_a_transpose_that_moved_is_another_layout() -> None:
    """Work on turned axes is paired, but marked: the values stand in another order."""
    shapes = {"inputs": [build.value("x", (2, 3, 5))], "outputs": [build.value("y", (5, 3, 2))]}
    a = build.model([node("Transpose", "x", "t"), node("Relu", "t", "r"), node("Abs", "r", "y")], **shapes)
    b = build.model([node("Relu", "x", "r"), node("Abs", "r", "s"), node("Transpose", "s", "y")], **shapes)
    found = align(load(a), load(b))
    forms = {pair.a_name: (pair.b_name, pair.form) for pair in found.values}

    assert forms["y"] == ("y", "same")
    assert forms.get("r", ("r", "layout")) == ("r", "layout")


def test_pairs_do_not_cross() -> None:
    """A → B in one graph and B → A in the other: only one of the two can be paired."""
    a = build.model([node("Sin", "x", "s"), node("Cos", "s", "y")])
    b = build.model([node("Cos", "x", "s"), node("Sin", "s", "y")])
    found = align(load(a), load(b))

    assert len(found.nodes) <= 1


def test_nothing_in_common_is_no_pair() -> None:
    """Two unrelated graphs share their interface alone, or not even that."""
    a = build.model([node("Sin", "x", "y")])
    b = build.text("agraph (float[3,3] p) => (float[3,3] q) { q = MatMul(p, p) }")
    found = align(load(a), load(b))

    assert found.values == found.nodes == ()


def test_inputs_are_paired_by_name_then_by_place() -> None:
    """Equal names go first; what is left is paired by place if its sizes allow."""
    a = build.text("agraph (float[2] p, float[2] q) => (float[2] y) { y = Sub(p, q) }")
    b = build.text("agraph (float[2] q, float[2] p) => (float[2] y) { y = Sub(p, q) }")
    c = build.text("agraph (float[2] u, float[2] v) => (float[2] w) { w = Sub(u, v) }")

    assert align(load(a), load(b)).names() == {"p": "p", "q": "q", "y": "y"}
    assert align(load(a), load(c)).names() == {"p": "u", "q": "v", "y": "w"}


def test_time_grows_with_size() -> None:
    """Four times the nodes take about four times the time: no step is quadratic."""
    spent = []
    for count in (150, 600):
        a, b = load(blocks(count)), load(blocks(count, prefix="q", seed=3, extra="Sqrt"))
        started = time.process_time()
        align(a, b)
        spent.append(time.process_time() - started)

    assert spent[1] < 10 * spent[0]
