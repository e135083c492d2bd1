"""Products of dequantised tensors on level 1: what becomes a product of codes, against exact sums."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.expr import I32
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.rows import Rows
from graphdoc.engine.level1 import Compiled
from tests.engine.lowered import hosts, segments

KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
}


def codes(rng: Any, dtype: Any, shape: Sequence[int]) -> Any:
    """Return codes over the whole range, its ends among them."""
    info = np.iinfo(dtype)
    found = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    found.reshape(-1)[:2] = info.min, info.max
    return found


def model(
    nodes: Sequence[Any], feeds: Mapping[str, Any], weights: Mapping[str, Any], outputs: Mapping[str, Any]
) -> Any:
    """Return a model. outputs: their dtypes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, KINDS[v.dtype], v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, KINDS[np.dtype(v)], None) for k, v in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def dequantise(name: str, axis: int | None = None) -> Any:
    """Return a node that makes floats ``name`` of codes ``name_q`` with ``name_s`` and ``name_z``."""
    more = {} if axis is None else {"axis": axis}
    return helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], **more)


def quantise(name: str) -> Any:
    """Return a node that makes codes ``out`` of floats."""
    return helper.make_node("QuantizeLinear", [name, "y_s", "y_z"], ["out"])


def coded(compiled: Compiled) -> list[bool]:
    """Return, by product or sum of the program, whether it is one of whole numbers."""
    found = []
    for segment in segments(compiled):
        for step in segment.program.steps:
            if isinstance(step.spec, Contraction):
                found.append(step.spec.accumulate == I32)
            elif isinstance(step.spec, Rows):
                found.append(any(s.expr.dtype == I32 for s in step.spec.stages))
    return found


def compiled(proto: Any, feeds: Mapping[str, Any], native: bool) -> tuple[Compiled, dict[str, Any]]:
    """Return the model on level 1 and what it gives."""
    device = {"device": CpuDevice(1)} if native else {}
    made = Compiled(ir.serde.deserialize_model(proto), passes=(fuse,), **device)
    found = made.run(feeds)
    assert not hosts(made)
    return made, found


