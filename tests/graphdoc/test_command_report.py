"""``graphdoc report diff``: what is printed, written and returned; files that are no results are refused."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from graphdoc import cli
from graphdoc.reports.jsonform import to_json
from tests.reports.synthetic import comparison


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own with two results: ``good.json`` agrees, ``bad.json`` differs."""
    monkeypatch.chdir(tmp_path)
    for name, outcome in (("good", "agrees"), ("bad", "differs")):
        (tmp_path / f"{name}.json").write_text(to_json(comparison(outcome)), encoding="utf-8")
    return tmp_path


def diff(*arguments: str) -> int:
    return cli.run(["report", "diff", *arguments])


@pytest.mark.parametrize(
    ("files", "code", "start"),
    [
        (("good.json", "good.json"), 0, "✓ same   20 of 20 layers are as before\n"),
        (("good.json", "bad.json"), 1, "✗ worse   3 layers, the first at #17 Div: agrees → own error\n"),
        (("bad.json", "good.json"), 0, "✓ better   3 of 20 layers, none worse\n"),
    ],
)
def test_the_answer_comes_first(
    files: tuple[str, str], code: int, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(*files) == code
    assert capsys.readouterr().out.startswith(start)


def test_all_forms_at_once(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page, the JSON and the comment; the same files give the same bytes."""
    wanted = ("-o", "d.html", "--json", "d.json", "--markdown", "d.md")
    assert diff("good.json", "bad.json", *wanted) == 1
    first = [(folder / name).read_bytes() for name in ("d.html", "d.json", "d.md")]
    assert diff("good.json", "bad.json", *wanted) == 1

    assert [(folder / name).read_bytes() for name in ("d.html", "d.json", "d.md")] == first
    assert json.loads(first[1])["counts"]["worse"] == 3
    assert first[2].startswith(b"<!-- graphdoc:report-diff -->\n### ")
    assert str(folder).encode() not in b"".join(first)


def test_stdout_holds_only_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert diff("good.json", "bad.json", "--json", "-") == 1
    assert json.loads(capsys.readouterr().out)["worse"] is True


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(comparison("agrees", 4))), **changes})


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [
        (None, 3, "No such file"),
        (b"", 3, "Expecting value"),
        (b"<!doctype html>", 3, "Expecting value"),
        (b"\xff\xfe{\x00", 3, "not UTF-8"),
        (b"[1, 2]", 3, "expected an object"),
        (document()[:-200].encode(), 3, "not a comparison in JSON"),
        (document(schema="graphdoc.comparison/99").encode(), 3, "expected 'graphdoc.comparison/1'"),
        (document(schema="graphdoc.sweep/1").encode(), 3, "expected 'graphdoc.comparison/1'"),
        (document(verdict=None).encode(), 3, "verdict"),
        (document(layers=[{"index": 7}]).encode(), 3, "layers[0]"),
    ],
    ids=["missing", "empty", "html", "utf16", "list", "cut", "newer", "sweep", "null", "layer"],
)
def test_what_is_no_result_is_refused(
    content: bytes | None, code: int, part: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On either side; the message names the file and, inside it, the place. No traceback."""
    if content is not None:
        (folder / "x.json").write_bytes(content)
    for files in (("x.json", "good.json"), ("good.json", "x.json")):
        assert diff(*files) == code
        shown = capsys.readouterr()
        assert shown.out == ""
        assert part in shown.err
        assert "x.json" in shown.err
        assert "\n  next   " in shown.err
        assert "Traceback" not in shown.err


def test_a_folder_and_missing_arguments(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "results").mkdir()

    assert diff("results", "good.json") == 3
    assert diff("good.json") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_result_is_never_written_over(folder: pathlib.Path) -> None:
    before = (folder / "good.json").read_bytes()

    assert diff("good.json", "bad.json", "--json", "good.json") == 2
    assert diff("good.json", "bad.json", "-o", "no/such/folder.html") == 3
    assert (folder / "good.json").read_bytes() == before


def test_nothing_in_common_is_a_failure(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two results that share no layer are not "the same"."""
    good = comparison("agrees", 4)
    half = [tuple(dataclasses.replace(x, index=0, inputs=()) for x in good.layers[n : n + 1]) for n in (0, 1)]
    for name, layers in zip("xy", half, strict=True):
        (folder / f"{name}.json").write_text(
            to_json(dataclasses.replace(good, layers=layers)), encoding="utf-8"
        )

    assert diff("x.json", "y.json") == 5
    assert "no layer is in both results" in capsys.readouterr().err


def test_hostile_names_are_shown_as_text(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names with control characters, markup and 10 kB from a file anybody may have written."""
    hostile = comparison("differs", 32, hostile=True)
    hostile = dataclasses.replace(hostile, environment={"<b>\x1b[31m": "\u202e"})
    (folder / "h.json").write_text(to_json(hostile), encoding="utf-8")
    good = dataclasses.replace(comparison("agrees", 32, hostile=True), environment={})
    (folder / "g.json").write_text(to_json(good), encoding="utf-8")

    assert diff("g.json", "h.json", "-o", "d.html", "-v") == 1
    shown = capsys.readouterr().out + (folder / "d.html").read_text("utf-8")
    assert not {"\x1b", "\u202e", "\x00"} & set(shown)
    assert "<script" not in shown.lower().replace("</script><script>alert(1)</script>", "")
