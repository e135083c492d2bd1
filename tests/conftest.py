"""What all tests share."""

import os
import pathlib

import pytest
from hypothesis import settings

# The same examples each time: a change is judged by what it does, not by luck. With GRAPHDOC_RANDOM=1 others.
settings.register_profile("steady", derandomize=not os.environ.get("GRAPHDOC_RANDOM"))
settings.load_profile("steady")

pytest_plugins = ["pytester"]

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The repository's folder."""
    return ROOT
