"""Level 0 against every official case of the installed onnx; misses are held in ledger.toml."""

import functools
import pathlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from graphdoc.engine import body
from graphdoc.engine.attributes import decode
from graphdoc.engine.functions import FUNCTION_BODY, REFERENCE
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.table import Call, canonical_domain, find, operators
from tests.engine import single, suite
from tests.engine.stated import described, untrue

HERE = pathlib.Path(__file__).parent
LEDGER = tomllib.loads((HERE / "ledger.toml").read_text())
KINDS = ("rounding", "random", "unstable")


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
    if onnx.__version__.startswith(LEDGER["onnx"]):
        assert len(cases()) == 2033


def test_hardly_any_case_is_served_by_onnx_reference(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 3 % of the cases hold an operator that only ONNX's reference implementation serves."""
    served = [
        name for name, case in cases().items() if REFERENCE in Interpreter(model_of(case)).served_by.values()
    ]

    with capsys.disabled():
        print(f"\n{len(served)} of {len(cases())} official cases are served by onnx.reference")
    assert len(served) <= 0.03 * len(cases())


def model_of(case: Any) -> ir.Model:
    return ir.serde.deserialize_model(case.model)


def test_the_ledger_lists_misses_only() -> None:
    """A case that passes has no place in the ledger, nor has one that is listed twice or unknown."""
    names = [name for _, name in listed()]
    sure = [name for kind, name in listed() if kind != "unstable"]

    assert len(set(names)) == len(names)
    assert [name for name in sure if name in cases() and name not in misses()] == []
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


def test_unstable_misses_pass_in_float64() -> None:
    """In truth mode the expected values come out."""
    for name in LEDGER["unstable"]["cases"]:
        case = cases()[name]
        for output, want, got in suite.outputs(case, truth=True):
            wide = np.asarray(want, np.float64)
            assert suite.differences(output, wide, got, case.rtol, case.atol) == []


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


# ---- function bodies -----------------------------------------------------------------------------------


def with_body() -> set[tuple[str, str]]:
    """Return the operators for which ONNX gives a function body."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return {(s.domain, s.name) for s in schemas if s.has_function or s.has_context_dependent_function}


def operator_of(case: Any) -> tuple[str, str] | None:
    """Return the operator of a case of one node."""
    nodes = case.model.graph.node
    return (canonical_domain(nodes[0].domain), nodes[0].op_type) if len(nodes) == 1 else None


PER_OPERATOR = 3


def cases_by_body() -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield cases of one node whose operator has a body, a few per operator."""
    seen: Counter[tuple[str, str]] = Counter()
    bodies = with_body()
    for case in cases().values():
        operator = operator_of(case)
        if operator in bodies and operator is not None and seen[operator] < PER_OPERATOR:
            seen[operator] += 1
            yield operator, case


OTHER_OPSET = {("", "Relu"), ("", "Shrink")}
"""Their bodies are written for a later opset than the one of their cases."""


def test_every_function_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its row an operator runs by the body of its schema, and gives what the case expects."""
    served = set()
    for operator, case in cases_by_body():
        monkeypatch.setattr(body, "find", functools.partial(_find_all_but, operator))
        if Interpreter(model_of(case)).served_by.get(operator) == FUNCTION_BODY:
            served.add(operator)
            if operator != ("", "Bernoulli"):
                assert suite.run(case) == [], case.name

    assert len(served) > 40
    if onnx.__version__.startswith(LEDGER["onnx"]):
        assert with_body() - served == OTHER_OPSET


def _find_all_but(operator: tuple[str, str], domain: str, name: str, version: int) -> Any:
    return None if (domain, name) == operator else find(domain, name, version)


@pytest.mark.parametrize("name", ["Relu", "Shrink"])
def test_bodies_of_a_later_opset_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two operators whose cases are too old for their body."""
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    proto, feeds = single.model(name, x, opset=18)
    want = single.engine(proto, feeds)

    monkeypatch.setattr(body, "find", functools.partial(_find_all_but, ("", name)))

    assert Interpreter(ir.from_proto(proto)).served_by == {("", name): FUNCTION_BODY}
    np.testing.assert_array_equal(single.engine(proto, feeds)[0], want[0])


# ---- infer ---------------------------------------------------------------------------------------------


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


WITHOUT_ROW = {"Gradient", "FlexAttention"}
"""The first becomes a function of the graph around it (engine/gradient.py), the last runs by its body."""


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
