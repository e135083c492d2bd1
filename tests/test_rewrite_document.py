"""docs/rewrite.md is run, with the output it shows."""

import pathlib

import pytest

from graphdoc.surgeon.rules import assemble
from tests import documents, sources
from tests.test_documents import folder as folder
from tests.test_documents import graphdoc

PAGE = sources.ROOT / "docs" / "rewrite.md"


def test_the_page_runs(folder: pathlib.Path) -> None:
    """Every step of it."""
    assert documents.run_document(PAGE, graphdoc) >= 7


@pytest.mark.parametrize("target", sorted({rule.target for rule in assemble.rules()}))
def test_the_page_names_what_can_be_put_together(target: str) -> None:
    """A rule that is added is listed."""
    assert target in PAGE.read_text("utf-8")
