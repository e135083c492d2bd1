"""Writing by number: a copy in which elements or rows are replaced, or combined with others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.errors import RunnerError

COMBINE = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""Reduction → NumPy's function."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """out = data; then out[i with its axis replaced by index[i]] = updates[i], or combined with it, for every
    i of the domain in row-major order.

    axis: the axis that is looked up. reduction: none, add, mul, max or min (NaN if either is).
    Inputs: data of out's shape; index, int32 or int64, and updates, both of the domain's shape, which has
    out's rank and, the axis aside, no larger sizes. Negative numbers count from the end; any other outside
    the axis raises RunnerError.
    """

    axis: int
    reduction: str = "none"

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        (data, index, updates), out = inputs, outputs[0]
        size = out.shape[self.axis]
        if index.size and (index.min() < -size or index.max() >= size):
            span = f"indices {index.min()} to {index.max()}"
            raise RunnerError(f"an index lies outside its axis of {size}", where=span)
        out[...] = data
        at: list[Any] = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij", sparse=True))
        at[self.axis] = np.where(index < 0, index + size, index)
        combine = COMBINE[self.reduction]
        if combine is None:
            out[tuple(at)] = updates
        else:
            combine.at(out, tuple(at), updates)
