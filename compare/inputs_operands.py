"""Inputs whose values follow from the operator that reads them: shapes, counts, axes, boxes, scales."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from graphdoc.compare.inputs_facts import Case
from graphdoc.compare.inputs_uses import Use

Made: TypeAlias = tuple[Any, str]
"""Values that broadcast to the input's shape, and what they are in words."""

Operand: TypeAlias = Callable[[Case, Use], Made]


def operand_use(uses: tuple[Use, ...]) -> Use | None:
    """Return the nearest use by an operator of :data:`OPERANDS`."""
    return next((use for use in uses if use.at in OPERANDS), None)


def _always(value: Any, words: str) -> Operand:
    return lambda _case, _use: (value, words)


def _between(low: float, high: float, words: str) -> Operand:
    return lambda case, _use: (case.rng.uniform(low, high, case.shape), words)


def _data(case: Case, use: Use) -> tuple[int | None, ...]:
    """Return the shape of what the operator works on."""
    return case.walker.shape(use.node.inputs[0]) or ()


def _whole(case: Case, use: Use) -> bool:
    """Whether the input is the operand itself, not an element of it."""
    return len(case.shape) == 1 and use.path.part is None and use.path.axes == (0,)


def _reshape(case: Case, use: Use) -> Made:
    data = _data(case, use)
    if not _whole(case, use):
        return 1, "size 1 of a shape"
    if len(data) == case.shape[0] and None not in data:
        return list(data), "the shape the data has"
    return [-1] + [1] * (case.shape[0] - 1), "a shape that holds any number of elements"


def _expand(case: Case, use: Use) -> Made:
    data = _data(case, use)
    if not _whole(case, use):
        return 1, "size 1 of a shape"
    padded = (1,) * (case.shape[0] - len(data)) + data
    return [2 if size == 1 else size or 1 for size in padded[-case.shape[0] :]], "a shape to expand to"


def _tile(case: Case, use: Use) -> Made:
    return (1 if not case.shape else [1] * (case.shape[0] - 1) + [2]), "repeats"


def _top(case: Case, use: Use) -> Made:
    attribute = use.node.attributes.get("axis")
    data, axis = _data(case, use), -1 if attribute is None else int(attribute.value)
    size = data[axis] if -len(data) <= axis < len(data) else None
    return min(5, size if size is not None else 1), "how many to keep"


def _pads(case: Case, use: Use) -> Made:
    mode = use.node.attributes.get("mode")
    constant = mode is None or mode.value == "constant"
    return (1 if constant else 0), "padding"


def _scales(case: Case, use: Use) -> Made:
    if not _whole(case, use) or case.shape[0] < 3:
        return 2.0, "factor 2"
    return [1.0, 1.0] + [2.0] * (case.shape[0] - 2), "factor 2 along the spatial axes"


def _sizes(case: Case, use: Use) -> Made:
    data = _data(case, use)
    if not _whole(case, use) or len(data) != case.shape[0]:
        return 32, "size 32"
    return [(size or 1) * (2 if axis > 1 else 1) for axis, size in enumerate(data)], "twice the size"


def _squeezed(case: Case, use: Use) -> Made:
    ones = [axis for axis, size in enumerate(_data(case, use)) if size == 1]
    count = case.shape[0] if case.shape else 1
    return (ones + list(range(count)))[:count] if case.shape else (ones or [0])[0], "axes of size 1"


def _axes(case: Case, use: Use) -> Made:
    return (list(range(case.shape[0])) if case.shape else 0), "axes"


def _ends(case: Case, use: Use) -> Made:
    data = _data(case, use)
    if _whole(case, use) and len(data) == case.shape[0] and None not in data:
        return list(data), "to the end"
    plain = use.path.scale == 1 and use.path.shift == 0
    return (np.iinfo(np.int32).max if plain else 8), "to the end"


