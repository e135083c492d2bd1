"""Reverse passes through RNN, GRU and LSTM: the loop over time with all states kept, then backwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.recurrent import Layer
from graphdoc.engine.ops.table import Array
from graphdoc.engine.vjp_rules import STEP, Node, NoRuleError, Parts, rule

State = tuple[Array, ...]
"""What a cell carries from step to step: (H,) or (H, C), each (B, H)."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation with the bound put on its input."""

    name: str
    function: Callable[[Array], Array]
    clip: float

    def __call__(self, x: Array) -> Array:
        result: Array = self.function(np.clip(x, -self.clip, self.clip) if self.clip else x)
        return result

    def slope(self, x: Array, y: Array) -> Array:
        """Return the derivative at x, where the value is y."""
        if self.name == "sigmoid":
            found = y * (1 - y)
        elif self.name == "tanh":
            found = 1 - y * y
        else:
            wide_x = x.astype(np.float64)
            found = (self.function(wide_x + STEP) - self.function(wide_x - STEP)) / (2 * STEP)
        return found * (np.abs(x) < self.clip) if self.clip else found


class Cell(Protocol):
    """One step of a recurrent layer, forwards and backwards."""

    def forwards(self, inputs: Array, state: State) -> tuple[State, Any]:
        """Return the new state and what going back needs. inputs: (B, gates·H)."""

    def backwards(self, saved: Any, wanted: State) -> tuple[Array, State]:
        """Return the cotangents of inputs and old state from those of the new state."""

    def of_recurrence(self, saved: Any, da: Array) -> tuple[Array, Array]:
        """Return the cotangents of the recurrence weights (gates·H, H) and of their bias (gates·H)."""


@dataclass(frozen=True, slots=True)
class Simple:
    """RNN: H = f(x + H R). recurrence: (H, H)."""

    recurrence: Array
    functions: Sequence[Activation]

    def forwards(self, inputs: Array, state: State) -> tuple[State, Any]:
        """See Cell."""
        a = inputs + state[0] @ self.recurrence
        h = self.functions[0](a)
        return (h,), (a, h, state[0])

    def backwards(self, saved: Any, wanted: State) -> tuple[Array, State]:
        """See Cell."""
        da = wanted[0] * self.functions[0].slope(*saved[:2])
        return da, (da @ self.recurrence.T,)

    def of_recurrence(self, saved: Any, da: Array) -> tuple[Array, Array]:
        """See Cell."""
        return da.T @ saved[2], da.sum(axis=0)


@dataclass(frozen=True, slots=True)
class Gated:
    """GRU, gates z, r, h. bias: the hidden gate's, where the reset gate scales it; else None."""

    recurrence: Array
    functions: Sequence[Activation]
    bias: Array | None

    def forwards(self, inputs: Array, state: State) -> tuple[State, Any]:
        """See Cell."""
        f, g = self.functions
        old, n = state[0], self.recurrence.shape[0]
        a = inputs[:, : 2 * n] + old @ self.recurrence[:, : 2 * n]
        z, r = np.split(f(a), 2, axis=1)
        of_hidden = self.recurrence[:, 2 * n :]
        inner = (r * old) @ of_hidden if self.bias is None else old @ of_hidden + self.bias
        b = inputs[:, 2 * n :] + (inner if self.bias is None else r * inner)
        hidden = g(b)
        return ((1 - z) * hidden + z * old,), (old, a, z, r, inner, b, hidden)

    def backwards(self, saved: Any, wanted: State) -> tuple[Array, State]:
        """See Cell."""
        f, g = self.functions
        old, a, z, r, inner, b, hidden = saved
        dh, n = wanted[0], old.shape[1]
        db = dh * (1 - z) * g.slope(b, hidden)
        of_hidden = self.recurrence[:, 2 * n :]
        back = (db if self.bias is None else db * r) @ of_hidden.T
        dr, to_old = (back * old, back * r) if self.bias is None else (db * inner, back)
        da = np.concatenate([dh * (old - hidden), dr], axis=1) * f.slope(a, np.concatenate([z, r], axis=1))
        d_old = dh * z + to_old + da @ self.recurrence[:, : 2 * n].T
        return np.concatenate([da, db], axis=1), (d_old,)

    def of_recurrence(self, saved: Any, da: Array) -> tuple[Array, Array]:
        """See Cell."""
        old, r, n = saved[0], saved[3], saved[0].shape[1]
        gates, hidden = da[:, : 2 * n], da[:, 2 * n :]
        if self.bias is None:
            reset, read = hidden, r * old
        else:
            reset, read = hidden * r, old
        by_bias = np.concatenate([gates, reset], axis=1).sum(axis=0)
        return np.concatenate([gates.T @ old, reset.T @ read]), by_bias


