"""Operators that move elements between channels and space, or crop and pad: no arithmetic."""

from collections.abc import Sequence

from graphdoc.engine.ops.content import entries
from graphdoc.engine.ops.dims import floor_divide, multiply
from graphdoc.engine.ops.shapes import positive_axes, with_dims
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op


def _check(rank: int, mode: str) -> None:
    if rank != 4:
        raise ValueError(f"the input has rank {rank}, (N, C, H, W) is needed")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"mode '{mode}' is unknown, expected DCR or CRD")


def infer_depth_to_space(call: Call, input: TensorType, *, blocksize: int, **_: object) -> TensorType:
    """(N, C / b², H·b, W·b)."""
    if input.shape is None or len(input.shape) != 4:
        return TensorType(input.dtype)
    n, c, h, w = input.shape
    sizes = (multiply(h, blocksize), multiply(w, blocksize))
    return TensorType(input.dtype, (n, floor_divide(c, blocksize**2), *sizes))


def infer_space_to_depth(call: Call, input: TensorType, *, blocksize: int, **_: object) -> TensorType:
    """(N, C·b², H / b, W / b)."""
    if input.shape is None or len(input.shape) != 4:
        return TensorType(input.dtype)
    n, c, h, w = input.shape
    return TensorType(
        input.dtype, (n, multiply(c, blocksize**2), floor_divide(h, blocksize), floor_divide(w, blocksize))
    )


@op("DepthToSpace", 1, 11, 13, 28, infer=infer_depth_to_space)
def depth_to_space(call: Call, input: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """(N, C, H, W) → (N, C / b², H·b, W·b); a channel is (row, column, depth) in mode DCR, else
    (depth, row, column) of its block. Raises ValueError when C does not divide.
    """
    _check(input.ndim, mode)
    n, c, h, w = input.shape
    b, depth = blocksize, c // blocksize**2
    if depth * b * b != c:
        raise ValueError(f"{c} channels do not divide into blocks of {b}×{b}")
    if mode == "DCR":
        y = input.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = input.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * b, w * b)


@op("SpaceToDepth", 1, 13, 28, infer=infer_space_to_depth)
def space_to_depth(call: Call, input: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """(N, C, H, W) → (N, C·b², H / b, W / b), the inverse of DepthToSpace.

    Raises ValueError when H or W does not divide.
    """
    _check(input.ndim, mode)
    n, c, h, w = input.shape
    b = blocksize
    if h % b or w % b:
        raise ValueError(f"{h}×{w} does not divide into blocks of {b}×{b}")
    blocks = input.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b * b, h // b, w // b)


def infer_center_crop_pad(
    call: Call, input_data: TensorType, shape: TensorType, *, axes: Sequence[int] | None = None
) -> TensorType:
    """The input with the sizes of ``shape`` along axes, None where they are not constant."""
    if input_data.shape is None:
        return TensorType(input_data.dtype)
    numbers = list(axes) if axes is not None else list(range(len(input_data.shape)))
    sizes: Sequence[Dim] = entries(shape) or [None] * len(numbers)
    return TensorType(input_data.dtype, with_dims(input_data.shape, dict(zip(numbers, sizes, strict=True))))


@op("CenterCropPad", 18, infer=infer_center_crop_pad)
def center_crop_pad(
    call: Call, input_data: Array, shape: Array, *, axes: Sequence[int] | None = None
) -> Array:
    """The middle of the input, or the input in the middle of zeros, with the sizes of ``shape`` along axes.

    An odd difference leaves the larger part behind the middle.
    """
    numbers = positive_axes(axes if axes is not None else range(input_data.ndim), input_data.ndim)
    sizes = [int(size) for size in shape.tolist()]
    if len(sizes) != len(numbers):
        raise ValueError(f"shape {sizes} does not fit {len(numbers)} axes")
    source = [slice(None)] * input_data.ndim
    target, out = list(source), list(input_data.shape)
    for axis, size in zip(numbers, sizes, strict=True):
        have = input_data.shape[axis]
        out[axis] = size
        start = abs(have - size) // 2
        (source if size < have else target)[axis] = slice(start, start + min(size, have))
    y = call.xp.zeros(out, input_data.dtype)
    y[tuple(target)] = input_data[tuple(source)]
    return y
