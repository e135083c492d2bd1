"""Columns side by side in vectors: reading and writing rows of operands, and the epilogue of a row's sums."""

from collections.abc import Sequence
from typing import NamedTuple

from graphdoc.engine.device.llvm.builder import Function, Number, Target, Value, scalar, vector
from graphdoc.engine.device.llvm.contraction_axes import select
from graphdoc.engine.device.llvm.scalar import Scalars
from graphdoc.engine.expr import Dtype, Expr


class Column(NamedTuple):
    """What rows of an operand hold, and how far apart in elements its columns stand."""

    dtype: Dtype
    step: Number

    @property
    def element(self) -> str:
        """Return the type of one element in memory."""
        return scalar(self.dtype)


class Columns:
    """Appends what reads and writes ``lanes`` columns of a row at once."""

    def __init__(self, f: Function, lanes: int, target: Target) -> None:
        self.f, self.lanes = f, lanes
        self.scalars = Scalars(f, lanes, target)

    def read(self, column: Column, base: Value, v: int, mask: Value | None) -> Value:
        """Read vector ``v`` of a row whose column 0 is at ``base``; a scalar where all lanes hold one."""
        f, lanes, element = self.f, self.lanes, column.element
        if column.step == 0:
            return f.load(element, base)
        if self.lanes == 1:
            return f.load(element, f.at(base, f.mul(column.step, v), element))
        if column.step == 1:
            kind, here = vector(element, lanes), f.at(base, v * lanes, element)
            return f.load(kind, here) if mask is None else f.load_first(kind, here, mask)
        return self._gathered(column, base, v, mask)

    def _gathered(self, column: Column, base: Value, v: int, mask: Value | None) -> Value:
        """Read the elements of vector ``v`` one by one; a masked lane reads column 0 in its place."""
        f, lanes, element = self.f, self.lanes, column.element
        kind, raw = vector(element, lanes), _bits(element)
        read = Value("poison", vector(raw, lanes))
        for i in range(lanes):
            place: Number = v * lanes + i
            if mask is not None:
                place = select(f, f.op(f"extractelement {mask}, i32 {i}", "i1"), place, 0)
            one = f.load(raw, f.at(base, f.mul(place, column.step), element))
            read = f.op(f"insertelement {read}, {one}, i32 {i}", read.type)
        return f.op(f"bitcast {read} to {kind}", kind)

    def write(self, column: Column, base: Value, value: Value, v: int, mask: Value | None) -> None:
        """Write vector ``v`` of a row whose column 0 is at ``base``."""
        f, lanes, element = self.f, self.lanes, column.element
        if lanes == 1:
            f.store(value, f.at(base, f.mul(column.step, v), element))
            return
        if column.step == 1:
            here = f.at(base, v * lanes, element)
            if mask is None:
                f.store(value, here)
            else:
                f.store_first(value, here, mask)
            return
        raw = _bits(element)
        value = f.op(f"bitcast {value} to {vector(raw, lanes)}", vector(raw, lanes))
        for i in range(lanes):
            one = f.op(f"extractelement {value}, i32 {i}", raw)
            here = f.at(base, f.mul(column.step, v * lanes + i), element)
            if mask is None:
                f.store(one, here)
            else:
                with f.when(f.op(f"extractelement {mask}, i32 {i}", "i1")):
                    f.store(one, here)

    def finish(
        self,
        epilogue: Expr,
        total: Value,
        numbers: Sequence[int],
        operands: Sequence[tuple[Column, Value]],
        place: tuple[int, Value | None],
    ) -> None:
        """Apply an epilogue to one vector of sums and write the result.

        operands: the further inputs that ``numbers`` name, then the output, each with the address of its
        column 0. place: the number of the vector in the row, and its mask.
        """
        inputs = dict(zip(numbers, operands, strict=False))

        def load(k: int) -> Value:
            return total if k == -1 else self.read(*inputs[k], *place)

        (result,) = self.scalars.emit([epilogue], load)
        column, base = operands[-1]
        self.write(column, base, self.scalars.to_memory(result, column.dtype), *place)


def _bits(element: str) -> str:
    """Return the type in which elements are moved one by one: LLVM calls a library to move 16-bit floats."""
    return {"half": "i16", "bfloat": "i16"}.get(element, element)