@dataclass(frozen=True, slots=True)
class Memory:
    """LSTM, gates i, o, f, c. peepholes: (3, H) in the order i, o, f."""

    recurrence: Array
    functions: Sequence[Activation]
    peepholes: Array
    input_forget: int

    def forwards(self, inputs: Array, state: State) -> tuple[State, Any]:
        """See Cell."""
        f, g, h = self.functions
        old = state[1]
        a_i, a_o, a_f, a_c = np.split(inputs + state[0] @ self.recurrence, 4, axis=1)
        a_i, a_f = a_i + self.peepholes[0] * old, a_f + self.peepholes[2] * old
        i, c = f(a_i), g(a_c)
        forget = 1 - i if self.input_forget else f(a_f)
        cell = forget * old + i * c
        a_o = a_o + self.peepholes[1] * cell
        o = f(a_o)
        return (o * h(cell), cell), (old, (a_i, a_o, a_f, a_c), (i, o, forget, c), cell, state[0])

    def backwards(self, saved: Any, wanted: State) -> tuple[Array, State]:
        """See Cell."""
        f, g, h = self.functions
        old, (a_i, a_o, a_f, a_c), (i, o, forget, c), cell, _ = saved
        out = h(cell)
        d_o = wanted[0] * out * f.slope(a_o, o)
        d_cell = wanted[1] + wanted[0] * o * h.slope(cell, out) + d_o * self.peepholes[1]
        d_i = d_cell * (c - old if self.input_forget else c) * f.slope(a_i, i)
        d_f = np.zeros_like(d_i) if self.input_forget else d_cell * old * f.slope(a_f, forget)
        d_c = d_cell * i * g.slope(a_c, c)
        d_old = d_cell * forget + d_i * self.peepholes[0] + d_f * self.peepholes[2]
        da = np.concatenate([d_i, d_o, d_f, d_c], axis=1)
        return da, (da @ self.recurrence.T, d_old)

    def of_recurrence(self, saved: Any, da: Array) -> tuple[Array, Array]:
        """See Cell."""
        return da.T @ saved[4], da.sum(axis=0)


# ---- the loop over time --------------------------------------------------------------------------------


