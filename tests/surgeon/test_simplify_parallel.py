"""Products of one value: when they become one and a Split, and when they stay."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.surgeon.model import load
from graphdoc.surgeon.simplify import Options, simplify
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build
from tests.surgeon.simplify_check import Result, check, seeded

RULE = "merge-parallel-matmul"
WIDTHS = (3, 5, 2)
NUMPY = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.FLOAT16: np.float16}


def _tensor(name: str, shape: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> onnx.TensorProto:
    numbers = np.random.default_rng(len(name) + sum(map(ord, name))).standard_normal(shape)
    return numpy_helper.from_array(numbers.astype(NUMPY[dtype]), name)


def _products(
    *,
    op: str = "MatMul",
    lead: tuple[Any, ...] = ("N", 2),
    widths: tuple[int, ...] = WIDTHS,
    biases: tuple[Any, ...] = (),
    opset: int = 18,
    dtype: int = TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return y0, y1 … = x·w0 + b0, x·w1 + b1 …; a bias is a shape, or None."""
    nodes, weights, outputs = [], [], []
    turned = attributes.get("transB", 0)
    for place, width in enumerate(widths):
        shape = biases[place] if biases else None
        result, names = f"y{place}", ["x", f"w{place}"]
        weights.append(_tensor(f"w{place}", (width, 4) if turned else (4, width), dtype))
        if shape is not None:
            weights.append(_tensor(f"b{place}", shape, dtype))
        if op == "Gemm":
            extra = [f"b{place}"] if shape is not None else []
            nodes.append(helper.make_node(op, [*names, *extra], [result], name=f"n{place}", **attributes))
        elif shape is None:
            nodes.append(helper.make_node(op, names, [result], name=f"n{place}"))
        else:
            nodes.append(helper.make_node(op, names, [f"m{place}"], name=f"n{place}"))
            nodes.append(helper.make_node("Add", [f"b{place}", f"m{place}"], [result], name=f"a{place}"))
        outputs.append(build.value(result, [*lead, width], dtype))
    inputs = [build.value("x", [*lead, 4], dtype)]
    return build.model(nodes, inputs=inputs, outputs=outputs, weights=weights, opset=opset)


def _stay(proto: onnx.ModelProto, words: str = "", **options: Any) -> Result:
    """Check that nothing is merged, and why."""
    result = check(proto, exact=False, **options)

    assert RULE not in result.rules()
    assert not words or any(words in reason for reason in result.reasons(RULE)), result.report.kept
    return result


@pytest.mark.parametrize(
    ("opset", "form"), [(2, "attribute"), (7, "attribute"), (11, "attribute"), (13, "input"), (18, "input")]
)
def test_products_become_one(opset: int, form: str) -> None:
    """One product and a Split, in the form of each opset; outputs keep their names."""
    result = check(_products(opset=opset), exact=False)

    assert result.ops == ["MatMul", "Split"]
    split = result.proto.graph.node[1]
    assert list(split.output) == ["y0", "y1", "y2"]
    assert len(split.input) == (1 if form == "attribute" else 2)
    assert [t.dims[-1] for t in result.proto.graph.initializer if len(t.dims) == 2] == [10]


@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize(
    "biases", [((3,), (5,), (2,)), ((1, 3), None, (2,)), ((1,), (1, 1, 5), ()), (None, (5,), None)]
)
def test_biases_are_added_once(biases: tuple[Any, ...], dtype: int) -> None:
    """Rows, single numbers and none: one Add of all of them."""
    result = check(_products(biases=biases, dtype=dtype), exact=False)

    assert result.ops == ["MatMul", "Add", "Split"]


def test_matrices_become_a_gemm() -> None:
    """Of plain matrices, product and Add are a Gemm."""
    result = check(_products(lead=("N",), biases=((3,), (5,), (2,))), exact=False)

    assert result.ops == ["Gemm", "Split"]


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}, {"alpha": -1.5, "transB": 1}]
)
@pytest.mark.parametrize("biases", [(), ((3,), None, (1, 2)), ((3,), (), (1,))])
def test_gemms_become_one(attributes: dict[str, Any], biases: tuple[Any, ...]) -> None:
    """Gemm with its factors and turned weights."""
    result = check(_products(op="Gemm", lead=("N",), biases=biases, **attributes), exact=False)

    assert result.ops == ["Gemm", "Split"]


def test_before_opset_2_nothing_is_split() -> None:
    """ONNX Runtime has no such Split."""
    _stay(_products(opset=1))


def test_two_products_with_biases_become_one() -> None:
    """Four nodes become three; without biases two would stay two."""
    assert check(_products(widths=(3, 5), biases=((3,), (5,))), exact=False).ops == ["MatMul", "Add", "Split"]
    _stay(_products(widths=(3, 5)))
    _stay(_products(widths=(3, 5), biases=((3,), None)))


