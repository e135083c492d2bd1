"""Latency: the statistics on known numbers, and runs in turns on a small model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.benching import bench
from graphdoc.compare import latency
from graphdoc.compare.latency import Plan, Timing, ratio
from graphdoc.engine.errors import InputError, UsageError

QUICK = Plan(warmup=0.05, duration=0.3)


def timing(name: str, rounds: list[float]) -> Timing:
    """Return a timing whose samples are its rounds."""
    return Timing(name, "1", "", 0.1, tuple(rounds), tuple(rounds), 0, 1.0)


def model() -> onnx.ModelProto:
    """Return y = relu(x)."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_ratio_is_taken_within_rounds() -> None:
    """A machine that slows down fourfold half-way changes neither the ratio nor its interval."""
    slow = np.repeat([1.0, 4.0], 20)

    found = ratio(timing("a", list(slow)), timing("b", list(0.5 * slow)))

    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    assert found.decided


def test_a_difference_within_the_noise_is_not_named() -> None:
    """Rounds that scatter about 1, and a difference of two percent."""
    noise = 1 + 0.2 * np.random.default_rng(0).standard_normal(30)

    assert not ratio(timing("a", [1.0] * 30), timing("b", list(noise))).decided
    assert not ratio(timing("a", [1.0] * 30), timing("b", [1.02] * 30)).decided
    assert ratio(timing("a", [1.0] * 30), timing("b", [1.05] * 30)).decided


def test_percentiles_and_variation() -> None:
    """NumPy and the formula are the oracles."""
    found = timing("a", [1.0, 2.0, 3.0, 4.0])

    assert found.median == 2.5
    assert found.percentile(99) == np.percentile([1, 2, 3, 4], 99)
    assert found.variation == pytest.approx(np.std([1, 2, 3, 4]) / 2.5)


class Clock:
    """Stands for ``time``: of each look at the process, whether a thread was at work then."""

    def __init__(self, *busy: bool) -> None:
        self.busy, self.looks, self.used, self.now = busy, 0, 0.0, 0.0

    def perf_counter(self) -> float:
        """Return the time that was slept."""
        return self.now

    def process_time(self) -> float:
        """Return the time that was worked."""
        return self.used

    def sleep(self, seconds: float) -> None:
        """Let one look go by."""
        self.used += seconds if self.looks < len(self.busy) and self.busy[self.looks] else 0.0
        self.looks, self.now = self.looks + 1, self.now + seconds


@pytest.mark.parametrize(
    ("busy", "looks"),
    [([], 3), ([True] * 5, 8), ([True, False, False, True], 7), ([True] * 1000, 125)],
    ids=["still", "for a while", "not still for long", "without end"],
)
def test_a_burst_waits_until_no_thread_is_at_work(
    busy: list[bool], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a quarter of a second at most."""
    clock = Clock(*busy)
    monkeypatch.setattr(latency, "time", clock)

    latency.settle()

    assert clock.looks == pytest.approx(looks, abs=1 if looks > 100 else 0)


def test_runners_take_turns() -> None:
    """Each has samples from as many rounds; a third runner gets a ratio of its own."""
    found = bench(model(), ["ort", "engine", "reference"], QUICK)

    assert [t.name for t in found.timings] == ["ort", "engine", "reference"]
    assert len({len(t.rounds) for t in found.timings}) == 1
    assert all(len(t.samples) >= len(t.rounds) >= 5 and min(t.samples) > 0 for t in found.timings)
    assert [(r.ref, r.test) for r in found.ratios] == [("ort", "engine"), ("ort", "reference")]
    assert dict(found.inputs) == {"x": "float32 4"}


def test_streams_run_at_the_same_time() -> None:
    """Throughput counts the runs of all streams."""
    found = bench(model(), ["ort"], Plan(warmup=0.05, duration=0.2, streams=2))

    assert found.timings[0].throughput > 0


def test_refusals() -> None:
    """A runner twice or unknown; inputs that do not fit."""
    with pytest.raises(UsageError, match="named twice"):
        bench(model(), ["ort", "ort"], QUICK)
    with pytest.raises(UsageError, match="no runner is called 'nope'"):
        bench(model(), ["nope"], QUICK)
    with pytest.raises(InputError):
        bench(model(), ["ort"], QUICK, {"x": np.zeros((3, 3), np.float32)})
