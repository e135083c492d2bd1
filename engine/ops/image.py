"""ImageDecoder, through Pillow where it is installed."""

import io
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from graphdoc.engine.errors import UnsupportedOperatorError
from graphdoc.engine.ops.host import to_host
from graphdoc.engine.ops.table import Array, Call, TensorType, op

UINT8 = np.dtype(np.uint8)

Pixels = np.ndarray[Any, np.dtype[Any]]

_FORMATS: Mapping[str, tuple[str, Callable[[Pixels], Pixels]]] = {
    # pixel_format → (Pillow's mode, its pixels in the operator's layout)
    "RGB": ("RGB", lambda pixels: pixels),
    "BGR": ("RGB", lambda pixels: pixels[:, :, ::-1]),
    "Grayscale": ("L", lambda pixels: pixels[:, :, np.newaxis]),
}

_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError)
"""What Pillow raises for bytes that are no image or a broken one."""


def _needs_pillow(node: Any) -> Mapping[str, Any]:
    """Refuse the node, before anything runs, where Pillow is missing."""
    if find_spec("PIL") is None:
        raise UnsupportedOperatorError(
            "ai.onnx::ImageDecoder needs the package Pillow",
            where=f"{node.name or node.outputs[0].name} in runner engine",
            next_step="pip install 'onnx-graphdoc[images]'",
        )
    return {}


def _infer(call: Call, encoded: TensorType, *, pixel_format: str = "RGB") -> TensorType:
    return TensorType(UINT8, (None, None, 1 if pixel_format == "Grayscale" else 3))


@op("ImageDecoder", 20, infer=_infer, around=_needs_pillow)
def image_decoder(call: Call, encoded: Array, *, pixel_format: str = "RGB") -> Array:
    """The pixels (H, W, channels), uint8, of an encoded image, uint8; no pixels where it cannot be decoded.

    ONNX ImageDecoder-20. Raises ValueError for an unknown pixel_format.
    """
    if pixel_format not in _FORMATS:
        raise ValueError(f"pixel_format '{pixel_format}' is unknown, expected one of {', '.join(_FORMATS)}")
    mode, arranged = _FORMATS[pixel_format]
    pixels = arranged(_decoded(to_host(encoded).tobytes(), mode))
    return call.xp.asarray(np.ascontiguousarray(pixels))


def _decoded(content: bytes, mode: str) -> Pixels:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert(mode))
    except _UNREADABLE:
        return np.zeros((0, 0, 3) if mode == "RGB" else (0, 0), UINT8)
