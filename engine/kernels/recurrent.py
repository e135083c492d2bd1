"""Recurrent layers: the loop over time, products with the inputs done beforehand for all steps."""

from collections.abc import Callable, Sequence
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
    codes: of an LSTM without lengths, the weights of the recurrence are int8, packed by :func:`packed_codes`
        (d, blocks, hidden/2 rounded up, gates, 16, 2), and each step takes h, quantised to uint8 over the
        range of all rows, times them: an exact sum, times the scale of h times that of the column.

    Inputs: x·W + biases (d, t, b, gates, hidden); the weights of the recurrence, packed by :func:`packed`
    (d, blocks, gates, hidden, 16); the first h (d, b, hidden); then LSTM's first c (d, b, hidden), or the
    bias of GRU's product with Rh (d, hidden) if before_reset (it is not in the first input then); then the
    lengths (b), int32, if there are any; then, of one with codes, the scales of the recurrence's columns
    (d, gates, hidden).
    Outputs: y (d, t, b, hidden), the last h (d, b, hidden), and LSTM's last c.
    """

    cell: str
    reverse: tuple[bool, ...]
    activations: tuple[Expr, ...]
    before_reset: bool = False
    lengths: bool = False
    codes: bool = False

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy, direction by direction, step by step."""
        steps, batch = inputs[0].shape[1:3]
        lengths = np.minimum(inputs[-1], steps) if self.lengths else np.full(batch, steps)
        rows = np.arange(batch)
        for d, reverse in enumerate(self.reverse):
            given = [x[d] for x in (inputs[:-1] if self.lengths else inputs)]
            written = [x[d] for x in outputs]
            times = self._recurrence(given, written[0].shape[-1])
            state = [x.copy() for x in given[2 : 4 if self.cell == "LSTM" else 3]]
            for step in range(steps):
                alive = step < lengths
                t = np.where(alive & reverse, lengths - 1 - step, step)
                found = self._step(given[0][t, rows], times, state, given[3:])
                state = [np.where(alive[:, None], n, old) for n, old in zip(found, state, strict=True)]
                written[0][t, rows] = np.where(alive[:, None], found[0], 0)
            for target, last in zip(written[1:], state, strict=False):
                target[...] = last

    def _recurrence(self, given: Sequence[Any], hidden: int) -> Callable[[Any, int], Any]:
        """Return the product of a state and the weights of a gate."""
        if not self.codes:
            r = unpacked(given[1], hidden)
            return lambda h, gate: h @ r[:, gate]
        codes = unpacked_codes(given[1], hidden).astype(np.float64)
        return lambda h, gate: _product_of_codes(h, codes[:, gate], given[-1][gate])

    def _step(
        self, x: Any, times: Callable[[Any, int], Any], state: list[Any], rest: Sequence[Any]
    ) -> list[Any]:
        """Return the next state. x: (b, gates, hidden)."""
        h = state[0]
        act = [lambda v, e=e: evaluate((e,), {0: v}, v.shape)[0] for e in self.activations]
        if self.cell == "RNN":
            return [act[0](x[:, 0] + times(h, 0))]
        if self.cell == "LSTM":
            i, o, f = (act[0](x[:, g] + times(h, g)) for g in range(3))
            c = f * state[1] + i * act[1](x[:, 3] + times(h, 3))
            return [o * act[2](c), c]
        z, reset = (act[0](x[:, g] + times(h, g)) for g in range(2))
        inner = reset * (times(h, 2) + rest[0]) if self.before_reset else times(reset * h, 2)
        return [(1 - z) * act[1](x[:, 2] + inner) + z * h]


def _product_of_codes(h: Any, codes: Any, scales: Any) -> Any:
    """Return h, quantised to uint8 over its range and 0, times codes (hidden, n) and their scales (n)."""
    low, high = np.minimum(h.min(), 0), np.maximum(h.max(), 0)
    scale = np.float32(high - low) / np.float32(255)
    scale = np.float32(1) if scale == 0 else scale
    zero = np.rint(np.clip(-low / scale, 0, 255))
    centred = np.clip(np.rint(h / scale), -zero, 255 - zero).astype(np.float64)
    return (centred @ codes).astype(np.float32) * (scale * scales)


def packed_codes(r: Any, gates: int) -> Any:
    """Return int8 weights (hidden, gates · hidden) as (blocks, hidden/2 rounded up, gates, 16, 2)."""
    lines = packed(r.T, gates).swapaxes(1, 2)
    blocks, hidden, _, _ = lines.shape
    pairs = np.zeros((blocks, hidden + hidden % 2, gates, WIDTH), r.dtype)
    pairs[:, :hidden] = lines
    return np.ascontiguousarray(pairs.reshape(blocks, -1, 2, gates, WIDTH).transpose(0, 1, 3, 4, 2))


def unpacked_codes(r: Any, hidden: int) -> Any:
    """Return packed codes as (hidden before, gates, hidden after)."""
    blocks, pairs, gates, _, _ = r.shape
    lines = r.transpose(0, 2, 1, 4, 3).reshape(blocks, gates, 2 * pairs, WIDTH)
    return unpacked(lines, hidden)[:hidden]


def packed(r: Any, gates: int) -> Any:
    """Return weights (gates · hidden, hidden) as (blocks of 16 units, gates, hidden, 16), zeros added."""
    hidden = r.shape[1]
    blocks = -(-hidden // WIDTH)
    wide = np.zeros((gates, blocks * WIDTH, hidden), r.dtype)
    wide[:, :hidden] = r.reshape(gates, hidden, hidden)
    return np.ascontiguousarray(wide.reshape(gates, blocks, WIDTH, hidden).transpose(1, 0, 3, 2))


def unpacked(r: Any, hidden: int) -> Any:
    """Return packed weights as (hidden before, gates, hidden after)."""
    _, gates, before, _ = r.shape
    return r.transpose(2, 1, 0, 3).reshape(before, gates, -1)[..., :hidden]
