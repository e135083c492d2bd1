"""The verdict: planted faults are found where they were planted, and nothing else is called a fault."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from graphdoc import compare_models
from graphdoc.compare.comparison import choose
from graphdoc.compare.result import Comparison, Kind, Status
from graphdoc.compare.target import Target
from graphdoc.engine.errors import NothingComparedError, RunnerError
from graphdoc.surgeon.model import open_source
from tests.compare import models

RNG = np.random.default_rng(7)
FEEDS: dict[str, dict[str, Any]] = {
    "mlp": {"x": RNG.standard_normal((4, 16)).astype(np.float32)},
    "convolutions": {"x": RNG.uniform(0, 1, (1, 3, 16, 16)).astype(np.float32)},
    "attention": {"ids": RNG.integers(0, 40, (2, 7))},
    "recurrent": {"x": RNG.standard_normal((5, 2, 6)).astype(np.float32)},
    "quantised": {"x": RNG.standard_normal((4, 16)).astype(np.float32)},
    "nested": {"x": np.array([0.5, -1.25], np.float32), "n": np.array(3), "flag": np.array(True)},
    "scan": {"start": np.ones(2, np.float32), "x": RNG.standard_normal((4, 2)).astype(np.float32)},
}
BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {name: getattr(models, name) for name in FEEDS}


def scaled(proto: onnx.ModelProto, name: str, factor: float = 1.01) -> onnx.ModelProto:
    """Return the model with a weight scaled."""
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), name))
    return proto


def changed(proto: onnx.ModelProto, output: str, **attributes: Any) -> onnx.ModelProto:
    """Return the model with other attributes, or another operator (op_type=…), at one node."""
    for node in proto.graph.node:
        if output in node.output:
            node.op_type = attributes.pop("op_type", node.op_type)
            kept = [a for a in node.attribute if a.name not in attributes]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
    return proto


FAULTS = [
    ("mlp", lambda m: scaled(m, "w2"), "z"),
    ("mlp", lambda m: changed(m, "y", axis=0), "y"),
    ("mlp", lambda m: changed(m, "hb", op_type="Sub"), "hb"),
    ("convolutions", lambda m: scaled(m, "k2"), "c2"),
    ("convolutions", lambda m: changed(m, "n1", epsilon=1e-3), "n1"),
    ("attention", lambda m: changed(m, "n", epsilon=1e-3), "n"),
    ("attention", lambda m: changed(m, "a", axis=-2), "a"),
    ("attention", lambda m: scaled(m, "wk"), "k"),
    ("recurrent", lambda m: scaled(m, "r", 1.001), "l"),
    ("recurrent", lambda m: changed(m, "g", linear_before_reset=1), "g"),
    ("quantised", lambda m: scaled(m, "sw"), "w"),
]


@pytest.mark.parametrize("runner", ["ort", "engine"])
@pytest.mark.parametrize(("name", "plant", "where"), FAULTS)
def test_a_planted_fault_is_named(
    name: str, plant: Callable[[onnx.ModelProto], onnx.ModelProto], where: str, runner: str
) -> None:
    """The first divergence is the changed node, and only it has an error of its own."""
    result = compare_models(
        BUILDERS[name](), plant(BUILDERS[name]()), inputs=FEEDS[name], test_runner=runner, latency=False
    )
    assert not result
    assert result.verdict.exit_code == 1
    assert result.first_divergence is not None
    assert result.first_divergence.value == where
    own = {layer.node for layer in result.layers if layer.status in (Status.OWN, Status.NAN)}
    assert len(own) <= 3, "outputs of one node"
    assert {layer.op for layer in result.layers if layer.node in own} == {result.first_divergence.op}


@pytest.mark.parametrize("test_runner", ["engine", "ort", "reference", "truth"])
@pytest.mark.parametrize("name", sorted(FEEDS))
def test_sound_models_agree(name: str, test_runner: str) -> None:
    """Every value of a sound model agrees on every pair of runners."""
    if name == "nested" and test_runner == "reference":
        with pytest.raises(RunnerError, match=r"onnx\.reference failed"):
            compare_models(BUILDERS[name](), inputs=FEEDS[name], test_runner=test_runner)
        return
    result = compare_models(BUILDERS[name](), inputs=FEEDS[name], test_runner=test_runner, latency=False)

    assert result, result.verdict
    assert result.verdict.kind is Kind.AGREES
    assert all(layer.status is Status.AGREES for layer in result.layers)
    assert all(layer.own_error is not None for layer in result.layers)


def test_a_fault_inside_a_branch_inside_a_loop_is_named() -> None:
    bad = parser.parse_model(models.NESTED.replace("inner = Add(a, base)", "inner = Sub(a, base)"))

    result = compare_models(models.nested(), bad, inputs=FEEDS["nested"], test_runner="ort", latency=False)

    assert result.first_divergence is not None
    assert result.first_divergence.value == "y.body/next.then_branch/inner"
    assert result.first_divergence.occurrences == 3


def test_values_of_the_branch_not_taken_are_said_to_be_missing() -> None:
    result = compare_models(models.nested(), inputs=FEEDS["nested"], latency=False)

    assert {s.value for s in result.skipped} == {
        "y.body/next.else_branch/inner",
        "y.body/next.else_branch/down",
    }
    assert all("branch was not taken" in s.reason for s in result.skipped)


def graph(
    body: str, inputs: str = "float[4] x", outputs: str = "float[4] y", opset: int = 17
) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


def test_nan_born_in_b_is_named_with_its_place() -> None:
    good = graph("a = Abs(x) s = Sqrt(a) y = Neg(s)")
    bad = graph("a = Identity(x) s = Sqrt(a) y = Neg(s)")
    x = np.array([1, -4, 9, 16], np.float32)

    result = compare_models(good, bad, inputs={"x": x}, test_runner="ort", latency=False)

    # the wrong sign of #0 comes first; the NaN is what B makes of it
    assert result.first_divergence is not None
    assert result.first_divergence.value == "a"
    assert result.layers[1].status is Status.INHERITED
    assert result.layers[1].error == math.inf


def test_nan_that_only_one_side_computes_is_its_own_class() -> None:
    good = graph("e = Exp(x) y = Mul(e, e)")
    bad = graph("e = Log(x) y = Mul(e, e)")

    result = compare_models(
        good, bad, inputs={"x": np.array([-1, 2, 3, 4], np.float32)}, test_runner="ort", latency=False
    )

    assert result.verdict.kind is Kind.NAN
    assert result.verdict.symbol == "∅"
    assert "NaN is born at #0 Log in B" in result.verdict.sentence or "#0 Exp" in result.verdict.sentence
    assert result.verdict.exit_code == 1


def test_nan_and_inf_in_the_same_places_agree() -> None:
    proto = graph("d = Div(x, x) y = Log(d)")

    result = compare_models(proto, inputs={"x": np.array([0, 1, -0.0, 2], np.float32)}, latency=False)

    assert result.verdict.kind is Kind.AGREES
    assert result.layers[0].metrics is not None
    assert result.layers[0].metrics.nan_a == 2


def test_fp16_overflow_is_named() -> None:
    wide = graph("s = Mul(x, x) y = Sqrt(s)")
    half = graph(
        "h = Cast <to = 10> (x) s = Mul(h, h) r = Sqrt(s) y = Cast <to = 1> (r)",
    )

    result = compare_models(
        wide, half, inputs={"x": np.array([300, 1, 2, 3], np.float32)}, test_runner="engine", latency=False
    )

    assert result.verdict.kind is Kind.OVERFLOW
    assert "exceed fp16 (max 65 504)" in result.verdict.sentence
    assert result.first_divergence is not None
    assert result.first_divergence.value == "s"


def test_random_operators_are_set_aside_and_said() -> None:
    proto = graph("r = RandomNormalLike(x) s = Add(r, x) t = Mul(x, x) y = Add(s, t)")

    result = compare_models(proto, inputs={"x": np.ones(4, np.float32)}, latency=False)

    assert result
    assert result.verdict.kind is Kind.RANDOM
    statuses = {layer.value: layer.status for layer in result.layers}
    assert statuses == {"r": Status.REMARK, "s": Status.REMARK, "t": Status.AGREES, "y": Status.REMARK}


def test_an_own_error_after_a_random_operator_is_still_found() -> None:
    text = "r = RandomNormalLike(x) s = Add(r, x) y = {}(s, x)"

    result = compare_models(
        graph(text.format("Mul")),
        graph(text.format("Sub")),
        inputs={"x": np.full(4, 2, np.float32)},
        test_runner="ort",
        latency=False,
    )

    assert result.verdict.kind is Kind.OWN
    assert result.first_divergence is not None
    assert result.first_divergence.value == "y"


def test_ties_are_told_from_faults() -> None:
    """Another index among equal values is a tie; another value is a fault."""
    first = graph("y = ArgMax <axis = 0, select_last_index = 0> (x)", outputs="int64[1] y")
    last = graph("y = ArgMax <axis = 0, select_last_index = 1> (x)", outputs="int64[1] y")
    lowest = graph("y = ArgMin <axis = 0> (x)", outputs="int64[1] y")
    x = {"x": np.array([1, 5, 5, 0], np.float32)}

    tied = compare_models(first, last, inputs=x, test_runner="ort", latency=False)
    wrong = compare_models(first, lowest, inputs=x, test_runner="ort", latency=False)

    assert (tied.verdict.kind, tied.verdict.exit_code) == (Kind.TIES, 0)
    assert (wrong.verdict.kind, wrong.verdict.exit_code) == (Kind.OWN, 1)


def test_cancellation_has_a_wide_limit_with_its_reason() -> None:
    """x − mean(x) of nearly equal numbers magnifies rounding: no fault, and the report says why."""
    proto = graph("m = ReduceMean <axes = [0], keepdims = 1> (x) d = Sub(x, m) y = Mul(d, d)")
    x = (1 + 1e-7 * RNG.standard_normal(4)).astype(np.float32)

    result = compare_models(proto, inputs={"x": x}, latency=False)

    assert result, result.verdict


def test_a_tolerance_of_the_users_counts_element_by_element() -> None:
    good, bad = models.mlp(), scaled(models.mlp(), "w1", 1 + 1e-4)

    strict = compare_models(good, bad, inputs=FEEDS["mlp"], test_runner="ort", rtol=1e-6, latency=False)
    loose = compare_models(
        good, bad, inputs=FEEDS["mlp"], test_runner="ort", rtol=1e-2, atol=1e-3, latency=False
    )

    assert not strict
    assert strict.first_divergence is not None
    assert strict.first_divergence.value == "h"
    assert loose
    assert loose.layers[0].limit is not None
    assert loose.layers[0].limit.reason.startswith("given: rtol 0.01, atol 0.001")


@pytest.mark.parametrize(("off", "agrees"), [(3e-8, True), (1e-3, False)])
def test_a_pick_of_nothing_is_held_against_what_it_picks_from(off: float, agrees: bool) -> None:
    """The picked number is 0 in A: no ratio says how far off B is, the other numbers' size does."""
    text = "c = Constant <value = float[3] {{ {0}, 0.0, 0.0 }}> () h = Add(x, c) y = Slice(h, s, e)"
    ends = "s = Constant <value_ints = [0]> () e = Constant <value_ints = [1]> () "
    a, b = (graph(ends + text.format(size), "float[3] x", "float[1] y") for size in (0.0, off))

    result = compare_models(
        a, b, inputs={"x": np.array([0, 1, -2], np.float32)}, test_runner="ort", latency=False
    )

    assert (result.verdict.kind is Kind.AGREES) == agrees, result.verdict.sentence
    if not agrees:
        assert result.first_divergence is not None
        assert result.first_divergence.value == "h"


