"""inspect_model: counts, types, ranges, who serves an operator; held against ONNX, NumPy and the runners."""

import pathlib
import time

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from graphdoc.compare.target import Target
from graphdoc.engine.errors import ModelError
from graphdoc.surgeon import weights
from graphdoc.surgeon.inspect import ValueSummary, inspect_model
from graphdoc.surgeon.model import open_source
from graphdoc.surgeon.types import ValueType, infer, value_type, without_weights
from tests import sources
from tests.surgeon import build
from tests.surgeon.lint_models import node


def nested() -> onnx.ModelProto:
    """Return a model with an If, a Split with an unused slot, constants, weights and a SequenceMap."""
    return build.text(
        """g (bool c, float[n, 4] x) => (float[n, 4] y, float[n, 2] left)
        <float[4] w = {1, 2, 3, 4}>
        {
          k = Constant <value = float[1] {7}> ()
          a = Add (x, w)
          left, right = Split <num_outputs = 2, axis = 1> (a)
          y = If (c) <
            then_branch = t () => (float[n, 4] p) { z = Constant <value = float {2}> ()  p = Mul(a, z) },
            else_branch = e () => (float[n, 4] q) { m = Neg(x)  q = Add(m, k) }
          >
        }"""
    )


def test_the_overview() -> None:
    """Inputs, outputs, layers, constants and operators are counted; nothing is listed unasked."""
    summary = inspect_model(nested())

    assert summary.inputs == (ValueSummary("c", "bool", ()), ValueSummary("x", "float32", ("n", 4)))
    assert summary.outputs[1] == ValueSummary("left", "float32", ("n", 2))
    assert (summary.layer_count, summary.constant_count) == (6, 3)
    assert summary.operator_counts == (("Add", 2), ("If", 1), ("Mul", 1), ("Neg", 1), ("Split", 1))
    assert (summary.ir_version, dict(summary.opsets)) == (10, {"": 18})
    assert summary.layers == summary.weights == summary.operators == summary.remarks == ()


def test_layers_are_numbered_as_in_a_comparison() -> None:
    """Indices, names and values are those of compare: one number per value, branches before their node."""
    for proto in (nested(), build.relu()):
        rows = inspect_model(proto, layers=True).layers
        listed = [
            (row.index + slot, row.scope + value.name, row.op)
            for row in rows
            if row.index is not None
            for slot, value in enumerate(row.outputs)
        ]

        points = Target(open_source(proto)).points
        assert listed == [(index, point.key, point.op) for index, point in enumerate(points)]


def test_bodies_of_functions_are_numbered_as_in_a_comparison() -> None:
    """A call has no number of its own; its body's values have, in the same order as when it is inlined."""
    body = [node("Abs", "p", "t"), node("Neg", "t", "q")]
    function = helper.make_function("own", "F", ["p"], ["q"], body, [helper.make_opsetid("", 18)])
    calls = [node("F", "x", "m", domain="own"), node("Relu", "m", "n"), node("F", "n", "y", domain="own")]
    proto = build.model(calls, functions=[function])
    proto.opset_import.add(domain="own", version=1)
    rows = inspect_model(proto, layers=True).layers

    assert [row.op for row in rows] == ["Abs", "Neg", "F", "Relu", "Abs", "Neg", "F"]
    assert [row.index for row in rows] == [0, 1, None, 2, 3, 4, None]
    points = Target(open_source(proto)).points
    assert [row.op for row in rows if row.index is not None] == [point.op for point in points]


def test_subgraphs_that_no_runner_looks_into_have_no_numbers() -> None:
    """The body of a SequenceMap is listed, but not numbered."""
    body = helper.make_graph([node("Abs", "e", "f")], "b", [build.value("e")], [build.value("f")])
    nodes = [
        node("SequenceConstruct", "x x", "s"),
        node("SequenceMap", "s", "m", body=body),
        node("ConcatFromSequence", "m", "y", axis=0),
    ]
    rows = inspect_model(build.model(nodes), layers=True).layers

    assert [(row.op, row.index, row.depth) for row in rows] == [
        ("SequenceConstruct", 0, 0),
        ("Abs", None, 1),
        ("SequenceMap", 1, 0),
        ("ConcatFromSequence", 2, 0),
    ]


def test_types_are_those_of_shape_inference() -> None:
    """Every value has the dtype and shape that onnx infers, in branches too; invented symbols do not show."""
    rows = inspect_model(nested(), layers=True).layers
    found = {value.name: (value.dtype, value.shape) for row in rows for value in row.outputs}

    assert found["a"] == ("float32", ("n", 4))
    assert found["right"] == ("float32", ("n", 2))
    assert found["m"] == ("float32", ("n", 4))
    reshape = build.model(
        [node("NonZero", "x", "i"), node("Cast", "i", "y", to=1)], outputs=[build.value("y", None)]
    )
    listed = inspect_model(reshape, layers=True).layers
    assert [row.outputs[0].shape for row in listed] == [(1, None), (1, None)]


