"""Fusion and the copies it saves: what steps remain, and that the numbers stay."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.coalesce import is_copy
from graphdoc.engine.expr import F32, OPERATIONS, apply, const, load, stage
from graphdoc.engine.fuse import fuse
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, evaluate, whole
from tests.engine.random_fusions import random_program


@pytest.mark.parametrize("share", range(8))
def test_random_programs_compute_the_same_when_fused(share: int) -> None:
    """The unfused program is the oracle; products in another order of axes round differently."""
    for seed in range(share * 100, share * 100 + 100):
        program, feeds = random_program(seed)
        want = evaluate(program, feeds)
        got = evaluate(fuse(program), feeds)
        for name, value in want.items():
            scale = max(float(np.abs(value).max(initial=0)), 1.0)
            np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-5 * scale, err_msg=f"seed {seed}")


def program(inputs: dict[str, tuple[int, ...]]) -> tuple[Program, list[View]]:
    """Return an empty program over float32 inputs, and their views."""
    views = {n: whole(Buffer(n, F32, int(np.prod(s)), Kind.INPUT), s) for n, s in inputs.items()}
    return Program(inputs=dict(views)), list(views.values())


def step(p: Program, spec: Any, inputs: list[View], shape: tuple[int, ...], *, out: bool = False) -> View:
    """Append a step that fills a new buffer, named after its position."""
    kind = Kind.OUTPUT if out else Kind.INNER
    view = whole(Buffer(f"b{len(p.steps)}", F32, int(np.prod(shape)), kind), shape)
    p.steps.append(Step(spec, tuple(inputs), (view,), (f"n{len(p.steps)}",)))
    if out:
        p.outputs["y"] = view
    return view


def mapped(op: str) -> Map:
    """Return the map of one operation over one or two inputs."""
    return Map((apply(op, *(load(k, F32) for k in range(OPERATIONS[op].arity))),))


def row(p: Program, fold: str, x: View) -> View:
    """Append the reduction of the last axis; return the result with a last axis of 1."""
    spec = Rows(1, (Reduction(fold, load(0, F32)),), (Output(stage(0, F32), False),))
    return step(p, spec, [x], x.shape[:-1]).reshaped((*x.shape[:-1], 1)) or x


def test_a_layer_norm_in_nine_operators_is_one_step() -> None:
    """Mean, difference, square, mean, epsilon, root, quotient, scale, shift."""
    p, (x, gain) = program({"x": (4, 6), "gain": (6,)})
    mean = step(p, Map((apply("div", load(0, F32), const(6, F32)),)), [row(p, "sum", x)], (4, 1))
    centred = step(p, mapped("sub"), [x, mean.broadcast((4, 6))], (4, 6))
    square = step(p, mapped("mul"), [centred, centred], (4, 6))
    total = row(p, "sum", square)
    root = step(p, mapped("sqrt"), [total], (4, 1))
    scaled = step(p, mapped("div"), [centred, root.broadcast((4, 6))], (4, 6))
    step(p, mapped("mul"), [scaled, gain.broadcast((4, 6))], (4, 6), out=True)

    fused = fuse(p)

    assert [type(s.spec).__name__ for s in fused.steps] == ["Rows"]
    assert set(fused.steps[0].nodes) == {f"n{k}" for k in range(len(p.steps))}
    same(p, fused)


def test_a_softmax_in_five_operators_is_one_step() -> None:
    """Greatest, difference, exponential, sum, quotient."""
    p, (x,) = program({"x": (3, 5)})
    moved = step(p, mapped("sub"), [x, row(p, "max", x).broadcast((3, 5))], (3, 5))
    powers = step(p, mapped("exp"), [moved], (3, 5))
    step(p, mapped("div"), [powers, row(p, "sum", powers).broadcast((3, 5))], (3, 5), out=True)

    fused = fuse(p)

    assert len(fused.steps) == 1
    same(p, fused)


def test_what_follows_a_product_is_its_epilogue() -> None:
    """Bias, activation and residual of a product whose result is transposed in memory."""
    p, (x, skip) = program({"x": (4, 3), "skip": (4, 5)})
    weights = whole(Buffer("w", F32, 15, Kind.CONSTANT, np.arange(15, dtype=np.float32)), (3, 5))
    total = step(p, Contraction(0, 1, 1, load(-1, F32), F32), [x, weights], (4, 5))
    active = step(p, mapped("tanh"), [total], (4, 5))
    step(p, mapped("add"), [active, skip], (4, 5), out=True)

    fused = fuse(p)

    assert [type(s.spec).__name__ for s in fused.steps] == ["Contraction"]
    same(p, fused)


def test_parts_of_a_concatenation_are_written_in_place() -> None:
    """Two maps write the halves of the result; nothing copies."""
    p, (x,) = program({"x": (2, 3)})
    out = whole(Buffer("y", F32, 12, Kind.OUTPUT), (2, 6))
    p.outputs["y"] = out
    for k, op in enumerate(("exp", "neg")):
        part = step(p, mapped(op), [x], (2, 3))
        p.steps.append(Step(Map((load(0, F32),)), (part,), (out.sliced(1, 3 * k, 3),), ("concat",)))

    fused = fuse(p)

    assert len(fused.steps) == 2
    assert not any(is_copy(s) for s in fused.steps)
    same(p, fused)


def test_a_value_read_twice_is_stored_while_it_is_used() -> None:
    """A costly value with two readers is computed once: joined with the first, stored for the second."""
    p, (x,) = program({"x": (2, 3)})
    costly = step(p, mapped("exp"), [x], (2, 3))
    total = row(p, "sum", costly)
    step(
        p,
        mapped("mul"),
        [costly, step(p, mapped("neg"), [total], (2, 1)).broadcast((2, 3))],
        (2, 3),
        out=True,
    )

    fused = fuse(p)

    assert len(fused.steps) <= 2
    same(p, fused)


def test_a_refusal_is_noted() -> None:
    """A product's result read in two ways stays; the note names the node."""
    p, (x,) = program({"x": (4, 4)})
    weights = whole(Buffer("w", F32, 16, Kind.CONSTANT, np.ones(16, np.float32)), (4, 4))
    total = step(p, Contraction(0, 1, 1, load(-1, F32), F32), [x, weights], (4, 4))
    step(p, mapped("add"), [total, total.permuted((1, 0))], (4, 4), out=True)

    fused = fuse(p)

    assert "two ways" in fused.notes["n1"]
    same(p, fused)


def same(before: Program, after: Program) -> None:
    """Assert that two programs give the same numbers, up to rounding."""
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in before.inputs.items()}
    want, got = evaluate(before, feeds), evaluate(after, feeds)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


def test_nodes_are_named_once_however_often_a_value_is_computed_again() -> None:
    """x·x + x, forty times over: each round reads the one before twice, and doubled the list of its nodes."""
    p, (x,) = program({"x": (4, 6)})
    for k in range(40):
        square = step(p, mapped("mul"), [x, x], (4, 6))
        total = step(p, mapped("add"), [square, x], (4, 6))
        x = step(p, mapped("tanh"), [total], (4, 6), out=k == 39)

    fused = fuse(p)

    assert all(len(set(s.nodes)) == len(s.nodes) for s in fused.steps)
    assert {name for s in fused.steps for name in s.nodes} == {f"n{k}" for k in range(120)}
