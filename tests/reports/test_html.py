"""The page: well formed, self-contained, inert whatever the names, the same bytes for the same result."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import jinja2
import pytest

from graphdoc.reports import files, html, words
from graphdoc.reports.jsonform import from_json, to_json
from tests.reports.pages import Page
from tests.reports.synthetic import OUTCOMES, comparison

MEGABYTE = 1_000_000


def page_of(outcome: str = "differs", layers: int = 20, *, hostile: bool = False) -> Page:
    return Page(html.render_html(comparison(outcome, layers, hostile=hostile)))


def columns_of(page: Page) -> dict:
    return json.loads(page.one(id="columns").content, parse_constant=pytest.fail)


def details_of(page: Page) -> list[dict]:
    lines = page.one(id="details").content.split("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


every_outcome = pytest.mark.parametrize("outcome", OUTCOMES)
plain_and_hostile = pytest.mark.parametrize("hostile", [False, True])


# Form


@every_outcome
@plain_and_hostile
def test_well_formed_with_unique_ids_and_links_that_resolve(outcome, hostile):
    page = page_of(outcome, 40, hostile=hostile)
    ids = [e.get("id") for e in page.elements if e.get("id")]
    assert len(set(ids)) == len(ids)
    for link in page.all("a"):
        assert link.get("href")[0] == "#"
        assert link.get("href")[1:] in ids
    for element in page.elements:
        for name in ("aria-labelledby", "for"):
            assert element.get(name) is None or element.get(name) in ids


@every_outcome
@plain_and_hostile
def test_nothing_is_requested(outcome, hostile):
    """No element, style or script names another place, and the policy forbids it."""
    text = html.render_html(comparison(outcome, 40, hostile=hostile))
    page = Page(text)
    assert not page.all("img") + page.all("iframe") + page.all("object") + page.all("base") + page.all("form")
    for element in page.elements:
        assert element.get("src") is None
        assert element.tag == "a" or element.get("href") in (None, "data:,")
    code = page.one("style").content + page.all("script")[-1].content
    assert not re.search(
        r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttpRequest|import\(", code
    )
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.get("content").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]


def test_only_our_script_may_run():
    page = page_of(hostile=True)
    (script,) = [e for e in page.all("script") if e.get("type") is None]
    digest = base64.b64encode(hashlib.sha256(script.content.encode()).digest()).decode()
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    assert f"script-src 'sha256-{digest}'" in policy.get("content")


@every_outcome
def test_hostile_names_add_no_markup(outcome):
    """The elements and their attributes are those of a page with tame names, the text aside."""
    tame, wild = page_of(outcome, 48), page_of(outcome, 48, hostile=True)
    assert not wild.comments
    assert {e.tag for e in wild.elements} == {e.tag for e in tame.elements}
    assert len(wild.all("script")) == len(tame.all("script"))
    for element in wild.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"]


@every_outcome
def test_hidden_characters_are_shown(outcome):
    text = html.render_html(comparison(outcome, 40, hostile=True))
    text.encode("utf-8")
    bare = re.sub(r"<script>.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)
    for character in set(bare) - {"\n"}:
        assert words.visible(character) == character


def test_the_script_sets_text_as_text():
    for name in html.SCRIPTS:
        source = (html.TEMPLATES / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", source
        )


@pytest.mark.parametrize("name", html.SCRIPTS)
def test_the_script_parses(name):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    subprocess.run([node, "--check", str(html.TEMPLATES / name)], check=True, timeout=60, capture_output=True)


# Content


def test_the_verdict_and_the_worst_layers_need_no_script():
    page = page_of()
    assert page.one("h1").content == "Differs from #17 of 20 on; B is wrong, by this layer's own error"
    assert page.one("p", class_="verdict").content == "✗ Differs"
    assert [e.content for e in page.all("dt")][:4] == [
        "Layers that differ", "Own error at #17", "Error at the output", "Latency",
    ]  # fmt: skip
    assert [e.content for e in page.all("dd", class_="big")] == ["3 of 20", "0.81", "0.81", "≈ same"]
    rows = page.all("tr", data_layer="17")
    assert rows[0].content == "#17Div/encoder/layers.1/block.5/Div0.81237 ×0.0016✗ own error"
    commands = [e.content for e in page.all("pre")]
    assert commands[0].endswith("--keep '/encoder/layers.1/block.5/Div'")
    assert commands[-1] == "graphdoc compare encoder.onnx encoder.w16.onnx --test engine --seed 0"
    for section in ("depth", "layers"):
        assert "needs-script" in page.one("section", id=section).get("class")


def test_facts_stand_under_their_headings_in_order():
    page = page_of()
    headings = [e.content for e in page.all("dt")][4:]
    assert headings[:5] == ["What differs", "Where it starts", "Whose fault", "Why", "How sure"]


def test_provenance_says_with_what_and_what_was_left_out():
    text = page_of().one("section", id="provenance").content
    for part in (
        "encoder.onnx, 4.75 MB", "1 thread, optimisations off for taps", "served by others",
        "tapped and untapped outputs differ by at most 1.7e-4", "not measured", "NonMaxSuppression",
        "x float32 1×3×320×480", "1f047edf16847838", "5: B folds it into a constant", "shape_0",
        "seed", "AVX-512",
    ):  # fmt: skip
        assert part in text


def test_nothing_compared_has_no_charts():
    page = page_of("nothing")
    assert page.one("h1").content.startswith("Nothing was compared")
    assert not page.all(id="columns") + page.all(id="layers") + page.all(id="depth")
    assert "No layer was compared" not in page.one("h1").content


def test_what_was_not_measured_is_left_out():
    page = page_of("outputs only", 20)
    assert not page.all(id="time-chart")
    columns = columns_of(page)
    assert all(columns[name] is None for name in ("own", "ownLimit", "inherited", "truthA", "timeA", "timeB"))
    assert "what is a layer's own was not measured" in page.one("section", id="worst").content


@every_outcome
@plain_and_hostile
def test_no_python_value_shows_through(outcome, hostile):
    text = re.sub(
        r"<script.*?</script>",
        "",
        html.render_html(comparison(outcome, 20, hostile=hostile)),
        flags=re.DOTALL,
    )
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|Undefined|<__|Status\.|Kind\.", text)


def test_columns_hold_every_layer():
    result = comparison("differs", 60)
    columns = columns_of(Page(html.render_html(result)))
    assert columns["count"] == 60
    assert columns["first"] == result.verdict.first
    for layer in result.layers:
        n = layer.index
        assert columns["name"][n] == layer.node
        assert columns["value"][n] == "=" + layer.value.removeprefix(layer.node)
        assert columns["op"]["texts"][columns["op"]["at"][n]] == layer.op
        assert columns["statuses"][columns["status"][n]][0] == layer.status
        assert columns["inputs"][n] == list(layer.inputs)
        assert words.number(columns["own"][n]) == words.number(layer.own_error)
        assert words.times(columns["ofLimit"][n]) == words.times(layer.of_limit)


def test_not_finite_figures_are_named():
    columns = columns_of(page_of("nan", 20))
    assert columns["error"][10] == "Infinity"
    assert columns["ownLimit"][10] is not None


def test_details_hold_metrics_and_reasons():
    (row,) = [row for row in details_of(page_of()) if row["i"] == 17]
    assert row["limit"].startswith("4 × the noise of")
    assert row["metrics"]["worst"] == [0, 4, 17, 23]
    assert row["metrics"]["size"] == 76800


def test_the_layers_that_matter_have_details_in_a_large_model():
    page = page_of("differs", 10_000)
    kept = {row["i"] for row in details_of(page)}
    assert len(kept) >= 500
    assert {8998, 8999, 9999} <= kept


# Size, sameness, files


@plain_and_hostile
def test_ten_thousand_layers_fit_into_three_megabytes(hostile):
    text = html.render_html(comparison("differs", 10_000, hostile=hostile))
    assert len(text.encode()) <= 3 * MEGABYTE


PRINT_DIGEST = """
import hashlib
from graphdoc.reports import html, jsonform, junit, markdown, text
from tests.reports.synthetic import comparison
c = comparison("differs", 60, hostile=True)
forms = [html.render_html(c), jsonform.to_json(c), junit.render_junit(c), markdown.render_markdown(c)]
forms.append(text.comparison_lines(c, color=True, pipe=False))
print(hashlib.sha256("|".join(forms).encode()).hexdigest())
"""


def test_the_same_result_gives_the_same_bytes(root):
    """Whatever the process: hash order plays no part."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            cwd=root,
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_result_read_from_json_gives_the_same_page():
    result = comparison("differs", 40, hostile=True)
    assert html.render_html(from_json(to_json(result))) == html.render_html(result)


