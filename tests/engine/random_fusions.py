"""Random programs: maps, reductions, products, copies over views of every kind, from a seed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphdoc.engine.expr import F32, Expr, apply, const, load, stage
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

X, Y = load(0, F32), load(1, F32)


@dataclass
class Builder:
    """A program under construction over float32; every value is a view."""

    rng: np.random.Generator
    program: Program = field(default_factory=Program)
    values: list[View] = field(default_factory=list)

    def buffer(self, shape: tuple[int, ...], kind: Kind = Kind.INNER, data: Any = None) -> View:
        """Return a new buffer's view with its axes in a random order of memory."""
        size = int(np.prod(shape))
        name = f"b{sum(1 for _ in self.program.steps)}.{len(self.values)}"
        buffer = Buffer(name, F32, size, kind, data)
        if kind is not Kind.INNER or self.rng.random() < 0.6:
            return whole(buffer, shape)
        order = list(self.rng.permutation(len(shape)))
        inner = whole(buffer, [shape[a] for a in order])
        return inner.permuted([order.index(a) for a in range(len(shape))])

    def step(self, spec: Any, inputs: list[View], shape: tuple[int, ...]) -> View:
        """Append a step that fills a new buffer."""
        output = self.buffer(shape)
        self.program.steps.append(Step(spec, tuple(inputs), (output,), (f"n{len(self.program.steps)}",)))
        self.values.append(output)
        return output

    def pick(self) -> View:
        """Return a value, a late one more often."""
        return self.values[-1 - int(self.rng.integers(0, min(len(self.values), 4)))]


def unary(b: Builder) -> None:
    """An operation on one value."""
    x = b.pick()
    expr = [apply("abs", X), apply("exp", apply("neg", apply("abs", X))), apply("mul", X, const(0.5, F32))]
    b.step(Map((expr[b.rng.integers(3)],)), [x], x.shape)


def binary(b: Builder) -> None:
    """An operation on two values, one of them broadcast where its shape allows."""
    x = b.pick()
    fitting = [v for v in b.values if _broadcasts(v.shape, x.shape)]
    y = fitting[b.rng.integers(len(fitting))].broadcast(x.shape)
    op = ["add", "sub", "mul", "max"][b.rng.integers(4)]
    b.step(Map((apply(op, X, Y),)), [x, y], x.shape)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    lead = len(to) - len(shape)
    return lead >= 0 and all(a in (1, b) for a, b in zip(shape, to[lead:], strict=True))


def seen(b: Builder) -> None:
    """Another view of a value: transposed, sliced, reversed; or reshaped with a copy."""
    x = b.pick()
    if not x.shape:
        return
    axis = int(b.rng.integers(len(x.shape)))
    match b.rng.integers(4):
        case 0:
            b.values.append(x.permuted(list(b.rng.permutation(len(x.shape)))))
        case 1:
            start = int(b.rng.integers(x.shape[axis]))
            b.values.append(x.sliced(axis, start, x.shape[axis] - start))
        case 2:
            b.values.append(x.sliced(axis, x.shape[axis] - 1, x.shape[axis], -1))
        case _:
            dense = b.step(Map((X,)), [x], x.shape)
            shape = (*x.shape[:axis], 1, *x.shape[axis:])
            flat = dense.reshaped((x.size,)) or dense
            b.values.append((flat if b.rng.random() < 0.5 else dense).reshaped(shape) or dense)


def reduce(b: Builder) -> None:
    """A reduction over some axes, kept with size 1."""
    x = b.pick()
    if not x.shape or x.size > 4000:
        return
    axes = sorted(b.rng.choice(len(x.shape), int(b.rng.integers(1, len(x.shape) + 1)), replace=False))
    kept = [a for a in range(len(x.shape)) if a not in axes]
    fold = ["sum", "max", "min"][b.rng.integers(3)]
    spec = Rows(len(axes), (Reduction(fold, X),), (Output(stage(0, F32), False),))
    shape = tuple(x.shape[a] for a in kept)
    out = b.step(spec, [x.permuted([*kept, *axes])], shape)
    again = out.reshaped([1 if a in axes else n for a, n in enumerate(x.shape)])
    b.values[-1] = out if again is None else again


def product(b: Builder) -> None:
    """A product with a constant matrix, a bias in the epilogue or not."""
    x = b.pick()
    if len(x.shape) < 2:
        return
    n = int(b.rng.integers(1, 7))
    weights = b.buffer(
        (x.shape[-1], n), Kind.CONSTANT, b.rng.standard_normal(x.shape[-1] * n).astype(np.float32)
    )
    total = load(-1, F32)
    epilogue: Expr = apply("mul", total, const(0.25, F32)) if b.rng.random() < 0.5 else total
    b.step(Contraction(0, len(x.shape) - 1, 1, epilogue, F32), [x, weights], (*x.shape[:-1], n))


def concatenated(b: Builder) -> None:
    """A value beside itself or another of its shape, or inside a border of zeros."""
    x = b.pick()
    if not x.shape or x.size > 2000:
        return
    axis = int(b.rng.integers(len(x.shape)))
    n = x.shape[axis]
    same = [v for v in b.values if v.shape == x.shape]
    y = same[b.rng.integers(len(same))]
    shape = tuple(2 * s if a == axis else s for a, s in enumerate(x.shape))
    out = b.buffer(shape)
    fill = b.rng.random() < 0.3
    first = Map((const(0, F32),)) if fill else Map((X,))
    b.program.steps.append(Step(first, () if fill else (y,), (out.sliced(axis, 0, n),), ("c",)))
    b.program.steps.append(Step(Map((X,)), (x,), (out.sliced(axis, n, n),), ("c",)))
    b.values.append(out)


MOVES = (unary, unary, binary, binary, binary, seen, reduce, reduce, product, concatenated)


def random_program(seed: int) -> tuple[Program, dict[str, Any]]:
    """Return a program and its feeds."""
    b = Builder(np.random.default_rng(seed))
    feeds = {}
    for k in range(int(b.rng.integers(1, 3))):
        shape = tuple(int(n) for n in b.rng.integers(1, 6, size=int(b.rng.integers(1, 5))))
        view = b.buffer(shape, Kind.INPUT)
        b.program.inputs[f"x{k}"] = view
        b.values.append(view)
        feeds[f"x{k}"] = b.rng.standard_normal(shape).astype(np.float32)
    for _ in range(int(b.rng.integers(1, 14))):
        MOVES[b.rng.integers(len(MOVES))](b)
    for k, view in enumerate([b.values[-1], b.pick()]):
        output = b.buffer(view.shape, Kind.OUTPUT)
        b.program.steps.append(Step(Map((X,)), (view,), (output,), ("out",)))
        b.program.outputs[f"y{k}"] = output
    return b.program, feeds
