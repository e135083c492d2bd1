"""Random programs of maps over views of every kind, for tests of what places and schedules them."""

import random
from typing import Any

import numpy as np

from graphdoc.engine import expr as ex
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

COPY = Map((ex.load(0, ex.F32),))
ADD = Map((ex.apply("add", ex.load(0, ex.F32), ex.load(1, ex.F32)),))


def program(seed: int, steps: int = 20) -> Program:
    """Return a program of one shape: sums, transposes, reversals, concatenations, padded interiors."""
    make = _Maker(seed)
    for _ in range(steps):
        make.rng.choice((make.sum, make.sum, make.copy, make.joined, make.padded, make.constant))()
    for number in range(make.rng.randint(1, 3)):
        name = f"y{number}"
        out = whole(Buffer(name, ex.F32, make.size, Kind.OUTPUT), make.shape)
        make.program.outputs[name] = out
        make.put(ADD, make.pick(), make.pick(), out)
    return make.program


def feeds(made: Program, seed: int) -> dict[str, Any]:
    """Return an array per input."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(view.shape, np.float32) for name, view in made.inputs.items()}


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 (no secret)
        self.shape = (self.rng.randint(1, 9), self.rng.randint(1, 9))
        self.size = self.shape[0] * self.shape[1]
        self.program = Program()
        self.values: list[View] = []
        for number in range(self.rng.randint(1, 2)):
            view = whole(Buffer(f"x{number}", ex.F32, self.size, Kind.INPUT), self.shape)
            self.program.inputs[f"x{number}"] = view
            self.values.append(view)

    def pick(self) -> View:
        """Return a value of the shape, mostly a recent one, in some view of itself."""
        view = self.rng.choice(self.values[-4:] if self.rng.random() < 0.7 else self.values)
        kind = self.rng.randrange(6)
        if kind == 0:
            return view.sliced(0, view.shape[0] - 1, view.shape[0], -1)
        if kind == 1:
            return view.sliced(1, 0, 1).broadcast(self.shape)
        return view

    def put(self, spec: Map, *views: View) -> None:
        """Append a step."""
        self.program.steps.append(Step(spec, views[:-1], views[-1:], (f"n{len(self.program.steps)}",)))

    def fresh(self, size: int | None = None) -> Buffer:
        """Return a new inner buffer."""
        return Buffer(f"b{len(self.program.steps)}", ex.F32, size or self.size)

    def sum(self) -> None:
        """Append a sum of two values, in row-major order or transposed memory."""
        out = whole(self.fresh(), self.shape)
        if self.rng.random() < 0.3:
            out = whole(out.buffer, self.shape[::-1]).permuted((1, 0))
        self.put(ADD, self.pick(), self.pick(), out)
        self.values.append(out)

    def copy(self) -> None:
        """Append a copy."""
        out = whole(self.fresh(), self.shape)
        self.put(COPY, self.pick(), out)
        self.values.append(out)

    def joined(self) -> None:
        """Append two copies into one buffer, along either axis, and take one value of each half's size."""
        axis = self.rng.randrange(2)
        wide = [n * (1 + (k == axis)) for k, n in enumerate(self.shape)]
        both = whole(self.fresh(2 * self.size), wide)
        for half in range(2):
            self.put(COPY, self.pick(), both.sliced(axis, half * self.shape[axis], self.shape[axis]))
        start = self.rng.randint(0, self.shape[axis])
        self.values.append(both.sliced(axis, start, self.shape[axis]))

    def padded(self) -> None:
        """Append a border of zeros and a copy into the interior; the value looks into both."""
        rows, columns = self.shape
        wide = whole(self.fresh((rows + 2) * columns), (rows + 2, columns))
        zero = Map((ex.const(0, ex.F32),))
        for row in (0, rows + 1):
            self.put(zero, wide.sliced(0, row, 1))
        self.put(COPY, self.pick(), wide.sliced(0, 1, rows))
        self.values.append(wide.sliced(0, self.rng.randint(0, 2), rows))

    def constant(self) -> None:
        """Take a constant for a value."""
        data = np.random.default_rng(self.rng.randrange(99)).standard_normal(self.size, np.float32)
        self.values.append(whole(Buffer("c", ex.F32, self.size, Kind.CONSTANT, data), self.shape))
