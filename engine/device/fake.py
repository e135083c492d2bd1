"""A device to test with: it runs programs by NumPy on the planned arena, and trusts nobody.

Memory is full of 0xA5 before the first step. Before each step every element it reads must hold what its own
buffer last wrote there, after it not a byte outside the views it declares may have changed. The steps between
two barriers run in shuffled order, as threads may: a missing barrier shows as a wrong read.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.errors import RunnerError
from graphdoc.engine.memory import MemoryPlan, plan
from graphdoc.engine.memory_check import Ledger, check_plan, step_faults
from graphdoc.engine.program import Buffer, Kind, Program, Step, View
from graphdoc.engine.schedule import barriers

POISON = 0xA5
_MARGIN = 64
"""Bytes before and after each memory that nobody may touch."""


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """Runs programs under watch. seed: of the order in which steps between two barriers run."""

    seed: int = 0
    name: str = "fake"

    def load(self, program: Program) -> "FakeExecutable":
        """Plan memory and barriers; raises RunnerError when the plan is wrong."""
        memory = plan(program)
        faults = check_plan(program, memory)
        if faults:
            raise RunnerError(f"the memory plan is wrong: {faults[0]}", where="device fake")
        return FakeExecutable(program, memory, list(_intervals(program, memory)), self.seed)


def _intervals(program: Program, memory: MemoryPlan) -> Iterator[list[int]]:
    """Yield the numbers of the steps between two barriers, each step taken to be shared by threads."""
    interval: list[int] = []
    for number, wait in enumerate(barriers(program.steps, memory, [2] * len(program.steps))):
        if wait:
            yield interval
            interval = []
        interval.append(number)
    yield interval


@dataclass(frozen=True, slots=True)
class FakeExecutable:
    """A program, its plan, and the steps that may run in any order, interval by interval."""

    program: Program
    memory: MemoryPlan
    intervals: list[list[int]]
    seed: int

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs; raises RunnerError for a step that reads or writes what it must not."""
        state = _State(self.program, self.memory, inputs)
        order = random.Random(self.seed)  # noqa: S311 (an order of steps, no secret)
        for interval in self.intervals:
            for number in order.sample(interval, len(interval)):
                state.step(self.program.steps[number])
        return [state.output(view) for view in self.program.outputs.values()]


class _State:
    """Memory during one run, with margins, and the ledger of who wrote it."""

    def __init__(self, program: Program, memory: MemoryPlan, inputs: Sequence[Any]) -> None:
        self._plan = memory
        self._ledger = Ledger(program, memory)
        self._memory: dict[Buffer | None, Any] = {None: _poisoned(memory.size)}
        for buffer in program.buffers():
            if buffer.kind is not Kind.INNER:
                self._memory[buffer] = _poisoned(buffer.nbytes)
            if buffer.kind is Kind.CONSTANT:
                self._array(buffer)[:] = buffer.data
        for view, array in zip(program.inputs.values(), inputs, strict=True):
            view.array(self._array(view.buffer))[...] = array

    def _array(self, buffer: Buffer) -> Any:
        inner = buffer.kind is Kind.INNER
        start = _MARGIN + (self._plan.offsets[buffer] if inner else 0)
        return self._memory[None if inner else buffer][start : start + buffer.nbytes].view(buffer.dtype)

    def step(self, step: Step) -> None:
        """Run one step, watched."""
        faults = step_faults(self._ledger, step)
        if faults:
            raise _refusal(step, faults[0])
        before = {memory: data.copy() for memory, data in self._memory.items()}
        with np.errstate(all="ignore"):
            step.spec.evaluate(
                [view.array(self._array(view.buffer)) for view in step.inputs],
                [view.array(self._array(view.buffer)) for view in step.outputs],
            )
        for view in step.outputs:
            memory, at = self._ledger.place(view)
            before[memory][_MARGIN + at] = self._memory[memory][_MARGIN + at]
            self._ledger.write(view)
        for memory, data in self._memory.items():
            if data.tobytes() != before[memory].tobytes():
                name = "the arena" if memory is None else f"'{memory.name}'"
                raise _refusal(step, f"writes {name} outside its views")

    def output(self, view: View) -> Any:
        """Return an output, all of which must have been written."""
        for fault in self._ledger.faults_reading(view):
            raise RunnerError(f"the program {fault}", where="device fake")
        return view.array(self._array(view.buffer)).copy()


def _poisoned(size: int) -> Any:
    return np.full(size + 2 * _MARGIN, POISON, np.uint8)


def _refusal(step: Step, fault: str) -> RunnerError:
    names = ", ".join(step.nodes) or type(step.spec).__name__
    return RunnerError(f"the step of '{names}' {fault}", where="device fake")
