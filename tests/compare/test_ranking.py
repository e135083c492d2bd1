"""Ranking layers by what their own errors do to the outputs: known answers, doubts, refusals."""

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from graphdoc.api import ComparisonResult, compare_models
from graphdoc.compare.ranking import OwnErrors, rank
from graphdoc.compare.result import Layer
from graphdoc.compare.target import Target
from graphdoc.engine.scope import Occurrences
from graphdoc.reports.jsonform import from_json
from graphdoc.surgeon.model import open_source
from tests.compare.models import SCAN, mlp, weights

F32 = np.float32


def build(body: str, inputs: str, output: str, **constants: Any) -> onnx.ModelProto:
    """Return a model of a body, with float32 constants."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({output}) {{ {body} }}'
    return weights(parser.parse_model(text), **{k: np.asarray(v, F32) for k, v in constants.items()})


def ranked(a: onnx.ModelProto, b: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> ComparisonResult:
    """Return the comparison of two models on the engine, ranked."""
    return compare_models(a, b, feeds, ref="engine", latency=False, rank=True, **options)


def by_name(result: ComparisonResult) -> dict[str, Layer]:
    return {layer.value: layer for layer in result.layers}


CHAIN = "p = Mul(x, c) q = Mul(p, s) r = Add(x, t) z = Add(q, r) y = ReduceSum(z)"


def chain(c: float = 2.0, t: float = 1.0) -> onnx.ModelProto:
    """y = Σ (x c s + x + t)."""
    return build(CHAIN, "float[4] x", "float[1] y", c=c, s=3.0, t=t)


def test_effects_that_are_known() -> None:
    """One output element: random signs cancel out of the square, so one pass is exact.

    An error of 1e-3 x in p comes out times 3, one of 1e-2 in r as it is, four times each, over y.
    """
    x = np.arange(1, 5, dtype=F32)
    y = float((x * 2 * 3 + x + 1).sum())

    result = ranked(chain(), chain(c=2.001, t=1.01), {"x": x}, passes=1)

    layers = by_name(result)
    of_p, of_r = 3e-3 * float(x.sum()) / y, 4e-2 / y
    assert layers["p"].propagated == pytest.approx(of_p, rel=1e-3)
    assert layers["r"].propagated == pytest.approx(of_r, rel=1e-3)
    assert layers["q"].propagated == 0
    assert layers["p"].propagated_share == pytest.approx(of_p**2 / (of_p**2 + of_r**2), rel=2e-3)
    assert [layer.value for layer in result.most_effect()] == ["r", "p"]
    ranking = result.ranking
    assert ranking is not None
    assert ranking.trusted
    assert ranking.predicted == pytest.approx(math.hypot(of_p, of_r), rel=1e-3)
    assert ranking.together == pytest.approx(of_p + of_r, rel=1e-3)
    assert ranking.measured == pytest.approx(of_p + of_r, rel=1e-3)


def test_many_elements_and_outputs_count_by_their_own_size() -> None:
    """Each output's error is relative to itself; passes average over the elements."""
    body = "p = Mul(x, c) small = Mul(p, s) y = Mul(p, c)"
    inputs, outputs = "float[50] x", "float[50] small, float[50] y"
    a, b = (build(body, inputs, outputs, c=c, s=1e-4) for c in (1.0, 1.001))
    x = np.random.default_rng(0).standard_normal(50).astype(F32)

    result = ranked(a, b, {"x": x}, passes=256)

    assert by_name(result)["p"].propagated == pytest.approx(1e-3, rel=0.15)
    assert result.ranking is not None
    assert result.ranking.measured == pytest.approx(math.sqrt((1e-3**2 + 2e-3**2) / 2), rel=1e-2)


def alone(a: onnx.ModelProto, b: onnx.ModelProto, name: str, x: Any) -> float:
    """Return the relative error of mlp's output when one weight alone is B's, in float64."""
    mine, theirs = (
        {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in m.graph.initializer}
        for m in (a, b)
    )

    def run(w: dict[str, Any]) -> Any:
        z = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    y = run(mine)
    return float(np.linalg.norm(run({**mine, name: theirs[name]}) - y) / np.linalg.norm(y))


