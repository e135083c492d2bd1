"""Facts: what is known of every value before a run, and that it holds in runs of any size."""

import pathlib
import sys
import time
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from onnx import helper, numpy_helper, parser

from graphdoc.engine.errors import InputError
from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import ContainerType, TensorType
from tests.engine.infer_check import complaints, observed

HEADER = '<ir_version: 10, opset_import: ["": 18]>'


def model(text: str, header: str = HEADER) -> ir.Model:
    """Return the model of a graph in ONNX's text form."""
    return ir.from_proto(parser.parse_model(f"{header}\n{text}"))


def value(graph: ir.Model, name: str) -> ir.Value:
    """Return a value by name, inside subgraphs too."""
    for node in graph.graph.all_nodes():
        for output in node.outputs:
            if output.name == name:
                return output
    return next(v for v in (*graph.graph.inputs, *graph.graph.initializers.values()) if v.name == name)


def shape(text: str, name: str = "y", **shapes: Any) -> Any:
    graph = model(text)
    return Facts(graph, shapes=shapes, claims=False).of(value(graph, name)).shape


# ---- symbolic shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # One known size among unknown ones survives Shape → Gather → Mul → Concat → Reshape.
        (
            """g (float[N, C, 7, 7] x) => (float[a, b] y) <int64 zero = {0}, int64[1] rest = {-1}> {
                s = Shape(x)  n = Gather(s, zero)  axes = Constant<value_ints = [0]>()
                u = Unsqueeze(n, axes)  t = Concat<axis = 0>(u, rest)  y = Reshape(x, t) }""",
            ("N", "49*C"),
        ),
        (
            """g (float[N, C, 7, 7] x) => (float[a, b] y) {
                s = Shape<start = 1>(x)  p = ReduceProd<keepdims = 1>(s)  m = Constant<value_ints = [-1]>()
                t = Concat<axis = 0>(m, p)  y = Reshape(x, t) }""",
            ("N", "49*C"),
        ),
        (
            """g (float[1, 3, H, W] x, float[8, 3, 3, 3] w) => (float[a, b, c, d] y) {
                y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) }""",
            (1, 8, "floor((H + 1)/2)", "floor((W + 1)/2)"),
        ),
        (
            """g (float[1, 3, H, W] x) => (float[a, b, c, d] y) {
                y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x) }""",
            (1, 3, "floor(H/2)", "floor(W/2)"),
        ),
        (
            """g (float[B, T] x) => (float[a, b] y) {
                st = Constant<value_ints = [1]>()  e = Constant<value_ints = [9223372036854775807]>()
                y = Slice(x, st, e, st) }""",
            ("B", "max(T - 1, 0)"),
        ),
        (
            """g (float[B, T] x) => (float[a] y) {
                s = Shape<start = 1, end = 2>(x)  one = Constant<value_ints = [1]>()
                t = Add(s, one)  y = ConstantOfShape(t) }""",
            ("T + 1",),
        ),
        (
            """g (float[B, T] x) => (float[a, b] y) {
                d = Shape<start = 1, end = 2>(x)  n = Squeeze(d)  z = Constant<value_int = 0>()
                o = Constant<value_int = 1>()  r = Range(z, n, o)  f = CastLike(r, x)  y = Add(x, f) }""",
            ("B", "T"),
        ),
        (
            # torch.Tensor.expand: -1 keeps a size, told by Where.
            """g (float[B, 1] x) => (float[a, b] y) {
                s = Shape<start = 0, end = 1>(x)  k = Constant<value_ints = [4]>()
                t = Concat<axis = 0>(s, k)  m = Constant<value_ints = [-1]>()
                o = Constant<value_ints = [1, 1]>()  q = Equal(t, m)  w = Where(q, o, t)
                y = Expand(x, w) }""",
            ("B", 4),
        ),
        (
            # torch's F.pad: the pads pass through a matrix that is reversed and transposed.
            """g (float[B, T] x) => (float[a, b] y) {
                n = Shape<start = 1, end = 2>(x)  z = Constant<value_ints = [0]>()
                p = Concat<axis = 0>(n, z, z, z)  two = Constant<value_ints = [-1, 2]>()  m = Reshape(p, two)
                e = Constant<value_ints = [-9223372036854775807]>()  b = Constant<value_ints = [-1]>()
                r = Slice(m, b, e, z, b)  t = Transpose<perm = [1, 0]>(r)  f = Reshape(t, b)
                y = Pad(x, f) }""",
            ("B", "2*T"),
        ),
        (
            """g (float[B, T] x) => (float[a, b] y) {
                k = Constant<value_ints = [2, 3]>()  y = Tile(x, k) }""",
            ("2*B", "3*T"),
        ),
        (
            """g (float[B, 4, H, W] x) => (float[a, b, c, d] y) {
                e = Constant<value_floats = [1.0, 1.0, 2.0, 0.5]>()  y = Resize(x, , e) }""",
            ("B", 4, "2*H", "floor(W/2)"),
        ),
        (
            """g (float[N, 6] x) => (float[a, b] y, float[c, d] z) {
                y, z = Split<axis = 0, num_outputs = 2>(x) }""",
            ("floor((N + 1)/2)", 6),
        ),
        (
            # What is broadcast with min(T, 512) is T, or a run refuses it.
            """g (float[B, T] x, float[512] w) => (float[a, b] y) {
                d = Shape<start = 1, end = 2>(x)  z = Constant<value_ints = [0]>()  p = Slice(w, z, d)
                y = Add(x, p) }""",
            ("B", "T"),
        ),
        ("g (float[B, ?] x) => (float[a, b] y) { y = Relu(x) }", ("B", "x.1")),
        # No entries by one size of 0, which says nothing of the others.
        (
            """g (int64[1] n, int64[5, 0] x, int64[1] k) => (int64[a, b] y) {
                z = Constant<value_ints = [0]>()  r = Concat<axis = 0>(n, z)  t = Tile(x, r)
                y = Add(t, k) }""",
            (None, 0),
        ),
    ],
)
def test_symbols_pass_through_shape_arithmetic(text: str, expected: Any) -> None:
    """Each pattern that exporters write keeps every size it can."""
    assert shape(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        # Sizes that may be -1 in some run could mean "the rest" to Reshape.
        """g (float[B, T] x, float[N, M] z) => (float[a, b] y) {
            s = Shape(z)  one = Constant<value_ints = [1]>()  t = Sub(s, one)  y = Reshape(x, t) }""",
        # The count of what is not zero depends on the data.
        "g (float[B, T] x) => (int64[a, b] y) { n = NonZero(x)  y = Transpose(n) }",
        # Two symbols: equal, or one of them 1.
        "g (float[A, 4] x, float[B, 4] z) => (float[a, b] y) { y = Add(x, z) }",
    ],
)
def test_what_depends_on_the_run_stays_open(text: str) -> None:
    """No size is guessed."""
    assert None in shape(text)


