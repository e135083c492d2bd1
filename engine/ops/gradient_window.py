"""Derivatives of products and sliding windows; see gradient.py for the form of a rule."""

from collections.abc import Sequence
from typing import Any

from graphdoc.engine.ops.conv import convolve
from graphdoc.engine.ops.conv_transpose import scatter_windows, transposed_window
from graphdoc.engine.ops.einsum import parse
from graphdoc.engine.ops.gradient import as_input, derivative, matmul
from graphdoc.engine.ops.pool import divisors_of
from graphdoc.engine.ops.table import Array, Call
from graphdoc.engine.ops.window import Ints, Window, axis_taps, sliding, taps

# ---- products ------------------------------------------------------------------------------------------


@derivative("Gemm")
def gemm(
    call: Call,
    dy: Array,
    a: Array,
    b: Array,
    *rest: Array,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    **attributes: Any,
) -> tuple[Array | None, ...]:
    """d(α A·B + β C), each of A and B transposed where asked."""
    left, right = a.T if transA else a, b.T if transB else b
    da, db = _both(matmul(call, dy * dy.dtype.type(alpha), left, right, rest[-1]))
    bias = [as_input(dy * dy.dtype.type(beta), c) if c is not None else None for c in rest[:-1]]
    return da.T if transA else da, db.T if transB and db is not None else db, *bias


def _both(parts: Sequence[Array]) -> tuple[Array, Array | None]:
    return parts[0], parts[1] if len(parts) > 1 else None


