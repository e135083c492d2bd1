"""What more threads are worth, step by step, as far as the cutting of steps into shares decides it.

    python tests/bench/threads.py MODEL… [--threads 2] [--runs 20] [--steps 12]

Every share of every step is timed alone, on one thread, the least of several runs counting; then the
driver's rules say when each would start and end on so many threads (no share before those it waits for, the
next share to the thread that is free first). So the figures hold on a machine whose other processors are
busy; what they leave out is that threads share the memory's bandwidth. *Idle* is what threads lose waiting
for a unit of steps. The last line is the clock's word: runs on one thread and on several, in turns, the least
of each. Where that is far from the schedule, the machine is busy, or memory is the limit.
"""

import argparse
import bisect
import ctypes
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.compare.inputs import make_inputs
from graphdoc.engine.device.llvm.table import Span
from graphdoc.engine.parts import Segment
from graphdoc.session import Session
from graphdoc.surgeon.model import open_source

TAKE, WAKE = 0.1, 0.3
"""Microseconds to take a share, and to see that one may start which had to wait."""

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Unit:
    """Steps shared out as one. need: how many shares must be finished before. times: µs per share."""

    steps: range
    need: int
    times: list[float]


def programs(session: Session) -> Iterator[Any]:
    """Yield what the device made of each program of a model."""
    for stage in session._opened.compiled.stages():  # type: ignore[union-attr]
        for part in stage.parts:
            if isinstance(part, Segment):
                yield part.executable


def contents(views: Any) -> list[Any]:
    """Return arrays for a program's ends; what they hold hardly changes its time."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(v.shape).astype(v.dtype) if v.dtype.kind == "f" else np.zeros(v.shape, v.dtype)
        for v in views
    ]


def measured(executable: Any, runs: int) -> list[list[Unit]]:
    """Return the units of each native span of a program."""
    program, table = executable.program, executable._table
    callers = contents((*program.inputs.values(), *program.outputs.values()))
    context = table.context()  # whose memory the arguments lie in
    args = context.args[0]
    spans = [part for part in table.parts if isinstance(part, Span)]
    for place, which, add in (row for span in spans for row in span.fixups):
        args[place // 8] = callers[which // 8].ctypes.data + add
    found = [_units(table, span, args.ctypes.data, runs) for span in spans]
    del context
    return found


def _units(table: Any, span: Span, args: int, runs: int) -> list[Unit]:
    rows = [(range(start, start + n), int(count), int(need)) for start, n, _, count, need in span.units]
    best: dict[tuple[int, int], float] = {}
    for _ in range(runs):
        for steps, count, _ in rows:
            for k in steps:
                number = span.steps[k]
                call = _KERNEL(table._code[table.kernels[number].text])
                place, dims = args + 8 * table._starts[number], table._dims[number].ctypes.data
                for share in range(count):
                    took = _microseconds(call, place, dims, share, count)
                    best[k, share] = min(best.get((k, share), took), took)
    return [
        Unit(
            range(span.steps[steps.start], span.steps[steps[-1]] + 1),
            need,
            [sum(best[k, share] for k in steps) for share in range(count)],
        )
        for steps, count, need in rows
    ]


def _microseconds(call: Callable[..., None], *arguments: int) -> float:
    started = time.perf_counter_ns()
    call(*arguments)
    return max(0.0, (time.perf_counter_ns() - started) / 1e3 - 0.5)  # the call from Python takes that


def schedule(units: Sequence[Unit], threads: int) -> tuple[float, Counter[int]]:
    """Return the microseconds of all units on so many threads, and the idle ones by the unit waited for."""
    free = [0.0] * threads
    done: list[tuple[float, int]] = []
    idle: Counter[int] = Counter()
    for number, unit in enumerate(units):
        for took in unit.times:
            first = free.index(min(free))
            start = free[first]
            ready, cause = done[unit.need - 1] if unit.need else (0.0, 0)
            if ready > start:
                idle[cause] += ready - start  # type: ignore[assignment]
                start = ready + WAKE
            free[first] = start + TAKE + took
            bisect.insort(done, (free[first], number))
    ends = max(free)
    idle[done[-1][1]] += sum(ends - at for at in free)  # type: ignore[assignment]
    return ends, idle


def show(executable: Any, threads: int, runs: int, lines: int) -> None:
    """Print a program: its units, those first that threads wait for most."""
    for units in measured(executable, runs):
        total = sum(sum(unit.times) for unit in units)
        ends, idle = schedule(units, threads)
        waits = sum(a.need != b.need for a, b in zip(units[1:], units, strict=False))
        print(
            f"  {units[-1].steps.stop - units[0].steps.start} steps, {len(units)} units, {waits} waits: "
            f"{total / 1e3:.3f} ms of work, {ends / 1e3:.3f} ms on {threads} threads, "
            f"{total / ends:.2f} times"
        )
        for number, lost in idle.most_common(lines):
            unit = units[number]
            step, kernel = executable.program.steps[unit.steps[0]], executable.kernels[unit.steps[0]]
            print(
                f"  {lost:9.1f} us idle {sum(unit.times):9.1f} us in {len(unit.times):2}/{kernel.threads:<5}"
                f"{type(step.spec).__name__:12}{step.outputs[0].shape} {' '.join(step.nodes[:1])[-40:]}"
            )


def least(runs: int, *sides: Callable[[], Any]) -> list[float]:
    """Return the least milliseconds of each side, over runs in turns."""
    best = [float("inf")] * len(sides)
    for _ in range(runs):
        for k, side in enumerate(sides):
            started = time.perf_counter()
            side()
            best[k] = min(best[k], 1e3 * (time.perf_counter() - started))
    return best


def report(path: str, threads: int, runs: int, lines: int) -> None:
    """Print one model."""
    feeds = dict(make_inputs(open_source(path).model).feeds)
    one, many = (Session(path, level=1, threads=count, keep=False) for count in (1, threads))
    one.run(feeds)
    many.run(feeds)
    print(pathlib.Path(path).stem)
    for executable in programs(many):
        show(executable, threads, runs, lines)
    single, several = least(2 * runs, lambda: one.run(feeds), lambda: many.run(feeds))
    print(f"  clock: {single:.3f} ms, {several:.3f} ms, {single / several:.2f} times", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    for path in arguments.models:
        report(path, arguments.threads, arguments.runs, arguments.steps)


if __name__ == "__main__":
    main()
