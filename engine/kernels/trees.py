"""Tree ensembles: every row of features walks down all trees, what the leaves say is added up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOGETHER = 16
"""Trees walked at once: their loads overlap."""

FEATURES = 1 << 12
"""Bits 32 to 43 of a record hold the feature, 44 whether NaN takes the true branch, 45 up the children."""

TRACKS, CHILDREN = 44, 45
PAIRS = 1 << (64 - CHILDREN)


@dataclass(frozen=True, slots=True)
class Trees:
    """out[n, c] = sum over trees of what the leaf says for c that x[n] reaches, added tree after tree.

    greater: a node's test is feature >= split instead of feature <= split. missing: "none", "all" or "some"
        of the nodes let NaN take the true branch; elsewhere it takes the false one.
    Inputs: x (n, features), float32; records, uint64 (see below); the first record of each tree, int64, of a
        multiple of 16 trees; how many steps each 16 trees take, int64; the leaves' values (leaves, columns),
        float32, unless there is but one column. Output: (n, c), float32, c <= columns.

    A record is a split (float32 in the low half), a feature, and the number of a pair of records of its tree:
    the true child, then the false one. Of a leaf it is the value (one column) or the leaf's row in the low
    half, and a pair that leads back to such leaves.
    """

    greater: bool
    missing: str

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy: all rows and the trees of a group a step at a time."""
        x, records, roots, steps = inputs[:4]
        total = np.zeros(outputs[0].shape, np.float32)
        for group, depth in enumerate(steps):
            first = roots[group * TOGETHER : (group + 1) * TOGETHER]
            at = np.zeros((len(x), TOGETHER), np.int64)
            for _ in range(int(depth)):
                at = self._next(x, records[first + at])
            low = (records[first + at] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            for tree in range(TOGETHER):
                total += (
                    low[:, tree : tree + 1].view(np.float32)
                    if len(inputs) == 4
                    else (inputs[4][low[:, tree], : total.shape[1]])
                )
        outputs[0][...] = total

    def _next(self, x: Any, records: Any) -> Any:
        """Return where each (row, tree) goes on. records: [rows, trees]."""
        split = (records & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
        feature = ((records >> np.uint64(32)) & np.uint64(FEATURES - 1)).astype(np.int64)
        value = x[np.arange(len(x))[:, None], feature]
        holds = value >= split if self.greater else value <= split
        tracks = (records >> np.uint64(TRACKS)) & np.uint64(1) == 1
        holds |= np.isnan(value) & (tracks if self.missing == "some" else self.missing == "all")
        return 2 * (records >> np.uint64(CHILDREN)).astype(np.int64) + ~holds
