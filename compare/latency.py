"""Latency and throughput of runners on one model: taken in turns, with percentiles and a bound on the ratio.

Times of a shared machine drift, so rivals run in short bursts, one after the other, and a ratio is taken
within each round of bursts; the interval of the ratio comes from resampling rounds (Efron's percentile
bootstrap). The first run of a burst is dropped: the other side's threads and caches are still about.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphdoc.compare.environment import resident
from graphdoc.compare.runner import Runner, RunnerOptions, open_runner
from graphdoc.compare.target import Target

BURST = 0.04
"""Seconds of a burst: long against what a switch of sides costs, short against the machine's moods."""

REST, STILL, PATIENCE = 0.002, 3, 0.25
"""Between bursts: seconds of a look at this process, how many looks must find it still, seconds at most.
Worker threads of ONNX Runtime spin for some 30 ms after a run, and would take a processor from the next."""

LEAST_ROUNDS = 5
RESAMPLES = 2000
STEADY = 0.1
"""Largest coefficient of variation of burst medians that counts as steady."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a runner: what it is, the ONNX nodes it carries, seconds of a run.

    limit: the least seconds the step could take at the machine's measured limits, 0.0 where nobody counted.
    """

    label: str
    nodes: tuple[str, ...]
    seconds: float
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one runner; seconds, bytes.

    opened: to open it and run it once. samples: every timed run, in order.
    rounds: the median of each burst. memory: growth of the resident set from opening to the end.
    throughput: runs per second of all streams together.
    """

    name: str
    version: str
    settings: str
    opened: float
    samples: tuple[float, ...]
    rounds: tuple[float, ...]
    memory: int
    throughput: float
    steps: tuple[StepTime, ...] = ()

    @property
    def median(self) -> float:
        """Seconds that half the runs stay below."""
        return statistics.median(self.samples)

    def percentile(self, share: float) -> float:
        """Return seconds that ``share`` percent of the runs stay below."""
        return float(np.percentile(self.samples, share))

    @property
    def variation(self) -> float:
        """Coefficient of variation of the bursts' medians: standard deviation / mean."""
        mean = statistics.fmean(self.rounds)
        return statistics.pstdev(self.rounds) / mean if mean else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of ``test`` / time of ``ref``, and the 95 % interval."""

    ref: str
    test: str
    value: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 1, and the difference is more than 3 %."""
        return not self.low <= 1 <= self.high and abs(self.value - 1) > 0.03


@dataclass(frozen=True, slots=True)
class Plan:
    """How to measure. warmup, duration: seconds per runner. threads: 0 for each runner's default."""

    warmup: float = 0.3
    duration: float = 2.0
    threads: int = 0
    streams: int = 1
    profile: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The measured runners in the order asked for, and each later one's ratio to the first."""

    model: str
    plan: Plan
    inputs: tuple[tuple[str, str], ...]
    timings: tuple[Timing, ...]
    ratios: tuple[Ratio, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rival:
    runner: Runner
    run: Callable[[], object]
    opened: float
    before: int
    samples: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)


Progress = Callable[[int, int], None]


def measure(
    target: Target, names: Sequence[str], feeds: Mapping[str, Any], plan: Plan, show: Progress | None = None
) -> tuple[tuple[Timing, ...], tuple[Ratio, ...]]:
    """Measure runners in turns. Raises what opening and running them raises.

    show: told seconds done and in all.
    """
    options = RunnerOptions(plan.threads, plan.seed, times=False)
    with ExitStack() as stack:
        rivals = [_open(stack, name, target, feeds, options) for name in names]
        _warm(rivals, plan.warmup)
        _take_turns(rivals, plan.duration, show)
        timings = tuple(_timing(target, rival, feeds, plan, options) for rival in rivals)
    first = timings[0]
    return timings, tuple(ratio(first, other) for other in timings[1:])


