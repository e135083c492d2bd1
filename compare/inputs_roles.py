"""What each input of a model is for, told from the graph first and from its name where that leaves a doubt.

The role decides what the axes mean (:func:`axis_labels`) and which values suit (``inputs_values.py``).
Roles are tried in the order of :data:`RULES`; the first that fits is taken.
"""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from graphdoc.compare.inputs_facts import RECURRENT, Facts
from graphdoc.compare.inputs_index import indexes, limits
from graphdoc.compare.inputs_operands import operand_use
from graphdoc.compare.inputs_tabular import MODEL_OPERATORS, attribute, categories, fitted
from graphdoc.compare.inputs_uses import Use


class Role(StrEnum):
    """The kinds of inputs that get values of their own kind."""

    OPERAND = "operand"
    TOKENS = "tokens"
    MASK = "mask"
    SEGMENTS = "segments"
    POSITIONS = "positions"
    LENGTHS = "lengths"
    CACHE = "cache"
    STATE = "state"
    RATE = "rate"
    STRINGS = "strings"
    CATEGORIES = "categories"
    TABLE = "table"
    IMAGE = "image"
    AUDIO = "audio"
    SCALE = "scale"
    SWITCH = "switch"
    NUMBERS = "numbers"
    FEATURES = "features"


NAMES: dict[Role, re.Pattern[str]] = {
    Role.MASK: re.compile(r"mask(s|ing)?(?!ed)(_|$)"),
    Role.SEGMENTS: re.compile(r"(token_type|segment(_id)?s?|type_ids)(_|$)"),
    Role.POSITIONS: re.compile(r"(^|_)(position|positions|pos_ids?|cache_position)(_|$)"),
    Role.LENGTHS: re.compile(r"(^|_)(len|lens|length|lengths|seqlens?|seqlens_k|nframes|num_frames)\d*$"),
    Role.CACHE: re.compile(r"(^|_)(past|kv|presents?|key_cache|value_cache|cached?_(k|v|key|value))(_|$)"),
    Role.STATE: re.compile(
        r"^(h|c|hx|cx|hc)\d*$|^(h|c)_?(0|in|prev|init)$"
        r"|^(?!.*(encoder|last|attention|hidden_states)).*(^|_)(state|states|hidden|cell|cache|caches|mems|rnn|gru|lstm"
        r"|context_in|buffer|conv_buf)(_?(in|prev|h|c|\d+))*$"
    ),
    Role.RATE: re.compile(r"^(sr|fs|rate|sample_rate|sampling_rate|samplerate)$"),
    Role.AUDIO: re.compile(
        r"(^|_)(audio|wav|wave|waveform|waveforms|pcm|speech|sound|samples?|noisy|mic|farend|nearend)(_|$)"
        r"|^input_values$|^raw_speech$|^signal$"
    ),
    Role.IMAGE: re.compile(r"(^|_)(image|images|img|imgs|pixel_values|pixels|photo|frame|frames)(_|$)"),
    Role.SCALE: re.compile(
        r"(^|_)(scale|scales|temperature|temp|alpha|speed|pace|ratio|penalty|guidance|threshold|thresh|gain"
        r"|strength|sigma|noise_level|conf|iou|top_p|std)(_|$)"
    ),
}
"""Names in lower case with ``_`` between words; used where the graph leaves a doubt."""


_STATE_SLOTS = (("LSTM", 5), ("LSTM", 6), ("GRU", 5), ("RNN", 5), ("DynamicQuantizeLSTM", 5))
_CACHE_SLOTS = (
    ("Attention", 4),
    ("Attention", 5),
    ("GroupQueryAttention", 3),
    ("GroupQueryAttention", 4),
    ("MultiHeadAttention", 6),
    ("MultiHeadAttention", 7),
    ("DecoderMaskedMultiHeadAttention", 5),
    ("DecoderMaskedMultiHeadAttention", 6),
    ("TensorScatter", 0),
)
_LENGTH_SLOTS = (
    ("LSTM", 4),
    ("GRU", 4),
    ("RNN", 4),
    ("ReverseSequence", 1),
    ("GroupQueryAttention", 5),
    ("Attention", 6),
)
_MASK_OPERANDS = (("EmbedLayerNormalization", 7), ("MultiHeadAttention", 4), ("Attention", 3))
_POSITION_SLOTS = (("RotaryEmbedding", 1), ("RotaryEmbedding", 3), ("EmbedLayerNormalization", 6))
_MASK_SLOTS = (("Where", 0), ("Not", 0), ("And", 0), ("And", 1), ("GatherND", 0), ("Sub", 1))
_COLOURS = (1, 3, 4)
_LATENT = re.compile(r"(^|_)(latents?|sample|noise|z)(_|$)")


