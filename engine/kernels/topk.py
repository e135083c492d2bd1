"""The first elements of a row in order, and where they stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class TopK:
    """values[*r, j], indices[*r, j]: the j-th largest (or smallest) of x[*r] and its place, for all r.

    Of equal elements the lower place comes first, −0 equals 0, and NaN counts as larger than every number.
    Inputs: x (*r, n), float32 or int32. Outputs: values (*r, k), of x's dtype; indices (*r, k), int64;
    0 < k <= n.
    """

    largest: bool

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        from graphdoc.engine.ops.selection import top_k  # level 0's, so that both levels mean the same
        from graphdoc.engine.ops.table import Call

        values, indices = outputs
        found = top_k(
            Call(), np.ascontiguousarray(inputs[0]), values.shape[-1], inputs[0].ndim - 1, self.largest
        )
        values[...], indices[...] = found
