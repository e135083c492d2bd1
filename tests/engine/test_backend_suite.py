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
from graphdoc.engine.ops.table import Call, find, operators
from tests.engine import suite
from tests.engine.stated import described, untrue

HERE = pathlib.Path(__file__).parent
LEDGER = tomllib.loads((HERE / "ledger.toml").read_text())
KINDS = ("rounding", "random", "missing")


@functools.cache
def cases() -> dict[str, Any]:
    return {case.name: case for case in suite.load()}


@functools.cache
def computed(name: str) -> list[tuple[str, Any, Any]]:
    """Return (output, expected, computed) of a case."""
    return list(suite.outputs(cases()[name]))


@functools.cache
def misses() -> dict[str, str]:
    """Return what is wrong with each case that does not pass."""
    found = {}
    for name, case in cases().items():
        try:
            outputs = computed(name)
            complaints = [c for each in outputs for c in suite.differences(*each, case.rtol, case.atol)]
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
        for (output, want, got), truth in zip(computed(name), truths, strict=True):
            assert got.dtype == want.dtype, (name, output)
            assert error(got, truth) <= 1.1 * error(want, truth), (name, output)


ROUNDING = {"float64": 1e-9, "float32": 1e-4, "float16": 0.02, "bfloat16": 0.06}
"""How far a result may lie from truth mode: a generous multiple of the dtype's last place."""


def truth_complaints(case: Any) -> Iterator[str]:
    truths = suite.outputs(case, truth=True)
    for (output, _, plain), (_, _, truth) in zip(computed(case.name), truths, strict=True):
        if not hasattr(plain, "dtype"):
            continue
        name = plain.dtype.name
        dtype = np.dtype(np.float64) if name in ROUNDING else plain.dtype
        if (truth.dtype, truth.shape) != (dtype, plain.shape):
            yield f"{case.name} {output}: {truth.dtype}{truth.shape} for {plain.dtype}{plain.shape}"
        elif name in ROUNDING:
            bound = ROUNDING[name]
            wide = plain.astype(np.float64)
            if not np.allclose(wide, truth, rtol=bound, atol=10 * bound, equal_nan=True):
                yield f"{case.name} {output}: values differ"


def test_truth_mode_tells_the_same_in_float64() -> None:
    """Every passing case runs in truth mode too: floats are float64, all else is as it was."""
    good = [case for name, case in cases().items() if name not in misses()]

    assert [text for case in good for text in truth_complaints(case)] == []


def test_random_misses_have_the_right_type() -> None:
    """Of random results dtype, shape and range are right."""
    for name in LEDGER["random"]["cases"]:
        for output, want, got in computed(name):
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


def infer_complaints(case: Any) -> Iterator[str]:
    found = single_node(case)
    if found is None:
        return
    row, attributes = found
    listed = list(case.model.graph.node[0].input)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    feeds = weights | suite.feeds(case, case.data[0][0])
    inputs = [feeds.get(name) for name in listed]
    values = [value for _, _, value in computed(case.name)]
    call = Call(version=row.since, outputs=len(case.model.graph.node[0].output))
    outputs = case.model.graph.node[0].output
    names = [name for name in outputs if name]
    for known in ("content", "shape", "symbols"):
        stated = row.infer(call, *(described(x, known) for x in inputs), **attributes)
        types = stated if isinstance(stated, tuple) else (stated,)
        kept = [t for t, name in zip(types, outputs, strict=False) if name]
        for output, kind, value in zip(names, kept, values, strict=False):
            if complaint := untrue(kind, value):
                yield f"{case.name} {output} from {known}: {complaint}"


def test_infer_states_nothing_untrue() -> None:
    """What infer says of dtype, shape and content holds in every one-node case that passes."""
    good = [case for name, case in cases().items() if name not in misses()]

    complaints = [text for case in good for text in infer_complaints(case)]

    assert sum(single_node(case) is not None for case in good) > 700
    assert complaints == []


WITHOUT_ROW = {"ImageDecoder", "Gradient", "FlexAttention"}
"""The first two are left out (see the ledger); the last runs by its function body."""


def test_every_version_of_every_operator_has_a_row() -> None:
    """The table knows each version that onnx describes, so that none runs by the meaning of another."""
    known = {(row.domain, row.name, row.since) for row in operators()}
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated]

    absent = {
        (s.domain, s.name, s.since_version)
        for s in schemas
        if (s.domain, s.name, s.since_version) not in known and s.name not in WITHOUT_ROW
    }

    assert len(schemas) > 400
    if onnx.__version__.startswith(LEDGER["onnx"]):
        assert absent == set()


def test_missing_operators_are_refused() -> None:
    """A case listed as missing is refused as unsupported, before anything runs."""
    for name in LEDGER["missing"]["cases"]:
        if name in cases():
            with pytest.raises(UnsupportedOperatorError, match="no implementation of"):
                suite.run(cases()[name])
