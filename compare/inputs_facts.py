"""What is known of one input before values are made: its declaration, its name, where it goes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from graphdoc.compare.inputs_uses import Use, Walker
from graphdoc.engine.feeds import InputSpec

CONVOLUTIONS = ("Conv", "QLinearConv", "ConvInteger", "FusedConv", "NhwcFusedConv")
RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")


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


@dataclass(frozen=True)
class Setting:
    """The sizes all inputs get, and what they mean for each other.

    shapes: input name → shape. lengths: input name → size of its axis of tokens, frames or samples.
    sequence, past: number of tokens, and of those a cache holds. rate: samples a second.
    narrow: what the range of indices whose way to their table is not certain is divided by.
    """

    shapes: Mapping[str, tuple[int, ...]]
    lengths: Mapping[str, int]
    sequence: int
    past: int
    rate: int = 16000
    narrow: int = 1


@dataclass(frozen=True)
class Case:
    """One input whose values are to be made. The walker's knowledge is that of the last dry run."""

    facts: Facts
    shape: tuple[int, ...]
    rng: np.random.Generator = field(repr=False)
    setting: Setting

    @property
    def walker(self) -> Walker:
        """What is known of the model's values."""
        return self.facts.walker
