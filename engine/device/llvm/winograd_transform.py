"""A small constant matrix times vectors, with the fewest operations that its shape gives away."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.device.llvm.builder import Value
from graphdoc.engine.device.llvm.lanes import Lanes


class Transform:
    """Emits the product of ``matrix`` and a column of values.

    Two rows that differ only in the sign of every second entry, those of the points x and -x, share their
    halves: the even entries' sum plus and minus the odd ones'.
    """

    def __init__(self, lanes: Lanes, matrix: Any) -> None:
        self.lanes, self.matrix = lanes, matrix

    def apply(self, values: Sequence[Value]) -> list[Value]:
        """Return the entries of the product."""
        matrix, done = self.matrix, dict[int, Value]()
        for r, row in enumerate(matrix):
            if r in done:
                continue
            twin = self._twin(r)
            if twin is None:
                done[r] = self._sum(zip(row, values, strict=True))
                continue
            even = self._sum(zip(row[::2], values[::2], strict=True))
            odd = self._sum(zip(row[1::2], values[1::2], strict=True))
            done[r], done[twin] = self.lanes.add(even, odd), self.lanes.sub(even, odd)
        return [done[r] for r in range(len(matrix))]

    def _twin(self, r: int) -> int | None:
        matrix = self.matrix
        signs = np.where(np.arange(matrix.shape[1]) % 2, -1, 1)
        for q in range(r + 1, len(matrix)):
            if matrix[r, 1::2].any() and np.allclose(matrix[q], matrix[r] * signs):
                return q
        return None

    def _sum(self, terms: Iterable[tuple[Any, Value]]) -> Value:
        """Return the sum of coefficient times value; those of 1 first, since they need no product."""
        v = self.lanes
        kept = sorted(((float(c), x) for c, x in terms if abs(c) > 1e-12), key=lambda term: term[0] != 1)
        (c, total), *rest = kept
        total = total if c == 1 else v.mul(total, c)
        for c, x in rest:
            total = v.add(total, x) if c == 1 else v.sub(total, x) if c == -1 else v.fma(x, c, total)
        return total
