"""JSON: strict, documented, a round trip, and refusals that name the place."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphdoc.compare.result import SCHEMA, Comparison, Metrics
from graphdoc.engine.errors import InputError
from graphdoc.reports.html import render_html
from graphdoc.reports.jsonform import from_json, to_json
from graphdoc.reports.junit import render_junit
from graphdoc.reports.markdown import render_markdown
from graphdoc.reports.text import comparison_lines
from tests.reports.pages import Page
from tests.reports.synthetic import OUTCOMES, comparison

LAYER_KEYS = {
    "value", "node", "op", "index", "dtype", "shape", "agrees", "tolerance", "max_abs", "max_rel", "rms",
    "cosine", "ulp", "own_error", "inherited_error",
}  # fmt: skip
TOP_KEYS = {
    "schema", "agrees", "compared", "differ", "first_divergence", "layers", "runners", "inputs",
    "environment",
}  # fmt: skip


def no_constant(name):
    raise AssertionError(f"{name} stands bare")


def strict(text: str) -> dict:
    return json.loads(text, parse_constant=no_constant)


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_round_trip(outcome, hostile):
    """Reading gives an equal result; for NaN, which equals nothing, the text is the oracle."""
    result = comparison(outcome, 40, hostile=hostile)
    text = to_json(result)
    assert strict(text)["schema"] == SCHEMA
    assert text.isascii()
    again = from_json(text)
    assert to_json(again) == text
    assert outcome == "nan" or again == result


def test_the_promised_keys_are_there():
    document = strict(to_json(comparison("differs", 20)))
    assert set(document) >= TOP_KEYS
    assert all(set(layer) >= LAYER_KEYS for layer in document["layers"])
    assert document["first_divergence"] == {
        "value": "/encoder/layers.1/block.5/Div_output_0",
        "node": "/encoder/layers.1/block.5/Div",
        "op": "Div",
        "index": 17,
    }
    assert (document["agrees"], document["compared"], document["differ"]) == (False, 20, 3)
    assert {"name", "version", "settings", "latency"} <= set(document["runners"]["a"])
    assert {"name", "shape"} <= set(document["inputs"][0])


def test_skipped_layers_do_not_count_as_compared():
    document = strict(to_json(comparison("one side", 20)))
    assert (document["compared"], len(document["layers"]), document["differ"]) == (10, 20, 0)


def test_nothing_compared_has_no_layers():
    document = strict(to_json(comparison("nothing")))
    assert document["layers"] == []
    assert document["first_divergence"] is None


def test_numbers_that_are_not_finite_are_named():
    layer = strict(to_json(comparison("nan", 20)))["layers"][6]
    assert layer["error"] == "Infinity"
    assert layer["metrics"]["b_worst"] == "NaN"


def test_text_elements_are_kept_apart_from_numbers():
    """A string tensor may hold the text NaN."""
    result = comparison("agrees", 1)
    metrics = Metrics(size=1, a_worst="NaN", b_worst=float("nan"))
    text = to_json(replace(result, layers=(replace(result.layers[0], metrics=metrics),)))
    again = from_json(text).layers[0].metrics
    assert again.a_worst == "NaN"
    assert again.b_worst != again.b_worst


def test_every_key_is_documented(root):
    document = strict(to_json(comparison("differs", 20)))
    page = (root / "docs" / "json-schema.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`([a-z_0-9]+)`", page)) | {"runners", "a", "b"}
    assert not keys(document, skip={"environment"}) - known


def keys(value, skip=frozenset()) -> set[str]:
    """Return all keys of objects, at any depth."""
    if isinstance(value, list):
        return set().union(*(keys(item, skip) for item in value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(item, skip) for key, item in value.items() if key not in skip))


# Refusals


def broken(change) -> str:
    document = strict(to_json(comparison("differs", 20)))
    change(document)
    return json.dumps(document)


def put(*path):
    """Return a change that writes the last item at the path of the others."""
    *way, last, value = path

    def change(document):
        for step in way:
            document = document[step]
        document[last] = value

    return change


def drop(*path):
    *way, last = path

    def change(document):
        for step in way:
            document = document[step]
        del document[last]

    return change


@pytest.mark.parametrize(
    ("change", "where", "cause"),
    [
        (put("schema", "graphdoc.comparison/2"), "schema", "graphdoc.comparison/2"),
        (drop("schema"), "schema", "null"),
        (drop("verdict"), "verdict", "missing"),
        (drop("layers"), "layers", "a list"),
        (drop("layers", 2, "op"), "layers[2].op", "missing"),
        (put("layers", 3, "error", "big"), "layers[3].error", "a number"),
        (put("layers", 3, "error", True), "layers[3].error", "a number"),
        (put("layers", 3, "tolerance", []), "layers[3].limit.value", "a number"),
        (put("layers", 3, "index", 4), "layers[3].index", "in place 3"),
        (put("layers", 3, "index", True), "layers[3].index", "a whole number"),
        (put("layers", 3, "inputs", [99]), "layers[3].inputs", "not among the 20"),
        (put("layers", 3, "inputs", [-1]), "layers[3].inputs", "not among the 20"),
        (put("layers", 3, "status", "fine"), "layers[3].status", "unknown word"),
        (put("layers", 3, "shape", [1, "2"]), "layers[3].shape[1]", "a whole number"),
        (put("layers", 3, "metrics", "size", 1.5), "layers[3].metrics.size", "a whole number"),
        (put("layers", 3, "metrics", "a_worst", {"text": 1}), "layers[3].metrics.a_worst", "text"),
        (
            put("layers", 17, "picture", "heat", "cells", 1, "zz"),
            "layers[17].picture.heat.cells",
            "one length",
        ),
        (put("layers", 17, "picture", "heat", "cells", ["<>"]), "layers[17].picture.heat.cells", "letter"),
        (put("layers", 17, "picture", "heat", "largest", "NaN"), "layers[17].picture.heat", "a difference"),
        (put("layers", 17, "picture", "heat", "shape", [0, 4]), "layers[17].picture.heat", "a shape"),
        (put("layers", 17, "picture", "histogram", "a", []), "layers[17].picture.histogram", "as many"),
        (put("layers", 17, "picture", "histogram", "b", 0, -1), "layers[17].picture.histogram", "negative"),
        (put("layers", 17, "picture", "histogram", "b", 0, 10**400), "layers[17].picture.histogram", "large"),
        (put("layers", 17, "picture", "histogram", "low", 5), "picture.histogram.low", "a range"),
        (put("layers", 17, "picture", "histogram", "high", "NaN"), "picture.histogram.low", "a range"),
        (put("layers", 17, "picture", "magnitudes", "low", 10**17), "picture.magnitudes.low", "power"),
        (put("layers", 17, "picture", "magnitudes", "low", 0.5), "picture.magnitudes.low", "a whole number"),
        (put("layers", 3, []), "layers[3]", "an object"),
        (put("verdict", "first", 20), "verdict.first", "not among the 20"),
        (put("verdict", "first", -1), "verdict.first", "not among the 20"),
        (put("verdict", "exit_code", 130), "verdict.exit_code", "no exit code"),
        (put("verdict", "facts", [["a", "b", "c"]]), "verdict.facts[0]", "expected 2 entries"),
        (put("runners", "a", None), "runners", "an object"),
        (put("runners", "a", "latency", {"median": 1}), "a.latency", "missing"),
        (put("environment", {"cpu": 3}), "environment.cpu", "text"),
        (put("seed", 10**400), "seed", None),
        (put("layers", 0, "error", 10**400), "layers[0].error", "too large"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(change, where, cause):
    text = broken(change)
    if cause is None:  # whole numbers have no bound
        assert from_json(text).seed == 10**400
        return
    with pytest.raises(InputError) as caught:
        from_json(text)
    assert where in caught.value.where
    assert cause in caught.value.cause
    assert caught.value.next_step


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "[" * 100_000,
        '{"schema": NaN}',
        '{"schema": 1e999}',
        '{"a": 1, "a": 2}',
        "9" * 5000,
        "\ufeff{}",
        '{"schema": "graphdoc.comparison/1"}',
        "<html></html>",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_comparison_is_refused(text):
    with pytest.raises(InputError) as caught:
        from_json(text)
    assert len(str(caught.value)) < 600


def test_unknown_keys_are_ignored():
    text = broken(put("layers", 0, "colour", "blue"))
    assert from_json(text) == comparison("differs", 20)


SMALL = strict(to_json(comparison("differs", 3)))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_change_gives_a_comparison_or_a_refusal(data):
    """One value anywhere replaced by another: no other exception, and what is read can be shown."""
    document = json.loads(json.dumps(SMALL))
    here = document
    while True:
        key = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if not (isinstance(here[key], dict | list) and here[key] and data.draw(st.booleans())):
            break
        here = here[key]
    here[key] = data.draw(VALUES)
    try:
        result = from_json(json.dumps(document))
    except InputError:
        return
    assert isinstance(result, Comparison)
    strict(to_json(result))
    Page(render_html(result)), render_markdown(result), render_junit(result)
    comparison_lines(result, color=False, pipe=False)
