"""Names while a model is read: which value a name means in a graph, and where that graph stands."""

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from graphdoc.surgeon import checks
from graphdoc.surgeon.schemas import Signature


class Scope:
    """The values of one graph by name, and the graph around it.

    pending: outputs of nodes that have not been read yet. node: the one that is being read, and its place.
    name: how the graph is called; a subgraph is called after its attribute.
    """

    __slots__ = ("name", "node", "opsets", "outer", "pending", "signatures", "unsorted", "values")

    def __init__(self, outer: "Scope | None", opsets: Mapping[str, int], name: str) -> None:
        self.outer = outer
        self.opsets = opsets
        self.name = name
        self.node: tuple[onnx.NodeProto, int] | None = None
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
        return self.name if self.outer is None else f"{self.outer.here()}, {self.name}"

    def here(self) -> str:
        """Return the way to the node that is being read."""
        return self.where() if self.node is None else f"{self.where()}, {checks.label(*self.node)}"

    def names(self) -> set[str]:
        """Return all names that can be used here."""
        return {*self.values, *(self.outer.names() if self.outer else ())}

    def depth(self) -> int:
        """Return how many graphs lie around this one."""
        return 0 if self.outer is None else 1 + self.outer.depth()
