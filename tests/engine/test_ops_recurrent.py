"""Recurrent layers against ONNX Runtime, and against themselves in other layouts."""

from typing import Any

import numpy as np
import pytest

from tests.engine.layer_oracle import assert_agrees, complaint, draws, on_engine, sample

FLOAT = np.float32
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
ALPHA = ("LeakyRelu", "ThresholdedRelu", "Elu")
BOTH = ("Affine", "ScaledTanh", "HardSigmoid")
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *ALPHA, *BOTH)
STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 3


def layer(name: str, directions: int, dtype: Any = FLOAT) -> list[Any]:
    """X, W, R, B of a layer."""
    rows = GATES[name] * HIDDEN
    shapes = (
        (STEPS, BATCH, WIDTH),
        (directions, rows, WIDTH),
        (directions, rows, HIDDEN),
        (directions, 2 * rows),
    )
    return [sample(seed, dtype, shape, -1, 1) for seed, shape in enumerate(shapes)]


def optional(name: str, seed: int, directions: int) -> list[Any]:
    """Draw sequence lengths, initial states and peepholes."""
    draw = draws(seed)
    lengths = np.array([draw.randint(1, STEPS) for _ in range(BATCH)], np.int32)
    states = [sample(seed + s, FLOAT, (directions, BATCH, HIDDEN), -1, 1) for s in range(2)]
    inputs: list[Any] = [lengths if draw.random() < 0.5 else None, states[0]]
    if name == "LSTM":
        peepholes = sample(seed, FLOAT, (directions, 3 * HIDDEN), -1, 1)
        inputs += [states[1], *([peepholes] if draw.random() < 0.5 else [])]
    return inputs


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_onnx_runtime(name: str, direction: str, seed: int) -> None:
    directions = 2 if direction == "bidirectional" else 1
    attributes: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    if seed % 2:
        attributes["clip"] = 0.4
    if name == "GRU":
        attributes["linear_before_reset"] = seed // 2 % 2
    if name == "LSTM":
        attributes["input_forget"] = seed // 2 % 2
    inputs = [*layer(name, directions), *(optional(name, seed, directions) if seed > 1 else [])]
    outputs = 3 if name == "LSTM" else 2
    assert_agrees(name, inputs, 14, outputs=outputs, **attributes)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", GATES)
def test_activations_agree_with_onnx_runtime(name: str, activation: str) -> None:
    count = FUNCTIONS[name]
    attributes: dict[str, Any] = {"hidden_size": HIDDEN, "activations": [activation] * count}
    if activation in ALPHA + BOTH:
        attributes["activation_alpha"] = [0.3, 0.7, 0.5][:count]
    if activation in BOTH:
        attributes["activation_beta"] = [0.2, 0.4, 0.6][:count]
    assert_agrees(name, layer(name, 1), 14, outputs=2, **attributes)


def test_parameters_go_to_the_activations_that_take_them() -> None:
    mixed = ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"]
    attributes = {"activations": mixed, "activation_alpha": [0.2, 0.3, 0.4], "activation_beta": [0.6]}
    assert_agrees(
        "LSTM", layer("LSTM", 2), 14, outputs=3, hidden_size=HIDDEN, direction="bidirectional", **attributes
    )


@pytest.mark.parametrize("name", GATES)
def test_batch_first_is_the_same_layer(name: str) -> None:
    inputs = layer(name, 2)
    initial = sample(9, FLOAT, (2, BATCH, HIDDEN))
    outputs = 3 if name == "LSTM" else 2
    plain = on_engine(name, [*inputs, None, initial], 14, outputs=outputs, direction="bidirectional")
    turned = [inputs[0].swapaxes(0, 1).copy(), *inputs[1:], None, initial.swapaxes(0, 1).copy()]
    first = on_engine(name, turned, 14, outputs=outputs, direction="bidirectional", layout=1)
    np.testing.assert_array_equal(first[0], plain[0].transpose(2, 0, 1, 3))
    for got, want in zip(first[1:], plain[1:], strict=True):
        np.testing.assert_array_equal(got, want.swapaxes(0, 1))


@pytest.mark.parametrize("name", GATES)
def test_half_precision_is_one_rounding_away_from_float32(name: str) -> None:
    inputs = layer(name, 1, np.float16)
    (got,) = on_engine(name, inputs, 14)
    (wide,) = on_engine(name, [x.astype(FLOAT) for x in inputs], 14)
    np.testing.assert_array_equal(got, wide.astype(np.float16))


def test_sigmoid_does_not_overflow() -> None:
    x, w, r = (
        np.full((1, 1, 1), 1e4, FLOAT),
        np.array([[[1.0], [-1.0], [1.0]]], FLOAT),
        np.zeros((1, 3, 1), FLOAT),
    )
    (got,) = on_engine("GRU", [x, w, r], 14)
    assert got.item() == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_short_sequences(steps: int) -> None:
    inputs = [layer("LSTM", 1)[0][:steps], *layer("LSTM", 1)[1:]]
    y, last, cell = on_engine("LSTM", inputs, 14, outputs=3)
    assert y.shape == (steps, 1, BATCH, HIDDEN)
    assert bool(last.any()) == bool(cell.any()) == bool(steps)


def test_truth_mode_keeps_float64() -> None:
    inputs = [x.astype(np.float64) for x in layer("LSTM", 1)]
    (got,) = on_engine("LSTM", inputs, 14, truth=True)
    (single,) = on_engine("LSTM", layer("LSTM", 1), 14)
    assert got.dtype == np.float64
    assert complaint(got.astype(FLOAT), single) is None


@pytest.mark.parametrize(
    ("attributes", "complains"),
    [
        ({"direction": "sideways"}, "direction 'sideways' is unknown"),
        ({"direction": "reverse", "hidden_size": 7}, "do not fit"),
        ({"direction": "bidirectional"}, "weights for 1 directions"),
        ({"activations": ["Tanh"]}, "1 activations given, 3 needed"),
        ({"activations": ["Tanh", "Tanh", "Sine"]}, "activation 'sine' is unknown"),
    ],
)
def test_refusals(attributes: dict[str, Any], complains: str) -> None:
    with pytest.raises(ValueError, match=complains):
        on_engine("LSTM", layer("LSTM", 1), 14, **attributes)
