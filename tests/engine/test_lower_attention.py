"""Attention and rotary embeddings as programs, beside level 0."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.lowered import check, noise, specs, whole_numbers

Q, K, V = noise(2, 4, 3, 8), noise(2, 2, 5, 8, seed=1), noise(2, 2, 5, 6, seed=2)
OPTIONS = {"opset": 23, "units": 64}


def flat(x: Any) -> Any:
    """Return (B, H, S, D) as (B, S, H·D)."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))


def closed_rows() -> Any:
    """Return a mask that leaves one query without a key."""
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    mask[0, 3:] = False
    return mask


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"softcap": 2.0}, {"scale": 0.7}], ids=str)
def test_attention(attributes: dict[str, Any], dtype: Any) -> None:
    """Heads that share keys; heads apart and in one axis; keys before the queries."""
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    check("Attention", q, k, v, **OPTIONS, **attributes)
    check("Attention", flat(q), flat(k), flat(v), q_num_heads=4, kv_num_heads=2, **OPTIONS, **attributes)
    past = (noise(2, 2, 3, 8, seed=3, dtype=dtype), noise(2, 2, 3, 6, seed=4, dtype=dtype))
    check("Attention", q, k, v, None, *past, outputs=3, **OPTIONS, **attributes)


@pytest.mark.parametrize(
    "mask",
    [closed_rows(), noise(3, 5, seed=5), noise(2, 1, 3, 5, seed=6), noise(4, 3, 1, seed=7)],
    ids=lambda m: str(m.shape),
)
def test_masks(mask: Any) -> None:
    """A query that sees no key gives 0, not NaN."""
    check("Attention", Q, K, V, mask, **OPTIONS)
    check("Attention", Q, K, V, mask, is_causal=1, **OPTIONS)


def test_attention_is_two_products_and_a_softmax() -> None:
    """Nothing is copied but the result: a fusion can find the parts."""
    compiled = check("Attention", Q, K, V, **OPTIONS)

    assert specs(compiled) == ["Contraction", "Rows", "Contraction", "Map"]


def test_half_precision() -> None:
    """Computed in float32 and rounded once; masks in either precision; the cache as it is."""
    half = [x.astype(np.float16) for x in (Q, K, V)]
    mask = noise(Q.shape[2], K.shape[2])
    for added in (None, mask.astype(np.float16), mask > 0):
        check("Attention", *half, added, opset=23, units=8)
    past = [noise(*x.shape[:2], 2, x.shape[3], seed=5).astype(np.float16) for x in (K, V)]
    check("Attention", *half, None, *past, outputs=3, is_causal=1, opset=23, units=8)


def test_what_stays_on_level_0() -> None:
    """bfloat16, which rounds between the steps; short masks; the scores."""
    half = [x.astype(np.float16) for x in (Q, K, V)]
    rough = [x.astype(ml_dtypes.bfloat16) for x in (Q, K, V)]
    check("Attention", *rough, host=True, opset=23, units=64)
    check("Attention", Q, K, V, noise(3, 4), host=True, **OPTIONS)
    check("Attention", Q, K, V, outputs=4, host=True, **OPTIONS)
    check("Attention", Q, K, V, left_window_size=1, host=True, opset=25)
    check(
        "RotaryEmbedding",
        half[0],
        np.ones((2, 3, 4), np.float16),
        np.ones((2, 3, 4), np.float16),
        host=True,
        opset=23,
    )


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embeddings(interleaved: int) -> None:
    """By position or in order, of all elements or the first of them, heads apart or in one axis."""
    cos, sin = noise(9, 4), noise(9, 4, seed=1)
    positions = whole_numbers(2, 3, high=9)
    options: dict[str, Any] = {"interleaved": interleaved, "opset": 23}
    check("RotaryEmbedding", Q, cos, sin, positions, **options)
    check("RotaryEmbedding", flat(Q), cos, sin, positions, num_heads=4, **options)
    check("RotaryEmbedding", Q, noise(2, 3, 4), noise(2, 3, 4, seed=1), **options)
    check("RotaryEmbedding", Q, cos[:, :2], sin[:, :2], positions, rotary_embedding_dim=4, **options)
