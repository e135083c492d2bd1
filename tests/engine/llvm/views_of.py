"""Views of every kind over arrays of numbers: permuted, reversed, spread out, repeated."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from graphdoc.engine.program import Buffer, View, dense_strides

Shape = tuple[int, ...]


@st.composite
def views(draw: st.DrawFn, shape: Shape, dtype: Any, *, repeats: bool) -> View:
    """Return a view of a buffer of its own, of distinct elements; repeats: axes of stride 0 may occur."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.sampled_from((1, 1, 1, 2))) for _ in shape]
    repeated = [repeats and draw(st.sampled_from((False, False, True))) for _ in shape]
    room = [1 if r else max(size, 1) * gap for size, gap, r in zip(shape, gaps, repeated, strict=True)]
    dense = dense_strides([room[a] for a in order])
    strides, offset = [0] * len(shape), draw(st.integers(0, 3))
    start = offset
    for axis, stride in zip(order, dense, strict=True):
        strides[axis] = 0 if repeated[axis] else stride * gaps[axis]
        if not repeated[axis] and shape[axis] > 0 and draw(st.sampled_from((False, False, False, True))):
            strides[axis] = -strides[axis]
            offset -= strides[axis] * (shape[axis] - 1)
    size = start + int(np.prod(room, dtype=np.int64))
    return View(Buffer("x", np.dtype(dtype), size), tuple(shape), tuple(strides), offset)


def numbers(rng: np.random.Generator, size: int, dtype: Any) -> Any:
    """Return numbers of a dtype, among them the special ones, in no order."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, size).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
        small = rng.integers(max(info.min, -3), 4, size).astype(dtype)
        edges = rng.choice(np.array([info.min, info.max, 0, 1], dtype), size)
        return np.choose(rng.integers(0, 5, size), [values, small, values, edges, small])
    values = rng.normal(size=size) * rng.choice([1e-3, 1.0, 10.0, 1e3], size)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 0.5, 1e-40, 1e30], size)
    with np.errstate(all="ignore"):
        return np.where(rng.integers(0, 6, size) == 0, special, values).astype(dtype)
