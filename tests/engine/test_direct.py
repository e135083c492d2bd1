"""The short way through a model that is one program: the same numbers, and only where it holds."""

from typing import Any

import numpy as np
import pytest
from onnx import parser

from graphdoc.engine.errors import InputError, RunnerError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled, compiled
from graphdoc.session import Session
from graphdoc.surgeon.model import open_source

ADD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3] x, float[3] b) => (float[N,3] y, float[N,3] z) {
    y = Add (x, b)
    z = Mul (y, y) }"""

BRANCH = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[4] x) => (float[4] y) {
    y = If (c) <
        then_branch = a () => (float[4] t) { t = Neg (x) },
        else_branch = b () => (float[4] e) { e = Abs (x) }
    > }"""

COUNTED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (int64[1,M] y) {
    y = NonZero (x) }"""


def model(text: str) -> Compiled:
    """Return a compiled model."""
    return compiled(open_source(parser.parse_model(text)).model, threads=1)


def arrays(n: int) -> dict[str, Any]:
    """Return feeds of ADD for a batch of n."""
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, 3)).astype(np.float32), "b": np.ones(3, np.float32)}


def test_other_shapes_and_dtypes_go_the_long_way() -> None:
    """Each run gives what NumPy does, whatever ran before it."""
    runs = model(ADD)
    assert runs.quick(arrays(2)) is None
    for n in (2, 2, 5, 2, 7, 5):
        feeds = arrays(n)
        found = runs.run(feeds)
        np.testing.assert_array_equal(found["y"], feeds["x"] + 1)
        np.testing.assert_array_equal(found["z"], (feeds["x"] + 1) ** 2)
        again = runs.quick(feeds)
        assert again is not None
        np.testing.assert_array_equal(again["z"], found["z"])
    assert runs.quick(arrays(3)) is None
    assert runs.quick({**arrays(5), "more": np.zeros(1)}) is None
    assert runs.quick({"x": arrays(5)["x"].astype(np.float64), "b": np.ones(3, np.float32)}) is None


def test_a_branch_that_contents_choose() -> None:
    """The same types, another condition: the other branch, by the short way once both have been taken."""
    runs = model(BRANCH)
    x = np.float32([-1, 2, -3, 4])
    for condition in (True, False, True):
        found = runs.run({"c": np.array(condition), "x": x})["y"]
        np.testing.assert_array_equal(found, -x if condition else np.abs(x))
    for condition in (True, False):
        again = runs.quick({"c": np.array(condition), "x": x})
        assert again is not None
        np.testing.assert_array_equal(again["y"], -x if condition else np.abs(x))


def test_a_result_that_contents_size() -> None:
    """NonZero: as many as there are, in each run."""
    runs = model(COUNTED)
    runs.run({"x": np.float32([1, 0, 1])})
    for x, places in (([1, 0, 1], [0, 2]), ([0, 0, 0], []), ([1, 1, 1], [0, 1, 2])):
        again = runs.quick({"x": np.float32(x)})
        assert again is not None
        np.testing.assert_array_equal(again["y"], np.int64(places).reshape(1, -1))


TEXTS = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (string[2,3] x) => (string[2,1] a, float[2,1,2] b, string[2,3] c) <int64[1] k = {-1}> {
    a = Gather <axis = 1> (x, k)
    b = ai.onnx.ml.OneHotEncoder <cats_strings = ["u", "v"]> (a)
    c = Identity (x) }"""


def test_strings_go_the_short_way() -> None:
    """What is fed is looked at each time; what comes out is the caller's own."""
    runs = model(TEXTS)
    x = np.array([["a", "b", "u"], ["c", "d", "w"]], object)
    for _ in range(2):
        found = runs.run({"x": x})
        assert found["a"].tolist() == [["u"], ["w"]]
        assert found["b"].tolist() == [[[1, 0]], [[0, 0]]]
        assert found["c"].tolist() == x.tolist()
        for array in found.values():
            array[...] = 0
        assert x[0, 2] == "u"
    odd = x.copy()
    odd[0, 0] = 5
    assert runs.quick({"x": x}) is not None
    assert runs.quick({"x": odd}) is None


PLACES = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (string[N,2] x) => (string[N,1] y) <int64[1] k = {PLACE}> { y = Gather <axis = 1> (x, k) }"""


def test_a_place_outside_the_axis_is_refused() -> None:
    """The short way through a Gather of strings is a slice, which would be silent."""
    for place in (2, -3):
        runs = model(PLACES.replace("PLACE", str(place)))
        for _ in range(2):
            with pytest.raises(RunnerError, match="out of bounds"):
                runs.run({"x": np.array([["a", "b"]], object)})


MAPS = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (float[N,C] x) => (seq(map(int64, float)) y) {
    n = Neg (x)
    y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5]> (n) }"""


