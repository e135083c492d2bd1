"""docs/sweeps.md and docs/ci.md are run, with the output they show."""

import pathlib

import pytest

from tests import documents, sources
from tests.test_documents import folder as folder
from tests.test_documents import graphdoc


@pytest.mark.parametrize(("page", "steps"), [("sweeps.md", 6), ("ci.md", 4)])
def test_the_page_runs(page: str, steps: int, folder: pathlib.Path) -> None:
    """Every step of it."""
    assert documents.run_document(sources.ROOT / "docs" / page, graphdoc) >= steps
