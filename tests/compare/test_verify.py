"""Verification: wrong edits are caught, right ones pass, and what was not run is said."""

import pathlib
import sys
import weakref
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from graphdoc.compare.verify import Verifier, verify
from graphdoc.compare.verify_hazards import Hazard, Hazards
from graphdoc.compare.verify_inputs import InputSets
from graphdoc.compare.verify_interface import is_old_claim
from graphdoc.compare.verify_judge import Evidence, Verdict, judge
from graphdoc.compare.verify_light import without_weights
from graphdoc.compare.verify_sides import OPENERS
from graphdoc.surgeon.model import Source, load
from graphdoc.surgeon.verification import NotRun, Verification, VerifiedRun
from tests.compare.verify_edits import RIGHT, WRONG, Case, noise


def parse(text: str, head: str = '<ir_version: 8, opset_import: ["" : 17]>') -> onnx.ModelProto:
    return parser.parse_model(f"{head} {text}")


def kinds(found: Verification) -> list[str]:
    return [run.inputs for run in found.runs]


# ---- edits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_edit_is_caught(case: Case) -> None:
    found = verify(case.original, case.edited, exact=case.exact)
    assert not found.agrees
    assert not found.verified
    assert not found
    assert any(case.shown in text for text in found.differences), found.differences
    assert found.summary().startswith("differs: ")


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_edit_passes(case: Case) -> None:
    found = verify(case.original, case.edited, exact=case.exact)
    assert found.differences == ()
    assert found.verified
    assert {run.runner for run in found.runs} == {"ort", "engine"}


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_edit_passes_however_thorough(case: Case) -> None:
    found = verify(case.original, case.edited, exact=case.exact, thorough=True)
    assert found.differences == ()
    assert len(found.runs) >= len(verify(case.original, case.edited, exact=case.exact).runs)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
@pytest.mark.parametrize("runner", ["ort", "engine"])
def test_no_wrong_edit_makes_one_runner_fail_to_load(case: Case, runner: str) -> None:
    """The cases are about results: each of the edited models loads."""
    found = Verifier(case.original, runners=[runner]).verify(case.edited, exact=case.exact)
    assert not any("refuses the edited model" in text for text in found.faults)


def test_the_first_difference_ends_the_runs() -> None:
    case = next(case for case in WRONG if case.name == "bias dropped")
    found = verify(case.original, case.edited)
    assert [run.agrees for run in found.runs] == [False]
    run = found.runs[0]
    assert (run.inputs, run.runner, run.value) == ("seeded", "ort", "y")
    assert run.error > run.limit > 0
    assert "off by 0.17 of the largest element" in run.reason
    assert "32 of 32 elements, the worst at [2, 0]: 4.21" in run.reason


def test_rounding_is_told_from_equal_bits() -> None:
    case = next(case for case in RIGHT if case.name == "batch norm in a convolution")
    found = verify(case.original, case.edited)
    assert found.worst is not None
    assert 0 < found.worst.error < found.worst.limit < 1e-5
    assert "within rounding" in found.summary()
    assert "all bits equal" in verify(case.original, case.original, exact=True).summary()


def test_a_verifier_serves_many_edits_and_tries_the_last_difference_first() -> None:
    case = next(case for case in WRONG if case.name == "upper bound changed")
    verifier = Verifier(case.original)
    assert verifier.verify(case.original).verified
    first = verifier.verify(case.edited)
    again = verifier.verify(case.edited)
    assert len(first.runs) > 1
    assert [run.agrees for run in again.runs] == [False]
    assert again.runs[-1] == first.runs[-1]
    assert verifier.verify(case.original).verified


def test_the_original_may_run_in_the_background() -> None:
    case = next(case for case in RIGHT if case.name == "gemm for product and sum")
    verifier = Verifier(case.original)
    verifier.warm()
    found = verifier.verify(case.edited)
    assert found.verified
    assert found == verify(case.original, case.edited)


def test_only_one_session_is_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model must not be in memory twice: not even where evidence needs the original again."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    opened: list[tuple[int, bool]] = []

    def opener(source: Source) -> Any:
        side = original(source)
        opened.append((len(alive), source.model is model))
        alive.add(side)
        return side

    original = OPENERS["ort"]
    monkeypatch.setitem(OPENERS, "ort", opener)
    monkeypatch.setattr("graphdoc.compare.verify.TRUTH_MOST", -1.0)
    case = next(case for case in RIGHT if case.name == "batch norm in a convolution")
    model = load(case.original)

    assert verify(model, case.edited).verified
    assert [first for _, first in opened] == [True, False, True]
    assert [others for others, _ in opened] == [0, 0, 0]
    assert not alive


