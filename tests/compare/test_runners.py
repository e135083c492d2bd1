"""Runners: the same values by the same names from all of them, inside subgraphs too."""

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from graphdoc.compare.engine_runner import open_engine
from graphdoc.compare.runner import RunnerOptions, factory, open_runner, runner_names
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError, UsageError
from graphdoc.engine.scope import Occurrences
from graphdoc.surgeon.model import open_source
from tests.compare import models

X = np.array([0.5, -1.25], np.float32)


def target(proto: onnx.ModelProto) -> Target:
    return Target(open_source(proto))


def keys(made: Target) -> list[str]:
    return [point.key for point in made.points]


def assert_same(left: Any, right: Any, name: str) -> None:
    assert isinstance(left, Occurrences) == isinstance(right, Occurrences), name
    if isinstance(left, list):
        assert len(left) == len(right), name
        for one, other in zip(left, right, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
    else:
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6, err_msg=name)


NESTED_FEEDS = {"x": X, "n": np.array(3), "flag": np.array(True)}
CASES = [
    (models.mlp, {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}),
    (models.convolutions, {"x": np.linspace(0, 1, 768, dtype=np.float32).reshape(1, 3, 16, 16)}),
    (models.recurrent, {"x": np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 2, 6)}),
    (models.nested, NESTED_FEEDS),
    (models.nested, {**NESTED_FEEDS, "flag": np.array(False)}),
    (models.scan, {"start": X, "x": np.arange(8, dtype=np.float32).reshape(4, 2)}),
]


@pytest.mark.parametrize(("build", "feeds"), CASES)
def test_ort_and_engine_give_the_same_values_by_the_same_names(build: Any, feeds: dict[str, Any]) -> None:
    made = target(build())
    with open_runner("ort", made) as ort, open_runner("engine", made) as engine:
        a, b = ort.run(feeds, keys(made)), engine.run(feeds, keys(made))

    assert not a.unreachable
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        assert_same(value, b.values[name], name)


def test_values_inside_a_loop_have_one_entry_per_iteration() -> None:
    """The If in the Loop is followed with its condition captured from the main graph."""
    made = target(models.nested())
    inner = "y.body/next.then_branch/inner"

    with open_runner("ort", made) as ort:
        found = ort.run(NESTED_FEEDS, keys(made)).values

    a, expected = X * 2, []
    for _ in range(3):
        expected.append(a + X * 2)
        a = expected[-1] * 2
    assert len(found[inner]) == 3
    np.testing.assert_allclose(found[inner], expected)
    assert not any("else_branch" in name for name in found)


RUNS = [(runner, *case) for runner in ("ort", "engine") for case in CASES]
# onnx.reference fails on a Loop without a condition input, which is what models.nested has
RUNS += [("reference", *case) for case in CASES if case[0] is not models.nested]


@pytest.mark.parametrize(("runner", "build", "feeds"), RUNS)
def test_layers_forced_on_their_own_values_repeat_them(
    runner: str, build: Any, feeds: dict[str, Any]
) -> None:
    """On the values of its own run every layer computes what it computed: own error 0."""
    made = target(build())
    with open_runner(runner, made) as opened:
        found = opened.run(feeds, keys(made)).values
        again = opened.forced(feeds, found, list(found)).values

    assert set(again) >= {k for k in found if runner != "reference" or "/" not in k} - set(made.outputs)
    for name, value in again.items():
        assert_same(value, found[name], name)


@pytest.mark.parametrize(("build", "feeds"), CASES)
def test_forced_each_hands_over_what_forced_returns(build: Any, feeds: dict[str, Any]) -> None:
    made = target(build())
    each: dict[str, Any] = {}
    with open_engine(made, RunnerOptions()) as engine:
        found = engine.run(feeds, keys(made)).values
        kept = engine.forced(feeds, found, list(found)).values
        engine.forced_each(feeds, found, list(found), lambda key, value: each.update({key: value}))

    assert each.keys() == kept.keys()
    for name, value in each.items():
        assert_same(value, kept[name], name)


