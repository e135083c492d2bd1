"""Scalar expressions: what a kernel computes for one element, the same for every device.

An :class:`Expr` is an immutable tree over about forty operations; equal trees are the same object, so that a
dictionary finds shared parts at once. Every node has a dtype; nothing is converted but by ``cast``. An
operation on float16 or bfloat16 rounds its result to that dtype, whatever the device computes in. Emitters
are tables from :data:`OPERATIONS` to text or functions: NumPy's stands here, LLVM's in ``device/llvm``.

Leaves:

* ``input`` with ``attr`` k: the k-th input of the step at this element; for a contraction's epilogue, k = -1
  is the accumulated sum.
* ``stage`` with ``attr`` k: the k-th reduction of the row (``kernels/rows.py``).
* ``index`` with ``attr`` d: this element's int64 position on axis d of the step's domain.
* ``const`` with ``attr`` the number.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

Dtype = np.dtype[Any]
BOOL = np.dtype(np.bool_)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
I8, I16, I32, I64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
U8, U16, U32, U64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
DTYPES = (BOOL, F16, BF16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64)
"""Every dtype an expression may have; tensors of others run by level 0."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Expr:
    """One operation on expressions; build them with the functions below, which give equal trees once.

    attr: of a leaf, its number (of a constant, the bytes of it); None otherwise.
    """

    op: str
    args: tuple["Expr", ...]
    dtype: Dtype
    attr: Any = None

    @property
    def value(self) -> Any:
        """Return a constant's number, as a NumPy scalar of its dtype."""
        return np.frombuffer(self.attr, self.dtype)[0]

    def __reduce__(self) -> Any:
        return make, (self.op, self.args, self.dtype, self.attr)


_KNOWN: WeakValueDictionary[Any, Expr] = WeakValueDictionary()
_LOCK = Lock()


def make(op: str, args: tuple[Expr, ...], dtype: Dtype, attr: Any = None) -> Expr:
    """Return the one expression of these parts, unchecked; :func:`apply` checks."""
    key = (op, args, dtype, attr)
    with _LOCK:
        found = _KNOWN.get(key)
        if found is None:
            found = _KNOWN[key] = Expr(op, args, dtype, attr)
    return found


def load(k: int, dtype: Dtype) -> Expr:
    """Return the step's k-th input at this element (k = -1: a contraction's sum)."""
    return make("input", (), dtype, k)


def const(value: Any, dtype: Dtype) -> Expr:
    """Return a constant, rounded to the dtype."""
    with np.errstate(all="ignore"):
        return make("const", (), dtype, np.asarray(value).astype(dtype).tobytes())


def stage(k: int, dtype: Dtype) -> Expr:
    """Return the result of the row's k-th reduction."""
    return make("stage", (), dtype, k)


def index(axis: int) -> Expr:
    """Return this element's position on an axis of the domain, as int64."""
    return make("index", (), I64, axis)


def cast(x: Expr, dtype: Dtype) -> Expr:
    """Return x converted as NumPy's ``astype`` does, bfloat16 by way of float32; to bool: x != 0."""
    return x if x.dtype == dtype else make("cast", (x,), dtype)


def apply(op: str, *args: Expr) -> Expr:
    """Return an operation of :data:`OPERATIONS` on arguments of fitting dtypes.

    Raises ValueError when the number or the dtypes of the arguments do not fit: a fault of the caller.
    """
    row = OPERATIONS[op]
    values = args[1:] if op == "select" else args
    if (
        len(args) != row.arity
        or len({a.dtype for a in values}) != 1
        or (op == "select" and args[0].dtype != BOOL)
    ):
        raise ValueError(f"{op} of {', '.join(str(a.dtype) for a in args)}")
    return make(op, args, BOOL if row.predicate else values[0].dtype)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table: how many arguments, NumPy's function, and whether the result is a bool."""

    arity: int
    numpy: Callable[..., Any]
    predicate: bool = False


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _erf(x: Any) -> Any:
    from graphdoc.engine.ops.special import erf  # level 0's, so that both levels mean the same

    return erf(np, x)