def test_what_goes_wrong_in_the_background_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in RIGHT if case.name == "nothing")
    verifier = Verifier(case.original)

    def fail() -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(verifier, "_prepare", fail)
    verifier.warm()
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        verifier.verify(case.edited)


def test_neither_model_is_changed() -> None:
    case = next(case for case in RIGHT if case.name == "batch norm in a convolution")
    original, edited = load(case.original), load(case.edited)
    before = [ir.to_proto(model).SerializeToString(deterministic=True) for model in (original, edited)]
    assert verify(original, edited, thorough=True).verified
    assert [ir.to_proto(m).SerializeToString(deterministic=True) for m in (original, edited)] == before


# ---- interface ----------------------------------------------------------------------------------------

ADD = "g (float[N,8] x, float[8] b) => (float[N,8] y) { y = Add(x, b) }"


def with_default(proto: onnx.ModelProto, name: str, array: np.ndarray[Any, Any]) -> onnx.ModelProto:
    proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def test_an_output_may_become_a_constant() -> None:
    """Only what is fed has a default that may be lost or won."""
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    body = "agraph (float[2] x) => (float[2] y, float[2] c) {{ y = Neg (x) {made} }}"
    original = onnx.parser.parse_model(
        f"{header} {body.format(made='d = Constant <value_floats = [1.0, 2.0]> () c = Neg (d)')}"
    )
    edited = onnx.parser.parse_model(f"{header} {body.format(made='')}")
    edited.graph.initializer.append(numpy_helper.from_array(np.array([-1, -2], np.float32), "c"))

    assert verify(original, edited, exact=True).verified


def test_a_default_may_not_be_lost() -> None:
    original = with_default(parse(ADD), "b", noise("b", 8))
    assert verify(original, parse(ADD)).interface == ("input 'b' lost its default",)


def test_weights_of_old_models_are_not_inputs() -> None:
    """Up to IR version 3 constants had to be listed as inputs; taking them off the list changes nothing."""
    original = with_default(parse(ADD, '<ir_version: 3, opset_import: ["" : 8]>'), "b", noise("b", 8))
    edited = with_default(parse(ADD, '<ir_version: 4, opset_import: ["" : 8]>'), "b", noise("b", 8))
    del edited.graph.input[1]
    assert verify(original, edited).verified


def described() -> onnx.ModelProto:
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    model.producer_name, model.producer_version, model.model_version = "acme", "7", 42
    model.doc_string, model.domain, model.graph.doc_string = "doc", "com.acme", "graph doc"
    model.graph.input[0].doc_string = "ids"
    model.metadata_props.add(key="labels", value="cat;dog")
    return model


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("producer_name", "producer"),
        ("producer_version", "producer's version"),
        ("model_version", "model version"),
        ("doc_string", "doc string"),
        ("domain", "domain"),
    ],
)
def test_metadata_may_not_be_lost(field: str, text: str) -> None:
    edited = described()
    edited.ClearField(field)
    assert verify(described(), edited).interface == (f"the model has lost its {text}",)


def test_metadata_of_the_graph_may_not_be_lost() -> None:
    edited = described()
    edited.graph.name, edited.graph.doc_string, edited.graph.input[0].doc_string = "other", "", ""
    del edited.metadata_props[:]
    assert set(verify(described(), edited).interface) == {
        "the graph has lost its name",
        "the graph has lost its doc string",
        "input 'x' has lost its doc string",
        "metadata 'labels' of the model is gone",
    }
    edited = described()
    edited.metadata_props[0].value = "cat"
    assert verify(described(), edited).interface == ("metadata 'labels' of the model has changed",)


def test_the_opset_may_change_only_when_asked() -> None:
    original = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    edited = parse(
        "g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }", '<ir_version: 8, opset_import: ["": 18]>'
    )
    assert verify(original, edited).interface == ("opset of ai.onnx was 17 and is 18",)
    assert Verifier(original, opset=18).verify(edited).verified
    assert Verifier(original, opset=19).verify(edited).interface == ("opset of ai.onnx was 19 and is 18",)


