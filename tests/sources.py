"""The repository's own files, for tests of what it promises about them."""

import ast
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

FOLDERS = ("graphdoc", "reports", "compare", "surgeon", "engine")
"""From the top to the bottom: each may import the ones after it."""

_SKIPPED = {".venv", ".tree", ".git", ".cache", "build", "dist", "__pycache__"}
_TEXT = {".py", ".md", ".toml", ".sh", ".j2", ".css", ".js", ".json", ".txt", ".yml", ".cfg", ""}


@dataclass(frozen=True)
class Source:
    """A Python file: its path relative to the root, and its folder's position among FOLDERS."""

    path: pathlib.Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def folder(self) -> str:
        return self.path.relative_to(ROOT).parts[0]


def python(*folders: str) -> list[Source]:
    """Return the Python files below the given folders, sorted by name."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    texts = [(path, path.read_text("utf-8")) for path in paths if "__pycache__" not in path.parts]
    return [Source(path, text, ast.parse(text)) for path, text in texts]


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and content of every text file that belongs to the repository."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix not in _TEXT or not path.is_file() or _SKIPPED & set(parts):
            continue
        if any(part.endswith((".egg-info", "_cache")) or part == ".hypothesis" for part in parts):
            continue
        yield "/".join(parts), path.read_text("utf-8", "replace")


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method, inner ones too."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's lines from ``def`` to its end, the docstring aside."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def real_models() -> list[Any]:
    """Return the models below GRAPHDOC_MODELS as parameters of a test; without them one that is skipped.

    They are too large for the repository; the same promises are kept on generated models beside them.
    """
    folder = os.environ.get("GRAPHDOC_MODELS")
    found = sorted(pathlib.Path(folder).rglob("*.onnx")) if folder else []
    missing = pytest.mark.skip(reason="GRAPHDOC_MODELS names no folder of real models")
    return found or [pytest.param(None, marks=missing)]
