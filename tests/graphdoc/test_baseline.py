"""Baselines: the file and its reading, tolerances, the verdict on a run."""

import dataclasses
import math
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoc.baseline import Allowance, Baseline, Entry, read, render, tolerance, write
from graphdoc.baseline_check import Rules, judge, make
from graphdoc.compare.result import Kind, Status
from graphdoc.compare.target import Point
from graphdoc.engine.errors import InputError
from graphdoc.fingerprint import Fingerprint, distance, fingerprint
from graphdoc.observation import Observation

NONE = Rules({}, {}, {})


def seen(value: float = 1.0, size: int = 64) -> Fingerprint:
    return fingerprint((value * np.linspace(1, 2, size)).astype(np.float32))


def observation(**values: Fingerprint) -> Observation:
    """Return a run of a chain of layers in the given order."""
    names = list(values)
    points = tuple(
        Point(name, f"node {name}", "Op", "", "", (names[i - 1] if i else "x",), 0, i == len(names) - 1)
        for i, name in enumerate(names)
    )
    return Observation("m.onnx", "engine 1.0", {"x": seen()}, values, points)


def baseline(**values: Fingerprint) -> Baseline:
    return make(observation(**values), {}, None, NONE)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(names, st.floats(allow_nan=False, width=32), max_size=4), names)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, values: dict, model: str) -> None:
    """Any name survives: quotes, newlines, control characters, emoji; numbers stay within ten digits."""
    path = tmp_path_factory.getbasetemp() / "roundtrip.toml"
    layers = {
        name: Entry("Op", fingerprint(np.full(9, x)), Allowance(1e-6, 1e-7)) for name, x in values.items()
    }
    inputs = {name: entry.seen for name, entry in layers.items()}
    original = Baseline(model, "engine 1.0", inputs, layers, {"*": 0.5})

    write(path, original)
    found = read(path)

    assert found is not None
    assert (found.model, found.tolerances, list(found.layers)) == (model, {"*": 0.5}, list(layers))
    for name, entry in layers.items():
        again = dataclasses.replace(found.layers[name].seen, digest="other")
        assert distance(again, entry.seen) <= 1e-9
        assert found.layers[name].allowance == entry.allowance


def test_a_layer_is_one_line() -> None:
    """A review shows which layers changed."""
    lines = render(baseline(a=seen(), b=seen(2.0))).splitlines()

    assert sum(line.startswith(('"a" = {', '"b" = {')) for line in lines) == 2
    assert max(map(len, lines)) < 300


def test_no_file_is_no_baseline(tmp_path: pathlib.Path) -> None:
    """A missing file is no error."""
    assert read(tmp_path / "none.toml") is None


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< HEAD",
        "",
        "format = 2",
        'format = 1\nmodel = "m"',
        'format = 1\nmodel = "m"\nrunner = "r"\n[inputs]\n[layers]\na = 3',
        'format = 1\nmodel = "m"\nrunner = "r"\n[inputs]\n[layers]\na = { op = "Op" }',
        'format = 1\nmodel = "m"\nrunner = "r"\n[inputs]\n[layers]\n[tolerances]\na = "x"',
        "\x00\xff",
    ],
)
def test_a_broken_file_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    """The message names the file and the way out."""
    path = tmp_path / "b.toml"
    path.write_text(text, "latin-1")

    with pytest.raises(InputError, match="cannot be read") as caught:
        read(path)
    assert "b.toml" in str(caught.value.where)
    assert "--graphdoc-update" in str(caught.value.next_step)


