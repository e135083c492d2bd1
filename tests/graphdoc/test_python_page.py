"""docs/python.md: its blocks run, and every public name stands there; edit_model and reduce_model besides."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import graphdoc
from graphdoc.compare.reduce import DoesNotFailError
from graphdoc.engine.errors import ModelError, UsageError
from tests import documents, sources
from tests.surgeon import build
from tests.test_documents import graphdoc as command

PAGE = sources.ROOT / "docs" / "python.md"


def classifier(scale: float = 1.0) -> onnx.ModelProto:
    """Return the model of the page; scale: what is wrong with its weights."""
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    weights[0, 0] = -1
    names = [("MatMul", "x w", "a", "product"), ("Add", "a b", "c", "sum"), ("Relu", "c", "d", "relu")]
    nodes = [helper.make_node(op, ins.split(), [out], name=name) for op, ins, out, name in names]
    return build.model(
        [*nodes, helper.make_node("Identity", ["d"], ["y"], name="copy")],
        inputs=[build.value("x", ["N", 4])],
        outputs=[build.value("y", ["N", 3])],
        weights=[build.weight("w", weights * np.float32(scale)), build.weight("b", [0.1, 0.2, 0.3])],
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A working directory with the models that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "m.onnx")
    onnx.save(classifier(1.5), "wrong.onnx")
    yield tmp_path
    os.chdir(sources.ROOT)


def test_the_page_runs(folder: pathlib.Path) -> None:
    """All of its blocks, in order."""
    assert documents.run_document(PAGE, command) == 5


def test_every_public_name_is_on_the_page() -> None:
    """What can be imported is explained."""
    text = PAGE.read_text("utf-8")

    assert [
        n for n in graphdoc.__all__ if n not in ("__version__", "ComparisonResult") and f"`{n}`" not in text
    ] == []


def test_edits_of_a_model_in_memory() -> None:
    """In order, on a copy; the report says what the command would print."""
    model = graphdoc.load(classifier())
    done = graphdoc.edit_model(
        model, [("rename", "y=z"), ("rename", "z=out"), ("bypass", "copy")], verify=False
    )

    assert [v.name for v in model.graph.outputs] == ["y"]
    assert [v.name for v in done.model.graph.outputs] == ["out"]
    assert [step[0] for step in done.report.steps] == ["rename", "rename", "bypass"]
    assert done.report.checked == ""


def test_edits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that must not change the outputs and does makes the result falsy, and says so."""
    from graphdoc import editing

    def damage(session: editing.Session, text: str) -> list[str]:
        tensor = session.model.graph.initializers["b"].const_value
        session.model.graph.initializers["b"].const_value = type(tensor)(tensor.numpy() + 1, name="b")
        return ["damaged"]

    monkeypatch.setitem(editing.VERBS, "sort", editing.Verb(damage, same=True))  # type: ignore[arg-type]
    done = graphdoc.edit_model(_plain(), [("sort", "")])

    assert not done
    assert "differs" in done.report.wrong


def _plain() -> Any:
    """Return the model with weights that can be replaced."""
    import onnx_ir as ir

    model = graphdoc.load(classifier())
    bias = model.graph.initializers["b"]
    bias.const_value = ir.Tensor(np.array([0.1, 0.2, 0.3], np.float32), name="b")
    return model


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([("renam", "x=y")], "did you mean 'rename'"),
        ([], "no edits are given"),
        ([("rename", "gone=z")], "no value is named 'gone'"),
    ],
)
def test_edits_that_cannot_be_done(edits: list[tuple[str, str]], said: str) -> None:
    """The next step names what is near."""
    with pytest.raises(UsageError) as caught:
        graphdoc.edit_model(classifier(), edits)

    assert said in str(caught.value)


def test_rules_are_applied_with_a_check() -> None:
    """As by the command; a model that cannot be read is an error."""
    done = graphdoc.rewrite_model(classifier(), "identity")

    assert done
    assert done.report.verification is not None
    assert [node.op_type for node in done.model.graph] == ["MatMul", "Add", "Relu"]
    with pytest.raises(ModelError):
        graphdoc.rewrite_model(b"no model", "identity")


def test_the_smallest_part_that_differs_from_another_model() -> None:
    """With its inputs, which make it fail."""
    found = graphdoc.reduce_model(classifier(1.5), classifier())

    assert [node.op_type for node in found.cut.model.graph.node] == ["MatMul"]
    assert (found.ref, found.test) == ("g on ort", "ort")


def test_the_smallest_part_that_makes_infinities() -> None:
    """By name of the way to fail; another name is refused."""
    proto = build.model(
        [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Reciprocal", ["z"], ["y"], name="r")]
    )
    found = graphdoc.reduce_model(proto, fails="nan")

    assert [node.op_type for node in found.cut.model.graph.node] == ["Reciprocal"]
    with pytest.raises(UsageError, match="no way to fail"):
        graphdoc.reduce_model(proto, fails="slow")  # type: ignore[arg-type]
    with pytest.raises(DoesNotFailError):
        graphdoc.reduce_model(build.relu(), "engine", runner="engine")