@pytest.mark.parametrize("runner", ["ort", "engine", "reference"])
def test_forced_layers_follow_the_given_values(runner: str) -> None:
    """A layer's result comes from the values given for its inputs, not from the layers before it."""
    made = target(models.mlp())
    feeds = CASES[0][1]
    with open_runner(runner, made) as opened:
        given = opened.run(feeds, keys(made)).values
        given["hb"] = np.full((3, 32), 2.5, np.float32)
        again = opened.forced(feeds, given, ["r", "hb"]).values

    np.testing.assert_array_equal(again["r"], given["hb"])
    np.testing.assert_allclose(again["hb"], given["h"] + _weight(made, "b1"), rtol=1e-6)


def _weight(made: Target, name: str) -> np.ndarray:
    return next(onnx.numpy_helper.to_array(t) for t in made.proto.graph.initializer if t.name == name)


@pytest.mark.parametrize("code", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "FLOAT16"])
def test_ort_gives_dtypes_that_its_bindings_do_not_convert(code: str) -> None:
    """bfloat16, float8 and 4-bit values are read from memory with their true dtype, and fed back."""
    proto = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[5] x) => (float[5] y) {{
            c = Cast <to = {getattr(onnx.TensorProto, code)}> (x)
            y = Cast <to = 1> (c)
        }}""")
    made, feeds = target(proto), {"x": np.arange(5, dtype=np.float32)}
    with open_runner("ort", made) as ort:
        found = ort.run(feeds, ["c"]).values
        again = ort.forced(feeds, found, ["c", "y"]).values

    assert found["c"].dtype == onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, code))
    np.testing.assert_array_equal(found["c"].astype(np.float32), feeds["x"])
    np.testing.assert_array_equal(again["y"], feeds["x"])


def test_signed_4_bit_values_keep_their_sign() -> None:
    proto = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[3] x) => (int4[3] c) { c = Cast <to = 22> (x) }""")
    made = target(proto)
    with open_runner("ort", made) as ort:
        found = ort.run({"x": np.array([-8, -1, 7], np.float32)}, ["c"]).values

    assert found["c"].dtype == np.dtype(ml_dtypes.int4)
    np.testing.assert_array_equal(found["c"].astype(int), [-8, -1, 7])


@pytest.mark.parametrize("runner", ["ort", "engine"])
def test_a_budget_leaves_later_taps_for_the_next_call(runner: str) -> None:
    """Taps stop where the budget is used up, and the run says so."""
    made = target(models.mlp())
    with open_runner(runner, made) as opened:
        part = opened.run(CASES[0][1], keys(made), budget=1)
        whole = opened.run(CASES[0][1], keys(made), budget=1 << 20)

    assert part.cut
    assert not whole.cut
    assert "h" in part.values
    if runner == "engine":
        assert "r" not in part.values


def test_truth_computes_floats_in_float64() -> None:
    made = target(models.mlp())
    with open_runner("truth", made) as truth:
        found = truth.run(CASES[0][1], keys(made)).values

    assert {value.dtype for value in found.values()} == {np.dtype(np.float64)}
    expected = CASES[0][1]["x"].astype(np.float64) @ _weight(made, "w1").astype(np.float64)
    np.testing.assert_allclose(found["h"], expected, rtol=1e-14, atol=1e-14)


def test_an_unknown_runner_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no runner is called 'tensorrt'") as caught:
        factory("tensorrt", "--test")

    assert "ort:tensorrt" in str(caught.value)
    assert set(runner_names()) >= {"ort", "engine", "reference", "truth"}


@pytest.mark.parametrize("name", ["engine:cuda", "ort:cuda"])
def test_a_missing_device_is_said(name: str) -> None:
    with pytest.raises(RunnerError, match="not available"):
        factory(name)(target(models.mlp()), RunnerOptions())