def test_ranking_agrees_with_brute_force() -> None:
    """The mean of squares over passes is what putting each error in alone measures."""
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(F32)
    a, b = mlp(), mlp()
    for tensor in b.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16).astype(F32), tensor.name))

    result = ranked(a, b, {"x": x}, passes=64)
    again = ranked(a, b, {"x": x}, passes=64)

    assert result.ranking is not None
    assert result.ranking.trusted
    assert result.ranking.checked is not None
    assert result.ranking.checked < 1.3
    for name in ("w1", "b1", "w2"):
        layer = by_name(result)[{"w1": "h", "b1": "hb", "w2": "z"}[name]]
        assert layer.propagated == pytest.approx(alone(a, b, name, x), rel=0.3)
    assert sum(layer.propagated_share or 0 for layer in result.layers) == pytest.approx(1)
    assert again.ranking == result.ranking
    assert [x.propagated for x in again.layers] == [x.propagated for x in result.layers]


def test_any_runner_may_be_the_reference() -> None:
    """A's values from ONNX Runtime: the own errors are the same, the derivative is the engine's."""
    x = np.arange(1, 5, dtype=F32)
    engine, ort = (
        compare_models(
            chain(), chain(c=2.001, t=1.01), {"x": x}, ref=ref, test_runner=ref, latency=False, rank=True
        )
        for ref in ("engine", "ort")
    )

    for name in ("p", "r"):
        assert by_name(ort)[name].propagated == pytest.approx(by_name(engine)[name].propagated, rel=1e-3)


# ---- where passes cannot be trusted --------------------------------------------------------------------

CLIFF = "p = Mul(x, c) q = Sub(p, k) r = Relu(q) y = Add(r, one)"


def test_falls_back_to_putting_errors_in_where_a_derivative_tells_nothing() -> None:
    """A stands left of Relu's kink, where its derivative is 0; B's error carries it over."""
    a, b = (build(CLIFF, "float[3] x", "float[3] y", c=c, k=2.0, one=1.0) for c in (1.0, 4.0))
    x = np.full(3, 1.0, F32)

    result = ranked(a, b, {"x": x})

    ranking, layers = result.ranking, by_name(result)
    assert ranking is not None
    assert not ranking.trusted
    assert ranking.predicted == 0
    assert layers["p"].index in ranking.injected
    assert layers["p"].propagated == pytest.approx(2.0)
    assert layers["p"].propagated_share == 1
    assert "too far apart to trust" in ranking.sentence
    assert "put in one by one" in ranking.sentence
    assert ("ranking", ranking.sentence) in result.verdict.facts


def test_errors_that_cancel_are_said_to_depend_on_each_other() -> None:
    """Two opposite errors: each alone moves the output, both together hardly do."""
    body = "p = Add(x, c) q = Add(p, t) y = Mul(q, two)"
    a, b = (
        build(body, "float[40] x", "float[40] y", c=c, t=t, two=2.0) for c, t in ((1.0, 1.0), (1.1, 0.90001))
    )

    result = ranked(a, b, {"x": np.linspace(1, 2, 40, dtype=F32)})

    assert result.ranking is not None
    assert not result.ranking.trusted
    assert result.ranking.predicted > 100 * result.ranking.measured
    assert "not independent" in result.ranking.sentence


def test_layers_before_an_operator_without_a_rule_are_put_in() -> None:
    """Det of a large matrix has no derivative here: what leads to it is measured by running."""
    body = "p = Mul(x, c) d = Det(p) l = Abs(d) y = Sqrt(l)"
    x = np.eye(20, dtype=F32) + F32(0.01)
    a, b = (build(body, "float[20,20] x", "float y", c=c) for c in (1.0, 1.001))

    result = ranked(a, b, {"x": x})

    assert result.ranking is not None
    assert result.ranking.missing == ("Det: no rule, and 400 entries are too many for differences",)
    assert by_name(result)["p"].propagated == pytest.approx(math.sqrt(1.001**20) - 1, rel=1e-2)
    assert by_name(result)["p"].index in result.ranking.injected


def test_what_cannot_be_followed_is_counted() -> None:
    """An own error that is not finite has no size; it is told, and the others are ranked."""
    errors = OwnErrors(1 << 20)
    errors.note("p", np.float32([1, 2]), np.float32([np.inf, 2]))
    errors.note("q", np.float32([1, 2]), np.float32([1.5, 2]))
    errors.note("words", np.array(["a"], object), np.array(["b"], object))
    errors.note("codes", np.float32([1, 2]), np.uint8([1, 2]))
    errors.note("same", np.float32([np.nan, -np.inf]), np.float32([np.nan, -np.inf]))

    assert errors.broken == {"p", "codes"}
    assert set(errors.found) == {"q"}
    assert errors.seen == {"p", "q", "codes", "same"}


# ---- what counts ---------------------------------------------------------------------------------------


