"""Places in memory, and the checker that follows every byte."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from graphdoc.engine import expr as ex
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.memory import LINE, MemoryPlan, lifetimes, plan
from graphdoc.engine.memory_check import check_plan, peak
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole
from graphdoc.engine.schedule import apart, barriers, units
from tests.engine import random_programs

EXP = Map((ex.apply("exp", ex.load(0, ex.F32)),))


def line(name: str, size: int, kind: Kind = Kind.INNER, dtype: "np.dtype[np.generic]" = ex.F32) -> View:
    """Return the view of a new buffer of rank 1."""
    return whole(Buffer(name, dtype, size, kind), (size,))


def straight(*views: View) -> Program:
    """Return the program that maps each view to the next."""
    steps = [Step(EXP, (a,), (b,)) for a, b in pairwise(views)]
    return Program(steps, {"x": views[0]}, {"y": views[-1]})


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_hold(seed: int) -> None:
    """No fault, no more than side by side, no less than what lives at once."""
    program = random_programs.program(seed, steps=30)
    found = plan(program)

    assert check_plan(program, found) == []
    assert found.size <= found.naive
    assert all(offset % LINE == 0 for offset in found.offsets.values())


def test_a_chain_is_worked_on_in_place() -> None:
    """Ten steps, one place."""
    views = [line("x", 100, Kind.INPUT), *(line(f"v{i}", 100) for i in range(9)), line("y", 100, Kind.OUTPUT)]
    found = plan(straight(*views))

    assert found.size == 448
    assert found.naive == 9 * 448


@pytest.mark.parametrize("why", ["read later", "other order", "other view too", "wider elements", "no map"])
def test_in_place_is_refused(why: str) -> None:
    """Each condition of working in place, broken alone."""
    x, a, b, y = line("x", 16, Kind.INPUT), line("a", 16), line("b", 16), line("y", 16, Kind.OUTPUT)
    program = straight(x, a, b, y)
    add = Map((ex.apply("add", ex.load(0, ex.F32), ex.load(1, ex.F32)),))
    if why == "read later":
        program.steps[2] = Step(add, (b, a), (y,))
    elif why == "other order":
        program.steps[1] = Step(EXP, (a.sliced(0, 15, 16, -1),), (b,))
    elif why == "other view too":
        program.steps[1] = Step(add, (a, a.sliced(0, 15, 16, -1)), (b,))
    elif why == "wider elements":
        wide = line("b", 16, dtype=ex.F64)
        program.steps[1] = Step(Map((ex.cast(ex.load(0, ex.F32), ex.F64),)), (a,), (wide,))
        program.steps[2] = Step(Map((ex.cast(ex.load(0, ex.F64), ex.F32),)), (wide,), (y,))
    else:
        program.steps[1] = Step(_Other(), (a,), (b,))
    found = plan(program)

    assert len(set(found.offsets.values())) == 2
    assert check_plan(program, found) == []


class _Other:
    def evaluate(self, inputs: object, outputs: object) -> None:
        """Compute nothing."""


def test_the_largest_are_packed_tightly() -> None:
    """Two small ones share the place of a large one that is dead by then."""
    x, y = line("x", 160, Kind.INPUT), line("y", 160, Kind.OUTPUT)
    big, left, right = line("big", 160), line("left", 80), line("right", 80)
    add = Map((ex.apply("add", ex.load(0, ex.F32), ex.load(1, ex.F32)),))
    halves = x.sliced(0, 0, 80), x.sliced(0, 80, 80)
    steps = [Step(EXP, (x,), (big,)), Step(EXP, (big,), (y,))]
    steps += [Step(EXP, (h,), (o,)) for h, o in zip(halves, (left, right), strict=True)]
    steps += [Step(add, (left, right), (y.sliced(0, 0, 80),))]
    program = Program(steps, {"x": x}, {"y": y})
    found = plan(program)

    assert found.size == max(peak(program, found)) == 640
    assert check_plan(program, found) == []


@pytest.mark.parametrize("seed", range(40))
def test_the_checker_sees_a_wrong_plan(seed: int) -> None:
    """One buffer moved onto another that lives at the same time."""
    program = random_programs.program(seed)
    found = plan(program)
    lives = lifetimes(program)
    pairs = [
        (a, b)
        for a in found.offsets
        for b in found.offsets
        if a is not b and lives[a][0] < lives[b][1] and lives[b][0] < lives[a][1]
    ]
    if not pairs:
        pytest.skip("nothing lives beside anything")
    a, b = pairs[seed % len(pairs)]
    wrong = replace(
        found, offsets={**found.offsets, a: found.offsets[b]}, size=found.size + a.nbytes + b.nbytes
    )

    assert any("share bytes" in fault or "over" in fault for fault in check_plan(program, wrong))


_Change = Callable[[MemoryPlan, Buffer], MemoryPlan]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p, b: replace(p, offsets={k: v for k, v in p.offsets.items() if k is not b}), "no place"),
        (lambda p, b: replace(p, offsets={**p.offsets, b: 4}), "lies at 4"),
        (lambda p, b: replace(p, offsets={**p.offsets, b: -64}), "lies at -64"),
        (lambda p, b: replace(p, size=63), "of 63"),
    ],
)
def test_the_checker_sees_places_outside(change: _Change, says: str) -> None:
    """Buffers without a place, off the line, past the end."""
    a = line("a", 16)
    program = straight(line("x", 16, Kind.INPUT), a, line("y", 16, Kind.OUTPUT))

    assert any(says in fault for fault in check_plan(program, change(plan(program), a.buffer)))


def test_the_checker_sees_what_a_program_must_not_do() -> None:
    """Reads before writes, outputs left out, inputs written, views past their buffer, aliased reads."""
    x, a, y = line("x", 16, Kind.INPUT), line("a", 16), line("y", 16, Kind.OUTPUT)

    def faults(*steps: Step) -> str:
        program = Program(list(steps), {"x": x}, {"y": y})
        return "; ".join(check_plan(program, plan(program)))

    assert "reads 'a' where nothing was written" in faults(Step(EXP, (a,), (y,)))
    half = Step(EXP, (x.sliced(0, 0, 8),), (a.sliced(0, 0, 8),))
    assert "reads 'a' where nothing" in faults(half, Step(EXP, (a,), (y,)))
    assert faults(half, Step(EXP, (a.sliced(0, 0, 8).broadcast((2, 8)).sliced(0, 0, 1),), (y,))) == ""
    assert "output 'y': whoever reads 'y' where nothing" in faults(half)
    assert "writes the input 'x'" in faults(Step(EXP, (x,), (x,)), Step(EXP, (x,), (y,)))
    assert "spans 8 to 24 of 16" in faults(Step(EXP, (View(x.buffer, (16,), (1,), 8),), (y,)))
    shifted = Step(EXP, (a.sliced(0, 0, 8),), (a.sliced(0, 4, 8),))
    assert "over 'a', which it reads" in faults(Step(EXP, (x,), (a,)), shifted, Step(EXP, (a,), (y,)))


def test_planning_thousands_of_buffers_is_quick() -> None:
    """A deep model's plan takes a fraction of a second."""
    views = [line("x", 64, Kind.INPUT)]
    steps = []
    sizes = np.random.default_rng(0).integers(1, 4001, 2000)
    for number, size in enumerate(sizes.tolist()):
        out = line(f"v{number}", size)
        steps.append(Step(EXP, (views[-1].sliced(0, 0, 1).broadcast(out.shape),), (out,)))
        views.append(out)
    program = Program(steps, {"x": views[0]}, {})
    found = plan(program)

    assert found.size < 4 * 16_064
    assert not any("share" in fault for fault in check_plan(program, found))


