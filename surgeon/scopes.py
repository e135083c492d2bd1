"""Names while a model is read: which value a name means in a graph, and where that graph stands."""

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.surgeon import checks
from graphdoc.surgeon.schemas import Signature


class Scope:
    """The values of one graph by name, and the graph around it.

    pending: outputs of nodes that have not been read yet. place: the node and attribute that hold the graph.
    """

    __slots__ = ("opsets", "outer", "pending", "place", "signatures", "unsorted", "values")

    def __init__(self, outer: "Scope | None", opsets: Mapping[str, int], place: tuple[Any, ...]) -> None:
        self.outer = outer
        self.opsets = opsets
        self.place = place
        self.values: dict[str, ir.Value] = {}
        self.pending: set[str] = set()
        self.signatures: dict[tuple[str, str], Signature | None] = {} if outer is None else outer.signatures
        self.unsorted = False

    def find(self, name: str) -> ir.Value | None:
        """Return the value that a name means here, or None."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                if name in scope.pending:
                    scope.unsorted = True
                return value
            scope = scope.outer
        return None

    def where(self) -> str:
        """Return the way to this graph, for messages."""
        if self.outer is None:
            return str(self.place[0])
        node, index, attribute = self.place
        return f"{self.at(node, index, self.outer)}, {attribute}"

    def at(self, node: onnx.NodeProto, index: int, scope: "Scope | None" = None) -> str:
        """Return the way to a node."""
        return f"{(scope or self).where()}, {checks.label(node, index)}"

    def names(self) -> set[str]:
        """Return all names that can be used here."""
        return {*self.values, *(self.outer.names() if self.outer else ())}

    def depth(self) -> int:
        """Return how many graphs lie around this one."""
        return 0 if self.outer is None else 1 + self.outer.depth()
