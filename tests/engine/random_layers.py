"""Recipes of layers: products, convolutions, pooling, norms, recurrent cells, quantisation."""

from typing import Any

import numpy as np

from tests.engine.random_builder import Builder, RejectedError, Value
from tests.engine.random_recipes import recipe
from tests.engine.random_values import F32, I32, elements


def layer_input(
    g: Builder, op: str, *, spatial: tuple[int, int] = (1, 2), channels: tuple[int, int] = (1, 4)
) -> Value:
    """Return a value of shape (batch, channels, *spatial), no dim empty but seldom the batch."""

    def shape() -> list[int]:
        rank = g.number(*spatial)
        batch = 0 if g.chance(0.02) else g.number(1, 2)
        return [batch, g.number(*channels), *(g.number(2, 7) for _ in range(rank))]

    return g.pick(
        op,
        rank=(2 + spatial[0], 2 + spatial[1]),
        shape=shape,
        test=lambda v: 0 not in v.shape[1:] and channels[0] <= v.shape[1],
    )


# ---- products -----------------------------------------------------------------------------------------


@recipe("MatMul", inner=True)
def matmul(g: Builder, op: str) -> None:
    a = g.pick(op, rank=(1, 4))
    inner = a.shape[-1]
    if g.chance(0.3):
        b_shape: tuple[int, ...] = (inner,)
    else:
        batch = g.broadcastable(a.shape[:-2]) if g.chance(0.6) else ()
        b_shape = (*batch, inner, g.number(1, 4))
    g.add(op, [a, g.like(a, b_shape)])


@recipe("Gemm", first=7)
def gemm(g: Builder, op: str) -> None:
    a = g.pick(op, rank=(2, 2))
    flags = {n: g.number(0, 1) for n in ("transA", "transB") if g.chance(0.5)}
    rows, inner = a.shape[::-1] if flags.get("transA") else a.shape
    columns = g.number(1, 4)
    b = g.like(a, (columns, inner) if flags.get("transB") else (inner, columns))
    c_shape = g.choose([(columns,), (rows, columns), (1, columns), (rows, 1), (), (1,)])
    c = None if g.opset >= 11 and g.chance(0.3) else g.like(a, c_shape)
    scale = {n: g.real(-2, 2) for n in ("alpha", "beta") if a.dtype.kind == "f" and g.chance(0.4)}
    g.add(op, [a, b, c], **flags, **scale)


EQUATIONS = (
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij->ji",
    "ii->i",
    "ij->",
    "i,j->ij",
    "...ij,...jk->...ik",
    "ij,kj",
    "bii->b",
)


@recipe("Einsum", first=12)
def einsum(g: Builder, op: str) -> None:
    equation = g.choose(EQUATIONS)
    sizes = {letter: g.number(1, 4) for letter in "bijk"}
    dtype = g.dtype(g.dtypes(op))
    batch = g.shape(0, 2, empty=0)
    inputs = []
    for term in equation.split("->")[0].split(","):
        dims = [*batch] if "..." in term else []
        dims += [sizes[letter] for letter in term.replace("...", "")]
        wanted = tuple(dims)
        found = g.find(lambda v, w=wanted: v.dtype == dtype and v.shape == w)
        inputs.append(found or g.fresh(dtype, dims))
    g.add(op, inputs, equation=equation)


@recipe("Det", first=11)
def determinant(g: Builder, op: str) -> None:
    size = g.number(1, 4)
    batch = g.shape(0, 2, empty=0)
    g.add(op, [g.fresh(F32, (*batch, size, size), tame=True)])


@recipe("MatMulInteger", first=10)
def matmul_integer(g: Builder, op: str) -> None:
    a = g.fresh(g.choose(g.dtypes(op)), g.shape(2, 3))
    b = g.fresh(g.choose(g.dtypes(op, 1)), (a.shape[-1], g.number(1, 4)))
    zero = [g.parameter(g.content(v.dtype, ())) if g.chance(0.6) else None for v in (a, b)]
    if zero[1] is not None and g.chance(0.3):
        zero[1] = g.parameter(g.content(b.dtype, (b.shape[-1],)))
    g.add(op, [a, b, *zero])


# ---- convolution and pooling --------------------------------------------------------------------------