def test_given_sizes_reach_everything() -> None:
    """A symbol that gets a size has it in all inputs; shape arithmetic becomes numbers."""
    text = """g (float[B, T] x, float[T] z) => (float[a, b] y) {
        s = Shape(x)  p = ReduceProd<keepdims = 1>(s)  m = Constant<value_ints = [-1]>()
        t = Concat<axis = 0>(p, m)  w = Mul(x, z)  y = Reshape(w, t) }"""

    graph = model(text)
    facts = Facts(graph, shapes={"x": [2, 5]})

    assert facts.of(value(graph, "z")).shape == (5,)
    assert facts.of(value(graph, "y")).shape == (10, 1)
    assert facts.constant(value(graph, "t")).tolist() == [10, -1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": [1]}, "no input 'q'"),
        ({"x": [1]}, "rank 2"),
        ({"x": [1, 9]}, "has size 4"),
        ({"x": [2, 4], "z": [3]}, "size 'N'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes: Any, message: str) -> None:
    """The input, the axis and the sizes are named."""
    graph = model("g (float[N, 4] x, float[N] z) => (float[a] y) { y = Relu(z) }")

    with pytest.raises(InputError, match=message):
        Facts(graph, shapes=shapes)


def test_names_are_not_expressions() -> None:
    """A declared symbol that reads like an expression is only a name, and ? is not even that."""
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, ["past + 1", "?"]), info("p", 1, ["past", "?"])]
    graph = ir.from_proto(helper.make_model(helper.make_graph([], "g", inputs, [])))
    facts = Facts(graph)

    assert facts.of(value(graph, "x")).shape == ("'past + 1'", "x.1")
    assert facts.of(value(graph, "p")).shape == ("past", "p.1")


