"""A layer on which the engine and ONNX Runtime differ, and how near each is to the other and float64."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx


@dataclass(frozen=True)
class Suspect:
    """A layer that differs. a: ours. b: ONNX Runtime's. truth, limit: of a float64 run, None without one."""

    node: onnx.NodeProto
    index: int
    opset: int
    inputs: list[Any]
    a: Any
    b: Any
    truth: Any
    limit: Any

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute's value."""
        found = [onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name]
        return found[0] if found else default

    @property
    def comparable(self) -> bool:
        """Whether both results are arrays of one dtype and shape."""
        return hasattr(self.a, "dtype") and (self.a.dtype, self.a.shape) == (
            getattr(self.b, "dtype", None),
            getattr(self.b, "shape", None),
        )

    @property
    def floats(self) -> list[Any]:
        """The float inputs as float64."""
        arrays = [x for x in self.inputs if isinstance(x, np.ndarray) and x.dtype.kind not in "iubO"]
        return [x.astype(np.float64) for x in arrays]

    @property
    def differing(self) -> Any:
        """A mask of the elements that differ at all."""
        return ~((self.a == self.b) | ((self.a != self.a) & (self.b != self.b)))

    def close(self, factor: float) -> Any:
        """Return a mask of the elements as near to each other as rounding of inputs moves them."""
        if self.truth is None or self.limit is None or self.truth.shape != self.a.shape:
            return np.zeros(self.a.shape, bool)
        eps = float(ml_dtypes.finfo(self.a.dtype).eps)
        with np.errstate(all="ignore"):
            gap = np.abs(self.a.astype(np.float64) - self.b.astype(np.float64))
            return gap <= factor * (eps * np.abs(self.truth) + self.limit)

    def ours_is_true(self, units: float = 8, *, where: Any = True) -> bool:
        """Whether the engine's result is the float64 one but for rounding, on the elements of the mask."""
        if self.truth is None or not self.comparable or self.truth.shape != self.a.shape:
            return False
        facts = ml_dtypes.finfo(self.a.dtype)
        with np.errstate(all="ignore"):
            gap = np.abs(self.a.astype(np.float64) - self.truth)
            moved = 0 if self.limit is None else 4 * self.limit
            fine = gap <= units * float(facts.eps) * np.abs(self.truth) + float(facts.smallest_normal) + moved
            fine &= np.isfinite(self.a)
            same = (self.a == self.truth) | (np.isnan(self.a) & np.isnan(self.truth))
            over = np.isinf(self.a) & (np.abs(self.truth) >= float(facts.max))
        return bool(np.all(fine | same | over | ~np.asarray(where)))

    def ours_within(self, bound: float) -> bool:
        """Whether ours lies this near to the float64 result, of its largest element where that is over 1."""
        if self.truth is None or self.truth.shape != self.a.shape:
            return False
        with np.errstate(all="ignore"):
            gap = np.abs(self.a.astype(np.float64) - self.truth)
            size = np.max(np.abs(self.truth[np.isfinite(self.truth)]), initial=1.0)
            fine = (gap <= bound * size) & np.isfinite(self.a)
            return bool(np.all(fine | (self.a == self.truth) | (np.isnan(self.truth) & np.isnan(self.a))))

    def theirs_within(self, relative: float, absolute: Any, *, finite: Any = False) -> bool:
        """Whether ONNX Runtime's result lies this near to ours: of the largest element, and plain.

        absolute, finite: one each, or arrays that broadcast to the elements. finite: only elements count that
        are finite on both sides.
        """
        x, y = self.a.astype(np.float64), self.b.astype(np.float64)
        size = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
        with np.errstate(all="ignore"):
            fine = (np.abs(x - y) <= relative * size + absolute) & np.isfinite(x) & np.isfinite(y)
        fine |= np.asarray(finite) & (~np.isfinite(x) | ~np.isfinite(y))
        return bool(np.all(fine | (x == y) | (np.isnan(x) & np.isnan(y))))
