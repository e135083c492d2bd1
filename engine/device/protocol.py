"""What runs a Program: a device loads it once and gives back what can be called with arrays."""

from collections.abc import Sequence
from typing import Any, Protocol

from graphdoc.engine.program import Program


class Executable(Protocol):
    """A loaded program. Threads may call it at the same time."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs, in the order of ``program.outputs``, as arrays that nobody else holds.

        inputs: one NumPy array per entry of ``program.inputs``, in order, of its dtype and shape.

        Raises RunnerError where a step meets numbers that it cannot work on, such as an index out of range.
        """
        ...


class Device(Protocol):
    """Something that runs programs.

    name: as reports print it.
    """

    name: str

    def load(self, program: Program) -> Executable:
        """Make a program ready to run; it must not be changed afterwards."""
        ...
