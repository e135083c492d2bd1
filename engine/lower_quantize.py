"""Quantisation → element-wise steps: codes to floats and back, and what is computed of codes one by one."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.engine.expr import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    Dtype,
    Expr,
    apply,
    cast,
    const,
    load,
    stage,
)
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Origin, Site, lowering
from graphdoc.engine.lower_elementwise import leaky_relu, like, sigmoid, wide_dtype
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_rows import floats_only, run_rows
from graphdoc.engine.ops.dtypes import from_code
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.ops.ms_fused import MS
from graphdoc.engine.program import Kind, Program, View

CODES = (I8, U8, I16, U16)
"""Quantised dtypes that expressions have and whose every code float32 holds."""

_SMALL = 2.0**-60
"""Scales from here to its reciprocal are far from over- and underflow."""

_WIDE = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}


def spread(at: Site, x: View, parameter: View, axis: int, block: int) -> View:
    """Return a scale or zero point over the elements of x: one, one per entry of an axis, or per block."""
    if parameter.size == 1 and not block:
        return at.reshape(parameter, ()).broadcast(x.shape)
    axis = 0 if len(x.shape) == 1 else axis_of(axis, len(x.shape))
    if block:
        return _blocks(at, x, parameter, axis, block)
    if parameter.shape != (x.shape[axis],):
        raise ValueError(f"scale {parameter.shape} does not fit axis {axis} of {x.shape}")
    return with_ones(parameter, [a for a in range(len(x.shape)) if a != axis]).broadcast(x.shape)


def _blocks(at: Site, x: View, parameter: View, axis: int, block: int) -> View:
    rest = [s for a, s in enumerate(parameter.shape) if a != axis]
    count = parameter.shape[axis]
    if (
        rest != [s for a, s in enumerate(x.shape) if a != axis]
        or not 0 <= count * block - x.shape[axis] < block
    ):
        raise ValueError(f"blocks {parameter.shape} of {block} do not fit {x.shape}")
    shape = [*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :]]
    repeated = with_ones(parameter, [axis + 1]).broadcast(shape)
    joined = at.reshape(repeated, [*shape[:axis], count * block, *shape[axis + 2 :]])
    return joined.sliced(axis, 0, x.shape[axis])


def rescaled(y: Expr, zero: Expr | None, dtype: Dtype) -> Expr:
    """Return a number in units of the scale as a code: rounded, shifted by the zero point and clamped.

    NaN becomes the least code. A constant zero point is taken off the ends: that is the same, and leaves
    fewer steps, since what is clamped becomes an integer as it is rounded.
    """
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if zero is not None and zero.op != "const":
        q = apply("add", apply("rint", y), cast(zero, y.dtype))
        return cast(_clamped(q, low, high), dtype)
    shift = 0 if zero is None else int(zero.value)
    q = cast(apply("rint", _clamped(y, low - shift, high - shift)), I32)
    return cast(apply("add", q, const(shift, I32)) if shift else q, dtype)


def _clamped(x: Expr, low: float, high: float) -> Expr:
    """Return x between two numbers; NaN becomes the lower one."""
    least = like(low, x)
    return apply("min", apply("select", apply("lt", least, x), x, least), like(high, x))


def quantised(x: Expr, scale: Expr, zero: Expr | None, dtype: Dtype) -> Expr:
    """Return saturate(round(x ÷ scale) + zero), x and scale being of the dtype to divide in.

    By constants in float32, x is clamped before it is divided: the same codes, and a bounded dividend.
    """
    constant = x.dtype == F32 and scale.op == "const" and (zero is None or zero.op == "const")
    if constant and _SMALL < float(scale.value) < 1 / _SMALL:
        shift = 0 if zero is None else int(zero.value)
        info = np.iinfo(dtype)
        low, high = (float(np.float32(end - shift) * scale.value) for end in (info.min, info.max))
        q = cast(apply("rint", apply("div", _clamped(x, low, high), scale)), I32)
        return cast(apply("add", q, const(shift, I32)) if shift else q, dtype)
    q = apply("div", x, scale)
    return rescaled(cast(q, wide_dtype(q.dtype)), zero, dtype)


def dequantised(x: Expr, scale: Expr, zero: Expr | None, dtype: Dtype) -> Expr:
    """Return (x − zero) · scale, computed in float32 for narrower dtypes."""
    kind = wide_dtype(dtype)
    difference = cast(x, kind) if zero is None else apply("sub", cast(x, kind), cast(zero, kind))
    return cast(apply("mul", difference, cast(scale, kind)), dtype)


@lowering("QuantizeLinear")
def quantize_linear(
    at: Site,
    x: View,
    scale: View,
    zero: View | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> View:
    """saturate(round(x ÷ scale) + zero)."""
    dtype = from_code(output_dtype) if output_dtype else U8 if zero is None else zero.dtype
    if dtype not in CODES:
        raise NotLowered(f"dtype {dtype}")
    kind = from_code(precision) if precision else scale.dtype
    views = [spread(at, x, v, axis, block_size) for v in (scale, zero) if v is not None]

    def build(e: Expr, s: Expr, z: Expr | None = None) -> Expr:
        return quantised(cast(e, kind), cast(s, kind), z, dtype)

    return at.map(build, x, *map(_single, views))


def _single(view: View) -> View:
    """Return the one element of a view that repeats it; any other view unchanged."""
    repeats = all(stride == 0 or size == 1 for size, stride in zip(view.shape, view.strides, strict=True))
    return View(view.buffer, (1,) * len(view.shape), view.strides, view.offset) if repeats else view


@lowering("DequantizeLinear")
def dequantize_linear(
    at: Site,
    x: View,
    scale: View,
    zero: View | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> View:
    """(x − zero) · scale."""
    dtype = from_code(output_dtype) if output_dtype else scale.dtype
    floats = dtype in _WIDE or dtype in (F32, F64)
    if not floats or (x.dtype not in CODES and not (x.dtype == I32 and zero is None)):
        raise NotLowered(f"{x.dtype} to {dtype}")
    views = [spread(at, x, v, axis, block_size) for v in (scale, zero) if v is not None]
    y = at.map(lambda e, s, z=None: dequantised(e, s, z, dtype), x, *map(_single, views))
    if y.buffer.kind is Kind.INNER:
        at.origins[y.buffer] = Origin(y, x, views[0], None if zero is None else views[1])
    return y


def origin_of(floats: View, codes: View, scale: View, zero: View | None = None, **attributes: Any) -> Origin:
    """Return what constant floats were dequantised from; the arguments after them are DequantizeLinear's."""
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    at = Site(Program(), "scales")
    views = [None if v is None else spread(at, codes, v, axis, block) for v in (scale, zero)]
    assert views[0] is not None  # noqa: S101  DequantizeLinear has a scale
    return Origin(floats, codes, views[0], views[1])


