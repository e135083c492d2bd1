"""Contractions made ready for a device mean what they meant."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.device.llvm.builder import Target
from graphdoc.engine.device.llvm.pack import prepare_contractions
from graphdoc.engine.expr import F32, Dtype, load
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, evaluate, whole

TARGET = Target("", "", 32, 16)


def program(a: tuple[int, ...], b: tuple[int, ...], batch: int, rows: int, terms: int, **how: Any) -> Program:
    """Return a contraction of an input and a constant (``turned``: stored with its axes reversed)."""
    dtype: Dtype = how.get("dtype", F32)
    rng = np.random.default_rng(0)
    n = b[-1]
    data = rng.integers(-3, 4, b).astype(dtype)
    kept = data.T if how.get("turned") else data
    constant = Buffer("w", dtype, data.size, Kind.CONSTANT, np.ascontiguousarray(kept).reshape(-1))
    view = whole(constant, kept.shape)
    view = view.permuted(range(len(b))[::-1]) if how.get("turned") else view
    if how.get("spread"):
        view = View(constant, (*a[:batch], *view.shape), ((0,) * batch) + view.strides)
    source = whole(Buffer("x", dtype, int(np.prod(a)), Kind.INPUT), a)
    shape = (*a[: batch + rows], n)
    out = whole(Buffer("y", dtype, int(np.prod(shape)), Kind.OUTPUT), shape)
    spec = Contraction(batch, rows, terms, load(-1, dtype), dtype)
    return Program([Step(spec, (source, view), (out,))], {"x": source}, {"y": out})


@pytest.mark.parametrize(
    ("made", "packed"),
    [
        (program((5, 7), (7, 20), 0, 1, 1), True),
        (program((5, 4, 16), (4, 16, 2), 0, 1, 2), True),
        (program((5, 7), (7, 20), 0, 1, 1, turned=True), True),
        (program((2, 3, 5, 7), (7, 9), 2, 1, 1, spread=True), True),
        (program((2, 5, 7), (2, 7, 17), 1, 1, 1), True),
        (program((3, 4, 2, 2, 5), (2, 2, 5, 33), 0, 2, 3, turned=True), True),
        (program((5, 7), (7, 20), 0, 1, 1, dtype=np.dtype(np.int32)), False),
    ],
)
def test_results_stay_the_same(made: Program, packed: bool) -> None:
    """The prepared program computes the same; a constant b of floats lies in panels."""
    feeds = {"x": np.random.default_rng(1).integers(-3, 4, made.inputs["x"].shape)}

    ready = prepare_contractions(made, TARGET)

    np.testing.assert_array_equal(evaluate(ready, feeds)["y"], evaluate(made, feeds)["y"])
    assert bool(ready.steps[0].spec.packed) == packed  # type: ignore[attr-defined]
    assert made.steps[0].spec.packed == 0  # type: ignore[attr-defined]


def test_repeated_weights_leave_no_batch() -> None:
    """One product of many rows takes the place of many products."""
    (step,) = prepare_contractions(program((2, 3, 5, 7), (7, 9), 2, 1, 1, spread=True), TARGET).steps

    assert isinstance(step.spec, Contraction)
    assert (step.spec.batch, step.spec.rows) == (0, 3)


def test_weights_used_twice_are_packed_once() -> None:
    """Two steps that read one constant alike share its panels."""
    made = program((5, 7), (7, 20), 0, 1, 1)
    made.steps.append(made.steps[0])

    first, second = prepare_contractions(made, TARGET).steps

    assert first.inputs[1].buffer is second.inputs[1].buffer


def test_what_is_computed_is_not_packed() -> None:
    """Only constants can be laid out beforehand."""
    made = program((5, 7), (7, 20), 0, 1, 1)
    inner = View(Buffer("w", F32, 140), (7, 20), (20, 1))
    made.steps[0] = Step(made.steps[0].spec, (made.steps[0].inputs[0], inner), made.steps[0].outputs)

    assert prepare_contractions(made, TARGET).steps[0].spec.packed == 0  # type: ignore[attr-defined]


def test_columns_apart_are_copied_there() -> None:
    """A product of which each column is a line of the output is computed beside, then transposed."""
    made = program((80, 7), (7, 64), 0, 1, 1)
    out = made.outputs["y"]
    turned = View(out.buffer, (80, 64), (1, 80))
    made.steps[0] = Step(made.steps[0].spec, made.steps[0].inputs, (turned,), ("gemm",))
    feeds = {"x": np.random.default_rng(1).integers(-3, 4, (80, 7))}

    ready = prepare_contractions(made, TARGET)

    assert [type(step.spec).__name__ for step in ready.steps] == ["Contraction", "Map"]
    assert ready.steps[0].outputs[0].strides[-1] == 1
    assert [step.nodes for step in ready.steps] == [("gemm",), ("gemm",)]
    np.testing.assert_array_equal(evaluate(ready, feeds)["y"], evaluate(made, feeds)["y"])
