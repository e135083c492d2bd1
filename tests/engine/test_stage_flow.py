"""Branches and loops inside programs: the same numbers as level 0 and ONNX Runtime, whatever way is taken."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, parser

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from graphdoc.surgeon.model import open_source
from tests.engine.lowered import assert_same, hosts, noise

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def checked(text: str, feeds: dict[str, Any], *, native: bool, units: float = 16) -> Compiled:
    """Run a model on level 1, on NumPy and fused as machine code, twice; hold it against level 0 and ORT.

    native: whether no node may be left to the host.
    """
    proto: ModelProto = parser.parse_model(HEAD + text)
    model = open_source(proto).model
    want = Interpreter(model).run(feeds)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    theirs = dict(zip(names, session.run(None, feeds), strict=True))
    plain = Compiled(model)
    for compiled in (plain, Compiled(model, device=CpuDevice(2), passes=(fuse,))):
        for _ in range(2):
            found = compiled.run(feeds)
            for name, value in want.items():
                assert_same(found[name], value, units)
                np.testing.assert_allclose(found[name], theirs[name], rtol=1e-5, atol=1e-5)
        assert (not hosts(compiled)) is native, compiled.stages()[0].notes
    return plain


SCANS = {
    "distances": """g (float[T,5] x, float[9,5] table) => (float[9,5] last, float[A,B] y) {
        last, y = Scan <num_scan_inputs = 1,
            body = b (float[9,5] s, float[5] e) => (float[9,5] t, float[9] d) {
            t = Identity (s)
            c = Sub (s, e)
            d = ReduceSumSquare <axes = [1], keepdims = 0> (c)
        }> (table, x) }""",
    "products": """g (float[T,4] x, float[4,3] table) => (float[T,3] y, float[T,4] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[4] e) => (float[3] d, float[4] f) {
            d = MatMul (e, table)
            f = Softmax (e)
        }> (x) }""",
    "axes and directions": """g (float[3,T] x, float[T,3] w) => (float[3,A] y, float[A,3] z) {
        y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
            scan_output_axes = [1, 0], scan_output_directions = [0, 1],
            body = b (float[3] a, float[3] c) => (float[3] p, float[3] q) {
            p = Sub (a, c)
            q = Mul (p, a)
        }> (x, w) }""",
    "one result that does not vary": """g (float[T,2] x, float[2] k) => (float[T,2] y, float[T,2] z)
    <int64[1] nil = {0}, int64[1] one = {1}, int64[1] two = {2}> {
        y, z = Scan <num_scan_inputs = 1, body = b (float[2] e) => (float[2] p, float[2] q) {
            p = Neg (k)
            h = Slice (e, nil, one)
            i = Slice (k, one, two)
            q = Concat <axis = 0> (h, i)
        }> (x) }""",
}
CUMULATED = """g (float[T,3] x, float[3] start) => (float[3] last, float[T,3] y) {
    last, y = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] e) => (float[3] t, float[3] d) {
        t = Add (s, e)
        d = Mul (t, e)
    }> (start, x) }"""
SHAPES = {
    "distances": {"x": (7, 5), "table": (9, 5)},
    "products": {"x": (6, 4), "table": (4, 3)},
    "axes and directions": {"x": (3, 5), "w": (5, 3)},
    "one result that does not vary": {"x": (4, 2), "k": (2,)},
}


@pytest.mark.parametrize("name", list(SCANS))
def test_scans_without_a_state_that_changes(name: str) -> None:
    """All iterations at once, however many: their steps do not grow in number."""
    feeds = {k: noise(*shape, seed=n) for n, (k, shape) in enumerate(SHAPES[name].items())}
    compiled = checked(SCANS[name], feeds, native=True)
    few = len(_steps(compiled))
    if name == "axes and directions":
        longer = {"x": noise(3, 50), "w": noise(50, 3, seed=1)}
    else:
        longer = {**feeds, "x": noise(50, *feeds["x"].shape[1:])}
    assert len(_steps(checked(SCANS[name], longer, native=True))) == few


def _steps(compiled: Compiled) -> list[Any]:
    (stage,) = compiled.stages()
    return [step for part in stage.parts for step in part.program.steps]  # type: ignore[union-attr]


def test_scans_that_carry_a_state() -> None:
    """Written out while that is short; the host goes through longer ones."""
    start = noise(3, seed=1)
    for steps, native in ((1, True), (6, True), (300, False)):
        checked(CUMULATED, {"x": noise(steps, 3), "start": start}, native=native, units=64)


def test_a_scan_of_nothing() -> None:
    """No iteration: the state as it was, results without rows."""
    proto = parser.parse_model(HEAD + CUMULATED)
    feeds = {"x": noise(0, 3), "start": noise(3)}
    found = Compiled(open_source(proto).model).run(feeds)
    np.testing.assert_array_equal(found["last"], feeds["start"])
    assert found["y"].shape == (0, 3)


LOOP = """g (float[2] x) => (float[2] y, float[N,2] s, int64 n) <int64 trips = {TRIPS}, int64 nil = {0}> {
    y, n, s = Loop (trips, , x, nil) <body = b (int64 i, bool c, float[2] a, int64 m)
        => (bool d, float[2] o, int64 p, float[2] t) {
        d = Constant <value = bool {GOING}> ()
        f = Cast <to = 1> (i)
        o = Add (a, f)
        p = Add (m, i)
        t = Mul (o, x)
    }> }"""


@pytest.mark.parametrize(("trips", "going", "native"), [(5, 1, True), (3, 0, True), (400, 1, False)])
def test_loops_of_a_known_length(trips: int, going: int, native: bool) -> None:
    """The counter is a number in each iteration; a condition that ends the loop is heard."""
    text = LOOP.replace("TRIPS", str(trips)).replace("GOING", str(going))
    checked(text, {"x": noise(2)}, native=native, units=64)


GROWS = """g (float[2] x) => (float[N] y) <int64 trips = {4}> {
    y = Loop (trips, , x) <body = b (int64 i, bool c, float[M] a) => (bool d, float[K] o) {
        d = Identity (c)
        o = Concat <axis = 0> (a, x)
    }> }"""


def test_a_loop_whose_state_grows() -> None:
    """Sizes of their own in each iteration."""
    checked(GROWS, {"x": noise(2)}, native=True)


COUNTED = """g (int64 n, float[2] x) => (float[2] y) {
    y = Loop (n, , x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] o) {
        d = Identity (c)
        o = Add (a, a)
    }> }"""


def test_a_loop_whose_length_is_fed() -> None:
    """Left to the host: one program of the body, for any length."""
    proto = parser.parse_model(HEAD + COUNTED)
    compiled = Compiled(open_source(proto).model, device=CpuDevice(1), passes=(fuse,))
    x = noise(2)
    for n in (3, 0, 5, 1):
        found = compiled.run({"n": np.array(n), "x": x})
        np.testing.assert_array_equal(found["y"], x * np.float32(2**n))
    assert hosts(compiled) == ["Loop"]


CHOICE = """g (float[4] x, float[4] z) => (float[4] y) <float[1] nil = {0}, int64[1] one = {1}> {
    m = ReduceMean <keepdims = 0> (x)
    n = Reshape (m, one)
    c = Greater (n, nil)
    y = If (c) <
        then_branch = a () => (float[4] t) { t = Sqrt (z) },
        else_branch = b () => (float[4] e) { e = Div (x, z) }
    > }"""


def test_a_choice_between_two_small_branches() -> None:
    """Both are computed; NaN and infinity of the one that is not taken do not show."""
    for x in (np.float32([1, 2, 3, 4]), np.float32([-1, 0, -3, 2]), np.float32([np.nan, 1, 1, 1])):
        for z in (np.float32([0, 1, 4, 9]), np.float32([-1, 0, -0.0, np.inf])):
            checked(CHOICE, {"x": x, "z": z}, native=True)


READS = """g (bool c, float[4] x, int64[2] k) => (float[2] y) {
    y = If (c) <
        then_branch = a () => (float[2] t) { t = Gather (x, k) },
        else_branch = b () => (float[2] e) { e = Cast <to = 1> (k) }
    > }"""
WRITES = READS.replace("float[4] x", "float[2] x").replace(
    "t = Gather (x, k)", "t = ScatterElements (x, k, x)"
)
SIZES = """g (bool c, float[4] x) => (float[N] y) <int64[1] nil = {0}, int64[1] two = {2}> {
    y = If (c) <
        then_branch = a () => (float[2] t) { t = Slice (x, nil, two) },
        else_branch = b () => (float[4] e) { e = Neg (x) }
    > }"""


def test_branches_that_one_must_choose_between() -> None:
    """An index that only one branch looks up, and results of two sizes: the run chooses."""
    compiled = Compiled(open_source(parser.parse_model(HEAD + READS)).model, device=CpuDevice(1))
    x, k = noise(4), np.array([9, -9])
    for condition in (False, True, False):
        feeds = {"c": np.array(condition), "x": x, "k": k % 4 if condition else k}
        want = x[k % 4] if condition else k.astype(np.float32)
        np.testing.assert_array_equal(compiled.run(feeds)["y"], want)
    compiled = Compiled(open_source(parser.parse_model(HEAD + WRITES)).model, device=CpuDevice(1))
    for condition in (False, True, False):
        k = np.array([1, 0]) if condition else np.array([9, -9])
        feeds = {"c": np.array(condition), "x": x[:2], "k": k}
        want = x[[1, 0]] if condition else k.astype(np.float32)
        np.testing.assert_array_equal(compiled.run(feeds)["y"], want)
    for condition in (True, False):
        found = Compiled(open_source(parser.parse_model(HEAD + SIZES)).model).run(
            {"c": np.array(condition), "x": x}
        )
        np.testing.assert_array_equal(found["y"], x[:2] if condition else -x)


def test_what_is_tapped_inside_is_there_once_per_iteration() -> None:
    """A run that taps a body's values goes through it iteration by iteration."""
    compiled = Compiled(open_source(parser.parse_model(HEAD + CUMULATED)).model)
    feeds = {"x": noise(4, 3), "start": noise(3)}
    key = "last.body/t"
    plain, tapped = compiled.run(feeds), compiled.run(feeds, [key])
    assert len(tapped[key]) == 4
    np.testing.assert_array_equal(tapped[key][-1], plain["last"])


