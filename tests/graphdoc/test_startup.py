"""``graphdoc --help`` and ``import graphdoc`` stay quick: they load none of the heavy libraries."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "onnx",
    "onnx_ir",
    "numpy",
    "pandas",
    "rich",
    "jinja2",
    "cupy",
    "onnxruntime",
    "llvmlite",
    "ml_dtypes",
}

HELP = (
    "import runpy, sys; sys.argv = ['graphdoc', '--help']; runpy.run_module('graphdoc', run_name='__main__')"
)


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running ``code``."""
    report = "import atexit, json, sys\natexit.register(lambda: json.dump(list(sys.modules), sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", f"{report}\n{code}"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stderr)}


@pytest.mark.parametrize(
    "code",
    [HELP, HELP.replace("--help", "--version"), "import graphdoc", "import graphdoc.plugin"],
    ids=["--help", "--version", "import graphdoc", "the pytest plugin"],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    """Neither the overview, nor the version, nor an import of the package or plugin costs a heavy import."""
    assert HEAVY & modules_after(code) == set()


def test_the_overview_needs_no_click() -> None:
    """The overview is text that lies ready; click alone would double the time."""
    assert "click" not in modules_after(HELP)


def test_the_probe_sees_what_is_loaded() -> None:
    """The check above can fail."""
    assert "numpy" in modules_after("import numpy")
