"""Scatters as machine code: the copy by vectors, then rows where an index leads to one, else elements."""

from dataclasses import replace

from graphdoc.engine.device.llvm.builder import (
    MANGLED,
    Function,
    Kernel,
    Number,
    Target,
    Value,
    number,
    scalar,
    vector,
)
from graphdoc.engine.device.llvm.walk import Odometer
from graphdoc.engine.expr import F32, F64, I32, I64
from graphdoc.engine.kernels.scatter import Scatter
from graphdoc.engine.program import Step, merged

_SIZES = (1, 2, 4, 8)
_DATA, _INDEX, _UPDATES, _OUT = range(4)
_FLOAT = {"add": "fadd", "mul": "fmul", "max": "maximum", "min": "minimum"}
_WHOLE = {"add": "add", "mul": "mul", "max": "smax", "min": "smin"}


def tactics_scatter(step: Step, target: Target) -> list[str]:
    """Return the ways to scatter: one."""
    return ["copy"]


def emit_scatter(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a scatter; None for elements of no machine size, reductions of other dtypes than
    float32, float64, int32 and int64, and data that is not row-major.

    An index outside the axis sets the kernel's status, and the update is left out.
    """
    spec, out = step.spec, step.outputs[0]
    assert isinstance(spec, Scatter)  # noqa: S101  # the table of emitters dispatches on the type
    plain = spec.reduction == "none" or out.dtype in (F32, F64, I32, I64)
    whole = step.inputs[_DATA].contiguous and out.contiguous
    if not plain or not whole or out.dtype.itemsize not in _SIZES:
        return None
    return _Emitter(step, spec, target).kernel()


class _Emitter:
    """The kernel of one step. It is one share: of equal places the last update wins."""

    def __init__(self, step: Step, spec: Scatter, target: Target) -> None:
        self.step, self.spec = step, spec
        self.fn = fn = Function()
        dtype = step.outputs[0].dtype
        self.element = scalar(dtype) if spec.reduction != "none" else f"i{8 * dtype.itemsize}"
        self.lanes = max(target.vector // dtype.itemsize, 1)
        self.places = [fn.argument(k) for k in range(4)]
        self.status = fn.argument(4)
        self.index = scalar(step.inputs[_INDEX].dtype)
        self.size = fn.dim(step.outputs[0].shape[spec.axis])
        self.stride = fn.dim(step.outputs[0].strides[spec.axis])

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        _, index, updates = self.step.inputs
        out = self.step.outputs[0]
        self._copy(self.places[_DATA], self.places[_OUT], self.fn.dim(out.size))
        fixed = [0 if axis == self.spec.axis else s for axis, s in enumerate(out.strides)]
        axes = merged(index.shape, [index.strides, updates.strides, fixed])
        *outer, (length, steps) = axes or [(1, (0, 0, 0))]
        bases = [self.places[k] for k in (_INDEX, _UPDATES, _OUT)]
        kinds = (self.index, self.element, self.element)
        moves: list[Number] = [s if s in (0, 1) else self.fn.dim(s) for s in steps]
        count = self.fn.dim(length)
        with Odometer(self.fn, outer, 3).loop() as (_, offsets):
            row = [self.fn.at(b, o, kind) for b, o, kind in zip(bases, offsets, kinds, strict=True)]
            if steps == (0, 1, 1):
                self._row(row, count)
            else:
                self._elements(row, moves, count)
        return replace(self.fn.kernel(), status=True)

    def _copy(self, source: Value, target: Value, length: Number) -> None:
        fn = self.fn
        done: Number = 0
        for lanes in (4 * self.lanes, 1):
            stop = fn.sub(length, fn.mod(length, lanes))
            kind = vector(self.element, lanes)
            with fn.loop(done, stop, lanes) as (i, _):
                fn.store(fn.load(kind, fn.at(source, i, self.element)), fn.at(target, i, self.element))
            done = stop

    def _found(self, place: Value) -> tuple[Value, Value]:
        """Return how far the index leads, in elements, and whether it lies inside the axis."""
        fn = self.fn
        read = fn.load(self.index, place)
        index = read if read.type == "i64" else fn.op(f"sext {read} to i64", "i64")
        negative = fn.op(f"icmp slt {index}, 0", "i1")
        counted = fn.op(f"add {index}, {number(self.size).name}", "i64")
        index = fn.op(f"select {negative}, {counted}, {index}", "i64")
        outside = fn.op(f"icmp uge {index}, {number(self.size).name}", "i1")
        with fn.when(outside):
            fn.store(number(1), self.status)
        inside = fn.op(f"xor {outside}, true", "i1")
        return number(fn.mul(index, self.stride)), inside

    def _row(self, places: list[Value], length: Number) -> None:
        """Write a row that one index leads to."""
        fn = self.fn
        moved, inside = self._found(places[0])
        with fn.when(inside):
            target = fn.at(places[2], moved, self.element)
            if self.spec.reduction == "none":
                self._copy(places[1], target, length)
                return
            with fn.loop(0, length) as (i, _):
                self._put(fn.at(places[1], i, self.element), fn.at(target, i, self.element))

    def _elements(self, places: list[Value], moves: list[Number], length: Number) -> None:
        fn = self.fn
        kinds = (self.index, self.element, self.element)
        with fn.loop(0, length) as (i, _):
            here = [fn.at(p, fn.mul(i, m), kind) for p, m, kind in zip(places, moves, kinds, strict=True)]
            moved, inside = self._found(here[0])
            with fn.when(inside):
                self._put(here[1], fn.at(here[2], moved, self.element))

    def _put(self, source: Value, target: Value) -> None:
        """Write an update, or what it makes with the element that stands there."""
        fn = self.fn
        update = fn.load(self.element, source)
        reduction = self.spec.reduction
        if reduction != "none":
            old = fn.load(self.element, target)
            if self.element in MANGLED:
                name = _FLOAT[reduction]
                intrinsic = f"llvm.{name}.{MANGLED[self.element]}"
            else:
                name, intrinsic = _WHOLE[reduction], f"llvm.{_WHOLE[reduction]}.{self.element}"
            if reduction in ("add", "mul"):
                update = fn.binary(name, old, update)
            else:
                update = fn.call(intrinsic, self.element, old, update)
        fn.store(update, target)
