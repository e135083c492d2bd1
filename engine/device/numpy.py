"""The device that needs nothing but NumPy: every step by its own ``evaluate``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.errors import InputError, RunnerError
from graphdoc.engine.program import Buffer, Kind, Program, Step


@dataclass(frozen=True, slots=True)
class NumpyDevice:
    """Runs where LLVM is missing, and as the oracle of the others."""

    name: str = "numpy"

    def load(self, program: Program) -> "NumpyExecutable":
        """Return the program with what each step lets go of."""
        return NumpyExecutable(program, _frees(program))


@dataclass(frozen=True, slots=True)
class NumpyExecutable:
    """A program, and by step the buffers that nobody reads after it."""

    program: Program
    frees: list[list[Buffer]]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs; see :class:`graphdoc.engine.device.protocol.Executable`.

        Raises InputError when an array has another shape or dtype than its input.
        """
        memory: dict[Buffer, Any] = {}
        for (name, view), array in zip(self.program.inputs.items(), inputs, strict=True):
            if (array.dtype, array.shape) != (view.dtype, view.shape):
                found = f"{array.dtype}{list(array.shape)}"
                raise InputError(f"'{name}' is {view.dtype}{list(view.shape)} in the program, not {found}")
            memory[view.buffer] = np.ascontiguousarray(array).reshape(-1)
        with np.errstate(all="ignore"):
            for step, frees in zip(self.program.steps, self.frees, strict=True):
                _run(step, memory)
                for buffer in frees:
                    memory.pop(buffer, None)
        return [view.array(_held(memory, view.buffer)) for view in self.program.outputs.values()]


def _held(memory: dict[Buffer, Any], buffer: Buffer) -> Any:
    if buffer.kind is Kind.CONSTANT:
        return buffer.data
    if buffer not in memory:
        memory[buffer] = np.empty(buffer.size, buffer.dtype)
    return memory[buffer]


def _run(step: Step, memory: dict[Buffer, Any]) -> None:
    inputs = [view.array(_held(memory, view.buffer)) for view in step.inputs]
    outputs = [view.array(_held(memory, view.buffer)) for view in step.outputs]
    try:
        step.spec.evaluate(inputs, outputs)
    except RunnerError as error:
        named = f"runner engine failed at '{', '.join(step.nodes)}': {error.cause}"
        raise RunnerError(named, where=error.where, next_step=error.next_step) from error


def _frees(program: Program) -> list[list[Buffer]]:
    """Return, by step, the inner buffers that no later step touches."""
    last: dict[Buffer, int] = {}
    for position, step in enumerate(program.steps):
        for view in (*step.inputs, *step.outputs):
            if view.buffer.kind is Kind.INNER:
                last[view.buffer] = position
    frees: list[list[Buffer]] = [[] for _ in program.steps]
    for buffer, position in last.items():
        frees[position].append(buffer)
    return frees
