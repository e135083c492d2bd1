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


def _overlaps(box: _Floats, others: _Floats) -> _Floats:
    """Return the intersection over union of one box [4] with others [n, 4]; 0 for empty boxes."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.where((shared > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)


def _suppress(boxes: _Floats, scores: _Floats, limit: int, iou: float, least: float | None) -> list[int]:
    """Return the kept boxes of one class, best score first; of equal scores the lower index wins."""
    order = np.argsort(-scores, kind="stable")
    order = order if least is None else order[scores[order] > least]
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[_overlaps(boxes[best], boxes[order]) <= iou]
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
