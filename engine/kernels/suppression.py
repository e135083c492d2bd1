"""Non-maximum suppression: of boxes that overlap, the one with the best score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Suppression:
    """The boxes kept for each class of each entry of a batch, best first: (entry, class, box), and how many.

    limit: the most for one class. iou: a box goes that overlaps a better one by more. least: a box goes that
    scores this or less; None: none does. centred: boxes are centres and sizes instead of two corners.
    Inputs: boxes (b, n, 4) and scores (b, c, n), float32. Outputs: rows (b · c · min(limit, n), 3), int64,
    of which those past the count mean nothing; the count (1), int64. Of equal scores the lower box comes
    first.
    """

    limit: int
    iou: float
    least: float | None
    centred: bool

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        from graphdoc.engine.ops.boxes import non_max_suppression  # level 0's: both levels mean the same
        from graphdoc.engine.ops.table import Call

        rows, count = outputs
        limits = (np.int64(self.limit), np.float32(self.iou))
        least = None if self.least is None else np.float32(self.least)
        found = non_max_suppression(Call(), *inputs, *limits, least, center_point_box=int(self.centred))
        rows[...] = 0
        rows[: len(found)] = found
        count[...] = len(found)
