"""Operators that ONNX tried in its first versions and took out again, which ONNX Runtime still runs.

Converters of that time wrote them (Affine, Crop, ImageScaler from Core ML), so files with them are about.
Version 1 of the default domain; ONNX has no schema of them any more.
"""

from collections.abc import Sequence

from graphdoc.engine.ops import dims
from graphdoc.engine.ops.ms_infer import taken_over
from graphdoc.engine.ops.precision import narrow, wide
from graphdoc.engine.ops.shapes import same_as_first
from graphdoc.engine.ops.slicing import slice_
from graphdoc.engine.ops.table import Array, Call, Dim, TensorType, op


@op("Affine", 1, infer=same_as_first)
def affine(call: Call, X: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """alpha · X + beta."""
    x = wide(X)
    return narrow(x * x.dtype.type(alpha) + x.dtype.type(beta), X.dtype)


@op("Scale", 1, infer=same_as_first)
def scale_by(call: Call, X: Array, *, scale: float = 1.0) -> Array:
    """scale · X."""
    x = wide(X)
    return narrow(x * x.dtype.type(scale), X.dtype)


@op("ScaledTanh", 1, infer=same_as_first)
def scaled_tanh(call: Call, X: Array, *, alpha: float, beta: float) -> Array:
    """alpha · tanh(beta · X)."""
    x = wide(X)
    return narrow(x.dtype.type(alpha) * call.xp.tanh(x.dtype.type(beta) * x), X.dtype)


@op("ParametricSoftplus", 1, infer=same_as_first)
def parametric_softplus(call: Call, X: Array, *, alpha: float, beta: float) -> Array:
    """alpha · ln(exp(beta · X) + 1), without overflow."""
    x = wide(X)
    inner = x.dtype.type(beta) * x
    return narrow(x.dtype.type(alpha) * call.xp.logaddexp(inner, x.dtype.type(0)), X.dtype)


@op("ImageScaler", 1, infer=same_as_first)
def image_scaler(call: Call, X: Array, *, bias: Sequence[float] = (), scale: float = 1.0) -> Array:
    """scale · X + bias for images (N, C, H, W), one bias per channel."""
    if len(bias) != X.shape[1]:
        raise ValueError(f"{len(bias)} biases for {X.shape[1]} channels")
    x = wide(X)
    shift = call.xp.asarray(list(bias), x.dtype).reshape(-1, 1, 1)
    return narrow(x * x.dtype.type(scale) + shift, X.dtype)


def _cropped(size: Dim, begin: int, end: int, given: int | None) -> Dim:
    return dims.subtract(size, begin + end) if given is None else given


def _infer_crop(
    call: Call, X: TensorType, *, border: Sequence[int], scale: Sequence[int] | None = None
) -> TensorType:
    if X.shape is None or len(X.shape) != 4:
        return TensorType(X.dtype)
    left, top, right, bottom = border
    height, width = scale or (None, None)
    return TensorType(
        X.dtype,
        (*X.shape[:2], _cropped(X.shape[2], top, bottom, height), _cropped(X.shape[3], left, right, width)),
    )


@op("Crop", 1, infer=_infer_crop)
def crop(call: Call, X: Array, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Array:
    """Images (N, C, H, W) without the border (left, top, right, bottom), or ``scale`` (height, width) of them
    from the left upper border on. Raises ValueError when that is more than there is."""
    left, top, right, bottom = border
    height, width = scale or (X.shape[2] - top - bottom, X.shape[3] - left - right)
    if height < 0 or width < 0 or top + height > X.shape[2] or left + width > X.shape[3]:
        raise ValueError(f"border {list(border)} and scale {scale} do not fit {list(X.shape)}")
    return X[:, :, top : top + height, left : left + width]


@op("DynamicSlice", 1, infer=taken_over("Slice", 10))
def dynamic_slice(call: Call, data: Array, starts: Array, ends: Array, axes: Array | None = None) -> Array:
    """Slice-10 without steps."""
    result: Array = slice_(call, data, starts, ends, axes)
    return result
