"""Small models and helpers for the tests of editing; ONNX Runtime without optimisations is the oracle."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from graphdoc.engine.errors import GraphdocError
from graphdoc.surgeon import check, load
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build

CHAIN = """
chain (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1.0, -2.0, 0.5}> {
  [first] a = Mul(x, w)
  [second] b = Relu(a)
  [third] c = Neg(b)
  [fourth] y = Abs(c)
}"""

DIAMOND = """
diamond (float[N, 4] x, float[4] s) => (float[N, 4] y, float[N, 4] z) {
  [top] a = Relu(x)
  [left] b = Mul(a, s)
  [right] c = Neg(a)
  [join] y = Add(b, c)
  [tail] z = Sigmoid(c)
}"""

BRANCHES = """
branches (float[2] x, bool flag) => (float[2] y) <float[2] w = {3.0, 4.0}> {
  [pre] h = Relu(x)
  [choose] t = If (flag) <
    then_branch = yes () => (float[2] yes_out) {
      [scale] inner = Mul(h, w)
      [shift] yes_out = Add(inner, x)
    },
    else_branch = no () => (float[2] no_out) {
      [negate] inner = Neg(h)
      [copy] no_out = Identity(inner)
    }
  >
  [post] y = Abs(t)
}"""

LOOP = """
looped (float[2] x, int64 trips) => (float[2] y) <bool yes = {1}, float[2] step = {1.0, 2.0}> {
  [go] y = Loop (trips, yes, x) <
    body = turn (int64 i, bool more, float[2] state) => (bool again, float[2] next) {
      [keep] again = Identity(more)
      [grow] sum = Add(state, step)
      [half] next = Mul(sum, step)
    }
  >
}"""

FUNCTION = """
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
called (float[2] x) => (float[2] y) {
  [pre] h = Relu(x)
  [call] k = local.Twice <factor = 2.0> (h)
  [post] y = Neg(k)
}
<domain: "local", opset_import: ["" : 18]>
Twice <factor: float = 1.0> (a) => (b) {
  [c] f = Constant <value_float: float = @factor> ()
  [m] t = Mul(a, f)
  [n] b = Identity(t)
}"""


def model(text: str, opset: int = 18, ir_version: int = 10) -> ir.Model:
    """Return a model of its text, in memory."""
    proto = (
        onnx.parser.parse_model(text)
        if text.lstrip().startswith("<")
        else build.text(text, opset, ir_version)
    )
    return load(proto)


def run(edited: ir.Model | onnx.ModelProto, **feeds: Any) -> dict[str, np.ndarray]:
    """Return the outputs of a sound model through ONNX Runtime, by name; arrays of float32 unless typed."""
    proto = edited if isinstance(edited, onnx.ModelProto) else proto_of(edited)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options)
    given = {name: v if isinstance(v, np.ndarray) else np.asarray(v, np.float32) for name, v in feeds.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def proto_of(edited: ir.Model) -> onnx.ModelProto:
    """Return a model as protobuf; it must be sound for graphdoc and for the checker of ONNX."""
    check(edited)
    proto = write_model(edited)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def frozen(edited: ir.Model) -> bytes:
    """Return all that a model is, to see that a refusal changed nothing."""
    return write_model(edited).SerializeToString(deterministic=True)


def ops(edited: ir.Model) -> list[str]:
    """Return the operators of the main graph, in order."""
    return [node.op_type for node in edited.graph]


X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)
"""An input for :data:`CHAIN`."""


def assert_refuses(verb: Callable[[ir.Model], object], kind: type[GraphdocError], words: str) -> None:
    """Assert that a verb refuses CHAIN with these words and a next step, and leaves the model as it was."""
    edited = model(CHAIN)
    before = frozen(edited)
    with pytest.raises(kind) as caught:
        verb(edited)
    assert words in str(caught.value)
    assert caught.value.next_step
    assert frozen(edited) == before
