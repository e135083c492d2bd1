"""One layer at a time: on the engine, and on ONNX Runtime with its optimisations off."""

import random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from graphdoc.engine.ops.table import Call, Operator, TensorType, find
from tests.engine.stated import size_of

IR_VERSION = 10
"""Old enough for every ONNX Runtime that the project supports."""

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
"""Largest error of one layer relative to its largest element: sums of a few hundred terms, other order."""


def draws(seed: int) -> random.Random:
    """Return a seeded source of attributes and sizes."""
    return random.Random(seed)  # noqa: S311 (test data)


def on_engine(
    name: str, inputs: list[Any], version: int, *, outputs: int = 1, truth: bool = False, **attributes: Any
) -> list[Any]:
    """Return the outputs. Checks that inputs stay as they were and that infer states nothing untrue."""
    row = find("", name, version)
    assert row is not None, f"{name}-{version} has no row"
    before = [None if x is None else x.copy() for x in inputs]
    call = Call(version=version, outputs=outputs, truth=truth)
    with np.errstate(all="ignore"):
        result = row.evaluate(call, *inputs, **attributes)
    for x, copy in zip(inputs, before, strict=True):
        assert x is None or x.tobytes() == copy.tobytes(), "an input was changed"
    results = list(result if isinstance(result, tuple) else (result,))[:outputs]
    for known in ("content", "shape", "symbols"):
        _check_infer(row, call, [None if x is None else _type(x, known) for x in inputs], attributes, results)
    return results


def _type(x: Any, known: str) -> TensorType:
    shape = tuple(f"n{size}" for size in x.shape) if known == "symbols" else x.shape
    return TensorType(x.dtype, shape, x if known == "content" else None)


def _check_infer(
    row: Operator, call: Call, types: list[Any], attributes: dict[str, Any], results: list[Any]
) -> None:
    if row.infer is None:
        return
    inferred = row.infer(call, *types, **attributes)
    for stated, result in zip(
        inferred if isinstance(inferred, tuple) else (inferred,), results, strict=False
    ):
        assert stated.dtype in (None, result.dtype), (stated, result.dtype)
        if stated.shape is not None:
            assert len(stated.shape) == result.ndim, (stated, result.shape)
            for dim, size in zip(stated.shape, result.shape, strict=True):
                assert dim is None or size_of(dim) == size, (stated, result.shape)


def on_ort(
    name: str, inputs: list[Any], version: int, *, outputs: int = 1, domain: str = "", **attributes: Any
) -> list[Any]:
    """Return the outputs of ONNX Runtime on the CPU, one thread, optimisations off."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    node = helper.make_node(name, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "layer",
        [
            helper.make_tensor_value_info(n, int(ir.DataType.from_numpy(x.dtype)), x.shape)
            for n, x in feeds.items()
        ],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def complaint(got: Any, want: Any, tolerance: float | None = None) -> str | None:
    """Return how two outputs differ, None when they agree: exact integers, floats within TOLERANCE."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "iub":
        return None if np.array_equal(got, want) else f"{np.mean(got != want):.1%} of the integers differ"
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "NaN or Inf differ"
    size = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-3)
    error = float(np.abs(a - b)[finite].max(initial=0.0)) / size
    limit = TOLERANCE[want.dtype.name] if tolerance is None else tolerance
    return None if error <= limit else f"error {error:.2e}"


def assert_agrees(
    name: str,
    inputs: list[Any],
    version: int,
    *,
    outputs: int = 1,
    tolerance: float | None = None,
    **attributes: Any,
) -> None:
    """Assert that the engine gives what ONNX Runtime gives."""
    want = on_ort(name, inputs, version, outputs=outputs, **attributes)
    got = on_engine(name, inputs, version, outputs=outputs, **attributes)
    shapes = [None if x is None else x.shape for x in inputs]
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        reason = complaint(g, w, tolerance)
        assert reason is None, f"{name}-{version} {attributes} on {shapes}, output {index}: {reason}"


def sample(seed: int, dtype: Any, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Any:
    """Return seeded values of a numeric dtype between bounds, clipped to what the dtype holds."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(int(low), info.min), min(int(high), info.max), shape, endpoint=True).astype(
            dtype
        )
    return rng.uniform(low, high, shape).astype(dtype)
