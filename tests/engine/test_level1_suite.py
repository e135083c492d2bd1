"""Level 1 against every official case, on the NumPy device: what level 0 passes, level 1 passes too."""

import functools
import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.protocol import Device
from graphdoc.engine.fuse import fuse
from graphdoc.engine.level1 import Compiled
from tests.engine import suite
from tests.engine.lowered import fixed

LEDGER = tomllib.loads((pathlib.Path(__file__).parent / "ledger.toml").read_text())
KNOWN = frozenset(name for kind in ("rounding", "random", "unstable") for name in LEDGER[kind]["cases"])
PARTS = 4
SHARE = 10
"""One case of so many runs as machine code too: each takes kernels of its own."""


@functools.cache
def cases() -> list[suite.Case]:
    return suite.load()


def small_integers(case: suite.Case) -> list[str]:
    """Return the inputs after the first that hold a few integers: shapes, axes, sizes, places."""
    inputs = case.data[0][0]
    weights = {tensor.name for tensor in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in weights]
    pairs = list(zip(names, inputs, strict=False))[1:]
    return [n for n, x in pairs if isinstance(x, np.ndarray) and x.size <= 64 and x.dtype.kind in "iub"]


def variants(case: suite.Case) -> Iterator[tuple[onnx.ModelProto, list[str]]]:
    """Yield the model as it is and, where it has some, with small integers as constants.

    Constant ones let a node join a program where it would run on level 0 otherwise.
    """
    yield case.model, []
    names = small_integers(case)
    if names and len(case.data) == 1:
        yield fixed(case.model, suite.feeds(case, case.data[0][0]), names), names


def complaints(case: suite.Case, device: Device | None = None) -> Iterator[str]:
    for model, constant in variants(case):
        compiled = Compiled(ir.serde.deserialize_model(model), device=device, passes=(fuse,))
        for inputs, expected in case.data:
            fed = {n: x for n, x in suite.feeds(case, inputs).items() if n not in constant}
            results = compiled.run(fed)
            for output, want in zip(case.model.graph.output, expected, strict=False):
                got = results[output.name]
                yield from suite.differences(output.name, suite.text(want), got, case.rtol, case.atol)


def miss(case: suite.Case, device: Device | None = None) -> str:
    """Return what is wrong with a case, "" when it passes."""
    try:
        return next(complaints(case, device), "")
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("part", range(PARTS))
def test_level_1_passes_what_level_0_passes(part: int) -> None:
    """More than 2000 cases, fused, each with its shapes as inputs and as constants."""
    found: dict[str, Any] = {c.name: miss(c) for c in cases()[part::PARTS] if c.name not in KNOWN}

    assert len(found) > 1500 / PARTS
    assert {name: text for name, text in found.items() if text} == {}


def test_machine_code_passes_a_share_of_the_cases() -> None:
    device = CpuDevice(2)

    found = {c.name: miss(c, device) for c in cases()[::SHARE] if c.name not in KNOWN}

    assert {name: text for name, text in found.items() if text} == {}
