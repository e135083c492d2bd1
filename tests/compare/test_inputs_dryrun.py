"""The dry run: its shapes are ONNX Runtime's, its problems are ONNX Runtime's refusals."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from graphdoc.compare.inputs import make_inputs
from graphdoc.compare.inputs_dryrun import DryRun
from graphdoc.compare.inputs_nodes import full_shape, tensor_type
from graphdoc.surgeon.model import load
from tests.compare import input_models_more  # noqa: F401 (adds to MODELS)
from tests.compare.input_models import MODELS, build

ort = pytest.importorskip("onnxruntime")


def session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_known_shapes_are_the_real_ones(name: str) -> None:
    """Every inner value of a model, tapped in ONNX Runtime, has the shape the dry run gave it."""
    proto = MODELS[name]()
    model = load(proto)
    feeds = make_inputs(model).feeds
    trial = DryRun(model).run(feeds)
    shapes = {str(value.name): full_shape(content) for value, content in trial.values.items()}
    names = [output for node in proto.graph.node for output in node.output if output]
    for output in set(names) - {value.name for value in proto.graph.output}:
        proto.graph.output.append(onnx.ValueInfoProto(name=output))
    tapped = session(proto)
    found = dict(zip([v.name for v in tapped.get_outputs()], tapped.run(None, feeds), strict=True))

    assert trial.problems == ()
    compared = [
        key for key, array in found.items() if shapes.get(key) is not None and hasattr(array, "shape")
    ]
    assert len(compared) >= len(found) // 2
    assert {key: shapes[key] for key in compared} == {key: found[key].shape for key in compared}


def official(limit: int = 250) -> list[Any]:
    """Return official single-operator cases whose data are arrays."""
    cases = [case for case in collect_testcases(None) if not case.name.endswith("_expanded")]
    plain = [
        case
        for case in cases
        if case.data_sets and all(isinstance(x, np.ndarray) for data in case.data_sets[0] for x in data)
    ]
    return plain[:: max(1, len(plain) // limit)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_official_cases_have_no_problems_and_the_right_shapes() -> None:
    """ONNX's own cases: valid inputs, and outputs whose shapes are published with them."""
    wrong = {}
    checked = 0
    for case in official():
        inputs, outputs = case.data_sets[0]
        model = load(case.model)
        feeds = dict(zip([str(v.name) for v in model.graph.inputs], inputs, strict=False))
        if 0 in [size for array in (*inputs, *outputs) for size in array.shape]:
            continue
        trial = DryRun(model).run(feeds)
        shapes = [full_shape(trial.values.get(v)) for v in model.graph.outputs]
        pairs = [(s, o.shape) for s, o in zip(shapes, outputs, strict=False) if s is not None]
        checked += len(pairs)
        if trial.problems or any(known != real for known, real in pairs):
            wrong[case.name] = (trial.problems, pairs)

    assert checked > 150
    assert wrong == {}


REFUSED = [
    ("y = Conv (x, w)", {"w": (2, 4, 1, 1)}, (1, 3, 8, 8), "3 channels, the weight takes 4"),
    ("y = Conv (x, w)", {"w": (2, 3, 9, 9)}, (1, 3, 8, 8), "smaller than the window"),
    ("y = MatMul (x, w)", {"w": (7, 2)}, (1, 3, 8, 8), "Incompatible dimensions"),
    ("y = Add (x, w)", {"w": (7,)}, (1, 3, 8, 8), "Incompatible dimensions"),
    (
        "s = Constant <value = int64[2] {7, -1}> ()\n y = Reshape (x, s)",
        {},
        (1, 3, 8, 8),
        "cannot be reshaped to [7, -1]",
    ),
    (
        "s = Shape (x)\n i = Constant <value = int64 {3}> ()\n n = Gather (s, i)\n y = Gather (w, n)",
        {"w": (4, 2)},
        (1, 3, 8, 8),
        "index 8 lies outside a table of 4",
    ),
    (
        'p = Constant <value = int64[8] {0, 0, 8, 0, 0, 0, 0, 0}> ()\n y = Pad <mode = "reflect"> (x, p)',
        {},
        (1, 3, 8, 8),
        "needs a longer input",
    ),
    ("a = Constant <value = int64[1] {1}> ()\n y = Squeeze (x, a)", {}, (1, 3, 8, 8), "must be 1"),
]


@pytest.mark.parametrize(("body", "weights", "shape", "text"), REFUSED)
def test_problems_are_what_onnxruntime_refuses(
    body: str, weights: dict[str, Any], shape: tuple[int, ...], text: str
) -> None:
    model = build("float[a, b, c, d] x", "float[n] y", body, weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    trial = DryRun(load(model)).run({"x": tensor_type(np.dtype(np.float32), shape)})

    assert [text in problem.text for problem in trial.problems] == [True]
    with pytest.raises(Exception, match=r"."):
        session(model).run(None, {"x": np.zeros(shape, np.float32)})


def test_channels_of_a_quantised_convolution_may_stand_last() -> None:
    """ONNX Runtime's optimiser writes QLinearConv of com.microsoft over [N, H, W, C]."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (uint8[a, b, c, d] x) => (uint8[e, f, g, h] y)
    <float s = {0.5}, uint8 z = {0}, uint8[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}> {
        y = com.microsoft.QLinearConv <channels_last = 1> (x, s, z, w, s, z, s, z)
    }"""
    model = load(onnx.parser.parse_model(text))
    uint8 = np.dtype(np.uint8)

    assert DryRun(model).run({"x": tensor_type(uint8, (1, 4, 5, 3))}).problems == ()
    (problem,) = DryRun(model).run({"x": tensor_type(uint8, (1, 3, 4, 5))}).problems
    assert "5 channels, the weight takes 3" in problem.text


def test_a_branch_that_may_not_run_makes_no_problem() -> None:
    body = """
        y = If (c) <then_branch = a () => (float[n] r1) { r1 = MatMul (x, w) },
                    else_branch = b () => (float[n] r2) { r2 = Neg (x) }>
    """
    model = load(build("bool c, float[n, m] x", "float[n, m] y", body, {"w": (4, 4)}))
    x = tensor_type(np.dtype(np.float32), (2, 3))
    unsure = tensor_type(np.dtype(bool), ())

    assert DryRun(model).run({"x": x, "c": unsure}).problems == ()
    assert DryRun(model).run({"x": x, "c": np.array(False)}).problems == ()
    assert len(DryRun(model).run({"x": x, "c": np.array(True)}).problems) == 1


def test_an_empty_output_is_a_problem() -> None:
    """Nothing could be compared."""
    body = """
        s = Constant <value = int64[1] {4}> ()
        e = Constant <value = int64[1] {99}> ()
        y = Slice (x, s, e)
    """
    model = load(build("float[n] x", "float[m] y", body))
    kind = np.dtype(np.float32)

    assert DryRun(model).run({"x": tensor_type(kind, (5,))}).problems == ()
    assert "empty" in DryRun(model).run({"x": tensor_type(kind, (4,))}).problems[0].text
