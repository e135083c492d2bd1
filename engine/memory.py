"""Where inner buffers lie in one arena: those that never hold something at the same time share bytes.

A buffer lives from the first step that touches it to the last. The largest are placed first, each at the
lowest place that no buffer living at the same time covers. Where an element-wise step reads a buffer for the
last time and writes another through the very same view, both get the same place (in place).
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Kind, Program, Step, View

LINE = 64
"""Bytes: every buffer starts on a cache line."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """offsets: of every inner buffer, in bytes from the arena's start. size: bytes of the arena.

    naive: bytes that the buffers would take side by side.
    """

    offsets: Mapping[Buffer, int]
    size: int
    naive: int


@dataclass(slots=True)
class _Block:
    """Buffers that share one place: bytes, and the first and last step that touch any of them."""

    size: int
    first: int
    last: int


def plan(program: Program) -> MemoryPlan:
    """Return offsets for every inner buffer that a step touches."""
    blocks = _blocks(program)
    places = _place(list({id(b): b for b in blocks.values()}.values()))
    offsets = {buffer: places[id(block)] for buffer, block in blocks.items()}
    size = max((offsets[b] + _padded(b.nbytes) for b in offsets), default=0)
    return MemoryPlan(offsets, size, sum(_padded(b.nbytes) for b in offsets))


def _padded(size: int) -> int:
    return -(-size // LINE) * LINE


def inner(step: Step) -> dict[Buffer, None]:
    """Return the inner buffers that a step touches, each once."""
    views = (*step.inputs, *step.outputs)
    return {view.buffer: None for view in views if view.buffer.kind is Kind.INNER}


def lifetimes(program: Program) -> dict[Buffer, tuple[int, int]]:
    """Return the first and the last step that touch each inner buffer."""
    found: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(program.steps):
        for buffer in inner(step):
            found[buffer] = (found.get(buffer, (number, 0))[0], number)
    return found


def _blocks(program: Program) -> dict[Buffer, _Block]:
    """Return the block of each buffer, those joined that can be worked on in place."""
    lives = lifetimes(program)
    blocks: dict[Buffer, _Block] = {}
    for number, step in enumerate(program.steps):
        for buffer in inner(step):
            if lives[buffer][0] == number and buffer not in blocks:
                blocks[buffer] = _join(step, number, buffer, lives, blocks)
    return blocks


def _join(
    step: Step,
    number: int,
    buffer: Buffer,
    lives: Mapping[Buffer, tuple[int, int]],
    blocks: Mapping[Any, _Block],
) -> _Block:
    """Return the block of a buffer first touched by this step: that of a dying input, or a new one."""
    source = _in_place(step, number, buffer, lives)
    if source is None or blocks[source].last != number:
        return _Block(_padded(buffer.nbytes), *lives[buffer])
    block = blocks[source]
    block.last = lives[buffer][1]
    block.size = max(block.size, _padded(buffer.nbytes))
    return block


def _in_place(
    step: Step, number: int, buffer: Buffer, lives: Mapping[Buffer, tuple[int, int]]
) -> Buffer | None:
    """Return the buffer in whose place an element-wise step may write this one, None if there is none."""
    if not isinstance(step.spec, Map) or len(step.outputs) != 1:
        return None
    out = step.outputs[0]
    for view in step.inputs:
        source = view.buffer
        if (
            source.kind is Kind.INNER
            and source is not buffer
            and lives[source][1] == number
            and all(_same_place(other, out) for other in step.inputs if other.buffer is source)
        ):
            return source
    return None


def _same_place(a: View, b: View) -> bool:
    """Whether two views have each element at the same byte of their buffers, all elements apart."""
    return (
        a.dtype.itemsize == b.dtype.itemsize
        and (a.offset, a.shape) == (b.offset, b.shape)
        and all(s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True) if n > 1)
    )


def _place(blocks: list[_Block]) -> dict[int, int]:
    """Return an offset for each block (by identity): the largest first, each as low as it can lie."""
    table = np.zeros((len(blocks), 4), np.int64)  # first step, last step, offset, end, of those placed
    places: dict[int, int] = {}
    order = sorted(blocks, key=lambda b: (-b.size, b.first))
    for count, block in enumerate(order):
        placed = table[:count]
        beside = placed[(placed[:, 0] <= block.last) & (placed[:, 1] >= block.first)]
        offset = _lowest(beside[beside[:, 2].argsort(), 2:].tolist(), block.size)
        places[id(block)] = offset
        table[count] = block.first, block.last, offset, offset + block.size
    return places


def _lowest(taken: list[list[int]], size: int) -> int:
    """Return the lowest offset at which ``size`` bytes fit between stretches sorted by their start."""
    at = 0
    for start, end in taken:
        if start - at >= size:
            break
        at = max(at, end)
    return at


def aligned(size: int) -> Any:
    """Return ``size`` bytes of memory, not cleared, that start on a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


class ModelFile(mmap.mmap):
    """The bytes of a model's file, mapped. Whoever keeps what he read of them copies it: the file may go."""


def model_file(array: Any) -> ModelFile | None:
    """Return the mapped file that an array lies in, None where it lies in memory."""
    found = array  # as_strided puts an object of its own between an array and what it looks at
    while found is not None and not isinstance(found, ModelFile):
        found = found.obj if isinstance(found, memoryview) else getattr(found, "base", None)
    return found


def let_go(array: Any) -> None:
    """Let the pages of an array of a mapped model go, so that they no longer take memory; reading it brings
    them back."""
    file = model_file(array)
    if file is None or not array.nbytes or not hasattr(mmap, "MADV_DONTNEED"):
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    start = int(low) - int(np.frombuffer(file, np.uint8).ctypes.data)
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    file.madvise(mmap.MADV_DONTNEED, first, start + int(high - low) - first)
