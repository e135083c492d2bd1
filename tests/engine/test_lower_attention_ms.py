"""Attention of com.microsoft on level 1, by NumPy and as machine code, beside level 0 (which has ONNX Runtime
as its own oracle)."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from tests.engine import single
from tests.engine.domains import MS
from tests.engine.lowered import assert_same, check, fixed, hosts, noise

B, S, H, D = 2, 3, 2, 4
WIDTH = H * D
UNITS = 64
"""Exponentials of scores whose sums are taken in another order."""


def native(op: str, *inputs: Any, const: tuple[int, ...] = (), **options: Any) -> None:
    """Hold level 1 against level 0: as steps on NumPy, and fused as machine code."""
    check(op, *inputs, const=const, domain=MS, units=UNITS, **options)
    proto, feeds = single.model(op, *inputs, domain=MS, **options)
    proto = fixed(proto, feeds, [f"x{k}" for k in const])
    fed = {name: value for name, value in feeds.items() if name not in {f"x{k}" for k in const}}
    model = ir.from_proto(proto)
    want = Interpreter(model).run(fed)
    found = Compiled(model, device=CpuDevice(2), passes=(fuse,)).run(fed)
    for name, value in want.items():
        assert_same(found[name], value, UNITS)


def i32(*items: Any) -> Any:
    """Return an int32 array."""
    return np.array(items, np.int32)


MASKS = {
    "none": None,
    "rows": i32([1, 1, 0], [1, 0, 0]),
    "lengths": i32(2, 3),
    "ends and starts": i32(3, 3, 1, 0),
    "queries": np.random.default_rng(0).integers(0, 2, (B, S, S)).astype(np.int32),
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask: str, unidirectional: int) -> None:
    """The projections in one product; masks of every form, order, other sizes of the values."""
    x, w, b = noise(B, S, 6), noise(6, 3 * WIDTH, seed=1), noise(3 * WIDTH, seed=2)
    options = {"num_heads": H, "unidirectional": unidirectional}
    native("Attention", x, w, b, MASKS[mask], const=(1, 2), **options)
    native("Attention", x, w, None, MASKS[mask], scale=0.3, mask_filter_value=-50.0, **options)


def test_attention_with_a_cache() -> None:
    """Present keys and values; a bias of the scores; values of another width."""
    x, w, b = noise(B, S, 6), noise(6, 3 * WIDTH, seed=1), noise(3 * WIDTH, seed=2)
    past = noise(2, B, H, 5, D, seed=3)
    native("Attention", x, w, b, None, past, outputs=2, num_heads=H, unidirectional=1)
    native("Attention", x, w, b, outputs=2, num_heads=H)
    native("Attention", x, w, b, None, None, noise(1, H, S, S, seed=4), num_heads=H)
    other = noise(6, 2 * WIDTH + 12, seed=1)
    native("Attention", x, other, noise(2 * WIDTH + 12), num_heads=H, qkv_hidden_sizes=[8, 8, 12])


def test_multi_head_attention() -> None:
    """Cross-attention, a bias of the inputs, masks, keys as heads, a cache."""
    x, keys, b = noise(B, S, WIDTH), noise(B, 5, WIDTH, seed=1), noise(3 * WIDTH, seed=2)
    added = noise(1, H, S, 5, seed=3)
    for mask in (None, i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 0]), i32(3, 4)):
        native("MultiHeadAttention", x, keys, keys, b, mask, added, num_heads=H)
    native("MultiHeadAttention", x, keys, noise(B, 5, 12), noise(2 * WIDTH + 12), num_heads=H)
    heads = noise(B, H, 5, D, seed=4)
    native("MultiHeadAttention", x, heads, heads, num_heads=H)
    past = noise(B, H, 2, D, seed=5)
    inputs = (x, x, x, None, None, None, past, past)
    native("MultiHeadAttention", *inputs, outputs=3, num_heads=H, unidirectional=1)
    check("MultiHeadAttention", noise(B, S, H, 3, D), domain=MS, num_heads=H, host=True)


def tables(rows: int, columns: int) -> tuple[Any, Any]:
    """Return cosines and sines by position."""
    angles = np.arange(rows)[:, None] / 10 ** np.linspace(0, 1, columns)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def test_rotary_embedding() -> None:
    """Both layouts, both pairings, an offset, part of the features; a position outside is refused."""
    x, table = noise(B, S, WIDTH), tables(16, D // 2)
    positions = np.array([[0, 1, 2], [5, 6, 7]])
    for interleaved in (0, 1):
        native("RotaryEmbedding", x, positions, *table, const=(2, 3), interleaved=interleaved)
        native("RotaryEmbedding", x, np.array([3]), *table, interleaved=interleaved)
    native("RotaryEmbedding", noise(B, H, S, D), np.array([3]), *table)
    native("RotaryEmbedding", x, positions, *tables(16, 1), num_heads=H, rotary_embedding_dim=2)
    for bad in (np.array([14]), np.array([-1]), positions - 3):
        proto, feeds = single.model("RotaryEmbedding", x, bad, *table, domain=MS)
        for device in (None, CpuDevice(1)):
            compiled = Compiled(ir.from_proto(proto), device=device)
            with pytest.raises(RunnerError):
                compiled.run(feeds)


HEADS, KV, SIZE = 4, 2, 16
GROUPS: list[dict[str, Any]] = [
    {},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1},
    {"local_window_size": 2},
    {"softcap": 2.0},
    {"scale": 0.2},
    {"causal": 0},
]


def grouped(batch: int, length: int) -> list[Any]:
    """Return queries, and keys and values of fewer heads."""
    return [noise(batch, length, n * SIZE, seed=n) for n in (HEADS, KV, KV)]


@pytest.mark.parametrize("options", GROUPS, ids=str)
def test_group_query_attention(options: dict[str, Any]) -> None:
    """A prompt, a step with sequences of unequal length, a cache with room, several tokens at once."""
    common = {"outputs": 3, "num_heads": HEADS, "kv_num_heads": KV, "const": (5, 6), **options}
    table = tables(16, SIZE // 2) if options.get("do_rotary") else ()

    def past(batch: int, length: int) -> Any:
        return noise(batch, KV, length, SIZE, seed=length)

    prompt = (*grouped(B, 5), None, None, i32(2, 4), i32(5)[0])
    native("GroupQueryAttention", *prompt, *table, **common)
    step = (*grouped(B, 1), past(B, 6), past(B, 6), i32(6, 4), i32(7)[0])
    native("GroupQueryAttention", *step, *table, **common)
    room = (*grouped(B, 1), past(B, 10), past(B, 10), i32(6, 6), i32(7)[0])
    native("GroupQueryAttention", *room, *table, **common)
    more = (*grouped(1, 2), past(1, 6), past(1, 6), i32(7), i32(8)[0])
    native("GroupQueryAttention", *more, *table, **common)


def test_group_query_attention_inputs() -> None:
    """All packed in the query; a bias; positions; weights of norms. A sink is left to level 0."""
    common = {"outputs": 3, "num_heads": HEADS, "kv_num_heads": KV, "const": (5, 6)}
    parts, (cos, sin) = grouped(B, 5), tables(16, SIZE // 2)
    lengths = (None, None, i32(4, 4), i32(5)[0])
    packed = np.concatenate(parts, axis=-1)
    native("GroupQueryAttention", packed, None, None, *lengths, cos, sin, do_rotary=1, **common)
    native("GroupQueryAttention", *parts, *lengths, None, None, None, noise(B, 1, 5, 5), **common)
    native("GroupQueryAttention", *parts, *lengths, None, None, None, noise(B, HEADS, 5, 9), **common)
    places = np.array([[1, 2, 3, 4, 5]] * B)
    native("GroupQueryAttention", *parts, *lengths, cos, sin, places, do_rotary=1, **common)
    one = (*grouped(B, 1), None, None, i32(0, 0), i32(1)[0])
    native("GroupQueryAttention", *one, cos, sin, np.array([[3], [5]]), do_rotary=1, **common)
    norms = (*(None,) * 7, noise(SIZE), noise(SIZE, seed=1))
    epsilons = {"q_norm_epsilon": 0.25, "qk_norm_epsilon": 0.5}
    native("GroupQueryAttention", *parts, *lengths, *norms, **common, **epsilons)
    sink = (None, None, None, None, noise(HEADS))
    check("GroupQueryAttention", *parts, *lengths, *sink, domain=MS, host=True, **common)


@pytest.mark.parametrize("options", GROUPS, ids=str)
def test_lengths_that_a_run_tells(options: dict[str, Any]) -> None:
    """The same program for every length; one that cannot be is refused."""
    common = {"outputs": 3, "num_heads": HEADS, "kv_num_heads": KV, "const": (6,), **options}
    table = tables(16, SIZE // 2) if options.get("do_rotary") else ()

    def past(batch: int, length: int) -> Any:
        return noise(batch, KV, length, SIZE, seed=length)

    native("GroupQueryAttention", *grouped(B, 5), None, None, i32(2, 4), i32(5)[0], *table, **common)
    for lengths in (i32(6, 4), i32(0, 6), i32(5, 5)):
        step = (*grouped(B, 1), past(B, 6), past(B, 6), lengths, i32(7)[0])
        native("GroupQueryAttention", *step, *table, **common)
        room = (*grouped(B, 1), past(B, 10), past(B, 10), lengths, i32(7)[0])
        native("GroupQueryAttention", *room, *table, **common)
    for last in (7, 5, 2):
        more = (*grouped(1, 3), past(1, 6), past(1, 6), i32(last), i32(9)[0])
        native("GroupQueryAttention", *more, *table, **common)


@pytest.mark.parametrize("last", [-1, 0, 9, 2**31 - 1])
def test_lengths_that_cannot_be(last: int) -> None:
    """Fewer keys than are new, or more than the past has."""
    past = noise(1, KV, 6, SIZE)
    proto, feeds = single.model(
        "GroupQueryAttention", *grouped(1, 2), past, past, i32(last), i32(8)[0], domain=MS, outputs=3,
        num_heads=HEADS, kv_num_heads=KV,
    )  # fmt: skip
    proto = fixed(proto, feeds, ["x6"])
    fed = {name: value for name, value in feeds.items() if name != "x6"}
    compiled = Compiled(ir.from_proto(proto), device=CpuDevice(1), passes=(fuse,))
    with pytest.raises(RunnerError):
        compiled.run(fed)
    assert hosts(compiled) == []
    good = compiled.run({**fed, "x5": i32(7)})
    want = Interpreter(ir.from_proto(proto)).run({**fed, "x5": i32(7)})
    for name, value in want.items():
        assert_same(good[name], value, UNITS)


def test_a_total_that_a_run_must_tell() -> None:
    """It sizes the cache: left to level 0."""
    proto, feeds = single.model(
        "GroupQueryAttention", *grouped(B, 5), None, None, i32(4, 4), i32(5)[0], domain=MS, outputs=3,
        num_heads=HEADS, kv_num_heads=KV,
    )  # fmt: skip
    compiled = Compiled(ir.from_proto(proto))
    compiled.run(feeds)
    assert hosts(compiled) == ["GroupQueryAttention"]


def test_lengths_for_fewer_sequences() -> None:
    """Refused, as ONNX Runtime does: neither one length for all nor sequences without keys is meant."""
    options = {"domain": MS, "outputs": 3, "num_heads": HEADS, "kv_num_heads": KV}
    for lengths in (i32(4), i32(4, 4, 4)):
        given = (*grouped(B, 5), None, None, lengths, i32(5)[0])
        proto, feeds = single.model("GroupQueryAttention", *given, **options)
        fed = {name: value for name, value in feeds.items() if name not in ("x5", "x6")}
        with pytest.raises(RunnerError, match="entries for 2 sequences"):
            Compiled(ir.from_proto(fixed(proto, feeds, ["x5", "x6"]))).run(fed)
