"""Two models with other names: values are paired by structure, and faults are named as before."""

import copy
import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphdoc.api import compare_models
from graphdoc.compare.inputs import make_inputs
from graphdoc.compare.pairing import MARK, paired
from graphdoc.compare.reduce import Setting, reduce_mismatch
from graphdoc.compare.target import Target
from graphdoc.surgeon.model import open_source
from tests.compare import models, reduce_models


def target(proto: onnx.ModelProto) -> Target:
    return Target(open_source(proto))


def scrambled(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with other names for all that nodes compute, in subgraphs too; nodes lose theirs."""
    model = copy.deepcopy(proto)
    names = sorted(set(_made(model.graph)))
    random.Random(0).shuffle(names)  # noqa: S311 - any order will do
    _rename(model.graph, {name: f"v{i}" for i, name in enumerate(names)})
    return model


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in [a.g, *a.graphs] if g.node or g.output]


def _made(graph: onnx.GraphProto) -> list[str]:
    inner = [name for node in graph.node for g in _graphs(node) for name in _made(g)]
    return [name for node in graph.node for name in node.output if name] + inner


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        node.name = ""
        for row in (node.input, node.output):
            for place, name in enumerate(row):
                row[place] = names.get(name, name)
        for inner in _graphs(node):
            _rename(inner, names)
    for value in [*graph.output, *graph.value_info]:
        value.name = names.get(value.name, value.name)


def wiring(made: Target) -> list[list[str]]:
    """Return what each value is computed from, Constant nodes aside: they keep their names."""
    keys = {point.key for point in made.points}
    return [[name for name in point.inputs if name in keys] for point in made.points]


MODELS = [models.mlp, models.convolutions, models.recurrent, models.nested, models.scan, reduce_models.whole]


@pytest.mark.parametrize("build", MODELS)
def test_all_values_find_their_partners(build: Any) -> None:
    """Under A's names B is A again, inside If, Loop and Scan too."""
    original = target(build())

    found = paired(original, target(scrambled(build())))

    assert [p.key for p in found.test.points] == [p.key for p in original.points]
    assert wiring(found.test) == wiring(original)
    assert "by structure" in found.remark


@pytest.mark.parametrize("fault", ["bias shifted", "axis of a softmax", "minimum for maximum"])
def test_a_fault_is_named_although_no_name_is_the_same(fault: str) -> None:
    proto, guilty = reduce_models.broken(fault)
    right, wrong = reduce_models.whole(), scrambled(proto)

    found = compare_models(right, wrong, test_runner="ort", latency=False)

    assert not found
    assert found.first_divergence is not None
    assert found.first_divergence.node == guilty
    assert any("by structure" in remark for remark in found.remarks)


def test_reduce_pairs_by_structure_too() -> None:
    proto, _ = reduce_models.broken("bias shifted")
    reference = target(reduce_models.whole())
    setting = Setting(target(scrambled(proto)), "ort", "ort", lambda: make_inputs(reference.model), reference)

    assert reduce_mismatch(setting).nodes == ("Add 'ad4'",)


def test_equal_names_decide_however_the_graph_is_wired() -> None:
    """A wrong wiring between the same names must show as a fault, not as another pairing."""
    proto, _ = reduce_models.broken("operands swapped")
    wrong = target(proto)

    found = paired(target(reduce_models.whole()), wrong)

    assert found.test is wrong
    assert not found.remark


def test_a_name_that_means_something_else_in_b_is_marked() -> None:
    """Generic names such as those of exporters come back for other values after an export."""
    right, wrong = reduce_models.whole(), reduce_models.whole()
    names = _made(wrong.graph)
    _rename(wrong.graph, dict(zip(names, [*names[7:], *names[:7]], strict=True)))
    extra = wrong.graph.node.add(op_type="Neg", input=[wrong.graph.node[0].output[0]], output=["zz"])
    extra.output[0] = "tr0" if "tr0" not in _made(wrong.graph)[:-1] else "more"
    wrong.graph.output.add(name=extra.output[0])
    original = target(right)
    other = target(wrong)

    shared = {p.key for p in original.points} & {p.key for p in other.points}
    assert len(shared) > 200  # so the names decide, and the comparison shows how much differs
    assert paired(original, other).test is other

    few = scrambled(wrong)
    few.graph.node[-1].output[0] = "mm3"
    few.graph.output[-1].name = "mm3"
    found = paired(original, target(few))
    assert f"mm3{MARK}" in {p.key for p in found.test.points}
    assert len({p.key for p in found.test.points} & {p.key for p in original.points}) == 234


def test_models_that_have_nothing_in_common_are_left_alone() -> None:
    other = target(models.recurrent())

    assert paired(target(reduce_models.whole()), other).test is other


def test_another_weight_format_is_no_obstacle() -> None:
    """fp16 weights, cast at run time, and other names."""
    model = scrambled(reduce_models.whole())
    tensor = next(t for t in model.graph.initializer if t.name == "W3")
    half = numpy_helper.to_array(tensor).astype(np.float16)
    tensor.CopyFrom(numpy_helper.from_array(half, "W3h"))
    reader = next(n for n in model.graph.node if "W3" in n.input)
    place = list(model.graph.node).index(reader)
    reader.input[1] = "W3"
    model.graph.node.insert(place, onnx.helper.make_node("Cast", ["W3h"], ["W3"], to=1))

    found = compare_models(reduce_models.whole(), model, test_runner="ort", latency=False)

    assert found.first_divergence is not None
    assert found.first_divergence.node == "mm3_node"
