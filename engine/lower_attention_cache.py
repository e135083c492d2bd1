"""The cache of grouped attention: where its sequences begin, known beforehand or told by a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, I32, I64, Expr, apply, cast, const, index
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.lower import NotLowered, Site, constant
from graphdoc.engine.lower_layout import with_ones
from graphdoc.engine.program import View

KEY = index(4)
"""The position of a key in the domain (batch, key heads, query heads of a key head, queries, keys)."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Lengths that are known: how many keys of the past each sequence has, and where it ends."""

    starts: Sequence[int]
    ends: Sequence[int]

    def places(self, at: Site, length: int) -> View:
        """Return the position of each query, (B, S)."""
        return constant(np.asarray(self.starts, np.int64)[:, None] + np.arange(length), at.name)

    def cache(self, at: Site, past: View | None, new: View, size: int) -> View:
        """Return (B, heads, size, D): the keys of the past, then the new, then 0."""
        whole = at.fresh((*new.shape[:2], size, new.shape[3]), F32)
        together = len(set(self.starts)) == 1
        for b, start in enumerate(self.starts[:1] if together else self.starts):
            count = new.shape[0] if together else 1
            have = 0 if past is None else past.shape[2]
            if start < 0 or start + new.shape[2] > size or start > have:
                raise NotLowered(f"sequence {b} needs {start} past keys of {have}")
            mine, fresh = whole.sliced(0, b, count), new.sliced(0, b, count)
            if start and past is not None:
                at.copy(past.sliced(0, b, count).sliced(2, 0, start), mine.sliced(2, 0, start))
            at.copy(fresh, mine.sliced(2, start, new.shape[2]))
            rest = size - start - new.shape[2]
            if rest:
                at.fill(0.0, mine.sliced(2, size - rest, rest))
        return whole

    def operand(self, at: Site, length: int, total: int, window: int, *, causal: bool) -> View:
        """Return what :meth:`closed` reads: −inf or 0, (B, 1, 1, S, T)."""
        firsts = np.asarray(self.starts if causal else self.ends)
        last = np.minimum(firsts[:, None] + np.arange(length), np.asarray(self.ends)[:, None] - 1)
        last = last[:, None, None, :, None]
        keys = np.arange(total)
        out = keys > last
        if window > 0:
            out |= keys <= last - window
        return constant(np.where(out, np.float32(-np.inf), np.float32(0)), at.name)

    def closed(self, operand: Expr, window: int) -> Expr:
        """Return what is added to a score: −inf for keys after the query or the sequence, or before the
        window, else 0."""
        del window
        return operand


@dataclass(frozen=True, slots=True)
class Told:
    """Lengths that a run tells. starts, ends: int64, (B); a start that cannot be is refused."""

    starts: View
    ends: View

    def places(self, at: Site, length: int) -> View:
        """Return the position of each query, (B, S)."""
        shape = (*self.starts.shape, length)
        column = with_ones(self.starts, [1])
        return at.map(lambda start: apply("add", start, index(1)), column, shape=shape)

    def cache(self, at: Site, past: View | None, new: View, size: int) -> View:
        """Return (B, heads, size, D): the keys of the past, then the new, then 0."""
        batch, heads, length, width = new.shape
        whole = at.fresh((batch, heads, size, width), F32)
        have = 0 if past is None else past.shape[2]
        fresh = self._moved(at, new, size)
        starts = with_ones(self.starts, [1, 2, 3])

        def build(first: int, *, old: bool) -> Any:
            def chosen(start: Expr, x: Expr, *before: Expr) -> Expr:
                place = apply("sub", apply("add", index(2), const(first, I64)), start)
                inside = apply("lt", place, const(length, I64))
                late = apply("select", inside, x, const(0, F32))
                return apply("select", apply("lt", place, const(0, I64)), before[0], late) if old else late

            return chosen

        for first, count, old in ((0, have, True), (have, size - have, False)):
            if count:
                views = [starts, fresh.sliced(2, first, count), *([past] if old and past is not None else [])]
                part = at.map(build(first, old=old), *views, shape=(batch, heads, count, width))
                at.copy(part, whole.sliced(2, first, count))
        return whole

    def _moved(self, at: Site, new: View, size: int) -> View:
        """Return new keys by position of the cache, whatever beside them."""
        batch, heads, length, width = new.shape
        shape = (batch, heads, size, width)
        if length == 1:
            return new.broadcast(shape)

        def place(start: Expr) -> Expr:
            found = apply("sub", index(1), start)
            return apply("min", apply("max", found, const(0, I64)), const(length - 1, I64))

        places = at.map(place, with_ones(self.starts, [1]), shape=(batch, size))
        moved = at.fresh(shape, F32)
        at.step(Gather(2), [new, with_ones(places, [1, 3]).broadcast(shape)], [moved])
        return moved

    def operand(self, at: Site, length: int, total: int, window: int, *, causal: bool) -> View:
        """Return what :meth:`closed` reads: the last key that each query sees, (B, 1, 1, S, 1)."""
        del total, window
        firsts = self.starts if causal else self.ends

        def last(first: Expr, end: Expr) -> Expr:
            found = apply("min", apply("add", first, index(1)), apply("sub", end, const(1, I64)))
            return cast(found, I32)

        views = [with_ones(view, [1]) for view in (firsts, self.ends)]
        found = at.map(last, *views, shape=(*self.starts.shape, length))
        return with_ones(found, [1, 2, 4])

    def closed(self, operand: Expr, window: int) -> Expr:
        """Return what is added to a score; as of :class:`Fixed`."""
        key = cast(KEY, I32)
        open_ = apply("le", key, operand)
        if window > 0:
            open_ = apply("and", open_, apply("lt", apply("sub", operand, const(window, I32)), key))
        return apply("select", open_, const(0, F32), const(-np.inf, F32))


def told(at: Site, lengths: View, length: int, total: int, size: int, have: int) -> Told:
    """Return the lengths that a run tells: int32 (B), the valid keys of each sequence less 1.

    length: new keys. total: the longest sequence. size: of the cache. have: of the past.
    """
    vector = at.reshape(lengths, (lengths.size,))
    ends = at.map(lambda n: apply("add", cast(n, I64), const(1, I64)), vector)
    if length == total:
        return Told(at.map(lambda n: const(0, I64), vector, shape=vector.shape).broadcast(vector.shape), ends)
    most = min(have, size - length)

    def wrong(end: Expr) -> Expr:
        start = apply("sub", end, const(length, I64))
        fits = apply("and", apply("le", const(0, I64), start), apply("le", start, const(most, I64)))
        return apply("select", fits, const(0, I64), const(1, I64))

    zeros = at.fresh(ends.shape, I64)  # an index past the one entry is what makes a step refuse
    table = constant(np.zeros(1, np.int64), at.name)
    at.step(Gather(0), [table, at.map(wrong, ends)], [zeros])
    starts = at.map(lambda end, zero: apply("add", apply("sub", end, const(length, I64)), zero), ends, zeros)
    return Told(starts, ends)
