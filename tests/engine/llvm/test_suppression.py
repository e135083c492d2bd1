"""Non-maximum suppression as machine code, against level 0 and ONNX Runtime."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.suppression import emit_suppression
from graphdoc.engine.expr import F64, I64
from graphdoc.engine.fuse import fuse
from graphdoc.engine.kernels.suppression import Suppression
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Buffer, Step, whole
from graphdoc.engine.sound import Unsound, check
from graphdoc.surgeon.model import open_source
from tests.engine import single
from tests.engine.llvm.rows_run import fresh, run, strided, targets
from tests.engine.lowered import fixed, hosts, noise, specs


def boxes_of(batch: int, count: int, seed: int, *, centred: bool = False) -> Any:
    """Return boxes many of which overlap, some of them empty, some equal, some the other way round."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 12, (batch, count, 2)).astype(np.float32)
    size = rng.integers(0, 9, (batch, count, 2)).astype(np.float32)
    if centred:
        return np.concatenate([first, size], axis=-1)
    corners = np.concatenate([first, first + size], axis=-1)
    corners[:, ::3] = corners[:, ::3][..., [2, 1, 0, 3]]
    return corners


def scores_of(batch: int, classes: int, count: int, seed: int) -> Any:
    """Return scores with ties."""
    return np.random.default_rng(seed).integers(0, 9, (batch, classes, count)).astype(np.float32) / 8


@pytest.mark.parametrize("target", targets(), ids=["host", "512", "128"])
@pytest.mark.parametrize("spec", [
    Suppression(3, 0.5, 0.25, False), Suppression(50, 0.1, None, False), Suppression(7, 0.0, 0.0, True),
    Suppression(1, 1.0, 2.0, False), Suppression(50, 0.3, -1.0, True),
])  # fmt: skip
def test_against_numpy(spec: Suppression, target: Any) -> None:
    """Ties, empty boxes, no box at all; odd scores; any layout."""
    for count in (1, 2, 5, 40):
        boxes = boxes_of(2, count, count, centred=spec.centred)
        scores = scores_of(2, 3, count, count)
        if count == 40:
            scores[0, 0, [3, 5, 7, 9]] = [np.nan, -np.inf, np.inf, -0.0]
            boxes[1, 4, 2] = np.nan
        views, memory = [], {}
        for data, order in ((boxes, (1, 2, 0)), (scores, (2, 0, 1))):
            view, array = strided(data, order, gap=1)
            views.append(view)
            memory[view.buffer] = array
        rows, rows_memory = fresh((6 * min(spec.limit, count), 3), np.int64)
        total, total_memory = fresh((1,), np.int64)
        step = Step(spec, tuple(views), (rows, total))
        check(step)
        kernel = emit_suppression(step, target)
        assert kernel is not None
        run(kernel, step, {**memory, rows.buffer: rows_memory, total.buffer: total_memory}, 1, target)
        want_rows, want_total = np.zeros(rows.shape, np.int64), np.zeros(1, np.int64)
        spec.evaluate([boxes, scores], [want_rows, want_total])
        assert total_memory[0] == want_total[0]
        kept = int(total_memory[0])
        np.testing.assert_array_equal(rows_memory.reshape(-1, 3)[:kept], want_rows[:kept])


def node(boxes: Any, scores: Any, limit: int, iou: float, least: float, **options: Any) -> Any:
    """Return a model with its thresholds as weights, and its feeds."""
    numbers = (np.array([limit]), np.array([iou], np.float32), np.array([least], np.float32))
    proto, feeds = single.model("NonMaxSuppression", boxes, scores, *numbers, **options)
    names = ["x2", "x3", "x4"]
    return fixed(proto, feeds, names), {k: v for k, v in feeds.items() if k not in names}


