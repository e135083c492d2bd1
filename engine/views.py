"""Algebra on views: seeing one buffer through the axes of another."""

from collections.abc import Sequence

from graphdoc.engine.program import View, merged


def bijective(view: View) -> bool:
    """Return whether the view shows every element of its buffer exactly once, in whatever order of axes."""
    if view.offset or view.size != view.buffer.size:
        return False
    expected = 1
    for stride, size in sorted(zip(view.strides, view.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def through(view: View, source: View, target: View) -> View | None:
    """Return ``target`` as ``view`` sees ``source``: element i of the result is the element of target that
    stands where, in source, the element ``view[i]`` stands.

    view and source show the same buffer, source every element once; source and target have the same shape.
    None when no strides say it: an axis of ``view`` runs across two axes that target keeps apart.
    """
    if view.size == 0:
        return View(target.buffer, view.shape, (0,) * len(view.shape), target.offset)
    axes = _axes(source, target)
    position, rest = [], view.offset
    for _, stride, _ in axes:
        position.append(rest // stride)
        rest %= stride
    low, high = list(position), list(position)
    strides = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1 or stride == 0:
            strides.append(0)
            continue
        k = next((k for k, (_, step, _) in enumerate(axes) if abs(stride) % step == 0), None)
        if k is None:
            return None
        times = stride // axes[k][1] if stride > 0 else -(-stride // axes[k][1])
        moved = (size - 1) * times
        low[k], high[k] = low[k] + min(moved, 0), high[k] + max(moved, 0)
        strides.append(times * axes[k][2])
    if any(b < 0 or t >= size for b, t, (size, _, _) in zip(low, high, axes, strict=True)):
        return None
    offset = target.offset + sum(p * step for p, (_, _, step) in zip(position, axes, strict=True))
    return View(target.buffer, view.shape, tuple(strides), offset)


def _axes(source: View, target: View) -> list[tuple[int, int, int]]:
    """Return the joint axes, outermost in source first: size, stride in source, stride in target."""
    order = sorted(range(len(source.shape)), key=lambda a: -source.strides[a])
    source, target = source.permuted(order), target.permuted(order)
    joint = merged(source.shape, [source.strides, target.strides])
    return [(size, steps[0], steps[1]) for size, steps in joint]


def without_ones(view: View, axes: Sequence[int]) -> View:
    """Return the view with only the given axes."""
    return view.permuted(axes)
