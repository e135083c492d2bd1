"""Tests without code: every table of a ``*.graphdoc.toml`` file is a test.

::

    [detector]                       # held against its baseline
    model = "models/detector.onnx"
    shapes = ["x=1x3x320x480"]

    [export]                         # two models, or two runners, held against each other
    ref = "models/detector.onnx"
    test = "models/detector.fp16.onnx"
    test_runner = "ort"
"""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from graphdoc.config import check_key
from graphdoc.engine.errors import UsageError

_CHECK = ("model", "inputs", "runner", "taps", "shapes", "seed", "tolerances")
_COMPARE = (
    "ref",
    "test",
    "ref_runner",
    "test_runner",
    "inputs",
    "taps",
    "shapes",
    "seed",
    "rtol",
    "atol",
    "tolerances",
)


class GraphdocFile(pytest.File):
    """A file of tests."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one test for each table. Raises CollectError, with the reason, for a file that is wrong."""
        try:
            tables = tomllib.loads(self.path.read_text("utf-8"))
            for name, table in tables.items():
                yield GraphdocItem.from_parent(self, name=name, options=_checked(name, table, self.path.name))
        except UsageError as error:
            raise self.CollectError(str(error)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self.CollectError(f"{self.path.name}: {error}") from error


class GraphdocItem(pytest.Item):
    """One table of a file."""

    def __init__(self, *, options: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = options

    def runtest(self) -> None:
        """Compare as the table says."""
        from graphdoc.plugin_check import Checker

        checker = Checker(self, self.path)
        options = dict(self._options)
        if "model" in options:
            checker.check(options.pop("model"), **options)
        else:
            checker.compare(options.pop("ref"), options.pop("test", None), **options)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return what pytest shows as the test's place."""
        return self.path, None, self.name


def _checked(name: str, table: Any, file: str) -> dict[str, Any]:
    """Return a table's options. Raises UsageError for what cannot be meant."""
    where = f"{file}, [{name}]"
    if not isinstance(table, Mapping):
        raise UsageError(f"'{name}' stands outside a table", where=file, next_step="begin with a line [NAME]")
    if ("model" in table) == ("ref" in table):
        raise UsageError(
            "a test needs either 'model' or 'ref'",
            where=where,
            next_step='model = "m.onnx" checks a baseline, ref = "m.onnx" compares with test or test_runner',
        )
    for key in table:
        check_key(key, list(_CHECK if "model" in table else _COMPARE), where)
    return dict(table)
