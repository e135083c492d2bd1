"""Operators that scatter windows into an image: ConvTranspose, Col2Im."""

from collections.abc import Sequence
from math import prod
from typing import Any

from graphdoc.engine.ops.content import entries, entry_count
from graphdoc.engine.ops.dims import add, exact_quotient, multiply, subtract
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import constant_ints, first_dtype
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op
from graphdoc.engine.ops.window import Ints, Window, sliding, taps

_BASE = 1 << 20
"""An input size at which no output size is negative, to tell what all others give from."""

_BLOCK_BYTES = 32 << 20
"""Products of several taps held at once before they are added into the image."""


# ---- shapes --------------------------------------------------------------------------------------------


def _axis(
    auto: str,
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    extra: int,
    pads: tuple[int, int],
    out: int | None,
) -> tuple[int, int, int]:
    """Return (padding before, padding after, output size) of one axis of a transposed convolution."""
    natural = stride * (size - 1) + extra + (kernel - 1) * dilation + 1
    if out is None and not auto.startswith("SAME"):
        begin, end = pads if auto != "VALID" else (0, 0)
        return begin, end, natural - begin - end
    out = size * stride if out is None else out
    total = max(0, natural - out)
    begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
    return begin, total - begin, out


def transposed_window(
    spatial: Ints,
    kernel: Ints,
    *,
    strides: Ints | None = None,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    auto_pad: str = "NOTSET",
) -> tuple[Window, tuple[int, ...]]:
    """Return the window whose positions are the input's elements, and the spatial sizes of the output."""
    rank = len(spatial)
    ones, zeros = [1] * rank, [0] * rank
    strides, dilations, pads = strides or ones, dilations or ones, pads or zeros * 2
    extra = output_padding or zeros
    sizes: Sequence[int | None] = list(output_shape)[-rank:] if output_shape else [None] * rank
    lengths = {len(kernel), len(strides), len(dilations), len(extra), len(sizes), len(pads) - rank}
    if lengths != {rank}:
        raise ValueError(f"attributes of a transposed convolution do not fit {rank} spatial axes")
    both = list(zip(pads[:rank], pads[rank:], strict=True))
    rows = zip(spatial, kernel, strides, dilations, extra, both, sizes, strict=True)
    begin, end, out = (tuple(c) for c in zip(*(_axis(auto_pad, *row) for row in rows), strict=True))
    if min(out) < 0:
        raise ValueError(f"pads {list(pads)} leave a negative output size {list(out)}")
    return Window(tuple(kernel), tuple(strides), tuple(dilations), begin, end, tuple(spatial)), out


def _known_sizes(spatial: Sequence[Dim], kernel: Ints, attributes: dict[str, Any]) -> tuple[Dim, ...]:
    """Return the output sizes, axis by axis: each depends on its input size in the same way."""
    try:
        at_base = transposed_window([_BASE] * len(spatial), kernel, **_without_shape(attributes))[1]
        fixed = attributes.get("output_shape")
        if fixed:
            return tuple(fixed[-len(spatial) :])
    except ValueError:
        return (None,) * len(spatial)
    strides = attributes.get("strides") or [1] * len(spatial)
    rows = zip(spatial, strides, at_base, strict=True)
    return tuple(add(multiply(subtract(size, _BASE), stride), base) for size, stride, base in rows)


def _without_shape(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "output_shape"}


def infer_conv_transpose(
    call: Call, X: TensorType, W: TensorType, *rest: TensorType | None, group: int = 1, **attributes: Any
) -> TensorType:
    """dtype of X; (N, M, …), the spatial sizes where those of X are all known."""
    weights = W.shape
    attributes.pop("kernel_shape", None)
    if X.shape is None or weights is None:
        return TensorType(first_dtype((X, W)))
    kernel = [size for size in weights[2:] if isinstance(size, int)]
    spatial: tuple[Dim, ...] = (None,) * len(X.shape[2:])
    if len(kernel) == len(spatial):
        spatial = _known_sizes(X.shape[2:], kernel, attributes)
    channels = multiply(weights[1], group)
    return TensorType(first_dtype((X, W)), (X.shape[0], channels, *spatial))


# ---- operators -----------------------------------------------------------------------------------------


