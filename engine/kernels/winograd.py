"""3×3 convolutions of stride 1 with fewer multiplications (Winograd's minimal filtering, by Toom and Cook).

A tile of size × size outputs is a sum over channels of products in a transformed space: (size + 2)² of them
instead of 9 · size². Rounding differs: against the direct sum's, about half the error for size 2, and 1.5 to
1.8 times for size 4 over the points 0, ±√½, ±√2, nearer to 1 than the usual 0, ±1, ±2 (4 to 6 times).
A NaN or an infinity of the image spreads over the tile it lies in; the direct sum keeps it to its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphdoc.engine.expr import Dtype, Expr, evaluate

POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))}
"""The finite points at which the polynomials of a tile of this size are multiplied; infinity is the last."""


@cache
def transforms(size: int) -> tuple[Any, Any, Any]:
    """Return the matrices Aᵀ (size × p), G (p × 3) and Bᵀ (p × p) of F(size, 3), p = size + 2, in float64.

    The outputs of a row are Aᵀ · ((G · weights) ⊙ (Bᵀ · inputs)).
    """
    points, p = POINTS[size], size + 2
    out, weights, inputs = np.zeros((size, p)), np.zeros((p, 3)), np.zeros((p, p))
    for j, x in enumerate(points):
        others = [y for y in points if y != x]
        out[:, j] = [x**i for i in range(size)]
        weights[j] = np.array([1, x, x * x]) / np.prod([x - y for y in others])
        inputs[j, : p - 1] = np.poly(others)[::-1]
    out[size - 1, p - 1] = weights[p - 1, 2] = 1
    inputs[p - 1] = np.poly(points)[::-1]
    return out, weights, inputs


def transformed(weights: Any, size: int, width: int) -> Any:
    """Return weights (3, 3, c, n) as panels (n/width rounded up, (size + 2)², c, width), n padded by 0.

    Computed in float64 and rounded once to the weights' dtype.
    """
    g = transforms(size)[1]
    c, n = weights.shape[2:]
    half = np.tensordot(g, weights.astype(np.float64), (1, 0))
    spread = g @ half.reshape(size + 2, 3, c * n)
    count = -(-n // width)
    padded = np.zeros(((size + 2) ** 2, c, count * width))
    padded[..., :n] = spread.reshape(-1, c, n)
    lines = padded.reshape(-1, c, count, width).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(lines).astype(weights.dtype)


@dataclass(frozen=True, slots=True)
class Winograd:
    """out[n, y, x, o] = epilogue(sum of a[n, y, x, ky, kx, c] · w[ky, kx, c, o], inputs at [n, y, x, o]).

    size: outputs of a tile along y and x, 2 or 4; the output has at least as many along both.
    inputs: the window view a of shape (n, y, x, 3, 3, c), neighbouring windows one pixel of the image apart;
        ``transformed(w, size, packed)``; then any number of shape (n, y, x, o), as a contraction has them.
    """

    size: int
    epilogue: Expr
    accumulate: Dtype
    packed: int

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy: in float64, rounded to ``accumulate`` before the epilogue."""
        out = outputs[0]
        total = np.empty(out.shape, self.accumulate)
        for y in self.starts(out.shape[1]):
            for x in self.starts(out.shape[2]):
                tile = self._tile(inputs[0], inputs[1], y, x)
                total[:, y : y + self.size, x : x + self.size] = tile[..., : out.shape[-1]]
        operands = {-1: total, **{k: value for k, value in enumerate(inputs) if k >= 2}}
        (out[...],) = evaluate((self.epilogue,), operands, out.shape)

    def starts(self, count: int) -> list[int]:
        """Return where the tiles along an axis of ``count`` outputs begin: the last ones may overlap."""
        return [min(at, count - self.size) for at in range(0, count, self.size)]

    def _tile(self, a: Any, w: Any, y: int, x: int) -> Any:
        """Return the outputs (n, size, size, o) of the tiles at (y, x)."""
        out, _, image = transforms(self.size)
        size = self.size
        patch = np.empty((a.shape[0], size + 2, size + 2, a.shape[-1]))
        for i in range(size + 2):
            for j in range(size + 2):
                ky, kx = max(0, i - size + 1), max(0, j - size + 1)
                patch[:, i, j] = a[:, y + i - ky, x + j - kx, ky, kx]
        spread = np.einsum("ia,nabc,jb->ijnc", image, patch, image).reshape(-1, *patch.shape[::3])
        product = np.einsum("pnc,lpcw->pnlw", spread, w.astype(np.float64))
        flat = product.reshape(size + 2, size + 2, a.shape[0], -1)
        return np.einsum("ia,abno,jb->nijo", out, flat, out)
