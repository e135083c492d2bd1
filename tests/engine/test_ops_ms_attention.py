"""com.microsoft against ONNX Runtime: attention, few bits, others; by NumPy what has no CPU kernel there."""

from typing import Any

import numpy as np
import pytest

from graphdoc.engine.errors import RunnerError
from tests.engine.domains import MS, agree, complaint, engine
from tests.engine.ms_data import FLOATS, f, i32, ms, q, s, weights

# ---- attention ----------------------------------------------------------------------------------------

B, S, H, D = 2, 3, 2, 4
WIDTH = H * D


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(dtype: Any) -> None:
    """Masks of every form, causal order, past, other sizes of V."""
    x, w, b = f(B, S, 6, dtype=dtype), f(6, 3 * WIDTH, dtype=dtype), f(3 * WIDTH, dtype=dtype)
    masks = [None, i32([1, 1, 0], [1, 0, 0]), i32(2, 3), i32(3, 3, 1, 0), q(np.int32, B, S, S, low=0, high=1)]
    for mask in masks:
        for causal in (0, 1):
            agree("Attention", x, w, b, mask, domain=MS, num_heads=H, unidirectional=causal)
    agree("Attention", x, w, b, masks[2], domain=MS, num_heads=H, scale=0.3, mask_filter_value=-50.0)
    past = f(2, B, H, 5, D, dtype=dtype)
    agree("Attention", x, w, b, None, past, domain=MS, outputs=2, num_heads=H, unidirectional=1)
    other = f(6, 2 * WIDTH + 12, dtype=dtype)
    agree(
        "Attention",
        x,
        other,
        f(2 * WIDTH + 12, dtype=dtype),
        domain=MS,
        num_heads=H,
        qkv_hidden_sizes=[8, 8, 12],
    )


def test_qattention() -> None:
    """Integer projection, then as Attention."""
    x, w, b = q(np.uint8, B, S, 6), weights(6, 3 * WIDTH), f(3 * WIDTH)
    scales = s(0.01), np.abs(f(3 * WIDTH)) * 0.05
    zeros = np.zeros(3 * WIDTH, np.int8)
    agree(
        "QAttention", x, w, b, s(0.01), s(0.02), i32(2, 3), np.uint8(128), np.int8(0), domain=MS, num_heads=H
    )
    past = f(2, B, H, 2, D)
    agree(
        "QAttention", x, w, b, *scales, None, np.uint8(128), zeros, past, domain=MS, outputs=2, num_heads=H,
        unidirectional=1,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_multi_head_attention(dtype: Any) -> None:
    """Cross-attention, bias, masks, keys as heads, a cache."""
    x, keys, b = f(B, S, WIDTH, dtype=dtype), f(B, 5, WIDTH, dtype=dtype), f(3 * WIDTH, dtype=dtype)
    added = f(1, H, S, 5, dtype=dtype)
    for mask in (None, i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 0]), i32(3, 4)):
        agree("MultiHeadAttention", x, keys, keys, b, mask, added, domain=MS, num_heads=H)
    wide_values, bias = f(B, 5, 12, dtype=dtype), f(2 * WIDTH + 12, dtype=dtype)
    agree("MultiHeadAttention", x, keys, wide_values, bias, domain=MS, num_heads=H)
    heads = f(B, H, 5, D, dtype=dtype)
    agree("MultiHeadAttention", x, heads, heads, domain=MS, num_heads=H)
    past = f(B, H, 2, D, dtype=dtype)
    inputs = (x, x, x, None, None, None, past, past)
    agree("MultiHeadAttention", *inputs, domain=MS, outputs=3, num_heads=H, unidirectional=1)


def test_packed_heads() -> None:
    """Packed inputs, which ONNX Runtime's CPU build refuses, equal separate ones."""
    packed = f(B, S, H, 3, D)
    parts = [packed[:, :, :, i].reshape(B, S, WIDTH) for i in range(3)]
    want = ms("MultiHeadAttention", *parts, num_heads=H)
    np.testing.assert_array_equal(ms("MultiHeadAttention", packed, num_heads=H), want)
    np.testing.assert_array_equal(ms("MultiHeadAttention", parts[0], packed[:, :, :, 1:], num_heads=H), want)