@op("ConvTranspose", 1, 11, 22, infer=infer_conv_transpose)
def conv_transpose(
    call: Call,
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **attributes: Any,
) -> Array:
    """Transposed convolution of X (N, C, *spatial) with W (C, M/group, *kernel), plus B (M).

    Further attributes: strides, dilations, pads, auto_pad, output_padding, output_shape. float16 and
    bfloat16 are summed in float32 and rounded once. Raises ValueError when shapes do not fit.
    """
    if X.ndim != W.ndim or X.shape[1] != W.shape[0] or W.shape[0] % group:
        raise ValueError(f"weights {list(W.shape)} in {group} groups do not fit x {list(X.shape)}")
    window, sizes = transposed_window(X.shape[2:], W.shape[2:], **attributes)
    y = call.xp.zeros((X.shape[0], group, W.shape[1], *sizes), wide(X).dtype)
    scatter_windows(call.xp, wide(X), wide(W), y, window)
    y = y.reshape(X.shape[0], group * W.shape[1], *sizes)
    if B is not None:
        y += wide(B).reshape(-1, *(1,) * (X.ndim - 2))
    return narrow(y, X.dtype)


def scatter_windows(xp: Any, x: Array, w: Array, y: Array, window: Window) -> None:
    """Add to y (N, G, M/G, *sizes) what x (N, C, *spatial) sends through each tap of w (C, M/G, *kernel)."""
    count, group, features = y.shape[:3]
    channels = x.shape[1] // group
    columns = x.reshape(count, group, channels, prod(x.shape[2:]))
    # (G, taps, M/G, C/G): the taps of one block are rows of one product.
    weights = w.reshape(group, channels, features, prod(window.kernel)).transpose(0, 3, 2, 1)
    tap_bytes = max(1, count * group * features * columns.shape[3] * y.dtype.itemsize)
    step = max(1, _BLOCK_BYTES // tap_bytes)
    served = {_flat(tap, window): (into, taken) for tap, taken, into in taps(window, y.shape[3:])}
    for start in range(0, weights.shape[1], step):
        block = weights[:, start : start + step]
        products = xp.matmul(block.reshape(group, block.shape[1] * features, channels), columns)
        products = products.reshape(count, group, block.shape[1], features, *x.shape[2:])
        for tap in range(start, start + block.shape[1]):
            if tap in served:
                into, taken = served[tap]
                y[(..., *into)] += products[(slice(None), slice(None), tap - start, slice(None), *taken)]


def _flat(tap: Ints, window: Window) -> int:
    """Return the row-major number of a tap."""
    number = 0
    for index, size in zip(tap, window.kernel, strict=True):
        number = number * size + index
    return number


def infer_col2im(
    call: Call, input: TensorType, image_shape: TensorType, block_shape: TensorType, **_: Any
) -> TensorType:
    """(N, C, *image_shape) as far as the two shapes are known."""
    block, count = constant_ints(block_shape), entry_count(image_shape)
    if input.shape is None or len(input.shape) != 3 or count is None:
        return TensorType(input.dtype)
    sizes = entries(image_shape) or (None,) * count
    channels = None if block is None else exact_quotient(input.shape[1], prod(block))
    return TensorType(input.dtype, (input.shape[0], channels, *sizes))


@op("Col2Im", 18, infer=infer_col2im)
def col2im(
    call: Call,
    input: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Add blocks (N, C·prod(block_shape), L) into images (N, C, *image_shape) where they overlap.

    Raises ValueError when L is not the number of block positions.
    """
    sizes, block = [int(n) for n in image_shape], [int(n) for n in block_shape]
    window = sliding(sizes, block, strides, dilations, pads)
    if input.ndim != 3 or input.shape[1] % prod(block) or input.shape[2] != prod(window.out):
        raise ValueError(
            f"blocks {list(input.shape)} do not fit block_shape {block} at {list(window.out)} positions"
        )
    channels = input.shape[1] // prod(block)
    columns = wide(input).reshape(input.shape[0], channels, *block, *window.out)
    y = call.xp.zeros((input.shape[0], channels, *sizes), columns.dtype)
    for tap, taken, into in taps(window, sizes):
        y[(..., *into)] += columns[(slice(None), slice(None), *tap, *taken)]
    return narrow(y, input.dtype)
