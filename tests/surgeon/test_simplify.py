"""The driver: interface, options, bisecting a wrong rule, growth, what is kept."""

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import load, save
from graphdoc.surgeon.rules.base import Context, Edit, Rule, rule
from graphdoc.surgeon.simplify import Options, rule_names, simplify
from graphdoc.surgeon.verification import Verification, VerifiedRun
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build
from tests.surgeon.simplify_check import check, parse, run, seeded

CHAIN = """g (float[N] x) => (float[N] y) <float one = {1}>
{ a = Identity(x) b = Mul(a, one) c = Relu(b) d = Exp(c) y = Identity(d) }"""


@rule("wrong", "user", "Exp")
def wrong(node: ir.Node, context: Context) -> Edit:
    """Put a Relu where an Exp was: what verification must find."""
    context.replace(node.outputs[0], context.node("Relu", [node.inputs[0]], like=node)[0])
    return Edit("broke it")


def _verify(original: ir.Model, edited: ir.Model) -> Verification:
    """Compare the outputs through ONNX Runtime."""
    protos = [write_model(model) for model in (original, edited)]
    feeds = seeded(protos[0], {"N": 4})
    values = [run(proto, feeds)["y"] for proto in protos]
    error = float(np.abs(values[0] - values[1]).max())
    return Verification(
        runs=(VerifiedRun(inputs="seeded", runner="ort", agrees=error == 0, value="y", error=error),)
    )


def test_a_wrong_rule_is_found_and_dropped() -> None:
    """The first edit after which outputs differ names the rule; everything else is done."""
    rules: list[Rule] = [wrong]
    result = simplify(load(parse(CHAIN)), None, _verify, rules=rules)

    assert not result
    assert [item.rule for item in result.report.dropped] == ["wrong"]
    assert "differs" in result.report.dropped[0].why
    assert [node.op_type for node in result.model.graph] == ["Relu", "Exp"]
    assert result.report.verification is not None
    assert result.report.verification.agrees


def test_a_sound_simplification_is_truthy() -> None:
    """Verified, nothing dropped."""
    result = simplify(load(parse(CHAIN)), None, _verify)

    assert result
    assert result.report.nodes_before == 5
    assert result.report.nodes_after == 2
    assert sum(result.report.removed_by().values()) == 3


def test_the_limit_stops_after_so_many_edits() -> None:
    """Edits come in the same order each time, so that they can be bisected."""
    everything = simplify(load(parse(CHAIN))).report.done
    for limit in range(len(everything) + 1):
        assert simplify(load(parse(CHAIN)), Options(limit=limit)).report.done == everything[:limit]


def test_only_and_skip() -> None:
    """Rules are chosen by name or group."""
    assert check(parse(CHAIN), only=("multiply-one",), again=False).ops == [
        "Identity",
        "Relu",
        "Exp",
        "Identity",
    ]
    assert "Mul" in check(parse(CHAIN), skip=("multiply-one",)).ops
    assert len(check(parse(CHAIN), skip=("identity",)).ops) == 5


def test_unknown_rules_are_named() -> None:
    """A misspelt rule is an error that lists the right ones."""
    with pytest.raises(UsageError, match="no rule 'multiply-two'") as error:
        simplify(load(parse(CHAIN)), Options(skip=("multiply-two",)))

    assert "multiply-one" in str(error.value)


def test_rule_names_are_unique() -> None:
    """No two rules share a name."""
    assert len(rule_names()) == len(set(rule_names()))


@pytest.mark.parametrize("glob", ["b", "bee*"])
def test_kept_values_survive(glob: str) -> None:
    """A value or node whose name matches keeps its name and maker."""
    proto = parse(CHAIN)
    proto.graph.node[1].name = "bee1"
    result = check(proto, keep=(glob,))

    assert any("b" in node.output for node in result.proto.graph.node)


def test_outputs_keep_their_names() -> None:
    """Inputs, constants and inner values that are outputs too stay outputs, in order, under their names."""
    body = "g (float[2] x) => (float[2] y, float[2] z, float[2] w, float[2] v) <float[2] w = {1,2}> "
    nodes = ["y = Identity(x)", "a = Relu(x)", "z = Identity(a)", "v = Identity(w)"]
    result = check(parse(f"{body} {{ {' '.join(nodes)} }}"))

    assert [output.name for output in result.proto.graph.output] == ["y", "z", "w", "v"]
    assert [node.op_type for node in result.proto.graph.node].count("Relu") == 1