def role_of(facts: Facts) -> Role:
    """Return the first role whose rule fits; FEATURES for floats and NUMBERS for integers otherwise."""
    for role, fits in RULES:
        if fits(facts):
            return role
    return Role.NUMBERS if facts.integer else Role.FEATURES


def named(facts: Facts, role: Role) -> bool:
    """Whether the input's name is one of that role."""
    return bool(NAMES[role].search(facts.name))


def _small(facts: Facts) -> bool:
    return facts.rank is not None and facts.rank <= 1


def _is_operand(facts: Facts) -> bool:
    use = operand_use(facts.uses)
    return use is not None and not (_is_length(facts) or named(facts, Role.MASK) or facts.kind == "O")


def _is_mask(facts: Facts) -> bool:
    fused = (facts.rank or 0) > 1 and bool(facts.reaching(*_MASK_OPERANDS))
    return (fused or named(facts, Role.MASK)) and not any(limit.exact for limit in limits(facts))


def _is_position(facts: Facts) -> bool:
    return facts.integer and (named(facts, Role.POSITIONS) or bool(facts.reaching(*_POSITION_SLOTS)))


def _is_length(facts: Facts) -> bool:
    if facts.integer and facts.rank == 1 and facts.reaching(("Attention", 3), ("MultiHeadAttention", 4)):
        return True
    if not facts.integer or (facts.rank or 0) > 2 or facts.name.startswith(("max", "min")):
        return False
    return named(facts, Role.LENGTHS) or bool(facts.reaching(*_LENGTH_SLOTS))


def _is_token(facts: Facts) -> bool:
    """Integers that index a table; floats only where the table is certain (a model that casts them)."""
    return indexes(facts) if facts.integer else facts.kind == "f" and bool(limits(facts))


def _is_table(facts: Facts) -> bool:
    if facts.rank not in (1, 2) or facts.kind == "O":
        return False
    if any(use.slot == 0 and use.op in MODEL_OPERATORS for use in facts.uses):
        return True
    columns = facts.size(-1)
    return facts.rank == 2 and columns is not None and fitted(facts, columns) is not None


def _is_rate(facts: Facts) -> bool:
    return facts.elements == 1 and (named(facts, Role.RATE) or rate(facts) is not None)


def rate(facts: Facts) -> int | None:
    """Return the first of the numbers from 1000 on that the input is compared with: sampling rates."""
    for use in facts.reaching(("Equal", 0), ("Equal", 1)):
        constant = facts.walker.constant(use.node.inputs[1 - use.slot])
        if (
            constant is not None
            and constant.size == 1
            and constant.dtype.kind in "iuf"
            and constant.item() >= 1000
        ):
            return int(constant.item())
    return None


def sampling_rate(inputs: Iterable[Facts]) -> int:
    """Return the sampling rate a model compares its input with, else 16 kHz."""
    return next((found for facts in inputs if (found := rate(facts)) is not None), 16000)


def _is_cache(facts: Facts) -> bool:
    if facts.kind != "f" or (facts.rank or 0) < 3:
        return False
    return bool(facts.reaching(*_CACHE_SLOTS)) or named(facts, Role.CACHE)


def _is_state(facts: Facts) -> bool:
    if facts.kind != "f" or facts.reaching(*_STATE_SLOTS):
        return facts.kind == "f"
    return named(facts, Role.STATE) and (len(facts.name) > 3 or facts.convolution is None)


def _is_image(facts: Facts) -> bool:
    axes = image_axes(facts) if facts.kind in "fu" or facts.spec.dtype_name == "int8" else None
    if axes is None:
        return False
    latent = axes[2] is not None and facts.size(axes[2]) == 4 and bool(_LATENT.search(facts.name))
    return not latent


