"""New names differ from all that a model has, wherever they stand, and are found quickly."""

import time

import onnx

from graphdoc.surgeon.model import load
from graphdoc.surgeon.names import Names
from tests.surgeon import build
from tests.surgeon import edit_models as m


def test_names_everywhere_count() -> None:
    """In branches and functions too; those of functions can be left out."""
    proto = build.text(
        """g (float[2] x) => (float[2] y) { y = local.f(x) }
        <opset_import: ["" : 18], domain: "local"> f (v) => (w) { inside = Exp(v) w = Relu(inside) }""",
        extra=', "local" : 1',
    )

    assert Names(load(proto)).value("inside") == "inside_1"
    assert Names(load(proto), functions=False).value("inside") == "inside"
    assert Names(load(build.text(m.BRANCHES))).has_value("x")


def test_a_name_is_taken_once_given() -> None:
    """Until it is released; an empty one is never given."""
    names = Names(load(build.add()))

    assert [names.value("w"), names.value("w"), names.value("new"), names.value("new")] == [
        "w_1",
        "w_2",
        "new",
        "new_1",
    ]
    assert [names.node("a"), names.node("b"), names.node("")] == ["a_1", "b", "_1"]
    names.release("new")
    names.release_node("b")
    assert (names.has_value("new"), names.value("new")) == (False, "new")
    assert (names.has_node("b"), names.node("b")) == (False, "b")


def test_what_moves_keeps_its_name_where_nobody_else_has_it() -> None:
    """A name in two graphs is a clash once they become one."""
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Exp", ["x"], ["a"], name="n")], "b", [], [build.value("a")]
    )
    nodes = [
        onnx.helper.make_node("If", ["c"], ["y"], name="i", then_branch=body, else_branch=body),
        onnx.helper.make_node("Relu", ["y"], ["z"], name="r"),
    ]
    condition = build.value("c", [], onnx.TensorProto.BOOL)
    proto = build.model(nodes, inputs=[build.value("x"), condition], outputs=[build.value("z")])
    names = Names(load(proto))

    assert (names.moved("a"), names.moved("z")) == ("a_1", "z")
    assert (names.moved_node("n"), names.moved_node("r")) == ("n_1", "r")


def test_many_names_of_one_stem_take_no_longer() -> None:
    """Counting on, not from the start: 20 000 names, which would be 200 million look-ups."""
    names = Names()
    started = time.process_time()
    for _ in range(20_000):
        names.value("t")

    assert names.value("t") == "t_20000"
    assert time.process_time() - started < 5
