"""Every rule fires on its faulty model and not on its sound one; severities, places and words."""

from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.lint import Finding, Severity, lint_model, rule, rules
from graphdoc.surgeon.lint_numerics import loses
from tests.surgeon import build
from tests.surgeon.lint_models import FAULTY, SOUND, batchnorm, casts, half, node, quantised


def found(proto: onnx.ModelProto, name: str) -> list[Finding]:
    """Return what one rule finds."""
    return [finding for finding in lint_model(proto).findings if finding.rule == name]


def test_every_rule_has_two_models() -> None:
    """No rule is without a case for it and one against it."""
    assert {row.name for row in rules()} == set(FAULTY) == set(SOUND)


@pytest.mark.parametrize("name", FAULTY)
def test_rule_fires(name: str) -> None:
    """The faulty model is found, with a place, in the rule's words."""
    hits = found(FAULTY[name](), name)

    assert hits
    assert all(hit.where and hit.what and hit.harm and hit.mend for hit in hits)


@pytest.mark.parametrize("name", SOUND)
def test_rule_does_not_fire(name: str) -> None:
    """The sound model, which differs in the fault alone, is let pass."""
    assert found(SOUND[name](), name) == []


@pytest.mark.parametrize("name", ["relu", "add"])
def test_plain_models_are_clean(name: str) -> None:
    """Small sound models have no finding at all."""
    report = lint_model(getattr(build, name)())

    assert report.findings == ()
    assert report
    assert report.rules == len(rules()) >= 25


REFUSED = {
    "no-ir-version",
    "unknown-attribute",
    "duplicate-attribute",
    "unsorted-nodes",
    "shadowed-name",
    "initializer-name",
    "untyped-input",
    "type-contradicts",
    "shape-contradicts",
    "unknown-operator",
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_structural_errors_are_refused_elsewhere(name: str) -> None:
    """What is called an error is one for onnx.checker (with strict inference) or for ONNX Runtime."""
    assert _refused(FAULTY[name]())
    assert not _refused(SOUND[name]())


def _refused(proto: onnx.ModelProto) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        onnx.checker.check_model(proto, full_check=True)
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:
        return True
    return False


@pytest.mark.parametrize("name", ["nan-weight", "batchnorm-variance", "quant-scale"])
def test_numeric_errors_give_nan_or_inf(name: str) -> None:
    """What is called an error makes ONNX Runtime compute NaN, Inf or zeros where the sound model does not."""

    def spoilt(proto: onnx.ModelProto) -> bool:
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        shape = [int(d) for d in session.get_inputs()[0].shape]
        y = session.run(None, {session.get_inputs()[0].name: np.ones(shape, np.float32)})[0]
        return not np.isfinite(y).all() or not y.any()

    assert spoilt(FAULTY[name]())
    assert not spoilt(SOUND[name]())


def test_errors_come_first_and_decide() -> None:
    """Errors stand before warnings and remarks; only they make a report false."""
    proto = build.add([1, np.nan])
    proto.graph.node[0].name = ""
    proto.graph.initializer.append(build.weight("unused", [1]))
    report = lint_model(proto)

    assert [finding.severity for finding in report.findings] == ["error", "warning", "remark"]
    assert not report
    assert [report.count(severity) for severity in Severity] == [1, 1, 1]


def test_different_versions_of_a_domain_are_an_error() -> None:
    """The default opset listed twice is a warning, with two versions an error."""
    proto = build.relu()
    proto.opset_import.add(domain="", version=17)

    assert [hit.severity for hit in found(proto, "opset-twice")] == [Severity.ERROR]
    assert [hit.severity for hit in found(FAULTY["opset-twice"](), "opset-twice")] == [Severity.WARNING]


def test_an_operator_of_onnx_runtime_is_a_warning() -> None:
    """Operators that ONNX Runtime alone adds to the default domain run there."""
    proto = build.model(
        [node("SimplifiedLayerNormalization", "x w", "y")], weights=[build.weight("w", [1, 1])]
    )

    hits = found(proto, "unknown-operator")
    assert [hit.severity for hit in hits] == [Severity.WARNING]
    assert "ONNX Runtime alone" in hits[0].what


def test_an_operator_that_came_later() -> None:
    """An operator of a newer opset is told from one that does not exist."""
    proto = build.model([node("Gelu", "x", "y")], opset=18)

    assert found(proto, "unknown-operator")[0].what == "Gelu is not in version 18 of ai.onnx"
    assert found(build.model([node("Gelu", "x", "y")], opset=20), "unknown-operator") == []


def test_faults_in_subgraphs_and_functions_are_found() -> None:
    """Rules look into branches and function bodies and tell the way there."""
    bad = node("Relu", "x", "b", alpha=1.0)
    body = helper.make_graph([bad, node("Abs", "x", "dead")], "b", [], [build.value("b")])
    choice = build.model(
        [node("If", "c", "y", then_branch=body, else_branch=body)],
        inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)],
    )
    inner = helper.make_function("own", "F", ["x"], ["b"], [bad], [helper.make_opsetid("", 18)])
    call = build.model([node("F", "x", "y", domain="own")], functions=[inner])
    call.opset_import.add(domain="own", version=1)

    assert {hit.where for hit in found(choice, "unknown-attribute")} == {
        "Relu y.then_branch/b",
        "Relu y.else_branch/b",
    }
    assert len(found(choice, "unused-node")) == 2
    assert [hit.where for hit in found(call, "unknown-attribute")] == ["Relu F/b"]


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (casts(TensorProto.INT32, TensorProto.INT64, TensorProto.INT64), ["int64 → int32 → int64"]),
        (casts(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT64), ["int64 → float32 → int64"]),
        (
            casts(TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.FLOAT16),
            ["float16 → bfloat16 → float32"],
        ),
        (casts(TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT), []),  # truncation is meant
        (casts(TensorProto.FLOAT16, TensorProto.FLOAT16), []),  # the target holds no more either
        (casts(TensorProto.INT64, TensorProto.INT32, TensorProto.INT32), []),
        (casts(TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT), []),  # x ≠ 0, not a loss of digits
    ],
)
def test_casts(proto: object, expected: list[str]) -> None:
    """Digits or range that are lost in the middle are found; truncation and tests for zero are meant."""
    assert callable(proto)
    assert [hit.what for hit in found(proto(), "lossy-cast")] == expected


