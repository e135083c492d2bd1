"""Derivatives of reductions, softmax and normalisations; see gradient.py for the form of a rule."""

from collections.abc import Sequence
from typing import Any

from graphdoc.engine.ops.gradient import as_input, derivative, reduce_mean, reduce_sum
from graphdoc.engine.ops.table import Array, Call

Axes = tuple[int, ...]


# ---- reductions ----------------------------------------------------------------------------------------


def _kept(call: Call, x: Array, y: Array, rest: Sequence[Array], attributes: dict[str, Any]) -> Array:
    """Return a reduction's result repeated over the axes that it removed."""
    spread = reduce_sum(call, y, x, *rest, **attributes)[0]
    return x if spread is None else spread


@derivative("ReduceMax", "ReduceMin")
def reduce_extremum(
    call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any
) -> tuple[Array | None, ...]:
    """dy for the extreme element; equal ones share it."""
    hit = (x == _kept(call, x, rest[-1], rest, attributes)).astype(dy.dtype)
    axes = tuple(a for a in range(x.ndim)) if rest[-1].size == 1 else _reduced_axes(x, rest, attributes)
    share = hit / hit.sum(axis=axes, keepdims=True) if axes else hit
    return share * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


def _reduced_axes(x: Array, rest: Sequence[Array], attributes: dict[str, Any]) -> Axes:
    listed = rest[0].reshape(-1).tolist() if len(rest) > 1 else attributes.get("axes") or ()
    if listed:
        return tuple(int(axis) % x.ndim for axis in listed)
    return () if attributes.get("noop_with_empty_axes") else tuple(range(x.ndim))


