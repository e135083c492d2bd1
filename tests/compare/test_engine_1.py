"""The runner ``engine:1``: outputs, taps, a memory bound, and layers on given values."""

from typing import Any

import numpy as np
import onnx
import pytest

from graphdoc.compare.engine_runner import CompiledRunner
from graphdoc.compare.runner import RunnerOptions, open_runner
from graphdoc.compare.target import Target
from graphdoc.engine.scope import Occurrences
from graphdoc.surgeon.model import open_source

MODEL = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
g (float[4] x, bool c) => (float[4] y) {
    a = Neg (x)
    b = If (c) <
        then_branch = t () => (float[4] r) { s = Exp (a) r = Neg (s) },
        else_branch = e () => (float[4] r) { r = Identity (a) }
    >
    y = Add (b, a)
}
""")
FEEDS = {"x": np.float32([0, 1, 2, 3]), "c": np.array(True)}
TAPS = ["a", "b.then_branch/s", "b", "y"]


@pytest.fixture
def target() -> Target:
    return Target(open_source(MODEL))


def runners(target: Target) -> tuple[Any, Any]:
    options = RunnerOptions(threads=1)
    return open_runner("engine", target, options), open_runner("engine:1", target, options)


def test_it_is_level_1(target: Target) -> None:
    _, ours = runners(target)

    assert isinstance(ours, CompiledRunner)
    assert ours.name == "engine:1"
    assert ours.settings.startswith("level 1, ")
    assert ours.fallbacks == ()


def test_outputs_and_taps_are_those_of_level_0(target: Target) -> None:
    below, ours = runners(target)
    with ours:
        np.testing.assert_allclose(ours.untouched(FEEDS)["y"], below.untouched(FEEDS)["y"], rtol=1e-6)
        want, found = (r.run(FEEDS, TAPS) for r in (below, ours))

    assert found.values.keys() == want.values.keys()
    for name, value in want.values.items():
        np.testing.assert_allclose(found.values[name], value, rtol=1e-6)
    assert isinstance(found.values["b.then_branch/s"], Occurrences)
    assert not found.cut


def test_taps_stop_at_a_memory_bound(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one part of them comes, and it is said that some are missing."""
    monkeypatch.setattr("graphdoc.compare.engine_runner._PART", 1)
    _, ours = runners(target)

    found = ours.run(FEEDS, TAPS, budget=1)

    assert found.cut
    assert "a" in found.values
    assert "b" not in found.values


def test_layers_run_on_given_values(target: Target) -> None:
    """Values inside branches are not forced, so not told."""
    below, ours = runners(target)
    given = {"a": np.float32([5, 6, 7, 8]), "b": np.float32([1, 1, 1, 1])}
    want, found = (r.forced(FEEDS, given, TAPS).values for r in (below, ours))

    assert set(found) == {"a", "b", "y"}
    np.testing.assert_allclose(found["a"], want["a"])
    np.testing.assert_allclose(found["y"], [6, 7, 8, 9])
