"""A program under change: who reads and writes each buffer, kept as steps are replaced."""

from collections.abc import Iterable
from dataclasses import dataclass

from graphdoc.engine.program import Buffer, Kind, Program, Step, View


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps of a draft and where they stand: the first computes ``output``, the second reads it."""

    producer: int
    reader: int
    first: Step
    second: Step
    output: View


class Draft:
    """The steps of a program, some of them taken out; positions stay as they are.

    A position orders the steps: a step at a lower one runs first.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps: list[Step | None] = []
        self.readers: dict[Buffer, dict[int, None]] = {}
        self.writers: dict[Buffer, dict[int, None]] = {}
        for step in program.steps:
            self.steps.append(None)
            self.put(len(self.steps) - 1, step)

    def put(self, position: int, step: Step | None) -> None:
        """Put a step, or nothing, at a position; what stood there goes."""
        old = self.steps[position]
        self.steps[position] = step
        if old is not None:
            _forget(self.readers, position, old.inputs)
            _forget(self.writers, position, old.outputs)
        if step is not None:
            _note(self.readers, position, step.inputs)
            _note(self.writers, position, step.outputs)

    def read_by(self, buffer: Buffer) -> list[int]:
        """Return the positions of the steps that read a buffer, in order."""
        return sorted(self.readers.get(buffer, ()))

    def written_by(self, buffer: Buffer) -> list[int]:
        """Return the positions of the steps that write a buffer, in order."""
        return sorted(self.writers.get(buffer, ()))

    def free(self, buffer: Buffer) -> bool:
        """Return whether nobody outside the steps sees the buffer, so that it may vanish or move."""
        return buffer.kind is Kind.INNER

    def wanted(self, buffer: Buffer) -> bool:
        """Return whether something reads the buffer, or a caller takes it."""
        return buffer.kind is Kind.OUTPUT or bool(self.readers.get(buffer))

    def ready(self, views: Iterable[View], position: int) -> bool:
        """Return whether all that the views show is written before a position."""
        return all(max(self.writers.get(view.buffer, {-1: None})) < position for view in views)

    def pairs(self, position: int) -> list[Pair]:
        """Return the step at a position with each step that reads its results, in order."""
        step = self.steps[position]
        if step is None:
            return []
        return [
            Pair(position, reader, step, second, output)
            for output in step.outputs
            for reader in self.read_by(output.buffer)
            if (second := self.steps[reader]) is not None
        ]

    def at(self, positions: Iterable[int]) -> dict[int, Step]:
        """Return the steps at some positions."""
        found = ((position, self.steps[position]) for position in positions)
        return {position: step for position, step in found if step is not None}

    def finish(self) -> Program:
        """Return the program without the steps that nobody wants, nor values whose memory is gone."""
        for position in reversed(range(len(self.steps))):
            step = self.steps[position]
            if step is not None and not any(self.wanted(view.buffer) for view in step.outputs):
                self.put(position, None)
        program = self.program
        steps = [step for step in self.steps if step is not None]
        alive = {view.buffer for step in steps for view in (*step.inputs, *step.outputs)}
        values = {name: view for name, view in program.values.items() if view.buffer in alive}
        return Program(steps, program.inputs, program.outputs, values, program.notes)


def _note(table: dict[Buffer, dict[int, None]], position: int, views: Iterable[View]) -> None:
    for view in views:
        table.setdefault(view.buffer, {})[position] = None


def _forget(table: dict[Buffer, dict[int, None]], position: int, views: Iterable[View]) -> None:
    for view in views:
        table[view.buffer].pop(position, None)
