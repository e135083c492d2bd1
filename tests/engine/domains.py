"""One node of another domain (ai.onnx.ml, com.microsoft) on level 0 and on ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.table import Call, find
from tests.engine.fake_cupy import model_agrees
from tests.engine.single import number, oracle
from tests.engine.stated import described, untrue

ML, MS = "ai.onnx.ml", "com.microsoft"
VERSION = {ML: 1, MS: 1}

TOLERANCE = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-12}
"""Largest difference relative to the tensor's largest element: short sums in another order."""


def node(
    op: str,
    *inputs: Any,
    domain: str,
    outputs: int = 1,
    version: int = 1,
    constants: tuple[int, ...] = (),
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model of one node, and its feeds. constants: which inputs are initializers."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    fixed = {f"x{i}" for i in constants}
    feeds = {n: x for n, x in arrays.items() if n not in fixed}
    results = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info(n, number(x), x.shape) for n, x in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(arrays[n], n) for n in sorted(fixed)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def engine(op: str, *inputs: Any, truth: bool = False, **options: Any) -> list[Any]:
    """Return the outputs of level 0. Asserts that it leaves the inputs alone and that infer tells no lie."""
    proto, feeds = node(op, *inputs, **options)
    before = {name: x.copy() for name, x in feeds.items()}
    results = Interpreter(ir.from_proto(proto), truth=truth).run(feeds)
    model_agrees(ir.from_proto(proto), feeds, results, truth=truth)
    for name, x in feeds.items():
        np.testing.assert_array_equal(x, before[name])
    found = [results[f"y{i}"] for i in range(options.get("outputs", 1))]
    if not truth:
        _check_infer(op, inputs, found, options)
    return found


def _check_infer(op: str, inputs: Any, found: list[Any], options: dict[str, Any]) -> None:
    version = options.get("version", 1)
    row = find(options["domain"], op, version)
    assert row is not None
    if row.infer is None:
        return
    settings = ("domain", "outputs", "version", "constants")
    attributes = {k: _decoded(v) for k, v in options.items() if k not in settings}
    call = Call(version=version, outputs=len(found))
    for known in ("content", "shape", "symbols"):
        stated = row.infer(call, *(described(x, known) for x in inputs), **attributes)
        for said, result in zip(stated if isinstance(stated, tuple) else (stated,), found, strict=False):
            reason = untrue(said, result)
            assert reason is None, (op, known, reason)


def _decoded(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def ort(op: str, *inputs: Any, **options: Any) -> list[Any]:
    """Return the outputs of ONNX Runtime, optimisations off."""
    return oracle(*node(op, *inputs, **options))


def complaint(got: Any, want: Any, tolerance: float | None = None) -> str | None:
    """Return how two outputs differ, None when they agree: floats within TOLERANCE, all else exactly."""
    if isinstance(want, list):
        return None if got == want else f"{got} for {want}"
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    if want.dtype == object or want.dtype.kind in "iub":
        return None if np.array_equal(got, want) else f"{np.mean(got != want):.1%} of the elements differ"
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "NaN or Inf differ"
    size = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-3)
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / size
    limit = TOLERANCE[want.dtype.name] if tolerance is None else tolerance
    return None if error <= limit else f"error {error:.2e}"


def agree(op: str, *inputs: Any, tolerance: float | None = None, **options: Any) -> None:
    """Assert that level 0 gives what ONNX Runtime gives."""
    want = ort(op, *inputs, **options)
    got = engine(op, *inputs, **options)
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        reason = complaint(g, w, tolerance)
        assert reason is None, f"{op} {options}, output {index}: {reason}"