def test_a_failed_write_leaves_the_old_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file is written under another name first."""
    path = tmp_path / "b.toml"
    write(path, baseline(a=seen()))
    before = path.read_text("utf-8")

    def refuse(self: pathlib.Path, target: object) -> pathlib.Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write(path, baseline(b=seen()))

    assert path.read_text("utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["b.toml"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, None),
        ({"float16": 0.1}, None),
        ({"float32": 0.1}, 0.1),
        ({"enc/*": 0.2, "float32": 0.1}, 0.2),
        ({"*": 0.3, "enc/*": 0.2}, 0.2),
        ({"enc/*": 0.2, "*": 0.3}, 0.3),
        ({"enc/a[0]": 0.4}, 0.4),
        ({"dec/*": 0.5}, None),
    ],
)
def test_tolerances(rules: dict[str, float], expected: float | None) -> None:
    """A name goes before a dtype, the last matching name counts, and brackets in a name are no pattern."""
    assert tolerance(rules, "enc/a[0]", "float32") == expected


def test_nearer_rules_go_first() -> None:
    """Call, baseline, project, then what was measured."""
    entry = Entry("Op", seen(), Allowance(1e-5, 1e-6))
    rules = [{"*": 1.0}, {"*": 2.0}, {"*": 3.0}]

    for same, measured in ((True, 1e-6), (False, 1e-5)):
        ranked = [Rules(*([{}] * n + rules[n:])) for n in range(4)]
        found = [each.limit("a", entry, same_inputs=same).value for each in ranked]
        assert found == [1.0, 2.0, 3.0, measured]


def test_equal_runs_agree() -> None:
    """And the verdict says how many layers are the same to the bit."""
    result = judge(baseline(a=seen(), b=seen(2)), observation(a=seen(), b=seen(2)), NONE, "t")

    assert result
    assert result.verdict.kind is Kind.AGREES
    assert result.verdict.sentence == "2 layers agree with the baseline, 2 bit for bit"


def test_rounding_agrees() -> None:
    """An error below the limit is no difference, and is not called equal to the bit."""
    result = judge(baseline(a=seen()), observation(a=seen(1 + 3e-7)), NONE, "t")

    assert result
    assert "0 bit for bit" in result.verdict.sentence
    assert 0 < (result.layers[0].error or 0) < 1e-6


def test_the_first_layer_that_changed_is_blamed_and_those_after_it_are_not() -> None:
    """Status follows the graph: own, then inherited."""
    old = baseline(a=seen(), b=seen(2), c=seen(3))
    result = judge(old, observation(a=seen(), b=seen(2.2), c=seen(3.3)), NONE, "t")

    assert not result
    assert [layer.status for layer in result.layers] == [Status.AGREES, Status.OWN, Status.INHERITED]
    assert result.first_divergence is result.layers[1]
    assert "its inputs are the same" in result.verdict.sentence
    assert ("output", "c    error 0.10, limit 7.6e-6") in result.verdict.facts


def test_a_layer_is_not_blamed_when_its_inputs_were_not_looked_at() -> None:
    """With only the outputs in the baseline, nothing is said about whose fault it is."""
    run = observation(a=seen(), b=seen(2.2))
    only_b = dataclasses.replace(run, points=run.points[1:], layers={"b": run.layers["b"]})
    old = Baseline("m", "r", {"x": seen()}, {"b": Entry("Op", seen(2), Allowance(1e-6, 1e-6))})

    result = judge(old, only_b, NONE, "t")

    assert result.verdict.sentence == "differs from #0 of 1 on"


def test_a_later_layer_that_agrees_again_is_seen() -> None:
    """A difference that does not reach the outputs is still a difference, and the verdict says that."""
    old = baseline(a=seen(), b=seen(2))
    result = judge(old, observation(a=seen(1.5), b=seen(2)), NONE, "t")

    assert not result
    assert ("output", "b    error 0, limit 7.6e-6") in result.verdict.facts


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, "1 new, 0 gone"),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0}, "0 new, 1 gone"),
        ({"a": 1.0}, {"b": 1.0}, "nothing was compared"),
        ({}, {"a": 1.0}, "nothing was compared"),
    ],
)
def test_another_set_of_layers_fails(old: dict, new: dict, sentence: str) -> None:
    """What was not compared is a failure, not an agreement."""
    before, after = ({name: seen(x) for name, x in side.items()} for side in (old, new))
    result = judge(baseline(**before), observation(**after), NONE, "t")

    assert not result
    assert sentence in result.verdict.sentence


def test_other_inputs_are_said_first() -> None:
    """The layers are not judged by a run on other inputs."""
    run = dataclasses.replace(observation(a=seen(5)), inputs={"x": seen(1.1)})
    result = judge(baseline(a=seen()), run, NONE, "t")

    assert not result
    assert result.verdict.sentence == "the inputs are not those of the baseline: x"
    assert "baseline was made with" in result.inputs[0].source


def test_a_changed_dtype_shape_or_nan_is_named() -> None:
    """The note says what a layer was and is."""
    wide = fingerprint(np.linspace(1, 2, 64))
    broken = fingerprint(np.array([np.nan, *np.linspace(1, 2, 63)], np.float32))
    old = baseline(a=seen(), b=seen(), c=seen())
    result = judge(old, observation(a=wide, b=seen(size=32), c=broken), NONE, "t")

    notes = [layer.note for layer in result.layers]
    assert notes[0] == "was float32 64, is float64 64"
    assert notes[1] == "was float32 64, is float32 32"
    assert notes[2].startswith("NaN, infinities")
    assert all(layer.error == math.inf for layer in result.layers)


@pytest.mark.parametrize(
    ("before", "agrees"), [(1.0, False), (1 + 1e-4, True)], ids=["inputs equal to the bit", "inputs rounded"]
)
def test_what_was_not_inherited_is_held_to_the_layers_own_rounding(before: float, agrees: bool) -> None:
    """A layer that rounding moves far has a wide limit, but not when its inputs are the same bits."""
    wide = Allowance(0.1, 1e-6)
    old = Baseline("m", "r", {"x": seen()}, {"a": Entry("Op", seen(), wide), "b": Entry("Op", seen(2), wide)})

    result = judge(old, observation(a=seen(before), b=seen(2.02)), NONE, "t")

    b = result.layers[1]
    assert b.agrees is agrees
    assert b.limit is not None
    assert b.limit.value == (0.1 if agrees else 1e-6)


def test_loose_limits_are_pointed_out_in_the_file() -> None:
    """Whoever reviews a baseline sees that part of it can hardly fail."""
    loose = Baseline("m", "r", {}, {"a": Entry("Op", seen(), Allowance(0.3, 1e-6))})

    assert "# 1 layers may differ by more than 10%" in render(loose)


def test_an_update_changes_only_what_failed() -> None:
    """Entries that agree stay as they are, gone ones go, the user's tolerances stay."""
    old = baseline(a=seen(), b=seen(2), c=seen(3))
    old = dataclasses.replace(old, tolerances={"float32": 1e-6})
    new = make(observation(a=seen(1 + 3e-7), b=seen(2.5), d=seen(4)), {"b": Allowance(1e-5, 1e-6)}, old, NONE)

    assert new.layers["a"] is old.layers["a"]
    assert new.layers["b"] == Entry("Op", seen(2.5), Allowance(1e-5, 1e-6))
    assert list(new.layers) == ["a", "b", "d"]
    assert new.tolerances == {"float32": 1e-6}


def test_an_update_with_other_inputs_takes_everything_anew() -> None:
    """Lines measured on other inputs do not stay."""
    old = baseline(a=seen())
    run = dataclasses.replace(observation(a=seen()), inputs={"x": seen(9)})

    new = make(run, {"a": Allowance(0.25, 0.25)}, old, NONE)

    assert new.inputs == run.inputs
    assert new.layers["a"].allowance.limit == 0.25
