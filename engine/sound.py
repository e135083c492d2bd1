"""Whether a step's views are what its kernel takes: shapes, dtypes, and places inside their buffers.

A kernel believes its views. A lowering that misread a node, or a plan that was written by hand, would make
machine code read and write past its arrays; so every step is looked at when it is made or read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.expr import Expr, leaves, postorder
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.coupling import Coupling
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.recurrent import GATES, WIDTH, Recurrent
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.kernels.scatter import COMBINE, Scatter
from graphdoc.engine.kernels.suppression import Suppression
from graphdoc.engine.kernels.topk import TopK
from graphdoc.engine.kernels.trees import TOGETHER, Trees
from graphdoc.engine.kernels.winograd import Winograd
from graphdoc.engine.program import Spec, Step, View

Shape = tuple[int, ...]
_F4 = np.dtype(np.float32)


class Unsound(ValueError):  # noqa: N818 (it says what the step is)
    """A step's views are not what its kernel takes; the text says which."""


def check(step: Step) -> None:
    """Raise :class:`Unsound` where a step would touch what is not its own, or read what is not there."""
    for view in (*step.inputs, *step.outputs):
        _inside(view)
    look = _LOOKS.get(type(step.spec))
    if look is None:
        raise Unsound(f"no kernel is called {type(step.spec).__name__}")
    look(step.spec, step.inputs, step.outputs)


def _inside(view: View) -> None:
    if len(view.shape) != len(view.strides) or min(view.shape, default=0) < 0:
        raise Unsound(f"a view of no shape: {view.shape}")
    low, high = view.extent
    if low < 0 or high > view.buffer.size:
        raise Unsound(f"elements {low} to {high} of a buffer of {view.buffer.size}")


def _shaped(views: Iterable[View], shape: Sequence[int], what: str) -> None:
    for view in views:
        if view.shape != tuple(shape):
            raise Unsound(f"{what} of shape {view.shape} where the kernel takes {tuple(shape)}")


def _typed(views: Iterable[View], dtype: Any, what: str) -> None:
    for view in views:
        if view.dtype != dtype:
            raise Unsound(f"{what} of {view.dtype} where the kernel takes {dtype}")


def _counted(views: Sequence[Any], count: int, what: str) -> None:
    if len(views) != count:
        raise Unsound(f"{len(views)} {what} where the kernel takes {count}")


def _reads(
    exprs: Sequence[Expr], inputs: Sequence[View], rank: int, own: dict[int, Any] | None = None
) -> None:
    """Refuse leaves that name no input, or one of another dtype. own: dtypes of leaves that are no views."""
    known = {k: view.dtype for k, view in enumerate(inputs)} | (own or {})
    for root in exprs:
        for leaf in postorder(root):
            if leaf.op == "input" and known.get(leaf.attr) != leaf.dtype:
                raise Unsound(f"input {leaf.attr} read as {leaf.dtype}, which is {known.get(leaf.attr)}")
            if leaf.op == "index" and not 0 <= leaf.attr < rank:
                raise Unsound(f"a position along axis {leaf.attr} of {rank}")


def _map(spec: Map, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, len(spec.exprs), "outputs")
    domain = outputs[0].shape
    _shaped(outputs, domain, "an output")
    _shaped(inputs, domain, "an input")
    for expr, view in zip(spec.exprs, outputs, strict=True):
        _typed([view], expr.dtype, "an output")
    _reads(spec.exprs, inputs, len(domain))


def _rows(spec: Rows, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, len(spec.outputs), "outputs")
    domain = spec.domain(inputs, outputs)
    _shaped(inputs, domain, "an input")
    kept = domain[: len(domain) - spec.axes]
    if not 0 <= spec.axes <= len(domain):
        raise Unsound(f"{spec.axes} axes reduced of {len(domain)}")
    for out, view in zip(spec.outputs, outputs, strict=True):
        _shaped([view], domain if out.full else kept, "an output")
        _typed([view], out.expr.dtype, "an output")
    exprs = [*(part.expr for part in spec.stages), *(out.expr for out in spec.outputs)]
    _reads(exprs, inputs, len(domain))
    folded = {k: part.expr.dtype for k, part in enumerate(spec.stages)}
    for known, expr in enumerate(exprs):
        for leaf in (x for x in postorder(expr) if x.op == "stage"):
            if not 0 <= leaf.attr < min(known, len(spec.stages)) or folded[leaf.attr] != leaf.dtype:
                raise Unsound(f"stage {leaf.attr} read before it is known, or as another dtype")


