"""What changed between two models is found and named; what did not change is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.diff import ModelDiff, diff_models
from graphdoc.surgeon.diff_weights import distance
from tests.surgeon import build
from tests.surgeon.lint_models import node
from tests.surgeon.test_align import blocks, conv_bn

Edit = Callable[[onnx.ModelProto], object]


def base() -> onnx.ModelProto:
    """Return a small network with all that can change."""
    proto = build.model(
        [
            node("Conv", "x w", "c", kernel_shape=[3, 3], name="conv"),
            node("Relu", "c", "r", name="relu"),
            node("Flatten", "r", "f", name="flat"),
            node("MatMul", "f v", "y", name="mat"),
        ],
        inputs=[build.value("x", ("n", 3, 6, 6))],
        outputs=[build.value("y", ("n", 5))],
        weights=[
            build.weight("w", np.linspace(-1, 1, 54).reshape(2, 3, 3, 3).astype(np.float32)),
            build.weight("v", np.linspace(-2, 1, 160).reshape(32, 5).astype(np.float32)),
        ],
    )
    proto.metadata_props.add(key="author", value="me")
    return proto


def changed(edit: Edit) -> ModelDiff:
    """Return the difference that an edit of the small network makes."""
    after = base()
    edit(after)
    return diff_models(base(), after)


def test_nothing_changed() -> None:
    """A model against itself is the same, all counted."""
    diff = diff_models(base(), base())

    assert diff
    assert (diff.same_nodes, diff.same_weights, diff.renamed) == (4, 2, 0)


def test_names_inside_do_not_count() -> None:
    """Other names of nodes, values and weights are counted and are no difference."""

    def rename(proto: onnx.ModelProto) -> None:
        for item in proto.graph.node:
            item.name += "_again"
            item.input[:] = [name if name == "x" else f"{name}_" for name in item.input]
            item.output[:] = [name if name == "y" else f"{name}_" for name in item.output]
        for tensor in proto.graph.initializer:
            tensor.name += "_"

    diff = changed(rename)

    assert diff
    assert diff.renamed == 3


def test_an_attribute() -> None:
    """A changed attribute is named with both values; a default that is spelt out is none."""

    def pad(proto: onnx.ModelProto) -> None:
        proto.graph.node[2].attribute.append(helper.make_attribute("axis", 2))

    def spell_out(proto: onnx.ModelProto) -> None:
        proto.graph.node[2].attribute.append(helper.make_attribute("axis", 1))

    assert [(c.kind, c.a, c.details) for c in changed(pad).nodes] == [("attributes", "flat", ("axis 1 → 2",))]
    assert changed(spell_out)


RAMP = np.arange(8, dtype=np.float32)

TENSORS = {
    "a few elements": (
        np.float32([1, -0.5]),
        np.float32([1, 0.5]),
        "float32[2] {1.0, -0.5} → float32[2] {1.0, 0.5}",
        " (1 of 2 elements differ, by at most 1, the change's norm is 0.89 of the original's)",
    ),
    "many elements": (
        RAMP,
        RAMP + np.float32([0, 0, 0, 0, 0, 0, 0, 7]),
        "float32[8] → float32[8]",
        " (1 of 8 elements differ, by at most 7, the change's norm is 0.59 of the original's)",
    ),
    "a dtype": (RAMP, RAMP.astype(np.float16), "float32[8] → float16[8]", ""),
    "a shape": (RAMP, RAMP.reshape(2, 4), "float32[8] → float32[2×4]", ""),
    "the sign of a zero": (
        RAMP,
        np.copysign(RAMP, np.float32([-1] + [1] * 7)),
        "float32[8] → float32[8]",
        " (only the signs of zeros or the bits of NaN differ)",
    ),
    "something where nothing was": (
        0 * RAMP,
        RAMP,
        "float32[8] → float32[8]",
        " (7 of 8 elements differ, by at most 7)",
    ),
    "texts": (np.array([b"a", b"b"]), np.array([b"a", b"c"]), "string[2] {a, b} → string[2] {a, c}", ""),
}
"""What differs in an attribute's tensor → both tensors, words for them, and words for their distance."""


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_in_an_attribute(name: str) -> None:
    """Two tensors look different, and how far they lie apart is said."""
    *tables, said, how = TENSORS[name]

    def model(table: np.ndarray[Any, Any]) -> onnx.ModelProto:
        texts = table.dtype.kind == "S"
        kind = TensorProto.STRING if texts else helper.np_dtype_to_tensor_dtype(table.dtype)
        tensor = helper.make_tensor("", kind, table.shape, table.reshape(-1).tolist())
        proto = build.model([helper.make_node("Look", ["x"], ["y"], domain="away", name="n", table=tensor)])
        proto.opset_import.append(helper.make_opsetid("away", 1))
        return proto

    diff = diff_models(model(tables[0]), model(tables[1]))
    assert [change.details for change in diff.nodes] == [(f"table {said}{how}",)]


