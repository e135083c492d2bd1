"""Probabilities of classes from those of pairs of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.program import View

SWEEPS = 100
"""The most a row takes."""

CLOSE = 0.005
"""A row is done once no class is further off than this, over the number of classes."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """out[n, c]: the probabilities of classes that fit best with those of pairs of classes.

    Wu, Lin and Weng (2004), second method: minimise Σ (r_ji·p_i − r_ij·p_j)², at most 100 sweeps a row.
    classes: how many, two or more. Input: (n, pairs) float32, the share of the first of the pairs (0, 1),
    (0, 2), … (1, 2), …; between 1e-7 and 1 − 1e-7. Output: (n, classes), float32.
    """

    classes: int

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy, all rows at once."""
        from graphdoc.engine.ops.ml_linear import couple  # level 0's, so that both levels mean the same

        outputs[0][...] = couple(np, inputs[0], self.classes)

    def operations(self, inputs: Sequence[View], outputs: Sequence[View]) -> int:
        """Return the operations of one sweep: how many sweeps it takes depends on the numbers."""
        return outputs[0].shape[0] * self.classes * (3 * self.classes + 10)
