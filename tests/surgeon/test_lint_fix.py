"""Mends: the fault is gone, nothing new is found, and the outputs are the same to the bit."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from graphdoc.surgeon.lint import rules
from graphdoc.surgeon.lint_mend import fix_model
from graphdoc.surgeon.model import load
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build
from tests.surgeon.lint_models import FAULTY, SOUND, node

MENDED = {row.name for row in rules() if row.fix is not None}
NEEDS_A_PERSON = {"initializer-name", "type-contradicts"}
"""Rules whose faulty model in lint_models.py is of the kind that no mend may settle."""

UNNAMED = {"negative-dim": {"unnamed-dim"}}
"""What a mend leaves open is a remark of its own."""


@pytest.mark.parametrize("name", sorted(MENDED - NEEDS_A_PERSON))
def test_the_fault_is_gone(name: str) -> None:
    """After the mend the rule is silent, the work is told, and no other rule speaks up."""
    found = fix_model(FAULTY[name]())
    before, after = ({f.rule for f in report.findings} for report in (found.before, found.after))

    assert name in before
    assert name not in after
    assert after - before <= UNNAMED.get(name, set())
    assert name in {mended.rule for mended in found.mended}


@pytest.mark.parametrize("name", sorted(set(FAULTY) - MENDED - {"external-data", "stripped-weight"}))
def test_what_takes_a_person_stays(name: str) -> None:
    """Rules without a mend find the same afterwards."""
    found = fix_model(FAULTY[name]())

    assert name in {finding.rule for finding in found.left}


@pytest.mark.parametrize("name", sorted(SOUND))
def test_sound_models_are_left_alone(name: str) -> None:
    """What a rule lets pass is not touched by its mend."""
    found = fix_model(SOUND[name]())

    assert name not in {mended.rule for mended in found.mended}


def outputs(proto: onnx.ModelProto) -> list[np.ndarray] | None:
    """Return what ONNX Runtime computes on seeded numbers; None: it refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
        rng = np.random.default_rng(5)
        feeds = {}
        for i in session.get_inputs():
            shape = [d if isinstance(d, int) and d > 0 else 2 for d in i.shape]
            feeds[i.name] = (rng.standard_normal(shape) * 3).astype(kinds.get(i.type, np.float32))
        return session.run(None, feeds)
    except Exception:
        return None


@pytest.mark.parametrize("name", sorted(MENDED))
def test_outputs_are_equal_to_the_bit(name: str) -> None:
    """Where ONNX Runtime takes the faulty model, the mended one computes the same."""
    faulty = FAULTY[name]()
    before, after = outputs(faulty), outputs(fix_model(faulty).proto)

    assert after is not None or before is None
    if before is not None:
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))


def test_enough_rules_can_be_mended() -> None:
    """The table says which."""
    assert len(MENDED) >= 16
    assert {"unused-node", "unsorted-nodes", "duplicate-weights", "no-ir-version"} <= MENDED
    assert not {"lossy-cast", "shadowed-name", "unused-input", "nan-weight"} & MENDED


def test_dead_branches_go_from_the_inside_out() -> None:
    """What only a dead node of a subgraph reads goes too, and its weight with it."""
    inner = helper.make_graph(
        [node("Add", "x dead", "unused"), node("Abs", "x", "p")], "then", [], [build.value("p")]
    )
    other = helper.make_graph([node("Neg", "x", "q")], "else", [], [build.value("q")])
    proto = build.model(
        [
            node("Mul", "x w", "dead", name="dead"),
            node("If", "c", "y", name="if", then_branch=inner, else_branch=other),
        ],
        inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)],
        weights=[build.weight("w", [1, 2])],
    )
    found = fix_model(proto)

    assert [item.op_type for item in found.proto.graph.node] == ["If"]
    assert len(found.proto.graph.initializer) == 0


def test_versions_that_contradict_are_left() -> None:
    """Which of two opsets holds is not for a tool to say."""
    proto = build.relu()
    proto.opset_import.append(helper.make_opsetid("", 17))
    found = fix_model(proto)

    assert "opset-twice" in {finding.rule for finding in found.left}
    assert len(found.proto.opset_import) == 2


def test_attributes_that_contradict_are_left() -> None:
    """Of two different values neither is dropped."""
    proto = build.model([node("LeakyRelu", "x", "y", alpha=0.1, name="l")])
    proto.graph.node[0].attribute.append(helper.make_attribute("alpha", 0.2))
    found = fix_model(proto)

    assert [a.f for a in found.proto.graph.node[0].attribute] == pytest.approx([0.1, 0.2])


def test_a_weight_that_callers_may_feed_stays() -> None:
    """An unused initializer that is an input too belongs to the interface."""
    proto = build.relu()
    proto.graph.input.append(build.value("w"))
    proto.graph.initializer.append(build.weight("w", [1, 2]))
    found = fix_model(proto)

    assert [tensor.name for tensor in found.proto.graph.initializer] == ["w"]


def test_the_model_given_is_not_changed() -> None:
    """Mends work on a copy."""
    proto = FAULTY["unused-node"]()
    before = proto.SerializeToString()
    found = fix_model(proto)

    assert proto.SerializeToString() == before
    assert write_model(found.model).SerializeToString() != before
    assert load(found.proto).graph.num_nodes() < len(proto.graph.node)
