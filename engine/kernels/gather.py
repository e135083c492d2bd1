"""Rows picked by number: embeddings, gathers, one-hot columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.errors import RunnerError


@dataclass(frozen=True, slots=True)
class Gather:
    """out[i] = data[i with its axis replaced by index[i]] for every i of the domain, the output's shape.

    axis: the axis of the data view that is looked up. Inputs: data of the domain's rank, whose size along the
    axis is the table's and along every other axis the domain's (or a stride of 0); index, int32 or int64, of
    the domain's shape (broadcast: stride 0). Negative numbers count from the end; any other outside the table
    raises RunnerError.
    """

    axis: int

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        data, index = inputs
        size = data.shape[self.axis]
        if index.size and (index.min() < -size or index.max() >= size):
            span = f"indices {index.min()} to {index.max()}"
            raise RunnerError(f"an index lies outside its axis of {size}", where=span)
        at: list[Any] = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij", sparse=True))
        at[self.axis] = np.where(index < 0, index + size, index)
        outputs[0][...] = data[tuple(at)]
