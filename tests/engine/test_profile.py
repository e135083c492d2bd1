"""Costs of steps on known shapes, limits of the machine, and the profile of a run."""

from dataclasses import replace

import numpy as np
from onnx import parser

from graphdoc.engine import cost
from graphdoc.engine.expr import F32, apply, load, stage
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.recurrent import Recurrent
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.kernels.winograd import Winograd
from graphdoc.engine.level1 import compiled
from graphdoc.engine.limits import FAR, Limits, limits
from graphdoc.engine.program import Buffer, Step, View, whole
from graphdoc.surgeon.model import open_source

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[8,16] x, float[16,4] w) => (float[8,4] y, int64[2,N] z) {
    a = MatMul (x, w)
    y = Relu (a)
    z = NonZero (a) }"""


def view(*shape: int) -> View:
    """Return a view of a new buffer."""
    return whole(Buffer("b", F32, int(np.prod(shape))), shape)


def test_operations_and_bytes() -> None:
    """Counted by hand."""
    total = load(-1, F32)
    product = Step(Contraction(0, 1, 1, total, F32), (view(5, 7), view(7, 3)), (view(5, 3),))
    assert cost.operations(product) == 2 * 5 * 7 * 3
    assert cost.traffic(product) == 4 * (35 + 21 + 15)
    fours = replace(product, spec=Contraction(0, 1, 1, total, F32, packed=16, together=4))
    assert cost.operations(fours) == 2 * 5 * 2 * 3
    row = view(3).broadcast((5, 3))
    spec = Map((apply("tanh", apply("add", load(0, F32), load(1, F32))),))
    added = Step(spec, (view(5, 3), row), (view(5, 3),))
    assert cost.operations(added) == 2 * 15
    assert cost.traffic(added) == 4 * (15 + 3 + 15)
    mean = Rows(1, (Reduction("sum", load(0, F32)),), (Output(apply("neg", stage(0, F32)), full=False),))
    assert cost.operations(Step(mean, (view(4, 6),), (view(4),))) == 24 + 4


def test_operations_of_kernels_of_many() -> None:
    """Counted by hand: tiles of a convolution, attention, a recurrent layer; moving bytes takes none."""
    total = load(-1, F32)
    image, panels = view(2, 7, 8, 3, 3, 5), view(1, 36, 5, 16)
    tiles = Step(Winograd(4, apply("neg", total), F32, 16), (image, panels), (view(2, 7, 8, 6),))
    assert cost.operations(tiles) == 2 * (2 * 2 * 2) * 36 * 5 * 6 + 2 * 7 * 8 * 6
    heads = (view(2, 3, 4), view(2, 9, 4), view(2, 9, 5))
    assert cost.operations(Step(Attention(1, total), heads, (view(2, 3, 5),))) == 2 * 3 * 9 * (8 + 10 + 4)
    cell = Recurrent("GRU", (False, True), (total, total))
    given = (view(2, 10, 3, 3, 16), view(2, 1, 16, 3, 16), view(2, 3, 16))
    step = Step(cell, given, (view(2, 10, 3, 16), view(2, 3, 16)))
    assert cost.operations(step) == (2 * 10 * 3) * (3 * 16) * (2 * 16 + 2)
    assert cost.operations(Step(Gather(0), (view(4, 6), view(3)), (view(3, 6),))) == 0


def test_windows_count_each_element_once() -> None:
    """Overlapping windows read no more than the image."""
    image = view(10, 10)
    windows = View(image.buffer, (8, 8, 3, 3), (10, 1, 10, 1))
    assert cost.touched(windows) == 4 * 100


def test_limits_are_those_of_a_machine() -> None:
    """Plausible numbers; memory bounds what is large, arithmetic what computes much."""
    found = limits()
    assert 1e8 < found.operations < 1e13
    assert min(found.near, found.far) > 1e7
    machine = Limits(operations=100.0, near=1000.0, far=10.0)
    assert machine.least(200, 0, 1) == 2.0
    assert machine.least(200, 0, 2) == 1.0
    assert machine.least(0, 2000, 1) == 2.0
    assert machine.least(0, FAR, 2) == FAR / 10.0


def test_a_profile_names_steps_and_host_nodes() -> None:
    """The product with its activation is one step; NonZero runs on level 0."""
    model = compiled(open_source(parser.parse_model(MODEL)).model, threads=1)
    feeds = {"x": np.ones((8, 16), np.float32), "w": np.ones((16, 4), np.float32)}

    found = model.profile(feeds, runs=2)

    assert all(spent.seconds >= 0 for spent in found)
    assert any(spent.label == "level 0: NonZero" for spent in found)
    (product,) = [spent for spent in found if spent.label == "Contraction"]
    assert product.operations >= 2 * 8 * 16 * 4