def _followed(
    spec: Contraction | Winograd, inputs: Sequence[View], out: View, axes: Iterable[tuple[int, ...]]
) -> None:
    """Look at the epilogue, and at pairs of sizes of a and b that must be the same."""
    _shaped(inputs[2:], out.shape, "an operand")
    _typed([out], spec.epilogue.dtype, "an output")
    _reads([spec.epilogue], inputs, len(out.shape), {0: None, 1: None, -1: spec.accumulate})
    for a, b in axes:
        if a != b:
            raise Unsound(f"a size of {a} meets one of {b}")


def _contraction(spec: Contraction, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, 1, "outputs")
    (a, b), out = inputs[:2], outputs[0]
    batch, rows, terms = spec.batch, spec.rows, spec.terms
    _counted(a.shape, batch + rows + terms, "axes of the first input")
    _counted(out.shape, batch + rows + 1, "axes of the output")
    n, k = out.shape[-1], a.shape[batch + rows :]
    if spec.packed:
        flat = int(np.prod(k, dtype=np.int64))
        groups = spec.together
        inner = (flat, spec.packed) if groups == 1 else (-(-flat // groups), spec.packed, groups)
        _shaped([b], (*b.shape[:batch], -(-n // spec.packed), *inner), "packed weights")
    else:
        _shaped([b], (*b.shape[:batch], *k, n), "the second input")
    _followed(spec, inputs, out, zip(a.shape[: batch + rows], out.shape[:-1], strict=True))
    _shaped([b], (*out.shape[:batch], *b.shape[batch:]), "the second input")


def _winograd(spec: Winograd, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, 1, "outputs")
    (a, w), out = inputs[:2], outputs[0]
    _counted(a.shape, 6, "axes of the windows")
    _shaped([a], (*out.shape[:-1], 3, 3, a.shape[-1]), "the windows")
    panels = (-(-out.shape[-1] // spec.packed), (spec.size + 2) ** 2, a.shape[-1], spec.packed)
    _shaped([w], panels, "the tiles")
    _followed(spec, inputs, out, ())
    if min(out.shape[1:3]) < spec.size:
        raise Unsound(f"tiles of {spec.size} in an output of {out.shape[1:3]}")


def _gather(spec: Gather, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(inputs, 2, "inputs")
    _counted(outputs, 1, "outputs")
    (data, index), out = inputs, outputs[0]
    _shaped([index], out.shape, "the index")
    if not 0 <= spec.axis < len(out.shape):
        raise Unsound(f"axis {spec.axis} of {len(out.shape)}")
    looked = list(out.shape)
    looked[spec.axis] = data.shape[spec.axis] if spec.axis < len(data.shape) else -1
    _shaped([data], looked, "the table")
    _typed([out], data.dtype, "an output")
    if index.dtype not in (np.int32, np.int64):
        raise Unsound(f"an index of {index.dtype}")


def _attention(spec: Attention, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, 1, "outputs")
    (q, k, v), out = inputs[:3], outputs[0]
    _counted(q.shape, spec.batch + 2, "axes of the queries")
    batch, (s, d) = q.shape[: spec.batch], q.shape[spec.batch :]
    t = k.shape[-2] if len(k.shape) >= 2 else -1
    _shaped([k], (*batch, t, d), "the keys")
    _shaped([v], (*batch, t, v.shape[-1]), "the values")
    _shaped([out], (*batch, s, v.shape[-1]), "an output")
    _shaped(inputs[3:], (*batch, s, t), "a mask")
    _typed([q, k, v, out], _F4, "an array")
    own = {0: None, 1: None, 2: None, -1: _F4}
    _reads([spec.score], inputs, spec.batch + 2, own)


def _recurrent(spec: Recurrent, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    lstm = spec.cell == "LSTM"
    _counted(outputs, 3 if lstm else 2, "outputs")
    _counted(inputs, 3 + (lstm or spec.before_reset) + spec.lengths + spec.codes, "inputs")
    y, gates = outputs[0], GATES[spec.cell]
    _counted(y.shape, 4, "axes of the output")
    d, t, b, hidden = y.shape
    _counted(spec.reverse, d, "directions")
    state = (d, b, hidden)
    _shaped([inputs[0]], (d, t, b, gates, hidden), "the first input")
    blocks = -(-hidden // WIDTH)
    packed = (-(-hidden // 2), gates, WIDTH, 2) if spec.codes else (gates, hidden, WIDTH)
    _shaped([inputs[1]], (d, blocks, *packed), "the weights")
    _shaped([inputs[2], *outputs[1:]], state, "a state")
    if lstm or spec.before_reset:
        _shaped([inputs[3]], state if lstm else (d, hidden), "a state")
    if spec.lengths:
        _shaped([inputs[-1]], (b,), "the lengths")
        _typed([inputs[-1]], np.int32, "the lengths")
    if spec.codes:
        if not lstm or spec.lengths:
            raise Unsound("codes in another cell than an LSTM's, or with lengths")
        _shaped([inputs[-1]], (d, gates, hidden), "the scales")
    rest = inputs[2:-1] if spec.lengths else inputs[2:]
    _typed([inputs[1]], np.int8 if spec.codes else _F4, "the weights")
    _typed([*outputs, inputs[0], *rest], _F4, "an array")
    for expr in spec.activations:
        if leaves([expr], "input") not in ([0], []):
            raise Unsound("an activation of more than its input")


def _trees(spec: Trees, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(outputs, 1, "outputs")
    x, records, roots, steps, *values = inputs
    _counted(x.shape, 2, "axes of the features")
    columns = outputs[0].shape[-1]
    _shaped(outputs, (x.shape[0], columns), "an output")
    _counted(roots.shape, 1, "axes of the roots")
    _shaped([steps], (roots.size // TOGETHER,), "the steps")
    if roots.size % TOGETHER or (not values and columns != 1):
        raise Unsound("roots of no whole group, or leaves without values")
    for view in values:
        _shaped([view], (view.shape[0], max(columns, view.shape[-1])), "the leaves' values")
    _typed([x, *values, *outputs], _F4, "an array")
    _typed([records], np.uint64, "the records")
    _typed([roots, steps], np.int64, "the roots")


def _coupling(spec: Coupling, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(inputs, 1, "inputs")
    _counted(outputs, 1, "outputs")
    rows, classes = outputs[0].shape[0], spec.classes
    _shaped(outputs, (rows, classes), "an output")
    _shaped(inputs, (rows, classes * (classes - 1) // 2), "the shares")
    _typed([*inputs, *outputs], _F4, "an array")
    if classes < 2:
        raise Unsound("a single class")


def _topk(spec: TopK, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(inputs, 1, "inputs")
    _counted(outputs, 2, "outputs")
    x, (values, indices) = inputs[0], outputs
    _shaped([values, indices], (*x.shape[:-1], values.shape[-1]), "an output")
    _typed([values], x.dtype, "the values")
    _typed([indices], np.int64, "the indices")
    if not 0 < values.shape[-1] <= x.shape[-1]:
        raise Unsound(f"the first {values.shape[-1]} of {x.shape[-1]}")


def _suppression(spec: Suppression, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(inputs, 2, "inputs")
    _counted(outputs, 2, "outputs")
    boxes, scores = inputs
    _counted(scores.shape, 3, "axes of the scores")
    batch, classes, count = scores.shape
    _shaped([boxes], (batch, count, 4), "the boxes")
    _shaped([outputs[0]], (batch * classes * min(spec.limit, count), 3), "the rows")
    _shaped([outputs[1]], (1,), "the count")
    _typed(inputs, _F4, "an array")
    _typed(outputs, np.int64, "an output")
    if spec.limit < 1:
        raise Unsound("no box is kept")


def _scatter(spec: Scatter, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    _counted(inputs, 3, "inputs")
    _counted(outputs, 1, "outputs")
    (data, index, updates), out = inputs, outputs[0]
    _shaped([data], out.shape, "the data")
    _shaped([updates], index.shape, "the updates")
    _typed([data, updates], out.dtype, "an array")
    if not 0 <= spec.axis < len(out.shape) or len(index.shape) != len(out.shape):
        raise Unsound(f"axis {spec.axis} of {len(out.shape)}")
    sizes = list(zip(index.shape, out.shape, strict=True))
    if any(n > m for axis, (n, m) in enumerate(sizes) if axis != spec.axis):
        raise Unsound(f"indices {index.shape} in an output of {out.shape}")
    if index.dtype not in (np.int32, np.int64) or spec.reduction not in COMBINE:
        raise Unsound(f"an index of {index.dtype}, reduction {spec.reduction}")


_LOOKS: dict[type[Spec], Callable[[Any, Sequence[View], Sequence[View]], None]] = {
    Map: _map,
    Rows: _rows,
    Contraction: _contraction,
    Winograd: _winograd,
    Gather: _gather,
    Attention: _attention,
    Recurrent: _recurrent,
    Trees: _trees,
    Coupling: _coupling,
    TopK: _topk,
    Scatter: _scatter,
    Suppression: _suppression,
}