def _divide(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, np.where(b == 0, 1, b))  # truncated, as ONNX Runtime and C divide
    remainder = a - quotient * b
    return np.where(b == 0, 0, quotient + ((remainder != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    def shifted(a: Any, b: Any) -> Any:
        wide = b >= 8 * a.dtype.itemsize
        return np.where(wide, 0, function(a, np.where(wide, 0, b))).astype(a.dtype)

    return shifted


OPERATIONS: Mapping[str, Operation] = {
    "add": Operation(2, np.add),
    "sub": Operation(2, np.subtract),
    "mul": Operation(2, np.multiply),
    "div": Operation(2, _divide),
    "mod": Operation(2, np.mod),  # the sign of the divisor
    "fmod": Operation(2, np.fmod),  # the sign of the dividend
    "pow": Operation(2, np.power),
    "min": Operation(2, np.minimum),  # NaN if either is
    "max": Operation(2, np.maximum),
    "neg": Operation(1, np.negative),
    "abs": Operation(1, np.abs),
    "sign": Operation(1, np.sign),
    "sqrt": Operation(1, np.sqrt),
    "exp": Operation(1, np.exp),
    "log": Operation(1, np.log),
    "log1p": Operation(1, np.log1p),
    "expm1": Operation(1, np.expm1),
    "sin": Operation(1, np.sin),
    "cos": Operation(1, np.cos),
    "tan": Operation(1, np.tan),
    "asin": Operation(1, np.arcsin),
    "acos": Operation(1, np.arccos),
    "atan": Operation(1, np.arctan),
    "sinh": Operation(1, np.sinh),
    "cosh": Operation(1, np.cosh),
    "tanh": Operation(1, np.tanh),
    "sigmoid": Operation(1, _sigmoid),
    "erf": Operation(1, _erf),
    "floor": Operation(1, np.floor),
    "ceil": Operation(1, np.ceil),
    "rint": Operation(1, np.rint),  # halves to even
    "trunc": Operation(1, np.trunc),
    "isnan": Operation(1, np.isnan, predicate=True),
    "isinf": Operation(1, np.isinf, predicate=True),
    "eq": Operation(2, np.equal, predicate=True),
    "lt": Operation(2, np.less, predicate=True),
    "le": Operation(2, np.less_equal, predicate=True),
    "and": Operation(2, np.bitwise_and),  # of bools: logical
    "or": Operation(2, np.bitwise_or),
    "xor": Operation(2, np.bitwise_xor),
    "not": Operation(1, np.invert),
    "shl": Operation(2, _shift(np.left_shift)),  # 0 past the width
    "shr": Operation(2, _shift(np.right_shift)),
    "select": Operation(3, np.where),
}
"""Every operation but the leaves and ``cast``."""


def evaluate(
    exprs: Sequence[Expr], inputs: Mapping[int, Any], domain: Sequence[int], stages: Sequence[Any] = ()
) -> list[Any]:
    """Compute expressions with NumPy over whole arrays: the meaning every emitter must agree with.

    inputs: arrays by the number that ``input`` leaves name, each of the domain's shape or broadcast to it.
    stages: arrays of the row reductions, broadcastable to the domain.
    Returns one array per expression, broadcastable to the domain.
    """
    done: dict[Expr, Any] = {}
    for root in exprs:
        for node in postorder(root):
            if node not in done:
                done[node] = _evaluated(node, [done[a] for a in node.args], inputs, domain, stages)
    return [done[root] for root in exprs]


def _evaluated(
    node: Expr, args: list[Any], inputs: Mapping[int, Any], domain: Sequence[int], stages: Sequence[Any]
) -> Any:
    if node.op == "input":
        return inputs[node.attr]
    if node.op == "stage":
        return stages[node.attr]
    if node.op == "const":
        return np.asarray(node.value)
    if node.op == "index":
        shape = [1] * len(domain)
        shape[node.attr] = domain[node.attr]
        return np.arange(domain[node.attr]).reshape(shape)
    if node.op == "cast":
        x = np.asarray(args[0])
        # ml_dtypes of 0.7 on converts bfloat16 itself: float64 in one rounding, large numbers to integer 0
        return (x.astype(F32) if BF16 in (x.dtype, node.dtype) else x).astype(node.dtype)
    result = OPERATIONS[node.op].numpy(*args)
    return np.asarray(result).astype(node.dtype, copy=False)


def postorder(root: Expr, done: Container[Expr] = ()) -> list[Expr]:
    """Return every distinct node under (and with) root, arguments before what uses them.

    done: nodes to leave out, and what is under them alone.
    """
    seen: dict[Expr, None] = {}
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if node in seen or node in done:
            continue
        if ready:
            seen[node] = None
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))
    return list(seen)


def substituted(root: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """Return the expression with leaves (or whole subtrees) replaced."""
    done: dict[Expr, Expr] = {}
    for node in postorder(root):
        if node in leaves:
            done[node] = leaves[node]
        elif node.args:
            done[node] = make(node.op, tuple(done[a] for a in node.args), node.dtype, node.attr)
        else:
            done[node] = node
    return done[root]


def leaves(roots: Sequence[Expr], op: str) -> list[int]:
    """Return the numbers of all leaves of one kind, sorted."""
    return sorted({node.attr for root in roots for node in postorder(root) if node.op == op})
