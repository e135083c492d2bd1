"""Reduction: the guilty node and no other, the same kind of failure, and a refusal where nothing fails."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from graphdoc.compare.inputs import make_inputs
from graphdoc.compare.reduce import (
    DoesNotFailError,
    FailureKind,
    Reduction,
    Setting,
    reduce_check,
    reduce_crash,
    reduce_mismatch,
    reduce_nan,
)
from graphdoc.compare.reduce_part import Cut
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.model import open_source
from tests.compare import models, reduce_models


def setting(
    proto: onnx.ModelProto, reference: onnx.ModelProto | None = None, *, ref: str = "ort", test: str = "ort"
) -> Setting:
    target = Target(open_source(proto))
    other = None if reference is None else Target(open_source(reference))
    return Setting(target, ref, test, lambda: make_inputs((other or target).model), other)


def rerun(found: Reduction) -> dict[str, Any]:
    """Return what the part's outputs are on the engine, from its bytes."""
    return Interpreter(open_source(found.cut.model.SerializeToString()).model).run(found.cut.feeds)


def test_the_model_has_234_nodes() -> None:
    assert len(reduce_models.whole().graph.node) == 234


@pytest.mark.parametrize("fault", reduce_models.FAULTS)
def test_a_planted_fault_is_cut_down_to_its_node(fault: str) -> None:
    """Twenty faults; what is left reads right values and computes a wrong one."""
    proto, guilty = reduce_models.broken(fault)

    found = reduce_mismatch(setting(proto, reduce_models.whole()))

    assert [node.name for node in found.cut.model.graph.node] == [guilty]
    assert found.whole_nodes == 234
    assert found.minimal
    (output,) = found.cut.model.graph.output
    got, want = rerun(found)[output.name], found.expected[output.name]
    error = np.sqrt(np.mean((got.astype(float) - want) ** 2) / np.mean(want.astype(float) ** 2))
    assert error > found.failure.limit


def test_two_runners_are_reduced_too() -> None:
    """ONNX Runtime's fp16 Sqrt runs in single precision, so what overflows in half lives on there."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float16[2] x) => (float16[2] y) {
            a = Abs (x)
            s = Constant <value = float16 {300}> ()
            m = Mul (a, s)
            q = Mul (m, m)
            r = Sqrt (q)
            y = Neg (r) }""")
    made = setting(proto, ref="engine", test="ort")
    made.inputs = lambda: make_inputs(made.target.model, seed=0)

    try:
        found = reduce_mismatch(made)
    except DoesNotFailError:
        pytest.skip("this ONNX Runtime computes half precision as half")
    assert len(found.nodes) < 4


@pytest.mark.parametrize("build", [models.mlp, models.convolutions, reduce_models.whole])
def test_a_model_that_does_not_fail_is_refused(build: Any) -> None:
    with pytest.raises(DoesNotFailError, match="nothing to reduce"):
        reduce_mismatch(setting(build(), ref="ort", test="engine"))
    with pytest.raises(DoesNotFailError, match="no value is NaN"):
        reduce_nan(setting(build()))
    with pytest.raises(DoesNotFailError, match="runs the model"):
        reduce_crash(setting(build()))
    with pytest.raises(DoesNotFailError, match="the check passes"):
        reduce_check(setting(build()), lambda cut: "")


NAN = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {
    a = Tanh (x)
    one = Constant <value = float {1}> ()
    b = Sub (a, a)
    c = Div (b, b)
    d = Add (c, one)
    e = Mul (d, a)
    y = Tanh (e) }"""


@pytest.mark.parametrize("runner", ["ort", "engine"])
def test_nan_is_cut_down_to_where_it_comes_up(runner: str) -> None:
    found = reduce_nan(setting(parser.parse_model(NAN), test=runner))

    assert found.nodes == ("Div 'c'",)
    assert found.failure.kind is FailureKind.NAN
    assert np.isfinite(found.cut.feeds["b"]).all()
    assert np.isnan(rerun(found)["c"]).all()


CRASH = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[2,3] z, float[4] y) {
    a = Tanh (x)
    b = Exp (a)
    shape = Constant <value_ints = [2, 3]> ()
    c = Reshape (b, shape)
    z = Abs (c)
    y = Neg (b) }"""


@pytest.mark.parametrize(("runner", "said"), [("ort", "Reshape"), ("engine", "cannot hold")])
def test_an_error_is_cut_down_to_its_node(runner: str, said: str) -> None:
    found = reduce_crash(setting(parser.parse_model(CRASH), ref="engine", test=runner))

    assert found.nodes == ("Reshape 'c'",)
    assert said in found.seen
    np.testing.assert_allclose(found.cut.feeds["b"], np.exp(np.tanh(_first(CRASH))), rtol=1e-6)


def _first(text: str) -> Any:
    return make_inputs(Target(open_source(parser.parse_model(text))).model).feeds["x"]


def test_a_check_of_ones_own() -> None:
    """Fails where a Sqrt follows an Add, whatever lies between."""

    def check(cut: Cut) -> str:
        ops = [node.op_type for node in cut.model.graph.node]
        return "bad" if "Sqrt" in ops and "Softmax" in ops else ""

    found = reduce_check(setting(reduce_models.whole()), check)

    assert sorted(node.split()[0] for node in found.nodes) == ["Softmax", "Sqrt"]
    onnx.checker.check_model(found.cut.model, full_check=True)


def test_a_failure_of_another_kind_does_not_count() -> None:
    """Parts that end with another exit code than the whole model are passed over."""

    def check(cut: Cut) -> str:
        ops = {node.op_type for node in cut.model.graph.node}
        if {"Sqrt", "Softmax"} <= ops:
            return "exit code 3"
        return "exit code 1" if "Sqrt" in ops else ""

    found = reduce_check(setting(reduce_models.whole()), check)

    assert found.seen == "exit code 3"
    assert sorted(node.split()[0] for node in found.nodes) == ["Softmax", "Sqrt"]


def test_what_fails_only_sometimes_is_said() -> None:
    answers = iter([*["bad"] * 3, *[""] * 1000])

    with pytest.raises(RunnerError, match="only sometimes"):
        reduce_check(setting(models.mlp()), lambda cut: next(answers))


def test_a_fault_inside_a_subgraph_is_cut_down_to_the_node_around() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (bool flag, float[4] x) => (float[4] y) {{
        a = Tanh (x)
        b = If (flag) <
            then_branch = t () => (tb) {{ tc = Constant <value = float {{{factor}}}> () tb = Mul (a, tc) }},
            else_branch = e () => (eb) {{ eb = Identity (a) }}>
        y = Neg (b) }}"""
    made = setting(parser.parse_model(text.format(factor=2.5)), parser.parse_model(text.format(factor=2.0)))
    made.inputs = lambda: make_inputs(made.target.model)
    feeds = {"flag": np.array(True), "x": np.array([0.1, 0.2, -3, 4], np.float32)}
    fed = make_inputs(made.target.model)
    fed.feeds.update(feeds)
    made.inputs = lambda: fed

    found = reduce_mismatch(made)

    assert found.nodes == ("If 'b'",)
