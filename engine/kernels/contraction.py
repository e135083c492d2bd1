"""Sums of products: matrix products and convolutions of every kind, with what follows fused in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.expr import Dtype, Expr, evaluate

_PIECE = 1 << 21
"""Elements of a that NumPy puts side by side at a time: windows of an image take many times its memory."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """out[b, m, n] = epilogue(sum over k of a[b, m, k] · b[b, k, n], further inputs at [b, m, n]).

    batch, rows, terms: how many axes b, m and k stand for; n is one axis.
    inputs: a of shape (*b, *m, *k), b of shape (*b, *k, n), then any number of shape (*b, *m, n), input k of
        the epilogue being the view at position k. Output: (*b, *m, n).
    epilogue: of the sum (leaf ``input`` -1, of dtype ``accumulate``) and inputs 2 and up.
    accumulate: float32 or float64 for floats (float16 and bfloat16: float32), int32 for 8-bit codes: exact.
    packed: 0, or b is stored for the device as (*b, n/packed rounded up, k, packed): full lines of n.
    together: of a packed b, how many terms of a column stand side by side: 1, or b is stored as
        (*b, n/packed rounded up, k/together rounded up, packed, together), with 0 past the last term.

    A convolution is the contraction whose view of the padded image has axes (n, y, x | ky, kx, c): strides
    only.
    """

    batch: int
    rows: int
    terms: int
    epilogue: Expr
    accumulate: Dtype
    packed: int = 0
    together: int = 1

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy: one matrix product per batch, rows a few at a time."""
        out = outputs[0]
        outer, n = out.shape[: self.batch], out.shape[-1]
        rows = out.shape[self.batch : -1]
        a = inputs[0]
        terms = prod(a.shape[self.batch + self.rows :])
        b = self._plain(inputs[1], terms, n)
        b = b.reshape(*b.shape[: self.batch], terms, n).astype(self.accumulate, copy=False)
        total = np.empty((*outer, *rows, n), self.accumulate)
        for at in np.ndindex(*outer):
            for piece in _pieces(rows, terms):
                part = a[at][piece]
                shape = part.shape[: len(part.shape) - self.terms]
                lines = part.reshape(prod(shape), terms).astype(self.accumulate, copy=False)
                total[at][piece] = (lines @ b[at]).reshape(*shape, n)
        operands = {-1: total, **{k: x for k, x in enumerate(inputs) if k >= 2}}
        (out[...],) = evaluate((self.epilogue,), operands, out.shape)

    def _plain(self, b: Any, terms: int, n: int) -> Any:
        """Return b with its axes (batch, k, n) once more."""
        if not self.packed:
            return b
        if self.together > 1:
            b = np.moveaxis(b, -1, -2)
            b = b.reshape(*b.shape[:-3], b.shape[-3] * self.together, self.packed)[..., :terms, :]
        lines = np.moveaxis(b, -3, -2)
        return lines.reshape(*lines.shape[:-2], lines.shape[-2] * self.packed)[..., :n]


def _pieces(rows: tuple[int, ...], terms: int) -> Iterator[tuple[Any, ...]]:
    """Yield indices that cut the rows into pieces of at most _PIECE products' operands, one row at least."""
    axis = next((k for k in range(len(rows)) if prod(rows[k + 1 :]) * terms <= _PIECE), len(rows) - 1)
    if axis < 0:
        yield ()
        return
    step = max(1, _PIECE // max(1, prod(rows[axis + 1 :]) * terms))
    for lead in np.ndindex(*rows[:axis]):
        for start in range(0, rows[axis], step):
            yield (*lead, slice(start, start + step))
