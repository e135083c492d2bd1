"""Attention kernels against what their specification computes, and against float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graphdoc.engine.device.llvm.attention import emit_attention, tactics_attention
from graphdoc.engine.expr import BOOL, F16, F32, I64, Expr, apply, cast, const, index, load
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.program import Step, View
from tests.engine.llvm.rows_run import both, fresh, strided, targets

TARGETS = targets()
SUM = load(-1, F32)


def scaled(scale: float = 0.125) -> Expr:
    return apply("mul", SUM, const(scale, F32))


def biased() -> Expr:
    return apply("add", scaled(), load(3, F32))


def chosen() -> Expr:
    """A bool mask, and causal: keys after the query do not count."""
    past = apply("le", index(2), index(1))
    seen = apply("and", past, load(3, BOOL))
    return apply("select", seen, scaled(), const(-1e9, F32))


def tensors(rng: np.random.Generator, *shapes: Sequence[int]) -> list[Any]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def check(
    spec: Attention,
    inputs: Sequence[tuple[View, Any]],
    shape: Sequence[int],
    out: Any = None,
    threads: int = 2,
) -> Any:
    """Run on every target; return the last result."""
    view, memory_of = out or fresh(shape, np.float32)
    step = Step(spec, tuple(v for v, _ in inputs), (view,))
    memory = {view.buffer: memory_of, **{v.buffer: m for v, m in inputs}}
    found = None
    for target in TARGETS:
        for tactic in tactics_attention(step, target):
            kernel = emit_attention(step, target, tactic)
            assert kernel is not None
            ((found, wanted),) = both(kernel, step, memory, threads, target)
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    return found


@pytest.mark.parametrize(
    ("heads", "s", "t", "d", "e"),
    [
        (3, 17, 17, 16, 16),
        (2, 6, 40, 8, 32),
        (1, 1, 33, 64, 64),
        (3, 2, 100, 16, 144),
        (2, 1, 5, 32, 16),
        (2, 5, 3, 7, 5),
        (4, 64, 64, 32, 32),
    ],
)
def test_sizes(heads: int, s: int, t: int, d: int, e: int) -> None:
    """Rows, keys and sizes that fill no tile; a float64 computation agrees too."""
    rng = np.random.default_rng(0)
    q, k, v = tensors(rng, (heads, s, d), (heads, t, d), (heads, t, e))
    inputs = [strided(x, range(3)) for x in (q, k, v)]
    found = check(Attention(1, scaled()), inputs, (heads, s, e), threads=3)
    scores = np.einsum("hsd,htd->hst", q.astype(np.float64), k) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = np.einsum("hst,hte->hse", p / p.sum(-1, keepdims=True), v)
    assert np.abs(found - exact).max() < 1e-6


@pytest.mark.parametrize("orders", [((1, 0, 2), (1, 0, 2), (1, 0, 2)), ((0, 2, 1), (0, 2, 1), (0, 2, 1))])
def test_layouts(orders: Sequence[Sequence[int]]) -> None:
    """Heads side by side, or transposed keys, queries, values and results; gaps between."""
    rng = np.random.default_rng(1)
    shapes = ((3, 19, 8), (3, 21, 8), (3, 21, 24))
    inputs = [strided(x, o, gap=3) for x, o in zip(tensors(rng, *shapes), orders, strict=True)]
    out = strided(np.zeros((3, 19, 24), np.float32), orders[0], gap=2)
    check(Attention(1, scaled()), inputs, (3, 19, 24), out)


def test_two_batch_axes_shared_keys_and_masks() -> None:
    """Groups of heads share keys (stride 0); a bias per head, a bool mask per batch, causal positions."""
    rng = np.random.default_rng(2)
    q = strided(tensors(rng, (2, 4, 13, 8))[0], [0, 2, 1, 3])
    k, v = (strided(x, range(4)) for x in tensors(rng, (2, 1, 30, 8), (2, 1, 30, 8)))
    shared = [(view.broadcast((2, 4, 30, 8)), memory) for view, memory in (k, v)]
    bias, memory = strided(tensors(rng, (4, 1, 30))[0], range(3))
    wide = (bias.broadcast((2, 4, 13, 30)), memory)
    check(Attention(2, biased()), [q, *shared, wide], (2, 4, 13, 8))
    q3 = strided(tensors(rng, (2, 13, 8))[0], range(3))
    k3, v3 = (strided(x, range(3)) for x in tensors(rng, (2, 30, 8), (2, 30, 8)))
    mask, memory = strided(rng.random((2, 1, 30)) < 0.8, range(3))
    check(Attention(1, chosen()), [q3, k3, v3, (mask.broadcast((2, 13, 30)), memory)], (2, 13, 8))


def test_infinities_and_nan() -> None:
    """A mask of -inf; a row that is all -inf gives NaN, a NaN in a query its row alone."""
    rng = np.random.default_rng(3)
    q, k, v = tensors(rng, (1, 9, 8), (1, 20, 8), (1, 20, 8))
    q[0, 4, 2] = np.nan
    mask = np.where(rng.random((1, 9, 20)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[0, 7] = -np.inf
    inputs = [strided(x, range(3)) for x in (q, k, v, mask)]
    found = check(Attention(1, biased()), inputs, (1, 9, 8))
    assert np.isnan(found[0, [4, 7]]).all()
    assert not np.isnan(np.delete(found, [4, 7], axis=1)).any()


def test_what_is_left_to_the_host() -> None:
    """Half precision, and scores that depend on the head's number, have no kernel."""
    views = [fresh((2, 3, 4), kind)[0] for kind in (F16, F16, F16, F16)]
    assert emit_attention(Step(Attention(1, SUM), tuple(views[:3]), (views[3],)), TARGETS[0]) is None
    views = [fresh((2, 3, 4), F32)[0] for _ in range(4)]
    slope = apply("mul", SUM, cast(apply("add", index(0), const(1, I64)), F32))
    assert emit_attention(Step(Attention(1, slope), tuple(views[:3]), (views[3],)), TARGETS[0]) is None


def test_guarded_rows_without_a_weight_are_zero() -> None:
    """All -inf, or a NaN: 0 in place of NaN, in those rows alone."""
    rng = np.random.default_rng(5)
    q, k, v = tensors(rng, (1, 9, 8), (1, 20, 8), (1, 20, 20))
    q[0, 4, 2] = np.nan
    mask = np.where(rng.random((1, 9, 20)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[0, 7] = -np.inf
    inputs = [strided(x, range(3)) for x in (q, k, v, mask)]
    found = check(Attention(1, biased(), guarded=True), inputs, (1, 9, 20))
    assert (found[0, [4, 7]] == 0).all()
    assert (np.delete(found, [4, 7], axis=1) != 0).all()
