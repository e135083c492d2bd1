"""Models that differ are never called the same; other names and another order of nodes are no difference."""

import random
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.errors import GraphdocError
from graphdoc.surgeon.diff import ModelDiff, diff_models
from tests.engine.random_graphs import random_graph
from tests.surgeon import build
from tests.surgeon.lint_models import node

# By hand


def quantised(scale: float, zero: int) -> onnx.ModelProto:
    """Return a model that quantises and scales back."""
    return build.model(
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")],
        weights=[build.weight("s", np.array(scale, np.float32)), build.weight("z", np.array(zero, np.uint8))],
    )


def dequantised(scales: list[float], axis: int) -> onnx.ModelProto:
    """Return a product with a quantised weight."""
    codes = np.arange(16, dtype=np.int8).reshape(4, 4)
    return build.model(
        [node("DequantizeLinear", "w s", "d", axis=axis), node("MatMul", "x d", "y")],
        inputs=[build.value("x", (2, 4))],
        outputs=[build.value("y", (2, 4))],
        weights=[build.weight("w", codes), build.weight("s", np.array(scales, np.float32))],
    )


def branches(then: str, otherwise: str) -> onnx.ModelProto:
    """Return an If with one operator in each branch."""
    graphs = [
        helper.make_graph([node(op, "x", f"{name}_r")], name, [], [build.value(f"{name}_r", ())])
        for op, name in ((then, "t"), (otherwise, "e"))
    ]
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    inputs = [build.value("x", ()), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    return build.model([chosen], inputs=inputs, outputs=[build.value("y", ())])


def loop(*, swapped: bool) -> onnx.ModelProto:
    """Return a Loop that carries two values, perhaps one in the place of the other."""
    scalar = helper.make_tensor_value_info
    carried = [build.value("a", ()), build.value("b", ())]
    body = helper.make_graph(
        [node("Identity", "c", "co"), node("Add", "v x", "a"), node("Mul", "w x", "b")],
        "body",
        [
            scalar("i", TensorProto.INT64, []),
            scalar("c", TensorProto.BOOL, []),
            build.value("v", ()),
            build.value("w", ()),
        ],
        [scalar("co", TensorProto.BOOL, []), *(carried[::-1] if swapped else carried)],
    )
    made = helper.make_node("Loop", ["m", "", "x", "x"], ["y", "z"], body=body)
    return build.model(
        [made],
        inputs=[build.value("x", ())],
        outputs=[build.value("y", ()), build.value("z", ())],
        weights=[build.weight("m", np.array(3, np.int64))],
    )


def two_outputs(first: str, second: str) -> onnx.ModelProto:
    """Return two operators that make y and z."""
    outputs = [build.value("y"), build.value("z")]
    return build.model([node(first, "x", "y"), node(second, "x", "z")], outputs=outputs)


def split(outputs: str) -> onnx.ModelProto:
    """Return a model that gives one half of its input away."""
    made = [node("Split", "x", outputs, num_outputs=2)]
    return build.model(made, inputs=[build.value("x", (4,))], outputs=[build.value("y", (2,))])


def weighed(*, overridable: bool, default: float = 1.0) -> onnx.ModelProto:
    """Return a sum with a weight, which may be an input too."""
    inputs = [build.value("x"), *([build.value("w")] if overridable else [])]
    shape = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
    weights = [build.weight("w", np.full(shape, default, np.float32))]
    return build.model([node("Add", "x w", "y")], inputs=inputs, weights=weights)


def called(call: str, signature: str, body: str, opset: int = 18) -> onnx.ModelProto:
    """Return a model that calls a function."""
    text = f"""
    agraph (float[2,2,2] x, float[2,2,2] z) => (float[2,2,2] y) {{ {call} }}
    <domain: "local", opset_import: ["" : {opset}]> {signature} {{ {body} }}
    """
    return build.text(text, extra=', "local" : 1')


def one(op: str, shape: tuple[int, ...] = (2, 3, 4), **attributes: object) -> onnx.ModelProto:
    """Return a model of one operator."""
    return build.model(
        [node(op, "x", "y", name="n", **attributes)],
        inputs=[build.value("x", shape)],
        outputs=[build.value("y", shape)],
    )


ALPHA = np.float32(0.01)

PAIRS: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "scale and zero point": (quantised(0.1, 0), quantised(0.9, 100)),
    "scales per channel": (dequantised([0.1, 0.2, 0.3, 0.4], 1), dequantised([0.4, 0.3, 0.2, 0.1], 1)),
    "axis of the scales": (dequantised([0.1, 0.2, 0.3, 0.4], 0), dequantised([0.1, 0.2, 0.3, 0.4], 1)),
    "branches": (branches("Neg", "Exp"), branches("Exp", "Neg")),
    "carried values": (loop(swapped=False), loop(swapped=True)),
    "makers of outputs": (two_outputs("Neg", "Exp"), two_outputs("Exp", "Neg")),
    "outputs of one node": (split("y w"), split("w y")),
    "an overridable weight": (weighed(overridable=False), weighed(overridable=True)),
    "a default": (weighed(overridable=True), weighed(overridable=True, default=2.0)),
    "inputs of a function": (
        called("y = local.f(x, z)", "f (a, b) => (r)", "r = Sub(a, b)"),
        called("y = local.f(x, z)", "f (b, a) => (r)", "r = Sub(a, b)"),
    ),
    "outputs of a function": (
        called("y, q = local.f(x)", "f (a) => (r, s)", "r = Neg(a) s = Exp(a)"),
        called("y, q = local.f(x)", "f (a) => (s, r)", "r = Neg(a) s = Exp(a)"),
    ),
    "a default of a function": (
        called("y = local.f(x)", "f <k: float = 1.0> (a) => (r)", "r = Elu <alpha: float = @k> (a)"),
        called("y = local.f(x)", "f <k: float = 2.0> (a) => (r)", "r = Elu <alpha: float = @k> (a)"),
    ),
    "opset of a function": (
        called("y = local.f(x)", "f (a) => (r)", "r = Softmax <axis = 1> (a)", 12),
        called("y = local.f(x)", "f (a) => (r)", "r = Softmax <axis = 1> (a)", 13),
    ),
    "one unit in the last place": (
        one("LeakyRelu", alpha=float(ALPHA)),
        one("LeakyRelu", alpha=float(np.nextafter(ALPHA, np.float32(1)))),
    ),
    "a zero of the other sign": (one("Elu", alpha=0.0), one("Elu", alpha=-0.0)),
    "an axis": (one("Softmax", axis=1), one("Softmax", axis=-1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_they_differ(name: str) -> None:
    """What was once called the same; each side is the same as itself."""
    a, b = PAIRS[name]

    assert not diff_models(a, b)
    assert not diff_models(b, a)
    assert diff_models(a, a)
    assert diff_models(b, b)


def test_where_it_is_said() -> None:
    """Attributes with both values, weights with their change, outputs with their makers."""
    last = diff_models(*PAIRS["one unit in the last place"])
    output = diff_models(*PAIRS["outputs of one node"])

    assert [c.details for c in last.nodes] == [("alpha 0.01 → 0.010000001 (one unit in the last place)",)]
    assert [c.details for c in diff_models(*PAIRS["a zero of the other sign"]).nodes] == [
        ("alpha 0.0 → -0.0",)
    ]
    assert {w.a for w in diff_models(*PAIRS["scale and zero point"]).weights} == {"s", "z"}
    assert [(c.kind, c.name) for c in output.interface] == [("source", "y")]
    assert [c.field for c in diff_models(*PAIRS["opset of a function"]).fields] == [
        "function local::f opsets"
    ]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (one("Softmax", axis=2), one("Softmax", axis=-1)),
        (one("Softmax"), one("Softmax", axis=2)),
        (one("Softmax", axis=-3), one("Softmax", axis=0)),
    ],
)
def test_an_axis_counted_from_the_end(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    """Where the rank is known it is the same axis; where it is not, it is said to differ."""
    assert diff_models(a, b)
    for proto in (a, b):
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        for info in (*proto.graph.input, *proto.graph.output):
            info.type.tensor_type.ClearField("shape")
        assert diff_models(proto, proto)


def followed(proto: onnx.ModelProto, op: str) -> onnx.ModelProto:
    """Return a model with one more node behind its output."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    copy.graph.node[-1].output[0] = "before"
    copy.graph.node.append(node(op, "before", "y", name="last"))
    return copy


@pytest.mark.parametrize("name", ["scale and zero point", "scales per channel", "axis of the scales"])
def test_scales_are_named_beside_other_changes(name: str) -> None:
    """What quantisation scales by is looked at even where something else differs too."""
    a, b = PAIRS[name]
    alone, beside = diff_models(a, b), diff_models(followed(a, "Abs"), followed(b, "Neg"))

    assert {w.a for w in alone.weights} == {w.a for w in beside.weights}
    assert {c.details for c in alone.nodes} <= {c.details for c in beside.nodes}


def test_attributes_beside_other_changes() -> None:
    """By bits there too, and an axis from the end is the one from the start."""
    a, b = PAIRS["one unit in the last place"]
    near = diff_models(followed(a, "Abs"), followed(b, "Neg"))
    axis = diff_models(followed(one("Softmax", axis=2), "Abs"), followed(one("Softmax", axis=-1), "Neg"))

    assert [c.details for c in near.of_kind("attributes")] == [
        ("alpha 0.01 → 0.010000001 (one unit in the last place)",)
    ]
    assert axis.of_kind("attributes") == ()
    assert {c.a_op or c.b_op for c in axis.nodes} == {"Abs", "Neg"}


HEAD = "agraph (float[2] x) => (float[2] y)"

BODIES: dict[str, tuple[str, str, bool]] = {
    "equal values in another order": (
        "{ a = Abs(x) b = Abs(x) c = Neg(a) d = Exp(b) y = Sub(c, d) }",
        "{ b = Abs(x) a = Abs(x) d = Exp(a) c = Neg(b) y = Sub(c, d) }",
        True,
    ),
    "one of two draws": (
        "{ a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }",
        "{ a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, a) }",
        False,
    ),
    "what nobody reads": ("{ a = Abs(x) y = Neg(x) }", "{ y = Neg(x) b = Abs(x) }", True),
    "another operator that nobody reads": ("{ a = Abs(x) y = Neg(x) }", "{ a = Exp(x) y = Neg(x) }", False),
    "a constant as a node": (
        "<float[2] w = {1.0, 2.0}> { y = Sub(x, w) }",
        "{ w = Constant <value = float[2] {1.0, 2.0}> () y = Sub(x, w) }",
        True,
    ),
    "a weight that nobody reads": (
        "<float[1] u = {5.0}> { y = Neg(x) }",
        "<float[1] u = {6.0}> { y = Neg(x) }",
        False,
    ),
    "an output that is left out": ("{ y, m = Dropout(x) }", "{ y = Dropout(x) }", False),
    "a bound one unit away": (
        "<float w = {0.1}> { y = Clip(x, w) }",
        "<float w = {0.10000001}> { y = Clip(x, w) }",
        False,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_counts(name: str) -> None:
    """Order and names do not, wiring and content do, read or not."""
    a, b, same = BODIES[name]

    assert bool(diff_models(build.text(HEAD + a), build.text(HEAD + b))) is same


# By chance


def graphs(proto: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside it."""
    yield proto
    for item in proto.node:
        for attribute in item.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with other names of all that is no input or output, weights in another order."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    kept = {info.name for info in (*copy.graph.input, *copy.graph.output)} | {""}

    def new(name: str) -> str:
        return name if name in kept else f"other_{name}"

    for graph in graphs(copy.graph):
        inner = graph is not copy.graph
        for item in graph.node:
            item.name = f"n{id(item)}" if item.name else ""
            item.input[:] = map(new, item.input)
            item.output[:] = map(new, item.output)
        for info in (*graph.input, *graph.output) if inner else ():
            info.name = new(info.name)
        for tensor in graph.initializer:
            tensor.name = new(tensor.name)
        ordered = sorted(graph.initializer, key=lambda tensor: tensor.name, reverse=True)
        del graph.value_info[:], graph.initializer[:]
        graph.initializer.extend(ordered)
    return copy


def flipped(tensor: onnx.TensorProto, rng: random.Random) -> bool:
    """Change one bit of a weight."""
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind not in "iuf" or not array.size:
        return False
    octets = bytearray(array.tobytes())
    octets[rng.randrange(len(octets))] ^= 1 << rng.randrange(8)
    other = np.frombuffer(bytes(octets), array.dtype).reshape(array.shape)
    tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
    return True


def mutated(proto: onnx.ModelProto, rng: random.Random) -> str:
    """Change one thing in place and say what; "" where nothing was found to change."""
    graph = rng.choice(list(graphs(proto.graph)))
    items = list(graph.node)
    kind = rng.choice(("weight", "input", "outputs", "attribute", "remove", "output", "operator"))
    if kind == "weight" and graph.initializer:
        return kind if flipped(rng.choice(graph.initializer), rng) else ""
    if not items:
        return ""
    item = rng.choice(items)
    if kind == "input" and item.input:
        return kind if _rewired(proto.graph, item, rng) else ""
    if kind == "outputs" and len(item.output) > 1 and all(item.output) and _is_read(proto, item):
        item.output[:] = [*item.output[1:], item.output[0]]
        return kind
    scalars = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT)
    numbers = [
        a for a in item.attribute if a.type in scalars and a.name != "axis"
    ]  # −1 and 0 may be one axis
    if kind == "attribute" and numbers:
        attribute = rng.choice(numbers)
        if attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = float(np.nextafter(np.float32(attribute.f), np.float32(np.inf)))
        else:
            attribute.i += 1
        return kind
    if kind == "operator" and item.op_type in _OTHER:
        item.op_type = _OTHER[item.op_type]
        return kind
    if kind == "output" and len(proto.graph.output) > 1:
        del proto.graph.output[rng.randrange(len(proto.graph.output))]
        return kind
    return ""


_OTHER = {
    "Abs": "Neg",
    "Neg": "Abs",
    "Add": "Mul",
    "Mul": "Add",
    "Max": "Min",
    "Sub": "Div",
    "Relu": "Sigmoid",
}


def _is_read(proto: onnx.ModelProto, item: onnx.NodeProto) -> bool:
    """Whether an output of a node is: else turning them around gives other names and no more."""
    found = {name for graph in graphs(proto.graph) for each in graph.node for name in each.input}
    found |= {info.name for graph in graphs(proto.graph) for info in graph.output}
    return not found.isdisjoint(item.output)


def _rewired(graph: onnx.GraphProto, item: onnx.NodeProto, rng: random.Random) -> bool:
    """Let a node read another input of the graph: equal weights may stand for one another, inputs not."""
    names = [info.name for info in graph.input if info.name not in item.input]
    if not names:
        return False
    item.input[rng.randrange(len(item.input))] = rng.choice(names)
    return True


def difference(a: onnx.ModelProto, b: onnx.ModelProto) -> ModelDiff | None:
    """Return what differs; None where the change made a model that cannot be read."""
    try:
        return diff_models(a, b)
    except GraphdocError:
        return None


@pytest.mark.parametrize("seed", range(60))
def test_a_change_by_chance_is_seen(seed: int) -> None:
    """A random graph is the same as itself under other names, and differs after any one change."""
    proto, _ = random_graph(seed, most=8)
    rng = random.Random(seed)  # noqa: S311
    assert diff_models(proto, renamed(proto))

    for _ in range(6):
        after = (
            renamed(proto) if rng.random() < 0.5 else onnx.ModelProto.FromString(proto.SerializeToString())
        )
        what = mutated(after, rng)
        if what:
            found = difference(proto, after)
            assert found is None or not found, what