def test_equal_outputs_stay_two() -> None:
    """Two outputs that are the same value each keep a name."""
    result = check(parse("g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) z = Relu(x) }"))

    assert [output.name for output in result.proto.graph.output] == ["y", "z"]


def test_what_carries_no_arithmetic_survives() -> None:
    """Metadata, documentation, symbols, node names."""
    proto = parse("g (float[batch,3] x) => (float[batch,3] y) { a = Identity(x) y = Relu(a) }")
    proto.metadata_props.add(key="labels", value="a,b")
    proto.doc_string = "about"
    proto.graph.node[1].name, proto.graph.node[1].doc_string = "head", "the head"
    proto.graph.input[0].doc_string = "pixels"
    result = check(proto, sizes=[{"batch": 2}])

    edited = result.proto
    assert edited.metadata_props[0].value == "a,b"
    assert (edited.doc_string, edited.graph.node[0].name) == ("about", "head")
    assert edited.graph.node[0].doc_string == "the head"
    assert edited.graph.input[0].SerializeToString() == proto.graph.input[0].SerializeToString()


def test_shapes_are_fixed_on_request() -> None:
    """Sizes given become part of the model; a symbol takes its size everywhere."""
    body = "g (float[N,4] x, float[N] z) => (float[N,2,2] y) "
    body += "<int64[2] s = {2,2}, int64 i = {0}, int64[1] a = {0}>"
    nodes = (
        "{ h = Shape(x) n = Gather(h, i) u = Unsqueeze(n, a) t = Concat <axis=0> (u, s) y = Reshape(x, t) }"
    )
    result = simplify(load(parse(f"{body} {nodes}")), Options(shapes=(("x", (3, 4)),)))
    edited = write_model(result.model)

    assert [node.op_type for node in edited.graph.node] == ["Reshape"]
    dims = [
        [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*edited.graph.input, *edited.graph.output)
    ]
    assert dims == [[3, 4], [3], [3, 2, 2]]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ((("q", (1, 4)),), "no input and no size 'q'"),
        ((("x", (1, 5)),), "has 4 where 5 is asked for"),
        ((("x", (1,)),), "has 2 dimensions"),
        ((("x", (1, 4)), ("z", (2,))), "given as 1 and as 2"),
    ],
)
def test_wrong_shapes_are_refused(shapes: Any, words: str) -> None:
    """A shape that the model contradicts names input and size."""
    proto = parse("g (float[N,4] x, float[N] z) => (float[N,4] y) { y = Relu(x) }")
    with pytest.raises(UsageError) as error:
        simplify(load(proto), Options(shapes=tuple(sorted(shapes))))

    assert words in str(error.value) or "asked for" in str(error.value)


def test_only_defaults_can_be_frozen() -> None:
    """An input without a default has nothing to be frozen to."""
    with pytest.raises(UsageError, match="no input with a default"):
        simplify(load(parse(CHAIN)), Options(freeze=("x",)))


def test_growth_has_a_limit_over_all() -> None:
    """What folding may add is a sum; results that follow from too large ones are still computed."""
    body = (
        "g (float[64,64] x) => (float[64,64] y) <float[64,1] a = {"
        + ",".join(["1"] * 64)
        + "}, float[1,64] b = {"
    )
    body += ",".join(["2"] * 64) + "}> { m = Mul(a, b) s = ReduceSum(m) r = Sub(x, s) y = Add(r, m) }"
    small = check(parse(body), max_growth=1000, exact=False)
    large = check(parse(body), max_growth=2**20, exact=False)

    assert small.ops == ["Mul", "Sub", "Add"]
    assert any("would add" in reason for reason in small.reasons("fold-constants"))
    assert large.ops == ["Sub", "Add"]


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (TensorProto.BFLOAT16, [1 / 3, -0.0, 3.0e38]),
        (TensorProto.FLOAT16, [1 / 3, -0.0, float("inf")]),
        (TensorProto.FLOAT8E4M3FN, [0.5, -0.0, 448.0]),
        (TensorProto.FLOAT8E5M2, [0.5, 2.0, 57344.0]),
        (TensorProto.INT4, [-8, 7, 1]),
        (TensorProto.UINT4, [0, 15, 1]),
    ],
)
def test_folding_keeps_the_dtype(dtype: int, numbers: list[float]) -> None:
    """Constants of every dtype come out of folding bit for bit."""
    tensor = helper.make_tensor("c", dtype, [1, 3], numbers)
    proto = build.model(
        [
            helper.make_node("Constant", [], ["c"], value=tensor),
            helper.make_node("Transpose", ["c"], ["t"]),
            helper.make_node("Identity", ["t"], ["k"]),
        ],
        outputs=[build.value("k", [3, 1], dtype)],
        opset=21,
    )
    result = simplify(load(proto))
    edited = write_model(result.model)

    assert not edited.graph.node
    assert edited.graph.initializer[0].data_type == dtype
    wanted = ir.serde.deserialize_tensor(tensor).numpy()
    assert ir.serde.deserialize_tensor(edited.graph.initializer[0]).numpy().tobytes() == wanted.tobytes()