def rounded(body: str) -> onnx.ModelProto:
    """Return a model in which p and what copies it are rounded to float16 and back."""
    return build(body, "float[40] x", "float[40] y", c=1.1, one=1.0)


def test_layers_that_pass_on_what_is_rounded_already_do_not_count_twice() -> None:
    """The copy rounds A's exact values too, but in B it finds nothing left to round."""
    a = rounded("p = Mul(x, c) q = Identity(p) y = Add(q, one)")
    b = rounded("""p0 = Mul(x, c) p1 = Cast <to=10> (p0) p = Cast <to=1> (p1)
                   q0 = Identity(p) q1 = Cast <to=10> (q0) q = Cast <to=1> (q1) y = Add(q, one)""")
    x = np.random.default_rng(0).standard_normal(40).astype(F32)

    result = ranked(a, b, {"x": x}, passes=64)

    layers = by_name(result)
    assert layers["p"].propagated == pytest.approx(layers["q"].propagated)
    assert (layers["p"].propagated_share, layers["q"].propagated_share) == (1, 0)
    assert result.ranking is not None
    assert result.ranking.predicted == pytest.approx(result.ranking.measured, rel=0.3)


def test_a_model_in_half_precision_does_not_count_roundings_twice() -> None:
    """B's layers read values that are rounded already: what that does to A's layers is taken off again."""
    body = "p = Mul(x, c) q = Exp(p) r = Transpose(q) s = Mul(r, d) y = Mul(s, s)"
    a = build(body, "float[40,50] x", "float[50,40] y", c=0.7, d=1.3)
    half = build(
        f"x16 = Cast <to=10> (x) {body.replace('(x,', '(x16,')}", "float[40,50] x", "float16[50,40] y"
    )
    for name, value in (("c", 0.7), ("d", 1.3)):
        half.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float16), name))
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(F32)

    result = ranked(a, half, {"x": x}, passes=64)

    assert result.ranking is not None
    assert by_name(result)["r"].propagated_share == pytest.approx(0, abs=1e-6)
    assert by_name(result)["r"].propagated > 0.1 * by_name(result)["q"].propagated
    assert result.ranking.predicted == pytest.approx(result.ranking.measured, rel=0.3)


def test_values_inside_a_scan_count_with_all_their_turns() -> None:
    """An error inside the body moves the last sum and each row that was put out."""
    a, b = (weights(parser.parse_model(SCAN), h=np.asarray(h, F32)) for h in (0.5, 0.501))
    feeds = {"start": np.float32([1, 2]), "x": np.float32([[1, 1], [2, 1], [1, 3]])}

    result = ranked(a, b, feeds, passes=256)

    layers = by_name(result)
    inner = next(key for key in layers if key.endswith("/half"))
    assert layers[inner].propagated == pytest.approx(2e-3 / math.sqrt(2), rel=0.15)
    assert layers[inner].propagated_share == pytest.approx(1, abs=1e-6)


def test_values_inside_a_branch_are_checked_by_running() -> None:
    """A value that is computed once is put in wherever it stands."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3] x, bool flag) => (float[3] y) {
        y = If(flag) <then_branch = one () => (float[3] up) { p = Mul(x, h)  up = Exp(p) },
                      else_branch = two () => (float[3] down) { down = Neg(x) }>
    }"""
    a, b = (weights(parser.parse_model(text), h=np.asarray(h, F32)) for h in (0.5, 0.501))
    feeds = {"x": np.float32([1, 2, 3]), "flag": np.array(True)}

    result = ranked(a, b, feeds, passes=256)

    inner = next(layer for layer in result.layers if layer.value.endswith("/p"))
    assert inner.propagated_share == pytest.approx(1, abs=1e-6)
    assert result.ranking is not None
    assert result.ranking.checked == pytest.approx(1, rel=0.15)


def test_an_output_may_hold_infinities() -> None:
    """Masked scores of −Inf on both sides are left out; the rest counts."""
    body = "p = Mul(x, c) y = Add(p, mask)"
    mask = np.float32([0, 0, -np.inf])
    a, b = (build(body, "float[3] x", "float[3] y", c=c, mask=mask) for c in (1.0, 1.01))

    result = ranked(a, b, {"x": np.float32([3, 4, 5])}, passes=256)

    assert by_name(result)["p"].propagated == pytest.approx(0.01, rel=0.15)


