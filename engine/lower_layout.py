"""Shape and order of elements → views; a copy only where strides cannot say it."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from graphdoc.engine.expr import I64, Expr, apply, const, index
from graphdoc.engine.lower import NotLowered, Site, constant, content, largest, lowering
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.ops.layout import _even_parts
from graphdoc.engine.ops.shapes import positive_axes
from graphdoc.engine.ops.slicing import _slices, _spread
from graphdoc.engine.program import View


def ints(at: Site, view: View | None, what: str) -> list[int] | None:
    """Return a constant list of integers, None for an omitted input."""
    return None if view is None else listed(at, view, what)


def listed(at: Site, view: View | None, what: str) -> list[int]:
    """Return a constant list of integers. Raises NotLowered when it is not constant, or omitted."""
    return [int(n) for n in at.known(view, what).reshape(-1)]


@lowering("Identity", empty=True)
def identity(at: Site, x: View) -> View:
    """The same elements."""
    return x


@lowering("Dropout")
def dropout(
    at: Site,
    x: View,
    ratio: View | None = None,
    training: View | None = None,
    *,
    is_test: int = 0,
    **attributes: Any,
) -> tuple[View, ...]:
    """The same elements: nothing is dropped outside training. The mask is all ones."""
    trains = training is not None and bool(at.known(training, "training_mode").reshape(()))
    if trains or (at.version < 7 and not is_test):
        raise NotLowered("dropout that drops")
    if at.outputs == 1:
        return (x,)
    kind = np.bool_ if at.version >= 10 else x.dtype
    return x, constant(np.broadcast_to(np.ones((), kind), x.shape), at.name)


# ---- shapes -------------------------------------------------------------------------------------------


@lowering("Reshape", empty=True)
def reshape(at: Site, x: View, target: View | None = None, *, allowzero: int = 0, **old: Any) -> View:
    """The same elements in another shape: 0 keeps the axis (unless ``allowzero``), -1 takes the rest."""
    sizes = listed(at, target, "the shape") if target is not None else list(old["shape"])
    if not allowzero:
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if -1 in sizes:
        rest = -prod(sizes)
        if rest <= 0:
            raise NotLowered("any size would do for -1")
        sizes[sizes.index(-1)] = x.size // rest
    return at.reshape(x, sizes)


@lowering("Flatten", empty=True)
def flatten(at: Site, x: View, *, axis: int = 1) -> View:
    """A matrix: the axes before ``axis`` make its rows."""
    axis += len(x.shape) if axis < 0 else 0
    return at.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@lowering("Squeeze", empty=True)
def squeeze(at: Site, x: View, axes_input: View | None = None, *, axes: Sequence[int] | None = None) -> View:
    """Without axes of size 1: those listed, or all."""
    named = axes if axes_input is None else listed(at, axes_input, "the axes")
    rank = len(x.shape)
    gone = [a for a in range(rank) if x.shape[a] == 1] if named is None else positive_axes(named, rank)
    if any(x.shape[a] != 1 for a in gone):
        raise ValueError("an axis to squeeze is longer than 1")
    return x.permuted([a for a in range(rank) if a not in gone])


@lowering("Unsqueeze", empty=True)
def unsqueeze(at: Site, x: View, axes_input: View | None = None, *, axes: Sequence[int] = ()) -> View:
    """With new axes of size 1."""
    named = axes if axes_input is None else listed(at, axes_input, "the axes")
    rank = len(x.shape) + len(named)
    new = set(positive_axes(named, rank))
    if len(new) < len(named) or not new <= set(range(rank)):
        raise ValueError(f"axes {named} do not fit rank {rank}")
    return with_ones(x, sorted(new))


def with_ones(x: View, axes: Sequence[int]) -> View:
    """Return the view with axes of size 1 at the given places of the result."""
    shape, strides = list(x.shape), list(x.strides)
    for axis in axes:
        shape.insert(axis, 1)
        strides.insert(axis, 0)
    return View(x.buffer, tuple(shape), tuple(strides), x.offset)


def entry(x: View, axis: int, k: int) -> View:
    """Return the view of one entry of an axis, without the axis."""
    shape, strides = list(x.shape), list(x.strides)
    del shape[axis]
    step = strides.pop(axis)
    return View(x.buffer, tuple(shape), tuple(strides), x.offset + k * step)


@lowering("Transpose", empty=True)
def transpose(at: Site, x: View, *, perm: Sequence[int] | None = None) -> View:
    """The axes in another order."""
    order = list(perm) if perm is not None else list(range(len(x.shape)))[::-1]
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"perm {order} does not fit rank {len(x.shape)}")
    return x.permuted(order)


@lowering("Expand", empty=True)
def expand(at: Site, x: View, target: View) -> View:
    """Repeated along axes of size 1."""
    sizes = listed(at, target, "the shape")
    return x.broadcast(np.broadcast_shapes(x.shape, tuple(sizes)))


# ---- parts --------------------------------------------------------------------------------------------


@lowering("Slice", empty=True)
def slice_(at: Site, x: View, *inputs: View | None, **old: Sequence[int]) -> View:
    """Every n-th element between two places of some axes."""
    names = ("starts", "ends", "axes", "steps")
    given = {k: listed(at, v, k) for k, v in zip(names, inputs, strict=False) if v is not None} | old
    parts = _slices(x.shape, given["starts"], given["ends"], given.get("axes"), given.get("steps"))
    for axis, part in enumerate(parts):
        places = range(x.shape[axis])[part]
        if part != slice(None):
            x = x.sliced(axis, places.start, len(places), places.step)
    return x


@lowering("Split", empty=True)
def split(
    at: Site,
    x: View,
    sizes_input: View | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[View, ...]:
    """Consecutive parts of an axis."""
    axis = axis_of(axis, len(x.shape))
    sizes = split if sizes_input is None else ints(at, sizes_input, "the sizes")
    size = x.shape[axis]
    if not sizes:
        if num_outputs is None and size % at.outputs:
            raise ValueError(f"size {size} does not divide into {at.outputs} parts")
        sizes = _even_parts(size, num_outputs or at.outputs)
    if sum(sizes) != size or min(sizes) < 0:
        raise ValueError(f"parts {list(sizes)} do not fit size {size}")
    ends = np.cumsum(sizes).tolist()
    return tuple(x.sliced(axis, end - part, part) for part, end in zip(sizes, ends, strict=True))


@lowering("Concat", empty=True)
def concat(at: Site, *inputs: View, axis: int = 1) -> View:
    """The inputs joined along an axis."""
    axis = axis_of(axis, len(inputs[0].shape))
    shape = list(inputs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in inputs)
    if any([*x.shape[:axis], *x.shape[axis + 1 :]] != shape[:axis] + shape[axis + 1 :] for x in inputs):
        raise NotLowered("inputs that differ on other axes too")
    filled = [x for x in inputs if x.size]
    if len(filled) == 1 and list(filled[0].shape) == shape:
        return filled[0]
    result = at.fresh(shape, inputs[0].dtype, largest(filled))
    start = 0
    for x in inputs:
        at.copy(x, result.sliced(axis, start, x.shape[axis]))
        start += x.shape[axis]
    return result


@lowering("Tile")
def tile(at: Site, x: View, repeats: View) -> View:
    """Repeated along each axis."""
    if at.version < 6:
        raise NotLowered("Tile of opset 1")
    counts = listed(at, repeats, "the repeats")
    if len(counts) != len(x.shape):
        raise ValueError("one count per axis is needed")
    shape = [n for pair in zip(counts, x.shape, strict=True) for n in pair]
    repeated = with_ones(x, range(0, 2 * len(counts), 2)).broadcast(shape)
    return at.reshape(repeated, [c * n for c, n in zip(counts, x.shape, strict=True)])


# ---- Pad ----------------------------------------------------------------------------------------------


@lowering("Pad")
def pad(
    at: Site,
    x: View,
    pads: View,
    value: View | None = None,
    axes: View | None = None,
    *,
    mode: str = "constant",
) -> View:
    """Elements added at (or removed from) both ends of the axes."""
    if at.version < 11:
        raise NotLowered("Pad with its numbers in attributes")
    rank = len(x.shape)
    amounts = listed(at, pads, "the pads")
    if axes is not None:
        amounts = _spread(amounts, positive_axes(listed(at, axes, "the axes"), rank), rank)
    before, after = amounts[:rank], amounts[rank:]
    if len(after) != rank or min(amounts, default=0) < 0:
        raise NotLowered("pads that remove elements")
    if mode == "constant":
        return padded(at, x, before, after, _value(at, value))
    if mode not in _MIRRORED:
        raise NotLowered(f"mode {mode}")
    for axis in range(rank):
        x = _mirrored(at, x, axis, before[axis], after[axis], mode)
    return x


def _value(at: Site, value: View | None) -> Any:
    found = None if value is None else at.known(value, "the padding's value").reshape(-1)
    return 0 if found is None or not found.size else found[0]


def padded(at: Site, x: View, before: Sequence[int], after: Sequence[int], value: Any = 0) -> View:
    """Return x with a constant around it, in x's memory order; x itself where nothing is added."""
    if not any(before) and not any(after):
        return x
    shape = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]
    result = at.fresh(shape, x.dtype, x)
    fill_borders(at, result, before, after, value)
    at.copy(x, interior(result, before, x.shape))
    return result


