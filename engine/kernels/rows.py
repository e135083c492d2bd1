"""Reductions over rows, and what is computed of a row once they are known: sums, norms, softmax, pools.

The domain is ``rows + reduced`` axes; the last ``axes`` of them are reduced. Stage k folds its expression
over the reduced axes; later stages and the outputs may use the results of earlier ones. So softmax is two
stages and one output, a layer norm likewise, and a sum over windows (pooling, a depthwise convolution) has
views whose windows overlap. Whether a device keeps a row in registers, runs along the reduced axes or across
the kept ones follows from the strides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdoc.engine.expr import Expr, evaluate

_FOLDS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """fold: sum, prod, max, min (NaN if any is), and, or; in the dtype of expr, from its neutral element.

    A sum or product in float16 or bfloat16 is kept in float32 and rounded once.
    """

    fold: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Output:
    """expr over inputs, stages (and for a full one, the element): one number per row, or one per element."""

    expr: Expr
    full: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """axes: how many trailing axes of the domain are reduced.

    Every input view has the domain's shape. A full output has it too; any other has the rows' shape alone,
    and its expression uses stages, and inputs that do not vary along the reduced axes (stride 0 there). No
    output may share memory with an input: a device may compute some elements twice.
    """

    axes: int
    stages: tuple[Reduction, ...]
    outputs: tuple[Output, ...]

    def evaluate(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute with NumPy."""
        domain = self.domain(inputs, outputs)
        reduced = tuple(range(len(domain) - self.axes, len(domain)))
        stages: list[Any] = []
        for part in self.stages:
            (values,) = evaluate((part.expr,), dict(enumerate(inputs)), domain, stages)
            stages.append(_folded(part.fold, np.broadcast_to(values, domain), reduced))
        for spec, output in zip(self.outputs, outputs, strict=True):
            (values,) = evaluate((spec.expr,), dict(enumerate(inputs)), domain, stages)
            output[...] = values if spec.full else _first(values, len(domain), self.axes)

    def domain(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, ...]:
        """Return the shape of the domain; of arrays or views alike."""
        if inputs:
            return tuple(inputs[0].shape)
        return next(tuple(o.shape) for s, o in zip(self.outputs, outputs, strict=True) if s.full)


def _folded(fold: str, values: Any, axes: tuple[int, ...]) -> Any:
    """Fold over the axes, kept with size 1."""
    narrow = values.dtype.kind not in "biu" and values.dtype.itemsize < 4
    wide = values.astype(np.float32) if narrow and fold in ("sum", "prod") else values
    return _FOLDS[fold].reduce(wide, axis=axes, keepdims=True, dtype=wide.dtype).astype(values.dtype)


def _first(values: Any, rank: int, axes: int) -> Any:
    """Return what a row's every element shares: the first along the reduced axes."""
    values = np.asarray(values)
    aligned = values.reshape((1,) * (rank - values.ndim) + values.shape)
    return aligned[(..., *(0,) * axes)]