@pytest.mark.parametrize("seed", range(40))
def test_every_hazard_has_its_barrier(seed: int) -> None:
    """Between two barriers no step touches an element that another writes."""
    program = random_programs.program(seed)
    found = plan(program)
    since: list[tuple[set[int], set[int]]] = []
    for step, wait in zip(program.steps, barriers(program.steps, found, [2] * 99), strict=False):
        reads, writes = _bytes(step.inputs, found), _bytes(step.outputs, found)
        since = [] if wait else since
        for others_read, others_write in since:
            assert not writes & (others_read | others_write)
            assert not reads & others_write
        since.append((reads, writes))


def _bytes(views: tuple[View, ...], found: MemoryPlan) -> set[int]:
    """Return the arena's bytes that views touch; outputs of the program stand far behind them."""
    taken: set[int] = set()
    for view in views:
        outside = view.buffer.kind is not Kind.INNER
        if view.buffer.kind in (Kind.INPUT, Kind.CONSTANT):
            continue
        base = id(view.buffer) << 20 if outside else found.offsets[view.buffer]
        taken.update(base + 4 * int(e) for e in np.unique(view.array(np.arange(view.buffer.size))))
    return taken


def test_steps_of_one_thread_need_no_barrier_among_themselves() -> None:
    """They follow each other anyway; a shared one waits, and so do they after it."""
    views = [line("x", 16, Kind.INPUT), *(line(f"v{i}", 16) for i in range(4)), line("y", 16, Kind.OUTPUT)]
    program = straight(*views)
    memory = plan(program)

    assert list(barriers(program.steps, memory, [1] * 5)) == [False] * 5
    assert list(barriers(program.steps, memory, [1, 1, 2, 1, 1])) == [False, False, True, True, False]
    assert list(barriers(program.steps, memory, [2] * 5)) == [False, True, True, True, True]


