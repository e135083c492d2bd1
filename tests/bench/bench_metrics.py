"""What measuring costs an element, and what the machine code for it costs once. Run by ``make bench``."""

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from graphdoc.compare import metrics
from graphdoc.compare.metrics import Tolerance, distance, measure
from graphdoc.compare.metrics_native import Workshop

TARGETS = {"measure": 2.0, "distance": 1.0}
"""Nanoseconds an element: a comparison walks some 60 million elements and may take a fraction of a second."""

FIRST_USE = 0.06
"""CPU seconds to load llvmlite and make the two kernels of one dtype."""

NUMPY, NATIVE = Workshop(1 << 62), Workshop(0)
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)


def best_of(run: Callable[[], object], runs: int) -> float:
    """Return the shortest wall time of a call, in seconds: what it costs when nothing disturbs it."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def pair(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(size, np.float32)
    return a, a + rng.standard_normal(size, np.float32) * np.float32(1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_an_element_is_cheap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a million elements on, machine code reaches the target."""
    call = {"measure": lambda a, b: measure(a, b, Tolerance(1e-4, 1e-6)), "distance": distance}[name]
    costs = {}
    for size in SIZES:
        a, b = pair(size)
        for workshop in (NUMPY, NATIVE):
            monkeypatch.setattr(metrics, "WORKSHOP", workshop)
            call(a, b)
            seconds = best_of(lambda a=a, b=b: call(a, b), max(5, (1 << 24) // size // 8))
            costs[size, workshop] = seconds / size * 1e9
    print(f"\n{name}, ns an element: NumPy, machine code")
    for size in SIZES:
        print(f"{size:>9} {costs[size, NUMPY]:7.2f} {costs[size, NATIVE]:7.2f}")

    print(f"target at a million: {TARGETS[name]}")


FIRST = """
import time, numpy as np
from graphdoc.compare.metrics_native import make
f4, started = np.dtype(np.float32), time.process_time()
assert make("measure", f4, f4) and make("distance", f4, f4)
print(time.process_time() - started)
"""


def test_the_first_use_is_cheap() -> None:
    """In a fresh process, CPU time."""
    runs = [
        float(
            subprocess.run([sys.executable, "-c", FIRST], capture_output=True, check=True, text=True).stdout
        )
        for _ in range(7)
    ]
    print(f"\nllvmlite and two kernels: {min(runs) * 1e3:.0f} ms (median {sorted(runs)[3] * 1e3:.0f})")

    print(f"target: {FIRST_USE * 1e3:.0f} ms")
