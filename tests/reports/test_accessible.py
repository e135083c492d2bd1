"""What a page must have for keyboards, screen readers and weak eyes, checked without a browser.

A checker in a browser (axe-core) found no fault in pages of all outcomes; what it looked at that can be seen
in the source stands here, so that it stays so.
"""

import re
from itertools import pairwise

import pytest

from graphdoc.reports import html
from tests.reports.pages import Element, Page
from tests.reports.synthetic import OUTCOMES, comparison

STYLE = html.source("report.css")

every_outcome = pytest.mark.parametrize("outcome", OUTCOMES)


def page_of(outcome: str = "differs") -> Page:
    return Page(html.render_html(comparison(outcome, 60, hostile=True)))


# Colours


def colours(theme: str) -> dict[str, tuple[float, ...]]:
    """Return the colours of a theme as shares of red, green and blue."""
    start = {"light": ":root {", "dark": ':root[data-theme="dark"] {'}[theme]
    block = STYLE[STYLE.index(start) :].split("}", 1)[0]
    return {name: rgb(code) for name, code in re.findall(r"--([a-z]+): (#[0-9a-f]{3,6})\b", block)}


def rgb(code: str) -> tuple[float, ...]:
    digits = code[1:] if len(code) == 7 else "".join(2 * digit for digit in code[1:])
    return tuple(int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4))


def luminance(colour: tuple[float, ...]) -> float:
    """Return the relative luminance of WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: tuple[float, ...], ground: tuple[float, ...], opacity: float) -> tuple[float, ...]:
    return tuple(opacity * c + (1 - opacity) * g for c, g in zip(colour, ground, strict=True))


TEXTS = ("ink", "mute", "bad", "inherited", "ok", "warn", "mark")
GROUNDS = ("back", "panel", "hover", "chosen")
DRAWN = ("own", "inherited", "a", "b", "stroke", "bad", "ink")


def test_the_measure_is_that_of_the_guideline():
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)
    assert contrast(rgb("#777"), rgb("#fff")) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_lies_behind_it(theme):
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    found = colours(theme)
    weak = {(t, g): contrast(found[t], found[g]) for t in TEXTS for g in GROUNDS}
    weak["mute", "limit"] = contrast(found["mute"], over(found["limit"], found["panel"], 0.55))
    for side in "ab":  # the labels of slow layers lie on the bar of their side
        weak["panel", side] = contrast(found["panel"], found[side])
    assert {pair: round(value, 2) for pair, value in weak.items() if value < 4.5} == {}
    assert "opacity" not in html.source("latency.js")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_drawn_stands_out(theme):
    """WCAG 2.2, 1.4.11: at least 3 to 1."""
    found = colours(theme)
    weak = {name: contrast(found[name], found["panel"]) for name in (*DRAWN, "focus")}
    assert {name: round(value, 2) for name, value in weak.items() if value < 3} == {}


def test_both_dark_themes_are_one():
    """The one that the system asks for, and the one that the button chooses."""
    first, second = (block.split("}", 1)[0] for block in STYLE.split("color-scheme: dark;")[1:3])
    assert first.split() == second.split()


def test_colours_come_from_the_theme_alone():
    for name in (*html.SCRIPTS, "report.css"):
        text = html.source(name)
        body = text[text.index("* { box-sizing") :] if name == "report.css" else text
        body = body.split("@media print")[0]
        assert not re.search(r"#[0-9a-fA-F]{3,6}\b(?!\w)[;\"' ]|rgb\(|hsl\(", body), name


# Structure


@every_outcome
def test_one_main_heading_and_no_level_is_left_out(outcome):
    levels = [int(e.tag[1]) for e in page_of(outcome).elements if re.fullmatch(r"h[1-6]", e.tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@every_outcome
def test_what_can_be_operated_has_a_name(outcome):
    for element in page_of(outcome).elements:
        if element.tag in ("a", "button", "input", "select", "summary") and element.get("id") != "time-more":
            assert (element.get("aria-label") or element.content).strip(), element


@every_outcome
def test_regions_and_tables_have_names(outcome):
    page = page_of(outcome)
    ids = {e.get("id"): e for e in page.elements}
    for section in page.all("section"):
        assert ids[section.get("aria-labelledby")].content.strip()
    for head in page.all("th"):
        assert head.content.strip()
        assert head.get("scope") in ("col", "row"), head
    for element in page.elements:
        if element.get("role") in ("grid", "region", "slider", "search", "group", "img"):
            assert element.get("role") == "search" or element.get("aria-label"), element


def test_the_grid_has_only_rows():
    """ARIA 1.2: a grid owns rows and groups of rows; what takes the focus is the grid."""
    text = html.render_html(comparison("differs", 60))
    grid = re.search(r'<div[^>]*id="grid-body".*?</div></div>', text)[0]
    assert re.findall(r'role="(\w+)"', grid) == ["grid", "row", "rowgroup"]
    assert 'tabindex="0"' in grid.split(">")[0]


def test_the_page_can_be_skipped_and_says_its_language():
    page = page_of()
    first = next(e for e in page.elements if e.tag in ("a", "button"))
    assert first.get("class") == "skip"
    assert page.one("html").get("lang") == "en"
    assert page.one("meta", name="viewport").get("content") == "width=device-width, initial-scale=1"


def focusable(element: Element) -> bool:
    return element.tag in ("a", "button", "input", "select", "summary") or element.get("tabindex") == "0"


def test_no_order_of_its_own_for_the_tab_key():
    values = {e.get("tabindex") for e in page_of().elements} - {None}
    assert values <= {"0", "-1"}
    assert sum(map(focusable, page_of().elements)) > 10
