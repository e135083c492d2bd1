"""ImageDecoder against pixels of known images; the official cases cover eight formats."""

import io
from importlib import util
from typing import Any

import numpy as np
import pytest
from PIL import Image

from graphdoc.engine.errors import RunnerError, UnsupportedOperatorError
from graphdoc.engine.ops import image
from tests.engine.single import engine, model, run

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)


def encoded(picture: Image.Image, kind: str = "png") -> Any:
    buffer = io.BytesIO()
    picture.save(buffer, format=kind)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def test_pixel_formats() -> None:
    """RGB as it was, BGR reversed, grey by the luma weights of ITU-R 601."""
    content = encoded(Image.fromarray(PIXELS))
    luma = PIXELS @ np.array([0.299, 0.587, 0.114])

    np.testing.assert_array_equal(run("ImageDecoder", content), PIXELS)
    np.testing.assert_array_equal(run("ImageDecoder", content, pixel_format="BGR"), PIXELS[..., ::-1])
    grey = run("ImageDecoder", content, pixel_format="Grayscale")
    assert (grey.shape, grey.dtype) == ((4, 6, 1), np.uint8)
    np.testing.assert_allclose(grey[..., 0], luma, atol=1)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_other_modes_of_files_give_three_channels(mode: str) -> None:
    """Grey files, palettes and transparency come as RGB too."""
    picture = Image.fromarray(PIXELS).convert(mode)

    np.testing.assert_array_equal(run("ImageDecoder", encoded(picture)), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("content", [b"", b"no image", bytes(encoded(Image.fromarray(PIXELS))[:60])])
def test_what_is_no_image_gives_no_pixels(content: bytes) -> None:
    """The specification asks for an empty matrix."""
    data = np.frombuffer(content, np.uint8)

    assert run("ImageDecoder", data).shape == (0, 0, 3)
    assert run("ImageDecoder", data, pixel_format="Grayscale").shape == (0, 0, 1)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown format; a machine without Pillow, before anything runs."""
    proto, feeds = model("ImageDecoder", encoded(Image.fromarray(PIXELS)), pixel_format="CMYK")
    with pytest.raises(RunnerError, match="pixel_format 'CMYK' is unknown, expected one of RGB, BGR"):
        engine(proto, feeds)

    monkeypatch.setattr(image, "find_spec", lambda name: None if name == "PIL" else util.find_spec(name))
    with pytest.raises(UnsupportedOperatorError, match="needs the package Pillow") as raised:
        engine(proto, feeds)
    assert raised.value.next_step == "pip install 'onnx-graphdoc[images]'"