@pytest.mark.parametrize("seed", range(200))
def test_views_called_apart_share_nothing(seed: int) -> None:
    """Random views of one buffer, joined channels and borders among them."""
    rng = np.random.default_rng(seed)
    image = whole(Buffer("b", ex.F32, 6 * 7 * 8), (6, 7, 8))
    views = []
    for _ in range(2):
        view = image
        for axis in range(3):
            count = int(rng.integers(1, view.shape[axis] + 1))
            start = int(rng.integers(0, view.shape[axis] - count + 1))
            step = 2 if count > 2 and rng.random() < 0.3 else 1
            view = view.sliced(axis, start, -(-count // step), step)
        views.append(view.permuted(rng.permutation(3).tolist()))
    a, b = views
    shared = np.intersect1d(*(np.unique(v.array(np.arange(336))) for v in views)).size

    assert not (apart(a, b) and shared)
    assert apart(a, b) == apart(b, a) or not shared


def test_joined_channels_and_borders_are_apart() -> None:
    """What needs no barrier although the stretches overlap."""
    image = whole(Buffer("b", ex.F32, 6 * 7 * 8), (6, 7, 8))
    other = whole(Buffer("c", ex.F32, 6 * 7 * 8), (6, 7, 8))

    assert apart(image.sliced(2, 0, 3), image.sliced(2, 3, 5))
    assert apart(image.sliced(1, 0, 1), image.sliced(1, 1, 5))
    assert apart(image.sliced(1, 6, 1).permuted((2, 0, 1)), image.sliced(1, 1, 5))
    assert not apart(image.sliced(2, 0, 4), image.sliced(2, 3, 5))
    assert not apart(image.sliced(2, 0, 3), other.sliced(2, 3, 5))
    assert not apart(image, image)


@pytest.mark.parametrize("seed", range(60))
def test_units_wait_for_all_that_they_touch(seed: int) -> None:
    """Every step is in one unit, in order; side by side they share no element that one writes."""
    program = random_programs.program(seed)
    found = plan(program)
    shares = np.random.default_rng(seed).choice([1, 1, 2, 3], len(program.steps)).tolist()
    made = units(program.steps, found, shares)

    assert [s for u in made for s in range(u.start, u.start + u.length)] == list(range(len(shares)))
    assert [u.first for u in made] == np.cumsum([0, *(u.shares for u in made)]).tolist()[:-1]
    assert all(u.shares == shares[u.start] and (u.length == 1 or u.shares == 1) for u in made)
    touched = []
    for unit in made:
        steps = program.steps[unit.start : unit.start + unit.length]
        reads = set().union(*(_bytes(s.inputs, found) for s in steps))
        writes = set().union(*(_bytes(s.outputs, found) for s in steps))
        for first, others_read, others_write in touched:
            if first >= unit.need:  # may still run
                assert not writes & (others_read | others_write)
                assert not reads & others_write
        touched.append((unit.first, reads, writes))
        assert unit.need <= unit.first
