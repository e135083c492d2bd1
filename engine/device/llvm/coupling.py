"""Probabilities of pairs of classes to those of classes as machine code: rows side by side in a vector."""

from graphdoc.engine.device.llvm.builder import (
    Function,
    Kernel,
    Number,
    Target,
    Value,
    floating,
    number,
    vector,
)
from graphdoc.engine.device.llvm.walk import threads_for
from graphdoc.engine.expr import F32
from graphdoc.engine.kernels.coupling import CLOSE, SWEEPS, Coupling
from graphdoc.engine.program import Step

_USUAL = 8
"""Sweeps that rows take, about."""


def tactics_coupling(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["rows"]


def emit_coupling(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Coupling`; None where rows do not lie side by side."""
    spec = step.spec
    assert isinstance(spec, Coupling)  # noqa: S101  # the table of emitters dispatches on the type
    views = (*step.inputs, *step.outputs)
    rows = step.outputs[0].shape[0]
    if any(v.dtype != F32 or (v.strides[0] != 1 and rows > 1) for v in views):
        return None
    return _Emitter(step, spec.classes, target).kernel()


class _Emitter:
    """The kernel of one step.

    In the scratch memory stand, a vector each: p and the product by class, then the system by row and column.
    """

    def __init__(self, step: Step, classes: int, target: Target) -> None:
        self.fn = fn = Function()
        self.classes, self.lanes = classes, target.lanes(F32)
        self.kind = vector("float", self.lanes)
        self.rows = step.outputs[0].shape[0]
        self.shares, self.out, self.scratch = (fn.argument(k) for k in range(3))
        self.strides = [fn.dim(view.strides[1]) for view in (step.inputs[0], step.outputs[0])]
        self.size = fn.dim(classes)

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        fn, lanes = self.fn, self.lanes
        count, vectors = fn.dim(self.rows), -(-self.rows // lanes)
        low, high = fn.share(fn.dim(vectors))
        with fn.loop(low, high) as (block, _):
            row = fn.mul(block, lanes)
            self._solve(row, fn.first(fn.sub(count, row), lanes))
        cycles = vectors * self.classes**2 * 4 * _USUAL
        scratch = (self.classes * (self.classes + 2) + 1) * lanes * 4
        return fn.kernel(scratch, threads_for(0, cycles, vectors))

    # ---- places --------------------------------------------------------------------------------------

    def _at(self, place: Number) -> Value:
        return self.fn.at(self.scratch, self.fn.mul(place, self.lanes), "float")

    def _p(self, i: Number) -> Value:
        return self._at(i)

    def _product(self, i: Number) -> Value:
        return self._at(self.fn.add(i, self.size))

    def _system(self, i: Number, j: Number) -> Value:
        fn = self.fn
        return self._at(fn.add(fn.mul(fn.add(i, 2), self.size), j))

    def _load(self, place: Value) -> Value:
        return self.fn.load(self.kind, place)

    # ---- arithmetic ----------------------------------------------------------------------------------

    def _f(self, value: float) -> Value:
        return floating(value, self.kind)

    def _do(self, name: str, *args: Value) -> Value:
        """Return a chain of one operation: ((a · b) · c) · …"""
        result = args[0]
        for value in args[1:]:
            result = self.fn.binary(name, result, value)
        return result

    # ---- one vector of rows --------------------------------------------------------------------------

    def _solve(self, row: Number, mask: Value) -> None:
        fn = self.fn
        self._fill(row, mask)
        bits = f"<{self.lanes} x i1>"
        running = Value("splat (i1 true)", bits)
        with fn.loop(0, SWEEPS, carry=[running, Value("true", "i1")]) as (_, state):
            more = state[1]
            with fn.when(more):
                value = self._multiply()
                left = self._left(value)
                fn.store(fn.op(f"zext {left} to <{self.lanes} x i8>", f"<{self.lanes} x i8>"), self._flags())
                self._sweep(value, left)
            flags = fn.load(f"<{self.lanes} x i8>", self._flags())
            still = fn.op(f"icmp ne {flags}, zeroinitializer", bits)
            state[:] = [still, fn.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", still)]
        with fn.loop(0, self.size) as (i, _):
            target = fn.at(self.out, fn.add(row, fn.mul(i, self.strides[1])), "float")
            fn.store_first(self._load(self._p(i)), target, mask)

    def _flags(self) -> Value:
        """Return where it stands, a byte a row, which rows are not done."""
        return self._system(self.size, 0)

    def _fill(self, row: Number, mask: Value) -> None:
        """Set up p and the system: −r_ji·r_ij off the diagonal, Σ r_ji² on it."""
        fn = self.fn
        ones = fn.op(f"sext {self._all()} to <{self.lanes} x i8>", f"<{self.lanes} x i8>")
        fn.store(ones, self._flags())
        with fn.loop(0, self.size) as (i, _):
            fn.store(self._f(1 / self.classes), self._p(i))
            fn.store(self._f(0), self._system(i, i))
        with fn.loop(0, self.size, carry=[number(0)]) as (i, pairs):
            with fn.loop(fn.add(i, 1), self.size, carry=[pairs[0]]) as (j, pair):
                source = fn.at(self.shares, fn.add(row, fn.mul(pair[0], self.strides[0])), "float")
                share = fn.load_first(self.kind, source, mask)
                self._pair(i, j, share)
                pair[:] = [number(fn.add(pair[0], 1))]
            pairs[:] = pair

    def _all(self) -> Value:
        return Value("splat (i1 true)", f"<{self.lanes} x i1>")

    def _pair(self, i: Number, j: Number, share: Value) -> None:
        fn, do = self.fn, self._do
        rest = do("fsub", self._f(1), share)
        off = fn.op(f"fneg {do('fmul', share, rest)}", self.kind)
        for a, b, other in ((i, j, rest), (j, i, share)):
            fn.store(off, self._system(a, b))
            place = self._system(a, a)
            fn.store(do("fadd", self._load(place), do("fmul", other, other)), place)

    def _multiply(self) -> Value:
        """Store the system's product with p; return p's product with that."""
        fn, zero = self.fn, self._f(0)
        with fn.loop(0, self.size, carry=[zero]) as (i, total):
            with fn.loop(0, self.size, carry=[zero]) as (j, line):
                line[:] = [fn.fma(self._load(self._system(i, j)), self._load(self._p(j)), line[0])]
            fn.store(line[0], self._product(i))
            total[:] = [fn.fma(self._load(self._p(i)), line[0], total[0])]
        return total[0]

    def _left(self, value: Value) -> Value:
        """Return which rows are not done: those that were not, and have a class too far off."""
        fn = self.fn
        flags = fn.load(f"<{self.lanes} x i8>", self._flags())
        before = fn.op(f"icmp ne {flags}, zeroinitializer", f"<{self.lanes} x i1>")
        with fn.loop(0, self.size, carry=[self._f(0)]) as (i, most):
            off = self._do("fsub", self._load(self._product(i)), value)
            size = fn.call(f"llvm.fabs.v{self.lanes}f32", self.kind, off)
            most[:] = [fn.call(f"llvm.maximum.v{self.lanes}f32", self.kind, most[0], size)]
        far = fn.op(f"fcmp oge {most[0]}, {self._f(CLOSE / self.classes).name}", before.type)
        return self._do("and", before, far)

    def _sweep(self, value: Value, left: Value) -> None:
        """Move each class's p to its optimum in turn, in the rows that are not done."""
        fn, do = self.fn, self._do
        with fn.loop(0, self.size, carry=[value]) as (i, carried):
            value, product = carried[0], self._load(self._product(i))
            own = self._load(self._system(i, i))
            step = do("fdiv", do("fsub", value, product), own)
            scale = do("fadd", self._f(1), step)
            twice = do("fadd", do("fmul", step, own), do("fmul", self._f(2), product))
            carried[:] = [do("fdiv", do("fadd", value, do("fmul", step, twice)), scale, scale)]
            self._store(self._p(i), do("fadd", self._load(self._p(i)), step), left)
            with fn.loop(0, self.size) as (j, _):
                moved = do("fmul", step, self._load(self._system(i, j)))
                line = do("fdiv", do("fadd", self._load(self._product(j)), moved), scale)
                fn.store(line, self._product(j))
                self._store(self._p(j), do("fdiv", self._load(self._p(j)), scale), left)

    def _store(self, place: Value, new: Value, left: Value) -> None:
        fn = self.fn
        chosen = fn.op(f"select {left}, {new}, {self._load(place)}", self.kind)
        fn.store(chosen, place)
