"""Tactics: which of several kernels for a step is quickest here, measured once and kept in a file.

A timing cache is JSON: for each processor and toolchain, the tactic of each step by a digest of all that its
kernel follows from, with the microseconds measured. A step in the cache is never measured again, so builds
with the same cache are the same.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.device.llvm.compiler import toolchain
from graphdoc.engine.device.llvm.emit import emit, likeness, tactics
from graphdoc.engine.errors import InputError
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

SCHEMA = "graphdoc-timings/1"
_ROUNDS, _SECONDS = 5, 0.02
"""Rounds in which the tactics of a step take turns, and seconds per tactic that they may take in all."""


@dataclass(slots=True)
class Timings:
    """Tactics by machine and step. measured: how many steps were measured for this process's builds."""

    rows: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    measured: int = 0

    @classmethod
    def load(cls, path: "str | Path") -> "Timings":
        """Read a cache; one that is not there is empty. Raises InputError for a file that is none."""
        try:
            content = json.loads(Path(path).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise _no_cache(path) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise _no_cache(path)
        rows = content.get("machines")
        if not isinstance(rows, dict) or not all(_is_row(r) for m in rows.values() for r in _values(m)):
            raise _no_cache(path)
        return cls(rows)

    def save(self, path: "str | Path") -> None:
        """Write the cache, sorted; it is there whole or not at all."""
        text = json.dumps({"schema": SCHEMA, "machines": self.rows}, sort_keys=True, indent=1) + "\n"
        target = Path(path)
        part = target.with_name(f".{target.name[:100]}.part")
        part.write_text(text, "utf-8")
        part.replace(target)

    def choose(self, step: Step, target: Target) -> str | None:
        """Return the tactic for a step, measured if it is not known; None: there is no choice."""
        names = tactics(step, target)
        if len(names) < 2:
            return None
        machine = self.rows.setdefault(_machine(target), {})
        name = _digest(step)
        if name not in machine or machine[name][0] not in names:
            times = _measure(step, target, names)
            if not times:
                return None
            best = min(times, key=lambda tactic: times[tactic])
            machine[name] = [best, round(times[best] * 1e6, 2)]
            self.measured += 1
        return str(machine[name][0])


def _values(machine: Any) -> Any:
    return machine.values() if isinstance(machine, dict) else [None]


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)


def _no_cache(path: "str | Path") -> InputError:
    return InputError(
        "this is no timing cache", where=str(path), next_step="name a file that is not there yet"
    )


def tuned_kernels(program: Program, target: Target, timings: Timings) -> list[Kernel | None]:
    """Return the kernel of each step by the quickest tactic; see ``device.cpu.kernels``."""
    known: dict[Any, Kernel | None] = {}
    found = []
    for step in program.steps:
        key = likeness(step, None)
        if key not in known:
            known[key] = emit(step, target, timings.choose(step, target))
        found.append(known[key])
    return found


def _machine(target: Target) -> str:
    features = hashlib.sha256(target.features.encode()).hexdigest()[:12]
    return f"cpu {target.cpu} {features}, {toolchain()}"


def _digest(step: Step) -> str:
    """Return a name for all that a step's kernel follows from, the same in every process."""
    from graphdoc.engine.plan_codec import Encoder, Store

    encoder = Encoder(Store())
    views = [[list(v.shape), list(v.strides), v.dtype.name] for v in (*step.inputs, *step.outputs)]
    aligned = [list(row) for row in likeness(step, None)[2]]
    alignments = [row[3] for row in aligned]
    spec = encoder.spec(step.spec)
    text = json.dumps([spec, encoder.tables()["exprs"], views, alignments, len(step.inputs)])
    return f"{type(step.spec).__name__} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _measure(step: Step, target: Target, names: Sequence[str]) -> dict[str, float]:
    """Return the least seconds of each tactic, in turns, on one thread and random contents."""
    from graphdoc.engine.device.cpu import CpuExecutable

    program, arrays = alone(step)
    loaded = {}
    for name in names:
        kernel = emit(program.steps[0], target, name)
        if kernel is not None:
            loaded[name] = CpuExecutable(program, [kernel], target, 1)
    times: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for name, executable in loaded.items():
            times[name] = min(times.get(name, np.inf), _least(executable, arrays))
    return times


def _least(executable: Any, arrays: list[Any]) -> float:
    best, started = np.inf, perf_counter()
    while perf_counter() - started < _SECONDS / _ROUNDS:
        at = perf_counter()
        executable.run(arrays)
        best = min(best, perf_counter() - at)
    return float(best)


def alone(step: Step) -> tuple[Program, list[Any]]:
    """Return a program of one step whose inner buffers a caller gives and takes, and arrays to give.

    Views keep their strides and offsets; what was aligned to a cache line is not promised to be.
    """
    fresh: dict[Buffer, Buffer] = {}
    written = {view.buffer for view in step.outputs}
    for view in (*step.inputs, *step.outputs):
        buffer = view.buffer
        kind = Kind.OUTPUT if buffer in written else Kind.INPUT
        if buffer.kind is Kind.CONSTANT:
            fresh[buffer] = buffer
        elif buffer not in fresh:
            fresh[buffer] = Buffer(f"{kind.value}{len(fresh)}", buffer.dtype, buffer.size, kind)
    moved = Step(
        step.spec,
        tuple(View(fresh[v.buffer], v.shape, v.strides, v.offset) for v in step.inputs),
        tuple(View(fresh[v.buffer], v.shape, v.strides, v.offset) for v in step.outputs),
        step.nodes,
    )
    program = Program([moved])
    for buffer in fresh.values():
        table = {Kind.INPUT: program.inputs, Kind.OUTPUT: program.outputs}.get(buffer.kind)
        if table is not None:
            table[buffer.name] = whole(buffer, (buffer.size,))
    arrays = [_contents(view) for view in program.inputs.values()]
    return program, arrays


def _contents(view: View) -> Any:
    rng = np.random.default_rng(0)
    if view.dtype.kind in "iub":
        return rng.integers(0, 2, view.shape).astype(view.dtype)
    return rng.standard_normal(view.shape).astype(view.dtype)
