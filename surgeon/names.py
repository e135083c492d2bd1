"""The names that values and nodes of models have, and new ones that differ from all of them."""

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from graphdoc.surgeon.edit_find import defined_in, subgraphs


class Names:
    """How many values and nodes have each name; gives out names that nobody has.

    models: whose names count. functions: whether those inside their functions do, which are names of their
    own to ONNX.
    """

    def __init__(self, *models: ir.Model, functions: bool = True) -> None:
        self._values: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        for model in models:
            self.count(model.graph)
            for function in model.functions.values() if functions else ():
                self.count(function.graph)

    def count(self, graph: ir.Graph) -> None:
        """Note the names of a graph that joins the model, and of the graphs inside it."""
        for found in _graphs(graph):
            self._values.update(value.name for value in defined_in(found) if value.name)
            self._nodes.update(node.name for node in found if node.name)

    def has_value(self, name: str) -> bool:
        """Whether a value has a name."""
        return self._values[name] > 0

    def has_node(self, name: str) -> bool:
        """Whether a node has a name."""
        return self._nodes[name] > 0

    def value(self, hint: str) -> str:
        """Return ``hint``, with a number if a value has it, and take it."""
        return self._unused(hint, self._values)

    def node(self, hint: str) -> str:
        """Return ``hint``, with a number if a node has it, and take it."""
        return self._unused(hint, self._nodes)

    def moved(self, name: str) -> str:
        """Return the name of a value that moves to another graph: its own, unless another one has it too."""
        return self.value(name) if self._values[name] > 1 else name

    def moved_node(self, name: str) -> str:
        """The same for nodes."""
        return self.node(name) if self._nodes[name] > 1 else name

    def release(self, name: str) -> None:
        """Free the name of a value that has got another one."""
        self._values[name] -= 1

    def release_node(self, name: str) -> None:
        """Free the name of a node that goes."""
        self._nodes[name] -= 1

    def _unused(self, hint: str, taken: Counter[str]) -> str:
        name = hint
        while taken[name] > 0 or not name:
            self._next[hint] = self._next.get(hint, 0) + 1  # counted on: starting anew would be quadratic
            name = f"{hint}_{self._next[hint]}"
        taken[name] += 1
        return name


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    for node in graph:
        for _, inner in subgraphs(node):
            yield from _graphs(inner)
