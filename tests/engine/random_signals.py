"""Recipes of image, signal, loss, attention and text operators."""

from typing import Any

import numpy as np

from tests.engine.random_builder import Builder, RejectedError
from tests.engine.random_layers import layer_input
from tests.engine.random_recipes import recipe
from tests.engine.random_values import F32, FLOATS, I64, elements

# ---- images -------------------------------------------------------------------------------------------

TRANSFORMS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@recipe("Resize", first=11)
def resize(g: Builder, op: str) -> None:
    x = g.pick(
        op, rank=(4, 4), within=(F32,), test=lambda v: 0 not in v.shape, shape=lambda: g.shape(4, 4, empty=0)
    )
    mode = g.choose(["nearest", "nearest", "linear", "cubic"])
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.choose(TRANSFORMS)}
    if mode == "nearest":
        attributes["nearest_mode"] = g.choose(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": g.choose([-0.5, -0.75]), "exclude_outside": g.number(0, 1)}
    if g.opset >= 18 and mode != "nearest" and g.chance(0.3):
        attributes["antialias"] = 1
    roi = g.parameter(np.zeros(0, dtype=F32)) if g.opset < 13 else None
    spatial = [g.choose([1.0, 2.0, 0.5, 1.5, 0.75, 3.0]) for _ in range(2)]
    if g.chance(0.5):
        g.add(op, [x, roi, g.parameter(np.array([1, 1, *spatial], dtype=F32))], **attributes)
        return
    sizes = [*x.shape[:2], *(max(1, int(d * s)) for d, s in zip(x.shape[2:], spatial, strict=True))]
    empty = g.parameter(np.zeros(0, dtype=F32)) if g.opset < 13 else None
    g.add(op, [x, roi, empty, g.ints(sizes)], **attributes)


@recipe("Upsample", first=9, last=9)
def upsample(g: Builder, op: str) -> None:
    x = g.pick(
        op, rank=(4, 4), test=lambda v: 0 not in v.shape, within=(F32,), shape=lambda: g.shape(4, 4, empty=0)
    )
    scales = [1, 1, g.choose([1, 2, 1.5]), g.choose([1, 2, 3])]
    g.add(op, [x, g.parameter(np.array(scales, dtype=F32))], mode=g.choose(["nearest", "linear"]))


@recipe("GridSample", first=16)
def grid_sample(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or x.dtype.kind != "f":
        raise RejectedError("no image")
    grid = g.fresh(F32, (x.shape[0], g.number(1, 3), g.number(1, 3), 2), tame=True)
    modes = ["linear", "nearest", "cubic"] if g.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    attributes = {"mode": g.choose(modes), "padding_mode": g.choose(["zeros", "border", "reflection"])}
    g.add(op, [x, grid], align_corners=g.number(0, 1), **attributes)


@recipe("AffineGrid", first=20)
def affine_grid(g: Builder, op: str) -> None:
    theta = g.fresh(F32, (g.number(1, 2), 2, 3), tame=True)
    size = g.ints([theta.shape[0], g.number(1, 3), g.number(1, 4), g.number(1, 4)])
    g.add(op, [theta, size], align_corners=g.number(0, 1))


def _boxes(g: Builder, count: int, high: float) -> np.ndarray[Any, Any]:
    corners = [
        [g.real(0, high / 2), g.real(0, high / 2), g.real(high / 2, high), g.real(high / 2, high)]
        for _ in range(count)
    ]
    return np.array(corners, dtype=F32).reshape(count, 4)


@recipe("RoiAlign", first=10)
def roi_align(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or x.dtype != F32:
        raise RejectedError("no image")
    count = g.number(1, 3)
    rois = g.parameter(_boxes(g, count, float(min(x.shape[2:]))))
    batch = g.ints([g.number(0, x.shape[0] - 1) for _ in range(count)])
    attributes: dict[str, Any] = {"output_height": g.number(1, 3), "output_width": g.number(1, 3)}
    attributes |= {"sampling_ratio": g.number(0, 2), "mode": g.choose(["avg", "avg", "max"])}
    if g.opset >= 16:
        attributes["coordinate_transformation_mode"] = g.choose(["half_pixel", "output_half_pixel"])
    g.add(op, [x, rois, batch], **attributes)


@recipe("MaxRoiPool")
def max_roi_pool(g: Builder, op: str) -> None:
    x = g.fresh(F32, (g.number(1, 2), g.number(1, 2), g.number(3, 6), g.number(3, 6)))
    count = g.number(1, 2)
    corners = [[g.number(0, 1), g.number(0, 1), g.number(1, 2), g.number(1, 2)] for _ in range(count)]
    rows = [[g.number(0, x.shape[0] - 1), *c] for c in corners]
    rois = g.parameter(np.array(rows, dtype=F32))
    g.add(op, [x, rois], pooled_shape=[g.number(1, 2), g.number(1, 2)], spatial_scale=1.0)


@recipe("NonMaxSuppression", first=10)
def non_max_suppression(g: Builder, op: str) -> None:
    count, classes = g.number(1, 6), g.number(1, 2)
    boxes = g.parameter(_boxes(g, count, 4.0)[None])
    scores = g.parameter(
        np.array(g.rng.sample(range(64), count * classes), dtype=F32).reshape(1, classes, count) / 64
    )
    most = g.parameter(np.array([g.number(0, 4)], dtype=I64)) if g.chance(0.8) else None
    iou = g.parameter(np.array([g.real(0, 1)], dtype=F32)) if g.chance(0.7) else None
    score = g.parameter(np.array([g.real(0, 0.5)], dtype=F32)) if g.chance(0.5) else None
    g.add(op, [boxes, scores, most, iou, score], center_point_box=g.number(0, 1))


@recipe("DeformConv", first=19)
def deform_conv(g: Builder, op: str) -> None:
    x = layer_input(g, op, spatial=(2, 2))
    if x.shape[0] == 0 or min(x.shape[2:]) < 2 or x.dtype != F32:
        raise RejectedError("too small")
    kernel = [g.number(1, 2), g.number(1, 2)]
    out = [s - k + 1 for s, k in zip(x.shape[2:], kernel, strict=True)]
    w = g.fresh(F32, (g.number(1, 2), x.shape[1], *kernel), tame=True)
    offset = g.fresh(F32, (x.shape[0], 2 * elements(kernel), *out), tame=True)
    bias = g.like(w, (w.shape[0],)) if g.chance(0.4) else None
    mask = g.like(w, (x.shape[0], elements(kernel), *out)) if g.chance(0.5) else None
    g.add(op, [x, w, offset, bias, mask], kernel_shape=kernel)


# ---- signals, losses, attention, text -----------------------------------------------------------------


@recipe("HannWindow", "HammingWindow", "BlackmanWindow", first=17)
def signal_window(g: Builder, op: str) -> None:
    g.add(op, [g.parameter(np.array(g.number(1, 9), dtype=I64))], periodic=g.number(0, 1))


@recipe("MelWeightMatrix", first=17)
def mel(g: Builder, op: str) -> None:
    bins, length, rate = g.number(2, 6), g.choose([16, 32]), 8000
    numbers = [g.parameter(np.array(n, dtype=I64)) for n in (bins, length, rate)]
    edges = [g.parameter(np.array(n, dtype=F32)) for n in (g.real(0, 100), g.real(1000, 4000))]
    g.add(op, [*numbers, *edges])


@recipe("DFT", first=17, last=19)
def dft(g: Builder, op: str) -> None:
    real = g.chance(0.6)
    x = g.fresh(
        g.choose([d for d in g.dtypes(op) if d != FLOATS[2]]),
        (g.number(1, 2), g.number(2, 8), 1 if real else 2),
        tame=True,
    )
    one_sided = 1 if real and g.chance(0.5) else 0
    length = g.parameter(np.array(g.number(1, 9), dtype=I64)) if g.chance(0.3) else None
    g.add(op, [x, length], axis=1, onesided=one_sided, **({} if real else {"inverse": g.number(0, 1)}))


@recipe("DFT", first=20)
def dft_with_axis(g: Builder, op: str) -> None:
    real = g.chance(0.6)
    x = g.fresh(
        g.choose([d for d in g.dtypes(op) if d != FLOATS[2]]),
        (g.number(1, 2), g.number(2, 8), 1 if real else 2),
        tame=True,
    )
    axis = g.parameter(np.array(g.choose([1, -2]), dtype=I64)) if g.chance(0.7) else None
    length = g.parameter(np.array(g.number(1, 9), dtype=I64)) if g.chance(0.3) else None
    one_sided = 1 if real and g.chance(0.5) else 0
    g.add(op, [x, length, axis], onesided=one_sided, **({} if real else {"inverse": g.number(0, 1)}))


@recipe("STFT", first=17)
def stft(g: Builder, op: str) -> None:
    frame = g.number(2, 6)
    x = g.fresh(F32, (g.number(1, 2), frame + g.number(0, 6), 1), tame=True)
    step = g.parameter(np.array(g.number(1, 3), dtype=I64))
    shaped = g.fresh(F32, (frame,), tame=True) if g.chance(0.5) else None
    length = g.parameter(np.array(frame, dtype=I64)) if shaped is None or g.chance(0.5) else None
    g.add(op, [x, step, shaped, length], onesided=g.number(0, 1))


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", first=13)
def loss(g: Builder, op: str) -> None:
    extra = g.shape(0, 2, empty=0)
    batch, classes = g.number(1, 3), g.number(1, 4)
    x = g.fresh(F32, (batch, classes, *extra))
    labels = [g.number(0, classes - 1) for _ in range(batch * elements(extra))]
    target = g.parameter(np.array(labels, dtype=g.choose([np.int64, np.int32])).reshape(batch, *extra))
    weight = (
        g.source(np.abs(g.content(F32, (classes,), tame=True)) + np.float32(0.5)) if g.chance(0.4) else None
    )
    attributes: dict[str, Any] = {"reduction": g.choose(["none", "mean", "sum"])}
    if g.chance(0.3):
        attributes["ignore_index"] = g.number(-1, classes)
    both = op == "SoftmaxCrossEntropyLoss" and g.chance(0.4)
    g.add_many(op, [x, target, weight], 2 if both else 1, **attributes)


@recipe("Attention", first=23)
def attention(g: Builder, op: str) -> None:
    batch, heads, length, keys, size = (g.number(1, n) for n in (2, 2, 3, 4, 3))
    q = g.fresh(F32, (batch, heads, length, size), tame=True)
    k = g.fresh(F32, (batch, heads, keys, size), tame=True)
    v = g.fresh(F32, (batch, heads, keys, size), tame=True)
    mask = None
    if g.chance(0.5):
        mask = g.parameter(g.content(g.choose([F32, np.dtype(bool)]), (length, keys), tame=True))
    more = {
        n: v for n, v in (("is_causal", 1), ("scale", g.real(0.25, 1)), ("softcap", 2.0)) if g.chance(0.3)
    }
    g.add(op, [q, k, v, mask], **more)


@recipe("RotaryEmbedding", first=23)
def rotary(g: Builder, op: str) -> None:
    batch, heads, length, size = g.number(1, 2), g.number(1, 2), g.number(1, 3), g.choose([2, 4])
    x = g.fresh(F32, (batch, heads, length, size))
    tables = [g.fresh(F32, (5, size // 2), tame=True) for _ in range(2)]
    at = g.parameter(
        np.array([g.number(0, 4) for _ in range(batch * length)], dtype=I64).reshape(batch, length)
    )
    g.add(op, [x, *tables, at], interleaved=g.number(0, 1))


@recipe("StringConcat", first=20)
def string_concat(g: Builder, op: str) -> None:
    a = g.pick(op)
    g.add(op, [a, g.like(a, g.broadcastable(a.shape))])


@recipe("StringSplit", first=20)
def string_split(g: Builder, op: str) -> None:
    x = g.pick(op, rank=(0, 3))
    limit = {"maxsplit": g.number(1, 2)} if g.chance(0.4) else {}
    g.add_many(op, [x], 2, **({"delimiter": g.choose([" ", ",", "b"])} if g.chance(0.6) else {}), **limit)


@recipe("RegexFullMatch", first=20)
def regex(g: Builder, op: str) -> None:
    g.add(op, [g.pick(op)], pattern=g.choose(["[a-z]+", ".*b.*", "", "(a|b)( c)?", r"\d\d"]))


@recipe("StringNormalizer", first=10)
def normalizer(g: Builder, op: str) -> None:
    words = [g.choose(["", "a", "b c", "Ab", "12", "xyz", "XYZ"]) for _ in range(g.number(1, 4))]
    x = g.parameter(np.array(words, dtype=object))
    more = {"stopwords": ["a", "xyz"]} if g.chance(0.5) else {}
    g.add(
        op,
        [x],
        case_change_action=g.choose(["NONE", "LOWER", "UPPER"]),
        is_case_sensitive=g.number(0, 1),
        locale="C",
        **more,
    )


@recipe("TfIdfVectorizer", first=9)
def tf_idf(g: Builder, op: str) -> None:
    x = g.parameter(
        np.array([g.number(0, 4) for _ in range(6)], dtype=np.int32).reshape(g.choose([(6,), (2, 3)]))
    )
    longest = g.number(1, 2)
    more = {"weights": [0.5, 1.0, 2.0, 3.0]} if g.chance(0.6) else {}
    table: dict[str, Any] = {
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2, 3],
        "pool_int64s": [1, 2, 1, 2, 3, 1],
    }
    shape = {
        "min_gram_length": g.number(1, longest),
        "max_gram_length": longest,
        "max_skip_count": g.number(0, 1),
    }
    g.add(op, [x], mode=g.choose(["TF", "IDF", "TFIDF"]), **table, **shape, **more)
