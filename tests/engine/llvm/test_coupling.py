"""Coupled probabilities as machine code, against the specification's NumPy and what they minimise."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.device.llvm.coupling import emit_coupling
from graphdoc.engine.expr import F32
from graphdoc.engine.kernels.coupling import Coupling
from graphdoc.engine.program import Buffer, Step, View
from graphdoc.engine.sound import Unsound, check
from tests.engine.llvm.rows_run import both, targets


def side_by_side(name: str, rows: int, columns: int) -> View:
    """Return a view (rows, columns) whose rows lie side by side."""
    return View(Buffer(name, F32, rows * columns), (rows, columns), (1, rows))


def step_of(rows: int, classes: int) -> Step:
    """Return a step of so many rows."""
    shares = side_by_side("shares", rows, classes * (classes - 1) // 2)
    return Step(Coupling(classes), (shares,), (side_by_side("out", rows, classes),))


def shares_of(step: Step, seed: int) -> dict[Buffer, Any]:
    """Return random shares, some at their bounds."""
    rng = np.random.default_rng(seed)
    found = rng.random(step.inputs[0].buffer.size).astype(np.float32)
    found[rng.random(found.size) < 0.1] = 1e-7
    found = np.clip(found, np.float32(1e-7), np.float32(1 - 1e-7))
    return {step.inputs[0].buffer: found, step.outputs[0].buffer: np.zeros(step.outputs[0].size, np.float32)}


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (3, 3), (8, 4), (17, 10), (33, 5)])
@pytest.mark.parametrize("target", targets(), ids=["host", "512", "128"])
def test_against_numpy(rows: int, classes: int, target: Any) -> None:
    """Rows end when they have converged, each at a sweep of its own; shares of threads change nothing."""
    step = step_of(rows, classes)
    check(step)
    kernel = emit_coupling(step, target)
    assert kernel is not None
    for threads in (1, 2):
        ((ours, theirs),) = both(kernel, step, shares_of(step, rows), threads, target)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.sum(axis=1), 1, atol=1e-5)


def test_consistent_shares_give_their_classes_back() -> None:
    """Where shares of pairs come from probabilities of classes, those are the answer."""
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32)
    first, second = np.triu_indices(3, 1)
    shares = p[:, first] / (p[:, first] + p[:, second])
    out = np.zeros_like(p)
    Coupling(3).evaluate([shares], [out])
    np.testing.assert_allclose(out, p, atol=0.005)


def test_rows_that_lie_apart_are_the_hosts() -> None:
    """No kernel where rows do not lie side by side; a wrong number of pairs is refused."""
    step = step_of(4, 3)
    apart = View(step.inputs[0].buffer, (4, 3), (3, 1))
    assert emit_coupling(Step(step.spec, (apart,), step.outputs), targets()[0]) is None
    with pytest.raises(Unsound, match="the shares"):
        check(Step(Coupling(4), step.inputs, (side_by_side("out", 4, 4),)))
