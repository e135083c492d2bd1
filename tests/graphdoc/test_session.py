"""Session: level 0 and level 1 of the same model, what is refused, and what can be tapped."""

from typing import Any

import numpy as np
import onnx
import pytest

import graphdoc
from graphdoc.engine.errors import InputError, UsageError

MODEL = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
    same = Identity (x)
    p = MatMul (same, w)
    y = Relu (p)
}
""")
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("options", [{}, {"simplify": False}, {"threads": 1}, {"threads": 2}], ids=str)
def test_level_1_gives_what_level_0_gives(options: dict[str, Any]) -> None:
    want = graphdoc.Session(MODEL).run({"x": X})

    session = graphdoc.Session(MODEL, level=1, **options)

    for rows in (2, 1, 2):
        np.testing.assert_allclose(session.run({"x": X[:rows]})["y"], want["y"][:rows], rtol=1e-6)


def test_level_1_taps_what_the_simplified_model_has() -> None:
    """Without simplification, every value of the file."""
    simple, plain = (graphdoc.Session(MODEL, level=1, simplify=flag) for flag in (True, False))

    assert plain.taps == ["same", "p", "y"]
    assert "same" not in simple.taps
    np.testing.assert_array_equal(plain.run({"x": X}, ["same"])["same"], X)
    np.testing.assert_allclose(simple.run({"x": X}, ["p"])["p"], X @ _weights(), rtol=1e-6)


def _weights() -> Any:
    return onnx.numpy_helper.to_array(MODEL.graph.initializer[0])


@pytest.mark.parametrize(
    "options",
    [{"level": 2}, {"device": "tpu"}, {"level": 1, "truth": True}, {"level": 1, "device": "cuda"}],
    ids=str,
)
def test_refusals(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="this version runs level 0 on cpu and cuda and level 1 on cpu, not"):
        graphdoc.Session(MODEL, **options)


def test_inputs_are_checked_on_level_1() -> None:
    with pytest.raises(InputError, match="'x'"):
        graphdoc.Session(MODEL, level=1).run({"x": X.astype(np.float64)})
