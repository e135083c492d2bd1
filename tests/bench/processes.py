"""Runs a tool as people do, as a process of its own, and tells its time and peak memory."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

_LAUNCH = """
import json, os, sys
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
figures = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3, os.waitstatus_to_exitcode(status)
with open(sys.argv[1], "w") as file:
    json.dump(figures, file)
"""
"""Starts a tool from a small process: Linux counts the starter's memory into the peak of what it starts."""


@dataclass(frozen=True)
class Spent:
    """seconds: of wall time. cpu: seconds of all its threads, which other work on the machine changes less.

    megabytes: the most memory that lay in RAM. code: how it ended, None where it took too long.
    """

    seconds: float
    cpu: float
    megabytes: float
    code: int | None
    said: str = ""


def launch(command: Sequence[str], limit: float = 240.0) -> Spent:
    """Run a command; after ``limit`` seconds it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        words = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(figures), *command]
        started = time.perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return Spent(limit, limit, 0.0, None)
        seconds = time.perf_counter() - started
        cpu, megabytes, code = json.loads(figures.read_text())
    return Spent(seconds, cpu, megabytes, code, (done.stdout + done.stderr).decode(errors="replace"))
