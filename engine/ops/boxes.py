"""NonMaxSuppression."""

from typing import Any

import numpy as np

from graphdoc.engine.ops.host import scalar, to_host
from graphdoc.engine.ops.shapes import INT64
from graphdoc.engine.ops.table import Array, Call, TensorType, op

_Floats = np.ndarray[Any, Any]


def _corners(boxes: _Floats, center_point_box: int) -> _Floats:
    """Return boxes [..., 4] as (low, low, high, high) corners."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        half = second / 2
        return np.concatenate([first - half, first + half], axis=-1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _suppressed(numbers: list[_Floats], iou: float) -> _Floats:
    """Return which boxes after the first overlap the first by more than so much of their union.

    numbers: low y, low x, high y, high x and area of each box, best first. Boxes that share nothing, which
    most do, are not divided.
    """
    sides = []
    for low, high in ((0, 2), (1, 3)):
        left, right = numbers[low], numbers[high]
        sides.append(np.minimum(right[1:], right[0]) - np.maximum(left[1:], left[0]))
    (sharing,) = np.nonzero((sides[0] > 0) & (sides[1] > 0))
    shared = sides[0][sharing] * sides[1][sharing]
    union = numbers[4][0] + numbers[4][1:][sharing] - shared
    some = (shared > 0) & (union > 0)
    over = np.where(some, shared / np.where(some, union, 1), 0) > iou
    return sharing[over]


def _suppress(boxes: _Floats, scores: _Floats, limit: int, iou: float, least: float | None) -> list[int]:
    """Return the kept boxes of one class, best score first; of equal scores the lower index wins."""
    order = np.argsort(-scores, kind="stable")
    order = order if least is None else order[scores[order] > least]
    best = boxes[order]
    area = (best[:, 2] - best[:, 0]) * (best[:, 3] - best[:, 1])
    numbers = [*np.ascontiguousarray(best.T), area]
    limit = limit if iou >= 0 else min(limit, 1)
    kept: list[int] = []
    while order.size and len(kept) < limit:
        kept.append(int(order[0]))
        gone = _suppressed(numbers, iou)
        order, numbers = order[1:], [n[1:] for n in numbers]
        if gone.size:
            order, numbers = np.delete(order, gone), [np.delete(n, gone) for n in numbers]
    return kept


def _nms_type(call: Call, *inputs: TensorType | None, center_point_box: int = 0) -> TensorType:
    return TensorType(INT64, (None, 3))


@op("NonMaxSuppression", 10, 11, infer=_nms_type)
def non_max_suppression(
    call: Call,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """The boxes kept per batch entry and class: int64 [kept, 3] of (batch, class, box) (ONNX
    NonMaxSuppression-11).

    boxes: [batch, n, 4]; scores: [batch, classes, n]. A box is dropped when it overlaps a better one by
    more than ``iou_threshold`` (default 0) or scores at most ``score_threshold``. Without
    ``max_output_boxes_per_class`` nothing is kept. The loop is over kept boxes, on the host.
    """
    limit = 0 if max_output_boxes_per_class is None else int(scalar(max_output_boxes_per_class))
    iou = 0.0 if iou_threshold is None else float(scalar(iou_threshold))
    least = None if score_threshold is None else float(scalar(score_threshold))
    corners, ratings = _corners(to_host(boxes), center_point_box), to_host(scores)
    kept = [
        (entry, label, box)
        for entry in range(ratings.shape[0])
        for label in range(ratings.shape[1])
        for box in _suppress(corners[entry], ratings[entry, label], limit, iou, least)
    ]
    return call.xp.asarray(np.asarray(kept, np.int64).reshape(-1, 3))
