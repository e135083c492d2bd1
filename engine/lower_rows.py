"""Reductions, softmax and normalisations → Rows: what is folded over some axes, and what follows from it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import onnx_ir as ir

from graphdoc.engine.expr import BOOL, DTYPES, I64, Dtype, Expr, apply, cast, const, index, load, stage
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.lower import NotLowered, Site, lowering
from graphdoc.engine.lower_elementwise import like, wide, wide_dtype
from graphdoc.engine.lower_layout import ints, with_ones
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.program import View

_FLOATS = DTYPES[1:5]

Finish: TypeAlias = Callable[[Expr], Expr]


def floats_only(*views: View | None) -> None:
    """Raise NotLowered when a view is of another dtype than a float."""
    for view in views:
        if view is not None and view.dtype not in _FLOATS:
            raise NotLowered(f"dtype {view.dtype}")


def run_rows(
    at: Site,
    inputs: Sequence[View],
    axes: Sequence[int],
    stages: Sequence[Reduction],
    outputs: Sequence[tuple[Expr, bool]],
) -> list[View]:
    """Add a Rows step over views of one shape; return its outputs in the axes of the inputs.

    axes: which are folded. outputs: the expression, and whether it is one per element (else one per row,
    whose view has size 1 along the folded axes).
    """
    shape = inputs[0].shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = [*kept, *axes]
    targets, results = [], []
    for expr, full in outputs:
        if full:
            whole = at.fresh(shape, expr.dtype, inputs[0])
            targets.append(whole.permuted(order))
        else:
            row = at.fresh([shape[a] for a in kept], expr.dtype, inputs[0].permuted(kept))
            targets.append(row)
            whole = with_ones(row, sorted(axes))
        results.append(whole)
    spec = Rows(len(axes), tuple(stages), tuple(Output(e, full) for e, full in outputs))
    at.step(spec, [view.permuted(order) for view in inputs], targets)
    return results


def _without(view: View, axes: Sequence[int]) -> View:
    return view.permuted([a for a in range(len(view.shape)) if a not in axes])


# ---- Reduce* ------------------------------------------------------------------------------------------


def _x(x: View) -> Expr:
    return wide(load(0, x.dtype))


def _count(x: View, axes: Sequence[int]) -> int:
    return prod(x.shape[a] for a in axes)


def _same(x: Expr) -> Expr:
    return x


def _absolute(x: Expr) -> Expr:
    return apply("abs", x)


def _square(x: Expr) -> Expr:
    return apply("mul", x, x)


_FOLDS: dict[str, tuple[str, Finish, str, bool]] = {
    "ReduceSum": ("sum", _same, "", False),
    "ReduceProd": ("prod", _same, "", False),
    "ReduceMax": ("max", _same, "", False),
    "ReduceMin": ("min", _same, "", False),
    "ReduceL1": ("sum", _absolute, "", False),
    "ReduceSumSquare": ("sum", _square, "", False),
    "ReduceL2": ("sum", _square, "sqrt", True),
    "ReduceLogSum": ("sum", _same, "log", True),
}
"""Operator → fold, what is folded of an element, what is done with the result, whether for floats alone."""


def _axes(
    at: Site, x: View, axes_input: View | None, axes: Sequence[int] | None, noop: int
) -> list[int] | None:
    """Return the axes to fold, None when the node folds none."""
    listed = axes if axes_input is None else ints(at, axes_input, "the axes")
    rank = len(x.shape)
    if not listed:
        return None if noop else list(range(rank))
    return sorted({axis_of(axis, rank) for axis in listed}) if rank else []


def _register_fold(name: str, fold: str, element: Finish, finish: str, real: bool) -> None:
    def lower(
        at: Site,
        x: View,
        axes_input: View | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> View:
        if real:
            floats_only(x)
        if x.dtype == BOOL and fold in ("sum", "prod"):
            raise NotLowered("sums of bools")
        where = _axes(at, x, axes_input, axes, noop_with_empty_axes)
        if not where:
            raise NotLowered("nothing is folded")
        total = Reduction(fold, element(_x(x)))
        result = stage(0, total.expr.dtype)
        result = cast(apply(finish, result) if finish else result, x.dtype)
        (row,) = run_rows(at, [x], where, [total], [(result, False)])
        return row if keepdims else _without(row, where)

    lowering(name)(lower)


for _name, _row in _FOLDS.items():
    _register_fold(_name, *_row)


@lowering("ReduceMean")
def reduce_mean(
    at: Site,
    x: View,
    axes_input: View | None = None,
    *,
    axes: Sequence[int] | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> View:
    """The mean over axes."""
    floats_only(x)
    where = _axes(at, x, axes_input, axes, noop_with_empty_axes)
    if not where:
        raise NotLowered("nothing is folded")
    total = Reduction("sum", _x(x))
    mean = cast(_mean(0, total.expr.dtype, _count(x, where)), x.dtype)
    (row,) = run_rows(at, [x], where, [total], [(mean, False)])
    return row if keepdims else _without(row, where)


def _mean(k: int, dtype: Dtype, count: int) -> Expr:
    return apply("div", stage(k, dtype), const(count, dtype))


@lowering("ReduceLogSumExp")
def reduce_log_sum_exp(
    at: Site,
    x: View,
    axes_input: View | None = None,
    *,
    axes: Sequence[int] | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> View:
    """The logarithm of the sum of exp(x), shifted by the maximum."""
    floats_only(x)
    where = _axes(at, x, axes_input, axes, noop_with_empty_axes)
    if not where:
        raise NotLowered("nothing is folded")
    element = _x(x)
    top = stage(0, element.dtype)
    unbounded = apply("or", apply("isinf", top), apply("isnan", top))
    peak = apply("select", unbounded, like(0, top), top)
    stages = [Reduction("max", element), Reduction("sum", apply("exp", apply("sub", element, peak)))]
    result = cast(apply("add", apply("log", stage(1, element.dtype)), peak), x.dtype)
    (row,) = run_rows(at, [x], where, stages, [(result, False)])
    return row if keepdims else _without(row, where)


def place_stages(x: View, fold: str, better: str) -> list[Reduction]:
    """Return the stages that find the first (fold min) or last place of an extreme; NaN counts as one."""
    element = load(0, x.dtype)
    best = stage(0, x.dtype)
    hit = apply("eq", element, best)
    if x.dtype in _FLOATS:
        hit = apply("or", hit, apply("isnan", element))
    miss = const(2**62 if fold == "min" else -1, I64)
    place = apply("select", hit, index(len(x.shape) - 1), miss)
    return [Reduction(better, element), Reduction(fold, place)]


@lowering("ArgMax", "ArgMin")
def arg_extreme(at: Site, x: View, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> View:
    """The place of the first (or last) extreme along the axis."""
    axis = axis_of(axis, len(x.shape))
    better = "max" if at.operator == "ArgMax" else "min"
    stages = place_stages(x, "max" if select_last_index else "min", better)
    (row,) = run_rows(at, [x], [axis], stages, [(stage(1, I64), False)])
    return row if keepdims else _without(row, [axis])


# ---- softmax ------------------------------------------------------------------------------------------


def softmax_axes(at: Site, x: View, axis: int | None) -> list[int]:
    """Return the axes of a softmax: one, or before version 13 all from ``axis`` on."""
    rank = len(x.shape)
    if at.version >= 13:
        return [axis_of(-1 if axis is None else axis, rank)]
    first = 1 if axis is None else axis
    found = list(range(rank))[first + rank if first < 0 else first :]
    if not found:
        raise NotLowered("rows of no axis")
    return found


def softmax_parts(element: Expr) -> tuple[list[Reduction], Expr]:
    """Return the stages of a softmax and exp(x − max)."""
    shifted = apply("exp", apply("sub", element, stage(0, element.dtype)))
    return [Reduction("max", element), Reduction("sum", shifted)], shifted


@lowering("Softmax")
def softmax(at: Site, x: View, *, axis: int | None = None) -> View:
    """exp(x) ÷ its sum, shifted by the maximum."""
    floats_only(x)
    stages, power = softmax_parts(_x(x))
    result = cast(apply("div", power, stage(1, power.dtype)), x.dtype)
    (full,) = run_rows(at, [x], softmax_axes(at, x, axis), stages, [(result, True)])
    return full


@lowering("LogSoftmax")
def log_softmax(at: Site, x: View, *, axis: int | None = None) -> View:
    """x − ln of the sum of exp(x), shifted by the maximum."""
    floats_only(x)
    element = _x(x)
    stages, _ = softmax_parts(element)
    shifted = apply("sub", element, stage(0, element.dtype))
    result = cast(apply("sub", shifted, apply("log", stage(1, element.dtype))), x.dtype)
    (full,) = run_rows(at, [x], softmax_axes(at, x, axis), stages, [(result, True)])
    return full


@lowering("Hardmax", since=13)
def hardmax(at: Site, x: View, *, axis: int = -1) -> View:
    """1 at the first maximum along the axis, else 0."""
    axis = axis_of(axis, len(x.shape))
    stages = place_stages(x, "min", "max")
    hit = apply("eq", index(len(x.shape) - 1), stage(1, I64))
    (full,) = run_rows(at, [x], [axis], stages, [(cast(hit, x.dtype), True)])
    return full


# ---- normalisations -----------------------------------------------------------------------------------


def moments(element: Expr, count: int) -> tuple[list[Reduction], Expr, Expr, Expr]:
    """Return the stages, and mean, variance and x − mean as expressions."""
    mean = _mean(0, element.dtype, count)
    centred = apply("sub", element, mean)
    stages = [Reduction("sum", element), Reduction("sum", _square(centred))]
    return stages, mean, _mean(1, element.dtype, count), centred


def root(variance: Expr, epsilon: float) -> Expr:
    """Return √(variance + ε)."""
    return apply("sqrt", apply("add", variance, like(epsilon, variance)))


def per_channel(x: View, parameter: View) -> View:
    """Return a view of (C) over (N, C, …)."""
    if len(parameter.shape) != 1:
        raise NotLowered("a parameter that is no vector")
    after = len(x.shape) - 2
    return with_ones(parameter, range(1, 1 + after)).broadcast(x.shape)


@lowering("LayerNormalization")
def layer_normalization(
    at: Site,
    x: View,
    scale: View,
    bias: View | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[View, ...]:
    """Standardised over the axes from ``axis`` on, rounded, · scale + bias."""
    floats_only(x, scale, bias)
    parts = [scale] if bias is None else [scale, bias]
    if any(p.dtype != x.dtype for p in parts):
        raise NotLowered("scale of another dtype")
    where = list(range(axis_of(axis, len(x.shape)), len(x.shape)))
    stages, mean, variance, centred = moments(_x(x), _count(x, where))
    inverse = apply("div", like(1, variance), root(variance, epsilon))
    y = apply("mul", cast(apply("mul", centred, inverse), x.dtype), load(1, x.dtype))
    y = y if bias is None else apply("add", y, load(2, x.dtype))
    stash = ir.DataType(stash_type).numpy()
    wanted = [(y, True), (cast(mean, stash), False), (cast(inverse, stash), False)][: max(1, at.outputs)]
    return tuple(run_rows(at, [x, *(p.broadcast(x.shape) for p in parts)], where, stages, wanted))


@lowering("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(
    at: Site, x: View, scale: View, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> View:
    """x over the root of its mean square, rounded, · scale in scale's dtype."""
    floats_only(x, scale)
    if at.outputs > 1:
        raise NotLowered("the inverse root is asked for")
    where = list(range(axis_of(axis, len(x.shape)), len(x.shape)))
    return scaled_by_rms(at, x, scale, where, epsilon)


