"""Keys and values of one head as panels: ``width`` columns of a matrix side by side, row after row."""

from collections.abc import Callable
from dataclasses import dataclass

from graphdoc.engine.device.llvm.builder import Function, Number, Value, floating, vector


@dataclass(frozen=True, slots=True)
class Matrix:
    """float32 in memory: address, sizes, strides in elements; vectors run along a stride of the int 1."""

    pointer: Value
    rows: Number
    columns: Number
    down: Number
    along: Number

    def turned(self) -> "Matrix":
        """Return the matrix with rows and columns exchanged."""
        return Matrix(self.pointer, self.columns, self.rows, self.along, self.down)


@dataclass(frozen=True, slots=True)
class Panels:
    """Where element (row, column) goes: panel column // width, then row, then column % width.

    depth: rows of a panel. Panels are ``width`` columns of ``lanes`` at a time.
    """

    fn: Function
    pointer: Value
    depth: Number
    width: int
    lanes: int

    def size(self, columns: Number) -> Number:
        """Return the elements that so many columns take."""
        return self.fn.mul(self.padded(columns), self.depth)

    def padded(self, columns: Number) -> Number:
        """Return the columns, full panels of them."""
        fn = self.fn
        return fn.mul(fn.idiv(fn.add(columns, self.width - 1), self.width), self.width)

    def column(self, position: Number) -> Value:
        """Return the address of a column's first row."""
        fn = self.fn
        inside = fn.mod(position, self.width)
        whole = fn.sub(position, inside)
        return fn.at(self.pointer, fn.add(fn.mul(whole, self.depth), inside), "float")

    def fill(self, matrix: Matrix) -> None:
        """Copy a matrix in; columns past its last, and rows up to the depth, become 0."""
        fn, lanes = self.fn, self.lanes
        full = fn.sub(matrix.columns, fn.mod(matrix.columns, lanes))
        if matrix.along == 1:
            self._straight(matrix, full)
            done = full
        elif matrix.down == 1:
            self._crosswise(matrix, full)
            done = full
        else:
            done = 0
        self._clear(full, self.padded(matrix.columns), 0)
        self._clear(0, full, matrix.rows)
        self._each(done, matrix.columns, 0, matrix.rows, self._element(matrix))

    def _clear(self, first: Number, last: Number, top: Number) -> None:
        """Write zeros from a row on, vectors of columns at a time."""
        fn, zero = self.fn, floating(0, vector("float", self.lanes))
        with fn.loop(first, last, self.lanes) as (column, _):
            target = self.column(column)
            with fn.loop(top, self.depth) as (row, _):
                fn.store(zero, fn.at(target, fn.mul(row, self.width), "float"))

    def _element(self, matrix: Matrix) -> Callable[[Value, Value], Value]:
        fn = self.fn

        def element(column: Value, row: Value) -> Value:
            place = fn.add(fn.mul(row, matrix.down), fn.mul(column, matrix.along))
            return fn.load("float", fn.at(matrix.pointer, place, "float"))

        return element

    def _each(
        self,
        first: Number,
        last: Number,
        top: Number,
        bottom: Number,
        element: Callable[[Value, Value], Value],
    ) -> None:
        """Write elements one by one."""
        fn = self.fn
        with fn.loop(first, last) as (column, _):
            target = self.column(column)
            with fn.loop(top, bottom) as (row, _):
                fn.store(element(column, row), fn.at(target, fn.mul(row, self.width), "float"))

    def _straight(self, matrix: Matrix, full: Number) -> None:
        """Copy vectors of columns that lie side by side."""
        fn = self.fn
        kind = vector("float", self.lanes)
        with fn.loop(0, full, self.lanes) as (column, _):
            source, target = fn.at(matrix.pointer, column, "float"), self.column(column)
            with fn.loop(0, matrix.rows) as (row, _):
                value = fn.load(kind, fn.at(source, fn.mul(row, matrix.down), "float"))
                fn.store(value, fn.at(target, fn.mul(row, self.width), "float"))

    def _crosswise(self, matrix: Matrix, full: Number) -> None:
        """Copy blocks whose rows lie side by side, each turned in registers; the rows left one by one."""
        fn, lanes = self.fn, self.lanes
        kind = vector("float", lanes)
        height = fn.sub(matrix.rows, fn.mod(matrix.rows, lanes))
        with fn.loop(0, full, lanes) as (column, _), fn.loop(0, height, lanes) as (row, _):
            source = fn.at(matrix.pointer, fn.add(fn.mul(column, matrix.along), row), "float")
            block = []
            for _ in range(lanes):
                block.append(fn.load(kind, source))
                source = fn.at(source, matrix.along, "float")
            target = fn.at(self.column(column), fn.mul(row, self.width), "float")
            for k, value in enumerate(transposed(fn, block)):
                fn.store(value, fn.at(target, k * self.width, "float"))
        self._each(0, full, height, matrix.rows, self._element(matrix))


def transposed(fn: Function, rows: list[Value]) -> list[Value]:
    """Return the transpose of as many vectors as each has lanes, a power of two: rounds of interleaving."""
    lanes = len(rows)
    half = lanes // 2
    while half:
        mixed: dict[int, Value] = {}
        for i in range(lanes):
            if not i & half:
                low = [j if not j & half else lanes + (j ^ half) for j in range(lanes)]
                high = [j | half if not j & half else lanes + j for j in range(lanes)]
                mixed[i] = _shuffled(fn, rows[i], rows[i | half], low)
                mixed[i | half] = _shuffled(fn, rows[i], rows[i | half], high)
        rows, half = [mixed[i] for i in range(lanes)], half // 2
    return rows


def _shuffled(fn: Function, a: Value, b: Value, order: list[int]) -> Value:
    mask = ", ".join(f"i32 {k}" for k in order)
    return fn.op(f"shufflevector {a}, {b}, <{len(order)} x i32> <{mask}>", a.type)
