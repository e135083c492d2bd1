"""GridSample on level 1, beside level 0 and ONNX Runtime."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.fuse import fuse
from graphdoc.engine.level1 import Compiled
from tests.engine import single
from tests.engine.lowered import check, noise


def grid_of(batch: int, height: int, width: int, seed: int = 0) -> Any:
    """Return places inside, at the edges, and outside."""
    rng = np.random.default_rng(seed)
    grid = (rng.random((batch, height, width, 2)) * 3 - 1.5).astype(np.float32)
    grid[:, 0, 0] = [-1, 1]
    grid[:, 0, -1] = [1, -1]
    grid[:, -1, 0] = [0, 0]
    return grid


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images(mode: str, align: int, padding: str) -> None:
    """Both ways to count, several sizes of images and grids, as machine code too."""
    for shape, grid in (((1, 1, 5, 7), (1, 3, 4)), ((2, 9, 4, 4), (2, 6, 5)), ((1, 16, 1, 3), (1, 1, 9))):
        x, places = noise(*shape), grid_of(*grid)
        options = {"mode": mode, "align_corners": align, "padding_mode": padding, "opset": 20}
        check("GridSample", x, places, **options)
        proto, feeds = single.model("GridSample", x, places, **options)
        found = Compiled(ir.from_proto(proto), device=CpuDevice(2), passes=(fuse,)).run(feeds)["y0"]
        (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_numbers_that_are_not_finite(padding: str) -> None:
    """An infinity of weight 0 gives NaN, as it does on level 0; what lies outside does not count."""
    x = noise(1, 2, 3, 3)
    x[0, 0, 1, 1], x[0, 1, 2, 2] = np.inf, np.nan
    places = grid_of(1, 4, 4)
    places[0, 1, 1] = [1e30, -1e30]
    check("GridSample", x, places, padding_mode=padding, opset=20, align_corners=1)
    if padding == "zeros":
        places[0, 2, 2] = [np.nan, 0]
        check("GridSample", x, places, opset=20)


def test_what_level_0_keeps() -> None:
    """Cubes, cubic interpolation, mirrored edges, doubles."""
    x, places = noise(1, 2, 5, 5), grid_of(1, 3, 3)
    check("GridSample", x, places, mode="cubic", opset=20, host=True)
    check("GridSample", x, places, padding_mode="reflection", opset=20, host=True)
    check("GridSample", x.astype(np.float64), places.astype(np.float64), opset=20, host=True)
    check("GridSample", noise(1, 2, 3, 3, 3), noise(1, 2, 2, 2, 3), opset=20, host=True)
