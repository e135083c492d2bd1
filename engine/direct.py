"""The short way through a graph that is one program: arrays of known types straight into it.

Small models, and the bodies of loops, run in microseconds; looking up what was made for which shapes takes as
long.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # importing it takes longer than loading a program that was kept
    from graphdoc.engine.parts import Stage

Kind = tuple[Any, tuple[int, ...]]
"""dtype and shape."""

COMPUTED, FED, CONSTANT = range(3)
"""Where a result comes from."""


@dataclass(frozen=True, slots=True)
class Direct:
    """One program between the fed arrays and the results.

    names: of the arrays, in the order they are given; wanted: the same, in no order. kinds: what they were
    when the program was made. inputs: positions of those that the program takes. results: per result of the
    graph, where it comes from, and its position among the program's outputs or the fed arrays, or its value.
    straight: the program takes these arrays and gives these results, in this order.
    """

    names: tuple[str, ...]
    wanted: frozenset[str]
    kinds: tuple[Kind, ...]
    inputs: tuple[int, ...]
    results: tuple[tuple[int, Any], ...]
    call: Callable[[Sequence[Any]], list[Any]]
    straight: bool = False

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the results, None when the arrays are not those the program was made for."""
        for array, (dtype, shape) in zip(arrays, self.kinds, strict=True):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype is not dtype:
                return None
        if self.straight:
            return tuple(self.call(arrays))
        found = self.call([arrays[k] for k in self.inputs])
        sources = (found, arrays)
        return tuple([v if of == CONSTANT else sources[of][v] for of, v in self.results])

    @property
    def computed(self) -> bool:
        """Whether every result is the program's own, neither a weight nor what was fed."""
        return all(of == COMPUTED for of, _ in self.results)

    def feed(self, feeds: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the results for arrays by name."""
        if feeds.keys() != self.wanted:
            return None
        return self.run([feeds[name] for name in self.names])


def direct(stage: "Stage", names: Sequence[str], arrays: Sequence[Any]) -> Direct | None:
    """Return the short way through a stage, None where it is more than one program.

    names, arrays: what was fed to the run that the stage was made for.
    """
    from graphdoc.engine.parts import Known, Segment

    part = stage.parts[0] if len(stage.parts) == 1 else None
    if stage.rest is not None or not isinstance(part, Segment) or stage.taps:
        return None
    if not all(type(array) is np.ndarray for array in arrays):
        return None
    places = {name: k for k, name in enumerate(names)}
    computed = {key: k for k, key in enumerate(part.program.outputs)}
    if not part.program.inputs.keys() <= places.keys():
        return None
    results: list[tuple[int, Any]] = []
    for source in stage.results:
        if source is None or isinstance(source, Known):
            results.append((CONSTANT, None if source is None else source.value))
        elif source in computed:
            results.append((COMPUTED, computed[source]))
        elif source in places:
            results.append((FED, places[source]))
        else:
            return None
    kinds = tuple((array.dtype, array.shape) for array in arrays)
    inputs = tuple(places[name] for name in part.program.inputs)
    call = part.executable.run
    straight = inputs == tuple(range(len(names))) and results == [(COMPUTED, k) for k in range(len(computed))]
    return Direct(tuple(names), frozenset(names), kinds, inputs, tuple(results), call, straight)
