"""Constants laid out once for all programs of a model."""

import gc

import numpy as np
import pytest

from graphdoc.engine import expr as ex
from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.laid import Laid, constant, lined, zeros
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.memory import LINE
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole


def weights() -> View:
    """Return a constant of 20 × 30 numbers."""
    data = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    return whole(Buffer("w", ex.F32, 600, Kind.CONSTANT, data), (20, 30))


def product(rows: int, w: View) -> Program:
    """Return a matrix product of so many rows with the constant."""
    x = whole(Buffer("x", ex.F32, rows * 20, Kind.INPUT), (rows, 20))
    y = whole(Buffer("y", ex.F32, rows * 30, Kind.OUTPUT), (rows, 30))
    spec = Contraction(0, 1, 1, ex.load(-1, ex.F32), ex.F32)
    return Program([Step(spec, (x, w), (y,), ("n",))], {"x": x}, {"y": y})


def test_programs_of_one_model_share_their_panels() -> None:
    """Two shapes on one device: the same buffer, and results of both are right."""
    device, w = CpuDevice(1), weights()
    first, second = device.load(product(40, w)), device.load(product(47, w))
    x = np.random.default_rng(1).standard_normal((47, 20)).astype(np.float32)
    exact = x.astype(np.float64) @ w.array(w.buffer.data).astype(np.float64)

    assert first.program.steps[0].inputs[1].buffer is second.program.steps[0].inputs[1].buffer
    np.testing.assert_allclose(second.run([x])[0], exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first.run([x[:40]])[0], exact[:40], rtol=1e-5, atol=1e-5)


def test_what_was_laid_out_goes_with_its_source() -> None:
    """Nothing is kept for constants that nobody holds any more."""
    laid, w = Laid(), weights()
    laid.view(w, "some way", lambda: constant("other", np.zeros((2, 3))))
    assert len(laid._views) == 1
    del w
    gc.collect()

    assert len(laid._views) == 0


def test_each_view_and_way_is_made_once() -> None:
    """None too, which says that there is no such layout."""
    laid, w = Laid(), weights()
    made: list[object] = []

    def make() -> None:
        made.append(1)

    for view in (w, w, w.permuted((1, 0))):
        for way in ("a", "b"):
            assert laid.view(view, way, make) is None

    assert len(made) == 4


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_arrays_start_on_a_line(offset: int) -> None:
    """Copied only where they do not already."""
    memory = zeros((100,), np.float32)
    found = lined(memory[offset:])

    assert found.ctypes.data % LINE == 0
    assert np.shares_memory(found, memory) == (offset == 0)
    assert zeros((), np.int8).shape == ()
