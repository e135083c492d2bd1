"""Derivatives of operators in reverse mode: for Gradient (ai.onnx.preview.training) and for engine/vjp.py.

One row per operator in the domain ``graphdoc.gradient``, put into graphs by :mod:`graphdoc.engine.gradient`.
Inputs: the derivative dy by the operator's output, its inputs, its output. Results: the derivative by each
input, in the input's shape. Attributes are the operator's own.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from graphdoc.engine.ops.host import ints
from graphdoc.engine.ops.table import Array, Call, TensorType, op

DOMAIN = "graphdoc.gradient"
SEED = "Ones"
ZERO = "Zeros"
TOTAL = "Total"

Rule: TypeAlias = Callable[..., tuple[Array | None, ...]]


def _infer(call: Call, dy: TensorType, *values: TensorType | None, **attributes: Any) -> Any:
    inputs = values[:-1]
    return tuple(TensorType() if x is None else TensorType(x.dtype, x.shape) for x in inputs)


def derivative(*names: str, since: int = 1) -> Callable[[Rule], Rule]:
    """Register a rule as the derivative of operators of the default domain, from a version of theirs on.

    ``call.outputs`` tells a rule how many inputs, from the first on, need a derivative.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            op(name, since, domain=DOMAIN, infer=_infer)(rule)
        return rule

    return register


def as_input(dy: Array, x: Array) -> Array:
    """Return dy summed over the axes along which x was broadcast."""
    extra = dy.ndim - x.ndim
    dy = dy.sum(axis=tuple(range(extra))) if extra else dy
    spread = tuple(axis for axis, size in enumerate(x.shape) if size == 1 and dy.shape[axis] != 1)
    dy = dy.sum(axis=spread, keepdims=True) if spread else dy
    return dy.astype(x.dtype, copy=False)


def _same(call: Call, x: TensorType, *rest: TensorType) -> TensorType:
    return TensorType(x.dtype, x.shape)


@op(SEED, 1, domain=DOMAIN, infer=_same)
def ones(call: Call, x: Array) -> Array:
    """Ones in the shape and dtype of x: the derivative of the sum of x by x."""
    return call.xp.ones(x.shape, x.dtype)


@op(ZERO, 1, domain=DOMAIN, infer=_same)
def zeros(call: Call, x: Array) -> Array:
    """Zeros in the shape and dtype of x."""
    return call.xp.zeros(x.shape, x.dtype)


@op(TOTAL, 1, domain=DOMAIN, infer=_same)
def total(call: Call, x: Array, *rest: Array) -> Array:
    """The sum of derivatives that reach one value on several ways."""
    for other in rest:
        x = x + other
    return x


# ---- element by element --------------------------------------------------------------------------------


@derivative("Add")
def add(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, Array]:
    """d(a + b) = da + db."""
    return as_input(dy, a), as_input(dy, b)


@derivative("Sub")
def sub(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, Array]:
    """d(a − b) = da − db."""
    return as_input(dy, a), as_input(-dy, b)


@derivative("Mul")
def mul(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, Array]:
    """d(a · b) = b da + a db."""
    return as_input(dy * b, a), as_input(dy * a, b)


@derivative("Div")
def div(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, Array]:
    """d(a / b) = da / b − (a / b) db / b."""
    return as_input(dy / b, a), as_input(-dy * y / b, b)


@derivative("Pow")
def power(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, ...]:
    """d(aᵇ) = b aᵇ⁻¹ da + aᵇ ln(a) db; the second is 0 where a is 0."""
    if call.outputs < 2:
        return (as_input(dy * b * a ** (b - 1), a),)
    positive = a > 0
    logarithm = call.xp.where(positive, call.xp.log(call.xp.where(positive, a, 1)), 0)
    return as_input(dy * b * a ** (b - 1), a), as_input(dy * y * logarithm, b)


@derivative("Neg")
def neg(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(−x) = −dx."""
    return (-dy,)


@derivative("Identity")
def identity(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """dx."""
    return (dy,)


@derivative("Exp")
def exp(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(exp x) = exp x dx."""
    return (dy * y,)


@derivative("Log")
def log(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(ln x) = dx / x."""
    return (dy / x,)


@derivative("Sqrt")
def sqrt(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(√x) = dx / (2 √x)."""
    return (dy / (y + y),)


@derivative("Tanh")
def tanh(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """d(tanh x) = (1 − tanh² x) dx."""
    return (dy * (1 - y * y),)


@derivative("Sigmoid")
def sigmoid(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """dσ(x) = σ(x) (1 − σ(x)) dx."""
    return (dy * y * (1 - y),)


@derivative("Relu")
def relu(call: Call, dy: Array, x: Array, y: Array) -> tuple[Array]:
    """dx where x is above 0, else 0."""
    return (call.xp.where(x > 0, dy, call.xp.zeros((), dy.dtype)),)


# ---- products and layout -------------------------------------------------------------------------------


@derivative("MatMul")
def matmul(call: Call, dy: Array, a: Array, b: Array, y: Array) -> tuple[Array, ...]:
    """d(A·B): dA = dY·Bᵀ, dB = Aᵀ·dY; a vector counts as one row (A) or one column (B)."""
    xp = call.xp
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    dy = dy if b.ndim > 1 else dy[..., None]
    dy = dy if a.ndim > 1 else xp.expand_dims(dy, -2)
    da = as_input(xp.matmul(dy, columns.swapaxes(-1, -2)), rows)
    if call.outputs < 2:
        return (da.reshape(a.shape),)
    db = as_input(xp.matmul(rows.swapaxes(-1, -2), dy), columns)
    return da.reshape(a.shape), db.reshape(b.shape)


@derivative("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """dx is dy in the shape of x."""
    return dy.reshape(x.shape), *(None,) * (len(rest) - 1)


@derivative("Transpose")
def transpose(
    call: Call, dy: Array, x: Array, y: Array, *, perm: Sequence[int] | None = None
) -> tuple[Array]:
    """dx is dy transposed back."""
    order = list(perm) if perm is not None else list(range(x.ndim))[::-1]
    return (dy.transpose([order.index(axis) for axis in range(x.ndim)]),)


def _spread(
    call: Call, dy: Array, x: Array, axes: Array | None, given: Sequence[int] | None, keepdims: int, noop: int
) -> Array:
    """Return dy repeated over the axes that a reduction removed."""
    listed = ints(axes) if axes is not None else list(given or ())
    if not listed and noop:
        return dy
    gone = {axis % x.ndim for axis in listed} if listed else set(range(x.ndim))
    kept = dy if keepdims else dy.reshape([1 if axis in gone else n for axis, n in enumerate(x.shape)])
    return call.xp.broadcast_to(kept, x.shape)


@derivative("ReduceSum")
def reduce_sum(
    call: Call,
    dy: Array,
    x: Array,
    *rest: Array,
    axes: Sequence[int] | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> tuple[Array | None, ...]:
    """dy for every element that was summed."""
    listed = rest[0] if len(rest) > 1 else None
    return _spread(call, dy, x, listed, axes, keepdims, noop_with_empty_axes), *(None,) * (len(rest) - 1)


@derivative("ReduceMean")
def reduce_mean(call: Call, dy: Array, x: Array, *rest: Array, **attributes: Any) -> tuple[Array | None, ...]:
    """dy over the number of elements, for every element that was averaged."""
    spread, *others = reduce_sum(call, dy, x, *rest, **attributes)
    count = x.size // max(dy.size, 1)
    return (None if spread is None else spread / x.dtype.type(count)), *others
