"""The device that watches: right programs agree with NumPy on it, wrong ones are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphdoc.engine import expr as ex
from graphdoc.engine.device import fake
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.memory import lifetimes
from graphdoc.engine.program import Buffer, Kind, Program, Step, evaluate, whole
from tests.engine import random_programs

EXP = Map((ex.apply("exp", ex.load(0, ex.F32)),))


@pytest.mark.parametrize("seed", range(50))
def test_random_programs_run(seed: int) -> None:
    """Bit for bit, in any order that the barriers allow."""
    program = random_programs.program(seed)
    feeds = random_programs.feeds(program, seed)
    found = fake.FakeDevice(seed).load(program).run(list(feeds.values()))

    for value, expected in zip(found, evaluate(program, feeds).values(), strict=True):
        assert value.tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(30))
def test_a_missing_barrier_is_seen(seed: int) -> None:
    """All steps in one interval: some order reads what is not there yet."""
    program = random_programs.program(seed)
    loaded = fake.FakeDevice().load(program)
    feeds = list(random_programs.feeds(program, seed).values())
    if len(loaded.intervals) < 3:
        pytest.skip("nearly all steps may run side by side")
    together = [[number for interval in loaded.intervals for number in interval]]

    def run_in_orders() -> None:
        for order in range(20):
            replace(loaded, intervals=together, seed=order).run(feeds)

    with pytest.raises(RunnerError, match="where"):
        run_in_orders()


@pytest.mark.parametrize("seed", range(30))
def test_two_buffers_in_one_place_are_seen(seed: int) -> None:
    """The plan moved under a loaded program."""
    program = random_programs.program(seed)
    loaded = fake.FakeDevice().load(program)
    lives = lifetimes(program)
    offsets = loaded.memory.offsets
    pairs = [(a, b) for a in offsets for b in offsets if lives[a][0] < lives[b][0] < lives[a][1]]
    if not pairs:
        pytest.skip("nothing lives beside anything")
    a, b = pairs[seed % len(pairs)]
    memory = replace(
        loaded.memory, offsets={**offsets, a: offsets[b]}, size=loaded.memory.size + a.nbytes + b.nbytes
    )
    wrong = replace(loaded, memory=memory)
    feeds = random_programs.feeds(program, seed)
    try:
        found = wrong.run(list(feeds.values()))
    except RunnerError:
        return
    for value, expected in zip(found, evaluate(program, feeds).values(), strict=True):
        assert value.tobytes() == expected.tobytes()  # the shared bytes were not needed any more


class _Stray:
    """Writes one element past what its step declares."""

    def evaluate(self, inputs: Any, outputs: Any) -> None:
        """Write through the base of the view."""
        outputs[0][...] = inputs[0]
        np.lib.stride_tricks.as_strided(outputs[0], (9,), (4,))[8] = 1.0


@pytest.mark.parametrize("kind", [Kind.INNER, Kind.OUTPUT])
def test_a_write_outside_the_declared_views_is_seen(kind: Kind) -> None:
    """Within the buffer, and past its end."""
    for size in (8, 16):
        x = whole(Buffer("x", ex.F32, 8, Kind.INPUT), (8,))
        target = whole(Buffer("t", ex.F32, size, kind), (size,)).sliced(0, 0, 8)
        y = whole(Buffer("y", ex.F32, 8, Kind.OUTPUT), (8,))
        program = Program(
            [Step(_Stray(), (x,), (target,), ("bad",)), Step(EXP, (x,), (y,))], {"x": x}, {"y": y}
        )
        with pytest.raises(RunnerError, match="'bad' writes"):
            fake.FakeDevice().load(program).run([np.ones(8, np.float32)])


def test_a_program_that_reads_what_nobody_wrote_is_refused() -> None:
    """Before it runs, where the plan can be followed element by element."""
    x = whole(Buffer("x", ex.F32, 8, Kind.INPUT), (8,))
    a = whole(Buffer("a", ex.F32, 8), (8,))
    y = whole(Buffer("y", ex.F32, 8, Kind.OUTPUT), (8,))
    program = Program([Step(EXP, (a,), (y,), ("n",))], {"x": x}, {"y": y})

    with pytest.raises(RunnerError, match="reads 'a' where nothing was written"):
        fake.FakeDevice().load(program)