def image_axes(facts: Facts) -> tuple[int, int, int | None] | None:
    """Return the axes of height, width and channels, None for what is no picture.

    1. A convolution in two dimensions with 1, 3 or 4 channels reads the input: its axes.
    2. Rank 4 or 5 with 1, 3 or 4 channels before or behind two axes that are open or at least 16.
    3. Rank 3 the same way, if the dtype is uint8 or the name says so.
    """
    use = facts.convolution
    if use is not None and (found := _convolved(facts, use)) is not None:
        return found
    rank = facts.rank or 0
    likely = rank in (4, 5) or (rank == 3 and (facts.kind == "u" or named(facts, Role.IMAGE)))
    if not likely:
        return None
    layouts = [(rank - 2, rank - 1, rank - 3), (rank - 3, rank - 2, rank - 1)]
    layouts += [(3, 4, 1)] if rank == 5 else []
    return next((axes for axes in layouts if _coloured(facts, *axes)), None)


def _convolved(facts: Facts, use: Use) -> tuple[int, int, int | None] | None:
    """Case 1; where the convolution takes a single made-up channel, the picture has no channel axis."""
    axes = use.path.axes
    if axes is None or len(axes) != 4 or axes[2] is None or axes[3] is None or facts.rank not in (3, 4, 5):
        return None
    weight = facts.walker.shape(use.node.inputs[3 if use.op == "QLinearConv" else 1])
    last = -1 if use.op == "NhwcFusedConv" else 1
    depth = None if weight is None else weight[last]
    channels = None if depth is None else depth * int(attribute(use.node, "group") or 1)
    if channels not in _COLOURS or (axes[1] is None and facts.rank != 3):
        return None
    return (axes[2], axes[3], axes[1])


def _coloured(facts: Facts, height: int, width: int, channel: int) -> bool:
    sizes = (facts.size(height), facts.size(width))
    return facts.size(channel) in _COLOURS and all(size is None or size >= 16 for size in sizes)


def _is_audio(facts: Facts) -> bool:
    if facts.rank not in (1, 2, 3) or facts.kind not in "fi" or facts.spec.dtype_name in ("int32", "int64"):
        return False
    spectral = facts.first(("STFT", "DFT")) is not None
    long = max((facts.size(axis) or 0) for axis in range(facts.rank)) >= 4000
    return spectral or long or facts.one_channel_1d() or (named(facts, Role.AUDIO) and _one_track(facts))


def _one_track(facts: Facts) -> bool:
    """Whether the shape is that of samples, not of features: open or long, at most two channels."""
    sizes = [facts.size(axis) for axis in range(facts.rank or 0)]
    if len(sizes) == 3:
        return any(size in (1, 2) for size in sizes[1:]) or sizes[1:] == [None, None]
    return bool(sizes) and (sizes[-1] is None or sizes[-1] >= 256)


def audio_axis(facts: Facts) -> int:
    """Return the axis of time: the one the convolution slides along, else the last that is not 1 or 2."""
    rank = facts.rank or 1
    spatial = facts.spatial
    if len(spatial) == 1 and spatial[0] is not None:
        return spatial[0]
    return rank - 2 if rank == 3 and facts.size(-1) in (1, 2) else rank - 1


def _is_scale(facts: Facts) -> bool:
    """A float or a few, by name or because the graph takes them apart; never a vector of features."""
    if facts.kind != "f" or not _small(facts):
        return False
    few = facts.elements is not None and facts.elements <= 8
    apart = few and any(use.path.part is not None for use in facts.uses)
    return facts.elements == 1 or apart or named(facts, Role.SCALE)


def _is_unnamed_mask(facts: Facts) -> bool:
    wide = facts.rank is not None and 2 <= facts.rank <= 4
    return (
        facts.kind in "iub"
        and wide
        and bool(facts.reaching(*_MASK_SLOTS))
        and facts.spec.dtype_name != "uint8"
    )


RULES: tuple[tuple[Role, Callable[[Facts], bool]], ...] = (
    (Role.STRINGS, lambda facts: facts.kind == "O"),
    (Role.CATEGORIES, lambda facts: bool(categories(facts))),
    (Role.MASK, _is_mask),
    (Role.SEGMENTS, lambda facts: facts.integer and named(facts, Role.SEGMENTS)),
    (Role.POSITIONS, _is_position),
    (Role.LENGTHS, _is_length),
    (Role.OPERAND, _is_operand),
    (Role.TOKENS, _is_token),
    (Role.TABLE, _is_table),
    (Role.RATE, _is_rate),
    (Role.MASK, _is_unnamed_mask),
    (Role.SWITCH, lambda facts: facts.kind == "b"),
    (Role.CACHE, _is_cache),
    (Role.STATE, _is_state),
    (Role.IMAGE, _is_image),
    (Role.AUDIO, _is_audio),
    (Role.SCALE, _is_scale),
)
"""Graph before name wherever the graph is certain; masks and the like before tokens, since a mask that
becomes positions by counting also reaches a table."""


