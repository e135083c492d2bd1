"""Operators of one's own: from a Python file, or from an installed package.

A file registers them as graphdoc registers its own, see :mod:`graphdoc.engine.ops.table`::

    import graphdoc

    @graphdoc.op("Swiglu", 1, domain="com.acme")
    def swiglu(call, x, *, alpha=1.0):
        gate, value = call.xp.split(x, 2, axis=-1)
        return gate / (1 + call.xp.exp(-alpha * gate)) * value

A package names a module that does so as an entry point in the group ``graphdoc.operators``.
"""

import importlib.util
import traceback
from importlib.metadata import entry_points
from pathlib import Path

from graphdoc.engine.errors import UsageError

GROUP = "graphdoc.operators"
_loaded: dict[Path, str] = {}
"""Files that were run → as they were given."""


def loaded_files() -> list[str]:
    """Return the paths that :func:`load_operators` has read, as they were given."""
    return list(_loaded.values())


def load_operators(path: str | Path) -> None:
    """Run a Python file that registers operators; a file that was run already is not run again.

    Raises UsageError that names the file and line: not readable, not Python, fails, registers twice.
    """
    file = Path(path)
    if file.resolve() in _loaded:
        return
    if not file.is_file():
        raise UsageError(
            f"no such file: '{path}'", where="--ops", next_step="give a Python file, --ops my_ops.py"
        )
    spec = importlib.util.spec_from_file_location(f"graphdoc_operators_{len(_loaded)}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"not a Python file: '{path}'", where="--ops", next_step="give a file named *.py")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UsageError(
            f"'{path}' fails: {type(error).__name__}: {error}",
            where=_place(error, file),
            next_step="an operator is a function under @graphdoc.op(NAME, SINCE_VERSION, domain=DOMAIN)",
        ) from error
    _loaded[file.resolve()] = str(path)


def load_installed() -> None:
    """Import the modules that installed packages name. Raises UsageError for one that fails."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # whatever the package's code raises
            raise UsageError(
                f"the operators of '{entry.value}' do not load: {type(error).__name__}: {error}",
                where=f"entry point '{entry.name}' in {GROUP}",
                next_step="mend or uninstall that package",
            ) from error


def _place(error: BaseException, file: Path) -> str:
    """Return the last line of the user's file that the error came through."""
    if isinstance(error, SyntaxError):
        return f"{file.name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f"{file.name}, line {lines[-1]}" if lines else file.name
