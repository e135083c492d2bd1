"""Seeded values for each role an input can have, with the words that say what they are."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from graphdoc.compare.inputs_facts import Case
from graphdoc.compare.inputs_index import Limit, limits
from graphdoc.compare.inputs_operands import bound_values, domain_values, operand_use, operand_values
from graphdoc.compare.inputs_roles import Role, audio_axis, image_axes
from graphdoc.compare.inputs_signals import WORDS, features, pictures, voices, words
from graphdoc.compare.inputs_tabular import attribute, categories, fitted, missing_marker
from graphdoc.compare.inputs_uses import Part

Array: TypeAlias = np.ndarray[Any, Any]
Made: TypeAlias = tuple[Any, str]


def make_values(case: Case, role: Role) -> tuple[Array, str]:
    """Return an array of the input's dtype and the case's shape, and what it holds in words."""
    values, text = MAKERS[role](case)
    return _fitting(case, values), text


def _fitting(case: Case, values: Any) -> Array:
    """Return the values in the input's dtype and shape; integers stay within what the dtype holds."""
    dtype = case.facts.spec.dtype
    array = np.asarray(values)
    if dtype is None or dtype.kind == "O":
        return np.array(np.broadcast_to(array, case.shape))
    if case.facts.integer:
        info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        array = np.clip(array, int(info.min), int(info.max))
    return np.array(np.broadcast_to(array, case.shape)).astype(dtype)


def _part(case: Case, part: Part) -> tuple[Any, ...]:
    """Return the index of a part of the input."""
    inside = [i for i in part.indices if i < case.shape[part.axis]]
    return (slice(None),) * part.axis + (inside,)


# ---- integers -----------------------------------------------------------------------------------------


def _tokens(case: Case) -> Made:
    """Indices within the smallest table; parts of the input that have tables of their own within those."""
    found = limits(case.facts)
    whole = next((limit for limit in found if limit.part is None), None)
    parts = [limit for limit in found if limit.part is not None and limit.exact]
    if whole is None and not parts:
        return 0, "index 0 (the table's length is not known)"
    base = whole if whole is not None and (whole.exact or not parts) else parts[0]
    result = _drawn(case, base, case.shape)
    for limit in reversed(parts):
        if limit.part is not None and limit.part.axis < len(case.shape):
            where = _part(case, limit.part)
            result[where] = _drawn(case, limit, result[where].shape)
    tables = {limit.table: _high(case, limit) for limit in (parts or [base])}
    what = "token ids" if len(case.shape) > 1 else "index" if result.size == 1 else "indices"
    return result, f"{what} " + ", ".join(f"below {high} ({table})" for table, high in tables.items())


