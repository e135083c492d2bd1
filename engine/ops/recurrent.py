"""Recurrent layers: RNN, GRU, LSTM.

All inputs are multiplied at once; the loop over time holds one product with the recurrence weights per
step. float16 and bfloat16 are computed in float32 throughout and rounded once, states included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.table import Array, Call, TensorType, op

Activation: TypeAlias = Callable[[Array], Array]
State: TypeAlias = tuple[Array, ...]
Cell: TypeAlias = Callable[[Array, State], State]
"""(input product of one step (B, gates·H), state) → state; the state's first entry is the output (B, H)."""

# ---- activations ---------------------------------------------------------------------------------------


def _sigmoid(xp: Any, x: Array) -> Array:
    y = -x
    xp.exp(y, out=y)
    y += 1
    return xp.reciprocal(y, out=y)


def _softplus(xp: Any, x: Array) -> Array:
    return xp.logaddexp(x, xp.zeros((), x.dtype))


_PLAIN: dict[str, Callable[..., Array]] = {
    "relu": lambda xp, x: xp.maximum(x, 0),
    "tanh": lambda xp, x: xp.tanh(x),
    "sigmoid": _sigmoid,
    "softsign": lambda xp, x: x / (1 + xp.abs(x)),
    "softplus": _softplus,
}
"""Activations without parameters."""

_WITH_ALPHA: dict[str, tuple[Callable[..., Array], float]] = {
    "leakyrelu": (lambda xp, x, alpha: xp.where(x >= 0, x, alpha * x), 0.01),
    "thresholdedrelu": (lambda xp, x, alpha: xp.where(x >= alpha, x, xp.zeros((), x.dtype)), 1.0),
    "elu": (lambda xp, x, alpha: xp.where(x >= 0, x, alpha * xp.expm1(xp.minimum(x, 0))), 1.0),
}
"""Activations with alpha, and its default."""

