"""The first minute of a newcomer: ``make`` in a fresh checkout, and what it says when it cannot work."""

import os
import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(
    not (shutil.which("make") and shutil.which("bash")), reason="make and bash are not installed"
)


@pytest.fixture
def checkout(tmp_path: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """A checkout with no environment yet, reduced to what make reads."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    return tmp_path


def interpreter(folder: pathlib.Path, *, version: str, venv: int = 1) -> pathlib.Path:
    """Write a program that stands in for Python: it is too old, or cannot make environments."""
    path = folder / "fake-python"
    fits = 1 if version.startswith("3.9") else 0
    text = f'case "$1" in -c) exit {fits};; --version) echo "Python {version}";; *) exit {venv};; esac\n'
    path.write_text(f"#!/bin/sh\n{text}", "utf-8")
    path.chmod(0o755)
    return path


def make(folder: pathlib.Path, target: str, python: pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_old_python_is_named(checkout: pathlib.Path, target: str) -> None:
    """The version that was found, the one that is needed, and how to name another interpreter."""
    done = make(checkout, target, interpreter(checkout, version="3.9.1"))

    assert done.returncode
    assert "needs Python 3.11 or newer; found: Python 3.9.1" in done.stderr
    assert f"make PYTHON=/path/to/python3.12 {target}" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_missing_venv_module_is_named(checkout: pathlib.Path) -> None:
    """Debian's Python comes without it."""
    done = make(checkout, "demo", interpreter(checkout, version="3.12.0"))

    assert done.returncode
    assert "could not make .venv" in done.stderr
    assert "apt install python3-venv" in done.stderr


def test_a_second_call_installs_nothing(checkout: pathlib.Path) -> None:
    """With stamps newer than pyproject.toml make goes to work at once; a newer one installs again."""
    (checkout / ".venv").mkdir()
    for name in ("ready-test", "ready-demo"):
        (checkout / ".venv" / name).touch()

    def plan() -> str:
        command = ["make", "--dry-run", "demo", "test"]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout

    assert "scripts/venv.sh" not in plan()
    os.utime(checkout / "pyproject.toml", (4e9, 4e9))
    assert "scripts/venv.sh ort" in plan()
    assert "scripts/venv.sh test" in plan()


def test_continuous_integration_runs_make_test(root: pathlib.Path) -> None:
    """.ci/run is executable, goes to the checkout's root and calls ``make test`` without a terminal."""
    script = root / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert "make test </dev/null" in script.read_text("utf-8")