@derivative("ReduceL2")
def reduce_l2(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """x / |x| dy; 0 where the norm is 0."""
    norm = _kept(call, x, rest[-1], rest, attributes)
    scaled = x / call.xp.where(norm == 0, 1, norm).astype(x.dtype)
    return scaled * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("ReduceL1")
def reduce_l1(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """sign(x) dy."""
    return call.xp.sign(x) * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("ReduceSumSquare")
def reduce_sum_square(
    call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any
) -> tuple[Array | None, ...]:
    """2 x dy."""
    return 2 * x * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("ReduceLogSumExp")
def reduce_log_sum_exp(
    call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any
) -> tuple[Array | None, ...]:
    """exp(x − y) dy."""
    share = call.xp.exp(x - _kept(call, x, rest[-1], rest, attributes))
    return share * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("ReduceLogSum")
def reduce_log_sum(
    call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any
) -> tuple[Array | None, ...]:
    """dy / Σ x."""
    share = call.xp.exp(-_kept(call, x, rest[-1], rest, attributes))
    return share * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("ReduceProd")
def reduce_prod(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """y / x dy; not defined by this rule where an element is 0."""
    if bool((x == 0).any()):
        raise ValueError("ReduceProd over a zero has no derivative here")
    product = _kept(call, x, rest[-1], rest, attributes)
    return product / x * _kept(call, x, dy, rest, attributes), *(None,) * (len(rest) - 1)


@derivative("GlobalAveragePool")
def global_average_pool(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array | None, ...]:
    """dy over the number of elements."""
    return reduce_mean(call, dy, x, y, axes=range(2, x.ndim))


@derivative("GlobalMaxPool")
def global_max_pool(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array | None, ...]:
    """dy for the largest element; equal ones share it."""
    return reduce_extremum(call, dy, x, y, axes=range(2, x.ndim))


@derivative("CumSum")
def cumulative_sum(
    call: Call, dy: Array, x: Array, axis: Array, y: Array, *, exclusive: int = 0, reverse: int = 0
) -> tuple[Array | None, ...]:
    """The sum of dy from the other end."""
    along = int(axis.reshape(()))
    turned = dy if reverse else call.xp.flip(dy, along)
    total = turned.cumsum(axis=along) - (turned if exclusive else 0)
    return total if reverse else call.xp.flip(total, along), None


# ---- softmax -------------------------------------------------------------------------------------------


@derivative("Softmax", since=13)
def softmax(call: Call, dy: Array, x: Array, y: Array, *, axis: int = -1) -> tuple[Array, ...]:
    """y (dy − Σ y dy)."""
    weighted = y * dy
    return (weighted - y * weighted.sum(axis=axis, keepdims=True),)


@derivative("LogSoftmax", since=13)
def log_softmax(call: Call, dy: Array, x: Array, y: Array, *, axis: int = -1) -> tuple[Array, ...]:
    """dy − eʸ Σ dy."""
    return (dy - call.xp.exp(y) * dy.sum(axis=axis, keepdims=True),)


@derivative("Softmax")
def softmax_of_rows(call: Call, dy: Array, x: Array, y: Array, *, axis: int = 1) -> tuple[Array]:
    """Softmax before opset 13: all axes from ``axis`` on are one row."""
    dy, rows, y = (v.reshape(*x.shape[: axis % x.ndim], -1) for v in (dy, x, y))
    found: Array = softmax(call, dy, rows, y)[0]
    return (found.reshape(x.shape),)


@derivative("LogSoftmax")
def log_softmax_of_rows(call: Call, dy: Array, x: Array, y: Array, *, axis: int = 1) -> tuple[Array]:
    """LogSoftmax before opset 13, likewise."""
    dy, rows, y = (v.reshape(*x.shape[: axis % x.ndim], -1) for v in (dy, x, y))
    found: Array = log_softmax(call, dy, rows, y)[0]
    return (found.reshape(x.shape),)


# ---- normalisations ------------------------------------------------------------------------------------


def _standardised(call: Call, dn: Array, x: Array, axes: Axes, epsilon: float) -> tuple[Array, Array]:
    """Return dx for n = (x − mean) / √(var + ε) over axes, and n. dn: the derivative by n."""
    mean = x.mean(axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1 / call.xp.sqrt((centred * centred).mean(axis=axes, keepdims=True) + x.dtype.type(epsilon))
    n = centred * inverse
    along = (dn * n).mean(axis=axes, keepdims=True)
    return (dn - dn.mean(axis=axes, keepdims=True) - n * along) * inverse, n


@derivative("LayerNormalization")
def layer_normalization(
    call: Call,
    dy: Array,
    x: Array,
    scale: Array,
    *rest: Array,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array | None, ...]:
    """Over the axes from ``axis`` on, times scale, plus a bias."""
    dx, n = _standardised(call, dy * scale, x, tuple(range(axis % x.ndim, x.ndim)), epsilon)
    bias = [as_input(dy, b) if b is not None else None for b in rest[:-1]]
    return dx, as_input(dy * n, scale), *bias


@derivative("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(
    call: Call,
    dy: Array,
    x: Array,
    scale: Array,
    y: Array,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, Array]:
    """Over the root mean square of the axes from ``axis`` on, times scale."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    inverse = 1 / call.xp.sqrt((x * x).mean(axis=axes, keepdims=True) + x.dtype.type(epsilon))
    n, dn = x * inverse, dy * scale
    return (dn - n * (dn * n).mean(axis=axes, keepdims=True)) * inverse, as_input(dy * n, scale)


def _channels(b: Array, rank: int) -> Array:
    return b.reshape(-1, *(1,) * (rank - 2))


def _per_channel(dy: Array) -> Array:
    """Return the sum over all axes but the second."""
    return dy.sum(axis=(0, *range(2, dy.ndim)))


@derivative("InstanceNormalization")
def instance_normalization(
    call: Call, dy: Array, x: Array, scale: Array, b: Array, y: Array, *, epsilon: float = 1e-5, **rest: Any
) -> tuple[Array, ...]:
    """Per instance and channel, times scale, plus b."""
    axes = tuple(range(2, x.ndim))
    dx, n = _standardised(call, dy * _channels(scale, x.ndim), x, axes, epsilon)
    return dx, _per_channel(dy * n), _per_channel(dy)


@derivative("MeanVarianceNormalization")
def mean_variance_normalization(
    call: Call, dy: Array, x: Array, y: Array, *, axes: Sequence[int] = (0, 2, 3)
) -> tuple[Array]:
    """Over the axes, nothing after."""
    return (_standardised(call, dy, x, tuple(axis % x.ndim for axis in axes), 0.0)[0],)


@derivative("GroupNormalization", since=21)
def group_normalization(
    call: Call,
    dy: Array,
    x: Array,
    scale: Array,
    b: Array,
    y: Array,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, ...]:
    """Per instance and group, times scale per channel, plus b."""
    grouped = (x.shape[0], num_groups, -1)
    dn = (dy * _channels(scale, x.ndim)).reshape(grouped)
    dx, n = _standardised(call, dn, x.reshape(grouped), (2,), epsilon)
    return dx.reshape(x.shape), _per_channel(dy * n.reshape(x.shape)), _per_channel(dy)


@derivative("GroupNormalization")
def group_normalization_18(
    call: Call,
    dy: Array,
    x: Array,
    scale: Array,
    b: Array,
    y: Array,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> tuple[Array, ...]:
    """As version 21, with one scale and bias per group."""
    grouped = [v.reshape(x.shape[0], num_groups, -1) for v in (dy, x)]
    dx, n = _standardised(call, grouped[0] * scale[:, None], grouped[1], (2,), epsilon)
    return dx.reshape(x.shape), (grouped[0] * n).sum(axis=(0, 2)), grouped[0].sum(axis=(0, 2))


@derivative("LRN")
def lrn(
    call: Call,
    dy: Array,
    x: Array,
    y: Array,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> tuple[Array]:
    """x over a power of s, s = bias + α/size Σ x² of neighbouring channels."""
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    kind = x.dtype.type
    s = kind(bias) + kind(alpha / size) * _neighbours(x * x, before, after)
    power = s ** kind(-beta)
    back = _neighbours(dy * x * power / s, after, before)
    return (dy * power - kind(2 * alpha * beta / size) * x * back,)


def _neighbours(x: Array, before: int, after: int) -> Array:
    """Return, per channel, the sum over channels from ``before`` in front of it to ``after`` behind it."""
    total = x.copy()
    for shift in range(1, x.shape[1]):
        if shift <= before:
            total[:, shift:] += x[:, :-shift]
        if shift <= after:
            total[:, :-shift] += x[:, shift:]
    return total


@derivative("BatchNormalization")
def batch_normalization(
    call: Call,
    dy: Array,
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    y: Array,
    *,
    epsilon: float = 1e-5,
    training_mode: int = 0,
    spatial: int = 1,
    **rest: Any,
) -> tuple[Array, ...]:
    """With given statistics, one per channel."""
    if training_mode or not spatial:
        raise ValueError("BatchNormalization has a derivative with given statistics per channel only")
    inverse = 1 / call.xp.sqrt(var + var.dtype.type(epsilon))
    dx = dy * _channels(scale * inverse, x.ndim) if x.ndim > 1 else dy * scale * inverse
    if call.outputs < 2:
        return (dx.astype(x.dtype, copy=False),)
    n = (x - _channels(mean, x.ndim)) * _channels(inverse, x.ndim)
    by_scale = _per_channel(dy * n)
    return dx, by_scale, _per_channel(dy), -_per_channel(dx), -by_scale * scale * inverse * inverse / 2


@derivative("LpNormalization")
def lp_normalization(
    call: Call, dy: Array, x: Array, y: Array, *, axis: int = -1, p: int = 2
) -> tuple[Array]:
    """(dy − d|x| Σ y dy) / |x|; 0 where the norm is 0."""
    xp = call.xp
    norm = xp.abs(x) if p == 1 else x * x
    norm = norm.sum(axis=axis, keepdims=True)
    norm = norm if p == 1 else xp.sqrt(norm)
    along = (dy * y).sum(axis=axis, keepdims=True)
    by_norm = xp.sign(x) if p == 1 else y
    zero = norm == 0
    return (xp.where(zero, 0, (dy - by_norm * along) / xp.where(zero, 1, norm)).astype(x.dtype),)
