"""Seeded inputs: ONNX Runtime (optimisations off) is the judge of whether a model runs on them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphdoc.compare.inputs import Inputs, make_inputs, parse_shapes
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import load
from tests.compare import input_models_more  # noqa: F401 (adds to MODELS)
from tests.compare.input_models import MODELS, build

ort = pytest.importorskip("onnxruntime")


def run(model: onnx.ModelProto | str, inputs: Inputs) -> list[Any]:
    """Run on ONNX Runtime without optimisations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs.feeds)


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of an output, whatever it is."""
    if isinstance(value, list):
        for item in value:
            yield from arrays(item)
    elif isinstance(value, dict):
        yield np.array(list(value.values()))
    elif value is not None:
        yield np.asarray(value)


def guess(name: str, **options: Any) -> Inputs:
    return make_inputs(load(MODELS[name]()), **options)


# ---- every kind runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_model_runs_and_its_outputs_are_worth_comparing(name: str) -> None:
    """Finite, not empty, and not all outputs constant."""
    proto = MODELS[name]()
    outputs = [array for value in run(proto, make_inputs(load(proto))) for array in arrays(value)]

    assert all(array.size for array in outputs)
    assert all(np.isfinite(array).all() for array in outputs if array.dtype.kind == "f")
    assert any(array.size > 1 and (array != array.flat[0]).any() for array in outputs)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_same_seed_gives_the_same_values(name: str) -> None:
    first, second = guess(name, seed=3), guess(name, seed=3)

    assert first.sources == second.sources
    for key, array in first.feeds.items():
        np.testing.assert_array_equal(array, second.feeds[key])


def test_another_seed_gives_other_values_of_the_same_sizes() -> None:
    first, second = guess("raw_audio_frontend"), guess("raw_audio_frontend", seed=1)

    assert first.feeds["x"].shape == second.feeds["x"].shape
    assert not np.array_equal(first.feeds["x"], second.feeds["x"])
    assert (first.seed, second.seed) == (0, 1)


def test_one_input_keeps_its_values_when_others_come() -> None:
    """The generator belongs to the input's name."""
    alone = build("float[4, 6] x", "float[4, 6] y", "y = Relu (x)")
    joined = build("float[4, 6] a, float[4, 6] x", "float[4, 6] y", "y = Add (a, x)")

    np.testing.assert_array_equal(make_inputs(load(alone)).feeds["x"], make_inputs(load(joined)).feeds["x"])


# ---- values by role -----------------------------------------------------------------------------------


def test_token_ids_stay_within_the_table() -> None:
    inputs = guess("decoder_with_cache")

    assert 0 <= inputs.feeds["input_ids"].min() <= inputs.feeds["input_ids"].max() < 120
    assert inputs.sources["input_ids"] == "seed 0: token ids below 120 (rows of w)"


def test_mask_and_positions_count_what_the_cache_holds() -> None:
    inputs = guess("decoder_with_cache")
    past, sequence = inputs.feeds["past_key_values_0_key"].shape[2], inputs.feeds["input_ids"].shape[1]

    assert inputs.feeds["attention_mask"].shape == (1, past + sequence)
    assert inputs.feeds["attention_mask"].min() == 1
    np.testing.assert_array_equal(inputs.feeds["position_ids"][0], np.arange(past, past + sequence))


def test_a_mask_whose_true_leaves_out_is_false() -> None:
    assert not guess("padding_mask_true_leaves_out").feeds["key_padding_mask"].any()


def test_offsets_of_columns_bound_the_ids() -> None:
    """The largest offset is 30 and the table has 60 rows."""
    assert guess("fields_with_offsets").feeds["fields"].max() < 30


def test_indices_of_a_table_that_is_computed_from_another_input_stay_within_it() -> None:
    inputs = guess("graph_network")

    assert inputs.feeds["edge_index"].max() < inputs.feeds["x"].shape[0]


def test_lengths_are_those_of_the_sequence_they_describe() -> None:
    speech, packed = guess("speech_synthesis"), guess("packed_recurrent_layer")

    assert speech.feeds["x_lengths"].tolist() == [speech.feeds["x"].shape[1]]
    assert packed.feeds["lengths"].tolist() == [packed.feeds["tokens"].shape[0]]
    assert packed.feeds["lengths"].dtype == np.int32


