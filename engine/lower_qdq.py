"""Products of dequantised tensors → exact products of their codes, scaled afterwards.

Where both operands of a MatMul, Gemm or Conv come from a DequantizeLinear, the sum of products of floats is a
scale times a sum of products of whole numbers. That is exact in int32: nearer to the numbers meant than a sum
of floats is, and quicker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, I8, U8, Expr, apply, cast
from graphdoc.engine.lower import Site, content, lowering
from graphdoc.engine.lower_conv import convolution, is_depthwise
from graphdoc.engine.lower_integer import convolution_of_codes, product_of_codes
from graphdoc.engine.lower_products import general_product, product, scaled, the_sum
from graphdoc.engine.program import View
from graphdoc.engine.views import bijective, through

_MOST_TERMS = (2**31 - 1) // 255**2
"""Terms of a sum that int32 surely holds."""

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A dequantised tensor: its codes, and a scale and zero point for each of them."""

    codes: View
    scale: View
    zero: View | None

    @property
    def varies(self) -> set[int]:
        """Return the axes along which scale or zero point are not the same."""
        views = [self.scale, *([] if self.zero is None else [self.zero])]
        return {
            axis
            for view in views
            for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
            if size > 1 and stride
        }

    def along(self, axis: int | None) -> tuple[View, View | None]:
        """Return scale and zero point as vectors along an axis, or as scalars where they do not vary."""
        one = axis is None or axis not in self.varies
        scale, zero = (
            None if v is None else _line(v, None if one else axis) for v in (self.scale, self.zero)
        )
        assert scale is not None  # noqa: S101  only a zero point may be missing
        return scale, zero


def _line(view: View, axis: int | None) -> View:
    shape = () if axis is None else (view.shape[axis],)
    strides = () if axis is None else (view.strides[axis],)
    return View(view.buffer, shape, strides, view.offset)


def _operand(at: Site, view: View) -> _Operand | None:
    """Return what a view was dequantised from, None where that is not known, or no 8-bit codes."""
    origin = at.origins.get(view.buffer)
    if origin is None or view.dtype != F32 or origin.codes.dtype not in (I8, U8):
        return None
    if not bijective(origin.floats) or not view.size:
        return None
    codes, scale = (through(view, origin.floats, v) for v in (origin.codes, origin.scale))
    zero = None if origin.zero is None else through(view, origin.floats, origin.zero)
    if codes is None or scale is None or (zero is None) != (origin.zero is None):
        return None
    return _Operand(codes, scale, zero)


def _pair(at: Site, a: View, b: View, terms: int, axis: int) -> tuple[_Operand, _Operand] | None:
    """Return both operands of a product if codes can say it: a's scale is one, b's one or one along an axis.

    terms: of each sum.
    """
    if terms > _MOST_TERMS:
        return None
    found = _operand(at, a), _operand(at, b)
    if found[0] is None or found[1] is None or found[0].varies or not found[1].varies <= {axis}:
        return None
    return (found[0], found[1]) if _moderate(found[0].scale, found[1].scale) else None


def _moderate(a: View, b: View) -> bool:
    """Return whether products of scales are ordinary numbers: floats would over- or underflow elsewhere."""
    scales = content(a), content(b)
    if scales[0] is None or scales[1] is None:
        return False
    with np.errstate(all="ignore"):
        both = np.abs(scales[0].reshape(-1)[0] * scales[1])
    return bool(np.all(np.isfinite(both) & (both >= _TINY)))


def _factor(at: Site, a: View, b: View) -> View:
    return at.map(lambda s, t: apply("mul", s, t), a, b)


def _dequantised(total: Expr, factor: Expr) -> Expr:
    return apply("mul", cast(total, factor.dtype), factor)


@lowering("MatMul")
def matmul(at: Site, a: View, b: View) -> View:
    """The matrix product by the rules of numpy.matmul."""
    fits = min(len(a.shape), len(b.shape)) >= 2 and a.shape[-1] == b.shape[-2]
    found = _pair(at, a, b, a.shape[-1], len(b.shape) - 1) if fits else None
    if found is None:
        return product(at, a, b)
    left, right = found
    (a_scale, a_zero), (b_scale, b_zero) = left.along(None), right.along(len(b.shape) - 1)
    factor = _factor(at, a_scale, b_scale)
    return product_of_codes(at, left.codes, a_zero, right.codes, b_zero, F32, _dequantised, [factor])


@lowering("Gemm")
def gemm(
    at: Site,
    a: View,
    b: View,
    c: View | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 1,
) -> View:
    """alpha·A·B + beta·C."""
    fits = len(a.shape) == len(b.shape) == 2
    x, y = (v.permuted([1, 0]) if fits and flag else v for v, flag in ((a, transA), (b, transB)))
    fits = fits and x.shape[1] == y.shape[0] and (c is None or _broadcasts(c, (x.shape[0], y.shape[1])))
    found = _pair(at, x, y, x.shape[1], 1) if fits else None
    if found is None:
        return general_product(at, a, b, c, alpha, beta, (transA, transB), the_sum)
    left, right = found
    (a_scale, a_zero), (b_scale, b_zero) = left.along(None), right.along(1)
    added = [] if c is None or beta == 0 else [c]

    def finish(total: Expr, factor: Expr, *rest: Expr) -> Expr:
        result = scaled(_dequantised(total, factor), alpha)
        for term in rest:
            result = apply("add", result, scaled(term, beta))
        return result

    extra = [_factor(at, a_scale, b_scale), *added]
    return product_of_codes(at, left.codes, a_zero, right.codes, b_zero, F32, finish, extra)


def _broadcasts(c: View, shape: tuple[int, ...]) -> bool:
    return c.dtype == F32 and np.broadcast_shapes(c.shape, shape) == shape


@lowering("Conv")
def conv(
    at: Site,
    x: View,
    w: View,
    bias: View | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **attributes: Any,
) -> View:
    """Cross-correlation of x (N, C, *spatial) with w (M, C/group, *kernel), plus bias (M)."""
    added = [] if bias is None else [bias]
    terms = w.size // w.shape[0] if w.shape and w.shape[0] else 0
    found = _pair(at, x, w, terms, 0) if terms else None
    if found is None or any(v.dtype != F32 for v in added) or not _plain(found[1], group):
        return convolution(at, x, w, added, group, kernel_shape, attributes)
    left, right = found
    (x_scale, x_zero), (w_scale, w_zero) = left.along(None), right.along(0)

    def finish(total: Expr, factor: Expr, *rest: Expr) -> Expr:
        y = _dequantised(total, factor)
        return apply("add", y, rest[0]) if rest else y

    given = {**attributes, "group": group, "kernel_shape": kernel_shape}
    extra = [_factor(at, x_scale, w_scale), *added]
    return convolution_of_codes(at, left.codes, x_zero, right.codes, w_zero, F32, given, finish, extra)


def _plain(w: _Operand, group: int) -> bool:
    """Return whether weights are constant, and their zero point none that only products without groups take
    off afterwards."""
    zero = content(w.zero)
    nothing = w.zero is None or (zero is not None and not zero.any())
    return content(w.codes) is not None and (group == 1 or is_depthwise(w.codes, group) or nothing)