lowering("QuantizeLinear", domain=MS)(quantize_linear)
lowering("DequantizeLinear", domain=MS)(dequantize_linear)


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(at: Site, x: View) -> tuple[View, View, View]:
    """x as uint8 with the scale and zero point that its own range asks for."""
    floats_only(x)
    element, kind = load(0, x.dtype), x.dtype
    low = apply("min", stage(0, kind), const(0, kind))
    high = apply("max", stage(1, kind), const(0, kind))
    span = apply("div", apply("sub", high, low), const(255, kind))
    scale = apply("select", apply("eq", span, like(0, span)), like(1, span), span)
    middle = apply("div", apply("neg", low), scale)
    zero = cast(apply("rint", apply("min", apply("max", middle, like(0, span)), like(255, span))), U8)
    stages = [Reduction("min", element), Reduction("max", element)]
    every = list(range(len(x.shape)))
    rows = run_rows(at, [x], every, stages, [(scale, False), (zero, False)])
    s, z = (row.permuted([]) if not every else View(row.buffer, (), (), row.offset) for row in rows)
    y = at.map(lambda e, s, z: quantised(e, s, z, U8), x, s, z)
    return y, s, z


# ---- operators of codes -------------------------------------------------------------------------------


def one(at: Site, view: View | None) -> View | None:
    """Return a parameter of one element as a scalar. Raises NotLowered for one of more."""
    if view is not None and view.size != 1:
        raise NotLowered("a parameter of more than one element")
    return None if view is None else at.reshape(view, ())


def _zero(view: View | None, zero: Expr | None, dtype: Dtype) -> Expr:
    return const(0, dtype) if view is None or zero is None else cast(zero, dtype)


def codes_only(*views: View) -> None:
    """Raise NotLowered when a view does not hold 8-bit codes."""
    for view in views:
        if view.dtype not in (I8, U8):
            raise NotLowered(f"codes of dtype {view.dtype}")


