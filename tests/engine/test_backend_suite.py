"""Level 0 against every official case of the installed onnx; misses are held in ledger.toml."""

import functools
import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from graphdoc.engine.attributes import decode
from graphdoc.engine.errors import UnsupportedOperatorError
from graphdoc.engine.ops.table import Call, TensorType, find
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


def single_node(case: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return the row and the attributes of a case whose model is one node without subgraphs."""
    graph = ir.from_proto(case.model).graph
    if len(graph) != 1:
        return None
    node = graph.node(0)
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        return None
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = {o.domain: o.version for o in case.model.opset_import}.get(domain, 1)
    row = find(domain, node.op_type, version)
    attributes = {name: decode(attribute) for name, attribute in node.attributes.items()}
    return None if row is None or row.infer is None else (row, attributes)


def described(value: Any, known: str) -> TensorType | None:
    """Return the type of an array with its content, its sizes, or symbols that tell the sizes."""
    if value is None:
        return None
    shape = tuple(f"n{size}" for size in value.shape) if known == "symbols" else value.shape
    return TensorType(value.dtype, shape, value if known == "content" else None)


def untrue(stated: TensorType, value: Any) -> str | None:
    """Return what a stated type gets wrong about a value."""
    if stated.dtype is not None and stated.dtype != value.dtype:
        return f"dtype {stated.dtype} for {value.dtype}"
    sizes = [int(dim[1:]) if isinstance(dim, str) else dim for dim in stated.shape or ()]
    agrees = len(sizes) == value.ndim and all(d in (None, n) for d, n in zip(sizes, value.shape, strict=True))
    if stated.shape is not None and not agrees:
        return f"shape {stated.shape} for {value.shape}"
    if stated.value is not None and not np.array_equal(stated.value, value):
        return "content"
    return None


def infer_complaints(case: Any) -> Iterator[str]:
    found = single_node(case)
    if found is None:
        return
    row, attributes = found
    listed = list(case.model.graph.node[0].input)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    feeds = weights | suite.feeds(case, case.data[0][0])
    inputs = [feeds.get(name) for name in listed]
    values = [value for _, _, value in suite.outputs(case)]
    if any(isinstance(value, list) or value is None for value in [*values, *feeds.values()]):
        return
    call = Call(version=row.since, outputs=len(case.model.graph.node[0].output))
    names = [name for name in case.model.graph.node[0].output if name]
    for known in ("content", "shape", "symbols"):
        stated = row.infer(call, *(described(x, known) for x in inputs), **attributes)
        types = stated if isinstance(stated, tuple) else (stated,)
        kept = [t for t, name in zip(types, case.model.graph.node[0].output, strict=False) if name]
        for output, kind, value in zip(names, kept, values, strict=False):
            if complaint := untrue(kind, value):
                yield f"{case.name} {output} from {known}: {complaint}"


def test_infer_states_nothing_untrue() -> None:
    """What infer says of dtype, shape and content holds in every one-node case that passes."""
    good = [case for name, case in cases().items() if name not in misses()]

    complaints = [text for case in good for text in infer_complaints(case)]

    assert sum(single_node(case) is not None for case in good) > 700
    assert complaints == []


def test_missing_operators_are_refused() -> None:
    """A case listed as missing is refused as unsupported, before anything runs."""
    for name in LEDGER["missing"]["cases"]:
        if name in cases():
            with pytest.raises(UnsupportedOperatorError, match="no implementation of"):
                suite.run(cases()[name])
