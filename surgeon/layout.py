"""Where weights lie when a model is saved: in the model, in one file beside it, or in a file each."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.tensors import Densified

ALWAYS_INSIDE = 16
"""Elements up to which a tensor stays in the model whatever the threshold."""

SIZES_INSIDE = 1024
"""The same for integer vectors: targets, axes, splits. Runtimes read them before they open any data file."""

THRESHOLD = 1024
"""Bytes from which on a weight goes to a file, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is written where.

    location: a file name relative to the model's folder for all weights together, or, ending in "/", a folder
    with a file for each; "" keeps all weights in the model. threshold: bytes; smaller weights stay in the
    model, and so do vectors that say shapes, and sparse weights.

    Raises UsageError for a negative threshold.
    """

    location: str = ""
    threshold: int = THRESHOLD

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise UsageError(
                f"a threshold of {self.threshold} bytes makes no sense", next_step="give 0 or more"
            )

    def files(self, values: Iterable[ir.Value]) -> dict[str, list[ir.TensorProtocol]]:
        """Return the tensors of initializers that go to files, by location."""
        found: dict[str, list[ir.TensorProtocol]] = {}
        names: set[str] = set()
        seen: set[int] = set()
        for value in values:
            tensor = value.const_value
            if (
                tensor is None
                or isinstance(tensor, Densified)
                or id(tensor) in seen
                or not self._moves(tensor)
            ):
                continue
            seen.add(id(tensor))
            found.setdefault(self._place(str(value.name), names), []).append(tensor)
        return found

    def _moves(self, tensor: ir.TensorProtocol) -> bool:
        if not self.location or tensor.dtype == ir.DataType.STRING or tensor.size <= ALWAYS_INSIDE:
            return False
        if isinstance(tensor, Densified):
            return False
        sizes = tensor.dtype.is_integer() and len(tensor.shape) <= 1 and tensor.size <= SIZES_INSIDE
        return not sizes and tensor.nbytes >= self.threshold

    def _place(self, name: str, taken: set[str]) -> str:
        if not self.location.endswith("/"):
            return self.location
        plain = re.sub(r"[^\w.-]+", "_", name).strip("._")[:100] or "weight"
        location, number = f"{self.location}{plain}", 1
        while location.lower() in taken:  # some file systems do not tell case
            number += 1
            location = f"{self.location}{plain}_{number}"
        taken.add(location.lower())
        return location


def stored(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the initializers of a model, in subgraphs too."""
    for graph in model.graphs():
        yield from graph.initializers.values()
