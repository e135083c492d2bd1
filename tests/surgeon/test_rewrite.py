"""Rules of one's own: what they may do, how they are loaded, and what happens when they fail."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon import PatternRule, Refusal, rewrite
from graphdoc.surgeon.verification import Verification, VerifiedRun
from graphdoc.surgeon.writer import write_model
from tests.surgeon import build
from tests.surgeon.rewriting_tools import apply, by_engine, feeds, graph, ops, reasons

XY = "float[2,3] x => float[2,3] y"


class ReluTwice(PatternRule):
    """relu(relu(x)) → relu(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Relu(op.Relu(x))

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.Relu(x)


class NegTwice(PatternRule):
    """−(−x) → x, a value that is there already."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Neg(op.Neg(x))

    def rewrite(self, op: Any, x: Any) -> Any:
        return x


def rule(
    pattern: Callable[..., Any], rewrite: Callable[..., Any], check: Callable[..., Any] | None = None
) -> PatternRule:
    """Return a rule made of functions."""
    members: dict[str, Any] = {"pattern": staticmethod(pattern), "rewrite": staticmethod(rewrite)}
    if check is not None:
        members["check"] = staticmethod(check)
    return type("ARule", (PatternRule,), members)()


def test_a_rule_applies_until_nothing_matches() -> None:
    """Five in a row become one; the report tells each edit."""
    model = graph(XY, "a = Relu (x) b = Relu (a) c = Relu (b) d = Relu (c) y = Relu (d)")

    result = apply(model, ReluTwice)

    assert ops(result.model) == ["Relu"]
    assert [edit.rule for edit in result.report.done if edit.group == "user"] == ["relu-twice"] * 4
    assert result.report.done[0].text == "2 Relu → Relu"
    assert write_model(result.model).graph.output[0].name == "y"


@pytest.mark.parametrize("nodes", ["a = Neg (x) y = Neg (a)", "a = Neg (x) b = Neg (a) y = Relu (b)"])
def test_a_value_that_exists_may_be_the_replacement(nodes: str) -> None:
    """Also for an output of the graph, which keeps its name."""
    model = graph(XY, nodes)

    result = apply(model, NegTwice)

    assert "Neg" not in ops(result.model)
    edited = write_model(result.model)
    assert edited.graph.output == model.graph.output
    inputs = feeds(model)
    np.testing.assert_array_equal(by_engine(edited, inputs), by_engine(model, inputs))


def test_the_given_model_is_not_changed() -> None:
    """The result is another model."""
    from graphdoc.surgeon.model import load

    model = load(graph(XY, "a = Relu (x) y = Relu (a)"))

    result = rewrite(model, ReluTwice)

    assert ops(model) == ["Relu", "Relu"]
    assert ops(result.model) == ["Relu"]


def test_subgraphs_and_functions_are_rewritten_too() -> None:
    """A body of If, and a function of the model's."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2] x, bool c) => (float[2] y) {
          a = If (c) <then_branch = t () => (float[2] p) { q = Relu (x) p = Relu (q) },
                      else_branch = e () => (float[2] r) { r = Neg (x) }>
          y = own.f (a)
        }
        <domain: "own", opset_import: ["" : 20]>
        f (a) => (b) { r = Relu (a) b = Relu (r) }
    """)

    result = apply(model, ReluTwice)

    edited = write_model(result.model)
    then = edited.graph.node[0].attribute[0].g
    assert [node.op_type for node in then.node] == ["Relu"]
    assert then.output[0].name == "p"
    assert [node.op_type for node in edited.functions[0].node] == ["Relu"]


def test_constants_take_the_dtype_that_belongs_there() -> None:
    """A number beside a float16 is a float16; a list of axes is int64; an array stays what it is."""
    made = rule(
        lambda op, x: op.Relu(x),
        lambda op, x: op.Unsqueeze(op.Squeeze(op.Mul(op.Add(x, 0.5), np.float16(2)), [0]), [0]),
    )
    model = graph("float16[1,3] x => float16[1,3] y", "y = Relu (x)")

    edited = write_model(apply(model, made).model)

    kinds = [numpy_helper.to_array(tensor).dtype.name for tensor in edited.graph.initializer]
    assert set(kinds) == {"float16", "int64"}


def test_attributes_take_the_type_of_the_specification() -> None:
    """An int where a float belongs becomes one; None is left out; what was captured goes along."""
    made = rule(
        lambda op, x: op.Softmax(x, axis=op.attr("axis")),
        lambda op, x, axis: op.LeakyRelu(op.LogSoftmax(x, axis=axis), alpha=2, _domain=""),
    )
    model = graph(XY, "y = Softmax <axis = 0> (x)")

    edited = write_model(apply(model, made).model)

    attributes = {a.name: a for node in edited.graph.node for a in node.attribute}
    assert attributes["alpha"].type == onnx.AttributeProto.FLOAT
    assert attributes["axis"].i == 0


def test_several_outputs_are_replaced_at_once() -> None:
    """Two products become one and a Split, in an order that runs."""

    class TwoProducts(PatternRule):
        def pattern(self, op: Any, x: Any, a: Any, b: Any) -> Any:
            return op.MatMul(x, a), op.MatMul(x, b)

        def rewrite(self, op: Any, x: Any, a: Any, b: Any) -> Any:
            both = op.MatMul(x, op.Concat(a, b, axis=-1))
            return op.Split(both, axis=-1, num_outputs=2, _outputs=2)

    model = graph(
        "float[2,3] x, float[3,4] p, float[3,4] w => float[2,4] y, float[2,4] z",
        "y = MatMul (x, p) q = Neg (w) z = MatMul (x, q)",
    )

    result = apply(model, TwoProducts)

    assert ops(result.model).count("MatMul") == 1
    inputs = feeds(model)
    for found, wanted in zip(
        by_engine(write_model(result.model), inputs), by_engine(model, inputs), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_outputs_that_depend_on_each_other_are_left() -> None:
    """One node for both would have to run before itself."""

    class TwoProducts(PatternRule):
        def pattern(self, op: Any, x: Any, a: Any, b: Any) -> Any:
            return op.MatMul(x, a), op.MatMul(x, b)

        def rewrite(self, op: Any, x: Any, a: Any, b: Any) -> Any:
            both = op.MatMul(x, op.Concat(a, b, axis=-1))
            return op.Split(both, axis=-1, num_outputs=2, _outputs=2)

    model = graph(
        "float[3,3] x, float[3,3] p => float[3,3] z", "m = MatMul (x, p) n = Neg (m) z = MatMul (x, n)"
    )

    result = apply(model, TwoProducts)

    assert ops(result.model) == ["MatMul", "Neg", "MatMul"]
    assert "depends on one of its outputs" in reasons(result)


@pytest.mark.parametrize(
    ("replacement", "reason"),
    [
        (lambda op, x: op.Cast(x, to=1), "'y' would become float32 where it was float16"),
        (lambda op, x: op.Unsqueeze(x, [0]), "'y' would become 1 × 2 × 3 where it was 2 × 3"),
        (lambda op, x: op.Transpose(x, perm=[1, 0]), "'y' would become 3 × 2 where it was 2 × 3"),
        (lambda op, x: op.Swish(x), "Swish exists from opset 24 on, the model has 20"),
        (lambda op, x: op.Relu(x, slope=1.0), "Relu of opset 20 has no attribute slope"),
        (lambda op, x: op.And(x, x), "And of opset 20 does not take float16"),
        (lambda op, x: Refusal("not today"), "not today"),
        (lambda op, x: (op.Relu(x), Refusal("not today"))[1], "not today"),
    ],
)
def test_a_replacement_that_does_not_fit_is_taken_back(replacement: Callable[..., Any], reason: str) -> None:
    """Another dtype or shape, or what the opset lacks: a refusal, and the graph is as it was."""
    made = rule(lambda op, x: op.Abs(x), replacement)
    model = graph("float16[2,3] x => float16[2,3] y", "y = Abs (x)", opset=20)

    result = apply(model, made)

    assert reason in reasons(result)
    assert ops(result.model) == ["Abs"]
    edited = write_model(result.model)
    assert edited.graph == model.graph or list(edited.graph.initializer) == []


def test_check_is_asked_with_match_and_context() -> None:
    """It sees shapes, constants and the opset, and its reason is reported."""

    def check(match: Any, context: Any) -> Refusal | None:
        assert match["x"].name == "x"
        assert context.opset() == 24
        return Refusal(f"{match.type('x').shape} is too small")

    made = rule(lambda op, x: op.Relu(x), lambda op, x: op.Neg(x), check)

    result = apply(graph(XY, "y = Relu (x)"), made)

    assert reasons(result) == "(2, 3) is too small"


def test_rewrite_may_ask_for_match_and_context() -> None:
    """By name; variadic inputs come as such."""
    seen: dict[str, Any] = {}

    class Joined(PatternRule):
        def pattern(self, op: Any, x: Any, *rest: Any) -> Any:
            return op.Concat(op.Relu(x), *rest, axis=0)

        def rewrite(self, op: Any, x: Any, *rest: Any, match: Any, context: Any) -> Any:
            seen.update(rest=[value.name for value in rest], opset=context.opset(), nodes=len(match.nodes))
            return op.Concat(op.Elu(x), *rest, axis=0)

    model = graph("float[2] x, float[2] z => float[6] y", "r = Relu (x) y = Concat <axis = 0> (r, z, x)")

    result = apply(model, Joined)

    assert seen == {"rest": ["z", "x"], "opset": 24, "nodes": 2}
    assert ops(result.model) == ["Elu", "Concat"]


def test_a_foreign_domain_is_imported() -> None:
    """A node of another domain brings its import along."""
    made = rule(lambda op, x: op.Relu(x), lambda op, x: op.QuickGelu(x, alpha=1.0, _domain="com.microsoft"))

    result = rewrite(graph(XY, "y = Relu (x)"), made)

    assert result.model.opset_imports["com.microsoft"] == 1
    assert write_model(result.model).graph.node[0].domain == "com.microsoft"


def test_kept_nodes_and_values_survive() -> None:
    """A glob over names of nodes, or of values inside a match."""
    model = graph(XY, "[first] a = Relu (x) [second] y = Relu (a)")

    assert ops(rewrite(model, ReluTwice, keep=["second"]).model) == ["Relu", "Relu"]
    kept = rewrite(model, ReluTwice, keep=["a"])
    assert ops(kept.model) == ["Relu", "Relu"]
    assert "'a' of Relu first is to be kept" in reasons(kept)


def test_rules_that_undo_each_other_end() -> None:
    """It is said which rules go round in circles."""
    there = rule(lambda op, x: op.Relu(x), lambda op, x: op.Abs(x))
    back = rule(lambda op, x: op.Abs(x), lambda op, x: op.Relu(x))
    there.name, back.name = "there", "back"

    with pytest.raises(UsageError, match="do not come to an end") as caught:
        rewrite(graph(XY, "y = Relu (x)"), [there, back])

    assert caught.value.where == "back, there"


def test_a_rule_that_changes_the_outputs_is_dropped() -> None:
    """Verification is asked for the result; the rule at fault goes, the others stay."""
    wrong = rule(lambda op, x: op.Neg(x), lambda op, x: op.Abs(x))
    wrong.name = "wrong"
    model = graph(XY, "a = Relu (x) b = Relu (a) y = Neg (b)")

    def verify(original: ir.Model, edited: ir.Model) -> Verification:
        good = "Abs" not in ops(edited)
        return Verification(runs=(VerifiedRun(inputs="seeded", runner="engine", agrees=good, value="y"),))

    result = rewrite(model, [ReluTwice, wrong], verify=verify)

    assert not result
    assert ops(result.model) == ["Relu", "Neg"]
    assert [item.rule for item in result.report.dropped] == ["wrong"]


FILE = '''
"""Rules."""
from graphdoc.surgeon import PatternRule

class Outer(PatternRule):
    def pattern(self, op, x):
        return op.Relu(op.Relu(x))

    def rewrite(self, op, x):
        return op.Relu(x)

class _Hidden(Outer):
    """A base, not a rule."""
'''


def test_a_file_of_rules(tmp_path: pathlib.Path) -> None:
    """All classes of the file whose names do not begin with an underscore."""
    path = tmp_path / "rules.py"
    path.write_text(FILE)

    for given in (path, str(path)):
        result = rewrite(graph(XY, "a = Relu (x) y = Relu (a)"), given)
        assert [edit.rule for edit in result.report.done if edit.group == "user"] == ["outer"]


def test_a_file_may_list_its_rules(tmp_path: pathlib.Path) -> None:
    """RULES, classes or instances."""
    path = tmp_path / "rules.py"
    path.write_text(FILE + "RULES = [Outer()]\n")

    assert ops(rewrite(graph(XY, "a = Relu (x) y = Relu (a)"), path).model) == ["Relu"]


@pytest.mark.parametrize(
    ("text", "cause", "where"),
    [
        (None, "there is no file", "--rules"),
        ("x = 1\n", "holds no rules", "rules.py"),
        ("def f(:\n", "cannot be loaded: invalid syntax", "line 1"),
        ("import nothing_of_that_name\n", "cannot be loaded: ModuleNotFoundError", "line 1"),
        (FILE.replace("op.Relu(op.Relu(x))", "op.Relu(y)"), "rule Outer cannot be used: NameError", "line 7"),
        (FILE.replace("def pattern", "def other"), "Outer has no pattern", "Outer"),
        (FILE.replace("def rewrite", "def other"), "Outer has no rewrite", "Outer"),
        (FILE.replace("op.Relu(op.Relu(x))", "x"), "a pattern returns what nodes make", "Outer.pattern"),
        (FILE.replace("rewrite(self, op, x)", "rewrite(self, op, z)"), "rewrite asks for 'z'", "Outer"),
        (FILE.replace("return op.Relu(x)\n", "return 1 / 0\n"), "rule 'outer' failed at Relu 'y'", "line 10"),
        (FILE.replace("return op.Relu(x)\n", "return None\n"), "rewrite must return 1 value", "Outer"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_line(
    tmp_path: pathlib.Path, text: str | None, cause: str, where: str
) -> None:
    """Missing, empty, not Python, failing when it is loaded, recorded, or at work."""
    path = tmp_path / "rules.py"
    if text is not None:
        path.write_text(text)

    with pytest.raises(UsageError) as caught:
        rewrite(graph(XY, "a = Relu (x) y = Relu (a)"), path)

    assert cause in caught.value.cause
    assert where in str(caught.value.where)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("rules", "cause"),
    [("no-such-rule", "there is no rule and no file 'no-such-rule'"), ([], "no rules are given")],
)
def test_unknown_rules(rules: Any, cause: str) -> None:
    """The groups that exist are listed."""
    with pytest.raises(UsageError, match=cause):
        rewrite(graph(XY, "y = Relu (x)"), rules)


def test_names_are_made_from_the_class() -> None:
    """In kebab-case, unless the class sets its own."""

    class RMSNormOfMine(PatternRule):
        pass

    class Named(PatternRule):
        name = "my-rule"

    assert (RMSNormOfMine.name, Named.name, ReluTwice.name) == ("rmsnorm-of-mine", "my-rule", "relu-twice")


def test_weights_that_a_rule_no_longer_needs_go() -> None:
    """An initializer that only the old nodes read."""
    model = build.model(
        [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        weights=[build.weight("w", (1.0, 1.0))],
    )

    result = apply(model, rule(lambda op, x, w: op.Relu(op.Mul(x, op.constant(1))), lambda op, x: op.Relu(x)))

    assert ops(result.model) == ["Relu"]
    assert list(write_model(result.model).graph.initializer) == []