def tables(rows: int, columns: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    angles = np.arange(rows)[:, None] / 10 ** np.linspace(0, 1, columns)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rotary_embedding(dtype: Any) -> None:
    """Both layouts, both pairings, an offset, part of the features."""
    x, table = f(B, S, WIDTH, dtype=dtype), tables(16, D // 2, dtype)
    positions = np.array([[0, 1, 2], [5, 6, 7]])
    for interleaved in (0, 1):
        agree("RotaryEmbedding", x, positions, *table, domain=MS, interleaved=interleaved)
        agree("RotaryEmbedding", x, np.array([3]), *table, domain=MS, interleaved=interleaved)
    agree("RotaryEmbedding", f(B, H, S, D, dtype=dtype), np.array([3]), *table, domain=MS)
    part = tables(16, 1, dtype)
    agree("RotaryEmbedding", x, positions, *part, domain=MS, num_heads=H, rotary_embedding_dim=2)
    with pytest.raises(RunnerError, match=r"a position is outside the cached 0 … 15"):
        ms("RotaryEmbedding", x, np.array([14]), *table)


HEADS, KV, SIZE = 4, 2, 16
GROUP_OPTIONS: list[dict[str, Any]] = [
    {},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1},
    {"local_window_size": 2},
    {"softcap": 2.0},
    {"scale": 0.2},
    {"smooth_softmax": 1},
    {"smooth_softmax": -1, "causal": 1, "k_quant_type": "NONE"},
    {"causal": 0},
]


def grouped(batch: int, length: int, dtype: Any) -> list[Any]:
    return [f(batch, length, n * SIZE, dtype=dtype) for n in (HEADS, KV, KV)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", GROUP_OPTIONS, ids=str)
def test_group_query_attention(options: dict[str, Any], dtype: Any) -> None:
    """A prompt, a step with sequences of unequal length, and several tokens onto a cache."""
    common = {"domain": MS, "outputs": 3, "num_heads": HEADS, "kv_num_heads": KV, **options}
    table = tables(16, SIZE // 2, dtype) if options.get("do_rotary") else ()

    def past(batch: int, length: int) -> Any:
        return f(batch, KV, length, SIZE, dtype=dtype)

    # The rows past a prompt's end mean nothing, and with a window ONNX Runtime leaves them as they come.
    ends = i32(4, 4) if "local_window_size" in options else i32(2, 4)
    prompt = (*grouped(B, 5, dtype), None, None, ends, i32(5)[0])
    agree("GroupQueryAttention", *prompt, *table, **common)
    step = (*grouped(B, 1, dtype), past(B, 6), past(B, 6), i32(6, 4), i32(7)[0])
    agree("GroupQueryAttention", *step, *table, **common)
    buffer = (*grouped(B, 1, dtype), past(B, 10), past(B, 10), i32(6, 6), i32(7)[0])
    agree("GroupQueryAttention", *buffer, *table, **common)
    more = (*grouped(1, 2, dtype), past(1, 6), past(1, 6), i32(7), i32(8)[0])
    agree("GroupQueryAttention", *more, *table, **common)


def test_group_query_attention_inputs() -> None:
    """Packed query, key and value; bias; positions; a sink per head; a quantised cache is refused."""
    common = {"domain": MS, "outputs": 3, "num_heads": HEADS, "kv_num_heads": KV}
    cos, sin = tables(16, SIZE // 2)
    parts = grouped(B, 5, np.float32)
    lengths = (None, None, i32(4, 4), i32(5)[0])
    packed = np.concatenate(parts, axis=-1)
    agree("GroupQueryAttention", packed, None, None, *lengths, cos, sin, do_rotary=1, **common)
    agree("GroupQueryAttention", *parts, *lengths, None, None, None, f(B, 1, 5, 5), **common)
    places = np.array([[1, 2, 3, 4, 5]] * B)
    agree("GroupQueryAttention", *parts, *lengths, cos, sin, places, None, f(HEADS), do_rotary=1, **common)
    with pytest.raises(RunnerError, match="with kv_cache_bit_width is not implemented"):
        engine("GroupQueryAttention", *parts, *lengths, kv_cache_bit_width=4, **common)
    chunk = (*(None,) * 9, i32(4, 4))
    with pytest.raises(RunnerError, match="with query_seqlens is not implemented"):
        engine("GroupQueryAttention", *parts, *lengths, *chunk, **common)
    with pytest.raises(RunnerError, match=f"seqlens_k has 1 entries for {B} sequences"):
        engine("GroupQueryAttention", *parts, None, None, i32(4), i32(5)[0], **common)


def test_group_query_attention_over_normalised_heads() -> None:
    """Weights for queries and keys: each head over its root mean square first (CUDA builds alone have it)."""
    common = {"domain": MS, "outputs": 3, "num_heads": HEADS, "kv_num_heads": KV, "do_rotary": 1}
    query, key, value = grouped(B, 5, np.float32)
    rest = (None, None, i32(4, 4), i32(5)[0], *tables(16, SIZE // 2))
    weights = f(SIZE), f(SIZE)

    def normalised(x: Any, weight: Any, epsilon: float) -> Any:
        heads = x.reshape(B, 5, -1, SIZE).astype(np.float64)
        mean = (heads**2).mean(axis=-1, keepdims=True)
        return (heads / np.sqrt(mean + epsilon) * weight).reshape(x.shape).astype(np.float32)

    want = engine(
        "GroupQueryAttention",
        *(normalised(x, w, e) for x, w, e in zip((query, key), weights, (0.25, 0.5), strict=True)),
        *(value, *rest),
        **common,
    )
    norms = (*(None,) * 5, *weights)
    epsilons = {"q_norm_epsilon": 0.25, "qk_norm_epsilon": 0.5}
    got = engine("GroupQueryAttention", query, key, value, *rest, *norms, **common, **epsilons)

    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# ---- few bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul_nbits(bits: int, dtype: Any) -> None:
    """Blocks that fill K and that do not; zero points packed, as floats and by default; g_idx; bias."""
    for k, block in ((64, 32), (40, 16)):
        n, blocks = 6, -(-k // block)
        b = q(np.uint8, n, blocks, block * bits // 8)
        scale, sizes = (
            f(n * blocks, dtype=dtype),
            {"K": k, "N": n, "bits": bits, "block_size": block, "domain": MS},
        )
        x = f(2, 3, k, dtype=dtype)
        agree("MatMulNBits", x, b, scale, constants=(1, 2), **sizes)
        packed = q(np.uint8, n, -(-blocks * bits // 8))
        agree("MatMulNBits", x, b, scale, packed, constants=(1, 2, 3), **sizes)
        if bits < 8:
            zeros = f(n, blocks, dtype=dtype)
            agree("MatMulNBits", x, b, scale, zeros, None, f(n, dtype=dtype), constants=(1, 2, 3, 5), **sizes)
        if bits == 4 and dtype is np.float32:
            order = q(np.int32, k, low=0, high=blocks - 1)
            agree("MatMulNBits", x, b, scale, None, order, constants=(1, 2, 4), tolerance=1e-5, **sizes)


def test_matmul_nbits_of_three_bits() -> None:
    """Widths that do not divide a byte are packed bit after bit."""
    codes = q(np.uint8, 1, 16, low=0, high=7)
    bits = ((codes[..., None] >> np.arange(3)) & 1).reshape(1, 1, -1).astype(np.uint8)
    packed = np.packbits(bits, axis=-1, bitorder="little")
    got = ms(
        "MatMulNBits",
        np.eye(16, dtype=np.float32),
        packed,
        s(2.0).reshape(1),
        K=16,
        N=1,
        bits=3,
        block_size=16,
    )

    np.testing.assert_array_equal(got[:, 0], (codes[0].astype(np.float32) - 4) * 2)


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind: int) -> None:
    """FP4 and NF4."""
    b, scale = q(np.uint8, 6 * 64 // 2), np.abs(f(6 * 64 // 32))
    agree("MatMulBnb4", f(3, 64), b, scale, domain=MS, K=64, N=6, block_size=32, quant_type=kind)


def test_gather_block_quantized() -> None:
    """Packed 4 bits and 8, with zero points and without."""
    rows, options = np.array([[1, -2], [0, 3]]), {"block_size": 32, "domain": MS}
    agree("GatherBlockQuantized", q(np.uint8, 10, 32), rows, f(10, 2), bits=4, **options)
    agree("GatherBlockQuantized", q(np.uint8, 10, 64), rows, f(10, 4), q(np.uint8, 10, 2), bits=4, **options)
    agree("GatherBlockQuantized", q(np.uint8, 10, 64), rows, f(10, 2), q(np.uint8, 10, 2), bits=8, **options)
    with pytest.raises(RunnerError, match="outside an axis of 10"):
        ms("GatherBlockQuantized", q(np.uint8, 10, 32), rows + 9, f(10, 2), bits=4, block_size=32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_mixture_of_experts(dtype: Any) -> None:
    """Routing, activations, the gated forms."""
    experts, hidden, inner = 4, 32, 64
    x, router = f(5, hidden, dtype=dtype) / 4, f(5, experts, dtype=dtype)
    up, down = f(experts, inner, hidden, dtype=dtype) / 4, f(experts, hidden, inner, dtype=dtype) / 4
    biases = f(experts, inner, dtype=dtype), f(experts, hidden, dtype=dtype)
    for name in ("relu", "gelu", "silu", "identity"):
        options = {
            "k": 2,
            "normalize_routing_weights": int(name != "relu"),
            "activation_type": name,
            "domain": MS,
        }
        agree("MoE", x, router, up, biases[0], down, biases[1], **options)
    gated = f(experts, 2 * inner, hidden, dtype=dtype) / 4
    swiglu: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2, "domain": MS}
    limits = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    agree("MoE", x[None], router, gated, None, down, None, **swiglu, **limits)
    swiglu["normalize_routing_weights"] = 1
    for bits in (4, 8):
        first, second = (
            q(np.uint8, experts, 2 * inner, hidden * bits // 8),
            q(np.uint8, experts, hidden, inner * bits // 8),
        )
        scales = np.abs(f(experts, 2 * inner, dtype=dtype)) / 99, np.abs(f(experts, hidden, dtype=dtype)) / 99
        zeros = q(np.uint8, experts, 2 * inner * bits // 8), q(np.uint8, experts, hidden * bits // 8)
        inputs = (x, router, first, scales[0], None, second, scales[1])
        agree("QMoE", *inputs, expert_weight_bits=bits, **swiglu, constants=(2, 3, 5, 6))
        more = (*inputs, None, None, None, None, *zeros)
        agree("QMoE", *more, expert_weight_bits=bits, **swiglu, constants=(2, 3, 5, 6, 11, 12))
    blocked = (
        np.abs(f(experts, 2 * inner, 2, dtype=dtype)) / 9,
        np.abs(f(experts, hidden, 4, dtype=dtype)) / 9,
    )
    first, second = q(np.uint8, experts, 2 * inner, hidden // 2), q(np.uint8, experts, hidden, inner // 2)
    inputs = (x, router, first, blocked[0], None, second, blocked[1])
    agree("QMoE", *inputs, block_size=16, **swiglu, constants=(2, 3, 5, 6))


def test_mixture_of_experts_refuses() -> None:
    """More experts than there are, other mixers, and a gate without its linear part."""
    inputs = (f(2, 4), f(2, 3), f(3, 8, 4), None, f(3, 4, 8))
    for options, message in (
        ({"k": 4}, "k is 4 of 3 experts"),
        ({"use_sparse_mixer": 1}, "use_sparse_mixer is not implemented"),
        ({"activation_type": "swiglu"}, "needs the third layer"),
        ({"activation_type": "cube"}, "unknown activation_type 'cube'"),
    ):
        with pytest.raises(RunnerError, match=message):
            ms("MoE", *inputs, **options)


# ---- others -------------------------------------------------------------------------------------------


def test_small_operators() -> None:
    """Distances, shapes, look-ups."""
    for metric in ("euclidean", "sqeuclidean"):
        agree("CDist", f(5, 7), f(6, 7), domain=MS, metric=metric)
        agree("CDist", f(5, 7).astype(np.float64), f(6, 7).astype(np.float64), domain=MS, metric=metric)
    agree("Trilu", f(3, 4, 5), np.array([1]), domain=MS, upper=0)
    agree("Inverse", f(2, 4, 4) + np.float32(4) * np.eye(4, dtype=np.float32), domain=MS, tolerance=1e-5)
    agree("Unique", np.float32([3, 1, 3, 2, 1]), domain=MS, outputs=3)
    for axis in (1, -1):
        agree("ExpandDims", f(3, 4), np.int32(axis), domain=MS)
    agree("Pad", f(3, 4), np.array([1, 0, 2, 1]), np.float32([5]), domain=MS)
    agree("Pad", f(3, 4), np.array([[1, 0, 1, 1]]), domain=MS, mode="reflect")
    agree("Range", np.float32(1), np.float32(5), np.float32(0.7), domain=MS)
    agree("Range", np.int64(1), np.int64(5), domain=MS)
    agree("GatherND", f(3, 4, 5), np.array([[0, 1], [2, 3]]), domain=MS)
    agree("SampleOp", f(3), domain=MS)
    agree("GridSample", f(1, 2, 5, 6), f(1, 4, 4, 2), domain=MS, mode="bilinear", padding_mode="reflection")
    agree("NGramRepeatBlock", np.array([[1, 2, 3, 1, 2], [4] * 5]), f(2, 6), domain=MS, ngram_size=3)
    agree(
        "ConvTransposeWithDynamicPads", f(1, 3, 5, 5), f(3, 4, 3, 3), np.array([1, 1, 1, 1]), f(4), domain=MS,
        strides=[2, 2], output_padding=[1, 1],
    )  # fmt: skip


def test_singular_matrices_have_no_inverse() -> None:
    """One singular matrix leaves the others alone."""
    got = ms("Inverse", np.float32([[[2, 0], [0, 4]], [[1, 1], [1, 1]]]))

    np.testing.assert_array_equal(got[0], [[0.5, 0], [0, 0.25]])
    assert np.isnan(got[1]).all()


def test_fourier_transforms() -> None:
    """Against NumPy; there and back; two-sided ones are refused."""
    x, options = f(3, 8), {"signal_ndim": 1, "normalized": 0, "onesided": 1}
    spectrum = ms("Rfft", x, **options)
    want = np.fft.rfft(x.astype(np.float64))
    assert complaint(spectrum, np.stack([want.real, want.imag], axis=-1).astype(np.float32)) is None
    assert complaint(ms("Irfft", spectrum, **options), x) is None
    with pytest.raises(RunnerError, match="one-sided"):
        ms("Rfft", x, **{**options, "onesided": 0})


def test_finiteness() -> None:
    """Either kind, or one alone."""
    infinite, nan = np.float32([1, np.inf]), np.float32([np.nan])
    assert not ms("IsAllFinite", f(3), infinite)
    assert ms("IsAllFinite", f(3), infinite, isnan_only=1)
    assert ms("IsAllFinite", f(3), nan, isinf_only=1)
    assert ms("IsAllFinite", f(3), f(2))


def test_relative_position_bias() -> None:
    """T5's buckets: exact near by, logarithmic far off, capped at the end."""
    table = np.arange(16, dtype=np.float32)[:, None]
    got = ms(
        "RelativePositionBias", table, np.array([1]), np.array([40]), max_distance=20, is_bidirectional=1
    )[0, 0, 0]
    assert got[:4].tolist() == [0, 9, 10, 11]
    assert (np.diff(got) >= 0).all()
    assert got[-1] == 15
    back = ms("RelativePositionBias", table, np.array([40]), np.array([40]), max_distance=20)[0, 0]
    assert back[0].max() == 0
    assert back[39, 32:].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_truth_mode_stays_in_double() -> None:
    """float32 models run in float64, quantised parts included."""
    x = f(3, 40)
    exact = engine("FusedMatMul", x, x, domain=MS, truth=True, transB=1)[0]
    np.testing.assert_allclose(exact, x.astype(np.float64) @ x.astype(np.float64).T, rtol=1e-12)
    b = q(np.uint8, 6, 2, 16)
    assert (
        engine("MatMulNBits", f(3, 64), b, f(12), domain=MS, truth=True, K=64, N=6, block_size=32)[0].dtype
        == np.float64
    )
    got = engine(
        "QLinearAdd",
        q(np.uint8, 9),
        s(0.1),
        np.uint8(3),
        q(np.uint8, 9),
        s(0.1),
        np.uint8(3),
        s(0.2),
        np.uint8(3),
        domain=MS,
        truth=True,
    )
    assert got[0].dtype == np.uint8
    size = {"num_heads": HEADS, "kv_num_heads": KV}
    parts = grouped(1, 3, np.float32)
    assert (
        engine("GroupQueryAttention", *parts, None, None, i32(2), i32(3)[0], domain=MS, truth=True, **size)[
            0
        ].dtype
        == np.float64
    )
