"""The short way through a graph of several parts: arrays of known types from one part to the next.

Like ``engine/direct.py``, but for programs with nodes of the host between them, and stages that follow from
what a run finds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.calls import value_of
from graphdoc.engine.direct import Kind
from graphdoc.engine.parts import Known, Rest, Source, Stage

Follow = Callable[[Stage, Rest, Mapping[str, Any]], Stage | None]

_STRINGS = np.dtype(object)


@dataclass(frozen=True, slots=True)
class Chain:
    """The first of the stages that lead from the fed arrays to the results.

    names, wanted, kinds: as of :class:`~graphdoc.engine.direct.Direct`. follow: the stage after one, None
    where it is not made yet. run_of: what each part is told of the run. inner: it is a body's, whose results
    need not be the caller's own.
    """

    names: tuple[str, ...]
    wanted: frozenset[str]
    kinds: tuple[Kind, ...]
    stage: Stage
    follow: Follow
    run_of: Any
    inner: bool = False

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the results, None when the arrays are not those the stages were made for."""
        for array, (dtype, shape) in zip(arrays, self.kinds, strict=True):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype is not dtype:
                return None
            if dtype is _STRINGS and set(map(type, array.ravel().tolist())) != {str}:
                return None
        env = dict(zip(self.names, arrays, strict=True))
        stage: Stage | None = self.stage
        while stage is not None:
            for call in stage.busy:
                call(env, self.run_of)
            if stage.rest is None:
                if self.inner:
                    return tuple([None if s is None else value_of(env, s) for s in stage.results])
                own = stage.own
                return tuple([env[s] if s in own else _result(env, s, arrays) for s in stage.results])
            stage = self.follow(stage, stage.rest, env)
        return None

    def feed(self, feeds: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the results for arrays by name."""
        if feeds.keys() != self.wanted:
            return None
        return self.run([feeds[name] for name in self.names])


def chain(
    stage: Stage,
    names: Sequence[str],
    arrays: Sequence[Any],
    follow: Follow,
    run_of: Any,
    *,
    inner: bool = False,
) -> Chain | None:
    """Return the short way from a stage on, None where something is tapped or fed that is no array."""
    if stage.taps or not all(type(array) is np.ndarray for array in arrays):
        return None
    kinds = tuple((array.dtype, array.shape) for array in arrays)
    return Chain(tuple(names), frozenset(names), kinds, stage, follow, run_of, inner)


def _result(env: Mapping[str, Any], source: Source | None, arrays: Sequence[Any]) -> Any:
    if source is None:
        return None
    if isinstance(source, Known):
        return owned(source.value, source, arrays)
    return owned(env[source], source, arrays)


def owned(value: Any, source: Source | None, arrays: Sequence[Any]) -> Any:
    """Return a result, copied where it is a weight or shares memory with an array that was fed: the caller
    may change it."""
    if not isinstance(value, np.ndarray):
        return value
    shared = isinstance(source, Known) or any(np.may_share_memory(value, array) for array in arrays)
    return np.array(value) if shared else value