# ---- constants -----------------------------------------------------------------------------------------


def with_weight(ir_version: int, *, listed: bool) -> ir.Model:
    """Return y = x + w · w with a weight that may be listed among the inputs."""
    info = helper.make_tensor_value_info
    inputs = [info("x", 1, [2])] + [info("w", 1, [2])] * listed
    nodes = [helper.make_node("Mul", ["w", "w"], ["m"]), helper.make_node("Add", ["x", "m"], ["y"])]
    weight = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    graph = helper.make_graph(nodes, "g", inputs, [info("y", 1, [2])], [weight])
    return ir.from_proto(helper.make_model(graph, ir_version=ir_version))


@pytest.mark.parametrize(
    ("ir_version", "listed", "constant"), [(8, False, True), (8, True, False), (3, True, True)]
)
def test_an_initializer_that_an_input_overrides_is_no_constant(
    ir_version: int, listed: bool, constant: bool
) -> None:
    """From IR version 4 on, a weight listed as an input is only its default; before, it is a weight."""
    graph = with_weight(ir_version, listed=listed)
    facts = Facts(graph)

    assert (facts.constant(value(graph, "w")) is not None) == constant
    assert (facts.constant(value(graph, "m")) is not None) == constant
    assert facts.of(value(graph, "y")) == TensorType(np.dtype(np.float32), (2,))


