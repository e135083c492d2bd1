"""Fused operators of com.microsoft → the same steps as their parts; the whole node is rounded once."""

from collections.abc import Callable, Sequence
from typing import Any

from graphdoc.engine.expr import F32, Expr, apply, cast, load, stage
from graphdoc.engine.kernels.rows import Reduction
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_conv import channels_first, channels_last, convolution
from graphdoc.engine.lower_elementwise import gelu, hard_sigmoid, leaky_relu, like, relu, sigmoid, wide
from graphdoc.engine.lower_products import Epilogue, general_product, product, scaled, the_sum
from graphdoc.engine.lower_rows import floats_only, moments, root, run_rows, softmax_parts
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.ops.ms_fused import MS, QUICK
from graphdoc.engine.program import View


def _clip(x: Expr, low: float = float("-inf"), high: float = float("inf")) -> Expr:
    return apply("min", apply("max", x, like(low, x)), like(high, x))


_ACTIVATIONS: dict[str, Callable[..., Expr]] = {
    "": the_sum,
    "Relu": relu,
    "Tanh": lambda x: apply("tanh", x),
    "Sigmoid": sigmoid,
    "LeakyRelu": lambda x, alpha=0.01: leaky_relu(x, alpha=alpha),
    "Clip": _clip,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: hard_sigmoid(x, alpha=alpha, beta=beta),
}


def _activation(name: str, parameters: Sequence[float | None]) -> Epilogue:
    if name not in _ACTIVATIONS:
        raise NotLowered(f"activation {name}")
    given = [p for p in parameters if p is not None]
    return lambda x: _ACTIVATIONS[name](x, *given)


# ---- convolutions -------------------------------------------------------------------------------------


@lowering("FusedConv", domain=MS)
def fused_conv(
    at: Site,
    x: View,
    w: View,
    bias: View | None = None,
    added: View | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **attributes: Any,
) -> View:
    """activation(Conv(x, w) + bias + added)."""
    activated = _activation(activation, activation_params)

    def finish(total: Expr, *rest: Expr) -> Expr:
        for term in rest:
            total = apply("add", total, term)
        return activated(total)

    biases = [] if bias is None else [bias]
    sums = [] if added is None else [added]
    return convolution(at, x, w, biases, group, kernel_shape, attributes, finish, sums)


@lowering("NhwcFusedConv", "NhwcConv", domain=MS)
def nhwc_conv(
    at: Site, x: View, w: View, bias: View | None = None, added: View | None = None, **attributes: Any
) -> View:
    """FusedConv over x (N, *spatial, C) with w (M, *spatial, C/group)."""
    z = None if added is None else channels_first(added)
    y: View = fused_conv(at, channels_first(x), channels_first(w), bias, z, **attributes)
    return channels_last(y)


# ---- products -----------------------------------------------------------------------------------------


def _operand(x: View, transposed: int, batch: int) -> View:
    rank = len(x.shape)
    if rank < 2:
        return x
    x = x.permuted([*range(1, rank - 1), 0, rank - 1]) if batch else x
    return x.permuted([*range(rank - 2), rank - 1, rank - 2]) if transposed else x