def _split(case: Case, use: Use) -> Made:
    attribute = use.node.attributes.get("axis")
    data, axis = _data(case, use), 0 if attribute is None else int(attribute.value)
    count = case.shape[0] if case.shape else 1
    size = data[axis] if -len(data) <= axis < len(data) else None
    whole = count if size is None else size
    if not case.shape:
        return max(1, whole // 2), "size of a piece"
    return [whole // count] * (count - 1) + [whole - whole // count * (count - 1)], "sizes that add up"


def _boxes(case: Case, _use: Use) -> Made:
    """Boxes x1, y1, x2, y2 with room inside; in five columns the first is the picture's number."""
    corner = case.rng.uniform(0, 8, (*case.shape[:-1], 2))
    box = np.concatenate([corner, corner + case.rng.uniform(2, 8, corner.shape)], axis=-1)
    columns = case.shape[-1] if case.shape else 0
    if columns == 5:
        box = np.concatenate([np.zeros((*case.shape[:-1], 1)), box], axis=-1)
    return (box if columns in (4, 5) else 1.0), "boxes (x1, y1, x2, y2)"


def _total(case: Case, _use: Use) -> Made:
    return case.setting.past + case.setting.sequence, "length of the cache and the tokens"


def _longer(case: Case, _use: Use) -> Made:
    return case.setting.sequence + 8, "8 more than the tokens"


def _zero_point(case: Case, use: Use) -> Made:
    return (128 if case.facts.spec.dtype == np.uint8 else 0), "zero point"


def _grid_size(case: Case, use: Use) -> Made:
    pictures = _data(case, use)[0] if _data(case, use) else None
    return [pictures or 1, 3] + [8] * (case.shape[0] - 2), "size of a picture"


def _chosen(case: Case, use: Use) -> Made:
    picked = case.rng.random(case.shape) < 0.5
    if picked.size:
        picked.reshape(-1)[0] = True
    return picked, "a choice"


def _frame(case: Case, use: Use) -> Made:
    """STFT: a window of up to 128, a quarter of it as step, never longer than the signal."""
    data = _data(case, use)
    length = min(128, data[1] if len(data) > 1 and data[1] else 128)
    return (max(length // 4, 1), "frame step") if use.slot == 1 else (length, "frame length")


def _picked_boxes(case: Case, _use: Use) -> Made:
    return _boxes(case, _use)[0] / 16, "boxes within 0..1"


def _divisors(case: Case, _use: Use) -> Made:
    if case.facts.integer:
        return case.rng.integers(1, 10, case.shape), "divisors 1 to 9"
    return case.rng.uniform(0.5, 2, case.shape), "divisors away from 0"


_POSITIVE = _between(0.1, 2, "positive values")
_UNIT = _between(-0.9, 0.9, "values within ±1")
_SCALE = _always(0.02, "quantisation step")

OPERANDS: dict[tuple[str, int], Operand] = {
    ("Loop", 0): _always(6, "6 iterations"),
    ("Loop", 1): _always(True, "true: the loop runs"),
    ("If", 0): _always(True, "true: the first branch"),
    ("Reshape", 1): _reshape,
    ("Expand", 1): _expand,
    ("ConstantOfShape", 0): _always(2, "size 2"),
    ("Tile", 1): _tile,
    ("Slice", 1): _always(0, "from the start"),
    ("Slice", 2): _ends,
    ("Slice", 3): _axes,
    ("Slice", 4): _always(1, "step 1"),
    ("TopK", 1): _top,
    ("Range", 0): _always(0, "start of a range"),
    ("Range", 1): _always(8, "end of a range"),
    ("Range", 2): _always(1, "step of a range"),
    ("Pad", 1): _pads,
    ("Resize", 2): _scales,
    ("Resize", 3): _sizes,
    ("Upsample", 1): _scales,
    ("Unsqueeze", 1): _axes,
    ("Squeeze", 1): _squeezed,
    ("Split", 1): _split,
    **{(f"Reduce{kind}", 1): _axes for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")},
    **{(f"Reduce{kind}", 1): _axes for kind in ("LogSum", "LogSumExp", "SumSquare")},
    ("CumSum", 1): _always(0, "axis 0"),
    ("CumProd", 1): _always(0, "axis 0"),
    ("Pad", 3): _axes,
    ("SplitToSequence", 1): _split,
    ("TensorScatter", 2): _always(0, "position 0"),
    ("AffineGrid", 1): _grid_size,
    ("Trilu", 1): _always(0, "the main diagonal"),
    ("OneHot", 1): _always(8, "depth 8"),
    ("RoiAlign", 1): _boxes,
    ("RoiAlign", 2): _always(0, "picture 0"),
    ("MaxRoiPool", 1): _boxes,
    ("NonMaxSuppression", 0): _picked_boxes,
    ("NonMaxSuppression", 1): _between(0, 1, "scores within 0..1"),
    ("NonMaxSuppression", 2): _always(10, "at most 10 boxes"),
    ("NonMaxSuppression", 3): _always(0.5, "overlap 0.5"),
    ("NonMaxSuppression", 4): _always(0.1, "score 0.1"),
    ("GridSample", 1): _between(-1, 1, "positions within ±1"),
    ("BatchNormalization", 4): _between(0.5, 1.5, "variances"),
    ("Dropout", 1): _always(0.5, "ratio 0.5"),
    ("Dropout", 2): _always(False, "false: no training"),
    ("STFT", 1): _frame,
    ("STFT", 3): _frame,
    ("DFT", 2): _always(1, "axis 1"),
    ("DequantizeLinear", 1): _SCALE,
    ("DequantizeLinear", 2): _zero_point,
    ("QuantizeLinear", 1): _SCALE,
    ("QuantizeLinear", 2): _zero_point,
    **{(name, slot): _SCALE for name in ("QLinearConv", "QLinearMatMul") for slot in (1, 4, 6)},
    **{(name, slot): _zero_point for name in ("QLinearConv", "QLinearMatMul") for slot in (2, 5, 7)},
    **{(name, slot): _zero_point for name in ("ConvInteger", "MatMulInteger") for slot in (2, 3)},
    **{(name, 1): _always(0, "the first") for name in ("SequenceAt", "SequenceErase")},
    ("SequenceInsert", 2): _always(0, "the first"),
    ("Bernoulli", 0): _between(0, 1, "probabilities"),
    ("GroupQueryAttention", 6): _total,
    ("BitShift", 1): _always(1, "shift by 1"),
    **{(f"{kind}Window", 0): _always(16, "16 samples") for kind in ("Hann", "Hamming", "Blackman")},
    ("MelWeightMatrix", 0): _always(8, "8 bands"),
    ("MelWeightMatrix", 1): _always(64, "64 points"),
    ("MelWeightMatrix", 2): _always(16000, "16 kHz"),
    ("MelWeightMatrix", 3): _always(0.0, "from 0 Hz"),
    ("MelWeightMatrix", 4): _always(4000.0, "to 4 kHz"),
    ("CenterCropPad", 1): _always(4, "size 4"),
    ("Compress", 1): _chosen,
    ("Clip", 1): _always(-1, "lower bound"),
    ("Clip", 2): _always(1, "upper bound"),
    **{(name, 1): _longer for name in ("BeamSearch", "GreedySearch", "Sampling")},
    **{(name, 2): _always(1, "at least 1 token") for name in ("BeamSearch", "GreedySearch", "Sampling")},
    ("BeamSearch", 3): _always(2, "2 beams"),
    ("BeamSearch", 4): _always(1, "1 result"),
    ("BeamSearch", 5): _always(1.0, "neutral penalty"),
    ("BeamSearch", 6): _always(1.0, "neutral penalty"),
    ("GreedySearch", 3): _always(1.0, "neutral penalty"),
}
"""(operator, slot) → values."""

DOMAINS: dict[tuple[str, int], Operand] = {
    **{(name, 0): _POSITIVE for name in ("Log", "Sqrt", "Reciprocal", "ReduceLogSum")},
    **{(name, 0): _UNIT for name in ("Acos", "Asin", "Atanh")},
    ("Acosh", 0): _between(1.1, 3, "values above 1"),
    ("Pow", 1): _between(0.5, 2, "exponents"),
    ("Div", 1): _divisors,
    ("Mod", 1): _divisors,
}
"""The same for numbers that an operator takes only in a part of the real line."""


def domain_values(case: Case) -> Made | None:
    """Return values within the domain of the first operator that has one and reads the input as it is."""
    for use in case.facts.uses:
        if use.path.scale != 1 or use.path.shift != 0:
            continue
        if use.at in DOMAINS:
            return DOMAINS[use.at](case, use)
        if use.at == ("Pow", 0) and not _even(case, use):
            return _POSITIVE(case, use)
    return None


_KEEPS_SMALL = frozenset({("GreaterOrEqual", 1), ("Greater", 1), ("LessOrEqual", 0), ("Less", 0)})
_KEEPS_LARGE = frozenset({("GreaterOrEqual", 0), ("Greater", 0), ("LessOrEqual", 1), ("Less", 1)})


def bound_values(case: Case) -> Made | None:
    """Return for a number that bounds a constant scale the end of the scale that lets all of it through."""
    for use in case.facts.uses:
        small = use.at in _KEEPS_SMALL
        if (small or use.at in _KEEPS_LARGE) and use.path.scale == 1 and use.path.shift == 0:
            scale = case.walker.constant(use.node.inputs[1 - use.slot])
            if scale is not None and scale.size > 1 and scale.dtype.kind in "iuf":
                return (scale.min(), "lower end") if small else (scale.max(), "upper end")
    return None


def _even(case: Case, use: Use) -> bool:
    """Whether the exponent is a whole number, so that negative values may be raised to it."""
    exponent = case.walker.constant(use.node.inputs[1])
    return exponent is not None and bool(np.all(exponent == np.round(exponent)) and np.all(exponent >= 0))


def operand_values(case: Case, use: Use) -> Made:
    """Return the values of an input that a use of :data:`OPERANDS` reads."""
    return OPERANDS[use.at](case, use)