def test_a_sparse_tensor_in_an_attribute() -> None:
    """What part of it differs is said."""

    def model(last: float) -> onnx.ModelProto:
        values = numpy_helper.from_array(np.float32([1, last]))
        indices = numpy_helper.from_array(np.array([0, 3]))
        sparse = helper.make_sparse_tensor(values, indices, [4])
        proto = build.model([helper.make_node("Look", ["x"], ["y"], domain="away", name="n", table=sparse)])
        proto.opset_import.append(helper.make_opsetid("away", 1))
        return proto

    [change] = diff_models(model(2), model(3)).nodes
    assert change.details == ("table a sparse tensor [4] → a sparse tensor [4] (other values)",)


def test_an_operator() -> None:
    """Another operator in the place of one is an operator that went and one that came."""
    diff = changed(lambda proto: setattr(proto.graph.node[1], "op_type", "Tanh"))

    assert [(c.kind, c.a_op, c.b_op) for c in diff.nodes] == [("removed", "Relu", ""), ("added", "", "Tanh")]


def test_wiring() -> None:
    """A node that reads something else."""
    a = build.model([node("Abs", "x", "a"), node("Exp", "x", "e"), node("Sub", "a e", "y", name="s")])
    b = build.model([node("Abs", "x", "a"), node("Exp", "x", "e"), node("Sub", "e a", "y", name="s")])
    diff = diff_models(a, b)

    assert [(c.kind, c.a) for c in diff.nodes] == [("wiring", "s")]
    assert diff.nodes[0].details == ("input 0: a → e", "input 1: e → a")


def test_sides_of_a_sum_may_change() -> None:
    """Add reads the same whichever comes first."""
    a = build.model([node("Abs", "x", "a"), node("Exp", "x", "e"), node("Add", "a e", "y", name="s")])
    b = build.model([node("Abs", "x", "a"), node("Exp", "x", "e"), node("Add", "e a", "y", name="s")])

    assert diff_models(a, b)


def test_a_weight() -> None:
    """The change of a weight is its norm over the weight's norm; NumPy is the oracle."""

    def shift(proto: onnx.ModelProto) -> None:
        old = numpy_helper.to_array(proto.graph.initializer[1]).copy()
        old[3, 2] += 0.5
        proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(old, "v"))

    (change,) = changed(shift).weights
    old = numpy_helper.to_array(base().graph.initializer[1]).astype(np.float64)

    assert (change.kind, change.a, change.b, change.differing) == ("changed", "v", "v", 1)
    assert change.relative == pytest.approx(0.5 / np.linalg.norm(old))
    assert change.largest == pytest.approx(0.5)


def test_a_weight_of_another_dtype() -> None:
    """The dtype is a difference even where every number survives."""

    def narrow(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float64), tensor.name))

    ones = base()
    for tensor in ones.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    double = base()
    narrow(double)
    diff = diff_models(ones, double)

    assert [(w.a_dtype, w.b_dtype, w.differing, w.relative) for w in diff.weights] == [
        ("float32", "float64", 0, 0.0)
    ] * 2


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([0.0, 0.0], [0.0, 0.0], (0.0, 0.0, 0)),
        ([0.0, 0.0], [0.0, 1.0], (np.inf, 1.0, 1)),
        ([3.0, 4.0], [3.0, 9.0], (1.0, 5.0, 1)),
        ([np.nan, 1.0], [np.nan, 1.0], (0.0, 0.0, 0)),
        ([np.nan, 1.0], [2.0, 1.0], (np.inf, np.inf, 1)),
        ([np.inf, 1.0], [np.inf, 1.0], (0.0, 0.0, 0)),
    ],
)
def test_distance(left: list[float], right: list[float], expected: tuple[float, float, int]) -> None:
    """Zero, infinite and absent numbers have a distance of their own."""
    assert distance(np.array(left), np.array(right)) == expected


