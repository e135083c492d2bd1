"""The printed form: the verdict first, one screen, nothing hidden, nothing that breaks a row."""

import re
from dataclasses import replace

import pytest

from graphdoc.engine.errors import InputError
from graphdoc.reports import words
from graphdoc.reports.text import comparison_lines, error_lines
from tests.reports.synthetic import HOSTILE, OUTCOMES, comparison

DIFFERS = """\
✗ differs   from #17 of 20 on; B is wrong, by this layer's own error

  where    #17 Div  /encoder/layers.1/block.5/Div
  own      0.81, 826 × its limit of 9.8e-4   (inherited 0.0016)
  why      24 of 24 values of batch_norm_0.w_2 exceed fp16 (max 65 504): inf
  truth    A is 7.6e-7 from float64, B 0.81
  output   /encoder/layers.1/block.6/Softmax_output_0 has error 1.0, limit 0.022
  layers   17 agree, 1 own error, 2 inherited
  repair   with #17 in fp32 all 20 layers agree
  skipped  6 values were not compared: B folds it into a constant (5), A has no
           value of this name (1)

    #  op       layer                                 own  of limit  status
   17  Div      /encoder/layers.1/block.5/Div        0.81     237 ×  ✗ own
    6  Clip     /encoder/layers.0/block.2/Clip     1.8e-4    0.27 ×  ✓ agrees
   19  Softmax  /encoder/layers.1/block.6/Softmax  7.1e-4    0.24 ×  ↳ inherited
    0  Conv     /encoder/layers.0/block.0/Conv     3.4e-5    0.16 ×  ✓ agrees

next
  graphdoc convert encoder.onnx -o fixed.onnx --to fp16 \\
      --keep '/encoder/layers.1/block.5/Div'
  graphdoc reduce encoder.w16.onnx -o bug.onnx --compare encoder.onnx
  graphdoc compare encoder.onnx encoder.w16.onnx -o report.html
"""


def lines(outcome="differs", layers=20, **options):
    made = comparison(outcome, layers, hostile=options.pop("hostile", False))
    return comparison_lines(made, **{"color": False, "pipe": False, **options})


def test_differs_at_80_columns():
    assert lines() == DIFFERS


