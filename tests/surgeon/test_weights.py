"""Pruning keeps two of four, stripping and restoring give back every bit, statistics agree with NumPy."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.checker
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.errors import InputError, ModelError, UsageError
from graphdoc.surgeon.model import load, open_source, save
from graphdoc.surgeon.prune import prune, pruned_array
from graphdoc.surgeon.stripping import restore, strip
from graphdoc.surgeon.weight_stats import dedup, weight_stats
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build
from tests.surgeon.lint_models import node

RNG = np.random.default_rng(11)


def numbers(*shape: int) -> np.ndarray:
    """Return random float32 numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


def matmul(array: np.ndarray) -> onnx.ModelProto:
    """Return y = x · w."""
    rows, columns = array.shape
    return build.model(
        [node("MatMul", "x w", "y", name="mat")],
        inputs=[build.value("x", (2, rows))],
        outputs=[build.value("y", (2, columns))],
        weights=[build.weight("w", array)],
    )


# Pruning


def best_two(four: np.ndarray) -> float:
    """Return the largest norm that two of four numbers can keep: tried out, as an oracle."""
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    return max(math.hypot(four[i], four[j]) for i, j in pairs)


@pytest.mark.parametrize(
    ("op", "shape", "axis", "attributes"),
    [
        ("Conv", (6, 8, 3, 3), 1, {}),
        ("ConvTranspose", (8, 6, 3, 3), 0, {}),
        ("Gemm", (8, 5), 0, {}),
        ("Gemm", (5, 8), 1, {"transB": 1}),
        ("MatMul", (8, 5), 0, {}),
    ],
)
def test_two_of_four_along_the_summed_axis(
    op: str, shape: tuple[int, ...], axis: int, attributes: dict
) -> None:
    """In each group of four along the axis at most two stay, and no other two would keep more."""
    array = numbers(*shape)
    size = (1, 8, 5, 5) if len(shape) == 4 else (2, 8)
    proto = build.model(
        [node(op, "x w", "y", name="layer", **attributes)],
        inputs=[build.value("x", size)],
        outputs=[build.value("y", None)],
        weights=[build.weight("w", array)],
    )
    model = load(proto)
    report = prune(model)
    result = model.graph.initializers["w"].const_value.numpy()
    groups = np.moveaxis(result, axis, -1).reshape(-1, 4)
    before = np.moveaxis(array, axis, -1).reshape(-1, 4)

    assert [(row.axis, row.reason) for row in report.layers] == [(axis, "")]
    assert (np.count_nonzero(groups, axis=1) == 2).all()
    assert np.linalg.norm(groups, axis=1) == pytest.approx([best_two(row) for row in before], rel=1e-6)
    assert report.layers[0].lost == pytest.approx(np.linalg.norm(array - result) / np.linalg.norm(array))
    assert report.lost == pytest.approx(report.layers[0].lost)


def test_the_second_operand_of_a_batch_and_the_first() -> None:
    """MatMul sums over the last axis but one of its second operand, and over the last of its first."""
    w = numbers(8, 8)
    assert np.count_nonzero(pruned_array(w, 0).T.reshape(-1, 4), axis=1).max() == 2
    proto = build.model(
        [node("MatMul", "w x", "y", name="mat")],
        inputs=[build.value("x", (8, 2))],
        outputs=[build.value("y", (8, 2))],
        weights=[build.weight("w", w)],
    )

    assert [row.axis for row in prune(load(proto)).layers] == [1]


def test_weights_of_constant_nodes_are_pruned_too() -> None:
    """Paddle and others keep weights in Constant nodes."""
    array = numbers(8, 3)
    proto = matmul(array)
    del proto.graph.initializer[:]
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=build.weight("", array)))
    model = load(proto)
    report = prune(model)
    written = write_model(model).graph.node[0].attribute[0].t

    assert [row.weight for row in report.pruned] == ["w"]
    assert np.array_equal(numpy_helper.to_array(written), pruned_array(array, 0))