def test_inference_needs_small_weights_alone() -> None:
    """A Reshape by an initializer is inferred although large weights are left out of the copy."""
    big = np.zeros((2000, 4), np.float32)
    nodes = [node("Gather", "big i", "g"), node("Reshape", "g s", "y")]
    held = [
        build.weight("big", big),
        build.weight("s", np.array([2, -1])),
        build.weight("i", np.array([5, 6])),
    ]
    proto = build.model(nodes, weights=held, outputs=[build.value("y", None)])
    before = proto.SerializeToString()

    assert without_weights(proto).ByteSize() < 1000
    info = next(item for item in infer(proto).graph.value_info if item.name == "g")
    assert value_type(info.type) == ValueType("float32", (2, 4))
    assert inspect_model(proto, layers=True).layers[-1].outputs[0].shape == (2, 4)
    assert proto.SerializeToString() == before


def test_a_model_that_inference_refuses_is_shown_as_declared() -> None:
    """A contradiction stops inference, not inspect."""
    proto = build.model([node("Add", "x z", "y")], inputs=[build.value("x", (2,)), build.value("z", (3,))])
    rows = inspect_model(proto, layers=True).layers

    assert rows[0].outputs == (ValueSummary("y", "float32", (2,)),)


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (
            helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FN, [1, "n", None]),
            ("float8e4m3fn", (1, "n", None)),
        ),
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(7, [2])), ("seq(int64)", (2,))),
        (helper.make_optional_type_proto(helper.make_tensor_type_proto(11, None)), ("opt(float64)", None)),
        (helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])), ("map(string, float32)", ())),
        (helper.make_sparse_tensor_type_proto(1, [3]), ("sparse(float32)", (3,))),
        (onnx.TypeProto(), ("", None)),
    ],
)
def test_types_in_words(proto: onnx.TypeProto, expected: tuple[str, object]) -> None:
    """Every kind of type has a name; unknown is empty."""
    found = value_type(proto)

    assert (found.dtype, found.shape) == expected


# Weights