@lowering("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MS)
def fused_matmul(
    at: Site,
    a: View,
    b: View,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    activation_axis: int = 0,
) -> View:
    """activation(alpha · A·B), the operands transposed first."""
    activated = _activation(activation, (activation_alpha, activation_beta, activation_gamma))
    left, right = _operand(a, transA, transBatchA), _operand(b, transB, transBatchB)
    return product(at, left, right, lambda total: activated(scaled(total, alpha)))


@lowering("FusedGemm", domain=MS)
def fused_gemm(
    at: Site,
    a: View,
    b: View,
    c: View | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
) -> View:
    """activation(alpha · A·B + beta · C)."""
    activated = _activation(activation, (activation_alpha, activation_beta, activation_gamma))
    return general_product(at, a, b, c, alpha, beta, (transA, transB), activated)


@lowering("GemmFastGelu", domain=MS)
def gemm_fast_gelu(at: Site, x: View, w: View, bias: View | None = None) -> View:
    """The tanh form of Gelu of x·w + bias."""

    def finish(total: Expr, *rest: Expr) -> Expr:
        for term in rest:
            total = apply("add", total, term)
        return gelu(total, approximate="tanh")

    return product(at, x, w, finish, [] if bias is None else [bias])


# ---- element by element -------------------------------------------------------------------------------


def _summed(at: Site, views: Sequence[View | None], finish: Callable[[Expr], Expr]) -> View:
    """Return ``finish`` of the sum of the given views."""
    given = [view for view in views if view is not None]
    floats_only(*given)

    def build(first: Expr, *rest: Expr) -> Expr:
        total = wide(first)
        for term in rest:
            total = apply("add", total, wide(term))
        return cast(finish(total), first.dtype)

    return at.map(build, *given)


@lowering("Gelu", "BiasGelu", domain=MS)
def bias_gelu(at: Site, x: View, bias: View | None = None) -> View:
    """Gelu of x + bias."""
    return _summed(at, [x, bias], gelu)


@lowering("FastGelu", domain=MS)
def fast_gelu(at: Site, x: View, bias: View | None = None) -> View:
    """The tanh form of Gelu of x + bias."""
    return _summed(at, [x, bias], lambda total: gelu(total, approximate="tanh"))


@lowering("QuickGelu", domain=MS)
def quick_gelu(at: Site, x: View, *, alpha: float = QUICK) -> View:
    """x · sigmoid(alpha · x)."""
    return _summed(at, [x], lambda e: apply("mul", e, sigmoid(apply("mul", e, like(alpha, e)))))


@lowering("BiasAdd", domain=MS)
def bias_add(at: Site, x: View, bias: View, skip: View) -> View:
    """x + bias + skip."""
    return _summed(at, [x, bias, skip], the_sum)


# ---- rows ---------------------------------------------------------------------------------------------


@lowering("BiasSoftmax", domain=MS)
def bias_softmax(at: Site, x: View, bias: View, *, axis: int = 1, is_inner_broadcast: int = 1) -> View:
    """Softmax of x + bias over all axes from ``axis`` on."""
    floats_only(x, bias)
    if not is_inner_broadcast:
        raise NotLowered("a bias that repeats as blocks")
    element = apply("add", wide(load(0, x.dtype)), wide(load(1, bias.dtype)))
    stages, power = softmax_parts(element)
    result = cast(apply("div", power, stage(1, power.dtype)), x.dtype)
    axes = list(range(axis_of(axis, len(x.shape)), len(x.shape)))
    (full,) = run_rows(at, [x, bias.broadcast(x.shape)], axes, stages, [(result, True)])
    return full


def _with_skip(at: Site, x: View, skip: View, bias: View | None) -> tuple[list[View], Expr]:
    """Return the views whose sum a normalisation takes, and the sum."""
    views = [x, skip.broadcast(x.shape), *([] if bias is None else [bias.broadcast(x.shape)])]
    floats_only(*views)
    total = wide(load(0, x.dtype))
    for k, view in enumerate(views[1:], 1):
        total = apply("add", total, wide(load(k, view.dtype)))
    return views, total


def _normalised(
    at: Site, views: list[View], stages: Sequence[Reduction], y: Expr, total: Expr, statistics: Sequence[Expr]
) -> tuple[View, ...]:
    """Add the step; return the result, the statistics in float32 and the sum, as far as asked for."""
    x = views[0]
    wanted = [(cast(y, x.dtype), True), *((cast(s, F32), False) for s in statistics)]
    wanted.append((cast(total, x.dtype), True))
    return tuple(run_rows(at, views, [len(x.shape) - 1], stages, wanted[: max(1, at.outputs)]))


@lowering("SkipLayerNormalization", domain=MS)
def skip_layer_normalization(
    at: Site,
    x: View,
    skip: View,
    gamma: View,
    beta: View | None = None,
    bias: View | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[View, ...]:
    """The layer normalisation of x + skip + bias over the last axis, · gamma + beta."""
    views, total = _with_skip(at, x, skip, bias)
    stages, mean, variance, centred = moments(total, x.shape[-1])
    inverse = apply("div", like(1, variance), root(variance, epsilon))
    y = apply("mul", centred, inverse)
    for operation, view in (("mul", gamma), ("add", beta)):
        if view is not None:
            views.append(view.broadcast(x.shape))
            y = apply(operation, y, wide(load(len(views) - 1, view.dtype)))
    floats_only(*views)
    return _normalised(at, views, stages, y, total, (mean, inverse))


@lowering("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_normalization(
    at: Site, x: View, skip: View, gamma: View, bias: View | None = None, *, epsilon: float = 1e-12
) -> tuple[View, ...]:
    """x + skip + bias over the root of its mean square over the last axis, · gamma."""
    views, total = _with_skip(at, x, skip, bias)
    stages = [Reduction("sum", apply("mul", total, total))]
    kind = total.dtype
    mean = apply("div", stage(0, kind), like(x.shape[-1], total))
    inverse = apply("div", like(1, total), root(mean, epsilon))
    views.append(gamma.broadcast(x.shape))
    y = apply("mul", apply("mul", total, inverse), wide(load(len(views) - 1, gamma.dtype)))
    return _normalised(at, views, stages, y, total, (like(0, total), inverse))