@pytest.mark.parametrize(("steps", "agrees"), [(2, True), (100, False)])
def test_numbers_with_few_digits_left_have_a_wider_limit(steps: int, agrees: bool) -> None:
    """Subnormal results of some hundred units: a unit is a part in hundreds of them, not in millions."""
    a, b = (
        graph(f"c = Constant <value_float = {size}> () y = Mul(x, c)", "float[3] x", "float[3] y")
        for size in (1e-22, 1e-22 * (1 + steps / 700))
    )

    result = compare_models(
        a, b, inputs={"x": np.full(3, 1e-20, np.float32)}, test_runner="engine", latency=False
    )

    assert (result.verdict.kind is Kind.AGREES) == agrees, result.verdict.sentence
    own_limit = result.layers[-1].own_limit
    assert own_limit is not None
    assert "subnormal" in own_limit.reason


def test_shapes_that_differ_are_a_fault_of_the_layer() -> None:
    good = graph("t = Transpose <perm = [1, 0]> (x) y = Relu(t)", "float[2, 3] x", "float[3, 2] y")
    bad = graph("t = Identity(x) y = Relu(t)", "float[2, 3] x", "float[2, 3] y")

    result = compare_models(
        good, bad, inputs={"x": np.ones((2, 3), np.float32)}, test_runner="ort", latency=False
    )

    assert result.first_divergence is not None
    assert result.first_divergence.value == "t"
    assert "shape 3×2, B 2×3" in result.first_divergence.note


