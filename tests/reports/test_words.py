"""Numbers, names and symbols, and that the page's script formats as Python does."""

import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoc.compare.result import SYMBOLS, Latency, Skip
from graphdoc.reports import html, layerdata, words
from tests.reports.synthetic import HOSTILE, comparison

NUMBERS = [
    (0, "0"),
    (0.81, "0.81"),
    (1.0, "1.0"),
    (9.8e-4, "9.8e-4"),
    (0.0016, "0.0016"),
    (0.022, "0.022"),
    (826.4, "826"),
    (65504, "65 504"),
    (1.1e6, "1.1e6"),
    (0.125, "0.13"),
    (-3.21, "−3.2"),
    (float("inf"), "inf"),
    (float("-inf"), "−inf"),
    (float("nan"), "nan"),
    (None, "–"),
]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_errors_have_two_digits(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03, "30.0 ms"), (1.02, "1.02 s"), (385e-6, "385 µs"), (0.9996, "1.00 s"), (0, "0 s"), (None, "–")],
)
def test_durations_have_three_digits_and_a_unit(value, text):
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (2100, "2.10 kB"), (4_750_000, "4.75 MB"), (None, "–")]
)
def test_sizes_have_three_digits_and_a_unit(value, text):
    assert words.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.153, "15.3 %"), (0.02, "2 %"), (1, "100 %"), (None, "–")])
def test_shares_are_percent(value, text):
    assert words.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [((1, 24, 80), "1×24×80"), ((), "scalar"), (None, "–")])
def test_shapes(value, text):
    assert words.shape(value) == text


def test_every_symbol_has_an_ascii_form_and_a_colour():
    assert set(SYMBOLS.values()) <= set(words.ASCII_SYMBOLS)
    assert set(SYMBOLS.values()) <= set(words.COLORS)


# Foreign text


@given(st.text(st.characters(exclude_categories=[]), max_size=60))
def test_visible_text_breaks_no_row_and_can_be_encoded(text):
    """What comes out has one line, no control or bidi character, and is valid UTF-8."""
    shown = words.visible(text)
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", shown)
    assert words.visible(shown) == shown


def test_hidden_characters_are_named():
    assert words.visible("a\u202eb\nc") == "a⟨U+202E⟩b⟨U+000A⟩c"


@given(st.text(max_size=80), st.integers(1, 40))
def test_shortened_text_fits(text, width):
    shown = words.shorten(text, width)
    assert words.cells(shown) <= width
    assert words.shorten(shown, width) == shown
    assert shown == text or "…" in shown


def test_the_end_of_a_name_stays():
    assert words.shorten("p2o.BatchNormalization.1", 14) == "p2o.…ization.1"


def test_wide_characters_take_two_columns():
    assert words.cells("層a") == 3
    assert words.cells(words.shorten("層" * 30, 20)) <= 20


@given(st.text(max_size=40))
def test_ascii_form_is_ascii(text):
    assert words.ascii_only(text).isascii()


def test_references_to_layers_are_found_where_the_layer_exists():
    parts = words.link_parts("from #3 on, not #30", 10)
    assert parts == (("from ", None), ("#3", 3), (" on, not #30", None))
    assert "".join(text for text, _ in parts) == "from #3 on, not #30"


# The result in words


def test_first_divergence_is_always_among_the_worst():
    result = comparison("remark", 40)
    rows = words.worst_rows(result, 1)
    assert [row.index for row in rows] == [result.verdict.first]


def test_values_left_out_are_counted_and_given_their_reason():
    result = comparison("differs", 20)
    assert dict(words.facts(result))["skipped"] == (
        "6 values were not compared: B folds it into a constant (5), A has no value of this name (1)"
    )


def test_a_skipped_layer_counts_as_left_out_once():
    result = comparison("one side", 4)
    assert len(result.skipped) == 2
    reasons = dict(words.skip_reasons(result))
    assert len(reasons["B did not get here"]) == 2


def test_a_fact_of_the_verdict_about_skips_is_not_doubled():
    result = comparison("agrees", 4)
    assert not result.skipped
    assert "skipped" not in dict(words.facts(result))
    assert Skip(value="x", reason="y")  # the type the reasons come from


@pytest.mark.parametrize(
    ("b", "text"),
    [
        (Latency(median=1.02, low=1.0, high=1.1, runs=9), "≈ same"),
        (Latency(median=1.5, low=1.04, high=1.6, runs=9), "not clear"),
        (Latency(median=1.5, low=1.4, high=1.6, runs=9), "1.50 × A"),
        (None, "–"),
    ],
)
def test_latency_is_called_different_only_when_the_runs_part(b, text):
    a = Latency(median=1.0, low=0.98, high=1.05, runs=9)
    assert words.latency_change(a, b) == text


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("differs", "Differs from #17 of 20 on; B is wrong, by this layer's own error"),
        ("agrees", "20 of 20 layers agree within float32 rounding"),
        ("ties", "Agrees up to ties: #19 TopK picks another index among equal values, 3 of 12 times"),
    ],
)
def test_headline_stands_alone(outcome, text):
    assert words.headline(comparison(outcome, 20)) == text


# The page's script


def script_results(values: list[float], tmp_path) -> list[list[str]]:
    """Return what the script makes of numbers: number, number with 3 digits, seconds, percent."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    core = (html.TEMPLATES / "core.js").read_text(encoding="utf-8")
    part = core[core.index("// Words") : core.index("// Elements")]
    call = (
        "values.map((v) => [number(v), number(v, 3), seconds(Math.abs(v)), percent(Math.abs(v)), times(v)])"
    )
    program = tmp_path / "words.mjs"
    program.write_text(
        f"const values = {json.dumps(values)};\n{part}\nconsole.log(JSON.stringify({call}));", "utf-8"
    )
    result = subprocess.run([node, str(program)], capture_output=True, check=True, timeout=60)
    return json.loads(result.stdout)


def test_the_script_formats_as_python_does(tmp_path):
    values = [v for v, _ in NUMBERS if v is not None and v == v and abs(v) != float("inf")]
    values += [
        s * m * 10.0**e
        for e in range(-12, 9)
        for m in (1, 1.25, 2.5, 4.449, 9.949, 9.951, 9.9951)
        for s in (1, -1)
    ]
    expected = [
        [
            words.number(v),
            words.number(v, 3),
            words.seconds(abs(v)),
            words.percent(abs(v)),
            words.times(v),
        ]
        for v in values
    ]
    assert script_results(values, tmp_path) == expected


@given(st.floats(min_value=0, allow_infinity=True))
def test_shortened_figures_still_show_the_same_digits(value):
    """Rounding for the file, then for the eye, gives what rounding once gives."""
    short = layerdata._short(value, 2)
    assert words.number(float(short)) == words.number(value)


def test_hostile_names_are_many_kinds():
    assert any("</script>" in name for name in HOSTILE)
    assert any(len(name) >= 10_000 for name in HOSTILE)
