"""Products of 8-bit codes → contractions with exact int32 sums, zero points set right afterwards.

The sum of (a − za)·(b − zb) is the sum of a·b, less za times the sums of b's columns, less zb times the sums
of a's rows, plus K·za·zb. Constant weights get their zero point subtracted beforehand where the result still
fits 8 bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import I32, Dtype, Expr, apply, cast, const, load, stage
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Site, constant, content, lowering
from graphdoc.engine.lower_conv import (
    by_group,
    channels_first,
    channels_last,
    checked_window,
    depthwise,
    grouped,
    image,
    is_depthwise,
)
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.lower_pool import reach, windows
from graphdoc.engine.lower_products import contract
from graphdoc.engine.lower_quantize import codes_only, dynamic_quantize_linear, one, rescaled
from graphdoc.engine.lower_rows import run_rows
from graphdoc.engine.memory import let_go
from graphdoc.engine.ops.ms_fused import MS
from graphdoc.engine.ops.window import Window
from graphdoc.engine.program import View

Finish = Callable[..., Expr]
"""(the exact sum, further inputs in their own dtypes) → what is stored."""


def _exact(total: Expr) -> Expr:
    return total


def _nothing(zero: View | None) -> bool:
    """Return whether a zero point is absent, or known to be 0."""
    known = content(zero)
    return zero is None or (known is not None and not known.any())


def _shifted(b: View, zero: View | None, axis: int) -> tuple[View, View | None]:
    """Return constant codes less their zero point where 8 bits hold them, else what was given.

    axis: of b, along which a vector of zero points runs.
    """
    known, zeros = content(b), content(zero)
    if _nothing(zero):
        return b, None
    if known is None or zeros is None:
        return b, zero
    shape = [-1 if a == axis else 1 for a in range(known.ndim)]
    zeros = zeros.reshape(shape if zeros.size > 1 else ())
    if known.size and not _fits(known, zeros, axis):
        return b, zero
    codes = (known.view(np.uint8) - zeros.view(np.uint8)).view(np.int8)  # modulo 256, and 8 bits hold it
    let_go(known)
    return constant(codes, b.buffer.name), None


def _fits(codes: Any, zeros: Any, axis: int) -> bool:
    """Return whether 8 bits hold all codes less their zero point."""
    others = tuple(a for a in range(codes.ndim) if zeros.ndim == 0 or a != axis)
    low, high = (f(codes, axis=others, keepdims=True).astype(np.int32) for f in (np.min, np.max))
    least, most = (low - zeros.astype(np.int32)).min(), (high - zeros.astype(np.int32)).max()
    return bool(least >= -128 and most <= 127)


def _sums(at: Site, view: View, axes: Sequence[int]) -> View:
    """Return the int32 sums of codes over axes, kept with size 1; at once where they are constant."""
    known = content(view)
    if known is not None:
        total = known.sum(axis=tuple(axes), dtype=np.int32, keepdims=True)
        let_go(known)
        return constant(total, at.name)
    summed = Reduction("sum", cast(load(0, view.dtype), I32))
    return run_rows(at, [view], axes, [summed], [(stage(0, I32), False)])[0]


@dataclass(frozen=True, slots=True)
class _Corrections:
    """What becomes of a sum of codes: views of int32 to add to it, and pairs whose products are taken off."""

    added: list[View]
    pairs: list[View]

    @property
    def views(self) -> list[View]:
        """Return the views in the order in which :meth:`applied` takes their elements."""
        return [*self.added, *self.pairs]

    def applied(self, total: Expr, elements: Sequence[Expr]) -> tuple[Expr, Sequence[Expr]]:
        """Return the sum set right, and the elements of further views."""
        first, last = len(self.added), len(self.added) + len(self.pairs)
        for element in elements[:first]:
            total = apply("add", total, element)
        for k in range(first, last, 2):
            total = apply("sub", total, _whole_product(elements[k], elements[k + 1]))
        return total, elements[last:]


def _whole_product(x: Expr, y: Expr) -> Expr:
    return apply("mul", cast(x, I32), cast(y, I32))


def _corrections(at: Site, pairs: Sequence[View], bias: View | None) -> _Corrections:
    """Return the corrections; what is constant of them is added up now.

    pairs: of views whose products are taken off.
    """
    added = [] if bias is None else [bias]
    left: list[View] = []
    for x, y in zip(pairs[::2], pairs[1::2], strict=True):
        if content(x) is None or content(y) is None:
            left += [x, y]
        else:
            added.append(at.map(lambda a, b: apply("neg", _whole_product(a, b)), x, y))
    fixed = [view for view in added if content(view) is not None]
    rest = [view for view in added if content(view) is None]
    while len(fixed) > 1:
        fixed[:2] = [at.map(lambda a, b: apply("add", a, b), *fixed[:2])]
    return _Corrections([*fixed, *rest], left)


# ---- matrices -----------------------------------------------------------------------------------------


def product_of_codes(
    at: Site,
    a: View,
    a_zero: View | None,
    b: View,
    b_zero: View | None,
    dtype: Dtype,
    finish: Finish = _exact,
    extra: Sequence[View] = (),
    bias: View | None = None,
) -> View:
    """Return ``finish`` of (a − a_zero)·(b − b_zero) + bias for stacks of matrices of 8-bit codes.

    a_zero: one. b_zero: one, or one per column. bias: int32. extra and bias: broadcast to the product.
    """
    codes_only(a, b)
    if min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2]:
        raise NotLowered("no stacks of matrices that fit")
    a_zero = None if _nothing(a_zero) else one(at, a_zero)
    b, b_zero = _shifted(b, b_zero, len(b.shape) - 1)
    if b_zero is not None and b_zero.size > 1 and b_zero.shape != (b.shape[-1],):
        raise NotLowered("zero points of b that are no vector")
    terms = _corrections(at, _off_products(at, a, a_zero, b, b_zero), bias)

    def epilogue(total: Expr, *elements: Expr) -> Expr:
        total, rest = terms.applied(total, elements)
        return finish(total, *rest)

    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = at.fresh((*lead, a.shape[-2], b.shape[-1]), dtype)
    inputs = [*terms.views, *extra]
    if len(b.shape) == 2:
        contract(at, (0, len(a.shape) - 1, 1), a, b, out, epilogue, inputs)
        return out
    a, b = a.broadcast((*lead, *a.shape[-2:])), b.broadcast((*lead, *b.shape[-2:]))
    contract(at, (len(lead), 1, 1), a, b, out, epilogue, inputs)
    return out


def _off_products(at: Site, a: View, a_zero: View | None, b: View, b_zero: View | None) -> list[View]:
    """Return pairs of views whose products are taken off the sum."""
    pairs: list[View] = []
    if a_zero is not None:
        columns = _sums(at, b, [len(b.shape) - 2])
        if b_zero is not None:  # za·(columns − K·zb)
            count = const(a.shape[-1], I32)
            columns = at.map(
                lambda s, z: apply("sub", s, apply("mul", count, cast(z, I32))), columns, _per_column(b_zero)
            )
        pairs += [a_zero, columns]
    if b_zero is not None:
        pairs += [_per_column(b_zero), _sums(at, a, [len(a.shape) - 1])]
    return pairs


def _per_column(zero: View) -> View:
    return zero if zero.size > 1 else View(zero.buffer, (), (), zero.offset)


@lowering("MatMulInteger")
def matmul_integer(
    at: Site, a: View, b: View, a_zero: View | None = None, b_zero: View | None = None
) -> View:
    """(a − a_zero)·(b − b_zero) in int32."""
    return product_of_codes(at, a, a_zero, b, b_zero, I32)


def _line(at: Site, parameter: View) -> View:
    """Return a scale of one element, or of one per column."""
    return at.reshape(parameter, ()) if parameter.size == 1 else parameter


def _ratio(at: Site, a: View, b: View, y: View | None) -> View:
    """Return a · b ÷ y."""
    both = at.map(lambda s, t: apply("mul", s, t), one_of(at, a), _line(at, b))
    return both if y is None else at.map(lambda s, t: apply("div", s, t), both, one_of(at, y))


def one_of(at: Site, view: View) -> View:
    """Return a parameter of one element as a scalar."""
    found = one(at, view)
    if found is None:
        raise NotLowered("a parameter is missing")
    return found


@lowering("QLinearMatMul")
def qlinear_matmul(
    at: Site,
    a: View,
    a_scale: View,
    a_zero: View,
    b: View,
    b_scale: View,
    b_zero: View,
    y_scale: View,
    y_zero: View,
) -> View:
    """The product of quantised matrices, quantised."""
    codes_only(y_zero)
    if a_scale.dtype.itemsize < 4 or b_scale.size not in (1, b.shape[-1]) or len(b_scale.shape) > 1:
        raise NotLowered("scales that are no float32, or not per column")
    scale = _ratio(at, a_scale, b_scale, y_scale)

    def finish(total: Expr, factor: Expr, zero: Expr) -> Expr:
        return rescaled(apply("mul", cast(total, factor.dtype), factor), zero, y_zero.dtype)

    return product_of_codes(at, a, a_zero, b, b_zero, y_zero.dtype, finish, [scale, one_of(at, y_zero)])


@lowering("QGemm", domain=MS)
def qgemm(
    at: Site,
    a: View,
    a_scale: View,
    a_zero: View,
    b: View,
    b_scale: View,
    b_zero: View,
    c: View | None = None,
    y_scale: View | None = None,
    y_zero: View | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> View:
    """Gemm of 8-bit matrices: float, or with y_scale 8-bit."""
    a, b = (v.permuted([1, 0]) if flag else v for v, flag in ((a, transA), (b, transB)))
    scaled = at.map(lambda s: apply("mul", const(alpha, s.dtype), s), one_of(at, a_scale))
    scale = _ratio(at, scaled, b_scale, y_scale)
    shift = [] if y_scale is None or y_zero is None else [one_of(at, y_zero)]
    dtype = scale.dtype if y_scale is None else np.dtype(np.uint8) if y_zero is None else y_zero.dtype

    def finish(total: Expr, factor: Expr, *rest: Expr) -> Expr:
        y = apply("mul", cast(total, factor.dtype), factor)
        return y if y_scale is None else rescaled(y, rest[0] if shift else None, dtype)

    return product_of_codes(at, a, a_zero, b, b_zero, dtype, finish, [scale, *shift], c)


@lowering("MatMulIntegerToFloat", domain=MS)
def matmul_integer_to_float(
    at: Site,
    a: View,
    b: View,
    a_scale: View,
    b_scale: View,
    a_zero: View | None = None,
    b_zero: View | None = None,
    bias: View | None = None,
) -> View:
    """(a − a_zero)·(b − b_zero) · a_scale · b_scale + bias."""
    scale = _ratio(at, a_scale, b_scale, None)

    def finish(total: Expr, factor: Expr, *rest: Expr) -> Expr:
        y = apply("mul", cast(total, factor.dtype), factor)
        return apply("add", y, rest[0]) if rest else y

    extra = [scale] if bias is None else [scale, bias]
    return product_of_codes(at, a, a_zero, b, b_zero, scale.dtype, finish, extra)


@lowering("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(
    at: Site, a: View, b: View, b_scale: View, b_zero: View | None = None, bias: View | None = None
) -> View:
    """a, quantised by its range, times (b − b_zero) · b_scale, plus bias."""
    codes, scale, zero = dynamic_quantize_linear(at, a)
    result: View = matmul_integer_to_float(at, codes, b, scale, b_scale, zero, b_zero, bias)
    return result


# ---- convolutions -------------------------------------------------------------------------------------


def convolution_of_codes(
    at: Site,
    x: View,
    x_zero: View | None,
    w: View,
    w_zero: View | None,
    dtype: Dtype,
    attributes: dict[str, Any],
    finish: Finish = _exact,
    extra: Sequence[View] = (),
    bias: View | None = None,
) -> View:
    """Return ``finish`` of the convolution of (x − x_zero) with constant (w − w_zero), plus bias.

    extra, and bias of int32: broadcast to (N, *out, M).
    """
    codes_only(x, w)
    group = attributes.pop("group", 1)
    x_zero = None if _nothing(x_zero) else one(at, x_zero)
    window = checked_window(x, w, group, attributes.pop("kernel_shape", None), attributes)
    neutral = 0 if x_zero is None else x_zero
    padded = image(at, x, *reach(window, x.shape[2:]), neutral)
    out = at.fresh((x.shape[0], *window.out, w.shape[0]), dtype)
    w, w_zero = _shifted(w, w_zero, 0)
    apart = is_depthwise(w, group)
    if apart and w_zero is not None:
        w, w_zero = at.map(lambda a, z: apply("sub", cast(a, I32), cast(z, I32)), w, _along(w, w_zero)), None
    terms = _corrections(at, _off_windows(at, padded, x_zero, w, w_zero, window, group), bias)

    def epilogue(total: Expr, *elements: Expr) -> Expr:
        total, rest = terms.applied(total, elements)
        return finish(total, *rest)

    patches = windows(padded, window, 1)
    if apart:
        depthwise(at, patches, w, out, group, _term, epilogue, [*terms.views, *extra])
    else:
        grouped(at, patches, by_group(w, group), out, epilogue, [*terms.views, *extra])
    return channels_first(out)


def _along(w: View, zero: View) -> View:
    """Return zero points over the weights (M, C/group, *kernel): one, or one per feature."""
    if zero.size == 1:
        return View(zero.buffer, (), (), zero.offset)
    if zero.shape != (w.shape[0],):
        raise NotLowered("zero points of the weights that are no vector")
    return with_ones(zero, range(1, len(w.shape)))


def _off_windows(
    at: Site,
    padded: View,
    x_zero: View | None,
    w: View,
    w_zero: View | None,
    window: Window,
    group: int,
) -> list[View]:
    """Return pairs of views over (N, *out, M) whose products are taken off the sum."""
    pairs: list[View] = []
    features = (w.shape[0],)
    if x_zero is not None:  # zx·(sums of w - K·zw)
        columns = _sums(at, w, range(1, len(w.shape)))
        if w_zero is not None:
            count = const(w.size // w.shape[0], I32)
            columns = at.map(
                lambda s, z: apply("sub", s, apply("mul", count, cast(z, I32))), columns, _along(w, w_zero)
            )
        pairs += [x_zero, at.reshape(columns, features)]
    if w_zero is not None:
        if group > 1:
            raise NotLowered("groups of weights with a zero point")
        over = len(padded.shape) - 1
        inside = windows(_sums(at, padded, [over]), window, 1)
        pairs += [_per_column(w_zero), _window_sums(at, inside, over + 1)]
    return pairs


def _window_sums(at: Site, inside: View, first: int) -> View:
    """Return the sums of int32 windows whose axes stand from ``first`` on; these axes go."""
    axes = list(range(first, len(inside.shape)))
    total = Reduction("sum", load(0, I32))
    (row,) = run_rows(at, [inside], axes, [total], [(stage(0, I32), False)])
    return row.permuted(list(range(first)))


def _term(x: Expr, w: Expr) -> Expr:
    return apply("mul", cast(x, I32), cast(w, I32))


@lowering("ConvInteger")
def conv_integer(
    at: Site, x: View, w: View, x_zero: View | None = None, w_zero: View | None = None, **attributes: Any
) -> View:
    """The int32 convolution of codes less their zero points."""
    return convolution_of_codes(at, x, x_zero, w, w_zero, I32, attributes)


@lowering("QLinearConv")
def qlinear_conv(
    at: Site,
    x: View,
    x_scale: View,
    x_zero: View,
    w: View,
    w_scale: View,
    w_zero: View,
    y_scale: View,
    y_zero: View,
    bias: View | None = None,
    **attributes: Any,
) -> View:
    """int32 sums, with bias, times x_scale · w_scale ÷ y_scale, rounded, plus y_zero, clamped."""
    codes_only(y_zero)
    scale = _ratio(at, x_scale, w_scale, y_scale)
    extra = [scale, one_of(at, y_zero)]

    def finish(total: Expr, factor: Expr, zero: Expr) -> Expr:
        return rescaled(apply("mul", cast(total, factor.dtype), factor), zero, y_zero.dtype)

    return convolution_of_codes(at, x, x_zero, w, w_zero, y_zero.dtype, attributes, finish, extra, bias)


@lowering("QLinearConv", domain=MS)
def ms_qlinear_conv(at: Site, x: View, *inputs: View, **attributes: Any) -> View:
    """QLinearConv, of (N, *spatial, C) with channels_last."""
    if not attributes.pop("channels_last", 0):
        plain: View = qlinear_conv(at, x, *inputs, **attributes)
        return plain
    y: View = qlinear_conv(at, channels_first(x), *inputs, **attributes)
    return channels_last(y)
