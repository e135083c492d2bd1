"""What counts as better or worse between two results, and what is noise; every form of saying it."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from graphdoc.compare.result import Comparison, Latency, Layer, Limit, Status
from graphdoc.reports import resultdiff_words
from graphdoc.reports.jsonform import from_json, to_json
from graphdoc.reports.resultdiff import Direction, ResultDiff, diff_results
from graphdoc.reports.resultdiff_html import render_html
from graphdoc.reports.resultdiff_text import result_diff_json, result_diff_lines, result_diff_markdown
from tests.reports.pages import Page
from tests.reports.synthetic import OUTCOMES, comparison

replace = dataclasses.replace


def with_layer(result: Comparison, index: int, **changes: Any) -> Comparison:
    layers = list(result.layers)
    layers[index] = replace(layers[index], **changes)
    return replace(result, layers=tuple(layers))


def with_time(
    result: Comparison, side: str, median: float, low: float, high: float, runs: int = 20
) -> Comparison:
    latency = Latency(median=median, low=low, high=high, runs=runs)
    return replace(result, **{side: replace(getattr(result, side), latency=latency)})


def limited(own: float, limit: float = 1e-6) -> dict[str, Any]:
    """Return the fields of a layer with this own error; its total error stays within its limit."""
    return {"own_error": own, "own_limit": Limit(value=limit, reason="rounding"), "error": None}


# What counts


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_result_against_itself_is_the_same(outcome: str) -> None:
    """Whatever the verdict: nothing is better, worse or not as it was."""
    result = comparison(outcome)
    diff = diff_results(result, result)

    assert diff
    assert not diff.improved
    assert (diff.worse, diff.better, diff.lost, diff.found, diff.settings) == ((), (), (), (), ())
    assert diff.steady == diff.paired == sum(x.status is not Status.SKIPPED for x in result.layers)


@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if comparison(name).verdict.exit_code])
def test_worse_one_way_is_better_the_other_way(outcome: str) -> None:
    """From agreement to each kind of failure and back; the layers are the same ones."""
    good, bad = comparison("agrees"), comparison(outcome)
    there, back = diff_results(good, bad), diff_results(bad, good)

    assert not there
    assert there.verdict is Direction.WORSE
    assert back
    assert back.improved
    assert [x.after.index for x in there.worse] == [x.after.index for x in back.better]


@pytest.mark.parametrize(
    ("old", "new", "severity"),
    [
        (4e-7, 7.9e-7, 0),  # below the factor
        (4e-7, 8e-7, 1),  # the factor, beyond a quarter of the limit
        (1e-9, 2.4e-7, 0),  # any factor below a quarter of the limit is rounding
        (0.0, 2.4e-7, 0),
        (0.0, 2.6e-7, 1),
        (9e-7, 1.1e-6, 2),  # crosses its limit
        (1.1e-6, 2.1e-6, 0),  # beyond the limit before and after, not by the factor
        (1.1e-6, 2.2e-6, 1),
        (2e-6, math.inf, 1),
        (math.inf, math.inf, 0),
        (math.nan, 1e-9, 0),
    ],
)
def test_an_error_counts_beyond_its_limit_or_by_a_factor(old: float, new: float, severity: int) -> None:
    """The same both ways, but for the direction."""
    base = comparison("agrees")
    before, after = with_layer(base, 3, **limited(old)), with_layer(base, 3, **limited(new))
    there, back = diff_results(before, after), diff_results(after, before)

    assert [x.severity for x in there.worse] == [severity] * (severity > 0)
    assert [x.severity for x in back.better] == [severity] * (severity > 0)
    assert (there.better, back.worse) == ((), ())


def test_a_layer_without_limits_counts_by_the_factor() -> None:
    base = comparison("agrees")
    bare = {"limit": None, "own_limit": None, "own_error": None}
    before, after = (with_layer(base, 3, error=error, **bare) for error in (1e-9, 3e-9))

    assert [x.what for x in diff_results(before, after).worse] == [("error 1.0e-9 → 3.0e-9",)]


def test_agreement_outweighs_errors() -> None:
    """A layer that agrees again is better although its error grew; both are said, the weightier first."""
    base = comparison("agrees")
    before = with_layer(base, 3, status=Status.OWN, **limited(3e-7))
    after = with_layer(base, 3, status=Status.AGREES, **limited(9e-7))
    (change,) = diff_results(before, after).better

    assert change.what == ("own error → agrees", "own error 3.0e-7 → 9.0e-7")


def test_layers_come_by_severity_then_in_order() -> None:
    base = comparison("agrees")
    after = with_layer(base, 2, **limited(9e-7, 1e-6))
    after = with_layer(after, 7, status=Status.OWN)
    after = with_layer(after, 5, status=Status.NAN)
    before = with_layer(base, 2, **limited(1e-7, 1e-6))

    assert [x.after.index for x in diff_results(before, after).worse] == [5, 7, 2]


def test_layers_are_paired_by_value_wherever_they_stand() -> None:
    """A layer inserted at the start changes all indices and no verdict."""
    base = comparison("agrees")
    new = Layer(index=0, value="cast", node="cast", op="Cast")
    moved = tuple(replace(x, index=x.index + 1, inputs=()) for x in base.layers)
    diff = diff_results(base, replace(base, layers=(new, *moved)))

    assert diff
    assert (diff.steady, [x.value for x in diff.found]) == (20, ["cast"])


def test_an_inner_layer_may_go_an_output_may_not() -> None:
    """A layer that was fused away is no fault; an output that nobody compares any more is."""
    base = comparison("agrees")
    inner = diff_results(base, with_layer(base, 4, status=Status.SKIPPED))
    output = diff_results(base, with_layer(base, 19, status=Status.SKIPPED))

    assert inner
    assert len(inner.lost) == 1
    assert not output
    assert "no longer compared: 1 output" in resultdiff_words.sentence(output)


# Latency


@pytest.mark.parametrize(
    ("new", "direction"),
    [
        ((0.0400, 0.0390, 0.0410), Direction.WORSE),
        ((0.0330, 0.0319, 0.0350), Direction.SAME),  # 1.1 ×, but the spreads touch
        ((0.0304, 0.0303, 0.0305), Direction.SAME),
        ((0.0250, 0.0245, 0.0260), Direction.BETTER),
    ],
)
def test_latency_counts_beyond_the_spread_of_both(
    new: tuple[float, float, float], direction: Direction
) -> None:
    base = with_time(comparison("agrees"), "b", 0.030, 0.029, 0.032)
    diff = diff_results(base, with_time(base, "b", *new))

    assert [x.direction for x in diff.latency] == [Direction.SAME, direction]
    assert bool(diff) == (direction is not Direction.WORSE)
    assert diff.improved == (direction is Direction.BETTER)


def test_a_slower_machine_is_not_a_slower_model() -> None:
    """Where the same reference got slower as well, its factor is taken out; what is left counts."""
    base = with_time(with_time(comparison("agrees"), "a", 0.02, 0.019, 0.021), "b", 0.03, 0.029, 0.031)
    loaded = with_time(base, "a", 0.04, 0.038, 0.042)

    assert diff_results(base, with_time(loaded, "b", 0.06, 0.058, 0.062))
    assert not diff_results(base, with_time(loaded, "b", 0.12, 0.116, 0.124))
    other = replace(loaded, a=replace(loaded.a, sha256="0" * 64))
    assert not diff_results(base, with_time(other, "b", 0.06, 0.058, 0.062)), (
        "another reference is no yardstick"
    )


def test_another_machine_and_few_runs_are_not_judged() -> None:
    base = with_time(comparison("agrees"), "b", 0.03, 0.029, 0.031)
    slow = with_time(base, "b", 0.06, 0.058, 0.062)
    moved = replace(slow, environment={**slow.environment, "cpu": "another"})

    assert not diff_results(base, slow)
    assert diff_results(base, moved)
    assert diff_results(base, with_time(base, "b", 0.05, 0.049, 0.051, runs=2))
    assert not diff_results(base, with_time(base, "b", 0.07, 0.069, 0.071, runs=2)), "beyond any doubt"


# What is around


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda x: replace(x, b=replace(x.b, sha256="1" * 64)), "not the same model B"),
        (lambda x: replace(x, a=replace(x.a, runner="reference")), "not the same runner A"),
        (lambda x: replace(x, b=replace(x.b, version="9")), "runner B"),
        (lambda x: replace(x, inputs=(replace(x.inputs[0], sha256="2" * 64),)), "not the same input x"),
        (lambda x: replace(x, inputs=()), "not the same input x"),
        (lambda x: replace(x, seed=4), "seed"),
        (lambda x: replace(x, environment={**x.environment, "cpu": "other"}), "not the same cpu"),
        (lambda x: replace(x, environment={}), "versions"),
    ],
)
def test_what_is_not_as_it_was_is_said_first(change: Callable[[Comparison], Comparison], label: str) -> None:
    """It stands under the answer, before all figures, and never counts as worse by itself."""
    base = comparison("agrees")
    diff = diff_results(base, change(base))
    text = result_diff_lines(diff, color=False, pipe=True)

    assert diff
    assert text.index(f"\n  {label} ") < text.index("\n  verdict ")


# Forms


def forms(diff: ResultDiff) -> list[str]:
    text = result_diff_lines(diff, color=False, pipe=True, verbose=True)
    return [text, result_diff_json(diff), result_diff_markdown(diff), render_html(diff)]


@pytest.mark.parametrize("after", OUTCOMES)
@pytest.mark.parametrize("hostile", [False, True])
def test_every_form_of_every_outcome(after: str, hostile: bool) -> None:
    """Deterministic, well formed, inert whatever the names; strict JSON; a comment below 60 lines."""
    pair = comparison("agrees", 40, hostile=hostile), comparison(after, 40, hostile=hostile, seed=1)
    text, data, comment, html = forms(diff_results(*pair, "a.json", "b.json"))

    assert forms(diff_results(*pair, "a.json", "b.json")) == [text, data, comment, html]
    assert json.loads(data, parse_constant=pytest.fail)["schema"] == "graphdoc.resultdiff/1"
    assert len(comment.splitlines()) < 60
    page = Page(html)
    assert page.all("script") == []
    assert page.all("img") == []
    assert "\x1b" not in text + html


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_answer_fits_on_a_screen(width: int) -> None:
    """24 lines less the prompt; no line is wider than the terminal."""
    before, after = comparison("agrees", 200), comparison("differs", 200, seed=1)
    after = replace(after, environment={}, seed=9, inputs=(), a=replace(after.a, settings="others"))
    lines = result_diff_lines(diff_results(before, after), width=width, color=False, pipe=False).splitlines()

    assert lines[0].startswith("✗ worse   ")
    assert width < 80 or len(lines) <= 23
    assert width > 80 or max(map(len, lines)) <= width


def test_ascii_only_output() -> None:
    diff = diff_results(comparison("agrees"), comparison("differs", seed=1))

    assert result_diff_lines(diff, color=False, pipe=True, unicode=False).isascii()


def test_the_json_counts_what_it_lists() -> None:
    diff = diff_results(comparison("agrees"), comparison("nan"), "a.json", "b.json")
    found = json.loads(result_diff_json(diff))

    assert found["worse"] is True
    assert found["counts"]["worse"] == len(found["worse_layers"]) == len(diff.worse)
    assert found["after"]["first_divergence"]["index"] == 6
    assert found["worse_layers"][0]["after"]["error"] == "Infinity"


# Old files


OLD = pathlib.Path(__file__).parent / "comparison-1.json"
"""A file as graphdoc 0.1.0 wrote it, kept as it was: later versions read it for good."""


def test_an_old_file_stays_readable() -> None:
    """Every key of today may be missing that was not there; the figures are the old ones."""
    old = from_json(OLD.read_text(encoding="utf-8"))

    assert (old.verdict.first, len(old.layers), old.layers[2].own_error) == (2, 4, 0.010000010836221034)
    assert diff_results(old, from_json(to_json(old)))
    assert not diff_results(from_json(_agreeing(OLD)), old)


def _agreeing(path: pathlib.Path) -> str:
    """Return the text of the old file with all layers agreeing."""
    document = json.loads(path.read_text(encoding="utf-8"))
    document["verdict"] |= {"exit_code": 0, "first": None}
    for layer in document["layers"]:
        layer |= {"status": "agrees", "agrees": True}
    return json.dumps(document)


def test_a_comment_has_less_than_sixty_lines() -> None:
    """However much there is to say."""
    before = replace(comparison("agrees", 300), environment={f"name {n}": "old" for n in range(99)})
    after = replace(comparison("differs", 300), environment={f"name {n}": "new" for n in range(99)})

    assert len(result_diff_markdown(diff_results(before, after)).splitlines()) < 60
    assert len(result_diff_markdown(diff_results(after, before)).splitlines()) < 60