def _exact(number: Any) -> float:
    """Return a number without rounding it: Python compares whole numbers and floats exactly."""
    return int(number) if number.dtype.kind in "iu" else float(number)


NUMBERS = ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("wide", NUMBERS)
@pytest.mark.parametrize("narrow", NUMBERS)
def test_loses_is_what_numpy_finds(wide: str, narrow: str) -> None:
    """A type loses another's values exactly if some of them do not come back from it."""
    import ml_dtypes

    types = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
    a, b = (types.get(name) or np.dtype(name) for name in (wide, narrow))
    limit = np.iinfo(a) if a.kind in "iu" else ml_dtypes.finfo(a)
    probes = [limit.min, limit.max, limit.max - 1] if a.kind in "iu" else [1 + limit.eps, limit.max, -1.5]
    values = np.array(probes, dtype=a)
    with np.errstate(all="ignore"):
        back = values.astype(b)
    same = [_exact(x) == _exact(y) for x, y in zip(values, back, strict=True)]

    assert loses(wide, narrow) == (not all(same) and wide != narrow)


@pytest.mark.parametrize(
    ("proto", "count"),
    [
        (batchnorm(0.0, epsilon=0.0), 1),
        (batchnorm(float("nan")), 0),  # nan-weight says so
        (quantised(float("nan")), 1),
        (quantised(-1.0), 1),
        (quantised(float("inf")), 1),
        (half(6.2e-5, 0), 0),
        (half(0, 0), 0),
    ],
)
def test_edges(proto: object, count: int) -> None:
    """Values at the edge of a rule."""
    assert callable(proto)
    names = ("batchnorm-variance", "quant-scale", "fp16-subnormal")
    hits = [hit for hit in lint_model(proto()).findings if hit.rule in names]

    assert len({hit.where for hit in hits}) >= count if count else hits == []


def test_what_cannot_be_read_is_an_error() -> None:
    """A model that is not sound is refused as by every other command."""
    with pytest.raises(ModelError, match="never produced"):
        lint_model(build.model([node("Relu", "nope", "y")]))


def test_a_rule_is_registered_once() -> None:
    """Two rules cannot share a name."""
    with pytest.raises(ValueError, match="registered twice"):
        rule("nan-weight", Severity.ERROR, harm="", mend="")(lambda subject: iter(()))
