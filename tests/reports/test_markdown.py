"""Markdown: gold pieces, and that no name escapes its code span."""

import re
from dataclasses import replace

import pytest

from graphdoc.reports.markdown import MARKER, code, prose, render_markdown
from tests.reports.synthetic import HOSTILE, OUTCOMES, comparison

SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)


def outside_spans(text: str) -> str:
    """Return Markdown without its fenced blocks and code spans."""
    text = re.sub(r"^(`{3,})sh\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return SPAN.sub("", text)


def test_differs():
    text = render_markdown(comparison("differs", 20))
    assert text.startswith(
        f"{MARKER}\n### ✗ graphdoc: `encoder.w16` differs from `#17` on\n\n"
        "Differs from `#17` of 20 on; B is wrong, by this layer's own error\n\n"
        "- **where** `#17` Div `/encoder/layers.1/block.5/Div`\n"
    )
    assert (
        "| # | op | layer | own | of limit | status |\n|--:|----|-------|----:|---------:|--------|\n"
        "| 17 | Div | `/encoder/layers.1/block.5/Div` | 0.81 | 237 × | ✗ own error |\n"
    ) in text
    assert "Latency ≈ same (30.0 ms → 30.6 ms)." in text
    assert (
        "<details><summary>Reproduce</summary>\n\n```sh\n"
        "graphdoc compare encoder.onnx encoder.w16.onnx --test engine --seed 0\n```\n\n</details>\n"
    ) in text


def test_agrees_has_no_table():
    text = render_markdown(comparison("agrees", 20))
    assert "### ✓ graphdoc: `encoder.w16` agrees\n" in text
    assert "| # |" not in text
    assert "20 layers: 20 agree." in text


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_at_most_five_rows(outcome):
    text = render_markdown(comparison(outcome, 200))
    assert sum(line.startswith("| ") and line[2].isdigit() for line in text.splitlines()) <= 5


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_hostile_names_stay_in_code_spans(outcome, name):
    """Outside code nothing is left that could notify, link, format, open HTML or break a row."""
    result = comparison(outcome, 20)
    layers = tuple(replace(layer, node=name, value=name, op=name or "Op") for layer in result.layers)
    side = replace(result.b, model=name)
    verdict = replace(
        result.verdict, facts=(("where", f"#3 Op  {name}"), (name, name)), sentence=f"from {name}"
    )
    text = render_markdown(replace(result, layers=layers, b=side, verdict=verdict, remarks=(name,)))
    rest = outside_spans(text).replace(MARKER, "")
    rest = re.sub(
        r"</?(?:details|summary)>|^### |^> |^- |\*\*|^\|[-:|]+\|$|^\| # ", "", rest, flags=re.MULTILINE
    )
    assert not re.search(r"[@#<>\[\]*_~`\\]", rest)
    assert not re.search(r"https?:|www\.", rest)
    for line in text.splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) == 7
    assert len(text) < 60_000


@pytest.mark.parametrize("name", [name for name in HOSTILE if 0 < len(name) < 100])
def test_a_code_span_shows_exactly_the_name(name):
    from graphdoc.reports.words import visible

    match = SPAN.fullmatch(code(name))
    assert match
    content = match[2]
    if content.startswith(" ") and content.endswith(" ") and content.strip():
        content = content[1:-1]
    assert content == visible(name)


def test_pipes_are_escaped_in_tables_alone():
    assert code("a|b") == "`a|b`"
    assert code("a|b", table=True) == "`a\\|b`"


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("24 of 24 values exceed fp16 (max 65 504): inf", "24 of 24 values exceed fp16 (max 65 504): inf"),
        ("see #12 and @all", "see `#12` and `@all`"),
        ("batch_norm_0.w_2, then", "`batch_norm_0.w_2`, then"),
        ("1. not a list", "`1`. not a list"),
        ("deadbeef1 GH-12", "`deadbeef1` `GH-12`"),
        ("9.8e-4, 0.81; −2.5 1×3×4", "9.8e-4, 0.81; −2.5 1×3×4"),
        (":smile: <b> [x](y)", "`:smile`: `<b>` `[x](y`)"),
    ],
)
def test_only_words_and_numbers_are_plain(sentence, text):
    assert prose(sentence) == text


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_comment_has_less_than_sixty_lines(outcome, hostile):
    """However much there is to say; names with line breaks included."""
    result = comparison(outcome, 300, hostile=hostile)
    many = tuple((f"label\n{n}", "text\nof two lines") for n in range(40))
    verdict = replace(result.verdict, facts=many, next_steps=tuple(("why", "graphdoc\nlint") for _ in many))
    full = replace(result, verdict=verdict, remarks=tuple(f"remark\n{n}" for n in range(99)))
    assert len(render_markdown(result).splitlines()) < 60
    text = render_markdown(full)
    assert len(text.splitlines()) < 60
    assert "94 more" in text