def test_sizes_may_be_fixed_when_asked() -> None:
    original = parse("g (float[N,M] x) => (float[N,A] y) { y = Neg(x) }")
    edited = parse("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }")
    assert not verify(original, edited).agrees
    found = verify(original, edited, shapes={"x": (2, 3)})
    assert found.verified
    assert "other sizes" not in kinds(found)


# ---- validity -----------------------------------------------------------------------------------------


def test_a_model_that_no_runner_takes_is_a_fault() -> None:
    original = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    edited = parse("g (float[N,8] x) => (float[N,8] y) { y = Nag(x) }")
    found = verify(original, edited)
    assert len(found.faults) == 2
    assert all(runner in text for runner, text in zip(("ort", "engine"), found.faults, strict=True))


def test_a_model_that_cannot_be_read_is_a_fault(tmp_path: pathlib.Path) -> None:
    original = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x00broken")
    assert "cannot be read" in verify(original, path).faults[0]


def test_a_model_that_is_not_sound_is_a_fault_without_onnx_runtime() -> None:
    original = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    edited = load(original)
    edited.graph.node(0).outputs[0].name = "x"
    assert "not sound" in " ".join(Verifier(original, runners=["engine"]).verify(edited).faults)


def test_a_shape_that_is_not_as_declared_is_a_fault() -> None:
    original = parse("g (float[N,8] x) => (float[N,?] y) { y = Neg(x) }")
    edited = parse("g (float[N,8] x) => (float[N,7] y) { y = Neg(x) }")
    assert "output 'y' is declared [?, 7] and has shape [8, 8]" in verify(original, edited).faults
    assert verify(edited, edited).verified


# ---- what was not run ---------------------------------------------------------------------------------


def test_without_onnx_runtime_the_engine_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in [name for name in sys.modules if name.startswith("graphdoc.compare.") and "ort" in name]:
        monkeypatch.delitem(sys.modules, name)
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    found = verify(model, model)
    assert found.verified
    assert {run.runner for run in found.runs} == {"engine"}
    assert found.not_run[0].what == "ort"
    assert "not installed" in found.not_run[0].why


CUSTOM = '<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>'


def test_agreement_without_a_run_is_not_verified() -> None:
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = com.example.Magic(x) }", CUSTOM)
    found = verify(model, model)
    assert found.agrees
    assert not found.verified
    assert not found
    assert [item.what for item in found.not_run] == ["ort", "engine"]
    assert "Magic" in str(found.not_run[1])
    assert found.summary().startswith("not verified, nothing was run")


def test_inputs_that_cannot_be_made_are_said() -> None:
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    found = verify(model, model)
    assert found.agrees
    assert not found.verified
    assert any(item.what == "inputs" and "rank" in item.why for item in found.not_run)
    assert verify(model, model, shapes={"x": (2, 8)}).verified
    assert verify(model, model, inputs={"x": noise("x", 2, 8)}).verified


def test_what_the_original_refuses_says_nothing() -> None:
    """The sum over two halves exists for even sizes only."""
    text = "g (float[N,M] x) => (float[N,A] y) { a, b = Split<axis=1>(x) y = Add(a, b) }"
    original = parse(text, '<ir_version: 8, opset_import: ["" : 13]>')
    found = verify(original, original)
    assert found.verified
    assert all(run.agrees for run in found.runs)


def test_nothing_fits_is_said() -> None:
    """No size of x suits both weights: every input is refused."""
    model = parse("g (float[N,M] x) => (float[N,A] y) { a = MatMul(x, w) c = MatMul(x, v) y = Add(a, c) }")
    for name, shape in (("w", (8, 4)), ("v", (7, 4))):
        model.graph.initializer.append(numpy_helper.from_array(noise(name, *shape), name))
    found = verify(model, model)
    assert found.agrees
    assert not found.verified
    assert found.not_run


# ---- inputs -------------------------------------------------------------------------------------------


def test_the_usual_kinds_of_inputs() -> None:
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    assert list(dict.fromkeys(kinds(verify(model, model)))) == [
        "seeded",
        "other sizes",
        "NaN",
        "large values",
        "zeros",
        "small values",
        "the other sign, −0.0",
        "infinities",
        "ones",
        "the largest number",
        "sizes of 1",
        "empty",
    ]


