"""Recipes of what moves elements about: shapes, slices, gathers and scatters."""

from collections.abc import Sequence

import numpy as np
from onnx import helper

from tests.engine.random_builder import Builder, RejectedError, Value
from tests.engine.random_recipes import recipe
from tests.engine.random_values import BOOL, F32, FLOATS, I64, INTEGERS, TEXT, element_type, elements

# ---- moving elements ----------------------------------------------------------------------------------


def factored(g: Builder, count: int) -> list[int]:
    """Return dims whose product is ``count``."""
    dims = []
    for _ in range(g.number(0, 3)):
        divisors = [d for d in range(1, min(count, 12) + 1) if count % d == 0]
        dims.append(g.choose(divisors))
        count //= dims[-1]
    dims.insert(g.number(0, len(dims)), count)
    return dims


@recipe("Reshape", first=5)
def reshape(g: Builder, op: str) -> None:
    """Any target shape, with 0 (copy) and −1 (infer) where they fit."""
    x = g.pick(op)
    count = elements(x.shape)
    dims = list(x.shape) if not count else factored(g, count)
    target = [0 if i < x.rank and d == x.shape[i] and g.chance(0.3) else d for i, d in enumerate(dims)]
    zero = {}
    if not count:
        target = dims if g.opset < 14 else [*dims]
        zero = {"allowzero": 1} if g.opset >= 14 and g.chance(0.5) else {}
    elif target and g.chance(0.4):
        target[g.number(0, len(target) - 1)] = -1
    if count == 1 and g.chance(0.2):
        target = []
    g.add(op, [x, g.ints(target)], **zero)


@recipe("Transpose", inner=True)
def transpose(g: Builder, op: str) -> None:
    x = g.pick(op)
    perm = {"perm": g.rng.sample(range(x.rank), x.rank)} if x.rank and g.chance(0.8) else {}
    g.add(op, [x], **perm)


@recipe("Squeeze")
def squeeze(g: Builder, op: str) -> None:
    x = g.pick(op, test=lambda v: 1 in v.shape, shape=lambda: (1, *g.shape(0, 3)))
    axes = [a - x.rank if g.opset >= 11 and g.chance(0.4) else a for a, d in enumerate(x.shape) if d == 1]
    axes = axes[: g.number(1, len(axes))] if axes else []
    if g.chance(0.2):
        g.add(op, [x])
    elif g.opset >= 13:
        g.add(op, [x, g.ints(axes)])
    else:
        g.add(op, [x], axes=axes)


@recipe("Unsqueeze")
def unsqueeze(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(0, 3))
    count = g.number(1, 2)
    places = g.rng.sample(range(x.rank + count), count)
    axes = [a - x.rank - count if g.opset >= 11 and g.chance(0.4) else a for a in places]
    if g.opset >= 13:
        g.add(op, [x, g.ints(axes)])
    else:
        g.add(op, [x], axes=sorted(axes))


