"""Attention and its kin against ONNX Runtime and plain formulas; Fourier transforms and windows."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engine.layer_oracle import assert_agrees, complaint, on_engine, sample

FLOAT = np.float32


def heads(queries: int = 3, keys: int = 5, shared: int = 2) -> list[Any]:
    """Q with four heads, K and V with ``shared`` ones; V is wider than K."""
    shapes = ((2, 4, queries, 4), (2, shared, keys, 4), (2, shared, keys, 6))
    return [sample(seed, FLOAT, shape) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("mode", [0, 1, 3])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_attention_agrees_with_onnx_runtime(shared: int, softcap: float, mode: int) -> None:
    inputs = [*heads(shared=shared), sample(9, FLOAT, (2, 1, 3, 5))]
    assert_agrees("Attention", inputs, 23, outputs=4, softcap=softcap, qk_matmul_output_mode=mode)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_packed_heads_agrees_with_onnx_runtime(causal: int) -> None:
    packed = [x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1).copy() for x in heads(5, 5)]
    assert_agrees("Attention", packed, 23, q_num_heads=4, kv_num_heads=2, is_causal=causal, scale=0.3)


def plain(q: Any, k: Any, v: Any, allowed: Any) -> Any:
    """Attention with one key head per query head, in float64."""
    scores = np.where(allowed, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@pytest.mark.parametrize(("left", "right", "causal"), [(-1, -1, 1), (2, 0, 0), (2, 1, 0), (1, 2, 1)])
@pytest.mark.parametrize("past", [0, 2])
def test_windows_and_causality_count_from_the_past(left: int, right: int, causal: int, past: int) -> None:
    q, k, v = (x.astype(np.float64) for x in heads(4, 4, 4))
    earlier = [x[:, :, :0] if not past else x[:, :, -past:] * 0.5 for x in (k, v)]
    position, key = np.arange(4)[:, None] + past, np.arange(4 + past)
    allowed = np.ones((4, 4 + past), bool)
    allowed &= (key <= position) if causal else True
    allowed &= (key >= position - left) if left >= 0 else True
    allowed &= (key <= position + right) if right >= 0 else True
    want = plain(q, *(np.concatenate(pair, axis=2) for pair in zip(earlier, (k, v), strict=True)), allowed)
    caches = [None, *earlier] if past else []
    bounds = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    assert complaint(on_engine("Attention", [q, k, v, *caches], 25, **bounds)[0], want) is None


def test_a_query_that_sees_no_key_gives_zero() -> None:
    mask = np.ones((3, 5), bool)
    mask[1] = False
    y, _, _, weights = on_engine("Attention", [*heads(), mask], 24, outputs=4, qk_matmul_output_mode=3)
    assert not y[:, :, 1].any()
    assert not weights[:, :, 1].any()
    assert np.isfinite(y).all()


def test_keys_past_the_given_lengths_do_not_count() -> None:
    q, k, v = heads(shared=4)
    lengths = np.array([5, 3])
    (got,) = on_engine("Attention", [q, k, v, None, None, None, lengths], 24)
    (short,) = on_engine("Attention", [q[1:], k[1:, :, :3], v[1:, :, :3]], 24)
    assert complaint(got[1:], short) is None
    short_mask = np.ones((3, 3), bool)
    (masked,) = on_engine("Attention", [q, k, v, short_mask], 24)
    (cut,) = on_engine("Attention", [q, k[:, :, :3], v[:, :, :3]], 24)
    assert complaint(masked, cut) is None


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(("interleaved", "size"), [(0, 0), (1, 0), (0, 4), (1, 4)])
def test_rotary_embedding_agrees_with_onnx_runtime(interleaved: int, size: int, rank: int) -> None:
    x = sample(1, FLOAT, (2, 3, 5, 8) if rank == 4 else (2, 5, 24))
    caches = [sample(s, FLOAT, (7, (size or 8) // 2)) for s in (2, 3)]
    positions = np.array([[0, 1, 2, 3, 4], [2, 6, 0, 1, 5]])
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": size, "num_heads": 3}
    assert_agrees("RotaryEmbedding", [x, *caches, positions], 23, **attributes)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_by_its_recurrence(rule: str) -> None:
    q, k, v = (sample(s, np.float64, (1, 3, n)) for s, n in enumerate((8, 4, 6)))
    decay = sample(5, np.float64, (1, 3, 2), -1, 0) if "gated" in rule else None
    beta = sample(6, np.float64, (1, 3, 2), 0, 1) if "delta" in rule else None
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    got, last = on_engine("LinearAttention", [q, k, v, None, decay, beta], 27, outputs=2, **attributes)
    state, want = np.zeros((2, 2, 3)), np.empty((3, 4, 3))
    for t, h in np.ndindex(3, 2):
        key, value = k[0, t, 2 * h : 2 * h + 2], v[0, t, 3 * h : 3 * h + 3]
        state[h] *= np.exp(decay[0, t, h]) if decay is not None else 1
        added = value if beta is None else beta[0, t, h] * (value - key @ state[h])
        state[h] += np.outer(key, added)
        for member in (2 * h, 2 * h + 1):
            want[t, member] = q[0, t, 2 * member : 2 * member + 2] @ state[h] / np.sqrt(2)
    assert complaint(got, want.reshape(1, 3, 12)) is None
    assert complaint(last, state[None]) is None


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_conv_continues_where_it_stopped(activation: str) -> None:
    x, w, b = sample(1, np.float64, (2, 3, 9)), sample(2, np.float64, (3, 1, 4)), sample(3, np.float64, (3,))
    whole, end = on_engine("CausalConvWithState", [x, w, b], 27, outputs=2, activation=activation)
    first, state = on_engine("CausalConvWithState", [x[..., :2], w, b], 27, outputs=2, activation=activation)
    rest, last = on_engine(
        "CausalConvWithState", [x[..., 2:], w, b, state], 27, outputs=2, activation=activation
    )
    np.testing.assert_allclose(np.concatenate([first, rest], axis=2), whole, rtol=1e-12)
    np.testing.assert_array_equal(last, end)
    plain_conv = (
        np.stack([(x[..., t - 3 : t + 1] * w[:, 0]).sum(axis=2) for t in range(3, 9)], axis=2) + b[:, None]
    )
    want = plain_conv if activation == "none" else plain_conv / (1 + np.exp(-plain_conv))
    assert complaint(whole[..., 3:], want) is None


# ---- signal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [17, 20])
@pytest.mark.parametrize(
    ("pairs", "inverse", "onesided"), [(1, 0, 0), (2, 0, 0), (1, 0, 1), (2, 1, 0), (2, 1, 1)]
)
@pytest.mark.parametrize("length", [None, 5, 11])
def test_dft_by_the_definition(
    pairs: int, inverse: int, onesided: int, length: int | None, version: int
) -> None:
    x = sample(1, np.float64, (2, 8, 3, pairs))
    z = x[..., 0] + (1j * x[..., 1] if pairs == 2 else 0)
    size = length or (14 if inverse and onesided else 8)
    inputs: list[Any] = [x, None if length is None else np.array(length)]
    attributes = {"inverse": inverse, "onesided": onesided, **({"axis": 1} if version == 17 else {})}
    (got,) = on_engine("DFT", [*inputs, np.array(1)] if version == 20 else inputs, version, **attributes)
    if inverse and onesided:
        want = np.fft.irfft(z, size, axis=1)[..., None]
    else:
        signal = np.zeros((2, size, 3), complex)
        signal[:, : min(size, 8)] = z[:, :size]
        turns = np.outer(np.arange(size), np.arange(size)) / size * (1 if inverse else -1)
        y = np.einsum("kn,bnc->bkc", np.exp(2j * np.pi * turns), signal) / (size if inverse else 1)
        y = y[:, : size // 2 + 1] if onesided else y
        want = np.stack([y.real, y.imag], axis=-1)
    assert complaint(got, want, 1e-10) is None


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
def test_stft_agrees_with_onnx_runtime(window: bool, onesided: int) -> None:
    shape = [sample(2, FLOAT, (16,)) if window else None, np.array(16)]
    inputs = [sample(1, FLOAT, (2, 50, 1)), np.array(7), *shape]
    assert_agrees("STFT", inputs, 17, onesided=onesided)


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_agree_with_onnx_runtime(name: str, periodic: int) -> None:
    assert_agrees(name, [np.array(10)], 17, periodic=periodic)


@pytest.mark.parametrize("bins", [4, 20])
def test_mel_weights_agree_with_onnx_runtime(bins: int) -> None:
    numbers = [np.array(n) for n in (bins, 256, 16000)]
    assert_agrees("MelWeightMatrix", [*numbers, np.array(20, FLOAT), np.array(7600, FLOAT)], 17)


def test_half_precision_is_transformed_wide() -> None:
    x = sample(1, ml_dtypes.bfloat16, (1, 64, 1))
    (got,) = on_engine("DFT", [x], 17)
    (wide,) = on_engine("DFT", [x.astype(FLOAT)], 17)
    np.testing.assert_array_equal(got, wide.astype(ml_dtypes.bfloat16))


def test_windows_follow_truth_mode() -> None:
    (got,) = on_engine("HannWindow", [np.array(8)], 17, truth=True)
    assert got.dtype == np.float64
    (half,) = on_engine("HannWindow", [np.array(8)], 17, output_datatype=10)
    assert half.dtype == np.float16


Q, K, V = heads()
SIGNAL = np.zeros((1, 8, 2), FLOAT)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "complains"),
    [
        ("Attention", [Q, K, V, None, K], {}, "given together"),
        ("Attention", [Q, K, V, None, K, V, np.array([1, 1])], {}, "exclude each other"),
        ("Attention", [Q[:, :3], K, V], {}, "3 query heads do not divide into 2"),
        ("Attention", [Q[:, 0], K[:, 0], V[:, 0]], {}, "does not divide into None heads"),
        ("Attention", [Q, K, V], {"left_window_size": -2}, "window size is -2"),
        (
            "RotaryEmbedding",
            [Q, np.zeros((9, 3)), np.zeros((9, 3)), np.zeros((2, 3), int)],
            {},
            "do not rotate 4",
        ),
        ("LinearAttention", [Q[0]] * 3, {"q_num_heads": 3, "kv_num_heads": 1}, "needs decay"),
        ("CausalConvWithState", [SIGNAL, np.zeros((8, 2, 1), FLOAT)], {}, "do not fit 8 channels"),
        ("CausalConvWithState", [SIGNAL, SIGNAL], {"activation": "relu"}, "activation 'relu'"),
        ("DFT", [SIGNAL, None, np.array(-1)], {}, "axis -1 is out of range"),
        ("DFT", [SIGNAL], {"onesided": 1}, "no one-sided spectrum"),
        ("DFT", [np.zeros((1, 8, 3), FLOAT)], {}, "complex pair"),
        ("STFT", [SIGNAL, np.array(2), None, np.array(9)], {"onesided": 0}, "do not fit a signal of 8"),
        (
            "STFT",
            [SIGNAL, np.array(2), np.ones(3, FLOAT), np.array(4)],
            {"onesided": 0},
            "differs from the window",
        ),
    ],
)
def test_refusals(name: str, inputs: list[Any], attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine(name, inputs, 28, **attributes)
