"""Tolerances of the user's for some layers: which counts, what they change, what is said of them."""

import numpy as np
import pytest

from graphdoc import compare_models
from graphdoc.compare.result import Status
from graphdoc.compare.tolerances import Described, Rule, find, parse, rules_of, unmatched
from graphdoc.engine.errors import UsageError
from tests.compare import models
from tests.compare.test_verdict import FEEDS, scaled

LAYER = Described("enc.3/out", "enc.3", "Softmax", ("float16", "float32"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["dtype:float16"], "dtype:float16"),
        (["float32"], "float32"),
        (["op:Softmax", "dtype:float16"], "op:Softmax"),
        (["enc.*", "op:Softmax"], "enc.*"),
        (["enc.3", "enc.*"], "enc.3"),
        (["enc.3/out", "*"], "enc.3/out"),
        (["enc.*", "*out"], "*out"),
        (["op:MatMul", "dec.*", "dtype:int8"], None),
        (["op:softmax"], None),
    ],
)
def test_the_most_specific_counts(names: list[str], expected: str | None) -> None:
    """A name, a glob, an operator, a dtype; among equals the last."""
    found = find([Rule(name, 1.0) for name in names], LAYER)

    assert (found.name if found else None) == expected


def test_the_nearer_source_counts_among_equals() -> None:
    rules = (*rules_of({"enc.*": 1e-2}, "pyproject.toml"), *rules_of({"*out": 1e-3}, "--tolerance"))

    found = find(rules, LAYER)

    assert found is not None
    assert found.limit.reason == "given: --tolerance '*out'"


def test_rules_that_fit_nothing_are_found() -> None:
    rules = rules_of({"enc.*": 1.0, "none": 1.0, "op:Conv": 1.0}, "x")

    assert [rule.name for rule in unmatched(rules, [LAYER])] == ["none", "op:Conv"]


def test_options_are_read() -> None:
    """The last equals sign divides, since names may hold one; a repeated name counts where it stands last."""
    assert parse(["a=b=1e-3", "op:Add=0", "x=1", "x=2"]) == {"a=b": 1e-3, "op:Add": 0.0, "x": 2.0}


@pytest.mark.parametrize("text", ["", "a", "=1", "a=", "a=b", "a=-1", "a=nan", "a=inf"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the tolerance") as caught:
        parse([text])

    assert "op:Softmax=1e-4" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_values_that_are_no_tolerance_are_refused(value: float) -> None:
    with pytest.raises(UsageError, match="is not a number of at least 0"):
        rules_of({"a": value}, "x")


def test_a_limit_of_the_users_replaces_ours_and_is_named() -> None:
    """1 % in a weight is a fault by our limits and none by the user's, in the layers that the rule fits."""
    sound, faulty = models.mlp(), scaled(models.mlp(), "w2", 1.01)

    plain = compare_models(sound, faulty, FEEDS["mlp"], test_runner="ort", latency=False)
    loose = compare_models(
        sound, faulty, FEEDS["mlp"], test_runner="ort", latency=False, tolerances={"z": 0.02, "y": 0.5}
    )

    assert plain.first_divergence is not None
    assert plain.first_divergence.value == "z"
    assert loose, loose.verdict
    reasons = {layer.value: layer.limit.reason for layer in loose.layers if layer.limit}
    assert reasons["z"] == "given: the call's tolerance 'z'"
    assert not reasons["h"].startswith("given")
    assert "2 of them, a given tolerance" in loose.verdict.sentence


def test_a_limit_of_the_users_may_be_stricter_than_ours() -> None:
    """The layer is at fault although its error is mere rounding, and the rule is named as the reason."""
    feeds = {"x": np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)}

    result = compare_models(models.mlp(), inputs=feeds, latency=False, tolerances={"op:Softmax": 1e-12})

    wrong = {layer.op for layer in result.layers if layer.status in (Status.OWN, Status.INHERITED)}
    assert wrong == {"Softmax"}
    assert ("limit", "given: the call's tolerance 'op:Softmax'") in result.verdict.facts


def test_a_rule_that_fits_no_layer_is_said_unless_the_project_has_it() -> None:
    rules = (
        *rules_of({"other.*": 1e-3}, "pyproject.toml", must_match=False),
        *rules_of({"misspelt": 1e-3}, "--tolerance"),
    )

    result = compare_models(models.mlp(), inputs=FEEDS["mlp"], latency=False, tolerances=rules)

    assert result.remarks == ("the tolerance 'misspelt' fits no layer",)


def test_figures_element_by_element_do_not_hold_where_a_layer_has_its_own() -> None:
    """--rtol for all, a limit for one layer: the layer's counts there."""
    sound, faulty = models.mlp(), scaled(models.mlp(), "w2", 1.01)

    result = compare_models(
        sound, faulty, FEEDS["mlp"], test_runner="ort", latency=False, rtol=1e-4, tolerances={"z": 0.1}
    )

    assert [layer.value for layer in result.differing] == ["y"]