def test_pruning_twice_changes_nothing() -> None:
    """What is pruned already loses nothing."""
    model = load(matmul(numbers(8, 3)))
    prune(model)
    before = model.graph.initializers["w"].const_value.numpy().copy()
    report = prune(model)

    assert report.lost == 0
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), before)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes_stay(dtype: type) -> None:
    """Halves, bfloat16 and doubles are pruned in their own dtype."""
    array = numbers(4, 4).astype(dtype)
    result = pruned_array(array, 0)

    assert result.dtype == dtype
    assert np.isin(result[result != 0].astype(np.float64), array.astype(np.float64)).all()


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], dict, str]] = {
    "odd size": (lambda: matmul(numbers(6, 4)), {}, "6 is no multiple of 4"),
    "skip": (lambda: matmul(numbers(8, 4)), {"skip": ["m?t"]}, "skipped on request"),
    "loss": (lambda: matmul(np.ones((8, 4), np.float32)), {"most": 0.5}, "would lose 0.71 of its norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone(name: str) -> None:
    """Each reason leaves every bit of the weight."""
    make, options, reason = REFUSED[name]
    proto = make()
    model = load(proto)
    report = prune(model, **options)

    assert [row.reason for row in report.layers] == [reason]
    assert write_model(model).SerializeToString() == proto.SerializeToString()


def test_only_what_is_asked_for_is_pruned() -> None:
    """The other layer says so."""
    nodes = [node("MatMul", "x w", "a", name="one"), node("MatMul", "a v", "y", name="two")]
    shapes = {"inputs": [build.value("x", (2, 8))], "outputs": [build.value("y", (2, 8))]}
    weights = [build.weight("w", numbers(8, 8)), build.weight("v", numbers(8, 8))]
    report = prune(load(build.model(nodes, weights=weights, **shapes)), only=["t*"])

    assert {row.layer: row.reason for row in report.layers} == {"one": "not asked for", "two": ""}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["matt"]}, "nearest: 'mat'"),
        ({"only": ["w", "other*"]}, "no layer or weight is named 'other*'"),
        ({"skip": ["conv*"]}, "no layer or weight is named 'conv*'"),
        ({"most": 40}, "40 is no share"),
        ({"most": -0.5}, "-0.5 is no share"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    """A glob that matches nothing, a percentage in place of a share: nothing is pruned."""
    array = numbers(8, 4)
    model = load(matmul(array))
    with pytest.raises(UsageError) as caught:
        prune(model, **options)

    assert words in str(caught.value)
    assert caught.value.next_step
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), array)  # type: ignore[union-attr]


def test_a_weight_that_others_read_otherwise() -> None:
    """A weight that is a sum's operand too, or that two layers read along different axes, stays."""
    w = numbers(8, 8)
    nodes = [node("MatMul", "x w", "a"), node("Gemm", "a w", "y", transB=1)]
    shapes = {"inputs": [build.value("x", (2, 8))], "outputs": [build.value("y", (2, 8))]}
    proto = build.model(nodes, weights=[build.weight("w", w)], **shapes)

    assert [row.reason for row in prune(load(proto)).layers] == ["other nodes read it in another way"]


def test_a_pruned_model_runs(tmp_path: pathlib.Path) -> None:
    """The file that is written holds the pruned numbers: ONNX Runtime multiplies by them."""
    array = numbers(8, 3)
    model = load(matmul(array))
    prune(model)
    save(model, tmp_path / "m.onnx")
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = numbers(2, 8)

    assert session.run(None, {"x": x})[0] == pytest.approx(x @ pruned_array(array, 0), rel=1e-5, abs=1e-6)


# Stripping and restoring


def network() -> onnx.ModelProto:
    """Return a model with weights of many kinds: initializers, Constant nodes, a subgraph, axes, scalars."""
    constant = helper.make_node("Constant", [], ["k"], value=build.weight("", numbers(8)))
    inner = helper.make_node("Constant", [], ["i"], value=build.weight("", numbers(8)))
    then = helper.make_graph([inner, node("Add", "r i", "p")], "then", [], [build.value("p", (2, 8))])
    other = helper.make_graph(
        [node("Mul", "r q", "p2")], "else", [], [build.value("p2", (2, 8))], [build.weight("q", numbers(8))]
    )
    return build.model(
        [
            constant,
            node("MatMul", "x w", "a"),
            node("Add", "a k", "b"),
            node("Reshape", "b shape", "r"),
            node("If", "c", "o", then_branch=then, else_branch=other),
            node("Mul", "o two", "y"),
        ],
        inputs=[build.value("x", (2, 8)), build.value("c", (), TensorProto.BOOL)],
        outputs=[build.value("y", (2, 8))],
        weights=[
            build.weight("w", numbers(8, 8)),
            build.weight("shape", np.array([2, 8])),
            build.weight("two", np.array(2, np.float32)),
        ],
    )