def _open(
    stack: ExitStack, name: str, target: Target, feeds: Mapping[str, Any], options: RunnerOptions
) -> _Rival:
    before, started = resident(), time.perf_counter()
    runner = stack.enter_context(open_runner(name, target, options, "--runner"))
    run = prepared(runner, feeds)
    run()
    return _Rival(runner, run, time.perf_counter() - started, before)


def prepared(runner: Runner, feeds: Mapping[str, Any]) -> Callable[[], object]:
    """Return a call that runs the model once on the feeds, with as little around it as the runner can."""
    ready = getattr(runner, "prepared", None)
    return ready(feeds) if ready is not None else lambda: runner.untouched(feeds)


def _warm(rivals: Sequence[_Rival], seconds: float) -> None:
    for rival in rivals:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            rival.run()


def _take_turns(rivals: Sequence[_Rival], duration: float, show: Progress | None) -> None:
    total = duration * len(rivals)
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < total or len(rivals[0].rounds) < LEAST_ROUNDS:
        for rival in rivals:
            settle()
            burst = _burst(rival.run)
            rival.samples += burst
            rival.rounds.append(statistics.median(burst))
        if show is not None:
            show(min(int(1000 * spent), int(1000 * total) - 1), int(1000 * total))


def settle() -> None:
    """Wait until no thread of this process is at work."""
    still, ends = 0, time.perf_counter() + PATIENCE
    while still < STILL and time.perf_counter() < ends:
        before = time.process_time()
        time.sleep(REST)
        still = still + 1 if time.process_time() - before < REST / 5 else 0


def _burst(run: Callable[[], object]) -> list[float]:
    run()
    times: list[float] = []
    ends = time.perf_counter() + BURST
    while not times or time.perf_counter() < ends:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return times


def _timing(
    target: Target, rival: _Rival, feeds: Mapping[str, Any], plan: Plan, options: RunnerOptions
) -> Timing:
    runner = rival.runner
    memory = max(resident() - rival.before, 0)
    profile = getattr(runner, "profile", None) if plan.profile else None
    if plan.streams > 1:
        throughput = _throughput(target, runner.name, feeds, plan, options)
    else:
        throughput = len(rival.samples) / math.fsum(rival.samples)
    steps = tuple(StepTime(*row) for row in profile(feeds)) if profile is not None else ()
    return Timing(
        runner.name,
        runner.version,
        runner.settings,
        rival.opened,
        tuple(rival.samples),
        tuple(rival.rounds),
        memory,
        throughput,
        steps,
    )


def _throughput(
    target: Target, name: str, feeds: Mapping[str, Any], plan: Plan, options: RunnerOptions
) -> float:
    """Return runs per second of ``streams`` runners, each on a thread of its own."""
    with ExitStack() as stack:
        runs = [
            prepared(stack.enter_context(open_runner(name, target, options, "--runner")), feeds)
            for _ in range(plan.streams)
        ]
        for run in runs:
            run()
        return streamed(runs, plan.duration)


def streamed(runs: Sequence[Callable[[], object]], duration: float) -> float:
    """Return how often calls, each on a thread of its own, come back per second, all together.

    Raises what one of them raises.
    """
    started = time.perf_counter()
    ends = started + duration

    def stream(run: Callable[[], object]) -> int:
        count = 0
        while time.perf_counter() < ends:
            run()
            count += 1
        return count

    with ThreadPoolExecutor(len(runs)) as pool:
        count = sum([pending.result() for pending in [pool.submit(stream, run) for run in runs]])
    return count / (time.perf_counter() - started)


def ratio(ref: Timing, test: Timing) -> Ratio:
    """Return the ratio of two runners measured in the same rounds: the median, and its 95 % interval."""
    rounds = np.array(test.rounds) / np.array(ref.rounds)
    picks = np.random.default_rng(0).integers(len(rounds), size=(RESAMPLES, len(rounds)))
    low, high = np.percentile(np.median(rounds[picks], axis=1), [2.5, 97.5])
    return Ratio(ref.name, test.name, float(np.median(rounds)), float(low), float(high))