def test_given_inputs_stand_in_for_seeded_ones() -> None:
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    found = verify(model, model, inputs={"x": noise("x", 5, 8)})
    assert kinds(found)[0] == "given"
    assert "other sizes" in kinds(found)
    wrong = verify(model, model, inputs={"x": noise("x", 5, 7)})
    assert not wrong.verified
    assert "the feed [5, 7]" in wrong.not_run[0].why


def test_defaults_are_overridden() -> None:
    model = with_default(parse(ADD), "b", noise("b", 8))
    sets = {kind.kind: kind for kind in InputSets(load(model)).all()}
    feeds = sets["defaults overridden"].choices[0]()
    assert feeds["b"].shape == (8,)
    assert not np.any(feeds["b"] == noise("b", 8))
    assert "b" not in sets["zeros"].choices[0]()


HAZARDS = {
    "int64[2] s, float[N] x => y = Expand(x, s)": Hazard.SIZES,
    "int64 s, float[N] x => i = Abs(s) y = Range(s, i, s)": Hazard.SIZES,
    "float[1] s, float[N] x => i = Cast<to=7>(s) y = Expand(x, i)": Hazard.SIZES,
    "int64 s, bool c, float[N] x => y = Loop(s, c, x) <body = l (int64 i, bool a, float[N] v) => "
    "(bool d, float[N] w) { d = Identity(a) w = Neg(v) }>": Hazard.SIZES,
    "float s, float[N] x => n = Constant<value_int = 9223372036854775807>() y = Loop(n, , s) <body = l "
    "(int64 i, bool a, float v) => (bool d, float w) { d = Less(v, v) w = Neg(v) }>": Hazard.SIZES,
    "int64[N] s, int64[N] x => y = Div(x, s)": Hazard.POSITIONS,
    "float[1,8,8,2] s, float[1,1,4,4] x => y = GridSample(x, s)": Hazard.POSITIONS,
    "float[N] s, float[N] x => y = Div(x, s)": Hazard.NONE,
    "float[N] s, float[N] x => t = Shape(s) y = Expand(x, t)": Hazard.NONE,
    "float s, float[N] x => n = Constant<value_int = 3>() y = Loop(n, , s) <body = l "
    "(int64 i, bool a, float v) => (bool d, float w) { d = Less(v, v) w = Neg(v) }>": Hazard.NONE,
}


@pytest.mark.parametrize(("text", "hazard"), HAZARDS.items())
def test_inputs_that_may_not_be_anything_are_known(text: str, hazard: Hazard) -> None:
    inputs, body = text.split("=>", 1)
    output = "float[A] y" if "Div" not in text or "int64" not in text else "int64[N] y"
    model = load(parse(f"g ({inputs}) => ({output}) {{ {body} }}"))
    assert Hazards(model).of(model.graph.inputs[0]) == hazard


def test_sizes_are_never_unusual() -> None:
    """A length of the largest integer would fill the memory; the input is left as it is."""
    model = parse(
        "g (int64[1] s, float[N] x) => (float[A] y) { z = ConstantOfShape(s) y = Concat<axis=0>(x, z) }"
    )
    sets = InputSets(load(model))
    base = sets.base["s"]
    for kind in sets.all():
        for choice in kind.choices[:1]:
            np.testing.assert_array_equal(choice()["s"], base, err_msg=kind.kind)
    assert verify(model, model, thorough=True).verified


# ---- weights ------------------------------------------------------------------------------------------


def test_weights_are_handed_over_not_copied() -> None:
    model = load(
        with_default(
            parse("g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }"), "w", noise("w", 64, 64)
        )
    )
    light = without_weights(model)
    assert light.proto.ByteSize() < 1000
    assert list(light.given) == ["w"]
    assert light.folder == ""
    assert verify(model, model).verified


def test_external_weights_are_read_from_their_file(tmp_path: pathlib.Path) -> None:
    proto = with_default(
        parse("g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }"), "w", noise("w", 64, 64)
    )
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = verify(tmp_path / "m.onnx", load(tmp_path / "m.onnx"))
    assert found.verified
    light = without_weights(load(tmp_path / "m.onnx"))
    assert (light.given, light.folder) == ({}, str(tmp_path.resolve()))
    wrong = load(tmp_path / "m.onnx")
    value = wrong.graph.initializers["w"]
    value.const_value = ir.tensor(noise("w", 64, 64) * np.float32(1.001))
    assert list(without_weights(wrong).given) == ["w"]
    assert not verify(tmp_path / "m.onnx", wrong).agrees


