"""Which layers of two results are the same: by name, by structure, or not at all."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from graphdoc.compare.result import Comparison, Layer
from graphdoc.reports.resultdiff import diff_results
from graphdoc.reports.resultdiff_html import render_html
from graphdoc.reports.resultdiff_text import result_diff_json, result_diff_lines, result_diff_markdown
from graphdoc.reports.resultpairs import MOST_APART, common, pair_layers
from tests.reports.synthetic import comparison


def renamed(result: Comparison, names: list[str]) -> Comparison:
    layers = [replace(x, value=name, node=f"n_{name}") for x, name in zip(result.layers, names, strict=True)]
    return replace(result, layers=tuple(layers))


def without(result: Comparison, *gone: int) -> Comparison:
    kept = [x for x in result.layers if x.index not in gone]
    layers = [replace(x, index=n, inputs=(n - 1,) if n else ()) for n, x in enumerate(kept)]
    return replace(result, layers=tuple(layers))


def test_names_decide_where_they_are_shared() -> None:
    layers = list(comparison("agrees", 40).layers)
    shuffled = layers[:]
    random.Random(1).shuffle(shuffled)  # noqa: S311 - an order, not a secret
    found = pair_layers(layers, shuffled)

    assert found.remark == ""
    assert sorted((layers[i].value, shuffled[j].value) for i, j in found.pairs) == sorted(
        (x.value, x.value) for x in layers
    )


def test_other_names_are_paired_by_structure() -> None:
    before = comparison("agrees", 60)
    after = renamed(without(before, 7, 30, 31), [f"t{n}" for n in range(57)])
    diff = diff_results(before, after)

    assert diff
    assert (diff.paired, diff.steady, len(diff.lost), len(diff.found)) == (57, 57, 3, 0)
    assert [x.index for x in diff.lost] == [7, 30, 31]
    assert diff.pairing == "names differ: 57 of 57 layers were paired by operator, shape and order"


def test_names_used_again_for_other_layers_are_not_trusted() -> None:
    """An exporter that numbers its values gives all names after a removed layer to the next one."""
    before = renamed(comparison("agrees", 50), [f"val_{n}" for n in range(50)])
    after = renamed(without(comparison("agrees", 50), 3), [f"val_{n}" for n in range(49)])
    diff = diff_results(before, after)

    assert [x.value for x in diff.lost] == ["val_3"]
    assert (diff.paired, diff.steady) == (49, 49)


def test_a_change_behind_other_names_is_found() -> None:
    before = comparison("agrees", 60)
    after = renamed(comparison("differs", 60), [f"t{n}" for n in range(60)])
    diff = diff_results(before, after)

    assert not diff
    assert [change.after.index for change in diff.worse] == [x.index for x in after.differing]
    assert all(change.before.index == change.after.index for change in diff.worse)


def test_other_sizes_are_paired_by_operator() -> None:
    before = comparison("agrees", 30)
    wider = [replace(x, value=f"t{x.index}", shape=(8, *(x.shape or ())[1:])) for x in before.layers]
    diff = diff_results(before, replace(before, layers=tuple(wider)))

    assert diff.pairing == "names differ: 30 of 30 layers were paired by operator and order"


def test_other_models_are_not_paired() -> None:
    before = comparison("agrees", 30)
    others = [replace(x, value=f"t{x.index}", op="Einsum") for x in before.layers]
    diff = diff_results(before, replace(before, layers=tuple(others)))

    assert (diff.paired, diff.pairing) == (0, "")


def test_every_form_says_how_layers_were_paired() -> None:
    before = comparison("agrees", 20)
    diff = diff_results(before, renamed(before, [f"t{n}" for n in range(20)]))
    words = "paired by operator, shape and order"

    for text in (
        render_html(diff),
        result_diff_json(diff),
        result_diff_lines(diff, color=False, pipe=True),
    ):
        assert words in text
    assert "paired by operator" in result_diff_markdown(diff)


def longest(a: list[int], b: list[int]) -> int:
    """The length of a longest common subsequence, by the plain table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_common_is_in_order_equal_and_longest(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    for _ in range(200):
        a, b = ([rng.randrange(4) for _ in range(rng.randrange(14))] for _ in range(2))
        pairs = common(a, b)

        assert pairs is not None
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(x[0] < y[0] and x[1] < y[1] for x, y in pairwise(pairs))
        assert len(pairs) == longest(a, b)


def test_the_search_gives_up_in_time() -> None:
    assert common(list(range(MOST_APART)), list(range(MOST_APART, 3 * MOST_APART))) is None


def test_ten_thousand_layers_of_which_some_are_gone() -> None:
    layers: list[Layer] = list(comparison("agrees", 10_000).layers)
    after = [replace(x, value=f"t{x.index}") for x in layers[:4000] + layers[4300:]]

    assert len(pair_layers(layers, after).pairs) == 9700