def test_large_constants_are_given_without_a_copy_and_not_read_to_infer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight in a data file stays there until somebody asks for its content."""
    np.arange(4096, dtype=np.float32).tofile(tmp_path / "w.bin")
    tensor = ir.ExternalTensor(
        "w.bin", 0, 4096 * 4, ir.DataType.FLOAT, shape=ir.Shape([64, 64]), name="w", base_dir=str(tmp_path)
    )
    weight = ir.Value(name="w", const_value=tensor, shape=ir.Shape([64, 64]))
    x = ir.Value(name="x", shape=ir.Shape(["N", 64]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.Node("", "MatMul", [x, weight])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 18}, name="g")
    facts = Facts(ir.Model(graph, ir_version=10))
    reads: list[str] = []
    read = ir.ExternalTensor.numpy
    monkeypatch.setattr(ir.ExternalTensor, "numpy", lambda self: reads.append(self.name) or read(self))

    assert facts.of(node.outputs[0]).shape == ("N", 64)
    assert reads == []
    content = facts.constant(weight)
    assert content is not None
    assert content[1, 0] == 64
    assert not content.flags.owndata


@pytest.mark.parametrize("dtype", [ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4])
def test_small_floats_keep_their_dtype(dtype: ir.DataType) -> None:
    """Constants of every dtype stay what they are, folded ones too."""
    content = np.array([1, 2, -3]).astype(np.float32).astype(dtype.numpy())
    weight = ir.Value(name="w", const_value=ir.tensor(content, dtype=dtype, name="w"))
    axes = ir.Value(name="a", const_value=ir.tensor(np.array([0]), name="a"))
    node = ir.Node("", "Unsqueeze", [weight, axes])
    graph = ir.Graph(
        [], node.outputs, nodes=[node], initializers=[weight, axes], opset_imports={"": 23}, name="g"
    )
    found = Facts(ir.Model(graph, ir_version=10)).constant(node.outputs[0])

    assert found is not None
    assert (found.dtype, found.shape, found.tobytes()) == (dtype.numpy(), (1, 3), content.tobytes())


def test_random_operators_are_not_constant() -> None:
    """What is drawn anew at each run has a type, no content."""
    graph = model("g () => (float[2] y) { r = RandomNormal<shape = [2]>()  y = Relu(r) }")
    known = Facts(graph).of(value(graph, "y"))

    assert (known.dtype, known.shape, known.value) == (np.dtype(np.float32), (2,), None)


# ---- claims --------------------------------------------------------------------------------------------


def claiming(declared: str) -> ir.Model:
    """Return a model whose inner value m is declared, behind an operator that nobody knows."""
    return model(
        f"""g (float[N, 4] x) => (float[a, b] y) <{declared} m, {declared} k>
        {{ m = custom.Unknown(x)  k = Relu(x)  y = Relu(m) }}""",
        '<ir_version: 10, opset_import: ["": 18, "custom": 1]>',
    )


def test_claims_fill_gaps_and_lose_against_inference() -> None:
    """The declared type of an inner value counts where nothing was inferred, not where it contradicts."""
    graph = claiming("float[3, 5]")
    facts = Facts(graph)

    assert facts.of(value(graph, "y")).shape == (3, 5)
    assert facts.of(value(graph, "k")).shape == ("N", 4)
    assert Facts(graph, claims=False).of(value(graph, "y")).shape is None


# ---- edits ---------------------------------------------------------------------------------------------


def test_new_nodes_are_known_at_once() -> None:
    """A node inserted after facts were asked for is inferred like any other."""
    graph = model("g (float[N, 4] x) => (float[a, b] y) { y = Relu(x) }")
    facts = Facts(graph)
    facts.of(value(graph, "y"))
    node = ir.Node("", "Transpose", [value(graph, "y")])
    graph.graph.append(node)

    assert facts.of(node.outputs[0]).shape == (4, "N")


def test_forgetting_takes_what_was_derived() -> None:
    """After an edit everything behind it is inferred anew, through subgraphs; the rest is kept."""
    graph = model(
        """g (float[N, 4] x, bool c) => (float[a, b] y) {
            r = Transpose<perm = [1, 0]>(x)
            y = If(c) <then_branch = t () => (float[p, q] u) { u = Relu(r) },
                       else_branch = e () => (float[p, q] v) { v = Neg(r) }> }"""
    )
    facts = Facts(graph)
    assert facts.of(value(graph, "y")).shape == (4, "N")

    node = value(graph, "r").producer()
    assert node is not None
    node.attributes["perm"] = ir.AttrInt64s("perm", [0, 1])
    facts.forget(value(graph, "r"))

    assert facts.of(value(graph, "u")).shape == ("N", 4)
    assert facts.of(value(graph, "y")).shape == ("N", 4)
    facts.forget_all()
    assert facts.of(value(graph, "y")).shape == ("N", 4)


def chain(length: int) -> ir.Model:
    """Return a chain of nodes."""
    x = ir.Value(name="x", shape=ir.Shape(["N", 64]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes, last = [], x
    for place in range(length):
        node = ir.Node("", ("Relu", "Sigmoid")[place % 2], [last])
        nodes.append(node)
        [last] = node.outputs
        last.name = f"v{place}"
    graph = ir.Graph([x], [last], nodes=nodes, opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


def seconds(length: int) -> float:
    graph = chain(length)
    facts = Facts(graph)
    started = time.process_time()
    assert facts.of(graph.graph.outputs[0]).shape == ("N", 64)
    return time.process_time() - started


def test_long_chains_need_no_recursion_and_linear_time() -> None:
    """Twenty times the nodes take about twenty times as long."""
    assert sys.getrecursionlimit() < 20_000
    seconds(100)

    assert seconds(20_000) < 20 * 4 * max(seconds(1_000), 0.005)


def test_a_circle_is_left_open() -> None:
    """A graph that an edit left in a circle gives no answer, and no endless loop."""
    a = ir.Node("", "Relu", [None])
    b = ir.Node("", "Relu", [a.outputs[0]])
    a.replace_input_with(0, b.outputs[0])
    graph = ir.Graph([], [b.outputs[0]], nodes=[a, b], opset_imports={"": 18}, name="g")

    assert Facts(ir.Model(graph, ir_version=10)).of(b.outputs[0]).shape is None


# ---- control flow, functions, sequences ----------------------------------------------------------------

LOOP = """g (float[B, 4] x, int64 n) => (float[a, b] y, float[c, d, e] z) {{
    {before}
    y, z = Loop({trips}, {cond}, x) <body = b (int64 i, bool k, float[p, q] s)
        => (bool k2, float[p, q] s2, float[B, 4] o) {{
        k2 = Identity(k)  {step}  o = Relu(s) }}> }}"""


@pytest.mark.parametrize(
    ("step", "state"),
    [
        ("s2 = Relu(s)", ("B", 4)),
        ("s2 = Concat<axis = 0>(s, s)", (None, 4)),
        ("s2 = Transpose(s)", (None, None)),
        ("one = Constant<value_ints = [0]>() s2 = Unsqueeze(s, one)", None),
    ],
)
def test_a_loop_keeps_what_is_stable(step: str, state: Any) -> None:
    """Only what every iteration leaves as it was is known of the state, in the body and behind it."""
    graph = model(LOOP.format(before="", trips="n", cond="", step=step))
    facts = Facts(graph, claims=False)

    assert facts.of(value(graph, "y")).shape == state
    assert facts.of(value(graph, "s2").graph.inputs[2]).shape == state  # type: ignore[union-attr]


def test_a_loop_that_may_not_run_leaves_scanned_sizes_open() -> None:
    """Without an iteration the scan output is empty, with declared sizes; a constant count rules that out."""
    maybe = model(LOOP.format(before="", trips="n", cond="", step="s2 = Relu(s)"))
    sure = model(LOOP.format(before="t = Constant<value_int = 3>()", trips="t", cond="", step="s2 = Relu(s)"))

    assert Facts(maybe, claims=False).of(value(maybe, "z")).shape == (None, None, 4)
    assert Facts(sure, claims=False).of(value(sure, "z")).shape == (3, "B", 4)


def test_scan_counts_and_slices() -> None:
    """The body sees slices; the outputs are as long as the scanned axis."""
    graph = model(
        """g (float[B] s0, float[6, B] x) => (float[a] s, float[b, c] y) {
            s, y = Scan<num_scan_inputs = 1, body = b (float[p] i, float[p] j) => (float[p] o, float[p] q) {
                o = Add(i, j)  q = Neg(o) }>(s0, x) }"""
    )
    facts = Facts(graph, claims=False)

    assert facts.of(value(graph, "s")).shape == ("B",)
    assert facts.of(value(graph, "y")).shape == (6, "B")
    assert facts.of(value(graph, "q")).shape == ("B",)


@pytest.mark.parametrize(("cond", "expected"), [("c", (None, 4)), ("k", ("N", 4))])
def test_if_states_what_both_branches_share(cond: str, expected: Any) -> None:
    """A condition that is known takes its branch."""
    graph = model(
        f"""g (float[N, 4] x, float[2, 4] z, bool c) => (float[a, b] y) <bool k = {{1}}> {{
            y = If({cond}) <then_branch = t () => (float[p, q] u) {{ u = Relu(x) }},
                          else_branch = e () => (float[p, q] v) {{ v = Relu(z) }}> }}"""
    )

    assert Facts(graph, claims=False).of(value(graph, "y")).shape == expected


FUNCTION = """
<domain: "own", opset_import: ["": 18]>
F <axis> (a) => (b) { t = Shape(a)  u = Flatten<axis: int = @axis>(a)  b = Relu(u) }
"""


def test_functions_are_inferred_per_call_and_for_all_calls() -> None:
    """A call has its own types; the values of the body have what all calls share."""
    graph = model(
        """g (float[N, 4, 5] x, float[N, 2, 3] z) => (float[p, q] y, float[r, s] w) {
            y = own.F<axis = 1>(x)  w = own.F<axis = 2>(z) }"""
        + FUNCTION,
        '<ir_version: 10, opset_import: ["": 18, "own": 1]>',
    )
    facts = Facts(graph)
    [function] = graph.functions.values()
    shape_of, flat = (node.outputs[0] for node in list(function)[:2])

    assert facts.of(value(graph, "y")).shape == ("N", 20)
    assert facts.of(value(graph, "w")).shape == ("2*N", 3)
    assert facts.of(function.inputs[0]).shape == ("N", None, None)
    assert facts.of(shape_of).elements == ("N", None, None)
    assert facts.of(flat) == TensorType()


def test_sequences_tell_of_their_items() -> None:
    """A sequence is no tensor; what is taken out of it is."""
    graph = model(
        """g (float[N, 4] x) => (float[a, b] y) <int64 p = {1}> {
            r = Relu(x)  s = SequenceConstruct(x, r)  y = SequenceAt(s, p) }"""
    )
    facts = Facts(graph)
    known = facts.of(value(graph, "s"))

    assert isinstance(known, ContainerType)
    assert (known.dtype, known.shape, known.length) == (None, None, 2)
    assert facts.of(value(graph, "y")).shape == ("N", 4)


def test_nothing_is_known_of_nothing() -> None:
    """An omitted input, an unknown operator and a node that a run would refuse have the empty type."""
    graph = model(
        """g (float[N] x) => (float[a] y, float[b] z) {
            y = custom.Unknown(x)  z = Transpose<perm = [3, 1]>(x) }""",
        '<ir_version: 10, opset_import: ["": 18, "custom": 1]>',
    )
    facts = Facts(graph, claims=False)

    assert facts.of(None) == facts.of(value(graph, "y")) == facts.of(value(graph, "z")) == TensorType()
    assert facts.constant(None) is None


# ---- random shape arithmetic ---------------------------------------------------------------------------

_STEPS = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "gather", "slice", "reverse")


@st.composite
def programs(draw: st.DrawFn) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model that computes a vector from shapes and uses it as one, and feeds of random sizes."""
    sizes = [draw(st.integers(0, 5)) for _ in range(3)]
    info, node = helper.make_tensor_value_info, helper.make_node
    nodes = [node("Shape", ["x"], ["v0"]), node("Identity", ["two"], ["v1"])]
    count = 2
    for _ in range(draw(st.integers(1, 7))):
        a, b = (f"v{draw(st.integers(0, count - 1))}" for _ in range(2))
        step, out = draw(st.sampled_from(_STEPS)), f"v{count}"
        if step == "gather":
            nodes.append(node("Gather", [a, "places"], [out]))
        elif step == "slice":
            nodes.append(node("Slice", [a, "one", "far"], [out]))
        elif step == "reverse":
            nodes.append(node("Slice", [a, "minus", "back", "zero", "minus"], [out]))
        elif step in ("Equal", "Less"):
            nodes += [node(step, [a, "one"], [f"q{count}"]), node("Where", [f"q{count}", b, a], [out])]
        elif step in ("Div", "Mod"):  # what an integer divided by 0 is, ONNX leaves undefined
            nodes += [node("Max", [b, "one"], [f"d{count}"]), node(step, [a, f"d{count}"], [out])]
        else:
            nodes.append(node(step, [a, b], [out]))
        count += 1
    last = f"v{count - 1}"
    use = draw(st.sampled_from(("ConstantOfShape", "Reshape", "Expand", "Tile", "Range")))
    nodes += {
        "ConstantOfShape": [node("ConstantOfShape", [last], ["y"])],
        "Reshape": [node("Concat", [last, "minus"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
        "Expand": [node("Expand", ["x", last], ["y"])],
        "Tile": [node("Shape", ["x"], ["s"]), node("Tile", ["x", "v0"], ["y"])],
        "Range": [
            node("ReduceSum", [last], ["r"], keepdims=0),
            node("Min", ["r", "cap"], ["e"]),
            node("Range", ["start", "e", "stride"], ["y"]),
        ],
    }[use]
    constants = {
        "two": [draw(st.integers(-3, 4)) for _ in range(3)],
        "places": [draw(st.integers(-2, 1)) for _ in range(3)],
        "one": [1],
        "far": [2**63 - 1],
        "minus": [-1],
        "back": [-(2**63) + 1],
        "zero": [0],
        "cap": 30,
        "start": draw(st.integers(-2, 3)),
        "stride": draw(st.sampled_from((1, 2, -1))),
    }
    held = [numpy_helper.from_array(np.array(c, np.int64), name) for name, c in constants.items()]
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, ["N", "H", "W"])], [onnx.ValueInfoProto(name="y")], held
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return proto, {"x": np.zeros(sizes, np.float32)}


@settings(max_examples=150, deadline=None)
@given(programs())
def test_shape_arithmetic_holds_for_all_sizes(program: tuple[onnx.ModelProto, dict[str, Any]]) -> None:
    """Sizes of 0 to 5 put into the inferred expressions give what a run gives."""
    proto, feeds = program
    graph = ir.from_proto(proto)
    try:
        results = observed(graph, feeds)
    except Exception:  # the arithmetic gave a vector that is no shape
        assume(False)
    last = proto.graph.node[-1]
    if last.op_type == "Reshape":  # an entry that is not known is taken not to be 0, which means "copy"
        assume(np.all(results[last.input[1]]))

    assert complaints(graph, feeds, results) == []