FIELDS: dict[str, Edit] = {
    "IR version": lambda proto: setattr(proto, "ir_version", 9),
    "opset ai.onnx": lambda proto: setattr(proto.opset_import[0], "version", 17),
    "opset com.acme": lambda proto: proto.opset_import.append(helper.make_opsetid("com.acme", 3)),
    "metadata author": lambda proto: setattr(proto.metadata_props[0], "value", "you"),
    "doc string": lambda proto: setattr(proto, "doc_string", "new"),
    "producer": lambda proto: setattr(proto, "producer_name", "tool"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_property_of_the_model(name: str) -> None:
    """Versions, metadata and texts, each alone."""
    diff = changed(FIELDS[name])

    assert not diff
    assert [change.field for change in diff.fields] == [name]
    assert diff.nodes == diff.weights == diff.interface == ()


def test_the_interface() -> None:
    """Types, sizes and names of inputs and outputs."""

    def resize(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4

    def rename(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].name = proto.graph.node[0].input[0] = "image"

    found = [(c.kind, c.role, c.a, c.b) for edit in (resize, rename) for c in changed(edit).interface]

    assert found == [
        ("shape", "input", "float32 n × 3 × 6 × 6", "float32 4 × 3 × 6 × 6"),
        ("renamed", "input", "x", "image"),
    ]


def test_a_fused_batch_normalisation() -> None:
    """What was merged says into what; the folded weight counts as changed."""
    diff = diff_models(*conv_bn())

    assert [(c.a_op, c.details) for c in diff.of_kind("removed")] == [
        ("BatchNormalization", ("merged into Conv cn",))
    ]
    assert [(w.a, w.b) for w in diff.weights if w.kind == "changed"] == [("w", "w2")]


def test_functions_are_compared_body_by_body() -> None:
    """A change inside a function is found where both models define it."""
    text = """
    agraph (float[2] x) => (float[2] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 18]> twice (p) => (q) { r = Abs(p) q = Add(r, OP) }
    """
    a = build.text(text.replace("OP", "r"), extra=', "local" : 1')
    b = build.text(text.replace("OP", "p"), extra=', "local" : 1')
    diff = diff_models(a, b)

    assert diff_models(a, a)
    assert [(c.kind, c.a) for c in diff.nodes] == [("wiring", "twice/q")]


def test_a_function_that_one_side_inlined() -> None:
    """Both are inlined then, and are the same."""
    a = build.text(
        """
        agraph (float[2] x) => (float[2] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 18]> twice (p) => (q) { r = Abs(p) q = Neg(r) }
        """,
        extra=', "local" : 1',
    )
    b = build.text("agraph (float[2] x) => (float[2] y) { r = Abs(x) y = Neg(r) }")
    diff = diff_models(a, b)

    assert diff.inlined
    assert diff.nodes == ()


def test_weights_that_cannot_be_read_are_refused() -> None:
    """A missing data file is the error that loading gives."""
    with pytest.raises(ModelError):
        diff_models(build.add(), build.external("gone.bin"))


def test_dtypes_inside() -> None:
    """A Cast that was put in is an added node, no change of those around it."""
    a = build.model([node("Abs", "x", "a"), node("Neg", "a", "y")])
    b = build.model(
        [
            node("Abs", "x", "a"),
            node("Cast", "a", "h", to=TensorProto.FLOAT16),
            node("Cast", "h", "f", to=TensorProto.FLOAT),
            node("Neg", "f", "y"),
        ]
    )

    assert [(c.kind, c.b_op) for c in diff_models(a, b).nodes] == [("added", "Cast"), ("added", "Cast")]


def test_many_blocks_and_one_change() -> None:
    """One changed weight among many equal blocks is the only difference."""
    a, b = blocks(12), blocks(12, prefix="q")
    array = numpy_helper.to_array(b.graph.initializer[7]) * 2
    b.graph.initializer[7].CopyFrom(numpy_helper.from_array(array, "qw7"))
    diff = diff_models(a, b)

    assert diff.nodes == ()
    assert [(w.a, w.b, w.relative) for w in diff.weights] == [("w7", "qw7", pytest.approx(1.0))]
