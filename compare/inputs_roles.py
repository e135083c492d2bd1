"""What each input of a model is for, told from the graph first and from its name second.

The role decides what its axes mean (:func:`axis_labels`) and which values suit it
(``inputs_values.py``). Roles are tried in the order of :data:`RULES`; the first that fits is taken.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import onnx_ir as ir

from graphdoc.compare.inputs_uses import Use, Walker
from graphdoc.engine.feeds import TENSOR, InputSpec


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
        r"|^(?!.*(encoder|last|attention)).*(^|_)(state|states|hidden|cell|cache|caches|mems|memory|rnn|gru|lstm"
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


@dataclass(frozen=True)
class Facts:
    """One input: what the model declares, where it goes, and the names to read."""

    spec: InputSpec
    uses: tuple[Use, ...]
    walker: Walker = field(repr=False)

    @cached_property
    def name(self) -> str:
        """The name in lower case, words split by ``_``."""
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.spec.name)
        return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")

    @property
    def kind(self) -> str:
        """NumPy's one-letter kind of the dtype; ``f`` for bfloat16 and float8 too, ``i`` for int4."""
        dtype = self.spec.dtype
        if dtype is None or dtype.kind != "V":
            return "f" if dtype is None else dtype.kind
        return "i" if "int" in dtype.name else "f"

    @property
    def integer(self) -> bool:
        """Whether the elements are integers."""
        return self.kind in "iu"

    @property
    def rank(self) -> int | None:
        """The number of axes, None when the model states none."""
        return None if self.spec.shape is None else len(self.spec.shape)

    def size(self, axis: int) -> int | None:
        """Return a declared size, None when it is open or there is no such axis."""
        shape = self.spec.shape or ()
        dim = shape[axis] if -len(shape) <= axis < len(shape) else None
        return dim if isinstance(dim, int) else None

    @cached_property
    def elements(self) -> int | None:
        """The number of elements if it is declared."""
        count = 1
        for axis in range(self.rank or 0):
            size = self.size(axis)
            if size is None:
                return None
            count *= size
        return None if self.rank is None else count

    def named(self, role: Role) -> bool:
        """Whether the name is one of that role."""
        return bool(NAMES[role].search(self.name))

    def reaching(self, *places: tuple[str, int]) -> list[Use]:
        """Return the uses at these operators and slots."""
        return [use for use in self.uses if use.at in places]

    def first(self, operators: Iterable[str], slot: int = 0) -> Use | None:
        """Return the nearest use by one of the operators."""
        wanted = frozenset(operators)
        return next((use for use in self.uses if use.op in wanted and use.slot == slot), None)

    @cached_property
    def convolution(self) -> Use | None:
        """The nearest convolution that reads this input."""
        return self.first(CONVOLUTIONS)

    @cached_property
    def spatial(self) -> tuple[int | None, ...]:
        """The input's axes behind the window axes of that convolution."""
        use = self.convolution
        return () if use is None or use.path.axes is None else use.path.axes[2:]

    def one_channel_1d(self) -> bool:
        """Whether the nearest convolution slides a window with one channel along one axis."""
        use = self.convolution
        if use is None:
            return False
        weight = self.walker.shape(use.node.inputs[3 if use.op == "QLinearConv" else 1])
        return weight is not None and len(weight) == 3 and weight[1] == 1