def interior(outer: View, before: Sequence[int], shape: Sequence[int]) -> View:
    """Return the part of a padded view that holds the data."""
    for axis, (start, size) in enumerate(zip(before, shape, strict=True)):
        outer = outer.sliced(axis, start, size)
    return outer


def fill_borders(at: Site, outer: View, before: Sequence[int], after: Sequence[int], value: Any) -> None:
    """Write a number, or what a scalar view shows, around the data: every border element once."""
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        size = outer.shape[axis]
        for start, count in ((0, b), (size - a, a)):
            border = outer.sliced(axis, start, count)
            if not count:
                continue
            if isinstance(value, View):
                at.copy(value.broadcast(border.shape), border)
            else:
                at.fill(value, border)
        outer = outer.sliced(axis, b, size - b - a)


_MIRRORED = ("edge", "reflect", "wrap")


def _mirrored(at: Site, x: View, axis: int, before: int, after: int, mode: str) -> View:
    """Return x with one axis padded by elements of its own."""
    if not before and not after:
        return x
    size = x.shape[axis]
    places = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
    shape = [*x.shape[:axis], len(places), *x.shape[axis + 1 :]]
    result = at.fresh(shape, x.dtype, x)
    for start, count, first, step in _runs(places):
        at.copy(_run(x, axis, first, count, step), result.sliced(axis, start, count))
    return result


