"""Tree ensembles as machine code: arrays walked without branches, 16 trees at once.

A thread takes a share of the rows. It goes group by group of trees, all of its rows through one group before
the next, so that the group's records stay near.
"""

from functools import partial, reduce

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
from graphdoc.engine.kernels.trees import CHILDREN, FEATURES, TOGETHER, TRACKS, Trees
from graphdoc.engine.program import Step

DEEP, LOOKED = 8, 4
"""Steps down from which trees are so unlike that most walks end long before the deepest could, and how many
are taken before it is looked whether all have: past its leaf a walk stays within one pair of records."""

WIDEST = 16
"""Columns added up at once."""


def tactics_trees(step: Step, target: Target) -> list[str]:
    """Return the one way there is."""
    return ["walk"]


def emit_trees(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step of :class:`Trees`; None for other dtypes and tables that lie apart."""
    spec = step.spec
    assert isinstance(spec, Trees)  # noqa: S101  # the table of emitters dispatches on the type
    x, *tables = step.inputs
    if x.dtype != F32 or not all(t.contiguous for t in tables):
        return None
    return _Emitter(step, spec).kernel()


class _Emitter:
    """The kernel of one step."""

    def __init__(self, step: Step, spec: Trees) -> None:
        self.step, self.spec = step, spec
        self.fn = fn = Function()
        self.x, self.records, self.roots, self.steps = (fn.argument(k) for k in range(4))
        self.single = len(step.inputs) == 4
        steps = step.inputs[3]
        data = steps.buffer.data
        self.deep = data is not None and int(steps.array(data).max(initial=0)) > DEEP
        self.table = Value("null", "ptr") if self.single else fn.argument(4)
        self.out = fn.argument(len(step.inputs))
        self.columns = step.outputs[0].shape[1]
        self.size = 1 if self.single else step.inputs[4].shape[1]
        views = (step.inputs[0], step.outputs[0])
        self.strides = [[s if s in (0, 1) else fn.dim(s) for s in view.strides] for view in views]

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        fn = self.fn
        rows, groups = self.step.outputs[0].shape[0], self.step.inputs[3].shape[0]
        count, sets, columns = fn.dim(rows), fn.dim(groups), fn.dim(self.columns)
        low, high = fn.share(count)
        with fn.loop(low, high) as (row, _), fn.loop(0, columns) as (c, _):
            fn.store(floating(0, "float"), self._output(row, c))
        with fn.loop(0, sets) as (group, _), fn.loop(low, high) as (row, _):
            self._row(group, row)
        # A walk takes some 24 cycles, of which half count: another core has to fetch the records first.
        cycles = rows * groups * TOGETHER * 12
        return fn.kernel(0, threads_for(0, cycles, rows))

    def _output(self, row: Number, column: Number) -> Value:
        fn, (down, along) = self.fn, self.strides[1]
        return fn.at(self.out, fn.add(fn.mul(row, down), fn.mul(column, along)), "float")

    def _row(self, group: Number, row: Number) -> None:
        """Emit one row's walk through one group of trees."""
        fn = self.fn
        line = fn.at(self.x, fn.mul(row, self.strides[0][0]), "float")
        first = fn.at(self.roots, fn.mul(group, TOGETHER), "i64")
        roots = [fn.load("i64", fn.at(first, k, "i64")) for k in range(TOGETHER)]
        trees = [fn.at(self.records, root, "i64") for root in roots]
        depth = fn.load("i64", fn.at(self.steps, group, "i64"))
        at = self._walked(line, trees, depth)
        leaves = [fn.load("i64", fn.at(tree, place, "i64")) for tree, place in zip(trees, at, strict=True)]
        (self._one if self.single else self._many)(row, leaves)

    def _walked(self, line: Value, trees: list[Value], depth: Value) -> list[Value]:
        """Return where each tree's walk ends."""
        fn = self.fn
        start = [Value("0", "i64")] * TOGETHER

        def down(at: list[Value]) -> list[Value]:
            return [self._down(line, tree, place) for tree, place in zip(trees, at, strict=True)]

        if not self.deep:
            with fn.loop(0, depth, 1, start) as (_, at):
                at[:] = down(at)
            return at
        with fn.again([*start, depth]) as carried:
            count = fn.least(carried[-1], LOOKED)  # never more: the deepest leaves lead back to the root
            with fn.loop(0, count, 1, carried[:-1]) as (_, at):
                at[:] = down(at)
            moves = [
                fn.binary("xor", place, self._pair(tree, place))
                for tree, place in zip(trees, at, strict=True)
            ]
            moved = fn.op(f"and {reduce(partial(fn.binary, 'or'), moves)}, -2", "i64")
            stays = fn.op(f"icmp eq {moved}, 0", "i1")
            left = fn.op(f"select {stays}, i64 0, {number(fn.sub(carried[-1], count))}", "i64")
            carried[:] = [*at, left]
        return carried[:-1]

    def _down(self, line: Value, tree: Value, place: Value) -> Value:
        """Return where the walk goes from a record."""
        fn = self.fn
        word = fn.load("i64", fn.at(tree, place, "i64"))
        split = self._low(word)
        feature = fn.op(f"and i64 {self._shifted(word, 32).name}, {FEATURES - 1}", "i64")
        value = fn.load("float", fn.at(line, fn.mul(feature, self.strides[0][1]), "float"))
        order = "o" if self.spec.missing == "all" else "u"
        test = order + ("lt" if self.spec.greater else "gt")
        wrong = fn.op(f"fcmp {test} {value}, {split.name}", "i1")
        if self.spec.missing == "some":
            tracks = fn.op(f"trunc {self._shifted(word, TRACKS)} to i1", "i1")
            lost = fn.op(f"and {tracks}, {fn.op(f'fcmp uno {value}, {value.name}', 'i1').name}", "i1")
            wrong = fn.op(f"and {wrong}, {fn.op(f'xor {lost}, true', 'i1').name}", "i1")
        pair = self._children(word)
        step = fn.op(f"zext {wrong} to i64", "i64")
        return fn.op(f"or {pair}, {step.name}", "i64")

    def _pair(self, tree: Value, place: Value) -> Value:
        """Return the pair of records that one record leads to."""
        return self._children(self.fn.load("i64", self.fn.at(tree, place, "i64")))

    def _children(self, word: Value) -> Value:
        return self.fn.op(f"and i64 {self._shifted(word, CHILDREN - 1).name}, -2", "i64")

    def _shifted(self, word: Value, bits: int) -> Value:
        return self.fn.op(f"lshr {word}, {bits}", "i64")

    def _low(self, word: Value) -> Value:
        low = self.fn.op(f"trunc {word} to i32", "i32")
        return self.fn.op(f"bitcast {low} to float", "float")

    def _one(self, row: Number, leaves: list[Value]) -> None:
        """Add the leaves' values to the row's only column, tree after tree."""
        fn, place = self.fn, self._output(row, 0)
        total = fn.load("float", place)
        for leaf in leaves:
            total = fn.binary("fadd", total, self._low(leaf))
        fn.store(total, place)

    def _many(self, row: Number, leaves: list[Value]) -> None:
        """Add rows of the table of leaves, up to 16 columns at a time."""
        fn = self.fn
        lines = [
            fn.at(self.table, fn.mul(fn.op(f"and {leaf}, {0xFFFFFFFF}", "i64"), self.size), "float")
            for leaf in leaves
        ]
        for begin in range(0, self.size, WIDEST):
            kind = vector("float", min(WIDEST, self.size - begin))
            total = Value("zeroinitializer", kind)
            count = min(self.columns, begin + WIDEST) - begin
            places = [self._output(row, begin + c) for c in range(count)]
            for c, place in enumerate(places):
                total = fn.op(f"insertelement {total}, {fn.load('float', place)}, i32 {c}", kind)
            for line in lines:
                total = fn.binary("fadd", total, fn.load(kind, fn.at(line, begin, "float")))
            for c, place in enumerate(places):
                fn.store(fn.op(f"extractelement {total}, i32 {c}", "float"), place)
