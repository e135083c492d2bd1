"""Choosing elements: the first of rows, boxes that no better one overlaps."""

from graphdoc.engine.expr import BF16, F16, F32, I8, I16, I32, I64, U8, U16
from graphdoc.engine.kernels.suppression import Suppression
from graphdoc.engine.kernels.topk import TopK
from graphdoc.engine.lower import Counted, NotLowered, Site, lowering
from graphdoc.engine.ops.host import axis_of
from graphdoc.engine.program import View

_ORDERED = {F32: F32, I32: I32, F16: F32, BF16: F32, I8: I32, U8: I32, I16: I32, U16: I32}
"""dtype → the one in which its elements are put in order, exactly."""


@lowering("TopK")
def topk(
    at: Site,
    x: View,
    count: View | None = None,
    *,
    k: int | None = None,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002 (the specification's name)
) -> tuple[View, View]:
    """The first elements along an axis and their places, sorted; ``k``: how many, before version 10."""
    del sorted
    first = int(at.known(count, "how many").reshape(())) if k is None else k
    axis = axis_of(axis, len(x.shape))
    if x.dtype not in _ORDERED or not 0 < first <= x.shape[axis]:
        raise NotLowered(f"dtype {x.dtype}, or none of them")
    order = [*(a for a in range(len(x.shape)) if a != axis), axis]
    rows = at.dense(at.cast(x, _ORDERED[x.dtype]).permuted(order))
    shape = (*rows.shape[:-1], first)
    values, indices = at.fresh(shape, rows.dtype), at.fresh(shape, I64)
    at.step(TopK(bool(largest)), [rows], [values, indices])
    back = [order.index(a) for a in range(len(order))]
    return at.cast(values, x.dtype).permuted(back), indices.permuted(back)


@lowering("NonMaxSuppression")
def non_max_suppression(
    at: Site,
    boxes: View,
    scores: View,
    max_output_boxes_per_class: View | None = None,
    iou_threshold: View | None = None,
    score_threshold: View | None = None,
    *,
    center_point_box: int = 0,
) -> Counted:
    """The boxes that no better one overlaps, as (entry, class, box)."""
    limit, iou, least = (
        None if view is None else at.known(view, "a threshold").reshape(-1)[0].item()
        for view in (max_output_boxes_per_class, iou_threshold, score_threshold)
    )
    if not limit or limit < 0 or {boxes.dtype, scores.dtype} != {F32}:
        raise NotLowered("nothing is kept, or another dtype than float32")
    batch, classes, count = scores.shape
    rows = at.fresh((batch * classes * min(limit, count), 3), I64)
    total = at.fresh((1,), I64)
    spec = Suppression(limit, 0.0 if iou is None else iou, least, bool(center_point_box))
    at.step(spec, [boxes, scores], [rows, total])
    return Counted(rows, total)