CONVOLUTIONS = ("Conv", "QLinearConv", "ConvInteger", "FusedConv", "NhwcFusedConv", "QLinearConv")
RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
STATE_SLOTS = frozenset(
    {("LSTM", 5), ("LSTM", 6), ("GRU", 5), ("RNN", 5), ("DynamicQuantizeLSTM", 5), ("DynamicQuantizeLSTM", 6)}
)
CACHE_SLOTS = frozenset(
    {
        ("Attention", 4),
        ("Attention", 5),
        ("GroupQueryAttention", 3),
        ("GroupQueryAttention", 4),
        ("MultiHeadAttention", 6),
        ("MultiHeadAttention", 7),
        ("DecoderMaskedMultiHeadAttention", 5),
        ("DecoderMaskedMultiHeadAttention", 6),
        ("TensorScatter", 0),
    }
)
LENGTH_SLOTS = frozenset(
    {
        ("LSTM", 4),
        ("GRU", 4),
        ("RNN", 4),
        ("ReverseSequence", 1),
        ("GroupQueryAttention", 5),
        ("Attention", 6),
    }
)
INDEX_SLOTS = frozenset(
    {
        ("Gather", 1),
        ("GatherElements", 1),
        ("GatherND", 1),
        ("GatherBlockQuantized", 1),
        ("ScatterElements", 1),
        ("ScatterND", 1),
        ("Scatter", 1),
        ("OneHot", 0),
        ("EmbedLayerNormalization", 0),
        ("EmbedLayerNormalization", 1),
        ("EmbedLayerNormalization", 6),
        ("QEmbedLayerNormalization", 0),
        ("QEmbedLayerNormalization", 1),
        ("ArrayFeatureExtractor", 1),
        ("NegativeLogLikelihoodLoss", 1),
        ("SoftmaxCrossEntropyLoss", 1),
        ("WordConvEmbedding", 0),
    }
)
OPERAND_SLOTS = frozenset(
    {
        ("Loop", 0),
        ("Loop", 1),
        ("If", 0),
        ("Reshape", 1),
        ("Expand", 1),
        ("ConstantOfShape", 0),
        ("Tile", 1),
        ("Slice", 1),
        ("Slice", 2),
        ("Slice", 3),
        ("Slice", 4),
        ("TopK", 1),
        ("Range", 0),
        ("Range", 1),
        ("Range", 2),
        ("Pad", 1),
        ("Resize", 2),
        ("Resize", 3),
        ("Upsample", 1),
        ("Unsqueeze", 1),
        ("Squeeze", 1),
        ("Split", 1),
        ("CumSum", 1),
        ("Trilu", 1),
        ("OneHot", 1),
        ("RoiAlign", 1),
        ("RoiAlign", 2),
        ("MaxRoiPool", 1),
        ("NonMaxSuppression", 0),
        ("NonMaxSuppression", 2),
        ("NonMaxSuppression", 3),
        ("NonMaxSuppression", 4),
        ("GridSample", 1),
        ("BatchNormalization", 4),
        ("Dropout", 1),
        ("Dropout", 2),
        ("STFT", 1),
        ("STFT", 3),
        ("DFT", 1),
        ("DFT", 2),
        ("DequantizeLinear", 1),
        ("QuantizeLinear", 1),
        ("DequantizeLinear", 2),
        ("QuantizeLinear", 2),
        ("SequenceAt", 1),
        ("SequenceInsert", 2),
        ("SequenceErase", 1),
        ("Bernoulli", 0),
        ("GroupQueryAttention", 6),
        ("BitShift", 1),
        ("AffineGrid", 1),
        ("HannWindow", 0),
        ("HammingWindow", 0),
        ("BlackmanWindow", 0),
        ("MelWeightMatrix", 0),
        ("MelWeightMatrix", 1),
        ("MelWeightMatrix", 2),
        ("MelWeightMatrix", 3),
        ("MelWeightMatrix", 4),
        ("EyeLike", 0),
        ("CenterCropPad", 1),
        ("Col2Im", 1),
        ("Col2Im", 2),
        ("MaxUnpool", 1),
        ("MaxUnpool", 2),
        ("ReduceSum", 1),
        ("ReduceMean", 1),
        ("ReduceMax", 1),
        ("ReduceMin", 1),
        ("ReduceProd", 1),
        ("ReduceL1", 1),
        ("ReduceL2", 1),
        ("ReduceLogSum", 1),
        ("ReduceLogSumExp", 1),
        ("ReduceSumSquare", 1),
        ("Compress", 1),
    }
)
"""Inputs whose values follow from the operator that reads them; ``inputs_operands.py`` says which."""