def test_what_scales_random_numbers_is_zero() -> None:
    """Otherwise no two runs could be compared."""
    scales = guess("speech_synthesis").feeds["scales"]

    assert scales.tolist() == [0.0, 1.0, 1.0]


def test_the_sampling_rate_is_one_the_model_asks_for_and_its_branch_sets_the_length() -> None:
    inputs = guess("rate_switch")

    assert inputs.feeds["sr"] == 16000
    assert inputs.feeds["pcm"].shape == (1, 512)


def test_pictures_are_smooth_and_within_their_range() -> None:
    line, image = guess("text_line_recogniser").feeds["x"], guess("pyramid_detector").feeds["image"]

    assert 0 <= line.min() < 0.3 < 0.7 < line.max() <= 1
    assert image.dtype == np.uint8
    assert image.max() > 200
    steps = np.abs(np.diff(line, axis=-1))
    assert np.median(steps) < 0.1


def test_a_picture_that_the_graph_divides_by_255_reaches_255() -> None:
    body = "k = Constant <value = float {255.0}> ()\n n = Div (x, k)\n y = Conv (n, w)"
    model = build("float[1, 3, 32, 32] x", "float[1, 2, a, b] y", body, {"w": (2, 3, 3, 3)})

    assert make_inputs(load(model)).feeds["x"].max() > 100


def test_strings_are_known_categories_column_by_column() -> None:
    records = guess("string_columns").feeds["records"]

    assert set(records[:, 0]) <= {"red", "green"}
    assert set(records[:, 1]) <= {"s", "m", "l"}


def test_columns_lie_where_their_scaler_expects_them() -> None:
    inputs = guess("scaled_columns")

    assert 10 < inputs.feeds["age"].mean() < 70
    assert 100 < inputs.feeds["height"].mean() < 240
    assert inputs.feeds["shop"].dtype == np.int64


def test_thresholds_of_trees_are_crossed_both_ways() -> None:
    column = guess("tree_with_open_width").feeds["X"][:, 6]

    assert column.min() < 250 < column.max()


def test_a_value_that_an_imputer_replaces_is_among_them() -> None:
    body = """
        i = ai.onnx.ml.Imputer <imputed_value_floats = [1.0, 2.0], replaced_value_float = nan> (X)
        y = Identity (i)
    """.replace("nan", "0.0")
    model = build("float[rows, 2] X", "float[rows, 2] y", body)
    imputer = next(node for node in model.graph.node if node.op_type == "Imputer")
    next(a for a in imputer.attribute if a.name == "replaced_value_float").f = float("nan")

    assert np.isnan(make_inputs(load(model)).feeds["X"]).sum() == 1


def test_logarithms_get_positive_values() -> None:
    model = build("float[3, 4] x", "float[3, 4] y", "y = Log (x)")

    assert make_inputs(load(model)).feeds["x"].min() > 0


def test_functions_and_branches_are_looked_through() -> None:
    """The table stands in a function that a branch calls."""
    body = """
        y = If (c) <then_branch = a () => (float[?, 4] r1) { r1 = Gather (w, ids) },
            else_branch = b () => (float[?, 4] r2) { k = Constant <value = int64 {0}> ()
            z = Mul (ids, k)
            r2 = Gather (w, z) }>
    """
    model = build("bool c, int64[n] ids", "float[n, 4] y", body, {"w": (9, 4)})
    inputs = make_inputs(load(model))

    assert inputs.feeds["ids"].max() < 9
    run(model, inputs)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("double", "float64")]
)
def test_every_float_has_its_own_dtype(dtype: str, kind: str) -> None:
    model = build(f"{dtype}[2, 3] x", f"{dtype}[2, 3] y", "y = Neg (x)")

    assert make_inputs(load(model)).feeds["x"].dtype.name == kind


def test_initializers_listed_as_inputs_are_not_asked_for() -> None:
    model = build("float[2, 3] x, float[3, 4] w", "float[2, 4] y", "y = MatMul (x, w)", {"w": (3, 4)})

    assert list(make_inputs(load(model)).feeds) == ["x"]


