"""How long ``graphdoc --help`` takes, from start to exit. Run by ``make bench``."""

import pathlib
import subprocess
import sys
import time

TARGET = 0.15
"""Seconds; above it a command line feels slow."""


def best_of(command: list[str], runs: int = 15) -> float:
    """Return the shortest wall time of a command, in seconds: what it costs when nothing disturbs it."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def test_help_is_quick() -> None:
    """The overview appears within the target."""
    script = str(pathlib.Path(sys.executable).with_name("graphdoc"))
    bare = best_of([sys.executable, "-c", "pass"])
    overview = best_of([script, "--help"])
    command = best_of([script, "compare", "--help"])
    print(f"\npython {bare:.3f} s, graphdoc --help {overview:.3f} s, graphdoc compare --help {command:.3f} s")

    assert overview < TARGET
