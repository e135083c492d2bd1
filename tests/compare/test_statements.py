"""Who is right, how well the model is conditioned, how far the reference lies from itself: each where it is
true, and where it is not."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from graphdoc.api import compare_models
from graphdoc.compare.findings import Finding
from graphdoc.compare.judge import BOTH_NEAR, Evidence, judge
from graphdoc.compare.noise import measure_floor
from graphdoc.compare.result import Kind, Limit, Metrics, Status
from graphdoc.compare.runner import Run, RunnerOptions
from graphdoc.compare.target import Point, Target
from graphdoc.surgeon.model import open_source


def model(body: str, size: int = 64, **weights: Any) -> onnx.ModelProto:
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{size}] x) => (float[N] y) {{ {body} }}'
    )
    for name, value in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    return proto


RNG = np.random.default_rng(0)
X = RNG.standard_normal(64).astype(np.float32)
W = RNG.standard_normal((64, 8)).astype(np.float32)


def facts(proto: onnx.ModelProto, x: np.ndarray[Any, Any] = X, **options: Any) -> dict[str, str]:
    found = compare_models(proto, inputs={"x": x}, test_runner="engine", latency=False, **options)
    return dict(found.verdict.facts)


# Conditioning


def test_a_sum_that_cancels_is_ill_conditioned() -> None:
    """x of 1 and −1 + 1e-5 sums to 32e-5: one ulp at the inputs is some 1e5 times as much at the output."""
    x = np.where(np.arange(64) % 2, np.float32(-1 + 1e-5), np.float32(1)).astype(np.float32)
    said = facts(model("y = ReduceSum <keepdims = 1> (x)"), x, truth=True)["inputs"]

    assert "the model is ill-conditioned here" in said
    expected = 1.2e-7 * np.sqrt(64) / 32e-5  # the root of 64 independent ulps over the sum
    moved = float(said.partition("outputs by ")[2].partition(",")[0])
    assert expected / 5 < moved < expected * 5


def test_a_plain_product_is_not() -> None:
    said = facts(model("y = MatMul(x, w)", w=np.abs(W)), np.abs(X), truth=True)["inputs"]

    assert "well-conditioned" in said


def test_without_being_asked_nothing_is_measured_where_all_agrees() -> None:
    assert "inputs" not in facts(model("y = MatMul(x, w)", w=W))


# Who is right


def test_the_outlier_is_named() -> None:
    """Another bias in B than in A: in the model of A, float64 sides with A."""
    right, wrong = (
        model("a = MatMul(x, w) y = Tanh(a)", w=W),
        model("a = MatMul(x, w) y = Tanh(a)", w=W * 1.01),
    )
    found = compare_models(right, wrong, inputs={"x": X}, test_runner="engine", latency=False)

    assert "the engine is the outlier" in dict(found.verdict.facts)["truth"]
    assert " ulp)" in dict(found.verdict.facts)["truth"]


def test_two_models_on_one_runner_have_no_outlier() -> None:
    right, wrong = model("y = MatMul(x, w)", w=W), model("y = MatMul(x, w)", w=W * 1.01)
    found = compare_models(right, wrong, inputs={"x": X}, test_runner="ort", latency=False)

    assert "outlier" not in dict(found.verdict.facts)["truth"]


def test_every_layer_is_held_against_float64_when_asked() -> None:
    found = compare_models(
        model("a = MatMul(x, w) y = Tanh(a)", w=W), inputs={"x": X}, truth=True, latency=False
    )

    assert all(layer.truth_a is not None and layer.truth_b is not None for layer in found.layers)
    assert all(0 <= (layer.truth_a or 0) < 1e-5 for layer in found.layers)
    assert dict(found.verdict.facts)["truth"].startswith("2 layers held against float64")
    assert "--truth" not in found.command  # models in memory have no command


def layer(key: str, op: str, *inputs: str, **figures: Any) -> Finding:
    """Return a finding with the figures that a judgement reads."""
    metrics = Metrics(size=8, error=figures.pop("error", 0.0), rms_a=1.0, rms_b=1.0)
    point = Point(key, key, op, "", "", inputs, 0, False)
    limit = Limit(value=figures.pop("limit", 1e-6), reason="8 units in the last place of float32")
    dtype = figures.pop("dtype", "float32")
    return Finding(point, op, dtype, dtype, (8,), metrics=metrics, own_limit=limit, **figures)


def test_both_within_rounding_is_no_fault() -> None:
    """Each side may be 1e-6 off; on opposite sides of the truth they are 1.6e-6 apart."""
    apart = layer("a", "Exp", "x", error=1.6e-6, own=1.6e-6)
    near, far = Evidence(truth={"a": (8e-7, 8e-7)}), Evidence(truth={"a": (1e-7, 1.5e-6)})

    assert (judge([apart], near)[0].status, judge([apart], near)[0].note) == (Status.AGREES, BOTH_NEAR)
    assert judge([apart], far)[0].status is Status.OWN
    assert judge([apart], Evidence())[0].status is Status.OWN


def test_a_tolerance_of_the_users_own_is_not_excused() -> None:
    apart = layer("a", "Exp", "x", error=1.6e-6, own=1.6e-6)
    given = Evidence(truth={"a": (8e-7, 8e-7)}, given={"a": Limit(value=1e-6, reason="given")})

    assert judge([apart], given)[0].status is Status.OWN


# Ties


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("Round", "float32"), ("Greater", "bool"), ("NonMaxSuppression", "int64"), ("Cast", "int32")],
)
def test_a_step_between_inputs_that_agree_is_a_tie(op: str, dtype: str) -> None:
    first = layer("a", "MatMul", "x", error=5e-7, own=5e-7)
    flip = layer("r", op, "a", error=0.3, own=0.0, dtype=dtype)
    after = layer("y", "Mul", "r", error=0.3, own=0.0)
    judged = judge([first, flip, after], Evidence())

    assert [j.status for j in judged] == [Status.AGREES, Status.REMARK, Status.REMARK]
    assert judged[1].note.startswith("ties")
    assert judged[2].note == "depends on r"


def test_a_step_that_b_takes_by_itself_is_none() -> None:
    """From the same inputs B rounds otherwise: its own fault."""
    flip = layer("r", "Round", "x", error=0.3, own=0.3)

    assert judge([flip], Evidence())[0].status is Status.OWN


def test_a_step_behind_a_wrong_layer_is_none() -> None:
    wrong = layer("a", "MatMul", "x", error=0.1, own=0.1)
    flip = layer("r", "Round", "a", error=0.3, own=0.0)

    assert [j.status for j in judge([wrong, flip], Evidence())] == [Status.OWN, Status.INHERITED]


# Noise of the reference


class Fickle:
    """A runner that gives something else each time."""

    name, version, settings = "fickle", "1", ""
    fallbacks = ()

    def __init__(self, target: Target, options: RunnerOptions) -> None:
        self.scale = 1 + 1e-4 * options.threads

    def untouched(self, feeds: Any) -> dict[str, Any]:
        return {"y": feeds["x"] * np.float32(self.scale)}

    def run(self, feeds: Any, taps: Any, *, budget: int | None = None) -> Run:
        return Run({"y": feeds["x"] * np.float32(self.scale)})

    def __enter__(self) -> "Fickle":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_the_noise_of_a_is_measured_and_widens_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graphdoc.compare.noise.open_runner", lambda name, target, options: Fickle(target, options)
    )
    target, evidence = Target(open_source(model("y = Neg(x)"))), Evidence()
    found = layer("y", "Neg", "x", error=1e-3, own=0.0)
    measure_floor(Fickle(target, RunnerOptions()), target, {"x": X}, [found], RunnerOptions(), evidence)

    assert evidence.floor["y"] == pytest.approx(3e-4, rel=1e-3)
    assert "1 of 1 layers move, y most, by 3.0e-4" in evidence.remarks[0]
    assert judge([found], evidence)[0].status is Status.AGREES
    assert "other threads or optimisations in A move it by 3.0e-4" in judge([found], evidence)[0].limit.reason
    assert judge([found], Evidence())[0].status is Status.INHERITED


def test_a_steady_reference_is_said_to_be_one() -> None:
    found = compare_models(model("y = Neg(x)"), inputs={"x": X}, noise=True, latency=False)

    assert found.verdict.kind is Kind.AGREES
    assert found.remarks == (
        "A against itself with 1 and 3 threads, and optimised: all 1 layers are the same to the bit",
    )