def test_sequences_and_optionals() -> None:
    """A sequence gets two elements, an optional is left empty."""
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, None])
    inputs = [
        onnx.helper.make_value_info("s", onnx.helper.make_sequence_type_proto(tensor)),
        onnx.helper.make_value_info("o", onnx.helper.make_optional_type_proto(tensor)),
    ]
    nodes = [
        onnx.helper.make_node("SequenceLength", ["s"], ["n"]),
        onnx.helper.make_node("OptionalHasElement", ["o"], ["has"]),
    ]
    outputs = [
        onnx.helper.make_tensor_value_info("n", onnx.TensorProto.INT64, []),
        onnx.helper.make_tensor_value_info("has", onnx.TensorProto.BOOL, []),
    ]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    made = make_inputs(load(model))

    assert [array.shape[0] for array in made.feeds["s"]] == [2, 2]
    assert made.feeds["o"] is None
    assert [int(v) for v in run(model, made)] == [2, 0]


# ---- sizes --------------------------------------------------------------------------------------------


def test_given_sizes_are_kept_and_others_follow() -> None:
    inputs = guess("decoder_with_cache", shapes={"batch": (2,), "sequence_length": (5,)})

    assert inputs.feeds["input_ids"].shape == (2, 5)
    assert inputs.feeds["past_key_values_0_key"].shape[0] == 2
    assert inputs.feeds["attention_mask"].shape == (2, 5 + inputs.feeds["past_key_values_0_key"].shape[2])
    run(MODELS["decoder_with_cache"](), inputs)


def test_a_shape_of_an_input_binds_its_symbols() -> None:
    inputs = guess("cross_attention_decoder", shapes=parse_shapes(["encoder_hidden_states=3x11x24"]))

    assert inputs.feeds["encoder_attention_mask"].shape == (3, 11)
    assert inputs.feeds["decoder_input_ids"].shape[0] == 3


def test_a_weight_tells_the_number_of_features() -> None:
    assert guess("cross_attention_decoder").feeds["encoder_hidden_states"].shape[-1] == 24
    assert guess("series_forecast").feeds["history"].shape[1] == 96


def test_a_table_of_positions_tells_the_number_of_frames() -> None:
    """One frame would be stretched over all positions without complaint."""
    assert guess("speech_encoder").feeds["input_features"].shape == (1, 80, 3000)


def test_bounds_of_a_scale_let_all_of_it_through() -> None:
    inputs = guess("pitch_with_bounds")

    assert (inputs.feeds["fmin"], inputs.feeds["fmax"]) == (50, 1600)


def test_divisors_are_not_zero() -> None:
    assert guess("integer_division").feeds["b"].min() > 0


def test_an_odd_size_is_found_among_the_weights() -> None:
    """The length must be 37: only a weight behind two operators says so."""
    body = "r = Relu (x)\n t = Tanh (r)\n y = MatMul (t, w)"
    model = build("float[N, K] x", "float[N, 5] y", body, {"w": (37, 5)})

    assert make_inputs(load(model)).feeds["x"].shape[1] == 37


def test_a_rank_nobody_tells_is_asked_for() -> None:
    model = build("float[2] x", "float[a] y", "y = Relu (x)")
    model.graph.input[0].type.tensor_type.ClearField("shape")

    with pytest.raises(UsageError, match="does not tell the rank of x") as caught:
        make_inputs(load(model))
    assert "--shape x=" in caught.value.next_step
    assert make_inputs(load(model), shapes={"x": (2, 5)}).feeds["x"].shape == (2, 5)


def test_sizes_that_no_guess_fits_are_asked_for() -> None:
    """67 × 71 is in no table: the error names input, dimensions, the node that refused, and the flag."""
    body = "s = Constant <value = int64[2] {67, 71}> ()\n r = Reshape (x, s)\n y = Neg (r)"
    model = build("float[N] x", "float[67, 71] y", body)

    with pytest.raises(UsageError) as caught:
        make_inputs(load(model))
    lines = caught.value.lines()
    assert lines[0] == "input shape unknown: 1 dimension of x has no size, and no guess fits"
    assert "cannot be reshaped to [67, 71]" in lines[1]
    assert "--shape x=" in lines[2]
    assert make_inputs(load(model), shapes={"x": (67 * 71,)}).feeds["x"].shape == (4757,)