def test_strings_are_folded() -> None:
    """Strings are no numbers, and come out of folding as they went in."""
    words = np.array(["süß", "", "b"], dtype=object)
    proto = build.model(
        [helper.make_node("Gather", ["w", "i"], ["g"]), helper.make_node("Identity", ["g"], ["y"])],
        inputs=[build.value("x")],
        outputs=[build.value("y", [2], TensorProto.STRING)],
        weights=[
            helper.make_tensor("w", TensorProto.STRING, [3], [w.encode() for w in words]),
            numpy_helper.from_array(np.array([2, 0]), "i"),
        ],
    )
    result = check(proto)

    assert result.ops == []


def test_old_files_lose_weights_from_their_inputs() -> None:
    """Before IR version 4 weights are listed as inputs and are constants: folded, and no inputs any more."""
    proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { a = Exp(w) y = Mul(x, a) }", 9)
    proto.ir_version = 3
    proto.graph.input.append(build.value("w", [2]))
    result = check(proto)

    assert result.ops == ["Mul"]
    assert [value.name for value in result.proto.graph.input] == ["x"]
    assert result.proto.ir_version == 4


def test_node_names_become_unique() -> None:
    """ONNX Runtime refuses two nodes of one name."""
    proto = parse("g (float[N] x) => (float[N] y) { a = Relu(x) y = Exp(a) }")
    proto.graph.node[0].name = proto.graph.node[1].name = "same"
    edited = write_model(simplify(load(proto)).model)

    assert [node.name for node in edited.graph.node] == ["same", "same_1"]
    run(edited, seeded(edited, {"N": 3}))


def test_external_weights_stay_where_they_lie(tmp_path: pathlib.Path) -> None:
    """Weights in files are not read into memory, and are written along."""
    proto = build.external("w.bin", length=8)
    proto.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
    proto.graph.output[0].name = "z"
    (tmp_path / "w.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    result = simplify(load(tmp_path / "m.onnx"))
    (tmp_path / "out").mkdir()
    save(result.model, tmp_path / "out" / "m.onnx")

    edited = onnx.load(str(tmp_path / "out" / "m.onnx"))
    assert [node.op_type for node in edited.graph.node] == ["Add"]
    assert numpy_helper.to_array(edited.graph.initializer[0]).tolist() == [1, 2]


def test_a_long_chain_takes_linear_time() -> None:
    """Twice the nodes, about twice the edits: no node is visited again and again."""

    def edits(count: int) -> int:
        body = " ".join(f"v{i + 1} = Identity(v{i}) " for i in range(count))
        proto = parse(f"g (float[N] v0) => (float[N] y) {{ {body} y = Relu(v{count}) }}")
        return len(simplify(load(proto)).report.done)

    assert edits(400) == 2 * edits(200)


def test_opset_is_converted_first() -> None:
    """Another opset comes with the simplification."""
    proto = parse("g (float[2,3] x) => (float[2,3] y) { a = Identity(x) y = Softmax <axis=1> (a) }", 11)
    edited = write_model(simplify(load(proto), Options(to_opset=13)).model)

    assert edited.opset_import[0].version == 13
    feeds = seeded(proto, {})
    assert np.allclose(run(proto, feeds)["y"], run(edited, feeds)["y"], atol=1e-6)
