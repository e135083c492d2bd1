"""The short way for a model that is one program: inputs of known types straight into it.

Small models run in microseconds; looking up what was made for which shapes takes as long.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.stage import Segment, Stage


@dataclass(frozen=True, slots=True)
class Direct:
    """One program between the fed arrays and the outputs.

    fed: name, dtype and shape of every array that was fed when the program was made. inputs: which of them
    the program takes. outputs: names, in the program's order.
    """

    fed: tuple[tuple[str, Any, tuple[int, ...]], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: Callable[[Sequence[Any]], list[Any]]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs, None when the arrays are not those the program was made for."""
        if len(feeds) != len(self.fed):
            return None
        for name, dtype, shape in self.fed:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype is not dtype:
                return None
        return dict(zip(self.outputs, self.call([feeds[name] for name in self.inputs]), strict=True))


def direct(stage: Stage, feeds: Mapping[str, Any], names: Sequence[str]) -> Direct | None:
    """Return the short way through a stage, None where it is more than one program.

    names: of the graph's outputs.
    """
    part = stage.parts[0] if len(stage.parts) == 1 else None
    if stage.rest is not None or not isinstance(part, Segment):
        return None
    program = part.program
    keys = dict(zip(stage.results, names, strict=True))
    plain = all(type(array) is np.ndarray for array in feeds.values())
    if not plain or list(keys) != list(program.outputs) or len(keys) != len(names):
        return None
    fed = tuple((name, array.dtype, array.shape) for name, array in feeds.items())
    if not set(program.inputs) <= set(feeds):
        return None
    outputs = tuple(keys[key] for key in program.outputs)
    return Direct(fed, tuple(program.inputs), outputs, part.executable.run)
