"""Attention: scores of queries and keys, their softmax, and the values weighted by it, in one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import Expr, evaluate


@dataclass(frozen=True, slots=True)
class Attention:
    """out[b, s, e] = sum over t of p[b, s, t] · v[b, t, e], p = softmax over t of score(q[b, s] · k[b, t]).

    batch: how many axes b stands for. Inputs: q (*b, s, d), k (*b, t, d), v (*b, t, e), all float32, then any
        number of shape (*b, s, t): masks, biases. Output: (*b, s, e), float32.
    score: float32, of the product (leaf ``input`` -1), of inputs 3 and up, and of positions in (*b, s, t): a
        scale, a mask.

    The views' strides say whether heads lie side by side, whether keys are shared by heads (0), and so on.
    A row of scores that are all -inf, or of which one is NaN, gives NaN, as softmax does; 0 if ``guarded``.
    """

    batch: int
    score: Expr
    guarded: bool = False

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy, one matrix product per index of b."""
        q, k, v = inputs[:3]
        product = np.matmul(q, np.swapaxes(k, -1, -2))
        operands = {-1: product, **{n: x for n, x in enumerate(inputs) if n >= 3}}
        (scores,) = evaluate((self.score,), operands, product.shape)
        with np.errstate(invalid="ignore"):
            power = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights = power / power.sum(axis=-1, keepdims=True)
        if self.guarded:
            weights = np.where(np.isnan(weights), np.float32(0), weights)
        outputs[0][...] = np.matmul(weights, v)
