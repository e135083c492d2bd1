"""Element by element: one expression per output over a common domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphdoc.engine.expr import Expr, evaluate


@dataclass(frozen=True, slots=True)
class Map:
    """outputs[j][i] = exprs[j](inputs at i) for every index i of the domain, the outputs' common shape.

    Every input view has the domain's shape (broadcast: stride 0). An input may be an output's very view (in
    place). A copy, a transpose, a cast, a fill are maps.
    """

    exprs: tuple[Expr, ...]

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        results = evaluate(self.exprs, dict(enumerate(inputs)), outputs[0].shape)
        for output, result in zip(outputs, results, strict=True):
            output[...] = result
