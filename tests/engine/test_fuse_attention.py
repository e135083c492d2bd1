"""Attention out of products and softmaxes in the layouts that exporters write."""

import numpy as np
import pytest

from graphdoc.engine.expr import F32, apply, const, load
from graphdoc.engine.fuse import fuse
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Program, View
from tests.engine.test_fuse import mapped, program, row, same, step

B, H, S, T, D = 2, 3, 5, 7, 4
TOTAL = load(-1, F32)
SCALED = apply("mul", TOTAL, const(0.5, F32))


def heads(x: View, size: int) -> View:
    """Return (B, size, H·D) as (B, H, size, D)."""
    split = x.reshaped((B, size, H, D))
    assert split is not None
    return split.permuted((0, 2, 1, 3))


def scores(p: Program, q: View, k: View, *more: View, bias: bool = False) -> View:
    """Append q·kᵀ / 2, plus a bias."""
    epilogue = apply("add", SCALED, load(2, F32)) if bias else SCALED
    spec = Contraction(2, 1, 1, epilogue, F32)
    return step(p, spec, [heads(q, S), heads(k, T).permuted((0, 1, 3, 2)), *more], (B, H, S, T))


def softmax(p: Program, x: View) -> View:
    """Append the softmax of the last axis, operator by operator."""
    moved = step(p, mapped("sub"), [x, row(p, "max", x).broadcast(x.shape)], x.shape)
    powers = step(p, mapped("exp"), [moved], x.shape)
    return step(p, mapped("div"), [powers, row(p, "sum", powers).broadcast(x.shape)], x.shape)


def weighted(p: Program, weights: View, v: View, shape: tuple[int, ...] = (B, H, S, D)) -> View:
    """Append weights · v, the result of the program."""
    return step(p, Contraction(2, 1, 1, TOTAL, F32), [weights, v], shape, out=True)


def kinds(p: Program) -> list[str]:
    """Return what the steps of a program are."""
    return [type(s.spec).__name__ for s in p.steps]


def inputs(**more: tuple[int, ...]) -> tuple[Program, list[View]]:
    """Return a program over q, k, v of all heads side by side, and more."""
    return program({"q": (B, S, H * D), "k": (B, T, H * D), "v": (B, T, H * D), **more})


def test_heads_side_by_side() -> None:
    """Queries, keys and values are views; scores with a bias that all heads share."""
    p, (q, k, v, bias) = inputs(bias=(B, 1, S, T))
    found = scores(p, q, k, bias.broadcast((B, H, S, T)), bias=True)
    weighted(p, softmax(p, found), heads(v, T))

    fused = fuse(p)

    assert kinds(fused) == ["Attention"]
    assert fused.steps[0].spec.batch == 2
    same(p, fused)


def test_a_mask_after_the_scores_joins_them() -> None:
    """select(mask, scores, -1e9), as exporters write masks."""
    p, (q, k, v, mask) = inputs(mask=(B, 1, 1, T))
    spec = Map((apply("select", apply("lt", load(1, F32), const(0, F32)), load(0, F32), const(-1e9, F32)),))
    found = step(p, spec, [scores(p, q, k), mask.broadcast((B, H, S, T))], (B, H, S, T))
    weighted(p, softmax(p, found), heads(v, T))

    fused = fuse(p)

    assert kinds(fused) == ["Attention"]
    same(p, fused)


def test_rows_that_are_masked_altogether_become_zero() -> None:
    """isnan(softmax) ? 0 : softmax, as exporters write it: one step that does the same."""
    p, (q, k, v, bias) = inputs(bias=(B, 1, S, T))
    found = softmax(p, scores(p, q, k, bias.broadcast((B, H, S, T)), bias=True))
    guard = Map((apply("select", apply("isnan", load(0, F32)), const(0, F32), load(0, F32)),))
    weighted(p, step(p, guard, [found], (B, H, S, T)), heads(v, T))

    fused = fuse(p)

    assert kinds(fused) == ["Attention"]
    spec = fused.steps[0].spec
    assert isinstance(spec, Attention)
    assert spec.guarded
    same(p, fused)


@pytest.mark.parametrize("fault", ["read twice", "another axis", "followed"])
def test_what_is_no_attention_stays(fault: str) -> None:
    """Weights that someone else reads; a softmax over queries; something computed of the weighted values."""
    p, (q, k, v) = inputs()
    found = scores(p, q, k)
    if fault == "another axis":
        turned = found.permuted((0, 1, 3, 2))
        weights = softmax(p, turned).permuted((0, 1, 3, 2))
    else:
        weights = softmax(p, found)
    if fault == "followed":
        spec = Contraction(2, 1, 1, apply("tanh", TOTAL), F32)
        step(p, spec, [weights, heads(v, T)], (B, H, S, D), out=True)
    else:
        weighted(p, weights, heads(v, T))
    if fault == "read twice":
        p.outputs["w"] = step(p, mapped("neg"), [weights], (B, H, S, T), out=True)

    fused = fuse(p)

    assert "Attention" not in kinds(fused)
    same(p, fused)


def test_a_softmax_without_values_is_left_alone() -> None:
    """The product before it keeps its place."""
    p, (q, k, _) = inputs()
    found = softmax(p, scores(p, q, k))
    p.outputs["y"] = step(p, mapped("neg"), [found], (B, H, S, T), out=True)

    fused = fuse(p)

    assert sorted(kinds(fused)) == ["Contraction", "Rows"]
    same(p, fused)


def test_masked_rows_in_numbers() -> None:
    """NaN weights count as 0 only where the step is guarded."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3), (4, 3), (4, 3)))
    mask = np.zeros((2, 4), np.float32)
    mask[1] = -np.inf
    score = apply("add", TOTAL, load(3, F32))
    out = np.empty((2, 3), np.float32)

    Attention(0, score, guarded=True).evaluate([q, k, v, mask], [out])
    assert np.isfinite(out[0]).all()
    assert (out[1] == 0).all()
    Attention(0, score).evaluate([q, k, v, mask], [out])
    assert np.isnan(out[1]).all()
