"""ONNX operators → steps over views: a table of functions, one per operator.

A lowering is registered with :func:`lowering` and written like an operator function of ``engine/ops``::

    @lowering("Transpose")
    def transpose(at: Site, x: View, *, perm: Sequence[int] | None = None) -> View: ...

Positional parameters are the node's inputs as views (None for an omitted one), keyword-only ones its
attributes. The result is one view or one per output, :class:`Named` for one of strings, :class:`Counted` for
one whose length a run tells. A constant is a view of a CONSTANT buffer; :func:`content` gives its array,
:meth:`Site.known` that of an input the lowering cannot do without. Where the steps cannot say what the node
means, :class:`NotLowered` is raised and level 0 runs the node.

Where the first input is strings, a lowering with ``codes`` gets a view of int64 codes in their place: the
host looks each string up, ``codes(**attributes)`` being the function that does so, and ``Site.coded`` is set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import prod
from typing import Any, TypeAlias

import numpy as np

from graphdoc.engine import expr as ex
from graphdoc.engine.expr import DTYPES, Dtype, Expr
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.ops.table import TensorType, canonical_domain, round_defaults
from graphdoc.engine.program import Buffer, Kind, Program, Spec, Step, View, dense_strides, whole
from graphdoc.engine.sound import check

FAMILIES = (
    "elementwise",
    "layout",
    "rows",
    "pool",
    "products",
    "conv",
    "index",
    "resize",
    "einsum",
    "blocks",
    "attention",
    "attention_ms",
    "fused",
    "quantize",
    "integer",
    "qdq",
    "recurrent",
    "trees",
    "ml",
    "svm",
    "texts",
    "select",
    "sample",
    "scatter",
)
"""Modules ``engine/lower_<name>.py`` that register lowerings."""

_FOLDED = 1 << 16
"""Elements up to which a map of constants is computed at once."""


class NotLowered(Exception):  # noqa: N818 (no fault: the node runs on level 0)
    """The node runs on level 0; the text says why."""


@dataclass(frozen=True, slots=True)
class Named:
    """A result of strings: an entry of a table for each element of a view.

    names: an object array of rank 1. places: int64, from 0 to the table's end.
    """

    names: Any
    places: View


@dataclass(frozen=True, slots=True)
class Counted:
    """A result of which only a run can tell how long it is: the first rows of a view.

    rows: the most that there can be. count: int64, one element.
    """

    rows: View
    count: View


Lowered: TypeAlias = Callable[..., Any]
Coder: TypeAlias = Callable[..., Callable[[Any], Any] | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One lowering: from which since_version of the operator on, and whether empty inputs are welcome.

    codes: attributes → the function that gives strings their codes, int64 and as many, or None where level 0
    is to look them up; None: not for strings.
    """

    lower: Lowered
    since: int
    empty: bool
    codes: Coder | None = None


_TABLE: dict[tuple[str, str], Row] = {}


def lowering(
    *names: str,
    domain: str = "",
    since: int = 1,
    empty: bool = False,
    codes: Coder | None = None,
) -> Callable[[Lowered], Lowered]:
    """Register the decorated function for operators, of ``since`` or a newer since_version."""

    def register(function: Lowered) -> Lowered:
        round_defaults(function)
        for name in names:
            if (domain, name) in _TABLE:
                raise ValueError(f"{domain or 'ai.onnx'}::{name} is lowered twice")
            _TABLE[domain, name] = Row(function, since, empty, codes)
        return function

    return register


@cache
def _loaded() -> dict[tuple[str, str], Row]:
    for family in FAMILIES:
        import_module(f"graphdoc.engine.lower_{family}")
    return _TABLE


def find_lowering(domain: str, name: str, since: int) -> Row | None:
    """Return the lowering of an operator's since_version, None when level 0 runs it."""
    row = _loaded().get((canonical_domain(domain), name))
    return row if row is not None and since >= row.since else None


def content(view: View | None) -> Any:
    """Return a constant's array (read it only), None when the view is not constant."""
    if view is None or view.buffer.kind is not Kind.CONSTANT:
        return None
    return view.array(view.buffer.data)


def expressible(known: TensorType) -> bool:
    """Return whether a view can show a tensor of this type: dtype and sizes are known, and expressions have
    the dtype."""
    return known.dtype in DTYPES and sized(known)


def sized(known: TensorType) -> bool:
    """Return whether dtype and every size are known."""
    return (
        known.dtype is not None
        and known.shape is not None
        and all(isinstance(dim, int) for dim in known.shape)
    )


def memory_order(view: View) -> list[int]:
    """Return the axes, outermost in memory first; the axes' own order where that is not told by strides."""
    long = [axis for axis, size in enumerate(view.shape) if size > 1]
    if any(view.strides[axis] == 0 for axis in long):
        return list(range(len(view.shape)))
    short = [axis for axis, size in enumerate(view.shape) if size <= 1]
    return short + sorted(long, key=lambda axis: -abs(view.strides[axis]))


def largest(views: Sequence[View]) -> View | None:
    """Return the view that shows the most different elements, the first of equals; None for none."""
    return max(views, key=_distinct, default=None)


