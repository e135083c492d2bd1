"""A short, deterministic campaign of planted faults; tests/bench/faults.py runs the long one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from graphdoc import compare_models
from graphdoc.compare.result import Kind
from tests.bench import fault_kinds, faults
from tests.compare.test_verdict import BUILDERS, FEEDS

SMALL = ("mlp", "convolutions", "attention", "recurrent")
SEEDS = range(24)


def sound(name: str) -> faults.Sound:
    proto = BUILDERS[name]()
    return faults.Sound(name, proto, FEEDS[name], faults.run_all(proto, FEEDS[name]))


def planted_in(name: str, seed: int) -> fault_kinds.Fault:
    one = sound(name)
    return fault_kinds.plant(one.proto, one.values, seed)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_guilty_node_is_named(seed: int) -> None:
    """Every fault that moves anything is named first; those that move nothing are told apart."""
    outcome = faults.trial(sound(SMALL[seed % len(SMALL)]), seed)

    assert outcome.word in ("named", "small", "does not run"), outcome


def test_every_kind_is_planted() -> None:
    """The campaign would say little if it drew the same kind each time."""
    kinds = {planted_in(SMALL[seed % len(SMALL)], seed).kind for seed in range(64)}

    assert kinds == {"weights", "axes", "epsilon", "operator", "dtype", "nan", "saturation"}


def test_a_fault_that_changes_nothing_is_not_counted() -> None:
    """The bench's own measure of a fault: the sound model against itself is no fault."""
    one = sound("mlp")

    assert faults.change(one, one.values, fault_kinds.Fault("none", "", ("h", "y"))) == 0


TEXTS = """
    <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    labels (float[N, 3] x) => (string[N] label, float[N, 3] scores) {
        h = Mul(x, w)
        label, scores = ai.onnx.ml.LinearClassifier
            <coefficients = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
             classlabels_strings = ["a", "b", "c"],
             intercepts = [0.0, 0.0, 0.0], post_transform = "NONE"> (h)
    }"""


def labels(factors: Any) -> onnx.ModelProto:
    proto = parser.parse_model(TEXTS)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(factors, np.float32), "w"))
    return proto


def test_labels_that_are_texts_are_judged_like_other_results() -> None:
    """Texts have no distance: they are equal or not, in the noise of rounding too."""
    x = {"x": np.array([[1, 0.9, 0], [0, 1, 0.9]], np.float32)}

    result = compare_models(labels([1, 1, 1]), labels([0.5, 1, 1]), x, test_runner="ort", latency=False)

    assert result.first_divergence is not None
    assert result.first_divergence.value == "h"
    assert {layer.value for layer in result.differing} == {"h", "label", "scores"}


@pytest.mark.parametrize(
    ("number", "words"), [(np.nan, "NaN or infinite in 1 of 3"), (np.inf, "NaN or infinite in 1 of 3")]
)
def test_a_weight_that_is_not_finite_is_told(number: float, words: str) -> None:
    """Without a warning of NumPy's, and in plain words."""
    x = {"x": np.array([[1, 0.9, 0.5], [0.5, 1, 0.9]], np.float32)}

    result = compare_models(labels([1, 1, 1]), labels([1, number, 1]), x, test_runner="ort", latency=False)

    assert result.first_divergence is not None
    assert result.first_divergence.value == "h"
    assert result.verdict.kind is Kind.NAN
    assert words in result.first_divergence.note


_Plant = Callable[[fault_kinds.Scene, np.random.Generator], fault_kinds.Fault | None]


@pytest.mark.parametrize("kind", sorted(set(fault_kinds.KINDS), key=lambda kind: kind.__name__))
def test_every_kind_finds_a_place_or_says_so(kind: _Plant) -> None:
    """None where a model holds no such place; a changed copy where it does."""
    one = sound("convolutions")
    proto = onnx.ModelProto()
    proto.CopyFrom(one.proto)

    fault = kind(fault_kinds.Scene(proto, one.values), np.random.default_rng(0))

    assert (fault is None) == (proto == one.proto)