def window(g: Builder, sizes: tuple[int, ...], *, dilated: bool, padded: bool = True) -> dict[str, Any]:
    """Return kernel_shape, strides, dilations and pads (or auto_pad) that fit an input's spatial sizes."""
    kernel = [g.number(1, min(3, s)) for s in sizes]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.5):
        attributes["strides"] = [g.number(1, 2) for _ in sizes]
    if dilated and g.chance(0.3):
        attributes["dilations"] = [
            2 if 2 * (k - 1) + 1 <= s and g.chance(0.6) else 1 for k, s in zip(kernel, sizes, strict=True)
        ]
    if padded and g.chance(0.6):
        if g.chance(0.3):  # SAME where ONNX Runtime goes by the specification: its shapes differ elsewhere
            wide = "strides" not in attributes or all(k > 1 for k in kernel)
            plain = max(attributes.get("dilations", [1])) == 1
            attributes["auto_pad"] = g.choose(
                ["SAME_UPPER", "SAME_LOWER", "VALID"] if wide and plain else ["VALID"]
            )
        else:
            attributes["pads"] = [g.number(0, k - 1) for _ in "be" for k in kernel]
    return attributes


@recipe("Conv")
def conv(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(1, 3))
    group = g.choose([d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0])
    attributes = window(g, x.shape[2:], dilated=True)
    kernel = attributes["kernel_shape"] if g.chance(0.7) else attributes.pop("kernel_shape")
    filters = group * g.number(1, 2)
    w = g.like(x, (filters, x.shape[1] // group, *kernel))
    b = g.like(x, (filters,)) if g.chance(0.5) else None
    g.add(op, [x, w, b], **attributes, **({"group": group} if group > 1 else {}))


@recipe("ConvTranspose")
def conv_transpose(g: Builder, op: str) -> None:
    x = layer_input(g, op)
    group = g.choose([d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0])
    attributes = window(g, x.shape[2:], dilated=True)
    w = g.like(x, (x.shape[1], g.number(1, 2), *attributes["kernel_shape"]))
    b = g.like(x, (w.shape[1] * group,)) if g.chance(0.5) else None
    strides = attributes.get("strides", [1] * (x.rank - 2))
    if g.chance(0.3) and "auto_pad" not in attributes:
        attributes["output_padding"] = [g.number(0, s - 1) for s in strides]
    g.add(op, [x, w, b], group=group, **attributes)


@recipe("ConvInteger", first=10)
def conv_integer(g: Builder, op: str) -> None:
    x = g.fresh(g.choose(g.dtypes(op)), (g.number(1, 2), g.number(1, 3), g.number(3, 6), g.number(3, 6)))
    attributes = window(g, x.shape[2:], dilated=True)
    w = g.fresh(g.choose(g.dtypes(op, 1)), (g.number(1, 3), x.shape[1], *attributes["kernel_shape"]))
    zero = [g.parameter(g.content(v.dtype, ())) if g.chance(0.5) else None for v in (x, w)]
    g.add(op, [x, w, *zero], **attributes)


@recipe("AveragePool", "MaxPool", "LpPool")
def pool(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(1, 3))
    dilated = (
        (op == "MaxPool" and g.opset >= 10)
        or (op == "LpPool" and g.opset >= 18)
        or (op == "AveragePool" and g.opset >= 19)
    )
    attributes = window(g, x.shape[2:], dilated=dilated)
    steps = attributes.get("strides", [1])
    shorter = all(t <= k for t, k in zip(steps, attributes["kernel_shape"], strict=False))
    # a last window past the end counts in old shape inference, but not when ONNX Runtime runs
    if shorter and g.chance(0.3) and g.opset >= {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[op]:
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and g.chance(0.4):
        attributes["count_include_pad"] = g.number(0, 1)
    if op == "LpPool":
        attributes["p"] = g.number(1, 3)
    both = op == "MaxPool" and g.opset >= 8 and g.chance(0.3)
    g.add_many(op, [x], 2 if both else 1, **attributes)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", inner=True)
def global_pool(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(1, 3))
    g.add(op, [x], **({"p": g.number(1, 3)} if op == "GlobalLpPool" and g.chance(0.7) else {}))


@recipe("MaxUnpool", first=11)
def max_unpool(g: Builder, op: str) -> None:
    x = layer_input(g, "MaxPool", spatial=(2, 2))
    if x.dtype not in g.dtypes(op) or min(x.shape) < 1 or any(d % 2 for d in x.shape[2:]):
        raise RejectedError("would not come out as it went in")
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, at = g.add_many("MaxPool", [x], 2, **attributes)
    g.add(op, [y, at], **attributes)


@recipe("Col2Im", first=18)
def col_to_im(g: Builder, op: str) -> None:
    image, block = [g.number(3, 5), g.number(3, 5)], [g.number(1, 3), g.number(1, 3)]
    blocks = [i - b + 1 for i, b in zip(image, block, strict=True)]
    x = g.fresh(F32, (g.number(1, 2), g.number(1, 2) * elements(block), elements(blocks)))
    g.add(op, [x, g.ints(image), g.ints(block)])


# ---- normalisation ------------------------------------------------------------------------------------


@recipe("BatchNormalization", first=9, inner=True)
def batch_norm(g: Builder, op: str) -> None:
    x = layer_input(g, op)
    scale, bias, mean = (g.like(x, (x.shape[1],)) for _ in range(3))
    variance = g.source(np.abs(g.content(x.dtype, (x.shape[1],), tame=True)))
    g.add(op, [x, scale, bias, mean, variance], **({"epsilon": 0.0625} if g.chance(0.5) else {}))


@recipe("InstanceNormalization", first=6, inner=True)
def instance_norm(g: Builder, op: str) -> None:
    x = layer_input(g, op)
    g.add(op, [x, g.like(x, (x.shape[1],)), g.like(x, (x.shape[1],))])


@recipe("LayerNormalization", first=17, inner=True)
@recipe("RMSNormalization", first=23, inner=True)
def layer_norm(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: 0 not in v.shape)
    axis = g.axis(x.rank)
    scale = g.like(x, x.shape[axis:])
    bias = g.like(x, x.shape[axis:]) if op == "LayerNormalization" and g.chance(0.5) else None
    outputs = g.choose([1, 1, 2, 3]) if op == "LayerNormalization" else 1
    g.add_many(op, [x, scale, bias], outputs, axis=axis, **({"epsilon": 0.0625} if g.chance(0.3) else {}))


@recipe("GroupNormalization", first=21)
def group_norm(g: Builder, op: str) -> None:
    x = layer_input(g, op)
    groups = g.choose([d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0])
    g.add(op, [x, g.like(x, (x.shape[1],)), g.like(x, (x.shape[1],))], num_groups=groups)


@recipe("LRN")
def lrn(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    g.add(
        op,
        [x],
        size=g.choose([1, 3, 5]),
        **{n: g.real(0.25, 1) for n in ("alpha", "beta", "bias") if g.chance(0.5)},
    )


@recipe("LpNormalization")
def lp_norm(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    g.add(op, [x], axis=g.axis(x.rank), p=g.number(1, 2))


@recipe("MeanVarianceNormalization", first=9)
def mvn(g: Builder, op: str) -> None:
    g.add(op, [layer_input(g, op, spatial=(2, 2))])


@recipe("Dropout", first=7, inner=True)
def dropout(g: Builder, op: str) -> None:
    x = g.pick(op)
    if g.opset < 12:
        g.add_many(op, [x], 1, ratio=0.5)
    else:
        ratio = g.parameter(np.array(0.25, dtype=F32)) if g.chance(0.5) else None
        g.add_many(op, [x, ratio], g.number(1, 2))


# ---- quantisation -------------------------------------------------------------------------------------


def _scale(g: Builder, shape: tuple[int, ...] = ()) -> Value:
    values = np.array([g.choose([0.5, 0.1, 0.03, 1.0, 2.0]) for _ in range(elements(shape))], dtype=F32)
    return g.parameter(values.reshape(shape))


def _zero(g: Builder, dtype: Any, shape: tuple[int, ...] = ()) -> Value:
    if np.dtype(dtype) == I32:
        return g.parameter(np.zeros(shape, dtype=I32))
    return g.parameter(g.content(dtype, shape, tame=True))


@recipe("QuantizeLinear", first=10)
def quantize(g: Builder, op: str) -> None:
    x = g.pick(op, within=(F32,), rank=(0, 4))
    options = g.dtypes(op, 2)
    per_axis = g.opset >= 13 and x.rank > 0 and g.chance(0.4)
    axis = g.axis(x.rank) if per_axis else None
    shape = () if axis is None else (x.shape[axis],)
    zero = _zero(g, g.choose(options), shape) if g.chance(0.8) else None
    g.add(op, [x, _scale(g, shape), zero], **({} if axis is None else {"axis": axis}))


@recipe("DequantizeLinear", first=10)
def dequantize(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(0, 4))
    per_axis = g.opset >= 13 and x.rank > 0 and g.chance(0.4)
    axis = g.axis(x.rank) if per_axis else None
    shape = () if axis is None else (x.shape[axis],)
    zero = _zero(g, x.dtype, shape) if g.chance(0.7) else None
    g.add(op, [x, _scale(g, shape), zero], **({} if axis is None else {"axis": axis}))


@recipe("DynamicQuantizeLinear", first=11)
def dynamic_quantize(g: Builder, op: str) -> None:
    g.add_many(op, [g.pick(op, test=lambda v: v.array.size > 0)], 3)


@recipe("QLinearMatMul", first=10)
def qlinear_matmul(g: Builder, op: str) -> None:
    a = g.fresh(g.choose(g.dtypes(op)), g.shape(2, 3))
    b = g.fresh(g.choose(g.dtypes(op, 3)), (a.shape[-1], g.number(1, 4)))
    out = g.choose(g.dtypes(op, 7))
    g.add(op, [a, _scale(g), _zero(g, a.dtype), b, _scale(g), _zero(g, b.dtype), _scale(g), _zero(g, out)])


@recipe("QLinearConv", first=10)
def qlinear_conv(g: Builder, op: str) -> None:
    x = g.fresh(g.choose(g.dtypes(op)), (1, g.number(1, 3), g.number(3, 6), g.number(3, 6)))
    attributes = window(g, x.shape[2:], dilated=False)
    filters = g.number(1, 3)
    w = g.fresh(g.choose(g.dtypes(op, 3)), (filters, x.shape[1], *attributes["kernel_shape"]))
    out = g.choose(g.dtypes(op, 7))
    per = (filters,) if g.chance(0.3) else ()
    w_zero = g.parameter(np.zeros(per, dtype=w.dtype)) if per else _zero(g, w.dtype)
    bias = g.fresh(I32, (filters,), tame=True) if g.chance(0.5) else None
    inputs = [x, _scale(g), _zero(g, x.dtype), w, _scale(g, per), w_zero, _scale(g), _zero(g, out), bias]
    g.add(op, inputs, **attributes)


# ---- recurrent cells ----------------------------------------------------------------------------------


def _small(g: Builder, shape: tuple[int, ...]) -> Value:
    """Return float32 numbers up to 2: larger weights blow up, step by step, what functions are off by."""
    return g.source(np.clip(g.content(F32, shape, tame=True), -2, 2))


@recipe("RNN", "GRU", "LSTM", first=7)
def recurrent(g: Builder, op: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    steps, batch, size, hidden = g.number(1, 4), g.number(1, 2), g.number(1, 3), g.number(1, 3)
    direction = g.choose(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    x = g.pick(
        op, within=(F32,), rank=(3, 3), test=lambda v: 0 not in v.shape, shape=lambda: (steps, batch, size)
    )
    steps, batch, size = x.shape
    w, r = (_small(g, (ways, gates * hidden, n)) for n in (size, hidden))
    b = _small(g, (ways, 2 * gates * hidden)) if g.chance(0.6) else None
    lengths = g.ints([g.number(1, steps) for _ in range(batch)], np.int32) if g.chance(0.4) else None
    states = [_small(g, (ways, batch, hidden)) if g.chance(0.4) else None for _ in range(2)]
    inputs = [x, w, r, b, lengths, *states[: 2 if op == "LSTM" else 1]]
    more: dict[str, Any] = {"linear_before_reset": g.number(0, 1)} if op == "GRU" else {}
    if g.chance(0.15):
        more["clip"] = g.real(0.5, 3)
    count = 3 if op == "LSTM" else 2
    g.add_many(op, inputs, g.choose([count, 1, 2]), hidden_size=hidden, direction=direction, **more)
