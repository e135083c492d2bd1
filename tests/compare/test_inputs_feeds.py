"""What every runner checks before it runs, and the words it refuses with."""

from typing import Any

import numpy as np
import onnx
import pytest

from graphdoc.engine.errors import InputError
from graphdoc.engine.feeds import check_feeds, input_specs, required_inputs
from graphdoc.surgeon.model import load
from tests.compare.input_models import build

MODEL = build(
    "float[N, 3] x, int64[N] ids, string[2] s, float[1] w",
    "float[a] y",
    "y = Identity (w)",
    {"w": np.ones(1, "f")},
)
GOOD = {
    "x": np.zeros((2, 3), np.float32),
    "ids": np.zeros(2, np.int64),
    "s": np.array(["a", "b"], dtype=object),
}


def refused(**changes: Any) -> InputError:
    feeds = {name: value for name, value in {**GOOD, **changes}.items() if value is not ...}
    with pytest.raises(InputError) as caught:
        check_feeds(load(MODEL), feeds)
    assert caught.value.exit_code == 3
    return caught.value


def test_right_feeds_pass_with_and_without_the_overridable_one() -> None:
    check_feeds(load(MODEL), GOOD)
    check_feeds(load(MODEL), {**GOOD, "w": np.zeros(1, np.float32)})


def test_initializers_are_inputs_that_are_not_required() -> None:
    model = load(MODEL)

    assert list(required_inputs(model)) == ["x", "ids", "s"]
    assert [str(spec) for spec in input_specs(model).values()] == [
        "x  float32  [N, 3]",
        "ids  int64  [N]",
        "s  string  [2]",
        "w  float32  [1]",
    ]


@pytest.mark.parametrize(
    ("changes", "cause", "next_step"),
    [
        ({"x": ...}, "no value for input 'x'", "--inputs"),
        ({"x": ..., "s": ...}, "no value for input 'x' and 1 more", "--inputs"),
        ({"idz": np.zeros(2)}, "the model has no input 'idz'", "did you mean 'ids'?"),
        ({"zzz": np.zeros(2)}, "the model has no input 'zzz'", "leave it out"),
        ({"x": np.zeros((2, 3))}, "input 'x' is float32, the feed is float64", "x.astype('float32')"),
        ({"s": np.array(["a", "b"])}, "input 's' is string, the feed is <U1", "astype(object)"),
        ({"x": np.zeros((2, 4), "f")}, "has shape [N, 3], the feed [2, 4]", "--shape x=1x3"),
        ({"x": np.zeros(3, "f")}, "has shape [N, 3], the feed [3]", "--shape x=1x3"),
        ({"ids": np.zeros(5, "l")}, "dimension 'N' is 2 in 'x' and 5 in 'ids'", "--shape N=2"),
        ({"x": [[1.0, 2.0, 3.0]]}, "input 'x' is a tensor, the feed is a list", "list of arrays"),
        ({"x": None}, "input 'x' is a tensor, the feed is nothing", "None"),
        ({"x": 3.0}, "input 'x' needs an array, the feed is float", "numpy.asarray"),
    ],
)
def test_wrong_feeds_are_refused(changes: dict[str, Any], cause: str, next_step: str) -> None:
    error = refused(**changes)

    assert cause in error.cause
    assert error.where
    assert next_step in str(error.next_step)


def test_negative_sizes_count_as_open() -> None:
    model = build("float[N, 3] x", "float[a] y", "y = Neg (x)")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1

    check_feeds(load(model), {"x": np.zeros((2, 7), np.float32)})


def other(kind: onnx.TypeProto) -> Any:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["s"], ["y"])],
        "g",
        [onnx.helper.make_value_info("s", kind)],
        [onnx.helper.make_value_info("y", kind)],
    )
    return load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8))


FLOATS = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
SEQUENCE = onnx.helper.make_sequence_type_proto(FLOATS)
OPTIONAL = onnx.helper.make_optional_type_proto(FLOATS)
TWO = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (SEQUENCE, []),
        (SEQUENCE, [TWO, TWO]),
        (OPTIONAL, None),
        (OPTIONAL, TWO),
        (onnx.helper.make_optional_type_proto(SEQUENCE), [TWO]),
    ],
)
def test_sequences_and_optionals_pass(kind: onnx.TypeProto, value: Any) -> None:
    check_feeds(other(kind), {"s": value})


@pytest.mark.parametrize(
    ("kind", "value", "cause"),
    [
        (SEQUENCE, TWO, "input 's' is a sequence, the feed is an array"),
        (SEQUENCE, None, "input 's' is a sequence, the feed is nothing"),
        (SEQUENCE, [TWO, np.zeros(3, np.float32)], "has shape [2], the feed [3]"),
        (OPTIONAL, [TWO], "input 's' is an optional, the feed is a list"),
        (OPTIONAL, np.zeros(2), "is float32, the feed is float64"),
    ],
)
def test_wrong_sequences_and_optionals_are_refused(kind: onnx.TypeProto, value: Any, cause: str) -> None:
    with pytest.raises(InputError) as caught:
        check_feeds(other(kind), {"s": value})
    assert cause in caught.value.cause
