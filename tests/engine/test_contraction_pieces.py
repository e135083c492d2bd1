"""A contraction's meaning in NumPy, cut into pieces: float64 is the oracle, and memory is bounded."""

import tracemalloc
from math import prod

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from graphdoc.engine import expr as ex
from graphdoc.engine.kernels import contraction
from graphdoc.engine.kernels.contraction import Contraction


def product(batch: int, rows: int, terms: int) -> Contraction:
    """Return a sum of products and nothing after it."""
    return Contraction(batch, rows, terms, ex.load(-1, ex.F32), ex.F32)


@pytest.mark.parametrize("piece", [1, 7, 50, 1 << 21])
@pytest.mark.parametrize(
    ("batch", "rows", "terms"),
    [
        ((), (3, 4, 5), (2, 3)),
        ((2,), (7,), (5,)),
        ((), (), (4,)),
        ((2, 3), (1, 6, 2), ()),
        ((), (0, 3), (2,)),
        ((), (5,), (0,)),
    ],
)
def test_pieces_make_the_whole(
    batch: tuple[int, ...],
    rows: tuple[int, ...],
    terms: tuple[int, ...],
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the rows are cut; without rows, without terms, without anything."""
    monkeypatch.setattr(contraction, "_PIECE", piece)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, *rows, *terms)).astype(np.float32)
    b = rng.standard_normal((*batch, *terms, 4)).astype(np.float32)
    out = np.empty((*batch, *rows, 4), np.float32)
    product(len(batch), len(rows), len(terms)).evaluate([a, b], [out])
    wide = a.reshape(*batch, prod(rows), prod(terms)).astype(np.float64)

    exact = (wide @ b.reshape(*batch, prod(terms), 4).astype(np.float64)).reshape(out.shape)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)


def test_windows_of_an_image_are_not_all_copied() -> None:
    """7 × 7 windows of 16 channels would take 49 times the image."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 206, 206, 16)).astype(np.float32)
    windows = sliding_window_view(image, (7, 7), (1, 2)).transpose(0, 1, 2, 4, 5, 3)
    b = rng.standard_normal((7, 7, 16, 8)).astype(np.float32)
    out = np.empty((1, 200, 200, 8), np.float32)
    tracemalloc.start()
    product(0, 3, 3).evaluate([windows, b], [out])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < windows.size * 4 / 4
    some = np.einsum("abcd,abcdo->o", windows[0, 100, 50].astype(np.float64)[None], b[None])
    np.testing.assert_allclose(out[0, 100, 50], some, rtol=1e-4, atol=1e-4)
