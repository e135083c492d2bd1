"""Level 0 against every official case of the installed onnx; misses are held in ledger.toml."""

import functools
import pathlib
import tomllib
from typing import Any

import numpy as np
import onnx
import pytest

from graphdoc.engine.errors import UnsupportedOperatorError
from tests.engine import suite

HERE = pathlib.Path(__file__).parent
LEDGER = tomllib.loads((HERE / "ledger.toml").read_text())
KINDS = ("rounding", "random", "missing")


@functools.cache
def cases() -> dict[str, Any]:
    return {case.name: case for case in suite.load()}


@functools.cache
def misses() -> dict[str, str]:
    """Return what is wrong with each case that does not pass."""
    found = {}
    for name, case in cases().items():
        try:
            complaints = suite.run(case)
        except Exception as error:
            complaints = [f"{type(error).__name__}: {error}"]
        if complaints:
            found[name] = complaints[0]
    return found


def listed() -> list[tuple[str, str]]:
    return [(kind, name) for kind in KINDS for name in LEDGER[kind]["cases"]]


def test_every_miss_is_in_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    """More than 2000 cases run; each one that fails is known, with its reason."""
    known = {name for _, name in listed()}

    unknown = {name: text for name, text in misses().items() if name not in known}

    with capsys.disabled():
        print(f"\n{len(cases()) - len(misses())} of {len(cases())} official cases pass")
    assert len(cases()) > 1500
    assert unknown == {}


def test_the_ledger_lists_misses_only() -> None:
    """A case that passes has no place in the ledger, nor has one that is listed twice or unknown."""
    names = [name for _, name in listed()]

    assert len(set(names)) == len(names)
    assert [name for name in names if name in cases() and name not in misses()] == []
    if onnx.__version__.startswith(LEDGER["onnx"]):
        assert [name for name in names if name not in cases()] == []


def test_the_ledger_gives_reasons() -> None:
    """Every kind has a reason, and there is no kind that no test checks."""
    assert all(len(LEDGER[kind]["reason"]) > 40 for kind in KINDS)
    assert set(LEDGER) == {"onnx", *KINDS}


def error(value: Any, truth: Any) -> float:
    return float(np.sqrt(np.mean((value.astype(np.float64) - truth.astype(np.float64)) ** 2)))


def test_rounding_misses_lie_as_near_to_float64() -> None:
    """Where half precision differs from the expected values, ours are as close to the float64 result."""
    for name in LEDGER["rounding"]["cases"]:
        if name not in cases():
            continue
        truths = [value for _, _, value in suite.outputs(cases()[name], truth=True)]
        for (output, want, got), truth in zip(suite.outputs(cases()[name]), truths, strict=True):
            assert got.dtype == want.dtype, (name, output)
            assert error(got, truth) <= 1.1 * error(want, truth), (name, output)


def test_random_misses_have_the_right_type() -> None:
    """Of random results dtype, shape and range are right."""
    for name in LEDGER["random"]["cases"]:
        for output, want, got in suite.outputs(cases()[name]):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (name, output)
            assert set(np.unique(got)) <= {0, 1}, (name, output)


def test_missing_operators_are_refused() -> None:
    """A case listed as missing is refused as unsupported, before anything runs."""
    for name in LEDGER["missing"]["cases"]:
        if name in cases():
            with pytest.raises(UnsupportedOperatorError, match="no implementation of"):
                suite.run(cases()[name])