def test_weights_of_subgraphs_stay_with_them() -> None:
    case = next(case for case in RIGHT if case.name == "a loop unrolled")
    assert verify(load(case.original), load(case.original)).verified


# ---- the result ---------------------------------------------------------------------------------------


def test_a_result_says_what_was_run() -> None:
    run = VerifiedRun(inputs="zeros", runner="ort", agrees=True, equal=True)
    found = Verification(runs=(run, run), not_run=(NotRun(what="engine", why="heavy"),))
    assert str(run) == "ort, zeros: all bits equal"
    assert found.summary() == "verified: 1 kind of inputs through ort, all bits equal"
    assert str(found.not_run[0]) == "engine: heavy"
    worse = VerifiedRun(
        inputs="ones", runner="ort", agrees=False, value="y", error=2.0, limit=1.0, reason="off"
    )
    assert Verification(runs=(run, worse)).worst is worse
    assert Verification(interface=("a",), runs=(worse,)).summary() == "differs: a (and 1 more)"


def test_what_matters_most_is_missed_when_nobody_ran_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may leave out what ONNX Runtime has run."""
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    assert not any(item.important for item in verify(model, model).not_run)
    monkeypatch.setattr("graphdoc.compare.verify.BUDGET", {"ort": 60.0, "engine": 0.0})
    missed = {item.what: item.important for item in verify(model, model).not_run}
    assert missed == {"engine": False}
    monkeypatch.setattr("graphdoc.compare.verify.BUDGET", {"ort": 0.0, "engine": 0.0})
    missed = {item.what: item.important for item in verify(model, model).not_run}
    assert missed == {"engine": True, "ort": True}


@pytest.mark.parametrize(
    ("before", "after", "found", "old"),
    [
        (["N"], [1], (4,), True),
        (["N"], [3], (4,), False),
        ([5], [5], (4,), True),
        ([None], [5], (4,), False),
        (["N", None], [1, 7], (4, 7), True),
        (["N", None], [1, 6], (4, 7), False),
        ([1, 1], [1, 1], (4,), True),
        ([1], [1, 1], (4,), False),
    ],
)
def test_a_claim_is_old_when_the_original_made_it(
    before: list[Any], after: list[Any], found: tuple[int, ...], old: bool
) -> None:
    """N is 1 in the run; what the edit alone says is its own fault."""
    was, now = (ir.Value(name="y", shape=ir.Shape(dims)) for dims in (before, after))
    assert is_old_claim(was, now, found, {"N": 1}) is old


def test_all_elements_that_are_too_far_off_are_counted() -> None:
    """Half of them here; the one named is the worst, not the first."""
    base = "g (float[2,4] x) => (float[2,4] y) <float[4] w = {0, 0, %s}> { y = Add(x, w) }"
    found = verify(parse(base % "0, 0"), parse(base % "1, 3"))
    assert "4 of 8 elements, the worst at [0, 3]" in found.runs[0].reason
    found = verify(parse(base % "0, 0"), parse(base % "0, inf"))
    assert "NaN or infinite where it was not, or the reverse: 2 of 8 elements, the first at [0, 3]" in str(
        found.runs[0]
    )


@pytest.mark.parametrize(("spread", "verdict"), [(8e-5, Verdict.AGREES), (0.0, Verdict.DIFFERS)])
def test_one_element_that_chance_moves(spread: float, verdict: Verdict) -> None:
    """Of 10 000 elements one makes up the whole root of the mean square: the original must move it too."""
    rng = np.random.default_rng(0)
    original = np.concatenate([rng.random(9_999), [0.9]]).astype(np.float32)
    rounding = np.concatenate([rng.standard_normal(9_999) * 1e-8, [4e-5]])
    truth = original + rounding
    edited = (truth + np.concatenate([rng.standard_normal(9_999) * 1e-8, [3e-4]])).astype(np.float32)
    moved = original.copy()
    moved[-1] += np.float32(spread)
    evidence = Evidence(lambda: {"y": truth}, lambda: [{"y": moved}], 10, extreme=False)

    assert judge("y", original, edited, evidence, exact=False).verdict == verdict
