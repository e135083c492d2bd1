"""The Program: tensor steps over strided views of buffers, for one set of input shapes.

Between the ONNX graph and machine code stands one small language. A :class:`Buffer` is a run of elements, a
:class:`View` says which of them a step sees and in which order, and a :class:`Step` applies one kernel
specification (``engine/kernels``) to views. All shapes are numbers. What a layout is, a transpose, a slice, a
broadcast, the windows of a convolution: all are strides of views, so most of them cost nothing, and a kernel
need not know of any. No step knows on which device it runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided


class Kind(Enum):
    """Who holds a buffer's memory, and who writes it."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    INNER = "inner"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Buffer:
    """A run of ``size`` elements of one dtype; compared by identity.

    data: of a constant, its ``size`` elements as an array of rank 1; None otherwise.
    """

    name: str
    dtype: np.dtype[Any]
    size: int
    kind: Kind = Kind.INNER
    data: Any = None

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a buffer: element ``i`` stands at ``offset + sum(i[d] * strides[d])``, in elements.

    A stride of 0 repeats (broadcasting), a negative one reverses; axes may overlap (windows).
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the elements."""
        return self.buffer.dtype

    @property
    def size(self) -> int:
        """Return the number of elements, repeated ones counted."""
        return prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Return whether the elements stand one after another in row-major order."""
        return all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        )

    @property
    def extent(self) -> tuple[int, int]:
        """Return the first element touched and the one past the last; (offset, offset) when empty."""
        if 0 in self.shape:
            return self.offset, self.offset
        low = high = self.offset
        for size, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (size - 1) * stride
            else:
                high += (size - 1) * stride
        return low, high + 1

    def permuted(self, axes: Sequence[int]) -> "View":
        """Return the view with its axes in another order."""
        return self._with([self.shape[a] for a in axes], [self.strides[a] for a in axes])

    def broadcast(self, shape: Sequence[int]) -> "View":
        """Return the view repeated to ``shape`` by NumPy's rules; ValueError where these forbid it."""
        lead = len(shape) - len(self.shape)
        pairs = zip(self.shape, shape[max(lead, 0) :], strict=lead >= 0)
        if lead < 0 or any(have not in (1, size) for have, size in pairs):
            raise ValueError(f"shape {self.shape} cannot be broadcast to {tuple(shape)}")
        strides = [0] * lead + [
            0 if have == 1 else stride for have, stride in zip(self.shape, self.strides, strict=True)
        ]
        return self._with(shape, strides)

    def sliced(self, axis: int, start: int, count: int, step: int = 1) -> "View":
        """Return ``count`` entries of one axis from ``start`` on, ``step`` apart (negative: backwards).

        Raises ValueError where the axis has not that many.
        """
        shape, strides = list(self.shape), list(self.strides)
        last = start + (count - 1) * step
        if count < 0 or (count and not (0 <= start < shape[axis] and 0 <= last < shape[axis])):
            raise ValueError(f"{count} entries from {start} on of an axis of {shape[axis]}")
        offset = self.offset + (start * strides[axis] if count else 0)
        shape[axis], strides[axis] = count, strides[axis] * step
        return View(self.buffer, tuple(shape), tuple(strides), offset)

    def reshaped(self, shape: Sequence[int]) -> "View | None":
        """Return the view with another shape of the same size, None when strides cannot say it."""
        if self.size == 0:
            return self._with(shape, dense_strides(shape))
        strides = _split_strides(merged(self.shape, [self.strides]), shape)
        return None if strides is None else self._with(shape, strides)

    def array(self, memory: Any) -> Any:
        """Return the elements as a NumPy view of ``memory``, the buffer's array of rank 1."""
        step = memory.dtype.itemsize
        return as_strided(memory[self.offset :], self.shape, [s * step for s in self.strides])

    def _with(self, shape: Sequence[int], strides: Sequence[int]) -> "View":
        return View(self.buffer, tuple(shape), tuple(strides), self.offset)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def whole(buffer: Buffer, shape: Sequence[int]) -> View:
    """Return the row-major view of all of a buffer."""
    return View(buffer, tuple(shape), dense_strides(shape))


Axes = list[tuple[int, tuple[int, ...]]]
"""Axes of an iteration: size, and the stride of each operand."""


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Axes:
    """Return the fewest axes that visit the same elements in the same order, for all operands at once.

    strides: one sequence per operand. Axes of size 1 vanish; neighbours join where every operand's outer
    stride is its inner stride times the inner size.
    """
    axes: Axes = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if axes and all(o == s * size for o, s in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, tuple(steps))
        else:
            axes.append((size, tuple(steps)))
    return axes


def _split_strides(axes: Axes, shape: Sequence[int]) -> list[int] | None:
    """Return the strides of ``shape`` over merged axes of one operand, None when a new axis crosses two."""
    strides: list[int] = []
    left = list(axes)
    room, step = 1, 0
    for size in reversed(shape):
        if size == 1:
            strides.append(0)
            continue
        if room == 1:
            if not left:
                return None
            room, (step,) = left.pop()
        if room % size:
            return None
        strides.append(step)
        step, room = step * size, room // size
    return strides[::-1] if room == 1 and not left else None


class Spec(Protocol):
    """What a step computes (``engine/kernels``): a frozen dataclass, the same on every device."""

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy: read the arrays of ``inputs``, write those of ``outputs``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One kernel over views.

    nodes: names of the ONNX nodes whose meaning it carries, in order, each once: where readers compute a
        value again and meet later, their nodes would double at every meeting.
    """

    spec: Spec
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.nodes) > 1:
            object.__setattr__(self, "nodes", tuple(dict.fromkeys(self.nodes)))


@dataclass(slots=True)
class Program:
    """Steps in the order they run, and where a caller's arrays go in and come out.

    inputs, outputs: a row-major view of a whole INPUT or OUTPUT buffer by ONNX value name. An output that is
        an input or a constant unchanged has a step that copies it, so every output owns its memory.
    values: where inner values of the graph can be read once the program has run, by ONNX value name; a
        fusion that does away with a value takes it out.
    notes: why a fusion was refused and what was done instead, in words, by node name.
    """

    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, View] = field(default_factory=dict)
    outputs: dict[str, View] = field(default_factory=dict)
    values: dict[str, View] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def buffers(self) -> Iterator[Buffer]:
        """Yield every buffer once: inputs, outputs, then as the steps touch them."""
        views = [*self.inputs.values(), *self.outputs.values()]
        views += [view for step in self.steps for view in (*step.inputs, *step.outputs)]
        yield from dict.fromkeys(view.buffer for view in views)


def evaluate(program: Program, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program with NumPy, buffer by buffer: the meaning that every device must agree with.

    feeds: one array per input, of the input's dtype and shape.
    """
    memory: dict[Buffer, Any] = {}
    for buffer in program.buffers():
        memory[buffer] = buffer.data if buffer.kind is Kind.CONSTANT else np.zeros(buffer.size, buffer.dtype)
    for name, view in program.inputs.items():
        view.array(memory[view.buffer])[...] = feeds[name]
    with np.errstate(all="ignore"):
        for step in program.steps:
            step.spec.evaluate(
                [view.array(memory[view.buffer]) for view in step.inputs],
                [view.array(memory[view.buffer]) for view in step.outputs],
            )
    return {name: view.array(memory[view.buffer]) for name, view in program.outputs.items()}
