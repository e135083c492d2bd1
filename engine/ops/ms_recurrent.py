"""DynamicQuantizeLSTM of com.microsoft (version 1): an LSTM with 8-bit weights."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops import recurrent
from graphdoc.engine.ops.matmul import product
from graphdoc.engine.ops.ms_quant import dynamically_quantised
from graphdoc.engine.ops.table import Array, Call, TensorType, op

MS = "com.microsoft"

Product = Callable[[Array], Array]


class _Weights:
    """8-bit weights [K, 4H] of one direction: a product quantises its float operand by its range first."""

    def __init__(self, call: Call, weight: Array, scale: Array, zero: Array) -> None:
        self._call = call
        centred = weight.astype(np.float32) - zero.astype(np.float32)
        # Sums of products of integers are exact in float32 below 2²⁴; centred uint8 lies within ±255.
        largest = abs(centred).sum(axis=0).max() * 255 if centred.size else 0
        self._weight = centred if largest < 1 << 24 else centred.astype(np.float64)
        self._scale = scale

    def __call__(self, x: Array) -> Array:
        quantised, scale, zero = dynamically_quantised(self._call, x)
        dtype = self._weight.dtype
        total = product(self._call.xp, quantised.astype(dtype) - zero.astype(dtype), self._weight)
        return total.astype(x.dtype) * (scale * self._scale)


def _of_direction(parameter: Array, direction: int, directions: int) -> Array:
    """Return a scale or zero point of one direction, [] or [4H].

    parameter: [directions], or [directions, 4H] with one entry per column.
    """
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape(directions, -1)[direction]


def _cell(
    xp: Any,
    layer: recurrent.Layer,
    recur: Product,
    functions: Sequence[Any],
    P: Array | None,
    forget_by_input: int,
) -> Any:
    """Return the LSTM cell; gates and peepholes lie in the order i, o, f(, c)."""
    f, g, h = functions
    clip = layer.clipped(xp)
    zero = np.float32(0)

    def cell(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        gate_i, gate_o, gate_f, gate_c = xp.split(inputs + recur(state[0]), 4, axis=1)
        peep_i, peep_o, peep_f = (zero, zero, zero) if P is None else xp.split(P, 3)
        i = f(clip(gate_i + peep_i * state[1]))
        forget = 1 - i if forget_by_input else f(clip(gate_f + peep_f * state[1]))
        new = forget * state[1] + i * g(clip(gate_c))
        return f(clip(gate_o + peep_o * new)) * h(new), new

    return cell


def _infer(
    call: Call, X: TensorType, W: TensorType, R: TensorType, *rest: Any, **attributes: Any
) -> tuple[TensorType, ...]:
    if X.shape is None or R.shape is None:
        return (TensorType(X.dtype),) * 3
    (steps, batch), directions, hidden = X.shape[:2], R.shape[0], R.shape[1]
    last = TensorType(X.dtype, (directions, batch, hidden))
    return TensorType(X.dtype, (steps, directions, batch, hidden)), last, last


@op("DynamicQuantizeLSTM", 1, domain=MS, infer=_infer)
def dynamic_quantize_lstm(
    call: Call,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    P: Array | None,
    W_scale: Array,
    W_zero_point: Array,
    R_scale: Array,
    R_zero_point: Array,
    *,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[Array, Array, Array]:
    """LSTM whose products quantise X (all of it at once) and the state (at each step) to uint8.

    com.microsoft version 1. X: float [T, B, I]; W: 8-bit [D, I, 4H], R: [D, H, 4H], transposed against
    LSTM's; their scales and zero points [D] or [D, 4H]. Other inputs, attributes and outputs as LSTM has.
    """
    xp, layer = call.xp, recurrent.Layer(**attributes)
    directions, hidden = R.shape[0], R.shape[1]
    if directions != len(layer.reversed) or W.shape[2] != 4 * hidden or R.shape[2] != 4 * hidden:
        raise ValueError(
            f"weights {list(W.shape)} and {list(R.shape)} do not fit direction '{layer.direction}'"
        )
    starts = [
        xp.zeros((directions, X.shape[1], hidden), X.dtype) if given is None else given
        for given in (initial_h, initial_c)
    ]
    outputs, states = [], []
    for d, functions in enumerate(layer.functions(xp, ["Sigmoid", "Tanh", "Tanh"])):
        enter, recur = (
            _Weights(call, w[d], _of_direction(scale, d, directions), _of_direction(zero, d, directions))
            for w, scale, zero in ((W, W_scale, W_zero_point), (R, R_scale, R_zero_point))
        )
        cell = _cell(xp, layer, recur, functions, None if P is None else P[d], input_forget)
        y, state = _direction(
            xp,
            cell,
            enter,
            X,
            B if B is None else B[d],
            sequence_lens,
            [s[d] for s in starts],
            layer.reversed[d],
        )
        outputs.append(y)
        states.append(state)
    last_h, last_c = (xp.stack(entries) for entries in zip(*states, strict=True))
    return xp.stack(outputs, axis=1), last_h, last_c


def _direction(
    xp: Any,
    cell: Any,
    enter: Product,
    x: Array,
    bias: Array | None,
    lengths: Array | None,
    start: Sequence[Array],
    backwards: bool,
) -> tuple[Array, tuple[Array, ...]]:
    """Run one direction over x [T, B, I] and return its outputs [T, B, H] and last states.

    Steps past the longest sequence count nowhere. The state of a sequence that has ended is part of the
    range that all are quantised by once more, and then 0; a sequence of length 0 ends in 0, whatever its
    initial state: ONNX Runtime's reading.
    """
    count = x.shape[0] if lengths is None or not lengths.size else int(lengths.max())
    ordered = (recurrent._reversed_steps(xp, x, lengths) if backwards else x)[:count]
    inputs = enter(ordered.reshape(-1, x.shape[2]))
    if bias is not None:
        inputs = inputs + bias[: bias.size // 2] + bias[bias.size // 2 :]
    y, state = xp.zeros((x.shape[0], *start[0].shape), x.dtype), tuple(start)
    hidden = state[0]
    for step, gates in enumerate(inputs.reshape(count, x.shape[1], -1)):
        new = cell(gates, (hidden, state[1]))
        if lengths is None:
            hidden, state = new[0], new
        else:
            alive = (step < lengths)[:, None]
            hidden = xp.where(alive, new[0], 0)
            state = tuple(xp.where(alive, one, old) for one, old in zip(new, state, strict=True))
        y[step] = hidden
    if lengths is not None:
        state = tuple(xp.where((lengths > 0)[:, None], entry, 0) for entry in state)
    return (recurrent._reversed_steps(xp, y, lengths) if backwards else y), state
