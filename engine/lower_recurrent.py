"""LSTM, GRU, RNN → one contraction for the inputs of all steps, one Recurrent step for the loop.

With 8-bit weights both multiply codes: those of the inputs, all quantised at once, and those of the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, I32, Expr, apply, cast, const, load
from graphdoc.engine.kernels.recurrent import GATES, Recurrent, packed, packed_codes
from graphdoc.engine.lower import NotLowered, Site, constant, content, lowering
from graphdoc.engine.lower_products import contract
from graphdoc.engine.lower_quantize import dynamic_quantize_linear
from graphdoc.engine.ops.ms_fused import MS
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
    view = view.permuted([1, 0, 2]) if layer.layout else view
    if tuple(view.shape) != tuple(shape):
        raise NotLowered("a state that does not fit")
    return view


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


# ---- 8-bit weights ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Codes:
    """Constant weights (d, k, 4 · hidden), less their zero points, and the scales (d, 4 · hidden)."""

    codes: Any
    scales: Any


def _codes(at: Site, weights: View, scale: View, zero: View) -> _Codes:
    """Return weights as int8. Raises NotLowered where they are not constant, or 8 bits do not hold them."""
    codes = np.asarray(at.known(weights, "a weight"))
    directions, _, units = codes.shape
    zeros, scales = (
        np.broadcast_to(array.reshape(directions if array.size > 1 else 1, -1), (directions, units))
        for array in (np.asarray(at.known(v, "a scale or zero point")) for v in (zero, scale))
    )
    whole = codes.astype(np.int32) - zeros.astype(np.int32)[:, None]
    if whole.min(initial=0) < -128 or whole.max(initial=0) > 127:
        raise NotLowered("weights that 8 bits do not hold once their zero point is taken off")
    return _Codes(whole.astype(np.int8), np.ascontiguousarray(scales, np.float32))


@lowering("DynamicQuantizeLSTM", domain=MS)
def dynamic_quantize_lstm(
    at: Site,
    X: View,
    W: View,
    R: View,
    B: View | None,
    sequence_lens: View | None,
    initial_h: View | None,
    initial_c: View | None,
    P: View | None,
    W_scale: View,
    W_zero_point: View,
    R_scale: View,
    R_zero_point: View,
    *,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[View, ...]:
    """LSTM with 8-bit weights (d, i, 4 · hidden), (d, hidden, 4 · hidden); X and the state become uint8."""
    if P is not None or input_forget or sequence_lens is not None:
        raise NotLowered("peepholes, forgetting tied to the input, or lengths")
    if any(v is not None and v.dtype != F32 for v in (X, B, initial_h, initial_c)):
        raise NotLowered("other dtypes than float32")
    layer, gates, hidden = Layer(**attributes), GATES["LSTM"], R.shape[1]
    directions = len(layer.reversed)
    if R.shape != (directions, hidden, gates * hidden) or W.shape[0::2] != R.shape[0::2]:
        raise NotLowered("weights that do not fit")
    enter, recur = _codes(at, W, W_scale, W_zero_point), _codes(at, R, R_scale, R_zero_point)
    bias, _ = _biases(at, B, gates, hidden, before_reset=False)
    batch = (directions, X.shape[1], hidden)
    inputs = [
        _inputs_of_codes(at, X, enter, bias, gates),
        constant(np.stack([packed_codes(r, gates) for r in recur.codes]), at.name),
        *(_first(given, layer, batch, at) for given in (initial_h, initial_c)),
        _constant(recur.scales.reshape(directions, gates, hidden), at),
    ]
    y = at.fresh((X.shape[0], directions, X.shape[1], hidden), F32)
    last = [at.fresh(batch, F32) for _ in range(2)]
    spec = Recurrent("LSTM", layer.reversed, _activations("LSTM", layer, directions), codes=True)
    at.step(spec, inputs, [y.permuted([1, 0, 2, 3]), *last])
    return (y, *last)


def _inputs_of_codes(at: Site, x: View, weights: _Codes, bias: Any, gates: int) -> View:
    """Return x (t, b, i), quantised, · weights, plus bias, as (d, t, b, gates, hidden)."""
    codes, scale, zero = dynamic_quantize_linear(at, x)
    directions, _, units = weights.codes.shape
    columns = weights.codes.sum(axis=1, dtype=np.int32).reshape(directions, 1, 1, units)
    rows = [constant(columns, at.name), _constant(weights.scales.reshape(columns.shape), at)]
    rows += [] if bias is None else [_constant(bias.reshape(columns.shape), at)]

    def finish(total: Expr, z: Expr, s: Expr, column: Expr, factor: Expr, *more: Expr) -> Expr:
        total = apply("sub", total, apply("mul", cast(z, I32), column))
        y = apply("mul", cast(total, F32), apply("mul", s, factor))
        return apply("add", y, more[0]) if more else y

    out = at.fresh((directions, *x.shape[:2], units), F32)
    a = codes.broadcast((directions, *x.shape))
    contract(at, (1, 2, 1), a, constant(weights.codes, at.name), out, finish, [zero, scale, *rows])
    split = out.reshaped((*out.shape[:3], gates, units // gates))
    assert split is not None  # noqa: S101  # a fresh buffer is row-major
    return split
