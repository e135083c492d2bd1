"""Support vector machines of ai.onnx.ml on level 1: beside level 0, as machine code, beside ONNX Runtime."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.parts import Segment
from tests.engine import single
from tests.engine.lowered import assert_same, check, noise

ML = "ai.onnx.ml"
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
UNITS = 64
"""A kernel's exponent or power stretches the rounding of a sum of products."""


def floats(count: int, seed: int) -> list[float]:
    """Return seeded float32 numbers as an attribute holds them."""
    return [float(v) for v in noise(count, seed=seed)]


def machine(classes: int, *, strings: bool = False, prob: bool = False, **more: Any) -> dict[str, Any]:
    """Return the attributes of a classifier of four features."""
    counts = [3, 2, 4][:classes]
    pairs, total = classes * (classes - 1) // 2, sum(counts)
    found: dict[str, Any] = {
        "coefficients": floats((classes - 1) * total, 1),
        "support_vectors": floats(4 * total, 2),
        "vectors_per_class": counts,
        "rho": [0.1, -0.2, 0.3][:pairs],
        "kernel_params": [0.3, 0.5, 2.0],
        "classlabels_strings" if strings else "classlabels_ints": ["a", "b", "c"][:classes]
        if strings
        else [3, 5, 9][:classes],
        **more,
    }
    if prob:
        found |= {"prob_a": [-1.0, -2.0, -0.5][:pairs], "prob_b": [0.1, 0.2, -0.1][:pairs]}
    return found


def native(op: str, x: Any, **options: Any) -> None:
    """Run a node as machine code, all of it; hold it against level 0 and ONNX Runtime."""
    proto, feeds = single.model(op, x, domain=ML, opset=3, **options)
    model = ir.from_proto(proto)
    want = Interpreter(model).run(feeds)
    compiled = Compiled(model, device=CpuDevice(2), passes=(fuse,))
    found = compiled.run(feeds)
    for part in compiled.stages()[0].parts:
        assert not isinstance(part, Segment) or None not in part.executable.kernels
    theirs = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for (name, value), other in zip(want.items(), theirs, strict=True):
        assert_same(found[name], value, UNITS)
        if value.dtype == object:
            assert found[name].tolist() == other.tolist()
        else:  # their probabilities end where a sweep changes less than 0.005 / classes
            np.testing.assert_allclose(found[name], other, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("prob", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers(kernel: str, prob: bool, classes: int) -> None:
    """Votes, margins, probabilities, with every post transform that steps can say."""
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        options = machine(classes, prob=prob, kernel_type=kernel, post_transform=transform)
        check("SVMClassifier", noise(5, 4), domain=ML, opset=3, outputs=2, units=UNITS, **options)
    native("SVMClassifier", noise(19, 4), outputs=2, **options)
    native("SVMClassifier", noise(1, 4), outputs=2, **options)


def test_labels_that_are_strings() -> None:
    """The program gives places, the host takes the strings there."""
    native("SVMClassifier", noise(7, 4), outputs=2, **machine(3, strings=True, kernel_type="RBF"))


def test_ties_and_numbers_that_are_none() -> None:
    """A row of NaN wins no pair and loses all; of equal votes the first class counts."""
    x = noise(4, 4)
    x[1, 2] = np.nan
    x[2] = np.inf
    for kernel in KERNELS:
        options = machine(3, kernel_type=kernel)
        check("SVMClassifier", x, domain=ML, opset=3, outputs=2, units=UNITS, **options)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressors(kernel: str, one_class: int) -> None:
    """With support vectors and without; one class: a sign."""
    options = {
        "coefficients": [0.5, -1.0, 2.0],
        "support_vectors": floats(12, 2),
        "n_supports": 3,
        "rho": [0.25],
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 2.0],
        "one_class": one_class,
    }
    check("SVMRegressor", noise(6, 4), domain=ML, opset=3, units=UNITS, **options)
    native("SVMRegressor", noise(6, 4), **options)
    linear = {"coefficients": floats(4, 3), "rho": [0.5], "one_class": one_class}
    check("SVMRegressor", noise(6, 4), domain=ML, opset=3, **linear)


def test_what_level_0_keeps() -> None:
    """Machines without support vectors, and transforms that steps do not say."""
    linear = {"coefficients": floats(12, 1), "rho": [0.1], "classlabels_ints": [0, 1, 2]}
    check("SVMClassifier", noise(5, 4), domain=ML, opset=3, outputs=2, host=True, **linear)
    odd = machine(3, kernel_type="RBF", post_transform="SOFTMAX_ZERO")
    check("SVMClassifier", noise(5, 4), domain=ML, opset=3, outputs=2, host=True, **odd)