def _distinct(view: View) -> int:
    return prod(size for size, stride in zip(view.shape, view.strides, strict=True) if stride)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a tensor was dequantised from: (codes − zero) · scale, element by element; no zero stands for 0.

    All have the shape of ``floats``, which is the view of the result.
    """

    floats: View
    codes: View
    scale: View
    zero: View | None


@dataclass(slots=True)
class Site:
    """Where one node is lowered: what is known of it, and the program that its steps join.

    name: the node's, for messages. operator, version: its operator and since_version. outputs: how many it
    lists. coded: the first input is codes that stand for strings.
    """

    program: Program
    name: str = ""
    operator: str = ""
    version: int = 1
    outputs: int = 1
    coded: bool = False
    origins: dict[Buffer, Origin] = field(default_factory=dict)

    # ---- buffers ----------------------------------------------------------------------------------

    def fresh(self, shape: Sequence[int], dtype: Dtype, like: View | None = None) -> View:
        """Return a view of a whole new buffer, its axes in memory as those of ``like``."""
        shape = tuple(shape)
        order = list(range(len(shape)))
        if like is not None and len(like.shape) == len(shape):
            order = memory_order(like)
        buffer = Buffer(f"{self.name}.{len(self.program.steps)}", np.dtype(dtype), prod(shape))
        strides = dict(zip(order, dense_strides([shape[a] for a in order]), strict=True))
        return View(buffer, shape, tuple(strides[a] for a in range(len(shape))))

    def known(self, view: View | None, what: str) -> Any:
        """Return a constant's array. Raises NotLowered when it is not constant."""
        array = content(view)
        if array is None:
            raise NotLowered(f"{what} is not constant")
        return array

    # ---- steps ------------------------------------------------------------------------------------

    def step(self, spec: Spec, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Add a step; one that would write nothing is left out. Raises Unsound where its views do not fit."""
        if any(view.size for view in outputs):
            made = Step(spec, tuple(inputs), tuple(outputs), (self.name,))
            check(made)
            self.program.steps.append(made)

    def map(self, build: Callable[..., Expr], *views: View, shape: Sequence[int] | None = None) -> View:
        """Return a new value: ``build`` of one expression per view, element by element, broadcast.

        Constants of one element become part of the expression; a map of small constants is computed at once.
        """
        domain = tuple(np.broadcast_shapes(*(v.shape for v in views))) if shape is None else tuple(shape)
        expr, inputs = expression(build, views)
        if not inputs or (prod(domain) <= _FOLDED and all(v.buffer.kind is Kind.CONSTANT for v in inputs)):
            return self._folded(expr, inputs, domain)
        inputs = [v.broadcast(domain) for v in inputs]
        result = self.fresh(domain, expr.dtype, largest(inputs))
        self.step(Map((expr,)), inputs, [result])
        return result

    def _folded(self, expr: Expr, inputs: Sequence[View], domain: Sequence[int]) -> View:
        arrays = {k: np.broadcast_to(content(view), domain) for k, view in enumerate(inputs)}
        with np.errstate(all="ignore"):
            (result,) = ex.evaluate([expr], arrays, domain)
        return constant(np.broadcast_to(result, domain), self.name)

    def copy(self, source: View, target: View) -> None:
        """Write the elements of one view into another of the same shape."""
        self.step(Map((ex.load(0, source.dtype),)), [source], [target])

    def fill(self, value: Any, target: View) -> None:
        """Write one number into all of a view."""
        self.step(Map((ex.const(value, target.dtype),)), [], [target])

    def dense(self, view: View) -> View:
        """Return the view, or a row-major copy where it is not row-major itself."""
        if view.contiguous:
            return view
        return self.packed(view)

    def packed(self, view: View) -> View:
        """Return a row-major copy."""
        if view.buffer.kind is Kind.CONSTANT:
            return constant(np.array(content(view), order="C"), self.name)
        result = self.fresh(view.shape, view.dtype)
        self.copy(view, result)
        return result

    def reshape(self, view: View, shape: Sequence[int]) -> View:
        """Return the elements, in row-major order, in another shape: a view where strides can say it."""
        if prod(shape) != view.size:
            raise ValueError(f"shape {view.shape} does not become {tuple(shape)}")
        found = view.reshaped(shape)
        return whole(self.packed(view).buffer, shape) if found is None else found

    def cast(self, view: View, dtype: Dtype) -> View:
        """Return the elements in another dtype."""
        return view if view.dtype == dtype else self.map(lambda x: ex.cast(x, dtype), view)


def expression(build: Callable[..., Expr], views: Sequence[View]) -> tuple[Expr, list[View]]:
    """Return ``build`` of the views' elements, and the views that are its inputs, in their numbers' order."""
    arguments: list[Expr] = []
    inputs: list[View] = []
    for view in views:
        array = content(view) if view.size == 1 else None
        if array is not None:
            arguments.append(ex.const(array.reshape(()), view.dtype))
            continue
        if view not in inputs:
            inputs.append(view)
        arguments.append(ex.load(inputs.index(view), view.dtype))
    return build(*arguments), inputs


def constant(array: Any, name: str = "constant") -> View:
    """Return a view of a constant buffer; what an array repeats or permutes is not copied.

    array: of a dtype that expressions have.
    """
    array = np.asarray(array)
    once = tuple(
        slice(0, 1) if size > 1 and stride == 0 else slice(None)
        for size, stride in zip(array.shape, array.strides, strict=True)
    )
    base = array[once]
    order = sorted(range(base.ndim), key=lambda axis: -abs(base.strides[axis]))
    turned = base.transpose(order)
    strides = dict(zip(order, dense_strides(turned.shape), strict=True))
    buffer = Buffer(name, array.dtype, base.size, Kind.CONSTANT, np.ascontiguousarray(turned).reshape(-1))
    steps = (0 if base.shape[a] != array.shape[a] else strides[a] for a in range(array.ndim))
    return View(buffer, array.shape, tuple(steps))