def exact(rng: Any, a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """Return the product of whole numbers in float64."""
    return (a.astype(np.float64) - a_zero) @ (b.astype(np.float64) - b_zero)


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
@pytest.mark.parametrize("a_kind", [np.uint8, np.int8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("b_kind", [np.uint8, np.int8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("zeros", ["middle", "ends", "other ends"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "turned Gemm", "stack"])
def test_products(native: bool, a_kind: Any, b_kind: Any, zeros: str, columns: bool, op: str) -> None:
    """Codes and zero points at the ends of their ranges: exact sums, rounded by scale and bias alone."""
    rng = np.random.default_rng(5)
    m, k, n = 7, 33, 21
    lead = (2,) if op == "stack" else ()
    a, b = codes(rng, a_kind, (*lead, m, k)), codes(rng, b_kind, (k, n))
    ends = {"middle": (0.5, 0.5), "ends": (0.0, 1.0), "other ends": (1.0, 0.0)}[zeros]
    a_zero, b_zero = (
        d(np.iinfo(d).min + round(e * 255)) for d, e in zip((a_kind, b_kind), ends, strict=True)
    )
    scale = rng.uniform(0.001, 0.01, n if columns else ()).astype(np.float32)
    stored = np.ascontiguousarray(b.T) if op == "turned Gemm" else b
    weights = {
        "a_s": np.float32(0.05),
        "a_z": a_zero,
        "b_q": stored,
        "b_s": scale,
        "b_z": np.full(scale.shape, b_zero),
        "c": rng.standard_normal(n).astype(np.float32),
    }
    axis = 0 if op == "turned Gemm" else 1
    nodes = [dequantise("a"), dequantise("b", axis if columns else None)]
    if "Gemm" in op:
        more = {"transB": 1} if "turned" in op else {}
        nodes.append(helper.make_node("Gemm", ["a", "b", "c"], ["y"], alpha=0.5, beta=2.0, **more))
    else:
        nodes.append(helper.make_node("MatMul", ["a", "b"], ["y"]))
    feeds = {"a_q": a}

    made, found = compiled(model(nodes, feeds, weights, {"y": np.float32}), feeds, native)

    assert all(coded(made))
    wanted = exact(rng, a, float(a_zero), b, float(b_zero)) * np.float64(np.float32(0.05)) * scale
    if "Gemm" in op:
        wanted = 0.5 * wanted + 2 * weights["c"]
    np.testing.assert_allclose(found["y"], wanted, rtol=4e-7, atol=4e-7 * np.abs(wanted).max())


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_two_computed_tensors(native: bool, kind: Any, turned: bool) -> None:
    """As in attention: both operands are computed, one may lie transposed."""
    rng = np.random.default_rng(6)
    a, b = (
        codes(rng, np.uint8, (2, 3, 40, 19)),
        codes(rng, kind, (2, 3, 37, 19) if turned else (2, 3, 19, 37)),
    )
    weights = {
        "a_s": np.float32(0.02),
        "a_z": np.uint8(255),
        "b_s": np.float32(0.03),
        "b_z": kind(np.iinfo(kind).min),
    }
    nodes = [dequantise("a"), dequantise("b")]
    operand = "b"
    if turned:
        nodes.append(helper.make_node("Transpose", ["b"], ["t"], perm=[0, 1, 3, 2]))
        operand = "t"
    nodes.append(helper.make_node("MatMul", ["a", operand], ["y"]))
    feeds = {"a_q": a, "b_q": b}

    made, found = compiled(model(nodes, feeds, weights, {"y": np.float32}), feeds, native)

    assert all(coded(made))
    plain = np.swapaxes(b, -1, -2) if turned else b
    wanted = exact(rng, a, 255.0, plain, float(np.iinfo(kind).min)) * 0.02 * 0.03
    np.testing.assert_allclose(found["y"], wanted, rtol=4e-7, atol=4e-7 * np.abs(wanted).max())


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("kind", [np.uint8, np.int8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("w_zero", [0, -128])
def test_convolutions(native: bool, group: int, kind: Any, w_zero: int) -> None:
    """Padding counts as 0, that is as the zero point; quantised, all is within one code of level 0."""
    rng = np.random.default_rng(7)
    x, w = codes(rng, kind, (1, 4, 9, 8)), codes(rng, np.int8, (4, 4 // group, 3, 3))
    weights = {
        "x_s": np.float32(0.05),
        "x_z": kind(np.iinfo(kind).max),
        "w_q": w,
        "w_s": rng.uniform(0.001, 0.01, 4).astype(np.float32),
        "w_z": np.full(4, w_zero, np.int8),
        "bias": rng.standard_normal(4).astype(np.float32),
        "y_s": np.float32(0.1),
        "y_z": np.uint8(100),
    }
    attributes = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": group}
    conv = helper.make_node("Conv", ["x", "w", "bias"], ["y"], **attributes)
    nodes = [dequantise("x"), dequantise("w", 0), conv, quantise("y")]
    feeds = {"x_q": x}
    proto = model(nodes, feeds, weights, {"y": np.float32, "out": np.uint8})

    made, found = compiled(proto, feeds, native)

    assert all(coded(made)) == (w_zero == 0 or group != 2)
    for name, wanted in Interpreter(ir.serde.deserialize_model(proto)).run(feeds).items():
        allowed = 1 if name == "out" else 2e-6 * np.abs(wanted).max()
        np.testing.assert_allclose(found[name].astype(float), wanted.astype(float), rtol=0, atol=allowed)


def test_codes_agree_with_onnx_runtime() -> None:
    """A quantised product in the middle of a model: the same codes but where a number lies between two."""
    rng = np.random.default_rng(8)
    weights = {
        "a_s": np.float32(0.03),
        "a_z": np.uint8(117),
        "b_q": rng.integers(-64, 65, (64, 48)).astype(np.int8),
        "b_s": rng.uniform(0.001, 0.01, 48).astype(np.float32),
        "b_z": np.zeros(48, np.int8),
        "y_s": np.float32(0.09),
        "y_z": np.uint8(121),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "a_s", "a_z"], ["a_q"]),
        dequantise("a"),
        dequantise("b", 1),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
        quantise("y"),
    ]
    feeds = {"x": (3 * rng.standard_normal((50, 64))).astype(np.float32)}
    proto = model(nodes, feeds, weights, {"out": np.uint8})

    _, found = compiled(proto, feeds, native=True)

    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, feeds)
    apart = np.abs(found["out"].astype(int) - theirs.astype(int))
    assert apart.max() <= 1
    assert apart.mean() < 0.002


CASES = {
    "a scale per row": {"a_s": np.full(5, 0.1, np.float32), "a_z": np.zeros(5, np.uint8)},
    "scales whose product is nothing": {"a_s": np.float32(1e-30), "b_s": np.float32(1e-20)},
    "scales whose product is infinite": {"a_s": np.float32(1e30), "b_s": np.float32(1e20)},
    "a scale of 0": {"b_s": np.float32(0)},
    "a scale along the terms": {"b_s": np.full(4, 0.1, np.float32), "b_z": np.zeros(4, np.int8)},
    "too many terms": {},
}


@pytest.mark.parametrize("case", CASES)
def test_what_stays_a_product_of_floats(case: str) -> None:
    """Sums that codes cannot say, or that might not fit: they agree with level 0 all the same."""
    rng = np.random.default_rng(9)
    k = 33_100 if case == "too many terms" else 4
    weights = {
        "a_s": np.float32(0.1),
        "a_z": np.uint8(3),
        "b_q": codes(rng, np.int8, (k, 3)),
        "b_s": np.float32(0.1),
        "b_z": np.int8(0),
    } | CASES[case]
    nodes = [
        dequantise("a", 0 if "per row" in case else None),
        dequantise("b", 0 if "along" in case else None),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    feeds = {"a_q": codes(rng, np.uint8, (5, k))}
    proto = model(nodes, feeds, weights, {"y": np.float32})

    made, found = compiled(proto, feeds, native=False)

    assert not any(coded(made))
    (wanted,) = Interpreter(ir.serde.deserialize_model(proto)).run(feeds).values()
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4)


def test_a_scale_that_is_computed_stays_with_floats() -> None:
    """What it is nobody knows beforehand."""
    rng = np.random.default_rng(10)
    weights = {
        "a_z": np.uint8(3),
        "b_q": codes(rng, np.int8, (4, 3)),
        "b_s": np.float32(0.1),
        "b_z": np.int8(0),
    }
    nodes = [dequantise("a"), dequantise("b"), helper.make_node("MatMul", ["a", "b"], ["y"])]
    feeds = {"a_q": codes(rng, np.uint8, (5, 4)), "a_s": np.float32([0.25]).reshape(())}
    proto = model(nodes, feeds, weights, {"y": np.float32})

    made, found = compiled(proto, feeds, native=False)

    assert not any(coded(made))
    wanted = exact(rng, feeds["a_q"], 3.0, weights["b_q"], 0.0) * 0.25 * np.float64(np.float32(0.1))
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-5)