def test_masks_of_another_size_do_not_open() -> None:
    """A masks with −3.4e38, B with −65504: the difference is huge, and does nothing behind a softmax."""
    body = "p = Add(x, mask) y = Softmax(p)"
    a, b = (
        build(body, "float[3] x", "float[3] y", mask=np.float32([0, 0, low])) for low in (-3.4e38, -65504)
    )

    result = ranked(a, b, {"x": np.float32([1, 2, 3])})

    assert by_name(result)["p"].own_error is not None
    assert by_name(result)["p"].own_error > 0.9
    assert by_name(result)["p"].propagated == 0
    assert result.ranking is not None
    assert result.ranking.trusted


# ---- refusals ------------------------------------------------------------------------------------------


def test_no_output_of_floats_is_a_remark() -> None:
    """What picks an index has no derivative: the comparison stands, and says that nothing was ranked."""
    body = "p = Mul(x, c) y = ArgMax(p)"
    a, b = (build(body, "float[3] x", "int64[1] y", c=c) for c in (1.0, 1.01))

    result = ranked(a, b, {"x": np.float32([3, 4, 5])})

    assert result.ranking is None
    assert any("no output is a tensor of floats" in remark for remark in result.remarks)
    assert all(layer.propagated is None for layer in result.layers)


def test_too_little_memory_is_a_remark() -> None:
    """Own errors and A's values are kept at once; where they do not fit, it is said."""
    result = ranked(chain(), chain(c=2.001), {"x": np.ones(4, F32)}, memory=16)

    assert result.ranking is None
    assert any("--memory" in remark for remark in result.remarks)


def test_an_error_too_large_for_the_budget_ends_the_collection() -> None:
    """Once the budget is used up nothing more is kept, and the ranking refuses."""
    errors = OwnErrors(8)
    errors.note("p", np.zeros(4, F32), np.ones(4, F32))
    errors.note("q", np.zeros(1, F32), np.ones(1, F32))
    target = Target(open_source(chain()))

    found = rank(target, {"x": np.ones(4, F32)}, errors, {"y": 0.1})

    assert not errors.found
    assert "memory" in found.reason


def test_occurrences_stay_apart() -> None:
    """A value with several turns keeps one error for each."""
    errors = OwnErrors(1 << 20)
    errors.note("p", Occurrences([np.zeros(2, F32), np.zeros(2, F32)]), Occurrences([np.ones(2, F32)] * 2))

    assert isinstance(errors.found["p"], Occurrences)
    assert len(errors.found["p"]) == 2


# ---- in every form -------------------------------------------------------------------------------------


def test_every_form_shows_the_ranking() -> None:
    """Text, Markdown and page have a column; JSON reads back equal; without --rank there is none of it."""
    feeds = {"x": np.arange(1, 5, dtype=F32)}
    result, plain = (
        compare_models(chain(), chain(c=2.001, t=1.01), feeds, ref="engine", latency=False, rank=rank)
        for rank in (True, False)
    )

    for text in (str(result), result.to_markdown()):
        assert "effect" in text
        assert "reverse passes predict" in text
    assert "effect" not in str(plain)
    assert "effect" not in plain.to_markdown()
    back = from_json(result.to_json())
    assert back.ranking == result.ranking
    assert [x.propagated for x in back.layers] == [x.propagated for x in result.layers]
    assert plain.ranking is None


def test_a_cleaner_model_moves_the_outputs_less() -> None:
    """Predicted error grows with what is done to the weights."""
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(F32)
    found = []
    for bits in (4, 8):
        b = mlp()
        for tensor in b.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            step = np.abs(array).max() / 2 ** (bits - 1)
            tensor.CopyFrom(
                onnx.numpy_helper.from_array((np.rint(array / step) * step).astype(F32), tensor.name)
            )
        ranking = ranked(mlp(), b, {"x": x}).ranking
        assert ranking is not None
        found.append(ranking.predicted)

    assert found[0] > 5 * found[1]


def test_models_with_other_names_are_ranked_under_the_names_of_a() -> None:
    """B's values are paired by structure first; the layers rank as they do under their own names."""
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(F32)
    a, b = mlp(), mlp()
    for tensor in b.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16).astype(F32), tensor.name))
    same = ranked(a, b, {"x": x})
    inner = {name for node in b.graph.node for name in node.output} - {"y"}
    for node in b.graph.node:
        for row in (node.input, node.output):
            row[:] = [f"other_{name}" if name in inner else name for name in row]

    other = ranked(a, b, {"x": x})

    assert any("by structure" in remark for remark in other.remarks)
    assert other.ranking == same.ranking
    assert [x.propagated for x in other.layers] == [x.propagated for x in same.layers]
