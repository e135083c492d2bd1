"""LSTM, GRU, RNN → one contraction for the inputs of all steps, one Recurrent step for the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, I32, Expr, apply, const, load
from graphdoc.engine.kernels.recurrent import GATES, Recurrent, packed
from graphdoc.engine.lower import NotLowered, Site, constant, content, lowering
from graphdoc.engine.lower_products import contract
from graphdoc.engine.ops.recurrent import Layer
from graphdoc.engine.program import View

_KNOWN = {
    "sigmoid": lambda x: apply("sigmoid", x),
    "tanh": lambda x: apply("tanh", x),
    "relu": lambda x: apply("max", x, const(0, F32)),
}
"""Activations that have no parameters and an expression; a node with others runs on level 0."""

_DEFAULT = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True, slots=True)
class _Node:
    """What LSTM, GRU and RNN share of a node's inputs."""

    X: View
    W: View
    R: View
    B: View | None
    lens: View | None
    initial_h: View | None


def _activations(cell: str, layer: Layer, directions: int) -> tuple[Expr, ...]:
    """Return the activations, with the bound that ``clip`` puts on the inputs of all but LSTM's h."""
    default = _DEFAULT[cell]
    names = [n.lower() for n in layer.activations] or list(default) * directions
    each = [tuple(names[d * len(default) : (d + 1) * len(default)]) for d in range(directions)]
    if any(part != each[0] for part in each) or any(n not in _KNOWN for n in each[0]):
        raise NotLowered(f"activations {', '.join(names)}")
    bounded = _clipped(layer.clip)
    inputs = [bounded if k < 2 else load(0, F32) for k in range(len(default))]
    return tuple(_KNOWN[name](x) for name, x in zip(each[0], inputs, strict=True))


def _clipped(clip: float | None) -> Expr:
    x = load(0, F32)
    if clip is None or clip <= 0:
        return x
    return apply("min", apply("max", x, const(-clip, F32)), const(clip, F32))


def _lower(
    at: Site,
    cell: str,
    node: _Node,
    layer: Layer,
    initial_c: View | None = None,
    before_reset: bool = False,
) -> tuple[View, ...]:
    """Add the steps of a recurrent layer; return Y, Y_h and, of an LSTM, Y_c."""
    floats = [v for v in (node.X, node.W, node.R, node.B, node.initial_h, initial_c) if v is not None]
    if any(v.dtype != F32 for v in floats):
        raise NotLowered("other dtypes than float32")
    directions, hidden, gates = len(layer.reversed), node.R.shape[2], GATES[cell]
    if node.R.shape != (directions, gates * hidden, hidden) or node.W.shape[:2] != node.R.shape[:2]:
        raise NotLowered("weights that do not fit")
    x = node.X.permuted([1, 0, 2]) if layer.layout else node.X
    weights = at.known(node.R, "R")
    recurrence = constant(np.stack([packed(r, gates) for r in weights]), at.name)
    bias, rest = _biases(at, node.B, gates, hidden, before_reset)
    products = _inputs(at, x, node.W, bias, gates)
    batch = (directions, x.shape[1], hidden)
    states = [_first(node.initial_h, layer, batch, at)]
    states += [_first(initial_c, layer, batch, at)] if cell == "LSTM" else []
    states += [_constant(rest, at).broadcast((directions, hidden))] if before_reset else []
    y = at.fresh((x.shape[0], directions, x.shape[1], hidden), F32)
    last = [at.fresh(batch, F32) for _ in range(2 if cell == "LSTM" else 1)]
    if node.lens is not None:
        states.append(at.cast(node.lens, I32))
    acts = _activations(cell, layer, directions)
    spec = Recurrent(cell, layer.reversed, acts, before_reset, node.lens is not None)
    at.step(spec, [products, recurrence, *states], [y.permuted([1, 0, 2, 3]), *last])
    if layer.layout:
        return (y.permuted([2, 0, 1, 3]), *(v.permuted([1, 0, 2]) for v in last))
    return (y, *last)


def _constant(array: Any, at: Site) -> View:
    return constant(np.ascontiguousarray(array, np.float32), at.name)


def _biases(at: Site, B: View | None, gates: int, hidden: int, before_reset: bool) -> tuple[Any, Any]:
    """Return the biases (d, gates · hidden) to add to the inputs' products, and that of GRU's Rh apart."""
    if B is None:
        return None, np.zeros((1, hidden), np.float32)
    both = np.asarray(at.known(B, "B")).reshape(B.shape[0], 2, gates, hidden)
    total = both.sum(axis=1)
    if before_reset:
        total[:, 2] = both[:, 0, 2]
    return total.reshape(B.shape[0], -1), both[:, 1, -1]


def _inputs(at: Site, x: View, W: View, bias: Any, gates: int) -> View:
    """Return x (t, b, i) · W (d, gates · hidden, i) + bias, as (d, t, b, gates, hidden)."""
    directions, units, _ = W.shape
    out = at.fresh((directions, *x.shape[:2], units), F32)
    a = x.broadcast((directions, *x.shape))
    extra = [] if bias is None else [_constant(bias.reshape(directions, 1, 1, units), at)]

    def finish(total: Expr, *terms: Expr) -> Expr:
        return apply("add", total, terms[0]) if terms else total

    contract(at, (1, 2, 1), a, W.permuted([0, 2, 1]), out, finish, extra)
    split = out.reshaped((*out.shape[:3], gates, units // gates))
    assert split is not None  # noqa: S101  # a fresh buffer is row-major
    return split


def _first(given: View | None, layer: Layer, shape: Sequence[int], at: Site) -> View:
    """Return a state before the first step, as (d, b, hidden)."""
    if given is None:
        return _constant(np.zeros((1, 1, 1)), at).broadcast(shape)
    array = content(given)
    view = given if array is None else constant(array, at.name)
    return view.permuted([1, 0, 2]) if layer.layout else view


@lowering("LSTM")
def lstm(
    at: Site,
    X: View,
    W: View,
    R: View,
    B: View | None = None,
    sequence_lens: View | None = None,
    initial_h: View | None = None,
    initial_c: View | None = None,
    P: View | None = None,
    *,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[View, ...]:
    """Long short-term memory without peepholes."""
    if P is not None or input_forget:
        raise NotLowered("peepholes, or forgetting tied to the input")
    node = _Node(X, W, R, B, sequence_lens, initial_h)
    return _lower(at, "LSTM", node, Layer(**attributes), initial_c)


@lowering("GRU")
def gru(
    at: Site,
    X: View,
    W: View,
    R: View,
    B: View | None = None,
    sequence_lens: View | None = None,
    initial_h: View | None = None,
    *,
    linear_before_reset: int = 0,
    **attributes: Any,
) -> tuple[View, ...]:
    """A gated recurrent unit, the reset before or after the product."""
    node = _Node(X, W, R, B, sequence_lens, initial_h)
    return _lower(at, "GRU", node, Layer(**attributes), before_reset=bool(linear_before_reset))


@lowering("RNN")
def rnn(
    at: Site,
    X: View,
    W: View,
    R: View,
    B: View | None = None,
    sequence_lens: View | None = None,
    initial_h: View | None = None,
    **attributes: Any,
) -> tuple[View, ...]:
    """The plain recurrent layer."""
    return _lower(at, "RNN", _Node(X, W, R, B, sequence_lens, initial_h), Layer(**attributes))
