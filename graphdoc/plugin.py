"""The pytest plugin: hooks and the fixture ``graphdoc``. The work is done in :mod:`graphdoc.plugin_check`.

Nothing is imported, read or computed here until a test asks for it: every pytest run of every project that
has graphdoc installed passes through this module.
"""

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graphdoc.plugin_check import Checker

_PROPERTY = "graphdoc"
_SUFFIX = ".graphdoc.toml"
_MARKER = (
    "graphdoc(runner=…, seed=…, taps=…, shapes=…, tolerances=…): what holds for all checks and comparisons "
    "of a test unless they say otherwise"
)


class Options:
    """What the command line asks for.

    update: write baselines. report: folder for HTML pages, None for the project's setting.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.update = bool(config.getoption("graphdoc_update"))
        report = config.getoption("graphdoc_report")
        self.report: Path | None = config.invocation_params.dir / report if report else None


OPTIONS = pytest.StashKey[Options]()
FAILURE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--graphdoc-update`` and ``--graphdoc-report``."""
    group = parser.getgroup("graphdoc", "graphdoc: ONNX models")
    group.addoption(
        "--graphdoc-update",
        action="store_true",
        help="write the baselines that are missing, and those layers that no longer agree",
    )
    group.addoption(
        "--graphdoc-report",
        metavar="DIR",
        default=None,
        help="write an HTML report of every comparison that fails into DIR",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the options and register the marker."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[OPTIONS] = Options(config)


@pytest.fixture
def graphdoc(request: pytest.FixtureRequest) -> "Checker":
    """Compare ONNX models: ``graphdoc.check(model)`` with a baseline, ``graphdoc.compare(ref, test)``."""
    from graphdoc.plugin_check import Checker

    return Checker(request.node, request.node.path)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect ``*.graphdoc.toml``."""
    if not file_path.name.endswith(_SUFFIX):
        return None
    from graphdoc.plugin_files import GraphdocFile

    return GraphdocFile.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the verdict's sentence, without the exception's name, into the line of the short summary."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.failed and crash is not None and FAILURE in item.stash:
        crash.message = item.stash[FAILURE]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one line: how many models and layers were compared and how they came out."""
    results = [
        json.loads(result)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, result in report.user_properties
        if name == _PROPERTY
    ]
    if results:
        from graphdoc.plugin_summary import summary, updates

        for line in updates(results):
            terminalreporter.write_line(line)
        terminalreporter.write_line(summary(results))
