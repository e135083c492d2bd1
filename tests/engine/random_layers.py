"""Recipes of layers: products, convolutions, pooling, norms, recurrent cells, quantisation, signals, images."""

from typing import Any

import numpy as np

from tests.engine.random_builder import (
    F32,
    FLOATS,
    I32,
    I64,
    Builder,
    Rejected,
    Value,
    elements,
)
from tests.engine.random_recipes import recipe


def layer_input(g: Builder, op: str, *, spatial: tuple[int, int] = (1, 2), channels: tuple[int, int] = (1, 4)) -> Value:
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


EQUATIONS = ("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "ij->", "i,j->ij", "...ij,...jk->...ik", "ij,kj", "bii->b")


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
        attributes["dilations"] = [2 if 2 * (k - 1) + 1 <= s and g.chance(0.6) else 1 for k, s in zip(kernel, sizes, strict=True)]
    if padded and g.chance(0.6):
        if g.chance(0.3):
            attributes["auto_pad"] = g.choose(["SAME_UPPER", "SAME_LOWER", "VALID"])
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
    dilated = (op == "MaxPool" and g.opset >= 10) or (op == "LpPool" and g.opset >= 18) or (op == "AveragePool" and g.opset >= 19)
    attributes = window(g, x.shape[2:], dilated=dilated)
    if g.chance(0.3) and g.opset >= {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[op]:
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
        raise Rejected("would not come out as it went in")
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
    g.add(op, [x], size=g.choose([1, 3, 5]), **{n: g.real(0.25, 1) for n in ("alpha", "beta", "bias") if g.chance(0.5)})


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
    """Return float32 numbers up to 2: larger weights blow up what libraries' functions are off by, step by step."""
    return g.source(np.clip(g.content(F32, shape, tame=True), -2, 2))


@recipe("RNN", "GRU", "LSTM", first=7)
def recurrent(g: Builder, op: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    steps, batch, size, hidden = g.number(1, 4), g.number(1, 2), g.number(1, 3), g.number(1, 3)
    direction = g.choose(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    x = g.pick(op, within=(F32,), rank=(3, 3), test=lambda v: 0 not in v.shape, shape=lambda: (steps, batch, size))
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


# ---- images -------------------------------------------------------------------------------------------

TRANSFORMS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@recipe("Resize", first=11)
def resize(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(4, 4), within=(F32,), test=lambda v: 0 not in v.shape, shape=lambda: g.shape(4, 4, empty=0))
    mode = g.choose(["nearest", "nearest", "linear", "cubic"])
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.choose(TRANSFORMS)}
    if mode == "nearest":
        attributes["nearest_mode"] = g.choose(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": g.choose([-0.5, -0.75]), "exclude_outside": g.number(0, 1)}
    if g.opset >= 18 and mode != "nearest" and g.chance(0.3):
        attributes["antialias"] = 1
    roi = g.parameter(np.zeros(0, dtype=F32)) if g.opset < 13 else None
    spatial = [g.choose([1.0, 2.0, 0.5, 1.5, 0.75, 3.0]) for _ in range(2)]
    if g.chance(0.5):
        g.add(op, [x, roi, g.parameter(np.array([1, 1, *spatial], dtype=F32))], **attributes)
        return
    sizes = [*x.shape[:2], *(max(1, int(d * s)) for d, s in zip(x.shape[2:], spatial, strict=True))]
    empty = g.parameter(np.zeros(0, dtype=F32)) if g.opset < 13 else None
    g.add(op, [x, roi, empty, g.ints(sizes)], **attributes)


@recipe("Upsample", first=9, last=9)
def upsample(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(4, 4), test=lambda v: 0 not in v.shape, within=(F32,), shape=lambda: g.shape(4, 4, empty=0))
    scales = [1, 1, g.choose([1, 2, 1.5]), g.choose([1, 2, 3])]
    g.add(op, [x, g.parameter(np.array(scales, dtype=F32))], mode=g.choose(["nearest", "linear"]))


@recipe("GridSample", first=16)
def grid_sample(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or x.dtype.kind != "f":
        raise Rejected("no image")
    grid = g.fresh(F32, (x.shape[0], g.number(1, 3), g.number(1, 3), 2), tame=True)
    modes = ["linear", "nearest", "cubic"] if g.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    attributes = {"mode": g.choose(modes), "padding_mode": g.choose(["zeros", "border", "reflection"])}
    g.add(op, [x, grid], align_corners=g.number(0, 1), **attributes)


@recipe("AffineGrid", first=20)
def affine_grid(g: Builder, op: str) -> None:
    theta = g.fresh(F32, (g.number(1, 2), 2, 3), tame=True)
    size = g.ints([theta.shape[0], g.number(1, 3), g.number(1, 4), g.number(1, 4)])
    g.add(op, [theta, size], align_corners=g.number(0, 1))


def _boxes(g: Builder, count: int, high: float) -> np.ndarray[Any, Any]:
    corners = [[g.real(0, high / 2), g.real(0, high / 2), g.real(high / 2, high), g.real(high / 2, high)] for _ in range(count)]
    return np.array(corners, dtype=F32).reshape(count, 4)


@recipe("RoiAlign", first=10)
def roi_align(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or x.dtype != F32:
        raise Rejected("no image")
    count = g.number(1, 3)
    rois = g.parameter(_boxes(g, count, float(min(x.shape[2:]))))
    batch = g.ints([g.number(0, x.shape[0] - 1) for _ in range(count)])
    attributes: dict[str, Any] = {"output_height": g.number(1, 3), "output_width": g.number(1, 3)}
    attributes |= {"sampling_ratio": g.number(0, 2), "mode": g.choose(["avg", "avg", "max"])}
    if g.opset >= 16:
        attributes["coordinate_transformation_mode"] = g.choose(["half_pixel", "output_half_pixel"])
    g.add(op, [x, rois, batch], **attributes)


@recipe("MaxRoiPool")
def max_roi_pool(g: Builder, op: str) -> None:
    x = g.fresh(F32, (g.number(1, 2), g.number(1, 2), g.number(3, 6), g.number(3, 6)))
    count = g.number(1, 2)
    corners = [[g.number(0, 1), g.number(0, 1), g.number(1, 2), g.number(1, 2)] for _ in range(count)]
    rows = [[g.number(0, x.shape[0] - 1), *c] for c in corners]
    rois = g.parameter(np.array(rows, dtype=F32))
    g.add(op, [x, rois], pooled_shape=[g.number(1, 2), g.number(1, 2)], spatial_scale=1.0)


@recipe("NonMaxSuppression", first=10)
def non_max_suppression(g: Builder, op: str) -> None:
    count, classes = g.number(1, 6), g.number(1, 2)
    boxes = g.parameter(_boxes(g, count, 4.0)[None])
    scores = g.parameter(np.array(g.rng.sample(range(64), count * classes), dtype=F32).reshape(1, classes, count) / 64)
    most = g.parameter(np.array([g.number(0, 4)], dtype=I64)) if g.chance(0.8) else None
    iou = g.parameter(np.array([g.real(0, 1)], dtype=F32)) if g.chance(0.7) else None
    score = g.parameter(np.array([g.real(0, 0.5)], dtype=F32)) if g.chance(0.5) else None
    g.add(op, [boxes, scores, most, iou, score], center_point_box=g.number(0, 1))


@recipe("DeformConv", first=19)
def deform_conv(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or min(x.shape[2:]) < 2 or x.dtype != F32:
        raise Rejected("too small")
    kernel = [g.number(1, 2), g.number(1, 2)]
    out = [s - k + 1 for s, k in zip(x.shape[2:], kernel, strict=True)]
    w = g.fresh(F32, (g.number(1, 2), x.shape[1], *kernel), tame=True)
    offset = g.fresh(F32, (x.shape[0], 2 * elements(kernel), *out), tame=True)
    bias = g.like(w, (w.shape[0],)) if g.chance(0.4) else None
    mask = g.like(w, (x.shape[0], elements(kernel), *out)) if g.chance(0.5) else None
    g.add(op, [x, w, offset, bias, mask], kernel_shape=kernel)


# ---- signals, losses, attention, text -----------------------------------------------------------------


@recipe("HannWindow", "HammingWindow", "BlackmanWindow", first=17)
def signal_window(g: Builder, op: str) -> None:
    g.add(op, [g.parameter(np.array(g.number(1, 9), dtype=I64))], periodic=g.number(0, 1))


@recipe("MelWeightMatrix", first=17)
def mel(g: Builder, op: str) -> None:
    bins, length, rate = g.number(2, 6), g.choose([16, 32]), 8000
    numbers = [g.parameter(np.array(n, dtype=I64)) for n in (bins, length, rate)]
    edges = [g.parameter(np.array(n, dtype=F32)) for n in (g.real(0, 100), g.real(1000, 4000))]
    g.add(op, [*numbers, *edges])


@recipe("DFT", first=17, last=19)
def dft(g: Builder, op: str) -> None:
    real = g.chance(0.6)
    x = g.fresh(g.choose([d for d in g.dtypes(op) if d != FLOATS[2]]), (g.number(1, 2), g.number(2, 8), 1 if real else 2), tame=True)
    one_sided = 1 if real and g.chance(0.5) else 0
    length = g.parameter(np.array(g.number(1, 9), dtype=I64)) if g.chance(0.3) else None
    g.add(op, [x, length], axis=1, onesided=one_sided, **({} if real else {"inverse": g.number(0, 1)}))


@recipe("DFT", first=20)
def dft_with_axis(g: Builder, op: str) -> None:
    real = g.chance(0.6)
    x = g.fresh(g.choose([d for d in g.dtypes(op) if d != FLOATS[2]]), (g.number(1, 2), g.number(2, 8), 1 if real else 2), tame=True)
    axis = g.parameter(np.array(g.choose([1, -2]), dtype=I64)) if g.chance(0.7) else None
    length = g.parameter(np.array(g.number(1, 9), dtype=I64)) if g.chance(0.3) else None
    one_sided = 1 if real and g.chance(0.5) else 0
    g.add(op, [x, length, axis], onesided=one_sided, **({} if real else {"inverse": g.number(0, 1)}))


@recipe("STFT", first=17)
def stft(g: Builder, op: str) -> None:
    frame = g.number(2, 6)
    x = g.fresh(F32, (g.number(1, 2), frame + g.number(0, 6), 1), tame=True)
    step = g.parameter(np.array(g.number(1, 3), dtype=I64))
    shaped = g.fresh(F32, (frame,), tame=True) if g.chance(0.5) else None
    length = g.parameter(np.array(frame, dtype=I64)) if shaped is None or g.chance(0.5) else None
    g.add(op, [x, step, shaped, length], onesided=g.number(0, 1))


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", first=13)
def loss(g: Builder, op: str) -> None:
    extra = g.shape(0, 2, empty=0)
    batch, classes = g.number(1, 3), g.number(1, 4)
    x = g.fresh(F32, (batch, classes, *extra))
    labels = [g.number(0, classes - 1) for _ in range(batch * elements(extra))]
    target = g.parameter(np.array(labels, dtype=g.choose([np.int64, np.int32])).reshape(batch, *extra))
    weight = g.source(np.abs(g.content(F32, (classes,), tame=True)) + np.float32(0.5)) if g.chance(0.4) else None
    attributes: dict[str, Any] = {"reduction": g.choose(["none", "mean", "sum"])}
    if g.chance(0.3):
        attributes["ignore_index"] = g.number(-1, classes)
    both = op == "SoftmaxCrossEntropyLoss" and g.chance(0.4)
    g.add_many(op, [x, target, weight], 2 if both else 1, **attributes)


@recipe("Attention", first=23)
def attention(g: Builder, op: str) -> None:
    batch, heads, length, keys, size = (g.number(1, n) for n in (2, 2, 3, 4, 3))
    q = g.fresh(F32, (batch, heads, length, size), tame=True)
    k = g.fresh(F32, (batch, heads, keys, size), tame=True)
    v = g.fresh(F32, (batch, heads, keys, size), tame=True)
    mask = None
    if g.chance(0.5):
        mask = g.parameter(g.content(g.choose([F32, np.dtype(bool)]), (length, keys), tame=True))
    more = {n: v for n, v in (("is_causal", 1), ("scale", g.real(0.25, 1)), ("softcap", 2.0)) if g.chance(0.3)}
    g.add(op, [q, k, v, mask], **more)


@recipe("RotaryEmbedding", first=23)
def rotary(g: Builder, op: str) -> None:
    batch, heads, length, size = g.number(1, 2), g.number(1, 2), g.number(1, 3), g.choose([2, 4])
    x = g.fresh(F32, (batch, heads, length, size))
    tables = [g.fresh(F32, (5, size // 2), tame=True) for _ in range(2)]
    at = g.parameter(np.array([g.number(0, 4) for _ in range(batch * length)], dtype=I64).reshape(batch, length))
    g.add(op, [x, *tables, at], interleaved=g.number(0, 1))


@recipe("StringConcat", first=20)
def string_concat(g: Builder, op: str) -> None:
    a = g.pick(op)
    g.add(op, [a, g.like(a, g.broadcastable(a.shape))])


@recipe("StringSplit", first=20)
def string_split(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(0, 3))
    limit = {"maxsplit": g.number(1, 2)} if g.chance(0.4) else {}
    g.add_many(op, [x], 2, **({"delimiter": g.choose([" ", ",", "b"])} if g.chance(0.6) else {}), **limit)


@recipe("RegexFullMatch", first=20)
def regex(g: Builder, op: str) -> None:
    g.add(op, [g.pick(op)], pattern=g.choose(["[a-z]+", ".*b.*", "", "(a|b)( c)?", r"\d\d"]))


@recipe("StringNormalizer", first=10)
def normalizer(g: Builder, op: str) -> None:
    words = [g.choose(["", "a", "b c", "Ab", "12", "xyz", "XYZ"]) for _ in range(g.number(1, 4))]
    x = g.parameter(np.array(words, dtype=object))
    more = {"stopwords": ["a", "xyz"]} if g.chance(0.5) else {}
    g.add(op, [x], case_change_action=g.choose(["NONE", "LOWER", "UPPER"]), is_case_sensitive=g.number(0, 1), locale="C", **more)


@recipe("TfIdfVectorizer", first=9)
def tf_idf(g: Builder, op: str) -> None:
    x = g.parameter(np.array([g.number(0, 4) for _ in range(6)], dtype=np.int32).reshape(g.choose([(6,), (2, 3)])))
    longest = g.number(1, 2)
    more = {"weights": [0.5, 1.0, 2.0, 3.0]} if g.chance(0.6) else {}
    table: dict[str, Any] = {"ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2, 3], "pool_int64s": [1, 2, 1, 2, 3, 1]}
    shape = {"min_gram_length": g.number(1, longest), "max_gram_length": longest, "max_skip_count": g.number(0, 1)}
    g.add(op, [x], mode=g.choose(["TF", "IDF", "TFIDF"]), **table, **shape, **more)