_WITH_BOTH: dict[str, tuple[Callable[..., Array], float, float]] = {
    "affine": (lambda xp, x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "scaledtanh": (lambda xp, x, alpha, beta: alpha * xp.tanh(beta * x), 1.0, 1.0),
    "hardsigmoid": (lambda xp, x, alpha, beta: xp.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
}
"""Activations with alpha and beta, and their defaults."""


def _activations(
    xp: Any, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """Return the functions; alphas and betas are consumed in order by those that take them."""
    alpha, beta = iter(alphas), iter(betas)
    found: list[Activation] = []
    for name in (name.lower() for name in names):
        if name in _PLAIN:
            found.append(partial(_PLAIN[name], xp))
        elif name in _WITH_ALPHA:
            function, default = _WITH_ALPHA[name]
            found.append(partial(function, xp, alpha=next(alpha, default)))
        elif name in _WITH_BOTH:
            function, first, second = _WITH_BOTH[name]
            found.append(partial(function, xp, alpha=next(alpha, first), beta=next(beta, second)))
        else:
            raise ValueError(f"activation '{name}' is unknown")
    return found


# ---- what all three share ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """The attributes that RNN, GRU and LSTM share, under their ONNX names.

    output_sequence is a hint of version 1 and changes nothing: unlisted outputs are dropped anyway.
    """

    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    activations: Sequence[str] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0
    output_sequence: int = 0

    @property
    def reversed(self) -> tuple[bool, ...]:
        """Per direction, whether it runs from the last step to the first."""
        try:
            # Version 1 of GRU spells its default 'foward'.
            return {
                "forward": (False,),
                "foward": (False,),
                "reverse": (True,),
                "bidirectional": (False, True),
            }[self.direction.lower()]
        except KeyError:
            raise ValueError(f"direction '{self.direction}' is unknown") from None

    def functions(self, xp: Any, default: Sequence[str]) -> list[list[Activation]]:
        """Return the activations of each direction."""
        count, each = len(self.reversed), len(default)
        names = list(self.activations) or list(default) * count
        # RNN's own default lists two activations whatever the direction.
        if len(names) < count * each:
            raise ValueError(f"{len(names)} activations given, {count * each} needed")
        flat = _activations(xp, names[: count * each], self.activation_alpha, self.activation_beta)
        return [flat[d * each : (d + 1) * each] for d in range(count)]

    def clipped(self, xp: Any) -> Activation:
        """Return the function that bounds the input of an activation."""
        if self.clip is None or self.clip <= 0:
            return _same
        return partial(xp.clip, a_min=-self.clip, a_max=self.clip)


def _steps(X: Array, layer: Layer) -> int:
    return int(X.shape[1 if layer.layout else 0])


def _same(x: Array) -> Array:
    return x


def _reversed_steps(xp: Any, x: Array, lengths: Array | None) -> Array:
    """Return x (T, B, …) with each sequence's steps in reverse; what lies past its length stays."""
    if lengths is None:
        return x[::-1]
    steps = xp.arange(x.shape[0])[:, None]
    order = xp.where(steps < lengths, lengths - 1 - steps, steps)
    return x[order, xp.arange(x.shape[1])]


def _scan(xp: Any, cell: Cell, inputs: Array, state: State, lengths: Array | None) -> tuple[Array, State]:
    """Run a cell over inputs (T, B, gates·H). Return the outputs (T, B, H) and the last state.

    lengths (B): steps of each sequence; past them the output is 0 and the state stays.
    """
    outputs = xp.zeros((inputs.shape[0], *state[0].shape), inputs.dtype)
    shortest = inputs.shape[0] if lengths is None or not lengths.size else int(lengths.min())
    for step in range(inputs.shape[0]):
        new = cell(inputs[step], state)
        if step < shortest:
            outputs[step] = new[0]
            state = new
        else:
            alive = (step < xp.asarray(lengths))[:, None]
            xp.copyto(outputs[step], new[0], where=alive)
            state = tuple(xp.where(alive, n, old) for n, old in zip(new, state, strict=True))
    return outputs, state


def _run(
    call: Call,
    layer: Layer,
    X: Array,
    W: Array,
    B: Array | None,
    lengths: Array | None,
    initial: Sequence[Array | None],
    hidden: int,
    cells: Sequence[tuple[Cell, Array | None]],
) -> tuple[Array, ...]:
    """Run every direction and return (Y, Y_h[, Y_c]) in the layer's layout and X's dtype.

    cells: per direction the cell, and the bias (gates·H) to add to the input products.
    """
    xp = call.xp
    x = wide(X if layer.layout == 0 else X.swapaxes(0, 1))
    steps, batch = x.shape[:2]
    starts = [_start(xp, layer, start, len(cells), batch, hidden, x.dtype) for start in initial]
    outputs, states = [], []
    for d, (backwards, (cell, bias)) in enumerate(zip(layer.reversed, cells, strict=True)):
        ordered = _reversed_steps(xp, x, lengths) if backwards else x
        inputs = xp.matmul(ordered.reshape(steps * batch, x.shape[2]), wide(W[d]).T)
        if bias is not None:
            inputs += bias
        y, state = _scan(
            xp, cell, inputs.reshape(steps, batch, W.shape[1]), tuple(s[d] for s in starts), lengths
        )
        outputs.append(_reversed_steps(xp, y, lengths) if backwards else y)
        states.append(state)
    y = xp.stack(outputs, axis=1)
    last = [xp.stack(entries) for entries in zip(*states, strict=True)]
    if layer.layout:
        y, last = y.transpose(2, 0, 1, 3), [entry.swapaxes(0, 1) for entry in last]
    return tuple(narrow(value, X.dtype) for value in (y, *last))


def _start(
    xp: Any, layer: Layer, given: Array | None, directions: int, batch: int, hidden: int, dtype: Any
) -> Array:
    """Return an initial state as (directions, B, H)."""
    if given is None:
        return xp.zeros((directions, batch, hidden), dtype)
    return wide(given if layer.layout == 0 else given.swapaxes(0, 1))


def _check(layer: Layer, W: Array, R: Array, gates: int) -> int:
    """Return the hidden size. Raises ValueError when the weights do not fit the attributes."""
    hidden = int(R.shape[2])
    if layer.hidden_size not in (None, hidden) or R.shape[1] != gates * hidden or W.shape[1] != R.shape[1]:
        raise ValueError(f"weights {list(W.shape)} and {list(R.shape)} do not fit {gates} gates of {hidden}")
    if W.shape[0] != len(layer.reversed):
        raise ValueError(f"weights for {W.shape[0]} directions, direction is '{layer.direction}'")
    return hidden


def _summed(B: Array | None, direction: int) -> Array | None:
    """Return the sum of a direction's input and recurrence bias."""
    return None if B is None else wide(B[direction]).reshape(2, -1).sum(axis=0)


def infer_recurrent(
    call: Call,
    X: TensorType,
    W: TensorType,
    R: TensorType,
    *rest: TensorType | None,
    layout: int = 0,
    **_: Any,
) -> tuple[TensorType, ...]:
    """Y, Y_h and Y_c in X's dtype, sizes from X and R."""
    directions, hidden = (R.shape[0], R.shape[2]) if R.shape is not None else (None, None)
    first, second = (X.shape or (None, None))[:2]
    if layout:
        batch, steps = first, second
        return TensorType(X.dtype, (batch, steps, directions, hidden)), *(
            TensorType(X.dtype, (batch, directions, hidden)) for _ in range(2)
        )
    steps, batch = first, second
    return TensorType(X.dtype, (steps, directions, batch, hidden)), *(
        TensorType(X.dtype, (directions, batch, hidden)) for _ in range(2)
    )


def _recurrence(xp: Any, R: Array, steps: int) -> Array:
    """Return R (gates·H, H) transposed; laid out anew when enough steps read it to pay for the copy."""
    turned = wide(R).T
    return xp.ascontiguousarray(turned) if steps > 4 else turned


# ---- RNN -----------------------------------------------------------------------------------------------


def _rnn_cell(xp: Any, layer: Layer, recurrence: Array, functions: Sequence[Activation]) -> Cell:
    (f,) = functions
    clip = layer.clipped(xp)

    def cell(inputs: Array, state: State) -> State:
        return (f(clip(inputs + state[0] @ recurrence)),)

    return cell


@op("RNN", 1, 7, 14, 22, infer=infer_recurrent)
def rnn(
    call: Call,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Ht = f(Xt·Wᵀ + Ht−1·Rᵀ + Wb + Rb), f = Tanh. X (T, B, I), W (D, H, I), R (D, H, H), B (D, 2H).

    Returns Y (T, D, B, H) and Y_h (D, B, H); layout 1 puts the batch first.
    """
    layer = Layer(**attributes)
    hidden = _check(layer, W, R, 1)
    functions = layer.functions(call.xp, ["Tanh"])
    cells = [
        (_rnn_cell(call.xp, layer, _recurrence(call.xp, R[d], _steps(X, layer)), functions[d]), _summed(B, d))
        for d in range(len(functions))
    ]
    return _run(call, layer, X, W, B, sequence_lens, [initial_h], hidden, cells)


# ---- GRU -----------------------------------------------------------------------------------------------


def _gru_cell(
    xp: Any,
    layer: Layer,
    recurrence: Array,
    functions: Sequence[Activation],
    hidden_bias: Array | None,
    linear_before_reset: int,
) -> Cell:
    """Return the cell; hidden_bias is the hidden gate's recurrence bias where the reset gate scales it."""
    f, g = functions
    clip, size = layer.clipped(xp), recurrence.shape[0]
    of_gates, of_hidden = recurrence[:, : 2 * size], recurrence[:, 2 * size :]

    def update(inputs: Array, gates: Array, candidate: Array, old: Array) -> State:
        z = gates[:, :size]
        hidden = g(clip(inputs[:, 2 * size :] + candidate))
        return ((1 - z) * hidden + z * old,)

    def reset_after(inputs: Array, state: State) -> State:
        products = state[0] @ recurrence
        gates = f(clip(inputs[:, : 2 * size] + products[:, : 2 * size]))
        candidate = products[:, 2 * size :]
        if hidden_bias is not None:
            candidate = candidate + hidden_bias
        return update(inputs, gates, gates[:, size:] * candidate, state[0])

    def reset_before(inputs: Array, state: State) -> State:
        gates = f(clip(inputs[:, : 2 * size] + state[0] @ of_gates))
        return update(inputs, gates, (gates[:, size:] * state[0]) @ of_hidden, state[0])

    return reset_after if linear_before_reset else reset_before


def _split_bias(b: Array, hidden: int) -> tuple[Array, Array]:
    """Return what is added to the input products, and the hidden gate's recurrence bias by itself."""
    bias = b[: 3 * hidden].copy()
    bias[: 2 * hidden] += b[3 * hidden : 5 * hidden]
    return bias, b[5 * hidden :]


@op("GRU", 1, 3, 7, 14, 22, infer=infer_recurrent)
def gru(
    call: Call,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    linear_before_reset: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Gated recurrent unit, gates in the order z, r, h. X (T, B, I), W (D, 3H, I), R (D, 3H, H), B (D, 6H).

    zt = f(Xt·Wzᵀ + Ht−1·Rzᵀ + Wbz + Rbz), rt alike, ht = g(Xt·Whᵀ + (rt ⊙ Ht−1)·Rhᵀ + Rbh + Wbh), or with
    linear_before_reset g(Xt·Whᵀ + rt ⊙ (Ht−1·Rhᵀ + Rbh) + Wbh); Ht = (1 − zt) ⊙ ht + zt ⊙ Ht−1. Defaults:
    f = Sigmoid, g = Tanh. Returns Y (T, D, B, H) and Y_h (D, B, H); layout 1 puts the batch first.
    """
    layer = Layer(**attributes)
    hidden = _check(layer, W, R, 3)
    cells = []
    for d, functions in enumerate(layer.functions(call.xp, ["Sigmoid", "Tanh"])):
        bias, of_hidden = _summed(B, d), None
        if B is not None and linear_before_reset:
            bias, of_hidden = _split_bias(wide(B[d]), hidden)
        recurrence = _recurrence(call.xp, R[d], _steps(X, layer))
        cell = _gru_cell(call.xp, layer, recurrence, functions, of_hidden, linear_before_reset)
        cells.append((cell, bias))
    return _run(call, layer, X, W, B, sequence_lens, [initial_h], hidden, cells)


# ---- LSTM ----------------------------------------------------------------------------------------------


def _lstm_cell(
    xp: Any,
    layer: Layer,
    recurrence: Array,
    functions: Sequence[Activation],
    P: Array | None,
    input_forget: int,
) -> Cell:
    """Return the cell; gates lie in the order i, o, f, c, peepholes in the order i, o, f."""
    f, g, h = functions
    clip, size = layer.clipped(xp), recurrence.shape[0]
    peep_i, peep_o, peep_f = (0, 0, 0) if P is None else wide(P).reshape(3, size)

    def plain(inputs: Array, state: State) -> State:
        gates = state[0] @ recurrence
        gates += inputs
        of = f(clip(gates[:, : 3 * size]))
        i, o = of[:, :size], of[:, size : 2 * size]
        forget = 1 - i if input_forget else of[:, 2 * size :]
        cell = forget * state[1] + i * g(clip(gates[:, 3 * size :]))
        return o * h(cell), cell

    def with_peepholes(inputs: Array, state: State) -> State:
        gates = state[0] @ recurrence
        gates += inputs
        i = f(clip(gates[:, :size] + peep_i * state[1]))
        forget = 1 - i if input_forget else f(clip(gates[:, 2 * size : 3 * size] + peep_f * state[1]))
        cell = forget * state[1] + i * g(clip(gates[:, 3 * size :]))
        o = f(clip(gates[:, size : 2 * size] + peep_o * cell))
        return o * h(cell), cell

    return plain if P is None else with_peepholes


@op("LSTM", 1, 7, 14, 22, infer=infer_recurrent)
def lstm(
    call: Call,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    P: Array | None = None,
    *,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Long short-term memory. X (T, B, I), W (D, 4H, I), R (D, 4H, H), B (D, 8H), P (D, 3H).

    it = f(Xt·Wiᵀ + Ht−1·Riᵀ + Pi ⊙ Ct−1 + Wbi + Rbi), ft alike (1 − it with input_forget), ct without
    peephole under g, Ct = ft ⊙ Ct−1 + it ⊙ ct, ot = f(… + Po ⊙ Ct …), Ht = ot ⊙ h(Ct). Defaults:
    f = Sigmoid, g = h = Tanh. clip bounds what f and g see; whether also Ct under h, the specification
    leaves open, and ONNX Runtime does not. Returns Y (T, D, B, H), Y_h and Y_c (D, B, H); layout 1 puts
    the batch first.
    """
    layer = Layer(**attributes)
    hidden = _check(layer, W, R, 4)
    recurrences = [_recurrence(call.xp, r, _steps(X, layer)) for r in R]
    cells = [
        (
            _lstm_cell(call.xp, layer, recurrences[d], functions, None if P is None else P[d], input_forget),
            _summed(B, d),
        )
        for d, functions in enumerate(layer.functions(call.xp, ["Sigmoid", "Tanh", "Tanh"]))
    ]
    return _run(call, layer, X, W, B, sequence_lens, [initial_h, initial_c], hidden, cells)