def test_a_model_that_no_size_could_help_gets_the_first_guess() -> None:
    """The fault is not in the sizes: the runner will name it."""
    body = "r = Relu (x)\n bad = MatMul (w, w)\n m = ReduceMean <keepdims = 0> (bad)\n y = Add (r, m)"
    model = build("float[N, 3] x", "float[N, 3] y", body, {"w": (3, 4)})

    assert make_inputs(load(model)).feeds["x"].shape[1] == 3


def test_a_giant_input_is_refused() -> None:
    model = build("float[1000000, 1000000] x", "float[1000000, 1000000] y", "y = Relu (x)")

    with pytest.raises(UsageError, match="would take"):
        make_inputs(load(model))


# ---- --shape ------------------------------------------------------------------------------------------


def test_shapes_are_parsed() -> None:
    texts = ["x=1x3x224x224", "N=4", "scalar=", "a=b:0=2×3", "y=1,2"]

    assert parse_shapes(texts) == {
        "x": (1, 3, 224, 224),
        "N": (4,),
        "scalar": (),
        "a=b:0": (2, 3),
        "y": (1, 2),
    }


@pytest.mark.parametrize("text", ["", "x", "=3", "x=1xbx3", "x=1x", "x=-1x3", "x=1 x3x", "x=1.5"])
def test_what_is_no_shape_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="not a shape") as caught:
        parse_shapes([text])
    assert repr(text) in caught.value.cause
    assert caught.value.exit_code == 2


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_shapes(["x=1", "x=2"])


@pytest.mark.parametrize(
    ("shapes", "cause", "next_step"),
    [
        ({"tokens": (1, 2), "bacth": (2,)}, "no input or dimension 'bacth'", "did you mean --shape batch=2?"),
        ({"input_idz": (1, 4)}, "no input or dimension 'input_idz'", "did you mean --shape input_ids=1x4?"),
        ({"input_ids": (1, 4, 2)}, "has shape [batch, sequence_length], not [1, 4, 2]", "input_ids="),
        ({"batch": (1, 2)}, "'batch' is one dimension", "--shape batch=1"),
        ({"input_ids": (1, 4), "batch": (2,)}, "'batch' cannot be both 1 and 2", "--shape batch=2"),
    ],
)
def test_sizes_that_contradict_the_model_are_refused(shapes: Any, cause: str, next_step: str) -> None:
    shapes.pop("tokens", None)
    with pytest.raises(UsageError) as caught:
        guess("decoder_with_cache", shapes=shapes)
    assert cause in caught.value.cause
    assert next_step in caught.value.next_step


def test_a_fixed_size_cannot_be_changed() -> None:
    with pytest.raises(UsageError, match=r"not \[1, 4, 20, 20\]"):
        guess("text_line_recogniser", shapes={"x": (1, 4, 20, 20)})


@pytest.mark.parametrize("length", [9, 11, 13, 14, 15])
def test_a_length_that_an_export_left_in_is_found(length: int) -> None:
    """A loop over time that was unrolled: the symbol says any length, the steps joined say one."""
    helper = onnx.helper
    steps = [helper.make_node("Identity", ["row"], [f"r{k}"]) for k in range(length)]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("ReduceMean", ["x"], ["row"], axes=[1], keepdims=1),
        *steps,
        helper.make_node("Concat", [f"r{k}" for k in range(length)], ["all"], axis=1),
        helper.make_node("Add", ["x", "all"], ["y"]),
    ]
    table = onnx.numpy_helper.from_array(np.random.default_rng(0).random((50, 6), np.float32), "table")
    ids = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["b", "s"])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "s", 6])
    graph = helper.make_graph(nodes, "g", [ids], [out], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = make_inputs(load(model))
    assert found.feeds["input_ids"].shape[1] == length
    run(model, found)


# ---- real models --------------------------------------------------------------------------------------

FOLDER = os.environ.get("GRAPHDOC_MODELS")


@pytest.mark.skipif(FOLDER is None, reason="GRAPHDOC_MODELS names no folder of real models")
def test_real_models_run_on_seeded_inputs() -> None:
    """Every model that ONNX Runtime loads must run."""
    paths = sorted(Path(str(FOLDER)).rglob("*.onnx"))
    failed = {}
    for path in paths:
        try:
            run(str(path), make_inputs(load(path)))
        except Exception as error:
            failed[path.name] = str(error)[:200]

    assert paths
    assert failed == {}