def _high(case: Case, limit: Limit) -> int:
    return max(limit.low + 1, limit.high // (1 if limit.exact else case.setting.narrow))


def _drawn(case: Case, limit: Limit, shape: tuple[int, ...]) -> Array:
    """Return indices within a limit; of large tables not the first, which often stands for padding."""
    high = _high(case, limit)
    low = max(limit.low, 1) if high > 16 else limit.low
    return case.rng.integers(low, high, shape)


def _mask(case: Case) -> Made:
    if _marks_padding(case):
        return 0, "zeros: the mask marks what to leave out"
    return 1, "ones: nothing is masked"


def _marks_padding(case: Case) -> bool:
    """Whether true stands for left out: it selects, or is multiplied by, a very negative number."""
    for use in case.facts.uses:
        scale, shift = use.path.scale, use.path.shift
        if scale is not None and scale <= -1000 and shift == 0:
            return True
        if use.at == ("Where", 0) and scale is not None:
            chosen = case.walker.constant(use.node.inputs[1])
            if chosen is not None and chosen.size and chosen.dtype.kind == "f" and chosen.max() <= -1000:
                return True
    return False


def _segments(case: Case) -> Made:
    high = min((limit.high for limit in limits(case.facts)), default=1)
    if high < 2 or not case.shape:
        return 0, "segment 0"
    return np.arange(case.shape[-1]) * 2 // max(case.shape[-1], 1), "segments 0 and 1"


def _positions(case: Case) -> Made:
    high = min((limit.high for limit in limits(case.facts) if limit.exact), default=None)
    count = case.shape[-1] if case.shape else 1
    start = case.setting.past if count <= case.setting.sequence else 0
    positions = np.arange(start, start + count)
    if not case.shape:
        positions = positions[0]
    return (positions if high is None else positions % high), f"positions from {start}"


def _lengths(case: Case) -> Made:
    setting = case.setting
    if case.facts.reaching(("GroupQueryAttention", 5)):
        return setting.past + setting.sequence - 1, "index of the last token"
    for use in case.facts.reaching(("LSTM", 4), ("GRU", 4), ("RNN", 4), ("ReverseSequence", 1)):
        axis = int(attribute(use.node, "time_axis") or 0)
        data = case.walker.shape(use.node.inputs[0]) or ()
        size = data[axis] if axis < len(data) else None
        if size is not None:
            return size, f"length {size}, that of the sequence"
    described = _described(case)
    if described is None:
        return setting.sequence, f"length {setting.sequence}"
    return setting.lengths[described], f"length {setting.lengths[described]}, that of {described}"


def _described(case: Case) -> str | None:
    """Return the input whose length is meant: the one with the name, else the first that has a length."""
    stem = re.sub(
        r"_?(len|lens|length|lengths|seqlens?|nframes|num_frames)\d*$", "", case.facts.spec.name, flags=re.I
    )
    names = [name for name in case.setting.lengths if name != case.facts.spec.name]
    same = [name for name in names if stem and (name.startswith(stem) or stem.startswith(name))]
    return next(iter(same or names), None)


def _rate(case: Case) -> Made:
    return case.setting.rate, f"sampling rate {case.setting.rate}"


def _switch(case: Case) -> Made:
    if np.prod(case.shape) <= 1:
        return True, "true"
    return case.rng.random(case.shape) < 0.5, "true or false"


def _numbers(case: Case) -> Made:
    dtype = case.facts.spec.dtype_name
    if dtype == "uint8":
        return case.rng.integers(0, 256, case.shape), "integers 0 to 255"
    found = domain_values(case) or bound_values(case)
    if found is not None or not case.shape or np.prod(case.shape) == 1:
        return found or (2, "a small number")
    low = -9 if dtype == "int8" else 0
    return case.rng.integers(low, 10, case.shape), f"integers {low} to 9"


def _operand(case: Case) -> Made:
    use = operand_use(case.facts.uses)
    return (0, "zero") if use is None else operand_values(case, use)


# ---- categories and tables ----------------------------------------------------------------------------


def _strings(case: Case) -> Made:
    found = categories(case.facts)
    result = words(case.rng, case.shape, next((c for part, c, _ in found if part is None), list(WORDS)))
    text = found[0][2] if found else ""
    for part, choices, _ in found:
        if part is not None and part.axis < len(case.shape):
            where = _part(case, part)
            result[where] = words(case.rng, result[where].shape, choices)
    return result, f"categories of {text}" if text else "words"


def _categories(case: Case) -> Made:
    found = categories(case.facts)
    result = _picked(case, found[0][1], case.shape)
    for part, choices, _ in reversed(found):
        if part is not None and part.axis < len(case.shape):
            where = _part(case, part)
            result[where] = _picked(case, choices, result[where].shape)
    return result, f"categories of {found[0][2]}"


def _picked(case: Case, choices: Sequence[Any], shape: tuple[int, ...]) -> Array:
    return case.rng.choice(np.asarray(choices), shape)


def _table(case: Case) -> Made:
    columns = case.shape[-1] if case.shape else 1
    fit = fitted(case.facts, columns)
    if fit is None:
        return features(case.rng, case.shape), "normal values"
    centre, spread, text = fit
    values = centre + spread * case.rng.standard_normal(case.shape)
    if missing_marker(case.facts) and case.facts.kind == "f" and len(case.shape) == 2 and case.shape[0] > 3:
        values[1, 0] = np.nan
        text += ", one of them missing"
    return (np.round(values) if case.facts.integer else values), f"values in the range of {text}"


# ---- signals ------------------------------------------------------------------------------------------


def _image(case: Case) -> Made:
    axes = image_axes(case.facts)
    if axes is None:
        return features(case.rng, case.shape), "normal values"
    values = pictures(case.rng, case.shape, *axes)
    if case.facts.kind == "i":
        return np.round(values * 255) - 128, "a picture, values -128 to 127"
    if case.facts.integer or _expects_bytes(case):
        return np.round(values * 255), "a picture, values 0 to 255"
    return values, "a picture, values 0 to 1"


def _expects_bytes(case: Case) -> bool:
    """Whether the graph scales the picture down or takes away a mean that only 0 to 255 has."""
    for use in case.facts.uses:
        if use.op not in ("Div", "Mul", "Sub", "Add", "BatchNormalization") or use.path.scale != 1:
            continue
        slot = 3 if use.op == "BatchNormalization" else 1 - use.slot
        constant = case.walker.constant(use.node.inputs[slot])
        if constant is None or not constant.size or constant.dtype.kind != "f":
            continue
        size = float(np.abs(constant).mean())
        if (use.op == "Mul" and 0 < size <= 0.02) or (use.op != "Mul" and size >= 10):
            return True
    return False


def _audio(case: Case) -> Made:
    sound = voices(case.rng, case.shape, audio_axis(case.facts), case.setting.rate)
    if case.facts.integer:
        return np.round(sound * 32767), "a voice-like sound, 16-bit"
    return sound, f"a voice-like sound at {case.setting.rate} Hz"


def _scale(case: Case) -> Made:
    """1, but 0 for what scales random numbers: with noise no two runs could be compared."""
    found = domain_values(case) or bound_values(case)
    if found is not None:
        return found
    value = 0.5 if re.search(r"thresh|conf|iou|top_p|ratio", case.facts.name) else 1.0
    result = np.full(case.shape, value)
    quiet = [
        use.path.part
        for use in case.facts.uses
        if use.op == "Mul" and _scales_noise(case, use.node, use.slot)
    ]
    for part in quiet:
        result[... if part is None or not case.shape else _part(case, part)] = 0.0
    return result, f"{value:g}" + (", 0 where it scales random numbers" if quiet else "")


def _scales_noise(case: Case, node: Any, slot: int) -> bool:
    other = node.inputs[1 - slot]
    producer = None if other is None else other.producer()
    while (
        producer is not None
        and producer.op_type in ("Mul", "Cast", "Reshape", "Identity")
        and producer.inputs
    ):
        other = producer.inputs[0]
        producer = None if other is None else other.producer()
    return producer is not None and producer.op_type.startswith("Random")


def _cache(case: Case) -> Made:
    return 0.3 * case.rng.standard_normal(case.shape), f"a cache of {case.setting.past} tokens, small values"


def _state(case: Case) -> Made:
    return 0.1 * case.rng.standard_normal(case.shape), "a state of small values"


def _features(case: Case) -> Made:
    found = domain_values(case)
    if found is not None:
        return found
    if case.facts.kind == "c":
        return features(case.rng, case.shape) + 1j * features(case.rng, case.shape), "normal values"
    return features(case.rng, case.shape), "normal values"


MAKERS: dict[Role, Callable[[Case], Made]] = {
    Role.OPERAND: _operand,
    Role.TOKENS: _tokens,
    Role.MASK: _mask,
    Role.SEGMENTS: _segments,
    Role.POSITIONS: _positions,
    Role.LENGTHS: _lengths,
    Role.CACHE: _cache,
    Role.STATE: _state,
    Role.RATE: _rate,
    Role.STRINGS: _strings,
    Role.CATEGORIES: _categories,
    Role.TABLE: _table,
    Role.IMAGE: _image,
    Role.AUDIO: _audio,
    Role.SCALE: _scale,
    Role.SWITCH: _switch,
    Role.NUMBERS: _numbers,
    Role.FEATURES: _features,
}