def test_maps_of_scores() -> None:
    """One dict a row; no row, no dict; another number of labels is refused."""
    runs = model(MAPS)
    for rows in (3, 0, 1, 3):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        for _ in range(2):
            assert runs.run({"x": x})["y"] == [{3: -a, 5: -b} for a, b in x.tolist()]
    with pytest.raises(RunnerError, match="2 class labels for 3 scores"):
        runs.run({"x": np.zeros((1, 3), np.float32)})


SHARED = """<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y, float[2] z, float[3] w)
<float[2] z = {1, 2}> {
    y = Identity (x)
    w = Neg (x) }"""

LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (int64 n, float[2] x) => (float[2] y, float[N,2] s) {
    y, s = Loop (n, , x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] o, float[2] t) {
        d = Identity (c)
        o = Add (a, x)
        t = Mul (a, a) }> }"""


def test_outputs_are_the_caller_s_own() -> None:
    """What is written into outputs changes neither weights nor inputs."""
    runs = model(SHARED)
    x = np.float32([1, 2, 3])
    for _ in range(3):
        found = runs.run({"x": x})
        np.testing.assert_array_equal(found["y"], [1, 2, 3])
        np.testing.assert_array_equal(found["z"], [1, 2])
        for value in found.values():
            value[...] = 9


def test_bodies_of_loops_take_the_short_way_too() -> None:
    """Turns of the same types, then of others: NumPy is the oracle."""
    runs = model(LOOP)
    for turns in (3, 5, 0, 3):
        x = np.float32([1, -2])
        found = runs.run({"n": np.array(turns), "x": x})
        states = np.array([(k + 1) * x for k in range(turns)], np.float32).reshape(turns, 2)
        np.testing.assert_array_equal(found["y"], (turns + 1) * x)
        np.testing.assert_array_equal(found["s"], states**2)
    (inner,) = runs.graph.inner.values()
    assert inner.short is not None


def test_a_session_checks_what_it_has_not_seen() -> None:
    """A wrong dtype or a missing input is refused after a right run too."""
    session = Session(parser.parse_model(ADD), level=1, threads=1)
    session.run(arrays(2))
    session.run(arrays(2))
    with pytest.raises(InputError):
        session.run({"x": np.zeros((2, 3), np.float64), "b": np.ones(3, np.float32)})
    with pytest.raises(InputError):
        session.run({"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("labels", [[7], [3, 3], [1, 2, 3], [1, 2, 1], [5, 4, 3, 2]], ids=str)
def test_maps_of_any_number_of_labels(labels: list[int]) -> None:
    """As level 0 makes them: of labels that repeat the last counts."""
    text = MAPS.replace("[3, 5]", str(labels))
    x = np.arange(2.0 * len(labels), dtype=np.float32).reshape(2, -1)
    want = Interpreter(open_source(parser.parse_model(text)).model).run({"x": x})["y"]
    runs = model(text)
    for _ in range(2):
        assert runs.run({"x": x})["y"] == want


TABLE = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
g (string[N,M] x) => (float[N,1,2] a, float[N,1,3] b, float[N,1,2] c, string[N,1] d)
<int64[1] i = {0}, int64[1] j = {-1}, int64[1] k = {1}> {
    p = Gather <axis = 1> (x, i)
    q = Gather <axis = 1> (x, j)
    d = Gather <axis = 1> (x, k)
    a = ai.onnx.ml.OneHotEncoder <cats_strings = ["u", "v"]> (p)
    b = ai.onnx.ml.OneHotEncoder <cats_strings = ["v", "w", "v"], zeros = ZEROS> (q)
    c = ai.onnx.ml.OneHotEncoder <cats_strings = ["w", "u"]> (d) }"""


def test_columns_of_one_table_are_looked_up_together() -> None:
    """Each by its own categories, whatever the table's size; what else reads a column still gets it."""
    proto = parser.parse_model(TABLE.replace("ZEROS", "1"))
    below = Interpreter(open_source(proto).model)
    runs = model(TABLE.replace("ZEROS", "1"))
    for rows in (["uuv", "vwx", "x u"], ["wuvv"], ["uwv", "uww"]):
        x = np.array([list(row) for row in rows], object)
        want = below.run({"x": x})
        for _ in range(2):
            found = runs.run({"x": x})
            for name, value in want.items():
                np.testing.assert_array_equal(found[name], value)
    assert runs.run({"x": np.empty((0, 3), object)})["b"].shape == (0, 1, 3)
    for bad, message in (
        ([["v"]], "out of bounds"),
        ([["u", "u", "none"]], "OneHotEncoder .b.: unknown category"),
    ):
        strict = model(TABLE.replace("ZEROS", "0"))
        for _ in range(2):
            with pytest.raises(RunnerError, match=message):
                strict.run({"x": np.array(bad, object)})
        good = np.array([["u", "u", "v"]], object)
        np.testing.assert_array_equal(strict.run({"x": good})["b"], [[[0, 0, 1]]])
        with pytest.raises(RunnerError, match=message):
            strict.run({"x": np.array(bad, object)})