def test_scales_go_into_the_weights_first() -> None:
    """A Mul behind one of the products becomes part of its weights before they are merged."""
    proto = _products()
    proto.graph.node[0].output[0] = "m0"
    proto.graph.node.append(helper.make_node("Mul", ["m0", "half"], ["y0"]))
    proto.graph.initializer.append(build.weight("half", np.array(0.5, np.float32)))

    assert check(proto, exact=False).ops == ["MatMul", "Split"]


def test_attention_is_assembled_first() -> None:
    """Where an activation is assembled on request, the Split does not stand in its way."""
    proto = _products()
    proto.graph.node[0].output[0] = "m0"
    proto.graph.node.append(helper.make_node("Sigmoid", ["m0"], ["s"]))
    proto.graph.node.append(helper.make_node("Mul", ["m0", "s"], ["y0"]))
    proto.opset_import[0].version = 24
    proto.ir_version = 10
    result = simplify(load(proto), Options(request=("assemble",)))
    ops = [node.op_type for node in write_model(result.model).graph.node]

    assert ops == ["MatMul", "Split", "Swish"]


def test_an_add_that_widens_the_rank_is_no_bias() -> None:
    """A row with more axes than the product gives a result with more axes."""
    proto = _products(biases=((1, 1, 1, 3), (5,), (2,)))
    proto.graph.output[0].CopyFrom(build.value("y0", [1, "N", 2, 3]))
    result = check(proto, exact=False)

    assert result.ops == ["MatMul", "Add", "Split", "Add"]


def test_an_add_that_varies_over_rows_is_no_bias() -> None:
    """The product is merged, the Add stays behind it."""
    proto = _products(biases=((2, 3), (2, 5), (2, 2)))
    result = check(proto, exact=False)

    assert sorted(result.ops) == ["Add", "Add", "Add", "MatMul", "Split"]


def test_a_product_that_something_else_reads() -> None:
    """Its Add is no part of the branch, the product is."""
    proto = _products(biases=((3,), (5,), (2,)))
    proto.graph.node.append(helper.make_node("Relu", ["m0"], ["r"]))
    proto.graph.output.append(build.value("r", ["N", 2, 3]))
    result = check(proto, exact=False)

    assert sorted(result.ops) == ["Add", "Add", "MatMul", "Relu", "Split"]


def test_other_rows_or_dtypes_make_other_groups() -> None:
    """Gemms whose factors differ are not merged."""
    proto = _products(op="Gemm", lead=("N",))
    proto.graph.node[1].attribute.append(helper.make_attribute("alpha", 2.0))
    _stay(proto)

    five = _products(op="Gemm", lead=("N",), widths=(3, 5, 2, 4, 6))
    five.graph.node[1].attribute.append(helper.make_attribute("alpha", 2.0))
    assert check(five, exact=False).ops == ["Gemm", "Split", "Gemm"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("input", "no stored constant"),
        ("overridable", "no constant matrix"),
        ("quantized", "no stored constant"),
        ("shared", "something else needs its weights"),
        ("output", "something else needs its weights"),
        ("batched", "no constant matrix"),
    ],
)
def test_weights_that_stay(change: str, words: str) -> None:
    """What is not constant, no matrix, quantized or needed by others is left, and the reason said."""
    proto = _products()
    graph = proto.graph
    feeds = None
    if change == "input":
        del graph.initializer[0]
        graph.input.append(build.value("w0", [4, 3]))
    elif change == "overridable":
        graph.input.append(build.value("w0", [4, 3]))
    elif change == "quantized":
        whole = np.arange(12, dtype=np.int8).reshape(4, 3)
        graph.initializer[0].CopyFrom(numpy_helper.from_array(whole, "q"))
        graph.initializer.append(build.weight("scale", np.array(0.25, np.float32)))
        graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "scale"], ["w0"]))
    elif change == "shared":
        graph.node.append(helper.make_node("Mul", ["w0", "x3"], ["z"]))
        graph.input.append(build.value("x3", [4, 3]))
        graph.output.append(build.value("z", [4, 3]))
    elif change == "output":
        graph.output.append(build.value("w0", [4, 3]))
    else:
        graph.initializer[0].CopyFrom(_tensor("w0", (1, 4, 3)))
    _stay(proto, words, feeds=feeds)


def test_integers_stay() -> None:
    """Quantized products of integers are no sums of floats."""
    proto = _products()
    graph = proto.graph
    for index, width in enumerate(WIDTHS):
        numbers = np.arange(4 * width, dtype=np.int32).reshape(4, width)
        graph.initializer[index].CopyFrom(numpy_helper.from_array(numbers, f"w{index}"))
    for info in (*graph.input, *graph.output):
        info.type.tensor_type.elem_type = TensorProto.INT32
    _stay(proto, "no floats")