def _run(x: View, axis: int, first: int, count: int, step: int) -> View:
    part = x.sliced(axis, first, 1 if step == 0 else count, step or 1)
    return (
        part.broadcast([count if a == axis else n for a, n in enumerate(part.shape)]) if step == 0 else part
    )


def _runs(places: Any) -> list[tuple[int, int, int, int]]:
    """Return (start, count, first place, step) of the runs of equal steps in a list of places."""
    runs, start = [], 0
    while start < len(places):
        step = int(places[start + 1] - places[start]) if start + 1 < len(places) else 1
        end = start + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        runs.append((start, end - start, int(places[start]), step))
        start = end
    return runs


# ---- filled tensors -----------------------------------------------------------------------------------


@lowering("ConstantOfShape")
def constant_of_shape(at: Site, shape: View, *, value: Any = None) -> View:
    """One number everywhere."""
    sizes = ints(at, shape, "the shape")
    number = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return constant(np.broadcast_to(number.reshape(()), sizes or ()), at.name)


@lowering("Trilu")
def trilu(at: Site, x: View, k: View | None = None, *, upper: int = 1) -> View:
    """One triangle of the last two axes, zeros elsewhere."""
    rank = len(x.shape)
    diagonal = 0 if k is None else int(at.known(k, "the diagonal").reshape(()))
    row, column = index(rank - 2), index(rank - 1)
    edge = apply("add", row, const(max(min(diagonal, 2**40), -(2**40)), I64))

    def build(a: Expr) -> Expr:
        inside = apply("le", edge, column) if upper else apply("le", column, edge)
        return apply("select", inside, a, const(0, a.dtype))

    if content(x) is not None:
        raise NotLowered("a constant")
    return at.map(build, x)
