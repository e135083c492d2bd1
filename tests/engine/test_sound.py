"""Steps whose views do not fit their kernel are refused before machine code touches them."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import graphdoc
from graphdoc.engine import expr as ex
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.kernels.recurrent import Recurrent
from graphdoc.engine.kernels.rows import Output, Reduction, Rows
from graphdoc.engine.kernels.trees import Trees
from graphdoc.engine.kernels.winograd import Winograd
from graphdoc.engine.program import Buffer, Spec, Step, View, whole
from graphdoc.engine.sound import Unsound, check

F4, I4, I8, U8 = map(np.dtype, ("float32", "int32", "int64", "uint64"))
X, SUM = ex.load(0, F4), ex.load(-1, F4)
ACT = ex.apply("tanh", X)


def view(*shape: int, dtype: Any = F4) -> View:
    return whole(Buffer("b", np.dtype(dtype), int(np.prod(shape))), shape)


def step(spec: Spec, inputs: list[View], *outputs: View) -> Step:
    return Step(spec, tuple(inputs), outputs)


def rows() -> Step:
    total = ex.stage(0, F4)
    spec = Rows(1, (Reduction("sum", X),), (Output(total, False), Output(ex.apply("sub", X, total), True)))
    return step(spec, [view(4, 6)], view(4), view(4, 6))


def lstm() -> Step:
    spec = Recurrent("LSTM", (False,), (ACT, ACT, ACT), lengths=True)
    states = [view(1, 3, 5), view(1, 3, 5)]
    inputs = [view(1, 7, 3, 4, 5), view(1, 1, 4, 5, 16), *states, view(3, dtype=I4)]
    return step(spec, inputs, view(1, 7, 3, 5), view(1, 3, 5), view(1, 3, 5))


STEPS: dict[str, Callable[[], Step]] = {
    "map": lambda: step(Map((ACT,)), [view(2, 3)], view(2, 3)),
    "rows": rows,
    "contraction": lambda: step(
        Contraction(1, 1, 1, ex.apply("add", SUM, ex.load(2, F4)), F4),
        [view(2, 3, 4), view(2, 4, 5), view(2, 3, 5)],
        view(2, 3, 5),
    ),
    "packed": lambda: step(
        Contraction(0, 1, 1, SUM, F4, packed=16), [view(3, 4), view(2, 4, 16)], view(3, 20)
    ),
    "winograd": lambda: step(
        Winograd(2, SUM, F4, 8), [view(1, 4, 4, 3, 3, 6), view(2, 16, 6, 8)], view(1, 4, 4, 10)
    ),
    "gather": lambda: step(Gather(0), [view(9, 3), view(4, 3, dtype=I8)], view(4, 3)),
    "attention": lambda: step(
        Attention(1, ex.apply("add", SUM, ex.load(3, F4))),
        [view(2, 3, 8), view(2, 5, 8), view(2, 5, 6), view(2, 3, 5)],
        view(2, 3, 6),
    ),
    "lstm": lstm,
    "trees": lambda: step(
        Trees(False, "none"),
        [view(3, 4), view(40, dtype=U8), view(16, dtype=I8), view(1, dtype=I8), view(9, 2)],
        view(3, 2),
    ),
}


def longer(found: View, axis: int) -> View:
    shape = list(found.shape)
    shape[axis] += 1
    return whole(Buffer("longer", found.dtype, int(np.prod(shape))), shape)


FREE = {
    ("packed", 2, 1): "columns up to the panels'",
    ("winograd", 2, 3): "columns up to the panels'",
    ("gather", 0, 0): "the table",
    ("trees", 0, 1): "features",
    ("trees", 1, 0): "records",
    ("trees", 4, 0): "leaves",
    ("trees", 4, 1): "columns",
}
"""Sizes that nothing else in the step states."""


def sizes() -> list[tuple[str, int, int]]:
    """Return every (step, view, axis)."""
    made = {name: make() for name, make in STEPS.items()}
    views = {name: [*one.inputs, *one.outputs] for name, one in made.items()}
    return [(name, k, a) for name, vs in views.items() for k, v in enumerate(vs) for a in range(len(v.shape))]


def put(made: Step, k: int, found: View) -> Step:
    views = [*made.inputs, *made.outputs]
    views[k] = found
    count = len(made.inputs)
    return replace(made, inputs=tuple(views[:count]), outputs=tuple(views[count:]))


@pytest.mark.parametrize("name", STEPS)
def test_right_steps_pass(name: str) -> None:
    made = STEPS[name]()
    check(made)
    with np.errstate(all="ignore"):
        arrays = [np.zeros(v.shape, v.dtype) for v in (*made.inputs, *made.outputs)]
        made.spec.evaluate(arrays[: len(made.inputs)], arrays[len(made.inputs) :])


@pytest.mark.parametrize(("name", "k", "axis"), sizes())
def test_one_size_too_many_is_refused(name: str, k: int, axis: int) -> None:
    made = STEPS[name]()
    bad = put(made, k, longer([*made.inputs, *made.outputs][k], axis))
    with nullcontext() if (name, k, axis) in FREE else pytest.raises(Unsound):
        check(bad)


@pytest.mark.parametrize("name", STEPS)
def test_views_past_their_buffer_are_refused(name: str) -> None:
    made = STEPS[name]()
    for k, found in enumerate((*made.inputs, *made.outputs)):
        for bad in (replace(found, offset=1), replace(found, offset=-1), replace(found, strides=())):
            with pytest.raises(Unsound):
                check(put(made, k, bad))


@pytest.mark.parametrize("name", STEPS)
def test_another_dtype_is_refused(name: str) -> None:
    made = STEPS[name]()
    for k, found in enumerate((*made.inputs, *made.outputs)):
        if name in ("contraction", "packed", "winograd") and k < 2:
            continue  # a and b may be of any dtype: they are converted to the sum's
        with pytest.raises(Unsound):
            check(put(made, k, view(*found.shape, dtype=np.float64)))


def test_stages_and_positions_must_exist() -> None:
    late = Rows(1, (Reduction("sum", ex.stage(0, F4)),), (Output(ex.stage(0, F4), False),))
    with pytest.raises(Unsound, match="before it is known"):
        check(step(late, [view(4, 6)], view(4)))
    with pytest.raises(Unsound, match="axis 2 of 2"):
        check(step(Map((ex.index(2),)), [], view(4, 6, dtype=I8)))


def test_inconsistent_inputs_are_an_error_at_both_levels() -> None:
    """Both inputs are [?, 3]; joined along the last axis they need one batch: 2 and 24 once read past x."""
    kinds = [onnx.helper.make_tensor_value_info(n, 1, [b, 3]) for n, b in (("x", "n"), ("y", "m"))]
    nodes = [onnx.helper.make_node("Concat", ["x", "y"], ["z"], "join", axis=1)]
    out = onnx.helper.make_tensor_value_info("z", 1, [None, 6])
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", kinds, [out]))
    feeds = {"x": np.zeros((2, 3), np.float32), "y": np.zeros((24, 3), np.float32)}
    for level in (0, 1):
        with pytest.raises(graphdoc.GraphdocError, match="join"):
            graphdoc.Session(model, level=level).run(feeds)
