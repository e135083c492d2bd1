"""What a device is to the engine: it loads programs and runs them."""

from collections.abc import Sequence
from typing import Any, Protocol

from graphdoc.engine.program import Program


class Executable(Protocol):
    """A program ready to run, by any number of threads at once."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs as NumPy arrays of their own, in the order of ``program.outputs``.

        inputs: NumPy arrays in the order of ``program.inputs``, of the views' dtypes and shapes; they need
        not be row-major. Raises RunnerError where a step refuses its operands (an index outside its axis).
        """
        ...


class Device(Protocol):
    """Where programs run."""

    @property
    def name(self) -> str:
        """Return what messages call it."""
        ...

    def load(self, program: Program) -> Executable:
        """Return the program ready to run."""
        ...