def test_strip_takes_weights_and_leaves_what_sets_operators() -> None:
    """Real numbers go, in Constant nodes and subgraphs too; shapes and scalars stay."""
    proto = network()
    bare, stubs = strip(open_source(proto))

    assert {stub.name for stub in stubs} == {"w", "k", "o.then_branch/i", "o.else_branch/q"}
    assert [tensor.name for tensor in bare.graph.initializer] == ["shape", "two"]
    data = bare.SerializeToString()
    assert all(numpy_helper.to_array(t).tobytes() not in data for t in proto.graph.initializer[:1])
    onnx.checker.check_model(bare)


def test_a_stripped_model_reads_as_zeros() -> None:
    """dtype and shape are those of the weights; ONNX Runtime runs the model, with zeros in their place."""
    bare, _ = strip(open_source(network()))
    value = load(bare).graph.initializers["w"].const_value
    session = ort.InferenceSession(bare.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": numbers(2, 8), "c": np.array(True)})

    assert not result.any()

    assert value.numpy().shape == (8, 8)
    assert value.numpy().dtype == np.float32
    assert not value.numpy().any()


def same_bits(a: onnx.ModelProto, b: onnx.ModelProto) -> bool:
    """Whether two models give the same bits in both branches, in ONNX Runtime."""
    x = numbers(2, 8)
    sessions = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (a, b)
    ]
    return all(
        np.array_equal(*(s.run(None, {"x": x, "c": np.array(flag)})[0] for s in sessions))
        for flag in (True, False)
    )


def test_restore_gives_every_bit_back() -> None:
    """From the original, all hashes agree, and the outputs are equal to the bit."""
    proto = network()
    bare, taken = strip(open_source(proto))
    model, put = restore(open_source(bare), open_source(proto))

    assert sorted(put, key=lambda s: s.name) == sorted(taken, key=lambda s: s.name)
    assert same_bits(write_model(model), proto)


def test_restore_from_npz(tmp_path: pathlib.Path) -> None:
    """Weights may come from a file of arrays, by name."""
    proto = matmul(numbers(8, 8))
    np.savez(tmp_path / "w.npz", w=numpy_helper.to_array(proto.graph.initializer[0]))
    bare, _ = strip(open_source(proto))
    model, put = restore(open_source(bare), tmp_path / "w.npz")

    assert [stub.name for stub in put] == ["w"]
    assert np.array_equal(
        model.graph.initializers["w"].const_value.numpy(), numpy_helper.to_array(proto.graph.initializer[0])
    )


def test_restore_finds_renamed_weights() -> None:
    """A weight under another name is known by its hash."""
    proto = matmul(numbers(8, 8))
    bare, _ = strip(open_source(proto))
    renamed = onnx.ModelProto()
    renamed.CopyFrom(proto)
    renamed.graph.initializer[0].name = renamed.graph.node[0].input[1] = "other"
    model, _ = restore(open_source(bare), open_source(renamed))

    assert model.graph.initializers["w"].const_value.numpy().any()


def test_restore_refuses_other_weights() -> None:
    """One changed element, a missing weight, a file that is none, a model without stubs."""
    proto = matmul(numbers(8, 8))
    bare, _ = strip(open_source(proto))
    other = matmul(numbers(8, 8))

    with pytest.raises(InputError, match="its hash differs"):
        restore(open_source(bare), open_source(other))
    with pytest.raises(InputError, match="is missing"):
        restore(open_source(bare), open_source(build.relu()))
    with pytest.raises(InputError, match=r"no \.npz file"):
        restore(open_source(bare), pathlib.Path(__file__))
    with pytest.raises(ModelError, match="no stripped weights"):
        restore(open_source(proto), open_source(proto))


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16])
def test_strip_and_restore_of_narrow_dtypes(dtype: type) -> None:
    """Codes of quantised weights and narrow floats come back bit by bit."""
    array = RNG.integers(-7, 7, (16, 16)).astype(dtype)
    tensor = ir_tensor("w", array)
    proto = build.model(
        [node("Identity", "w", "y")],
        outputs=[build.value("y", (16, 16), tensor.data_type)],
        weights=[tensor],
        opset=21,
    )
    bare, stubs = strip(open_source(proto))
    model, _ = restore(open_source(bare), open_source(proto))

    assert [stub.name for stub in stubs] == ["w"]
    assert write_model(model).graph.initializer[0].raw_data == tensor.raw_data