def test_who_is_wrong_is_told_by_float64() -> None:
    result = compare_models(
        models.mlp(), scaled(models.mlp(), "w2"), inputs=FEEDS["mlp"], test_runner="ort", latency=False
    )

    assert "B is wrong" in result.verdict.sentence
    layer = result.first_divergence
    assert layer is not None
    assert layer.truth_a is not None
    assert layer.truth_b is not None
    assert layer.truth_a < 1e-6 < 5e-3 < layer.truth_b


def test_groups_of_taps_give_the_same_result_as_one() -> None:
    """Memory is bounded by running group after group; the figures do not depend on it."""
    whole = compare_models(models.convolutions(), inputs=FEEDS["convolutions"], latency=False)
    parts = compare_models(models.convolutions(), inputs=FEEDS["convolutions"], latency=False, memory=10_000)

    assert _figures(whole) == _figures(parts)


def _figures(result: Comparison) -> list[tuple[Any, ...]]:
    return [(x.value, x.error, x.own_error, x.limit, x.own_limit, x.status) for x in result.layers]


def test_progress_counts_layers() -> None:
    seen: list[tuple[int, int]] = []

    compare_models(models.mlp(), inputs=FEEDS["mlp"], latency=False, progress=lambda *at: seen.append(at))

    assert seen[-1] == (5, 5)