@pytest.mark.parametrize("name", ["n0", "w0", "y0"])
def test_what_is_kept_stays(name: str) -> None:
    """--keep holds a product, its weights, or its result."""
    result = _stay(_products(), keep=(name,))

    assert name in [item for n in result.proto.graph.node for item in (n.name, *n.input, *n.output)]


def test_a_kept_add_stays() -> None:
    """The product before it is merged all the same."""
    result = check(_products(biases=((3,), (5,), (2,))), exact=False, keep=("a0",))

    assert [n.name for n in result.proto.graph.node if n.op_type == "Add"].count("a0") == 1


def test_before_opset_11_the_rank_must_be_known() -> None:
    """Split then counts its axis from the front."""
    for opset, ops in ((7, ["MatMul"] * 3), (11, ["MatMul", "Split"])):
        proto = _products(opset=opset)
        graph = proto.graph
        graph.input[0].name = "source"
        graph.input.append(build.value("s", ["R"], TensorProto.INT64))
        graph.node.insert(0, helper.make_node("Reshape", ["source", "s"], ["x"]))
        for place, output in enumerate(graph.output):
            graph.node.append(helper.make_node("ReduceSum", [output.name], [f"r{place}"], keepdims=0))
            output.CopyFrom(build.value(f"r{place}", []))
        feeds = [{"source": np.ones((2, 2, 4), np.float32), "s": np.array([4, 1, 4])}]
        result = check(proto, exact=False, feeds=feeds)

        assert [op for op in result.ops if op not in ("Reshape", "ReduceSum")] == ops
        assert bool(result.reasons(RULE)) == (opset == 7)


def test_large_weights_in_files_stay_there(tmp_path: Any) -> None:
    """Copies of weights in files are bounded by the growth allowed."""
    proto = _products()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)

    def ops(growth: int) -> tuple[list[str], list[str]]:
        result = simplify(load(tmp_path / "m.onnx"), Options(max_growth=growth))
        reasons = [item.reason for item in result.report.kept if item.rule == RULE]
        return [node.op_type for node in result.model.graph], reasons

    assert ops(4 * 10 * 4 - 1)[0] == ["MatMul"] * 3
    assert any("lie in a file" in reason for reason in ops(4 * 10 * 4 - 1)[1])
    assert ops(4 * 10 * 4)[0] == ["MatMul", "Split"]


def test_too_large_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a size nothing is gained."""
    monkeypatch.setattr("graphdoc.surgeon.rules.parallel.LARGEST", 4 * 10 * 4 - 1)
    _stay(_products(), "would take")


def test_inside_branches() -> None:
    """Products in a subgraph that read a value outside are merged in the subgraph."""
    proto = _products()
    graph = proto.graph
    names = [output.name for output in graph.output]
    body = helper.make_graph(list(graph.node), "body", [], list(graph.output))
    other = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "zero", end, "axis"], [f"e{i}"])
            for i, end in enumerate(("three", "three", "two"))
        ],
        "other",
        [],
        [build.value(f"e{i}", ["N", 2, None]) for i in range(3)],
    )
    weights = [*graph.initializer]
    weights += [
        numpy_helper.from_array(np.array([number], np.int64), name)
        for name, number in (("zero", 0), ("two", 2), ("three", 3), ("axis", -1))
    ]
    branching = build.model(
        [helper.make_node("If", ["c"], names, then_branch=body, else_branch=other)],
        inputs=[*graph.input, build.value("c", [], TensorProto.BOOL)],
        outputs=[build.value(name, ["N", 2, None]) for name in names],
        weights=weights,
    )
    feeds = [{**seeded(proto, {"N": 2}), "c": np.array(c)} for c in (True, False)]
    result = check(branching, exact=False, feeds=feeds)

    assert result.ops == ["If"]
    [taken] = [a.g for a in result.proto.graph.node[0].attribute if a.name == "then_branch"]
    assert [n.op_type for n in taken.node] == ["MatMul", "Split"]


def test_a_gemm_whose_bias_is_no_constant_row_stays() -> None:
    """Its bias varies over the rows, or is an input."""
    _stay(_products(op="Gemm", lead=(2,), biases=((2, 3), None, None)), "no constant row")

    proto = _products(op="Gemm", lead=(2,), biases=((3,), None, None))
    proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "b0"))
    proto.graph.input.append(build.value("b0", [3]))
    _stay(proto, "no constant row")


def test_an_add_of_an_input_is_no_bias() -> None:
    """It stays behind the Split."""
    proto = _products(biases=((3,), None, None))
    proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "b0"))
    proto.graph.input.append(build.value("b0", [3]))

    assert check(proto, exact=False).ops == ["MatMul", "Split", "Add"]