def test_save_writes_the_page(tmp_path):
    result = comparison()
    html.save_html(result, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html.render_html(result)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        html.save_html(comparison(), path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        html.save_html(comparison(), tmp_path / "no" / "report.html")


def test_the_template_may_not_use_what_is_not_there():
    with pytest.raises(jinja2.UndefinedError):
        html.environment().from_string("{{ missing }}").render()


def test_text_is_escaped_in_attributes_too():
    template = html.environment().from_string('<a title="{{ name }}">{{ name }}</a>')
    assert (
        template.render(name="\"<'\u202e") == '<a title="&#34;&lt;&#39;⟨U+202E⟩">&#34;&lt;&#39;⟨U+202E⟩</a>'
    )


# In a browser


def run_in_browser(result, tmp_path) -> Page:
    """Return the page as Chromium leaves it after the script ran."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium to run the page's script in")
    path = tmp_path / "report.html"
    html.save_html(result, path)
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1280,900",
    ]
    done = subprocess.run([browser, *options, "--dump-dom", path.as_uri()], capture_output=True, timeout=120)
    if not done.stdout:
        pytest.skip("Chromium does not start here")
    return Page(done.stdout.decode("utf-8"))


@pytest.mark.parametrize("outcome", ["differs", "nan", "outputs only"])
def test_the_script_draws_table_charts_and_detail(outcome, tmp_path):
    """Hostile names end as text: no element comes from them, and the selected layer is the verdict's."""
    result = comparison(outcome, 300, hostile=True)
    page = run_in_browser(result, tmp_path)
    assert page.one("html").get("class") == ""
    rows = page.all("div", class_="row")
    assert 10 < len(rows) < 80
    assert page.one(id="grid-count").content.startswith(f"300 layers, {len(result.differing)} differ")
    chosen = result.verdict.first if result.verdict.first is not None else result.worst(1)[0].index
    heading = page.one(class_="detail-head").content
    assert heading.startswith(f"#{chosen} ")
    assert words.status(result.layers[chosen]) in heading
    assert len(page.one(id="depth-chart").content) > 20
    assert not page.all("img")
    assert len(page.all("script")) == 3


def test_a_page_without_layers_runs_too(tmp_path):
    page = run_in_browser(comparison("nothing"), tmp_path)
    assert page.one("html").get("class") == ""


# Results of any kind


def test_extreme_values_render():
    """Layers without anything, empty names, limits of 0, negative and huge figures."""
    result = comparison("differs", 20)
    bare = [
        replace(result.layers[n], metrics=None, limit=None, own_limit=None, shape=None, dtype="")
        for n in range(3)
    ]
    odd = [
        replace(result.layers[n], node="", value="", op="", error=-1.0, own_error=1e300) for n in range(3, 6)
    ]
    huge = [
        replace(result.layers[n], shape=(10**30,), time_a=1e9, time_b=0.0, occurrences=10**12)
        for n in range(6, 9)
    ]
    page = Page(html.render_html(replace(result, layers=(*bare, *odd, *huge, *result.layers[9:]))))
    assert columns_of(page)["name"][3] == "(no name)"


def test_the_script_draws_the_pictures_of_a_layer(tmp_path):
    """Histograms, powers of two with the share near the dtype's ends, the heat map and its strongest cell."""
    result = comparison("differs", 20)
    cells = "".join(result.layers[17].picture.heat.cells)
    equal = words.number(100 * cells.count(".") / len(cells), 3)
    page = run_in_browser(result, tmp_path)
    drawn = {e.get("aria-label") for e in page.all("svg", role="img")}
    assert {
        "histogram of both sides from −3.50 to 4.25",
        "powers of two of both sides, and what fp16 holds",
        f"heat map of |B − A|, largest 2.9, {equal} % of the cells are equal",
    } <= drawn
    text = page.one(id="detail").content
    assert "near overflow0 %1 %near underflow0.01 %0 %subnormal25 %0 %" in text
    assert "Strongest at axis 2 at" in text
    assert "Of 65 536 elements, evenly spaced. 3 mask values are left out." in text
    assert page.one(id="grid-body").get("aria-activedescendant") == "row-17"
