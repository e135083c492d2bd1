"""Positions along merged axes, as a kernel follows them: by division at first, then one step at a time."""

from collections.abc import Callable, Sequence

from graphdoc.engine.device.llvm.builder import Function, Number, Value, number
from graphdoc.engine.program import Axes


def select(f: Function, condition: Value, a: Number, b: Number) -> Number:
    """Return a where the i1 is true, else b."""
    return f.op(f"select {condition}, {number(a)}, {number(b)}", "i64")


class Walk:
    """Merged axes with sizes and strides as the kernel reads them from dims; strides of 0 fold away.

    A position is a number in row-major order; its digits are the indices along the axes. The first digit is
    never compared with its size, so a position past the end is only wrong, never caught.
    """

    def __init__(self, f: Function, axes: Axes) -> None:
        self.f = f
        self.sizes = [f.dim(size) for size, _ in axes]
        self.strides = [[_dim(f, s) for s in strides] for _, strides in axes]
        self.jumps: list[list[Number]] = []
        back = [0] * (len(axes[0][1]) if axes else 0)
        for size, strides in reversed(axes):
            self.jumps.insert(0, [_dim(f, s - b) for s, b in zip(strides, back, strict=True)])
            back = [b + (size - 1) * s for s, b in zip(strides, back, strict=True)]

    def start(self, position: Number, operands: int) -> tuple[list[Number], list[Number]]:
        """Return the digits of a position and each operand's offset there."""
        f, digits = self.f, list[Number]()
        offsets: list[Number] = [0] * operands
        for level in reversed(range(len(self.sizes))):
            digit = f.mod(position, self.sizes[level]) if level else position
            position = f.idiv(position, self.sizes[level]) if level else position
            digits.insert(0, digit)
            offsets = [f.add(o, f.mul(digit, s)) for o, s in zip(offsets, self.strides[level], strict=True)]
        return digits, offsets

    def following(
        self, digits: Sequence[Number], offsets: Sequence[Number], operands: Sequence[int]
    ) -> tuple[list[Number], list[Number]]:
        """Return the digits, and the offsets of the named operands, one position on."""
        f, digits = self.f, list(digits)
        if not digits:
            return digits, list(offsets)
        deltas, wraps = [self.strides[-1][o] for o in operands], None
        for level in reversed(range(1, len(digits))):
            up = f.add(digits[level], 1)
            full = f.op(f"icmp eq {number(up)}, {number(self.sizes[level]).name}", "i1")
            turned = select(f, full, 0, up)
            digits[level] = turned if wraps is None else select(f, wraps, turned, digits[level])
            wraps = full if wraps is None else f.binary("and", wraps, full)
            jumps = [self.jumps[level - 1][o] for o in operands]
            deltas = [
                d if o in self._still else select(f, wraps, j, d)
                for o, j, d in zip(operands, jumps, deltas, strict=True)
            ]
        up = f.add(digits[0], 1)
        digits[0] = up if wraps is None else select(f, wraps, up, digits[0])
        return digits, [f.add(o, d) for o, d in zip(offsets, deltas, strict=True)]

    @property
    def _still(self) -> frozenset[int]:
        """Return the operands that no axis moves."""
        moved = [{o for o, s in enumerate(strides) if s != 0} for strides in self.strides]
        everything = range(len(self.strides[0])) if self.strides else ()
        return frozenset(everything) - frozenset[int]().union(*moved)

    def pointers(
        self, base: Value, element: str, count: int, digits: Sequence[Number], offset: Number
    ) -> list[Value]:
        """Return operand 0's addresses at ``count`` positions from the given one on."""
        found, offsets = [], [offset]
        for i in range(count):
            found.append(self.f.at(base, offsets[0], element))
            if i + 1 < count:
                digits, offsets = self.following(digits, offsets, (0,))
        return found

    def nest(
        self, base: Value, element: str, body: Callable[[Value, Number], None], levels: int | None = None
    ) -> None:
        """Emit loops over the first axes (None: all); the body gets operand 0's address and the position."""
        last = len(self.sizes) if levels is None else levels

        def walk(level: int, here: Value, position: Number) -> None:
            if level == last:
                body(here, position)
                return
            with self.f.loop(0, self.sizes[level]) as (i, _):
                at = self.f.at(here, self.f.mul(i, self.strides[level][0]), element)
                walk(level + 1, at, self.f.add(self.f.mul(position, self.sizes[level]), i))

        walk(0, base, 0)


def _dim(f: Function, value: int) -> Number:
    return f.dim(value) if value else 0
