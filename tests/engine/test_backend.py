"""The onnx.backend interface."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from graphdoc.engine import backend
from graphdoc.engine.errors import UnsupportedOperatorError, UsageError

MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] a, float[2] b) => (float[2] sum, float[2] difference) {
        sum = Add(a, b)
        difference = Sub(a, b)
    }"""
)
A, B = np.asarray([1, 2], np.float32), np.asarray([4, 8], np.float32)


@pytest.mark.parametrize("inputs", [[A, B], (A, B), {"b": B, "a": A}])
@pytest.mark.parametrize("model", [MODEL, ir.from_proto(MODEL)])
def test_run(model: object, inputs: object) -> None:
    """Inputs come in order or by name, outputs in order."""
    total, difference = backend.prepare(model, "CPU:0").run(inputs)

    assert total.tolist() == [5, 10]
    assert difference.tolist() == [-3, -6]
    assert backend.run_model(model, inputs)[0].tolist() == [5, 10]


def test_one_array_for_one_input() -> None:
    node = helper.make_node("Neg", ["x"], ["y"])

    assert backend.GraphdocBackend.run_model(_single(node), A)[0].tolist() == [-1, -2]


def _single(node: onnx.NodeProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    return helper.make_model(helper.make_graph([node], "one", [x], [y]))


def test_refusals() -> None:
    """Another device, another level, an unknown operator."""
    assert backend.supports_device("CPU")
    assert backend.supports_device("CUDA:0")
    assert not backend.supports_device("TPU")
    with pytest.raises(UsageError, match="not on 'TPU'"):
        backend.prepare(MODEL, "TPU")
    with pytest.raises(UsageError, match="not 3 on"):
        backend.prepare(MODEL, level=3)
    with pytest.raises(UnsupportedOperatorError, match="odd::Foo"):
        backend.prepare(_single(helper.make_node("Foo", ["x"], ["y"], domain="odd")))


def test_a_card_runs_what_the_cpu_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``CUDA`` computes on the array namespace of the card; without one it says so."""
    from graphdoc.engine import device
    from tests.engine.fake_cupy import NAMESPACE

    monkeypatch.setitem(device.NAMESPACES, "cuda", lambda: NAMESPACE)

    on_card = backend.prepare(MODEL, "CUDA").run([A, B])
    on_cpu = backend.prepare(MODEL, "CPU").run([A, B])

    assert all(isinstance(value, np.ndarray) for value in on_card)
    for got, want in zip(on_card, on_cpu, strict=True):
        np.testing.assert_array_equal(got, want)
