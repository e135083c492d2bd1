"""One small network in floats and its quantised forms: QDQ, operators on codes, ranges taken at run time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "k": (rng.standard_normal((8, 3, 3, 3)) / 3).astype(np.float32),
        "b": (rng.standard_normal(8) / 4).astype(np.float32),
        "w": (rng.standard_normal((8, 5)) / 2).astype(np.float32),
    }


def picture(seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)


def plain() -> onnx.ModelProto:
    """x → c = Conv, r = Relu, p = mean over the picture, y = MatMul."""
    return model_of(
        [
            helper.make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("ReduceMean", ["r"], ["p"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["p", "w"], ["y"]),
        ],
        weights(),
    )


def model_of(nodes: list[onnx.NodeProto], arrays: Mapping[str, Array]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 5])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@dataclass
class Ranges:
    """Scale and zero point (uint8) of x, r, p and y; what a test changes is a planted fault."""

    x: tuple[float, int] = (8.0 / 255, 128)
    r: tuple[float, int] = (0.0, 0)
    p: tuple[float, int] = (0.0, 0)
    y: tuple[float, int] = (0.0, 0)
    extra: dict[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name in "xrpy":
            scale, zero = getattr(self, name)
            found[f"{name}_s"] = np.float32(scale).reshape(())
            found[f"{name}_z"] = np.uint8(zero).reshape(())
        return {**found, **_codes(), **self.extra}


def ranges(**changed: tuple[float, int]) -> Ranges:
    """Return ranges that hold every value of the network on :func:`picture`."""
    k = weights()
    padded = np.pad(picture(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    r = np.maximum(np.einsum("nchwij,ocij->nohw", windows, k["k"]) + k["b"].reshape(1, 8, 1, 1), 0)
    p = r.mean((2, 3))
    y = p @ k["w"]
    low, high = min(0.0, float(y.min())), max(0.0, float(y.max()))
    scale = (high - low) / 250
    whole = {
        "r": (float(r.max()) / 250, 0),
        "p": (float(p.max()) / 250, 0),
        "y": (scale, round(-low / scale) + 2),
    }
    return Ranges(**{**whole, **changed})


def _codes() -> dict[str, Array]:
    """Return codes and scales of the weights, of k by channel; of 7 bits, which no processor saturates."""
    k = weights()
    scale = np.abs(k["k"]).max((1, 2, 3)) / np.float32(63)
    w_scale = np.float32(np.abs(k["w"]).max() / 63)
    return {
        "k_q": np.rint(k["k"] / scale.reshape(-1, 1, 1, 1)).astype(np.int8),
        "k_s": scale.astype(np.float32),
        "k_z": np.zeros(8, np.int8),
        "w_q": np.rint(k["w"] / w_scale).astype(np.int8),
        "w_s": w_scale.reshape(()),
        "w_z": np.int8(0).reshape(()),
    }


def _there_and_back(name: str) -> list[onnx.NodeProto]:
    used = [f"{name}_s", f"{name}_z"]
    return [
        helper.make_node("QuantizeLinear", [name, *used], [f"{name}_QuantizeLinear_Output"]),
        helper.make_node(
            "DequantizeLinear", [f"{name}_QuantizeLinear_Output", *used], [f"{name}_DequantizeLinear_Output"]
        ),
    ]


def qdq(used: Ranges) -> onnx.ModelProto:
    """As onnxruntime.quantization writes it: the Relu is left to the range of the codes behind the Conv."""
    arrays = used.arrays()
    arrays["b"] = weights()["b"]
    return model_of(
        [
            *_there_and_back("x"),
            helper.make_node("DequantizeLinear", ["k_q", "k_s", "k_z"], ["k_d"], axis=0),
            helper.make_node("Conv", ["x_DequantizeLinear_Output", "k_d", "b"], ["r"], pads=[1, 1, 1, 1]),
            *_there_and_back("r"),
            helper.make_node("ReduceMean", ["r_DequantizeLinear_Output"], ["p"], axes=[2, 3], keepdims=0),
            *_there_and_back("p"),
            helper.make_node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w_d"]),
            helper.make_node("MatMul", ["p_DequantizeLinear_Output", "w_d"], ["y"]),
        ],
        arrays,
    )


def on_codes(used: Ranges) -> onnx.ModelProto:
    """QLinearConv and QLinearMatMul, whose results are called NAME_quantized."""
    arrays = used.arrays()
    steps = arrays["x_s"] * arrays["k_s"]
    arrays["b_q"] = np.rint(weights()["b"] / steps).astype(np.int32)
    conv = ["x_quantized", "x_s", "x_z", "k_q", "k_s", "k_z", "r_s", "r_z", "b_q"]
    product = ["p_quantized", "p_s", "p_z", "w_q", "w_s", "w_z", "y_s", "y_z"]
    return model_of(
        [
            helper.make_node("QuantizeLinear", ["x", "x_s", "x_z"], ["x_quantized"]),
            helper.make_node("QLinearConv", conv, ["c_quantized"], pads=[1, 1, 1, 1]),
            helper.make_node("DequantizeLinear", ["c_quantized", "r_s", "r_z"], ["r_real"]),
            helper.make_node("ReduceMean", ["r_real"], ["p"], axes=[2, 3], keepdims=0),
            helper.make_node("QuantizeLinear", ["p", "p_s", "p_z"], ["p_quantized"]),
            helper.make_node("QLinearMatMul", product, ["y_quantized"]),
            helper.make_node("DequantizeLinear", ["y_quantized", "y_s", "y_z"], ["y"]),
        ],
        arrays,
    )


def dynamic() -> onnx.ModelProto:
    """The product on codes whose range follows from the data."""
    arrays = {**_codes(), **{name: weights()[name] for name in "kb"}}
    return model_of(
        [
            helper.make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("ReduceMean", ["r"], ["p"], axes=[2, 3], keepdims=0),
            helper.make_node("DynamicQuantizeLinear", ["p"], ["p_quantized", "p_scale", "p_zero"]),
            helper.make_node("MatMulInteger", ["p_quantized", "w_q", "p_zero", "w_z"], ["y_whole"]),
            helper.make_node("Cast", ["y_whole"], ["y_float"], to=FLOAT),
            helper.make_node("Mul", ["p_scale", "w_s"], ["y_scale"]),
            helper.make_node("Mul", ["y_float", "y_scale"], ["y"]),
        ],
        arrays,
    )
