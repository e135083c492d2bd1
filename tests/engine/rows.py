"""One row of the operator table at a time, beside ONNX Runtime with its optimisations off."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graphdoc.engine.ops.table import Call, Operator, TensorType, find
from tests.engine.fake_cupy import row_agrees

Arrays = list[Any]


def on_engine(
    name: str, inputs: Arrays, version: int, *, outputs: int = 1, truth: bool = False, **attributes: Any
) -> Any:
    """Return the operator's result, a tuple when ``outputs`` is more than 1.

    Checks on the way that the inputs stay as they were and that ``infer`` states nothing untrue.
    """
    row = find("", name, version)
    assert row is not None, f"{name}-{version} has no row"
    given = [None if x is None else np.asarray(x) for x in inputs]
    before = [None if x is None else x.copy() for x in given]
    call = Call(version=version, outputs=outputs, truth=truth)
    with np.errstate(all="ignore"):
        result = row.evaluate(call, *given, **attributes)
    for x, copy in zip(given, before, strict=True):
        assert x is None or x.tobytes() == copy.tobytes(), "an input was changed"
    results = [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
    row_agrees(row, call, given, attributes, results)
    check_infer(row, call, given, attributes, results)
    return results[0] if outputs == 1 else tuple(results[:outputs])


def check_infer(
    row: Operator, call: Call, inputs: Arrays, attributes: dict[str, Any], results: Arrays
) -> None:
    """Assert that infer agrees with a run: with everything known, without contents, and with symbols."""
    if row.infer is None:
        return
    for known in ("content", "shape", "symbols"):
        types = [None if x is None else _type(x, known) for x in inputs]
        inferred = row.infer(call, *types, **attributes)
        inferred = inferred if isinstance(inferred, tuple) else (inferred,)
        for stated, result in zip(inferred, results, strict=False):
            assert stated.dtype in (None, result.dtype), (known, stated, result.dtype)
            assert stated.shape is None or len(stated.shape) == result.ndim, (known, stated, result.shape)
            for dim, size in zip(stated.shape or (), result.shape, strict=False):
                assert not isinstance(dim, int) or dim == size, (known, stated, result.shape)


def _type(x: Any, known: str) -> TensorType:
    shape = tuple(f"n{size}" if size != 1 else None for size in x.shape) if known == "symbols" else x.shape
    return TensorType(x.dtype, shape, x if known == "content" else None)


def on_ort(name: str, inputs: Arrays, version: int, *, outputs: int = 1, **attributes: Any) -> Any:
    """Return ONNX Runtime's result on the CPU with one thread; None when it lacks the operator's dtypes."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    graph = helper.make_graph(
        [helper.make_node(name, names, [f"y{i}" for i in range(outputs)], **attributes)],
        "one",
        [helper.make_tensor_value_info(n, _code(x), x.shape) for n, x in feeds.items()],
        [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)],
    )
    # The IR version is one that every supported runtime reads.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    try:
        results = _session(model).run(None, feeds)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    return results[0] if outputs == 1 else tuple(results)


def _code(x: Any) -> int:
    return onnx.TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def assert_equal(got: Any, want: Any) -> None:
    """Same dtype, shape and content; NaN equals NaN, and the sign of a zero counts for nothing."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype == object or want.dtype.kind in "iub":
        assert got.tolist() == want.tolist()
    else:
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def assert_close(got: Any, want: Any, *, units: float) -> None:
    """Same dtype and shape; floats differ by at most ``units`` in the last place of the wanted value.

    Values far below the largest one count in the last place of 1/1024 of it, since sums cancel.
    """
    if want.dtype == object or want.dtype.kind in "iub":
        assert_equal(got, want)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    eps = 2.0 ** -np.finfo(want.dtype).nmant if want.dtype.kind == "f" else 2.0**-7
    a, b = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(b)
    largest = np.max(size, where=np.isfinite(b), initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= units * eps * np.maximum(size, largest / 1024)
    ok = near | (a == b) | (np.isnan(a) & np.isnan(b))
    assert ok.all(), f"{(~ok).sum()} of {ok.size} differ, first {a[~ok][0]!r} for {b[~ok][0]!r}"


def sample(seed: int, dtype: Any, shape: tuple[int, ...], low: float = -4.0, high: float = 4.0) -> Any:
    """Return seeded values of any numeric dtype or bool, within the bounds where the dtype allows."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        bounds = max(int(low), info.min), min(int(high), info.max)
        return np.asarray(rng.integers(*bounds, shape, endpoint=True)).astype(dtype)
    return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