# ---- what the axes mean -------------------------------------------------------------------------------

BATCH, ROWS, SEQUENCE, PAST, TOTAL, TIME = "batch", "rows", "sequence", "past", "total", "time"
SIDE, FRAMES = "side", "frames"
SAMPLES, HEIGHT, WIDTH, CHANNEL, FEATURE, OTHER = "samples", "height", "width", "channel", "feature", "other"

_PLAIN: dict[Role, dict[int, tuple[str, ...]]] = {
    Role.TOKENS: {1: (SEQUENCE,), 2: (BATCH, SEQUENCE), 3: (BATCH, OTHER, SEQUENCE)},
    Role.SEGMENTS: {1: (SEQUENCE,), 2: (BATCH, SEQUENCE), 3: (BATCH, OTHER, SEQUENCE)},
    Role.POSITIONS: {1: (SEQUENCE,), 2: (BATCH, SEQUENCE), 3: (OTHER, BATCH, SEQUENCE)},
    Role.MASK: {
        1: (TOTAL,),
        2: (BATCH, TOTAL),
        3: (BATCH, SEQUENCE, TOTAL),
        4: (BATCH, OTHER, SEQUENCE, TOTAL),
    },
    Role.LENGTHS: {1: (BATCH,), 2: (BATCH, OTHER)},
    Role.CACHE: {
        3: (BATCH, PAST, FEATURE),
        4: (BATCH, OTHER, PAST, FEATURE),
        5: (OTHER, BATCH, OTHER, PAST, FEATURE),
    },
    Role.STATE: {2: (BATCH, FEATURE), 3: (OTHER, BATCH, FEATURE), 4: (OTHER, BATCH, OTHER, FEATURE)},
    Role.STRINGS: {1: (ROWS,), 2: (ROWS, OTHER)},
    Role.CATEGORIES: {1: (ROWS,), 2: (ROWS, OTHER)},
    Role.TABLE: {1: (FEATURE,), 2: (ROWS, FEATURE)},
    Role.FEATURES: {
        1: (FEATURE,),
        2: (BATCH, FEATURE),
        3: (BATCH, TIME, FEATURE),
        4: (BATCH, CHANNEL, SIDE, SIDE),
    },
    Role.NUMBERS: {1: (ROWS,), 2: (BATCH, OTHER)},
    Role.SCALE: {1: (BATCH,)},
}

_SYMBOLS: dict[str, str] = {
    **dict.fromkeys(("total", "full", "kv"), TOTAL),
    **dict.fromkeys(("past", "cache", "cached"), PAST),
    **dict.fromkeys(("batch", "batchsize", "bs", "n", "b"), BATCH),
    **dict.fromkeys(("rows", "nodes", "edges", "points", "boxes", "objects", "items", "queries"), ROWS),
    **dict.fromkeys(("height", "h"), HEIGHT),
    **dict.fromkeys(("width", "w"), WIDTH),
    **dict.fromkeys(("channel", "channels", "c"), CHANNEL),
    **dict.fromkeys(("sample", "samples", "audio", "wav", "waveform"), SAMPLES),
    **dict.fromkeys(("frame", "frames", "time", "t"), TIME),
    **dict.fromkeys(("seq", "sequence", "token", "tokens", "phoneme", "phonemes", "word", "words"), SEQUENCE),
    **dict.fromkeys(("len", "length", "seqlen", "text", "s", "l"), SEQUENCE),
    **dict.fromkeys(("feature", "features", "feat", "hidden", "embedding", "embed"), FEATURE),
}
"""A word of a symbol → what the axis stands for. Letters count only where they are the whole symbol."""

_ALONG_TIME = (SAMPLES, TIME, SEQUENCE)
_OF_ENCODER = re.compile(r"(^|_)(encoder|enc|src|source|cross|memory)(_|$)")
"""What the encoder gives does not grow with the decoder's tokens."""

_OF_TOKENS = (Role.TOKENS, Role.SEGMENTS, Role.POSITIONS, Role.MASK)