@pytest.mark.parametrize("taps", ["layer9*", ("nothing", "at all")])
def test_taps_that_match_nothing_are_a_failure(taps: Any) -> None:
    with pytest.raises(NothingComparedError, match="no tapped value exists") as caught:
        compare_models(models.mlp(), inputs=FEEDS["mlp"], taps=taps)

    assert caught.value.exit_code == 5


def test_taps_choose_values_and_keep_the_outputs() -> None:
    target = Target(open_source(models.mlp()))

    assert [p.key for p in choose(target, target, ("h*",))] == ["h", "hb", "y"]
    assert [p.key for p in choose(target, target, ("outputs",))] == ["y"]


def test_models_that_share_nothing_are_compared_at_their_outputs() -> None:
    other = graph("b = Cos(x) c = Sigmoid(b) d = Sqrt(c)", outputs="float[4] d")

    result = compare_models(graph("a = Relu(x) y = Neg(a)"), other, inputs={"x": np.ones(4, np.float32)})

    assert not result
    assert [layer.value for layer in result.layers] == ["y"]
    assert result.first_divergence is not None
    assert any("1 of 2 values" in remark for remark in result.remarks)


def test_a_result_is_truthy_and_turns_into_a_table() -> None:
    result = compare_models(models.mlp(), inputs=FEEDS["mlp"], latency=False)

    frame = result.to_frame()

    assert bool(result) is True
    assert list(frame.index) == [0, 1, 2, 3, 4]
    assert list(frame["op"]) == ["MatMul", "Add", "Relu", "MatMul", "Softmax"]
    assert frame["agrees"].all()
    wrong = [layer for layer in result.layers if layer.of_limit]  # which are exact differs by processor
    assert list(result.worst(3)) == sorted(wrong, key=lambda layer: (-(layer.of_limit or 0), layer.index))[:3]


def test_taps_do_not_disturb() -> None:
    """The outputs with and without taps are held together, and the gap is reported."""
    result = compare_models(models.convolutions(), inputs=FEEDS["convolutions"])

    assert result.a.tap_gap is not None
    assert result.a.tap_gap < 1e-5
    assert result.b.tap_gap == 0.0
    assert result.a.latency is not None
    assert result.a.latency.low <= result.a.latency.median <= result.a.latency.high


def test_fewer_taps_do_not_change_the_judgement() -> None:
    """What is not shown still tells how much rounding to expect; a fault before the taps is inherited."""
    everything = compare_models(models.convolutions(), inputs=FEEDS["convolutions"], latency=False)
    outputs = compare_models(
        models.convolutions(), inputs=FEEDS["convolutions"], taps="outputs", latency=False
    )
    bad = compare_models(
        models.convolutions(),
        scaled(models.convolutions(), "k2"),
        inputs=FEEDS["convolutions"],
        taps="outputs",
        test_runner="ort",
        latency=False,
    )

    (found,), wanted = [x.limit for x in outputs.layers], everything.layers[-1].limit
    assert found is not None
    assert wanted is not None
    assert found.reason == wanted.reason
    # where arrays lie in memory decides in which order NumPy adds their squares up
    assert found.value == pytest.approx(wanted.value, rel=1e-12)
    assert [(x.value, x.index, x.status) for x in bad.layers] == [("y", 0, Status.INHERITED)]
    assert bad.verdict.exit_code == 1