CAPTURED = """g (int64 n, float[A,B] x, float[3,3] w) => (float[A,B] y, float[N,M] s)
    <int64[1] one = {1}, float[2,2] weights = {1, 2, 3, 4}> {
    size = Shape (x)
    y, s = Loop (n, , x) <body = b (int64 i, bool c, float[A,B] a) => (bool d, float[A,B] o, float[M] t) {
        d = Identity (c)
        e = Expand (one, size)
        f = Cast <to = 1> (e)
        p = MatMul (a, weights)
        o = Add (p, f)
        t = ReduceSum <keepdims = 0> (p, one)
    }> }"""


def test_a_body_knows_the_constants_around_it() -> None:
    """Weights and sizes from around a loop are constants of its body; other sizes, other constants."""
    proto = parser.parse_model(HEAD + CAPTURED)
    model = open_source(proto).model
    compiled = Compiled(model, device=CpuDevice(1), passes=(fuse,))
    for rows in (2, 3, 2, 5):
        feeds = {"n": np.array(3), "x": noise(rows, 2, seed=rows), "w": noise(3, 3)}
        want = Interpreter(model).run(feeds)
        for _ in range(2):
            found = compiled.run(feeds)
            for name, value in want.items():
                assert_same(found[name], value)
    inner = [stage for graph in compiled.graph.inner.values() for stage in graph.made()]
    assert inner
    for stage in inner:
        assert [type(part).__name__ for part in stage.parts] == ["Segment"], stage.notes
        assert set(stage.parts[0].program.inputs) == {"a", "c"}  # type: ignore[union-attr]
