"""README and docs: what they show is run, what they link to is there."""

import io
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import onnx
import pytest

from graphdoc import cli, demo
from tests import documents, sources
from tests.graphdoc import small_models

PAGES = [
    *sorted(sources.ROOT.glob("*.md")),
    *sorted((sources.ROOT / "docs").glob("*.md")),
]


def graphdoc(arguments: list[str]) -> tuple[int, str]:
    """Run the command line in this process; return exit code and what it printed."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(shown), redirect_stderr(shown):
        code = cli.run(arguments)
    return code, shown.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    os.chdir(sources.ROOT)


def spoil(path: pathlib.Path, target: pathlib.Path, node_name: str) -> None:
    """Write a model with the slope of one HardSigmoid changed."""
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.name == node_name)
    next(a for a in node.attribute if a.name == "alpha").f = 1 / 6
    onnx.save(model, target)


def test_the_readme_runs_on_a_small_model(folder: pathlib.Path) -> None:
    """Every command and Python block ends as it says; a small detector stands in for the real one."""
    onnx.save(small_models.detector(), folder / "det.onnx")
    spoil(folder / "det.onnx", folder / "exported.onnx", "squash")

    assert documents.run_document(sources.ROOT / "README.md", graphdoc, outputs=False) >= 9
    assert (folder / "report.html").exists()
    assert (folder / "values.npz").exists()
    assert (folder / "test_det.baselines").is_dir()


def test_the_page_of_the_engine_runs_on_a_small_model(folder: pathlib.Path) -> None:
    """Level 1, a benchmark, a plan."""
    onnx.save(small_models.detector(), folder / "det.onnx")

    assert documents.run_document(sources.ROOT / "docs" / "engine.md", graphdoc, outputs=False) >= 6
    assert (folder / "det.plan").exists()


@pytest.mark.skipif(
    demo.cached() is None, reason="the demo's model is not in the cache: graphdoc demo fetches it"
)
def test_the_readme_shows_what_is_printed(folder: pathlib.Path) -> None:
    """On the real model the output is the one shown, numbers aside."""
    shutil.copy(demo.fetch(), folder / "det.onnx")
    spoil(folder / "det.onnx", folder / "exported.onnx", "p2o.HardSigmoid.3")

    documents.run_document(sources.ROOT / "README.md", graphdoc)


def test_the_tutorial_runs(folder: pathlib.Path) -> None:
    """Every step of it, with the output it shows."""
    assert documents.run_document(sources.ROOT / "docs" / "tutorial.md", graphdoc) >= 15


def test_a_document_that_is_wrong_is_found(folder: pathlib.Path) -> None:
    """The checks above can fail: by exit code, by output, by Python."""
    page = folder / "page.md"
    for text in (
        "```console\n$ graphdoc lint none.onnx\n```\n",
        "```console\n$ graphdoc --help   # exits 1\n```\n",
        "```console\n$ graphdoc --help\nUsage: something else\n…\n```\n",
        "```python\nassert False\n```\n",
        "```console\n$ rm -rf somewhere\n```\n",
    ):
        page.write_text(text, "utf-8")
        with pytest.raises(AssertionError):
            documents.run_document(page, graphdoc)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    """Every relative link of a page names a file of the repository."""
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_begins_with_the_two_commands() -> None:
    """``make demo`` and ``make test`` come before anything else, and the Makefile has both."""
    lines = (sources.ROOT / "README.md").read_text("utf-8").split("\n", 6)
    rules = (sources.ROOT / "Makefile").read_text("utf-8")

    assert [line.split("#")[0].strip() for line in lines[2:4]] == ["make demo", "make test"]
    assert {"demo:", "test:", "lint:", "bench:"} <= {
        word for line in rules.splitlines() for word in line.split()[:1]
    }


def test_every_folder_of_the_code_is_described() -> None:
    """docs/architecture.md says what each of the five folders is for."""
    text = (sources.ROOT / "docs" / "architecture.md").read_text("utf-8")

    assert [name for name in sources.FOLDERS if f"{name}/" not in text] == []


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md names every package of pyproject.toml."""
    import tomllib

    project = tomllib.loads((sources.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(p for group in project["optional-dependencies"].values() for p in group),
    ]
    names = {
        re.split(r"[<>=!~\[ ]", each)[0].replace("cupy-cuda12x", "cupy").replace("cupy-cuda13x", "cupy")
        for each in wanted
    }
    text = (sources.ROOT / "docs" / "dependencies.md").read_text("utf-8")

    assert {name for name in names if name not in text} == set()
