"""What level 0 keeps between runs: results that follow from constants alone, and windows of convolutions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine import interpreter
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.engine.ops import table
from graphdoc.engine.ops.table import Call, op
from tests.engine.single import oracle, same

ONE, TWO = np.asarray([1.0], np.float32), np.asarray([2.0], np.float32)

FIXED = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
g (float[1] x) => (float[1] y) <float[1] w = {3.0}> { a = mine.Counted(w) b = Neg(a) y = Add(x, b) }"""


def build(text: str, **options: Any) -> Interpreter:
    return Interpreter(ir.from_proto(onnx.parser.parse_model(text)), **options)


@pytest.fixture
def counted() -> Iterator[list[int]]:
    """Register an operator that notes each time it runs."""
    calls: list[int] = []

    @op("Counted", 1, domain="mine")
    def count(call: Call, x: Any) -> Any:
        calls.append(1)
        return x + 1

    yield calls
    table.unregister("mine", "Counted")


def test_what_follows_from_constants_is_computed_once(counted: list[int]) -> None:
    """And only what later steps read is kept: not the value between."""
    runner = build(FIXED)

    results = [float(runner.run({"x": x})["y"][0]) for x in (ONE, TWO, ONE)]

    assert results == [-3.0, -2.0, -3.0]
    assert len(counted) == 1
    kept = set(runner.body.known or ()) - set(runner.body.constants)
    assert [value.name for value in kept] == ["b"]


def test_a_watched_run_computes_all(counted: list[int]) -> None:
    """Taps and given values see every step, before and after something was kept."""
    runner = build(FIXED)
    runner.run({"x": ONE})
    runner.run({"x": ONE})

    tapped = runner.run({"x": ONE}, taps=["a"])
    forced = runner.run({"x": ONE}, watch=Watch(given={"a": TWO}))

    assert float(tapped["a"][0]) == 4.0
    assert float(forced["y"][0]) == -1.0
    assert len(counted) == 3


def test_nothing_is_kept_beyond_the_bound(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are too large are computed anew each time."""
    monkeypatch.setattr(interpreter, "KEPT", 0)
    runner = build(FIXED)

    results = [float(runner.run({"x": x})["y"][0]) for x in (ONE, TWO)]

    assert (results, len(counted)) == ([-3.0, -2.0], 2)


def test_a_replaced_initializer_changes_what_follows() -> None:
    """An input with an initializer is a constant only while nobody feeds it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {3.0}> { a = Neg(w) y = Add(x, a) }"""
    runner = build(text)

    plain = [float(runner.run(feeds)["y"][0]) for feeds in ({"x": ONE}, {"x": ONE, "w": TWO}, {"x": ONE})]

    assert plain == [-2.0, -1.0, -2.0]


def test_random_numbers_are_drawn_in_each_run() -> None:
    """Equal seeds give equal runs; within one run two nodes differ, in the second run too."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <float[4] w = {0,0,0,0}>
    { a = RandomNormalLike(w) b = RandomNormalLike(w) c = Sub(a, b) y = Add(x, c) }"""
    runner = build(text)
    first, second = (runner.run({"x": np.zeros(4, np.float32)})["y"] for _ in range(2))

    same(first, second)
    assert np.all(first != 0)
    assert runner.body.rest == tuple(runner.body.steps)


def test_a_caller_may_write_to_outputs() -> None:
    """An output that follows from constants is made anew, so that writing to it changes no later run."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x) => (float[1] y, float[1] z) <float[1] w = {3.0}> { y = Neg(w) a = Abs(w) z = Add(x, a) }"""
    runner = build(text)
    for _ in range(3):
        results = runner.run({"x": ONE})
        assert (float(results["y"][0]), float(results["z"][0])) == (-3.0, 4.0)
        for value in results.values():
            value += 7


def test_bodies_keep_too() -> None:
    """A loop's body computes what its own constants give in the first turn alone, and right in all."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64 n, float[1] x) => (float[1] y) <bool go = {1}> {
      y = Loop (n, go, x) <body = b (int64 i, bool c, float[1] s) => (bool k, float[1] t)
        <float[1] w = {2.0}> { k = Identity(c) a = Neg(w) t = Add(s, a) }> }"""
    runner = build(text)
    wants = [oracle(onnx.parser.parse_model(text), {"n": np.array(n), "x": ONE})[0] for n in (1, 4, 0)]

    for n, want in zip((1, 4, 0), wants, strict=True):
        same(runner.run({"n": np.array(n), "x": ONE})["y"], want)


def test_an_error_after_the_first_run_names_the_node() -> None:
    """Sizes may differ from run to run."""
    runner = build("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x) => (float[n] y) <float[2] w = {3.0, 4.0}> { a = Neg(w) y = Add(x, a) }""")
    runner.run({"x": np.zeros(2, np.float32)})

    with pytest.raises(RunnerError, match="A 3 and B 2 do not broadcast"):
        runner.run({"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool"])
def test_windows_follow_the_sizes(op_type: str) -> None:
    """One node over images of several sizes, back and forth: what ONNX Runtime gives each time."""
    weights = "x, w" if op_type == "Conv" else "x"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, h, v] x) => (float[1, c, p, q] y)
    <float[1, 2, 2, 2] w = {{1, -2, 3, 4, -5, 6, 7, 8}}>
    {{ y = {op_type} <kernel_shape = [2, 2], strides = [2, 1], pads = [1, 0, 0, 1]> ({weights}) }}"""
    proto = onnx.parser.parse_model(text)
    runner = Interpreter(ir.from_proto(proto))
    rng = np.random.default_rng(0)

    for sizes in ((5, 6), (8, 3), (5, 6), (40, 400), (5, 6)):
        x = rng.integers(-9, 9, (1, 2, *sizes)).astype(np.float32)
        same(runner.run({"x": x})["y"], oracle(proto, {"x": x})[0])