@recipe("Flatten", inner=True)
def flatten(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.number(-x.rank if g.opset >= 11 else 0, x.rank)
    g.add(op, [x], axis=axis)


@recipe("Concat", first=4, inner=True)
def concat(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    parts = [x]
    for _ in range(g.number(0, 3)):
        shape = list(x.shape)
        shape[axis] = g.number(0, 3) if g.chance(0.6) else shape[axis]
        parts.append(g.like(x, shape))
    g.rng.shuffle(parts)
    g.add(op, parts, axis=axis)


@recipe("Split", first=2)
def split(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: max(v.shape, default=0) > 1)
    axis = g.choose([a for a, d in enumerate(x.shape) if d > 1])
    size = x.shape[axis]
    count = g.number(1, min(size, 3))
    if g.opset >= 11 and g.chance(0.3):
        axis -= x.rank
    if size % count == 0 and g.chance(0.4):
        number = {"num_outputs": count} if g.opset >= 18 else {}
        g.add_many(op, [x], count, axis=axis, **number)
        return
    cuts = sorted(g.number(0, size) for _ in range(count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    if g.opset >= 13:
        g.add_many(op, [x, g.ints(sizes)], count, axis=axis)
    else:
        g.add_many(op, [x], count, axis=axis, split=sizes)


def _bound(g: Builder, size: int, step: int, end: bool) -> int:
    """Return a start or end, sometimes far out. ONNX Runtime takes INT_MAX for the end going backward too."""
    if g.chance(0.1):
        low, high = [-(2**31), -(2**63)], [2**31 - 1, 2**63 - 1]
        return int(g.choose((high if step > 0 else low) if end else low + high))
    return g.number(-size - 1, size + 1)


@recipe("Slice")
def slicing(g: Builder, op: str) -> None:
    """Bounds beyond the ends, negative ones, negative steps, some or all axes."""
    x = g.pick(op, rank=(1, 4))
    axes = g.axes(x.rank, least=1)
    if g.opset < 10:
        axes = sorted(a % x.rank for a in axes)
    steps = [g.choose([1, 1, 2, -1, -2, 3]) if g.opset >= 10 else 1 for _ in axes]
    bounds = [
        [_bound(g, x.shape[a], t, end) for a, t in zip(axes, steps, strict=True)] for end in (False, True)
    ]
    if g.opset < 10:
        g.add(op, [x], axes=axes, starts=bounds[0], ends=bounds[1])
        return
    with_axes = sorted(a % x.rank for a in axes) != axes or len(axes) != x.rank or g.chance(0.5)
    with_steps = any(s != 1 for s in steps) or g.chance(0.3)
    dtype = (
        np.int64 if max(map(abs, [*bounds[0], *bounds[1]])) > 2**31 - 1 else g.choose([np.int64, np.int32])
    )
    inputs = [x, g.ints(bounds[0], dtype), g.ints(bounds[1], dtype)]
    inputs.append(g.ints(axes, dtype) if with_axes else None)
    inputs.append(g.ints(steps, dtype) if with_steps else None)
    g.add(op, inputs)


@recipe("Pad", first=2)
def pad(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    modes = ["constant", "constant", "reflect", "edge"] + (["wrap"] if g.opset >= 19 else [])
    mode = g.choose(modes)
    axes = list(range(x.rank))
    if g.opset >= 18 and g.chance(0.4):
        axes = g.axes(x.rank, least=1)
    limits = [2 if mode in ("constant", "edge") else max(x.shape[a] - 1, 0) for a in axes]
    if mode != "constant" and 0 in x.shape:
        raise RejectedError("nothing to repeat")
    least = [-1 if mode == "constant" and x.shape[a] > 2 and g.chance(0.2) else 0 for a in axes]
    pads = [g.number(low, min(high, 2)) for _ in "be" for low, high in zip(least, limits, strict=True)]
    if g.opset < 11:
        g.add(op, [x], mode=mode, pads=pads, **({"value": g.real(-1, 1)} if mode == "constant" else {}))
        return
    value = g.parameter(g.content(x.dtype, ())) if mode == "constant" and g.chance(0.5) else None
    given = g.ints(axes, g.choose([np.int64, np.int32])) if axes != list(range(x.rank)) else None
    g.add(op, [x, g.ints(pads), value, given], mode=mode)


@recipe("Tile", first=6)
def tile(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    g.add(op, [x, g.ints([g.choose([1, 1, 2, 3, 0]) for _ in x.shape])])


@recipe("Expand", first=8)
def expand(g: Builder, op: str) -> None:
    x = g.pick(op)
    target = [g.number(1, 3) if d == 1 else g.choose([d, 1]) for d in x.shape]
    target = [*g.shape(0, 1), *target] if g.chance(0.3) else target[g.number(0, len(target)) :]
    g.add(op, [x, g.ints(target)])


def indices(
    g: Builder, size: int, shape: Sequence[int], *, negative: bool = True, dtype: object = None
) -> Value:
    """Return integers in range of an axis, some counted from its end."""
    if size < 1 and elements(shape):
        raise RejectedError("no index is in range")
    numbers = [g.number(-size if negative else 0, size - 1) for _ in range(elements(shape))]
    chosen = dtype or g.choose([np.int64, np.int32])
    return g.parameter(np.array(numbers, dtype=chosen).reshape(shape))


@recipe("Gather")
def gather(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    g.add(op, [x, indices(g, x.shape[axis], g.shape(0, 2), negative=g.opset >= 11)], axis=axis)


@recipe("GatherElements", first=11)
def gather_elements(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: 0 not in v.shape)
    axis = g.axis(x.rank)
    shape = [g.number(1, d) for d in x.shape]
    shape[axis] = g.number(0, 4)
    g.add(op, [x, indices(g, x.shape[axis], shape)], axis=axis)


def _nd_indices(g: Builder, x: Value, batch: int, depth: int) -> Value:
    """Return indices of GatherND and ScatterND: the last axis addresses the leading axes after the batch."""
    count = g.number(0, 3)
    sizes = x.shape[batch : batch + depth]
    rows = [[g.number(-d, d - 1) for d in sizes] for _ in range(elements(x.shape[:batch]) * count)]
    return g.parameter(np.array(rows, dtype=np.int64).reshape(*x.shape[:batch], count, depth))


@recipe("GatherND", first=11)
def gather_nd(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: 0 not in v.shape)
    batch = g.number(0, x.rank - 1) if g.opset >= 12 and g.chance(0.4) else 0
    depth = g.number(1, x.rank - batch)
    g.add(op, [x, _nd_indices(g, x, batch, depth)], **({"batch_dims": batch} if batch else {}))


@recipe("ScatterND", first=11)
def scatter_nd(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: 0 not in v.shape)
    depth = g.number(1, x.rank)
    at = _nd_indices(g, x, 0, depth)
    mode = _mode(g, x)
    if not mode:
        at = g.parameter(_distinct(at.array, x.shape))
    updates = g.fresh(x.dtype, (*at.shape[:-1], *x.shape[depth:]))
    g.add(op, [x, at, updates], **mode)


def _distinct(rows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return index rows without two that address the same place."""
    seen = {tuple(i % d for i, d in zip(row, shape, strict=False)): row for row in rows.tolist()}
    return np.array(list(seen.values()), dtype=rows.dtype).reshape(-1, rows.shape[-1])


def _mode(g: Builder, x: Value) -> dict[str, str]:
    """Return a scatter's reduction, none for dtypes that cannot be added."""
    if g.opset < 16 or x.dtype in (TEXT, BOOL) or g.chance(0.5):
        return {}
    return {"reduction": g.choose(["add", "mul", "max", "min"] if g.opset >= 18 else ["add", "mul"])}


@recipe("ScatterElements", first=11)
@recipe("Scatter", first=9, last=10)
def scatter_elements(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4), test=lambda v: 0 not in v.shape)
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    shape = [g.number(1, d) for d in x.shape]
    mode = _mode(g, x)
    size = x.shape[axis]
    if mode:
        at = indices(g, size, shape)
    else:
        lines = elements(shape) // shape[axis]
        drawn = [g.rng.sample(range(size), shape[axis]) for _ in range(lines)]
        moved = [d for i, d in enumerate(shape) if i != axis % x.rank]
        at = g.parameter(np.moveaxis(np.array(drawn, dtype=np.int64).reshape(*moved, shape[axis]), -1, axis))
    g.add(op, [x, at, g.fresh(x.dtype, shape)], axis=axis, **mode)


@recipe("Shape")
def shape_of(g: Builder, op: str) -> None:
    x = g.pick(op)
    ends = {n: g.number(-x.rank - 1, x.rank + 1) for n in ("start", "end") if g.opset >= 15 and g.chance(0.3)}
    g.add(op, [x], **ends)


@recipe("Size")
def size_of(g: Builder, op: str) -> None:
    g.add(op, [g.pick(op)])


@recipe("ConstantOfShape", first=9)
def constant_of_shape(g: Builder, op: str) -> None:
    dtype = g.choose((*FLOATS, *INTEGERS, BOOL))
    value = (
        {"value": helper.make_tensor("", element_type(dtype), [1], [g.number(0, 2)])} if g.chance(0.8) else {}
    )
    g.add(op, [g.ints(g.shape(0, 3))], **value)


@recipe("Range", first=11)
def range_of(g: Builder, op: str) -> None:
    dtype = g.dtype(g.dtypes(op))
    start, count, step = g.number(-3, 3), g.number(0, 6), g.choose([1, 2, -1, 3])
    numbers = [start, start + count * step, step]
    if dtype.kind == "f" and g.chance(0.5):
        numbers = [start + 0.5, start + count * step - 0.25, step * 0.75]
    g.add(op, [g.parameter(np.array(n, dtype=dtype)) for n in numbers])


@recipe("OneHot", first=9)
def one_hot(g: Builder, op: str) -> None:
    kinds = [d for d in g.dtypes(op) if d in (I64, F32)]
    depth = g.number(1, 4)
    numbers = [g.number(-depth - 1 if g.opset >= 11 else 0, depth) for _ in range(3)]
    at = g.parameter(np.array(numbers[: g.number(0, 3)]).astype(g.choose(kinds)))
    values = g.fresh(g.choose([d for d in g.dtypes(op, 2) if d != TEXT]), (2,))
    g.add(op, [at, g.parameter(np.array(depth, dtype=np.int64)), values], axis=g.choose([-1, 0, 1, -2]))


@recipe("EyeLike", first=9)
def eye_like(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(2, 2))
    to = {"dtype": element_type(g.choose([F32, I64]))} if g.chance(0.5) else {}
    g.add(op, [x], k=g.number(-2, 2), **to)


@recipe("NonZero", first=9)
def non_zero(g: Builder, op: str) -> None:
    g.add(op, [g.pick(op, rank=(1, 5))])


@recipe("Compress", first=9)
def compress(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 4))
    axis = g.axis(x.rank) if g.opset >= 11 else g.number(0, x.rank - 1)
    whole = g.chance(0.3)
    size = elements(x.shape) if whole else x.shape[axis]
    condition = g.fresh(BOOL, (g.number(0, size),))
    g.add(op, [x, condition], **({} if whole else {"axis": axis}))


@recipe("Unique", first=11)
def unique(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(1, 3), test=lambda v: 0 not in v.shape)  # ONNX Runtime aborts on rows of nothing
    axis = {"axis": g.axis(x.rank)} if g.chance(0.4) else {}
    g.add_many(op, [x], g.number(1, 4), sorted=g.choose([1, 1, 0]), **axis)


@recipe("Trilu", first=14)
def trilu(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(2, 4))
    k = g.parameter(np.array(g.number(-3, 3), dtype=np.int64)) if g.chance(0.5) else None
    g.add(op, [x, k], **({"upper": g.number(0, 1)} if g.chance(0.7) else {}))


@recipe("DepthToSpace")
def depth_to_space(g: Builder, op: str) -> None:
    block = g.number(1, 2)
    x = g.pick(
        op,
        rank=(4, 4),
        test=lambda v: v.shape[1] % block**2 == 0,
        shape=lambda: (g.number(1, 2), block**2 * g.number(1, 2), g.number(1, 3), g.number(1, 3)),
    )
    mode = {"mode": g.choose(["DCR", "CRD"])} if g.opset >= 11 else {}
    g.add(op, [x], blocksize=block, **mode)


@recipe("SpaceToDepth")
def space_to_depth(g: Builder, op: str) -> None:
    block = g.number(1, 2)
    x = g.pick(
        op,
        rank=(4, 4),
        test=lambda v: v.shape[2] % block == v.shape[3] % block == 0,
        shape=lambda: (g.number(1, 2), g.number(1, 3), block * g.number(1, 2), block * g.number(1, 2)),
    )
    g.add(op, [x], blocksize=block)


@recipe("ReverseSequence", first=10)
def reverse_sequence(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(2, 4), test=lambda v: v.shape[0] > 0 and v.shape[1] > 0)
    batch = g.number(0, 1)
    lengths = g.ints([g.number(1, x.shape[1 - batch]) for _ in range(x.shape[batch])])
    g.add(op, [x, lengths], batch_axis=batch, time_axis=1 - batch)


@recipe("CenterCropPad", first=18)
def center_crop_pad(g: Builder, op: str) -> None:
    x = g.pick(op, within=(F32,), rank=(1, 3))
    axes = g.rng.sample(range(x.rank), g.number(1, x.rank))
    g.add(op, [x, g.ints([g.number(1, 5) for _ in axes])], axes=axes)


@recipe("TensorScatter", first=24)
def tensor_scatter(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(3, 4), test=lambda v: 0 not in v.shape, shape=lambda: g.shape(3, 4, empty=0))
    size = x.shape[-2]
    length = g.number(1, size)
    update = g.fresh(x.dtype, (*x.shape[:-2], length, x.shape[-1]))
    circular = g.chance(0.3)
    last = size - 1 if circular else size - length
    at = g.ints([g.number(0, last) for _ in range(x.shape[0])]) if g.chance(0.7) else None
    g.add(op, [x, update, at], mode="circular" if circular else "linear")
