"""``graphdoc env``: what is on this machine, and what it says where something is missing or broken."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphdoc import cli
from graphdoc.compare import environment

ROWS = ["cpu", "gpu", "ort", "onnx", "onnx-ir", "numpy", "llvmlite", "cupy", "runners", "cache"]


def test_rows_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """One row per part, with the versions that the libraries themselves tell."""
    assert cli.run(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2:]}

    assert list(rows) == ROWS
    for name, version in (("numpy", np.__version__), ("onnx", onnx.__version__), ("ort", ort.__version__)):
        assert f" {version} " in rows[name]
    assert "ort, engine, engine:1, truth, reference" in rows["runners"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` holds the same rows."""
    assert cli.run(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert list(found) == ROWS
    assert all(set(row) == {"found", "state"} for row in found.values())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('raise ModuleNotFoundError("none")', "not installed"),
        ('raise OSError("libort.so: cannot open")', "cannot be used: libort.so"),
        ("", "cannot be used"),
    ],
    ids=["missing", "broken", "left over"],
)
def test_without_onnxruntime(content: str, words: str, tmp_path: pathlib.Path) -> None:
    """A missing or broken ONNX Runtime is said, its runner is not listed, and the exit code stays 0."""
    shim = tmp_path / "onnxruntime"
    shim.mkdir()
    (shim / "__init__.py").write_text(content, "utf-8")
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "ascii"}

    done = subprocess.run(
        [sys.executable, "-m", "graphdoc", "env"], capture_output=True, text=True, env=settings
    )

    assert done.returncode == 0
    assert words in done.stdout
    assert "FAIL" in done.stdout
    assert " engine, engine:1, truth, reference" in done.stdout
    assert "ort, engine" not in done.stdout


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/meminfo": "MemAvailable:    8388608 kB\n"}, 8 << 30),
        ({}, 4 << 30),
        (
            {
                "/proc/meminfo": "MemAvailable:    8388608 kB\n",
                "/sys/fs/cgroup/memory.max": f"{3 << 30}\n",
                "/sys/fs/cgroup/memory.current": f"{1 << 30}\n",
            },
            2 << 30,
        ),
        (
            {
                "/proc/meminfo": "MemAvailable:    8388608 kB\n",
                "/sys/fs/cgroup/memory.max": "max\n",
                "/sys/fs/cgroup/memory.current": f"{1 << 30}\n",
            },
            8 << 30,
        ),
    ],
    ids=["machine", "unknown", "container", "container without limit"],
)
def test_memory_that_is_free(files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's free memory, or what a container has left, whichever is less."""
    monkeypatch.setattr(environment, "_read", lambda name: files.get(name, ""))

    assert environment.memory_available.__wrapped__() == expected