def test_ort_refusals_come_as_one_line() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
        g (float[2] x) => (float[2] y) { y = com.acme.Fused(x) }""")
    with (
        open_runner("ort", target(proto)) as ort,
        pytest.raises(RunnerError, match="refuses the model") as caught,
    ):
        ort.run({"x": X}, ["y"])

    assert "Fused" in caught.value.cause
    assert "\n" not in caught.value.cause


def test_isolated_layers_run_in_portions(monkeypatch):
    """Whatever fits at a time, each layer comes once and as in one piece; weights are not taken along."""
    from graphdoc.compare import derived, ort_runner
    from tests.compare.test_pictures import chain

    target = Target(open_source(chain(7)))
    feeds = {"v0": np.linspace(0, 1, 64, dtype=np.float32)}
    with open_runner("ort", target) as runner:
        names = [f"v{n + 1}" for n in range(7)]
        given = {name: np.full(64, 2.0, np.float32) for name in names}
        whole = runner.forced(feeds, given, names).values
        monkeypatch.setattr(ort_runner, "PORTION", 2 * 64 * 4)
        found = []
        runner.forced_each(feeds, given, names, lambda name, value: found.append((name, value)))
    assert [name for name, _ in found] == names
    assert all(np.array_equal(value, whole[name]) for name, value in found)
    proto = derived.isolated(target.proto, target.proto.graph, {}, {}, ["v1"])
    assert [tensor.name for tensor in proto.graph.initializer] == ["w0"]


def wide(length: int = 6):
    """Return a chain whose values take 1 kB each, after a branch that is not taken."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[256] x) => (float[256] y) {
            s = If (c) <then_branch = t () => (float[256] u) { u = Neg (x) },
                        else_branch = e () => (float[256] v) { v = Abs (x) }>
            BODY
        }
    """
    names = ["s", *(f"a{n}" for n in range(length - 1)), "y"]
    body = "\n".join(f"{b} = Sin ({a})" for a, b in pairwise(names))
    return parser.parse_model(text.replace("BODY", body))


@pytest.mark.parametrize("budget", [1, 1024, 2048, 3000, 10**9])
@pytest.mark.parametrize("early", [False, True])
def test_a_budget_holds_no_more_than_fits(early, budget, monkeypatch):
    """Run by run all taps come, as without a budget; a value of a branch not taken holds nothing up."""
    from graphdoc.compare import derived, ort_runner

    ran = []
    segment = derived.segment

    def recorded(proto, nodes, inputs, fetch):
        ran.extend(node.output[0] for node in nodes)
        return segment(proto, nodes, inputs, fetch)

    monkeypatch.setattr(derived, "segment", recorded)
    monkeypatch.setattr(ort_runner, "HELD", 0)
    model = wide()
    if early:  # an output in the middle of the model, which settles nothing
        model.graph.output.append(onnx.helper.make_tensor_value_info("a1", onnx.TensorProto.FLOAT, [256]))
    target = Target(open_source(model))
    feeds = {"c": np.array(True), "x": np.linspace(0, 1, 256, dtype=np.float32)}
    left = [point.key for point in target.points]
    with open_runner("ort", target) as runner:
        whole = runner.run(feeds, left).values
        found = {}
        while left:
            run = runner.run(feeds, left, budget=budget)
            fresh = [key for key in left if key in run.values and key not in target.outputs]
            assert sum(run.values[key].nbytes for key in fresh if "/" not in key) <= max(budget, 1024)
            found |= run.values
            reached = max((left.index(key) for key in fresh), default=len(left) - 1)
            left = left[reached + 1 :] if run.cut else []
    assert {*found} == {*whole}
    assert len(ran) == len(set(ran))  # no layer ran twice
    assert budget > 4096 or len(ran) == 7
    assert all(np.array_equal(value, whole[key]) for key, value in found.items())