def scaled_by_rms(at: Site, x: View, scale: View, where: Sequence[int], epsilon: float) -> View:
    """Add the step of an RMS normalisation over some axes."""
    element = _x(x)
    mean = _mean(0, element.dtype, _count(x, where))
    inverse = apply("div", like(1, element), root(mean, epsilon))
    y = cast(apply("mul", element, inverse), x.dtype)
    y = apply("mul", cast(y, scale.dtype), load(1, scale.dtype))
    stages = [Reduction("sum", _square(element))]
    (full,) = run_rows(at, [x, scale.broadcast(x.shape)], where, stages, [(y, True)])
    return full


@lowering("InstanceNormalization")
def instance_normalization(
    at: Site, x: View, scale: View, bias: View, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> View:
    """Statistics per instance and channel of (N, C, *spatial)."""
    floats_only(x, scale, bias)
    where = list(range(2, len(x.shape)))
    if not where:
        raise NotLowered("no spatial axes")
    stages, _, variance, centred = moments(_x(x), _count(x, where))
    factor = apply("div", wide(load(1, scale.dtype)), root(variance, epsilon))
    y = apply("add", apply("mul", centred, factor), wide(load(2, bias.dtype)))
    inputs = [x, per_channel(x, scale), per_channel(x, bias)]
    (full,) = run_rows(at, inputs, where, stages, [(cast(y, x.dtype), True)])
    return full


@lowering("GroupNormalization", since=21)
def group_normalization(
    at: Site,
    x: View,
    scale: View,
    bias: View,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> View:
    """Standardised per instance and group, rounded, · scale + bias per channel."""
    floats_only(x)
    if x.shape[1] % num_groups or {scale.dtype, bias.dtype} != {x.dtype}:
        raise NotLowered("groups that do not divide the channels, or another dtype")
    shape = (x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:])
    where = list(range(2, len(shape)))
    grouped = [at.reshape(v, shape) for v in (x, per_channel(x, scale), per_channel(x, bias))]
    stages, _, variance, centred = moments(_x(x), prod(shape[2:]))
    y = cast(apply("div", centred, root(variance, epsilon)), x.dtype)
    y = apply("add", apply("mul", y, load(1, x.dtype)), load(2, x.dtype))
    (full,) = run_rows(at, grouped, where, stages, [(y, True)])
    return at.reshape(full, x.shape)


@lowering("MeanVarianceNormalization")
def mean_variance_normalization(at: Site, x: View, *, axes: Sequence[int] = (0, 2, 3)) -> View:
    """(x − mean) ÷ (√variance + 1e-9) over axes."""
    floats_only(x)
    where = sorted(axis_of(axis, len(x.shape)) for axis in axes)
    stages, _, variance, centred = moments(_x(x), _count(x, where))
    y = apply("div", centred, apply("add", apply("sqrt", variance), like(1e-9, variance)))
    (full,) = run_rows(at, [x], where, stages, [(cast(y, x.dtype), True)])
    return full


@lowering("LpNormalization")
def lp_normalization(at: Site, x: View, *, axis: int = -1, p: int = 2) -> View:
    """x ÷ its p-norm along the axis; 0 where the norm is 0."""
    floats_only(x)
    element = _x(x)
    stages = [Reduction("sum", _absolute(element) if p == 1 else _square(element))]
    norm = stage(0, element.dtype) if p == 1 else apply("sqrt", stage(0, element.dtype))
    zero = apply("eq", norm, like(0, norm))
    y = apply("div", element, apply("select", zero, like(1, norm), norm))
    y = apply("select", zero, like(0, y), y)
    (full,) = run_rows(at, [x], [axis_of(axis, len(x.shape))], stages, [(cast(y, x.dtype), True)])
    return full


@lowering("BatchNormalization", since=7)
def batch_normalization(
    at: Site,
    x: View,
    scale: View,
    bias: View,
    mean: View,
    variance: View,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
) -> View:
    """(x − mean) · scale ÷ √(variance + ε) + bias with given statistics, per channel."""
    floats_only(x, scale, bias, mean, variance)
    if training_mode or (at.version < 14 and at.outputs > 1) or not spatial or len(x.shape) < 2:
        raise NotLowered("training, or statistics per feature")
    kind = wide_dtype(x.dtype)
    factor = at.map(lambda s, v: apply("div", cast(s, kind), root(cast(v, kind), epsilon)), scale, variance)

    def build(e: Expr, f: Expr, m: Expr, b: Expr) -> Expr:
        shifted = apply("sub", wide(e), cast(m, kind))
        return cast(apply("add", apply("mul", shifted, f), cast(b, kind)), e.dtype)

    return at.map(build, x, *(per_channel(x, p) for p in (factor, mean, bias)))