def test_agrees_is_verdict_and_facts():
    assert lines("agrees") == (
        "✓ agrees   20 of 20 layers agree within float32 rounding\n"
        "\n"
        "  output    /encoder/layers.1/block.6/Softmax_output_0    error 0.0021, limit\n"
        "            0.022\n"
        "  compared  A ort 1.20.0  against  B engine 0.1.0, 1 input, seed 0\n"
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("layers", [20, 330])
def test_a_screen_is_enough(outcome, layers):
    text = lines(outcome, layers)
    assert len(text.splitlines()) <= 24
    assert max(map(words.cells, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_lines_keep_to_the_width(width):
    assert max(map(words.cells, lines(layers=330, width=width).splitlines())) <= max(width, 60)


def test_120_columns_give_more_columns_and_whole_names():
    text = lines(width=140)
    (title,) = (line for line in text.splitlines() if line.lstrip().startswith("#  op"))
    assert re.split(r"\s{2,}", title.strip()) == [
        "#", "op", "layer", "value", "shape", "own", "inherited", "total", "of limit", "status",
    ]  # fmt: skip
    assert "/encoder/layers.1/block.5/Div_output_0" in text
    assert "…" not in text


def test_a_pipe_gets_whole_rows():
    """In a pipe: no wrapping, no shortening, no colour, columns two spaces apart, the same rows."""
    result = comparison("differs", 330)
    long = "/".join(["very_long_name"] * 20)
    layers = tuple(replace(layer, node=long) if layer.index == 296 else layer for layer in result.layers)
    text = comparison_lines(replace(result, layers=layers), color=True, pipe=True)
    assert "\x1b" not in text
    assert "\\\n" not in text
    (row,) = (line for line in text.splitlines() if line.strip().startswith("296"))
    assert re.split(r"\s{2,}", row.strip()) == ["296", "Clip", long, "0.81", "196 ×", "✗ own"]
    wrapped = lines(layers=330)
    assert [x.split()[0] for x in text.splitlines() if re.match(r"\s+\d+  \w", x)] == [
        x.split()[0] for x in wrapped.splitlines() if re.match(r"\s+\d+  \w", x)
    ]


def test_colour_is_on_symbol_and_word_alone():
    text = lines(color=True)
    painted = re.findall(r"\x1b\[\d+m([^\x1b]*)\x1b\[0m", text)
    assert painted == ["✗ differs", "✗ own", "✓ agrees", "↳ inherited", "✓ agrees"]
    assert re.sub(r"\x1b\[\d*m", "", text) == lines()


def test_without_unicode_everything_is_ascii():
    for outcome in OUTCOMES:
        assert lines(outcome, 60, unicode=False, hostile=True).isascii()
    text = lines(unicode=False)
    assert text.startswith("FAIL differs   from #17")
    assert "ok agrees" in text
    assert "from inherited" in text
    assert "826 x its limit" in text


@pytest.mark.parametrize("pipe", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_hostile_names_stay_in_their_row(outcome, pipe):
    """No control or bidi character comes out, and a name with newlines adds no line."""
    text = lines(outcome, 40, hostile=True, pipe=pipe, verbose=True)
    for character in text.replace("\n", ""):
        assert words.visible(character) == character
    if outcome != "nothing":
        rows = [line for line in text.splitlines() if re.match(r"^ +\d+  (?!values)\S", line)]
        assert len(rows) >= 40


def test_quiet_is_the_verdict_alone():
    assert lines(quiet=True) == "✗ differs   from #17 of 20 on; B is wrong, by this layer's own error\n"


def test_verbose_lists_every_layer_in_order():
    text = lines(layers=60, verbose=True)
    numbers = [int(m[1]) for m in re.finditer(r"^ +(\d+)  \S", text, re.MULTILINE)]
    assert numbers[-60:] == list(range(60))


def test_the_first_divergence_is_a_row_even_when_it_is_not_among_the_worst():
    result = comparison("differs", 60)
    first = result.layers[53]
    calm = replace(first, own_error=1e-9)
    layers = tuple(calm if layer.index == 53 else layer for layer in result.layers)
    text = comparison_lines(replace(result, layers=layers), color=False, pipe=False)
    assert re.search(r"^   53  ", text, re.MULTILINE)


def test_unknown_values_are_dashes():
    text = lines("nan", 60)
    assert re.search(r"–\s+inf ×  ∅ NaN or Inf$", text, re.MULTILINE)
    assert "None" not in text


def test_a_command_is_folded_where_it_can_be_pasted():
    """Quoted arguments stay whole and an option keeps its value."""
    folded = lines().split("next\n")[1].splitlines()
    assert folded[0].endswith(" \\")
    joined = " ".join(line.strip().removesuffix(" \\") for line in folded[:2])
    assert joined == comparison("differs", 20).verdict.next_steps[0][1]


def test_error_names_cause_place_and_next_step():
    error = InputError("bad\nname '\u202ex'", where="x", next_step="graphdoc inspect m.onnx")
    assert error_lines(error) == (
        "✗ bad⟨U+000A⟩name '⟨U+202E⟩x'\n  where  x\n  next   graphdoc inspect m.onnx\n"
    )
    assert error_lines(error, unicode=False).startswith("FAIL bad<U+000A>name")
    assert error_lines(error, color=True).startswith("\x1b[31m✗\x1b[0m bad")


def test_names_of_ten_thousand_characters_do_not_flood_the_screen():
    result = comparison("differs", 20)
    facts = (("where", f"#17 Div  {HOSTILE[13]}"),)
    text = comparison_lines(
        replace(result, verdict=replace(result.verdict, facts=facts)), color=False, pipe=False
    )
    assert len(text) < 3000