def test_chaos_is_not_judged_and_said() -> None:
    """A softmax over huge nearly equal logits follows rounding alone: no side can be called wrong."""
    rng = np.random.default_rng(3)
    proto = models.weights(
        parser.parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[1, 512] x) => (float[1, 64] y) { z = MatMul(x, w) y = Softmax(z) }"""),
        w=(1e9 + rng.standard_normal((512, 64))).astype(np.float32),
    )

    result = compare_models(proto, inputs={"x": rng.random((1, 512), np.float32)}, latency=False)

    assert result, result.verdict
    if not np.isclose(result.layers[1].error or 0, 0):
        assert result.layers[1].status is Status.REMARK
        assert any(label == "unsure" for label, _ in result.verdict.facts)


def test_a_dropout_that_drops_is_random() -> None:
    proto = models.weights(
        graph("d = Dropout(x, ratio, training) y = Mul(d, x)"),
        ratio=np.float32(0.5).reshape(()),
        training=np.array(True),
    )

    result = compare_models(proto, inputs={"x": np.arange(1, 5, dtype=np.float32)}, latency=False)

    assert result
    assert result.verdict.kind in (Kind.RANDOM, Kind.AGREES)  # by chance both sides may drop the same


def test_a_sigmoid_of_nothing_is_no_fault() -> None:
    """ONNX Runtime's sigmoid is 0 below −18 or so; a wrong result there is still a fault."""
    x = {"x": np.full(4, -40, np.float32)}

    sound = compare_models(graph("y = Sigmoid(x)"), inputs=x, latency=False)
    wrong = compare_models(
        graph("y = Sigmoid(x)"), graph("n = Neg(x) y = Sigmoid(n)"), inputs=x, latency=False
    )

    assert sound, sound.verdict
    assert not wrong


def test_whole_numbers_agree_exactly() -> None:
    proto = graph("y = Add(x, x)", "int64[4] x", "int64[4] y")

    result = compare_models(proto, inputs={"x": np.arange(4)}, latency=False)

    assert result.verdict.sentence == "1 of 1 layers agree exactly"


@pytest.mark.parametrize(
    ("name", "plant", "words"),
    [
        ("mlp", lambda m: scaled(m, "w2"), "w2 of B is 1.01000 × A's"),
        ("mlp", lambda m: changed(m, "hb", op_type="Sub"), "Add in A is Sub in B"),
        ("convolutions", lambda m: changed(m, "n1", epsilon=1e-3), "epsilon is 1e-05 in A, 0.001 in B"),
        ("quantised", lambda m: scaled(m, "sw", 2), "sw is 0.0100000 in A, 0.0200000 in B"),
    ],
)
def test_what_was_changed_in_the_layer_is_told(name: str, plant: Any, words: str) -> None:
    result = compare_models(
        BUILDERS[name](), plant(BUILDERS[name]()), FEEDS[name], test_runner="ort", latency=False
    )

    assert result.first_divergence is not None
    assert result.first_divergence.note == words
    assert ("why", words) in result.verdict.facts


def test_another_wiring_is_told() -> None:
    a, b = graph("n = Neg(x) s = Add(n, x) y = Mul(s, n)"), graph("n = Neg(x) s = Add(n, x) y = Mul(s, x)")

    result = compare_models(a, b, {"x": np.full(4, 3, np.float32)}, test_runner="ort", rtol=0, latency=False)

    assert result or result.first_divergence is not None
    other = compare_models(
        graph("n = Exp(x) y = Mul(n, n)"),
        graph("n = Exp(x) y = Mul(n, x)"),
        {"x": np.full(4, 3, np.float32)},
        test_runner="ort",
        latency=False,
    )
    assert other.first_divergence is not None
    assert other.first_divergence.note == "A reads n where B reads x"


def test_a_value_without_signal_does_not_agree_by_a_wide_limit() -> None:
    """Sigmoid far below 0 is nearly 0: another operator there is a fault, another sigmoid not judged."""
    x = {"x": np.full(4, -17, np.float32)}

    swapped = compare_models(
        graph("y = Sigmoid(x)"), graph("y = Relu(x)"), x, test_runner="ort", latency=False
    )
    same = compare_models(graph("y = Sigmoid(x)"), inputs=x, ref="truth", test_runner="ort", latency=False)

    assert not swapped
    assert "Sigmoid in A is Relu in B" in dict(swapped.verdict.facts)["why"]
    assert same
    assert same.layers[0].status in (Status.REMARK, Status.AGREES)


def test_the_next_commands_repeat_what_was_compared(tmp_path: Any) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(models.mlp(), good)
    onnx.save(scaled(models.mlp(), "w2"), bad)

    result = compare_models(good, bad, shapes={"x": (4, 16)}, test_runner="ort", latency=False)

    commands = [command for _, command in result.verdict.next_steps]
    assert commands[0] == f"graphdoc compare {good} {bad} --test ort --shape x=4x16 -o report.html"
    assert commands[1] == f"graphdoc lint {bad}"
