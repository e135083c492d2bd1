"""Recurrent layers: the loop over time, products with the inputs done beforehand for all steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import Expr, evaluate

WIDTH = 16
"""Hidden units of one gate that stand side by side in packed weights."""

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, slots=True)
class Recurrent:
    """LSTM, GRU or RNN over time, gates in ONNX's order; all float32.

    cell: "LSTM", "GRU" or "RNN". reverse: per direction, whether it runs from the last step to the first.
    activations: expressions of one input: f, g and h of LSTM, f and g of GRU, f of RNN.
    before_reset: GRU's linear_before_reset. lengths: rows of the batch have sequences of their own lengths:
        past its end y is 0 and the state stays; backwards, a row begins with its own last step.

    Inputs: x·W + biases (d, t, b, gates, hidden); the weights of the recurrence, packed by :func:`packed`
    (d, blocks, hidden, gates, 16); the first h (d, b, hidden); then LSTM's first c (d, b, hidden), or the
    bias of GRU's product with Rh (d, hidden) if before_reset (it is not in the first input then); then the
    lengths (b), int32, if there are any.
    Outputs: y (d, t, b, hidden), the last h (d, b, hidden), and LSTM's last c.
    """

    cell: str
    reverse: tuple[bool, ...]
    activations: tuple[Expr, ...]
    before_reset: bool = False
    lengths: bool = False

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy, direction by direction, step by step."""
        steps, batch = inputs[0].shape[1:3]
        lengths = np.minimum(inputs[-1], steps) if self.lengths else np.full(batch, steps)
        rows = np.arange(batch)
        for d, reverse in enumerate(self.reverse):
            given = [x[d] for x in (inputs[:-1] if self.lengths else inputs)]
            written = [x[d] for x in outputs]
            r = unpacked(given[1], written[0].shape[-1])
            state = [x.copy() for x in given[2 : 4 if self.cell == "LSTM" else 3]]
            for step in range(steps):
                alive = step < lengths
                t = np.where(alive & reverse, lengths - 1 - step, step)
                found = self._step(given[0][t, rows], r, state, given[3:])
                state = [np.where(alive[:, None], n, old) for n, old in zip(found, state, strict=True)]
                written[0][t, rows] = np.where(alive[:, None], found[0], 0)
            for target, last in zip(written[1:], state, strict=False):
                target[...] = last

    def _step(self, x: Any, r: Any, state: list[Any], rest: Sequence[Any]) -> list[Any]:
        """Return the next state. x: (b, gates, hidden). r: (hidden, gates, hidden)."""
        h = state[0]
        act = [lambda v, e=e: evaluate((e,), {0: v}, v.shape)[0] for e in self.activations]
        if self.cell == "RNN":
            return [act[0](x[:, 0] + h @ r[:, 0])]
        if self.cell == "LSTM":
            i, o, f = (act[0](x[:, g] + h @ r[:, g]) for g in range(3))
            c = f * state[1] + i * act[1](x[:, 3] + h @ r[:, 3])
            return [o * act[2](c), c]
        z, reset = (act[0](x[:, g] + h @ r[:, g]) for g in range(2))
        inner = reset * (h @ r[:, 2] + rest[0]) if self.before_reset else (reset * h) @ r[:, 2]
        return [(1 - z) * act[1](x[:, 2] + inner) + z * h]


def packed(r: Any, gates: int) -> Any:
    """Return weights (gates · hidden, hidden) as (blocks of 16 units, hidden, gates, 16), zeros added."""
    hidden = r.shape[1]
    blocks = -(-hidden // WIDTH)
    wide = np.zeros((gates, blocks * WIDTH, hidden), r.dtype)
    wide[:, :hidden] = r.reshape(gates, hidden, hidden)
    return np.ascontiguousarray(wide.reshape(gates, blocks, WIDTH, hidden).transpose(1, 3, 0, 2))


def unpacked(r: Any, hidden: int) -> Any:
    """Return packed weights as (hidden before, gates, hidden after)."""
    _, before, gates, _ = r.shape
    return np.moveaxis(r, 0, 2).reshape(before, gates, -1)[..., :hidden]