@derivative("Einsum")
def einsum(call: Call, dy: Array, *values: Array, equation: str) -> tuple[Array, ...]:
    """Each operand's is dy times the others, summed over what it does not have."""
    inputs = values[:-1]
    terms, output = parse(equation, [x.ndim for x in inputs])
    sizes: dict[str, int] = {}
    for term, x in zip(terms, inputs, strict=True):
        if len(set(term)) < len(term):
            raise ValueError("Einsum with a label twice in one operand has no derivative here")
        for label, size in zip(term, x.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return tuple(_operand(call, dy, inputs, terms, output, place) for place in range(len(inputs)))


def _operand(
    call: Call, dy: Array, inputs: Sequence[Array], terms: Sequence[str], output: str, place: int
) -> Array:
    """Return the derivative by one operand; labels that it alone has are spread over."""
    others = [n for n in range(len(inputs)) if n != place]
    known = output + "".join(terms[n] for n in others)
    kept = "".join(label for label in terms[place] if label in known)
    equation = ",".join([output, *(terms[n] for n in others)]) + "->" + kept
    found = call.xp.einsum(equation, dy, *(inputs[n] for n in others), optimize=True)
    x = inputs[place]
    shape = tuple(found.shape[kept.index(label)] if label in kept else 1 for label in terms[place])
    wide = tuple(max(a, b) for a, b in zip(shape, x.shape, strict=True))
    return as_input(call.xp.broadcast_to(found.reshape(shape), wide), x)


# ---- convolutions --------------------------------------------------------------------------------------


@derivative("Conv")
def conv(
    call: Call,
    dy: Array,
    x: Array,
    w: Array,
    *rest: Array,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **attributes: Any,
) -> tuple[Array | None, ...]:
    """dX: dY through the same windows backwards; dW: what each tap saw; dB: the sums of dY."""
    window = sliding(x.shape[2:], w.shape[2:], **attributes)
    dx = call.xp.zeros((x.shape[0], group, w.shape[1], *x.shape[2:]), x.dtype)
    if w.shape[1] == 1 and w.shape[0] == group:
        _scatter_depthwise(dy, w, dx, window)
    else:
        scatter_windows(call.xp, dy, w, dx, window)
    if call.outputs < 2:
        return (dx.reshape(x.shape),)
    dw = _weights(call, dy, x, window, group, w.shape)
    return dx.reshape(x.shape), dw, *(dy.sum(axis=(0, *range(2, dy.ndim))) for _ in rest[:-1])


def _scatter_depthwise(dy: Array, w: Array, dx: Array, window: Window) -> None:
    """As scatter_windows where each channel has a kernel of its own: products of one number are slow."""
    for tap, positions, elements in taps(window, dx.shape[3:]):
        kernel = w[(slice(None), 0, *tap)].reshape(-1, *(1,) * len(tap))
        dx[(slice(None), slice(None), 0, *elements)] += dy[(..., *positions)] * kernel


@derivative("ConvTranspose")
def conv_transpose(
    call: Call,
    dy: Array,
    x: Array,
    w: Array,
    *rest: Array,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **attributes: Any,
) -> tuple[Array | None, ...]:
    """dX: dY convolved with the kernels; dW and dB as for Conv."""
    window, _ = transposed_window(x.shape[2:], w.shape[2:], **attributes)
    dx = convolve(call.xp, dy, w, window, group)
    if call.outputs < 2:
        return (dx,)
    dw = _weights(call, x, dy, window, group, w.shape)
    return dx, dw, *(dy.sum(axis=(0, *range(2, dy.ndim))) for _ in rest[:-1])


def _weights(call: Call, inner: Array, outer: Array, window: Window, group: int, shape: Ints) -> Array:
    """Return Σ inner (N, G·A, *out) × outer (N, G·B, *spatial) per tap, as (G·A, B, *kernel)."""
    found = call.xp.zeros(tuple(shape), inner.dtype)
    count = inner.shape[0]
    for tap, positions, elements in taps(window, outer.shape[2:]):
        a = inner[(..., *positions)].reshape(count, group, inner.shape[1] // group, -1)
        b = outer[(..., *elements)].reshape(count, group, outer.shape[1] // group, -1)
        product = call.xp.matmul(a, b.swapaxes(-1, -2)).sum(axis=0)
        found[(..., *tap)] = product.reshape(shape[0], shape[1])
    return found


# ---- pooling -------------------------------------------------------------------------------------------


@derivative("AveragePool")
def average_pool(
    call: Call,
    dy: Array,
    x: Array,
    y: Array,
    *,
    kernel_shape: Ints,
    count_include_pad: int = 0,
    **attributes: Any,
) -> tuple[Array]:
    """dy over the number of elements that its window averaged, for each of them."""
    window = sliding(x.shape[2:], kernel_shape, **attributes)
    include = bool(count_include_pad)
    share = dy / divisors_of(call.xp, window, x.shape[2:], include_pad=include, dtype=x.dtype)
    return (_spread(call, share, x, window),)


def _spread(call: Call, share: Array, x: Array, window: Window) -> Array:
    """Return, in the shape of x, the sum over all windows of what each has, one axis after the other."""
    for axis, size in enumerate(x.shape[2:]):
        lead = (slice(None),) * (axis + 2)
        wider = call.xp.zeros((*share.shape[: axis + 2], size, *share.shape[axis + 3 :]), x.dtype)
        for pair in axis_taps(window, axis, size):
            if pair is not None:
                wider[(*lead, pair[1])] += share[(*lead, pair[0])]
        share = wider
    return share


@derivative("MaxPool")
def max_pool(
    call: Call,
    dy: Array,
    x: Array,
    y: Array,
    *,
    kernel_shape: Ints,
    storage_order: int = 0,
    **attributes: Any,
) -> tuple[Array]:
    """dy for the largest element of its window; of equal ones the first gets it."""
    window = sliding(x.shape[2:], kernel_shape, **attributes)
    dx = call.xp.zeros(x.shape, x.dtype)
    left = call.xp.ones(y.shape, bool)
    for _, positions, elements in taps(window, x.shape[2:]):
        hit = (x[(..., *elements)] == y[(..., *positions)]) & left[(..., *positions)]
        left[(..., *positions)] &= ~hit
        dx[(..., *elements)] += dy[(..., *positions)] * hit
    return (dx,)


@derivative("LpPool")
def lp_pool(
    call: Call, dy: Array, x: Array, y: Array, *, kernel_shape: Ints, p: float = 2, **attributes: Any
) -> tuple[Array]:
    """sign(x) (|x| / y)ᵖ⁻¹ dy for each element of the window; 0 where the norm is 0."""
    window = sliding(x.shape[2:], kernel_shape, **attributes)
    power = call.xp.sign(x) * call.xp.abs(x) ** (p - 1)
    share = dy / call.xp.where(y == 0, 1, y).astype(x.dtype) ** (p - 1)
    return ((_spread(call, share, x, window) * power).astype(x.dtype, copy=False),)
