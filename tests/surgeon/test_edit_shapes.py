"""Sizes of inputs: frozen, freed and changed; what knew the old size is repaired or named."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc import surgeon
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_repair import falls_into
from tests.surgeon import edit_models as m

# One place of each kind that holds the batch of 1: Reshape with numbers, with -1, Concat with a class token,
# Expand, an LSTM's state, Resize.
BAKED: dict[str, tuple[str, tuple[int, ...]]] = {
    "reshape": (
        """g (float[1, 4, 6] x) => (float[1, 2, 12] y) <int64[2] flat = {1, 24}, int64[3] back = {1, 2, 12}> {
           a = Reshape(x, flat)  b = Relu(a)  y = Reshape(b, back) }""",
        (1, 4, 6),
    ),
    "reshape with -1": (
        """g (float[1, 4, 6] x) => (float[1, 6, 4] y) <int64[3] t = {1, -1, 4}> { y = Reshape(x, t) }""",
        (1, 4, 6),
    ),
    "reshape that merges": (
        """g (float[1, 4, 6] x) => (float[4, 6] y) <int64[2] t = {4, 6}> { y = Reshape(x, t) }""",
        (1, 4, 6),
    ),
    "class token": (
        """g (float[1, 4, 6] x) => (float[1, 5, 6] y) <float[1, 1, 6] token = {1, 2, 3, 4, 5, 6}> {
           y = Concat <axis = 1> (token, x) }""",
        (1, 4, 6),
    ),
    "expand": (
        """g (float[1, 4, 1] x) => (float[1, 4, 3] y) <int64[3] t = {1, 4, 3}> { y = Expand(x, t) }""",
        (1, 4, 1),
    ),
    "lstm state": (
        """g (float[5, 1, 2] x) => (float[5, 1, 1, 3] y)
           <int64[3] rs = {1, 12, 3}, float[1, 1, 3] h0 = {0.5, -0.5, 0.25}> {
           w = Constant <value = float[1, 12, 2] {
             0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.2, 0.3,
             0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> ()
           r = ConstantOfShape <value = float[1] {0.1}> (rs)
           y = LSTM <hidden_size = 3> (x, w, r, , , h0) }""",
        (5, 1, 2),
    ),
    "resize": (
        """g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <int64[4] s = {1, 1, 4, 4}> {
           y = Resize <mode = "nearest"> (x, , , s) }""",
        (1, 1, 2, 2),
    ),
}  # fmt: skip


def axis_of(name: str) -> int:
    """Return the batch axis of a model of :data:`BAKED`."""
    return 1 if name == "lstm state" else 0


def out_axis(name: str) -> int:
    """Return the batch axis of its output."""
    return 2 if name == "lstm state" else 0


@pytest.mark.parametrize("name", BAKED)
@pytest.mark.parametrize("size", ["N", 3])
def test_a_freed_batch_gives_what_each_slice_gives(name: str, size: Any) -> None:
    """Three slices at once equal the original on each; with a symbol and with another number."""
    text, shape = BAKED[name]
    original, model = m.model(text), m.model(text)
    axis = axis_of(name)
    if size == "N":
        found = surgeon.free(model, f"x.{axis}", "N")
    else:
        found = surgeon.set_shape(model, "x", [size if i == axis else dim for i, dim in enumerate(shape)])
    x = np.random.default_rng(0).standard_normal([3 if i == axis else d for i, d in enumerate(shape)])
    x = x.astype(np.float32)
    parts = [m.run(original, x=part)["y"] for part in np.split(x, 3, axis)]

    assert bool(found.done) == (name != "expand")
    assert not found.left
    np.testing.assert_allclose(m.run(model, x=x)["y"], np.concatenate(parts, out_axis(name)), rtol=1e-6)
    if size == "N":
        np.testing.assert_allclose(m.run(model, x=x.take([0], axis))["y"], parts[0], rtol=1e-6)


def test_a_batch_of_four_that_is_baked_in() -> None:
    """Operands whose slices are equal are cut to one; others are named and left."""
    text = """g (float[4, 2] x) => (float[4, 2] y) <float[4, 2] same = {1,2,1,2,1,2,1,2}, int64[2] t = {4, 2}>
    {
      a = Add(x, same)  b = Expand(a, t)  y = Reshape(b, t) }"""
    model = m.model(text)
    found = surgeon.free(model, "x.0", "N")
    assert (len(found.done), found.left) == (3, [])
    np.testing.assert_allclose(m.run(model, x=np.ones((5, 2), np.float32))["y"], [[2, 3]] * 5)

    model = m.model(text.replace("1,2,1,2,1,2,1,2", "1,2,1,2,1,2,1,9"))
    found = surgeon.free(model, "x.0", "N")
    assert len(found.left) == 1
    assert "Add" in found.left[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g (float[1, 3] x) => (float[3] y) { y = Squeeze(x) }", "every dim of size 1"),
        ("g (float[2] x) => (float[1] y, float[1] z) { y, z = Split <num_outputs = 2> (x) }", "splits"),
        ("g (float[6, 2] x) => (float[3, 4] y) <int64[2] t = {3, 4}> { y = Reshape(x, t) }", "cannot tell"),
    ],
)  # fmt: skip
def test_what_cannot_be_repaired_is_named(text: str, words: str) -> None:
    """The model still takes the old size."""
    model = m.model(text)
    found = surgeon.free(model, "x.0", "N")

    assert words in found.left[0]
    assert not found.done


def test_targets_in_subgraphs_are_repaired() -> None:
    """A branch has a Reshape of its own."""
    text = """g (float[1, 4] x, bool flag) => (float[1, 2, 2] y) <int64[3] t = {1, 2, 2}> {
      y = If (flag) <
        then_branch = yes () => (float[1, 2, 2] a) { a = Reshape(x, t) },
        else_branch = no () => (float[1, 2, 2] b) { c = Neg(x)  b = Reshape(c, t) } > }"""
    model = m.model(text)
    surgeon.free(model, "x.0", "N")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    np.testing.assert_allclose(m.run(model, x=x, flag=np.array(True))["y"], x.reshape(3, 2, 2))
    np.testing.assert_allclose(m.run(model, x=x, flag=np.array(False))["y"], -x.reshape(3, 2, 2))


def test_two_freed_axes() -> None:
    """One entry is copied, the other computed or left open."""
    model = m.model("g (float[2, 6, 5] x) => (float[2, 30] y) <int64[2] t = {2, 30}> { y = Reshape(x, t) }")
    surgeon.free(model, "x.0", "N")
    found = surgeon.free(model, "x.1", "C")

    assert not found.left
    x = np.arange(180, dtype=np.float32).reshape(3, 12, 5)
    np.testing.assert_allclose(m.run(model, x=x)["y"].reshape(x.shape), x)


def test_freeze_and_free_are_inverse() -> None:
    """Symbols become numbers everywhere, expressions are worked out."""
    model = m.model(m.DIAMOND)
    surgeon.freeze(model, {"N": 2})
    assert [list(v.shape or ()) for v in model.graph.outputs] == [[2, 4], [2, 4]]

    surgeon.free(model, "x.0", "batch")
    assert [str(dim) for dim in model.graph.outputs[0].shape or ()] == ["batch", "4"]


def test_freeze_a_dim_without_a_symbol() -> None:
    """By input and axis."""
    model = m.model("g (float[?, 3] x) => (float[?, 3] y) { y = Neg(x) }".replace("?", "N"))
    model.graph.inputs[0].shape = ir.Shape([None, 3])
    surgeon.freeze(model, {"x.0": 7})

    assert list(model.graph.outputs[0].shape or ()) == [7, 3]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (lambda g: surgeon.free(g, "x.9", "M"), "has no axis 9"),
        (lambda g: surgeon.free(g, "xx.0", "M"), "nearest: 'x.0'"),
        (lambda g: surgeon.free(g, "x", "M"), "no dim is named"),
        (lambda g: surgeon.free(g, "x.0", "7"), "is no symbol"),
        (lambda g: surgeon.freeze(g, {"M": 1}), "no dim is named 'M'"),
        (lambda g: surgeon.freeze(g, {"N": -1}), "is no size"),
        (lambda g: surgeon.set_shape(g, "x", [1, 2, 3]), "has 2 dims, not 3"),
        (lambda g: surgeon.set_shape(g, "a", [1, 2]), "is no input"),
        (lambda g: surgeon.set_shape(g, "xx", [1, 2]), "nearest: 'x'"),
    ],
)
def test_bad_sizes_are_refused(verb: Any, words: str) -> None:
    """With what helps; the model is as it was."""
    model = m.model(m.DIAMOND)
    before = m.frozen(model)
    with pytest.raises(UsageError, match=words) as caught:
        verb(model)
    assert caught.value.next_step
    assert m.frozen(model) == before


@pytest.mark.parametrize(
    ("old_in", "old_out", "axis", "place"),
    [
        ([1, 12, 64], [1, 768], 0, 0),
        ([1, 12, 64], [768], 0, 0),
        ([1, 768], [1, 12, 64], 1, None),
        ([1, 1, 8], [1, 8, 1], 0, 0),
        ([4, 3], [2, 2, 3], 0, None),
        ([2, 3, 4], [6, 4], 0, 0),
        ([2, 3, 4], [6, 4], 1, 0),
        (["B", 1, 8], ["B", 8], 1, 1),
        ([3, 4], [4, 3], 0, None),
        ([3, 4], [3, 2, 2], 0, 0),
        ([4, 3], [2, 2, 3], 1, 2),
        ([2, 1, 8], [2, 2, 4], 1, 1),
        ([0, 4], [0, 4], 0, 0),
        ([5], [], 0, None),
        ([1, "S", 1], ["S"], 0, 0),
        ([1, "S"], [1, 1, "S"], 0, 0),
        (["S", 1], ["T"], 1, None),
    ],
)
def test_where_a_dim_goes(old_in: list[Any], old_out: list[Any], axis: int, place: int | None) -> None:
    """Groups of equal size from the left; None where that does not tell."""
    assert falls_into(old_in, old_out, axis) == place