@lowering("QLinearAdd", domain=MS)
def qlinear_add(
    at: Site,
    a: View,
    a_scale: View,
    a_zero: View | None,
    b: View,
    b_scale: View,
    b_zero: View | None,
    c_scale: View,
    c_zero: View | None = None,
) -> View:
    """A + B of quantised tensors: sa/sc · A + (sb/sc · B + shift), each step rounded once."""
    codes_only(a, b)
    kind = a_scale.dtype
    sa, sb, sc = (_given(at, v) for v in (a_scale, b_scale, c_scale))
    left, right = (at.map(lambda s, c: apply("div", s, c), s, sc) for s in (sa, sb))
    za, zb, zc = (_filled(at, one(at, v), kind) for v in (a_zero, b_zero, c_zero))

    def shift_of(c: Expr, factor_a: Expr, x: Expr, factor_b: Expr, y: Expr) -> Expr:
        return apply("sub", c, apply("add", apply("mul", factor_a, x), apply("mul", factor_b, y)))

    shift = at.map(shift_of, zc, left, za, right, zb)

    def build(x: Expr, y: Expr, factor_a: Expr, factor_b: Expr, moved: Expr) -> Expr:
        part = cast(apply("add", _scaled(y, factor_b), cast(moved, F64)), kind)
        return rescaled(cast(apply("add", _scaled(x, factor_a), cast(part, F64)), kind), None, a.dtype)

    return at.map(build, a, b, left, right, shift)


def _scaled(x: Expr, factor: Expr) -> Expr:
    return apply("mul", cast(x, F64), cast(factor, F64))


def _given(at: Site, view: View) -> View:
    found = one(at, view)
    if found is None:
        raise NotLowered("a scale is missing")
    return found


def _filled(at: Site, zero: View | None, kind: Dtype) -> View:
    """Return a zero point in a float dtype, 0 for none."""
    if zero is None:
        return at.map(lambda: const(0, kind), shape=())
    return at.cast(zero, kind)


@lowering("QLinearMul", domain=MS)
def qlinear_mul(
    at: Site,
    a: View,
    a_scale: View,
    a_zero: View | None,
    b: View,
    b_scale: View,
    b_zero: View | None,
    c_scale: View,
    c_zero: View | None = None,
) -> View:
    """A · B of quantised tensors."""
    codes_only(a, b)
    kind = a_scale.dtype
    scales = [_given(at, v) for v in (a_scale, b_scale, c_scale)]
    scale = at.map(lambda s, t, c: apply("div", apply("mul", s, t), c), *scales)
    zeros = [_filled(at, one(at, v), kind) for v in (a_zero, b_zero, c_zero)]

    def build(x: Expr, y: Expr, factor: Expr, zx: Expr, zy: Expr, zc: Expr) -> Expr:
        product = apply("mul", apply("sub", cast(x, kind), zx), apply("sub", cast(y, kind), zy))
        return rescaled(apply("mul", product, factor), zc, a.dtype)

    return at.map(build, a, b, scale, *zeros)


def _by_floats(
    at: Site,
    function: Callable[[Expr], Expr],
    x: View,
    scale: View,
    zero: View | None,
    to_scale: View,
    to_zero: View | None = None,
) -> View:
    """Return codes → floats → ``function`` → codes."""
    codes_only(x)
    kind = scale.dtype
    zeros = [_filled(at, one(at, v), kind) for v in (zero, to_zero)]

    def build(e: Expr, s: Expr, z: Expr, t: Expr, to: Expr) -> Expr:
        return quantised(function(dequantised(e, s, z, kind)), t, to, x.dtype)

    return at.map(build, x, _given(at, scale), zeros[0], _given(at, to_scale), zeros[1])


@lowering("QLinearSigmoid", domain=MS)
def qlinear_sigmoid(at: Site, x: View, *parameters: Any) -> View:
    """Sigmoid of a quantised tensor."""
    return _by_floats(at, sigmoid, x, *parameters)


@lowering("QLinearLeakyRelu", domain=MS)
def qlinear_leaky_relu(at: Site, x: View, *parameters: Any, alpha: float = 0.01) -> View:
    """LeakyRelu of a quantised tensor."""
    return _by_floats(at, lambda e: leaky_relu(e, alpha=alpha), x, *parameters)


@lowering("QLinearGlobalAveragePool", domain=MS)
def qlinear_global_average_pool(
    at: Site,
    x: View,
    x_scale: View,
    x_zero: View,
    y_scale: View,
    y_zero: View,
    *,
    channels_last: int = 0,
) -> View:
    """Mean over the spatial axes of a quantised tensor; the sums are exact."""
    codes_only(x)
    axes = list(range(1, len(x.shape) - 1) if channels_last else range(2, len(x.shape)))
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    scale = at.map(
        lambda s, t: apply("div", s, apply("mul", t, like(count, t))),
        _given(at, x_scale),
        _given(at, y_scale),
    )
    total = Reduction("sum", cast(load(0, x.dtype), I64))
    (sums,) = run_rows(at, [x], axes, [total], [(stage(0, I64), False)])

    def build(n: Expr, factor: Expr, zx: Expr, zy: Expr) -> Expr:
        shifted = apply("sub", n, apply("mul", const(count, I64), cast(zx, I64)))
        return rescaled(apply("mul", cast(shifted, factor.dtype), factor), zy, y_zero.dtype)

    return at.map(build, sums, scale, _given(at, x_zero), _given(at, y_zero))
