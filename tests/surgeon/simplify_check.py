"""Simplify a small model and hold the result against the original in ONNX Runtime, its optimisations off."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime as ort

from graphdoc.surgeon.model import load
from graphdoc.surgeon.simplified import Report
from graphdoc.surgeon.simplify import Options, simplify
from graphdoc.surgeon.writer import write_model

Feeds = Mapping[str, np.ndarray[Any, Any]]

DTYPES = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.BOOL: np.bool_,
}


def parse(body: str, opset: int = 18, extra: str = "") -> onnx.ModelProto:
    """Return a model written in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{extra}]>\n{body}')


def run(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, Any]:
    """Return the outputs in ONNX Runtime without optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def seeded(proto: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
    """Return inputs with the given sizes of dynamic dims; floats hold both zeros."""
    rng = np.random.default_rng(seed)
    own = {tensor.name for tensor in proto.graph.initializer}
    return {
        info.name: _values(info.type.tensor_type, sizes, rng)
        for info in proto.graph.input
        if info.name not in own
    }


def _values(kind: Any, sizes: Mapping[str, int], rng: Any) -> np.ndarray[Any, Any]:
    shape = [dim.dim_value if dim.HasField("dim_value") else sizes[dim.dim_param] for dim in kind.shape.dim]
    dtype = DTYPES[kind.elem_type]
    numbers = rng.standard_normal(shape) * 3
    if np.dtype(dtype).kind == "f":
        numbers.reshape(-1)[:2] = (-0.0, 0.0)[: numbers.size]
    if np.dtype(dtype) == np.bool_:
        return np.asarray(numbers > 0)
    return np.asarray(np.abs(numbers) if np.dtype(dtype).kind == "u" else numbers).astype(dtype)


def equal(a: Any, b: Any, *, exact: bool) -> bool:
    """Whether two outputs agree: dtype, shape and every bit, or but for the rounding of float32 sums."""
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y, exact=exact) for x, y in zip(a, b, strict=True))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if exact or a.dtype.kind not in "f":
        same = a.tolist() == b.tolist() if a.dtype.kind in "OU" else a.tobytes() == b.tobytes()
        return bool(same or (a.dtype.kind == "f" and _same_bits(a, b)))
    # 32 roundings of the largest element: the sums of these models have fewer than 32 terms
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return bool(np.allclose(a, b, rtol=0, atol=32 * np.finfo(a.dtype).eps * scale, equal_nan=True))


def _same_bits(a: Any, b: Any) -> bool:
    nan = np.isnan(a) & np.isnan(b)
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | nan).all())


class Result:
    """A simplified model. ops: the operators left, in order."""

    def __init__(self, proto: onnx.ModelProto, report: Report) -> None:
        self.proto = proto
        self.report = report
        self.ops = [node.op_type for node in proto.graph.node]

    def reasons(self, rule: str) -> list[str]:
        """Return why a rule did not match."""
        return [item.reason for item in self.report.kept if item.rule == rule]

    def rules(self) -> set[str]:
        """Return the rules that edited the model."""
        return {edit.rule for edit in self.report.done}


def check(
    proto: onnx.ModelProto,
    *,
    exact: bool = True,
    feeds: Sequence[Feeds] | None = None,
    sizes: Sequence[Mapping[str, int]] = ({"N": 2, "M": 3}, {"N": 1, "M": 1}, {"N": 5, "M": 4}),
    again: bool = True,
    **options: Any,
) -> Result:
    """Simplify, and assert what must always hold: valid, same interface, same outputs, nothing left to do."""
    before = proto.SerializeToString(deterministic=True)
    result = simplify(load(proto), Options(**options))
    edited = write_model(result.model)
    onnx.checker.check_model(edited, full_check=False)
    assert proto.SerializeToString(deterministic=True) == before, "the original was changed"
    assert [o.SerializeToString() for o in edited.graph.output] == [
        o.SerializeToString() for o in proto.graph.output
    ]
    given = feeds if feeds is not None else [seeded(proto, size, place) for place, size in enumerate(sizes)]
    for feed in given:
        wanted, found = run(proto, feed), run(edited, feed)
        assert list(wanted) == list(found)
        for name, value in wanted.items():
            assert equal(value, found[name], exact=exact), (name, value, found[name])
    if again:
        second = simplify(load(edited), Options(**options))
        assert not second.report.done, second.report.done
    return Result(edited, result.report)
