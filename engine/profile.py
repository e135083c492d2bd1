"""What each step of a program takes, and what it must do at least."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphdoc.engine.cost import operations, traffic
from graphdoc.engine.parts import Segment


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one step or host node. operations, bytes: what it must do at least (``engine/cost.py``)."""

    label: str
    nodes: tuple[str, ...]
    seconds: float
    operations: int = 0
    bytes: int = 0


def spent(part: Segment, arrays: Sequence[Any]) -> list[Spent]:
    """Run a program once more and return what each step took; of a device that cannot tell, the whole."""
    steps = part.program.steps
    profile = getattr(part.executable, "profile", None)
    if profile is None:
        started = time.perf_counter()
        part.executable.run(arrays)
        nodes = tuple(dict.fromkeys(name for step in steps for name in step.nodes))
        return [Spent("program", nodes, time.perf_counter() - started)]
    steps = part.executable.program.steps  # as the device has prepared them
    return [
        Spent(type(s.spec).__name__, s.nodes, seconds, operations(s), traffic(s))
        for s, seconds in zip(steps, profile(arrays), strict=True)
    ]
