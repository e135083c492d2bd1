"""Runs the main graph part by part on ONNX Runtime, so that only the values asked for are held.

What later parts read is carried over from one run to the next: a part begins where the last one ended, and
all parts together compute each layer once. A value that was let go is computed again from what is there.
"""

from collections.abc import Collection, Mapping
from typing import Any

import onnx

from graphdoc.compare import derived
from graphdoc.compare.ort_scope import Scope
from graphdoc.compare.target import is_constant, reads
from graphdoc.compare.types import type_of


class Segments:
    """The parts of one graph, run on one set of feeds after the other."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._nodes = [node for node in scope.graph.node if not is_constant(node)]
        self._makers = {name: n for n, node in enumerate(self._nodes) for name in node.output if name}
        self._feeds: Mapping[str, Any] = {}
        self._carried: dict[str, Any] = {}
        self._done: set[int] = set()
        self.timings: dict[str, float] = {}
        """Seconds of each layer that ran, by its first output."""

    def run(self, feeds: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Return the named layers. The same object as ``feeds`` means the same values."""
        if feeds is not self._feeds:
            self._feeds, self._carried, self._done = feeds, {}, set()
        missing = [name for name in dict.fromkeys(names) if name not in self._carried]
        places = self._needed(missing)
        self._done |= set(places)
        live = self._live()
        made = {name for place in places for name in self._nodes[place].output if name}
        found = self._compute(places, [*missing, *sorted((made & live) - set(missing))])
        available = {**self._carried, **found}
        self._carried = {name: value for name, value in available.items() if name in live}
        return {name: available[name] for name in names}

    def _needed(self, names: Collection[str]) -> list[int]:
        """Return the places of the nodes that must run for the names, in the graph's order."""
        places: set[int] = set()
        left = [name for name in names if name in self._makers]
        while left:
            place = self._makers[left.pop()]
            if place not in places:
                places.add(place)
                read = (name for name in reads(self._nodes[place]) if name not in self._carried)
                left += [name for name in read if name in self._makers]
        return sorted(places)

    def _live(self) -> set[str]:
        """Return the layers that nodes which never ran read, and the graph's outputs."""
        later = (node for place, node in enumerate(self._nodes) if place not in self._done)
        return {name for node in later for name in reads(node)} | set(self._scope.outputs)

    def _compute(self, places: list[int], fetch: list[str]) -> dict[str, Any]:
        if not places:
            return {}
        given = {**self._carried, **self._feeds}
        types = {name: kind for name, value in given.items() if (kind := type_of(value)) is not None}
        nodes: list[onnx.NodeProto] = [self._nodes[place] for place in places]
        model = derived.segment(self._scope.proto, nodes, types, fetch)
        session = self._scope.factory.open(model.SerializeToString(), optimise=False, profile=True)
        found = session.run(fetch, given)
        self.timings.update(session.timings(model.graph))
        return found
