"""Promises about the source itself: the direction of imports, packaging, sizes, no traces of a machine."""

import ast
import pathlib
import re
import statistics
import tomllib
from collections.abc import Iterator

import pytest

from tests import sources

_FRONT = 0
"""Position of the front door among the folders: everything of graphdoc that is not a lower package."""

_MACHINE = re.compile(
    r"/(?:root|work|Users)/\w|/home/(?!user\b)\w|/tmp/[m]odels|[A-Z]:\\Users|(?:pypi|pythonhosted)\.org"
)
_UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def imported(source: sources.Source) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import, wherever it stands."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            literals = [a for a in node.args if isinstance(a, ast.Constant)]
            yield from ((node.lineno, str(literal.value)) for literal in literals)


def rank(name: str) -> int | None:
    """Return the position of the folder an import leads to; None when it leads out of graphdoc."""
    parts = name.split(".")
    if parts[0] != "graphdoc":
        return None
    if len(parts) > 1 and parts[1] in sources.FOLDERS[1:]:
        return sources.FOLDERS.index(parts[1])
    return None if parts[1:] == ["__version__"] else _FRONT


def upward(source: sources.Source) -> list[str]:
    """Return the imports of a file that point to a folder above its own."""
    own = sources.FOLDERS.index(source.folder)
    found = [(line, name, rank(name)) for line, name in imported(source)]
    return [f"{source.name}:{line} {name}" for line, name, to in found if to is not None and to < own]


def test_imports_point_down() -> None:
    """graphdoc → reports → compare → surgeon → engine, never the other way."""
    assert [row for source in sources.python(*sources.FOLDERS) for row in upward(source)] == []


@pytest.mark.parametrize(
    ("folder", "line", "fails"),
    [
        ("engine", "from graphdoc.compare.result import Layer", True),
        ("engine", "from graphdoc import load", True),
        ("compare", "import graphdoc.cli", True),
        ("surgeon", "def f():\n    from graphdoc.reports import html", True),
        ("reports", "import_module('graphdoc.api')", True),
        ("reports", "from graphdoc.compare.result import Layer", False),
        ("engine", "from graphdoc import __version__", False),
        ("graphdoc", "from graphdoc.api import compare_models", False),
    ],
)
def test_an_upward_import_is_seen(folder: str, line: str, fails: bool) -> None:
    """The check above can fail, also for imports inside functions and by name."""
    source = sources.Source(sources.ROOT / folder / "x.py", line, ast.parse(line))

    assert bool(upward(source)) == fails


def test_every_package_is_listed(root: pathlib.Path) -> None:
    """A forgotten sub-package works from the checkout and is missing from the wheel."""
    setup = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    folders = {
        path.parent.relative_to(root).parts
        for folder in sources.FOLDERS
        for path in (root / folder).rglob("__init__.py")
    }
    on_disk = {".".join(p if p[0] == "graphdoc" else ("graphdoc", *p)) for p in folders}

    assert set(setup["packages"]) == on_disk


def test_every_module_lies_in_a_package(root: pathlib.Path) -> None:
    """A folder of modules without ``__init__.py`` would not be installed."""
    homeless = {
        path.parent.as_posix()
        for source in sources.python(*sources.FOLDERS)
        if not ((path := source.path).parent / "__init__.py").exists()
    }

    assert homeless == set()


def test_every_data_file_is_packaged(root: pathlib.Path) -> None:
    """Templates and the like must match a pattern of package-data."""
    data = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    matched = {
        path
        for package, patterns in data.items()
        for pattern in patterns
        for path in (root / (package.removeprefix("graphdoc.").replace(".", "/"))).glob(pattern)
    }
    on_disk = {
        path
        for folder in sources.FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }

    assert on_disk - matched == set()


def test_files_stay_short() -> None:
    """No source file is longer than 600 lines."""
    files = sources.python(*sources.FOLDERS, "tests", "scripts")
    long = {s.name: n for s in files if (n := s.text.count("\n")) > 600}

    assert long == {}


def test_functions_stay_short() -> None:
    """No function is longer than 60 lines without its docstring; half of them have at most 8."""
    found = [(s.name, f) for s in sources.python(*sources.FOLDERS) for f in sources.functions(s)]
    long = {f"{name} {f.name}": n for name, f in found if (n := sources.length(f)) > 60}

    assert long == {}
    assert statistics.median(sources.length(f) for _, f in found) <= 8


def test_no_machine_shows() -> None:
    """No path of somebody's machine and no registry host stands in the repository."""
    hits = [f"{name}: {m[0]}" for name, text in sources.texts() for m in _MACHINE.finditer(text)]

    assert hits == []


def test_nothing_is_left_unfinished() -> None:
    """No note to finish something later stands in the repository."""
    hits = [f"{name}: {m[0]}" for name, text in sources.texts() for m in _UNFINISHED.finditer(text)]

    assert hits == []


def test_docstrings_stand_on_every_public_module() -> None:
    """Every module of the package says in its first line what it is for."""
    bare = [s.name for s in sources.python(*sources.FOLDERS) if s.text and not ast.get_docstring(s.tree)]

    assert bare == []


def test_no_module_hides_a_public_name() -> None:
    """Importing a module puts it on its package, where it would replace a function of the same name."""
    import graphdoc
    from graphdoc import surgeon

    for package, folder in ((graphdoc, "graphdoc"), (surgeon, "surgeon")):
        modules = {path.stem for path in (sources.ROOT / folder).glob("*.py")}
        modules |= {path.name for path in (sources.ROOT / folder).iterdir() if path.is_dir()}
        assert modules & set(package.__all__) == set()