@pytest.mark.parametrize("seed", range(4))
def test_against_onnx_runtime(seed: int) -> None:
    """What is kept, in its order, where no two scores are equal."""
    boxes = boxes_of(2, 60, seed)[..., [1, 0, 3, 2]]
    scores = np.random.default_rng(seed).permutation(2 * 3 * 60).reshape(2, 3, 60).astype(np.float32)
    proto, feeds = node(boxes, scores, 10, 0.4, 50.0)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    compiled = Compiled(ir.from_proto(proto), device=CpuDevice(2), passes=(fuse,))
    for _ in range(2):
        np.testing.assert_array_equal(compiled.run(feeds)["y0"], want)
    assert specs(compiled) == ["Suppression"]


@pytest.mark.parametrize(("span", "least_kept"), [(1000, 400), (60, 100)])
def test_hundreds_of_kept_boxes_against_onnx_runtime(span: int, least_kept: int) -> None:
    """More than several groups of vectors, few and many of the later boxes suppressed; NaN among them."""
    rng = np.random.default_rng(span)
    first = rng.uniform(0, span, (1, 500, 2)).astype(np.float32)
    boxes = np.concatenate([first, first + rng.uniform(1, 9, (1, 500, 2)).astype(np.float32)], axis=-1)
    scores = rng.permutation(500).reshape(1, 1, 500).astype(np.float32)
    boxes[0, 17, 1] = np.nan
    proto, feeds = node(boxes, scores, 500, 0.2, -1.0)
    (want,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    compiled = Compiled(ir.from_proto(proto), device=CpuDevice(1), passes=(fuse,))
    np.testing.assert_array_equal(compiled.run(feeds)["y0"], want)
    assert len(want) >= least_kept


AFTER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,N,4] boxes, float[1,C,N] scores) => (float[K,4] y, int64[K,3] rows)
<int64 limit = {5}, float iou = {0.5}, float least = {0.1}, int64 one = {2}, int64[1] axis = {0}> {
    rows = NonMaxSuppression (boxes, scores, limit, iou, least)
    places = Gather <axis = 1> (rows, one)
    all = Squeeze (boxes, axis)
    y = Gather (all, places)
}"""


def test_what_follows_reads_as_many_rows_as_there_are() -> None:
    """Another number of boxes in each run, none among them."""
    proto = parser.parse_model(AFTER)
    session = ort.InferenceSession(proto.SerializeToString())
    compiled = Compiled(open_source(proto).model, device=CpuDevice(1), passes=(fuse,))
    scores = np.random.default_rng(1).permutation(40).reshape(1, 2, 20).astype(np.float32) / 40
    for seed, factor in ((0, 1.0), (1, 1.0), (2, 0.0), (3, 1.0)):
        feeds = {"boxes": boxes_of(1, 20, seed), "scores": scores * np.float32(factor)}
        want = dict(zip(("y", "rows"), session.run(None, feeds), strict=True))
        found = compiled.run(feeds)
        for name, value in want.items():
            np.testing.assert_array_equal(found[name], value)


def test_what_it_refuses() -> None:
    """Another dtype has no kernel; thresholds that a run must tell are level 0's."""
    boxes, scores = (whole(Buffer("x", F64, 40), shape) for shape in ((1, 5, 4), (1, 2, 5)))
    rows = whole(Buffer("r", I64, 30), (10, 3))
    total = whole(Buffer("t", I64, 1), (1,))
    step = Step(Suppression(9, 0.5, None, False), (boxes, scores), (rows, total))
    assert emit_suppression(step, targets()[0]) is None
    with pytest.raises(Unsound, match="an array of float64"):
        check(step)
    numbers = (np.array([3]), np.array([0.5], np.float32), np.array([0.1], np.float32))
    proto, feeds = single.model("NonMaxSuppression", noise(1, 5, 4), noise(1, 2, 5), *numbers)
    compiled = Compiled(ir.from_proto(proto))
    compiled.run(feeds)
    assert hosts(compiled) == ["NonMaxSuppression"]