@rule("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> Parts:
    """Cotangents of X, of the weights and their bias, and of the initial states."""
    x = node.inputs[0]
    if any(node.wanted[7:]):
        raise NoRuleError("its peepholes change with the data")
    if not x.size:
        raise NoRuleError("it has no steps")
    names = [f.name for f in fields(Layer)]
    layer = Layer(**{k: v for k, v in node.attributes.items() if k in names})
    states = 2 if node.op == "LSTM" else 1
    outputs = [_arranged(node, place, layer) for place in range(min(len(node.outputs), 1 + states))]
    x = wide(x.swapaxes(0, 1) if layer.layout else x)
    parts = [
        _direction(node, layer, d, x, outputs, states, backwards=backwards)
        for d, backwards in enumerate(layer.reversed)
    ]
    dx = sum(part[0] for part in parts)
    first = [np.stack([part[1][k] for part in parts]) for k in range(states)]
    if layer.layout:
        dx, first = dx.swapaxes(0, 1), [s.swapaxes(0, 1) for s in first]
    weights = [np.stack(rows) for rows in zip(*(part[2] for part in parts), strict=True)]
    return (dx, *(weights or (None,) * 3), None, *first)


def _arranged(node: Node, place: int, layer: Layer) -> Array | None:
    """Return an output's cotangent in the layout that puts time, then directions, first."""
    given = node.cotangents[place]
    if given is None or not layer.layout:
        return given
    return given.transpose(1, 2, 0, 3) if place == 0 else given.swapaxes(0, 1)


def _direction(
    node: Node,
    layer: Layer,
    d: int,
    x: Array,
    outputs: Sequence[Array | None],
    states: int,
    *,
    backwards: bool,
) -> tuple[Array, State, tuple[Array, ...]]:
    """Return the cotangents of x (T, B, I), of the initial states, and of W, R and B where asked for."""
    cell, bias = _cell(node, layer, d)
    weights = wide(node.inputs[1][d])
    lengths = node.inputs[4] if len(node.inputs) > 4 else None
    order = _order(x, lengths, backwards=backwards)
    inputs = x[order] @ weights.T + bias
    alive = _alive(x, lengths)
    start = tuple(_initial(node, layer, 5 + k, d, x.shape[1], weights.dtype) for k in range(states))
    saved = _forwards(cell, inputs, start, alive)
    dy = None if outputs[0] is None else outputs[0][:, d][order]
    last = tuple(
        np.zeros_like(start[k]) if len(outputs) < k + 2 or outputs[k + 1] is None else outputs[k + 1][d]  # type: ignore[index]
        for k in range(states)
    )
    da, first = _backwards(cell, saved, dy, last, alive)
    dx = np.empty(x.shape, da.dtype)
    dx[order] = da @ weights
    if not any(node.wanted[1:4]):
        return dx, first, ()
    recurrences, biases = zip(*map(cell.of_recurrence, saved, da), strict=True)
    dw = np.tensordot(da, x[order], axes=([0, 1], [0, 1]))
    return dx, first, (dw, sum(recurrences), np.concatenate([da.sum(axis=(0, 1)), sum(biases)]))


def _order(x: Array, lengths: Array | None, *, backwards: bool) -> tuple[Array, Array]:
    """Return the indices that put each sequence into the order in which the direction reads it."""
    steps = np.arange(x.shape[0])[:, None]
    size = np.full(x.shape[1], x.shape[0]) if lengths is None else lengths
    order = np.where(steps < size, size - 1 - steps, steps) if backwards else steps + 0 * size
    return order, np.broadcast_to(np.arange(x.shape[1]), order.shape)


def _alive(x: Array, lengths: Array | None) -> Array:
    """Return (T, B, 1): whether a step lies inside its sequence."""
    steps = np.arange(x.shape[0])[:, None]
    inside = steps < (np.full(x.shape[1], x.shape[0]) if lengths is None else lengths)
    return inside[:, :, None]


def _initial(node: Node, layer: Layer, place: int, d: int, batch: int, dtype: Any) -> Array:
    given = node.inputs[place] if len(node.inputs) > place else None
    if given is None:
        return np.zeros((batch, node.inputs[2].shape[2]), dtype)
    return wide(given[:, d] if layer.layout else given[d])


def _forwards(cell: Cell, inputs: Array, state: State, alive: Array) -> list[Any]:
    saved = []
    for step in range(inputs.shape[0]):
        new, kept = cell.forwards(inputs[step], state)
        saved.append(kept)
        state = tuple(np.where(alive[step], n, old) for n, old in zip(new, state, strict=True))
    return saved


def _backwards(
    cell: Cell, saved: Sequence[Any], dy: Array | None, wanted: State, alive: Array
) -> tuple[Array, State]:
    """Return the cotangents of all inputs (T, B, gates·H) and of the first state."""
    found: list[Array] = []
    for step in range(len(saved) - 1, -1, -1):
        inside = alive[step]
        here = tuple(w * inside for w in wanted)
        if dy is not None:
            here = (here[0] + dy[step] * inside, *here[1:])
        da, old = cell.backwards(saved[step], here)
        found.append(da)
        wanted = tuple(o + w * ~inside for o, w in zip(old, wanted, strict=True))
    return np.stack(found[::-1]), wanted


def _cell(node: Node, layer: Layer, d: int) -> tuple[Cell, Array]:
    """Return a direction's cell, and the bias that its inputs get."""
    recurrence = wide(node.inputs[2][d]).T
    n = recurrence.shape[0]
    given = node.inputs[3] if len(node.inputs) > 3 else None
    gates = recurrence.shape[1] // n
    b = np.zeros(2 * gates * n, recurrence.dtype) if given is None else wide(given[d])
    bias = b[: gates * n] + b[gates * n :]
    functions = _functions(node, layer, d)
    if node.op == "RNN":
        return Simple(recurrence, functions), bias
    if node.op == "LSTM":
        p = node.inputs[7] if len(node.inputs) > 7 else None
        peepholes = np.zeros((3, n), recurrence.dtype) if p is None else wide(p[d]).reshape(3, n)
        return Memory(recurrence, functions, peepholes, int(node.attributes.get("input_forget", 0))), bias
    if not node.attributes.get("linear_before_reset", 0):
        return Gated(recurrence, functions, None), bias
    bias[2 * n :] = b[2 * n : 3 * n]
    return Gated(recurrence, functions, b[5 * n :]), bias


_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _functions(node: Node, layer: Layer, d: int) -> list[Activation]:
    """Return the activations; the last of an LSTM sees a state, which nothing bounds."""
    default = _DEFAULTS[node.op]
    made = layer.functions(np, default)[d]
    names = list(layer.activations) or default * len(layer.reversed)
    own = [name.lower() for name in names[d * len(default) :]]
    clip = max(layer.clip or 0.0, 0.0)
    return [
        Activation(name, f, 0.0 if place == 2 else clip)
        for place, (name, f) in enumerate(zip(own, made, strict=False))
    ]
