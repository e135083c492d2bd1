"""Level 0 on the fake CuPy: what a card would refuse is found without one.

The one-operator tests of this folder run there too (rows.py, single.py, domains.py).
"""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.device import cupy
from graphdoc.engine.device.placement import ON_HOST
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch
from tests.engine import suite
from tests.engine.fake_cupy import NAMESPACE, NotOnCardError, assert_same

PARTS = 8
"""Shares of the official cases, so that several processes can take them."""


@functools.cache
def cases() -> list[suite.Case]:
    return suite.load()


@pytest.mark.parametrize("part", range(PARTS))
def test_official_cases_give_the_same_results(part: int) -> None:
    """More than 2000 cases; where one fails on NumPy, it fails on the card."""
    compared = 0
    for case in cases()[part::PARTS]:
        try:
            results = list(suite.outputs(case))
        except RunnerError:
            continue  # held against the ledger elsewhere
        for (_, _, got), (_, _, want) in zip(suite.outputs(case, xp=NAMESPACE), results, strict=True):
            assert_same(got, want)
            compared += 1
    assert compared > 2000 / PARTS


def test_no_operator_needs_the_host() -> None:
    """Dtypes do; an operator that comes to this list says what CuPy lacks for it."""
    assert not ON_HOST


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


FLOAT8 = """<ir_version: 10, opset_import: ["" : 21]> g (float[3] x) => (float[3] y) {
    c = Cast <to = 17> (x)
    t = Transpose (c)
    d = Cast <to = 1> (t)
    y = Exp (d) }"""


def test_dtypes_that_a_card_lacks_stay_on_the_host_and_are_told() -> None:
    x = np.array([0.5, 1.03, -3], np.float32)
    card = Interpreter(model(FLOAT8), xp=NAMESPACE)

    found = card.run({"x": x}, ["c", "d"])

    assert_same(found["c"], x.astype(ml_dtypes.float8_e4m3fn))
    assert_same(found["y"], np.exp(x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)))
    assert set(card.served_by) == {("", "Cast"), ("", "Transpose")}
    assert all("a dtype that CuPy lacks" in by for by in card.served_by.values())


def test_given_values_and_noise_go_to_the_card() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[3] x) => (float[3] y) {
        h = Exp (x)
        y = Neg (h) }"""
    x = np.array([0.5, 1, -3], np.float32)
    card = Interpreter(model(text), xp=NAMESPACE)

    given = card.run({"x": x}, watch=Watch(taps=frozenset({"h"}), given={"h": x}))
    noisy = card.run({"x": x}, watch=Watch(noise={"h": 1e-3}))

    assert_same(given["h"], np.exp(x))
    assert_same(given["y"], -x)
    np.testing.assert_allclose(noisy["y"], -np.exp(x), rtol=1e-2)
    assert (noisy["y"] != -np.exp(x)).any()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: np.asarray(x),
        lambda x: x + np.ones(3, np.float32),
        lambda x: NAMESPACE.add(x, np.ones(3, np.float32)),
        lambda x: NAMESPACE.add(x, x, where=True),
        lambda x: NAMESPACE.maximum.reduce(x),
        lambda x: np.frompyfunc(abs, 1, 1)(x),
        lambda x: NAMESPACE.insert(x, 0, 1),
        lambda x: x.newbyteorder(),
        lambda x: x[np.array([0, 1])],
        lambda x: NAMESPACE.asarray(np.array(["a"], dtype=object)),
        lambda x: x.astype(ml_dtypes.float8_e5m2),
    ],
)
def test_the_fake_refuses_what_cupy_refuses(mistake: Any) -> None:
    """Otherwise agreement on it would mean nothing."""
    with pytest.raises((NotOnCardError, AttributeError)):
        mistake(NAMESPACE.ones(3, np.float32))


class _Runtime:
    def __init__(self, cards: int | Exception) -> None:
        self.cards = cards

    def getDeviceCount(self) -> int:  # noqa: N802 - CuPy's name
        if isinstance(self.cards, Exception):
            raise self.cards
        return self.cards


@pytest.mark.parametrize(
    ("cards", "message"),
    [(0, "finds no CUDA card"), (RuntimeError("cudaErrorInsufficientDriver"), "cudaErrorInsufficientDriver")],
)
def test_no_card_is_a_clear_refusal(monkeypatch: pytest.MonkeyPatch, cards: Any, message: str) -> None:
    fake = type("module", (), {"cuda": type("cuda", (), {"runtime": _Runtime(cards)})})
    monkeypatch.setattr(cupy, "import_module", lambda name: fake)

    with pytest.raises(RunnerError, match=message):
        cupy.namespace()


def test_missing_cupy_is_a_clear_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'cupy'", name=name)

    monkeypatch.setattr(cupy, "import_module", missing)

    with pytest.raises(RunnerError, match="CuPy is not installed") as refusal:
        cupy.namespace()
    assert "onnx-graphdoc[cuda12]" in str(refusal.value.next_step)
