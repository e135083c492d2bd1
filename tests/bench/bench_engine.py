"""Whole runs on ONNX Runtime and on the engine, and what a baseline costs. Run by ``make bench``.

The model is the demo's where the cache holds it, else a small one.
"""

import pathlib
import statistics
import time
from collections.abc import Callable

import onnx
import pytest

from graphdoc import demo
from graphdoc.compare.inputs import make_inputs, parse_shapes
from graphdoc.compare.runner import open_runner
from graphdoc.compare.target import Target
from graphdoc.plugin_baseline import Case, run
from graphdoc.surgeon.model import open_source
from tests.graphdoc import small_models


def median(function: Callable[[], object], runs: int = 9) -> float:
    """Return the median time of a call in milliseconds, the first call left out."""
    times = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    """The model to measure."""
    found = demo.cached()
    if found is None:
        found = tmp_path / "small.onnx"
        onnx.save(small_models.detector(), found)
    return found


def test_runs(model: pathlib.Path) -> None:
    """Prints milliseconds of an untapped run."""
    target = Target(open_source(model))
    feeds = make_inputs(target.model, shapes=parse_shapes([demo.SHAPE])).feeds
    times = {}
    for name in ("ort", "engine"):
        with open_runner(name, target) as runner:
            times[name] = median(lambda runner=runner: runner.untouched(feeds))
    print(f"\n{model.name}: ort {times['ort']:.1f} ms, engine {times['engine']:.1f} ms")
    assert all(value > 0 for value in times.values())


def test_baselines(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Prints how long a baseline takes to write and to check, and how large it is."""
    path = tmp_path / "baseline.toml"
    case = Case(model, None, "engine", "all", [demo.SHAPE], 0, {}, {})
    started = time.perf_counter()
    assert run(case, path, update=True).word == "written"
    written = time.perf_counter() - started
    checked = median(lambda: run(case, path, update=False), 3)
    size = path.stat().st_size / 1e3
    print(f"\nbaseline: written in {written:.1f} s, checked in {checked:.0f} ms, {size:.0f} kB")