def axis_labels(facts: Facts, role: Role) -> tuple[str, ...]:
    """Return what each axis of an input of known rank stands for: role first, then graph, then symbols."""
    rank = facts.rank or 0
    labels = list(_PLAIN.get(role, {}).get(rank) or (BATCH, *(OTHER,) * (rank - 1))[:rank])
    if role is Role.IMAGE and (axes := image_axes(facts)) is not None:
        labels = [BATCH, *[FRAMES] * (rank - 1)]
        _set(labels, zip(axes, (HEIGHT, WIDTH, CHANNEL), strict=True))
    elif role is Role.AUDIO:
        labels = [BATCH if axis == 0 else OTHER for axis in range(rank)]
        labels[audio_axis(facts)] = SAMPLES
    elif role is Role.CACHE:
        _along_concat(facts, labels)
    elif role is Role.FEATURES:
        _along_window(facts, labels)
    for axis, dim in enumerate(facts.spec.shape or ()):
        if isinstance(dim, str):
            labels[axis] = _by_symbol(dim, labels[axis])
    if role is Role.FEATURES and facts.convolution is None:
        labels = [_sequence(facts, axis) if label == TIME else label for axis, label in enumerate(labels)]
    if _OF_ENCODER.search(facts.name):
        labels = [SEQUENCE if label in (PAST, TOTAL) else label for label in labels]
    if role in _OF_TOKENS:
        labels = [SEQUENCE if label in (TIME, SAMPLES) else label for label in labels]
    return tuple(labels)


def _sequence(facts: Facts, axis: int) -> str:
    """Return what time means for features: tokens, if the symbol says so."""
    dim = (facts.spec.shape or ())[axis]
    return SEQUENCE if isinstance(dim, str) and _named_by(dim) == SEQUENCE else TIME


def _set(labels: list[str], changes: Iterable[tuple[int | None, str]]) -> None:
    for axis, label in changes:
        if axis is not None and axis < len(labels):
            labels[axis] = label


def _along_concat(facts: Facts, labels: list[str]) -> None:
    """A cache grows along the axis of the Concat that reads it."""
    use = facts.first(("Concat",)) or facts.first(("Concat",), 1)
    attribute = None if use is None else use.node.attributes.get("axis")
    if (
        use is None
        or attribute is None
        or use.path.axes is None
        or use.path.axes != tuple(range(len(labels)))
    ):
        return
    axis = int(attribute.value) % len(labels)
    if PAST in labels and labels[axis] != BATCH:
        labels[labels.index(PAST)], labels[axis] = labels[axis], PAST


def _along_window(facts: Facts, labels: list[str]) -> None:
    """Axes of a convolution or a recurrent layer that reads the input."""
    use = facts.first(RECURRENT)
    if use is not None and use.path.axes is not None and len(use.path.axes) == 3:
        swapped = use.node.attributes.get("layout") is not None and use.node.attributes["layout"].value
        _set(
            labels,
            zip(use.path.axes, (BATCH, TIME, FEATURE) if swapped else (TIME, BATCH, FEATURE), strict=True),
        )
    use = facts.convolution
    if use is not None and use.path.axes is not None:
        spatial = (TIME,) if len(use.path.axes) == 3 else (SIDE, SIDE, SIDE)
        _set(labels, zip(use.path.axes, (BATCH, CHANNEL, *spatial), strict=False))


def _by_symbol(symbol: str, label: str) -> str:
    """Return the label a symbol names, where the role left it open or took it for a batch or a length."""
    named_label = _named_by(symbol)
    if named_label is None or label in (HEIGHT, WIDTH, CHANNEL, FRAMES):
        return label
    if label == SIDE:
        return TIME if named_label in _ALONG_TIME else label
    if named_label in _ALONG_TIME and label in (*_ALONG_TIME, TOTAL, PAST):
        return label
    if label in (ROWS, BATCH) and named_label in (BATCH, FEATURE, CHANNEL):
        return label
    return label if len(symbol) == 1 and label != OTHER else named_label


def _named_by(symbol: str) -> str | None:
    """Return the label of the first word that has one; ``past … +`` is the length of all tokens."""
    parts = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", symbol).lower())
    if "+" in symbol and "past" in parts:
        return TOTAL
    found = (_SYMBOLS.get(part) for part in parts if len(part) > 1 or len(symbol) == 1)
    return next((label for label in found if label is not None), None)