_FLOATS = st.one_of(
    hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)), hnp.integer_dtypes(endianness="<")
)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(_FLOATS, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)))
def test_ranges_are_those_of_numpy(array: np.ndarray) -> None:  # type: ignore[type-arg]
    """Smallest, largest, zeros, NaN and infinities, over any array, also in several pieces."""
    proto = build.relu()
    proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
    found = inspect_model(proto, weights=True).weights[0]
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]

    assert found.minimum == (finite.min() if finite.size else None)
    assert found.maximum == (finite.max() if finite.size else None)
    assert found.absmax == (np.abs(finite).max() if finite.size else None)
    assert found.zeros == ((wide == 0).mean() if wide.size else None)
    assert (found.nan, found.inf) == (np.isnan(wide).sum(), np.isinf(wide).sum())
    assert (found.bytes, found.shape) == (array.nbytes, array.shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint8", "bool"])
def test_narrow_dtypes(dtype: str) -> None:
    """Types that NumPy lacks are measured too."""
    array = np.array([0, 1, 1, 0], dtype=getattr(ml_dtypes, dtype, None) or np.dtype(dtype))
    proto = build.relu()
    proto.graph.initializer.append(numpy_helper.from_array(array, "w"))
    found = inspect_model(proto, weights=True).weights[0]

    assert (found.minimum, found.maximum, found.zeros) == (0, 1, 0.5)


def test_pieces_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights are measured in pieces; the result is the same."""
    proto = build.add(np.array([3, np.nan, -5, 0, 7e4, 1e-9, np.inf], np.float32))
    whole = inspect_model(proto, weights=True).weights
    monkeypatch.setattr(weights, "PIECE", 2)

    assert inspect_model(proto, weights=True).weights == whole
    assert (whole[0].minimum, whole[0].maximum, whole[0].nan, whole[0].inf) == (-5, 70000, 1, 1)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_what_fp16_cannot_hold_is_what_numpy_says(value: float) -> None:
    """Counted are exactly the numbers that become infinity, or 0 without being 0."""
    found = weights.measure(_tensor([value]))
    with np.errstate(all="ignore"):
        half = np.float32(value).astype(np.float16)

    assert bool(found.fp16_over) == bool(np.isinf(half))
    assert bool(found.fp16_zero) == bool(half == 0 and value != 0)


def _tensor(values: list[float]) -> object:
    import onnx_ir as ir

    return ir.Tensor(np.array(values, np.float32))


def test_remarks_count_weights_that_hold_nan() -> None:
    """One is told in the singular."""
    proto = build.add(np.array([3, np.nan], np.float32))
    assert inspect_model(proto, weights=True).remarks == ("1 weight holds NaN or Inf: w",)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([np.inf], np.float32), "v"))
    assert "2 weights hold NaN or Inf, the first is w" in inspect_model(proto, weights=True).remarks


def test_remarks_name_the_largest_weight() -> None:
    """The overview names the weight that fp16 cannot hold; strings and complex numbers are passed over."""
    proto = build.add([1, 9.8e7])
    proto.graph.initializer.extend(
        [
            helper.make_tensor("s", TensorProto.STRING, [1], [b"\xff"]),
            numpy_helper.from_array(np.array([1 + 2j], np.complex64), "c"),
        ]
    )
    summary = inspect_model(proto, weights=True)

    assert summary.remarks == ("w reaches 9.8e7; fp16 ends at 65 504",)
    assert [row.remark for row in summary.weights] == ["1 of 2 exceed fp16 (65504)", "", ""]
    assert [row.minimum for row in summary.weights] == [1, None, None]


def test_missing_data_is_a_remark(tmp_path: pathlib.Path) -> None:
    """A model whose weights are gone is still shown: layers, shapes, and what is missing."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build.external("gone.bin").SerializeToString())
    summary = inspect_model(path, layers=True, weights=True, operators=True)

    assert summary.layers[0].outputs == (ValueSummary("y", "float32", (2,)),)
    assert summary.weights[0].remark == "external data cannot be read: no such file or directory"
    assert "gone.bin" in summary.remarks[0]


def test_many_bytes_are_not_read_unasked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past a limit the weights are left alone, and it is said."""
    monkeypatch.setattr("graphdoc.surgeon.inspect.READ_BYTES", 4)

    assert inspect_model(build.add([1, 7e4])).remarks == (
        "weights were not read (8e-09 GB): --weights reads them",
    )
    assert "fp16" in inspect_model(build.add([1, 7e4]), weights=True).remarks[0]


# Operators


def test_who_serves_an_operator() -> None:
    """The table, function bodies, the reference, or nobody: as the runners themselves find."""
    inner = helper.make_function(
        "own", "F", ["p"], ["q"], [node("Abs", "p", "q")], [helper.make_opsetid("", 18)]
    )
    nodes = [
        node("Relu", "x", "a"),
        node("F", "a", "b", domain="own"),
        node("Fused", "b", "y", domain="com.acme"),
    ]
    proto = build.model(nodes, functions=[inner])
    for domain in ("own", "com.acme"):
        proto.opset_import.add(domain=domain, version=1)
    rows = {row.op: row for row in inspect_model(proto, operators=True).operators}

    assert {op: row.engine for op, row in rows.items()} == {
        "Abs": "ops table",
        "Relu": "ops table",
        "F": "function body",
        "Fused": "missing",
    }
    assert {op: row.ort for op, row in rows.items()} == {
        "Abs": "kernel",
        "Relu": "kernel",
        "F": "function body",
        "Fused": "missing",
    }
    assert rows["Relu"].version == 14
    assert rows["Fused"].version is None
    assert {op: row.cuda for op, row in rows.items()} == {
        "Abs": "CuPy",
        "Relu": "CuPy",
        "F": "CuPy",
        "Fused": "missing",
    }


def test_the_engine_serves_what_the_table_says() -> None:
    """What is called served runs; what is called missing is refused by the engine."""
    from graphdoc.engine.errors import UnsupportedOperatorError
    from graphdoc.engine.interpreter import Interpreter
    from graphdoc.surgeon.model import load

    for op, domain in (("Relu", ""), ("Fused", "com.acme")):
        proto = build.model([node(op, "x", "y", domain=domain)])
        if domain:
            proto.opset_import.add(domain=domain, version=1)
        served = inspect_model(proto, operators=True).operators[0].engine
        try:
            Interpreter(load(proto))
            runs = True
        except UnsupportedOperatorError:
            runs = False

        assert runs == (served != "missing")


@pytest.mark.parametrize(("op", "opset"), [("Relu", 18), ("HardSwish", 18), ("Mish", 18), ("Det", 18)])
def test_ort_serves_what_it_loads(op: str, opset: int) -> None:
    """A kernel or a function body is there exactly if ONNX Runtime makes a session."""
    shape = (2, 2) if op == "Det" else (2,)
    proto = build.model(
        [node(op, "x", "y")],
        inputs=[build.value("x", shape)],
        outputs=[build.value("y", None)],
        opset=opset,
    )
    served = inspect_model(proto, operators=True).operators[0].ort
    try:
        ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        loads = True
    except Exception:
        loads = False

    assert (served != "missing") == loads


def test_what_cannot_be_read_is_an_error() -> None:
    """A model that is not sound is refused."""
    with pytest.raises(ModelError, match="has two producers"):
        inspect_model(build.model([node("Relu", "x", "y"), node("Abs", "x", "y")]))


@pytest.mark.parametrize("path", sources.real_models())
def test_real_models(path: pathlib.Path) -> None:
    """Real models: everything is listed within seconds, numbered as in a comparison."""
    started = time.process_time()
    summary = inspect_model(path, layers=True, weights=True, operators=True)

    assert time.process_time() - started < 10
    values = [row for row in summary.layers if row.index is not None for _ in row.outputs]
    assert [row.op for row in values] == [point.op for point in Target(open_source(path)).points]