def ir_tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """Return a tensor of any dtype with raw data."""
    import onnx_ir as ir

    return ir.serde.serialize_tensor(ir.Tensor(array, name=name))


def test_strip_leaves_no_data_file(tmp_path: pathlib.Path) -> None:
    """What stays of a model with external data stands in the model: its data file is not handed on."""
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "w.bin").write_bytes(numbers(2).tobytes() + np.float32(3).tobytes())
    proto = build.external("w.bin")
    scalar = onnx.TensorProto()
    scalar.CopyFrom(build.external("w.bin", 8, 4, ()).graph.initializer[0])
    scalar.name = "s"
    proto.graph.initializer.append(scalar)
    proto.graph.node[0].output[0] = "t"
    proto.graph.node.append(node("Mul", "t s", "y"))
    onnx.save_model(proto, folder / "m.onnx")
    bare, stubs = strip(open_source(folder / "m.onnx"))
    save(load(bare), tmp_path / "bare.onnx")

    assert [stub.name for stub in stubs] == ["w"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["bare.onnx"]
    model, _ = restore(open_source(tmp_path / "bare.onnx"), open_source(folder / "m.onnx"))
    save(model, tmp_path / "again.onnx")
    assert (tmp_path / "w.bin").exists()


# Statistics and sharing


def test_statistics_agree_with_numpy() -> None:
    """Range, mean, spread, zeros, and the error of rounding to int8."""
    array = numbers(50, 20)
    array[0, :5] = 0
    array[1, 0], array[1, 1] = np.nan, np.inf
    (row,) = weight_stats(load(matmul(array)))
    finite = array[np.isfinite(array)].astype(np.float64)
    step = np.abs(finite).max() / 127

    assert (row.minimum, row.maximum) == (finite.min(), finite.max())
    assert row.mean == pytest.approx(finite.mean())
    assert row.std == pytest.approx(finite.std())
    assert (row.zeros, row.nan, row.inf) == (5 / 1000, 1, 1)
    rounded = np.rint(finite / step) * step
    assert row.int8_error == pytest.approx(np.linalg.norm(rounded - finite) / np.linalg.norm(finite))


def test_statistics_of_what_has_none() -> None:
    """Whole numbers have no rounding to lose; texts have no numbers; empty tensors no range."""
    proto = build.model(
        [node("Identity", "x", "y")],
        weights=[
            build.weight("i", np.arange(4)),
            numpy_helper.from_array(np.array(["a", "b"], dtype=object), "t"),
            build.weight("e", np.zeros((0, 3), np.float32)),
        ],
    )
    rows = {row.name: row for row in weight_stats(load(proto))}

    assert (rows["i"].mean, rows["i"].int8_error) == (1.5, None)
    assert rows["t"].remark == "no real numbers"
    assert (rows["e"].mean, rows["e"].minimum, rows["e"].zeros) == (None, None, None)


def twins() -> onnx.ModelProto:
    """Return a model in which two weights are equal, a third differs in a sign of zero alone."""
    zero = np.zeros(4, np.float32)
    other = zero.copy()
    other[0] = -0.0
    return build.model(
        [node("Add", "x a", "s"), node("Add", "s b", "t"), node("Div", "t c", "y")],
        inputs=[build.value("x", (4,))],
        outputs=[build.value("y", (4,))],
        weights=[build.weight("a", zero), build.weight("b", zero.copy()), build.weight("c", other)],
    )


def test_equal_weights_are_named_and_shared() -> None:
    """The first of equal ones stays; −0 is not 0, since 1 ÷ −0 is −∞."""
    model = load(twins())
    equals = {row.name: row.equals for row in weight_stats(model)}
    shared = dedup(model)
    after = write_model(model)

    assert equals == {"a": "", "b": "a", "c": ""}
    assert [(row.name, row.kept, row.bytes) for row in shared] == [("b", "a", 16)]
    assert [tensor.name for tensor in after.graph.initializer] == ["a", "c"]
    assert [list(item.input) for item in after.graph.node] == [["x", "a"], ["s", "a"], ["t", "c"]]
    assert dedup(model) == ()


def test_what_callers_may_feed_is_not_shared() -> None:
    """An initializer that is an input, or an output, stays."""
    proto = twins()
    proto.graph.input.append(build.value("b", (4,)))

    assert dedup(load(proto)) == ()
