"""Results and inputs that Polygraphy saved: read, compared, refused; those of ``graphdoc run --save`` too."""

import base64
import io
import json

import numpy as np
import pytest

from graphdoc import compare_models
from graphdoc.compare import polygraphy
from graphdoc.compare.result import Status
from graphdoc.engine.errors import InputError, NothingComparedError, UsageError
from tests.compare.test_pictures import chain

X = np.linspace(0.5, 2, 64, dtype=np.float32)


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def encoded(array, *, old: bool = False, lazy: bool = True):
    """Return an array as Polygraphy writes it; ``old``: as its first versions did."""
    marks = {"__polygraphy_encoded_ndarray": "polygraphy_encoded"} if old else {"polygraphy_class": "ndarray"}
    text = npy(array).decode("latin-1") if old else base64.b64encode(npy(array)).decode()
    inner = {"array": text, **marks}
    return {"values": inner, "polygraphy_class": "LazyArray"} if lazy and not old else inner


def results(runs: dict[str, dict], *, old: bool = False) -> str:
    """Return the text of a file of results: runner → name → array."""
    rows = [
        [
            name,
            [
                {
                    "outputs": {key: encoded(value, old=old) for key, value in values.items()},
                    "runtime": 0.25,
                    "runner_name": name,
                    "polygraphy_class": "IterationResult",
                }
            ],
        ]
        for name, values in runs.items()
    ]
    return json.dumps({"lst": rows, "polygraphy_class": "RunResults"})


def values(length: int = 6, wrong: int | None = None) -> dict:
    """Return what the layers of ``chain`` give for X."""
    found, x = {}, X
    for n in range(length):
        x = x * np.float32(2.0 if n == wrong else 1.0001)
        found[f"v{n + 1}"] = x
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text(json.dumps([{"v0": encoded(X, lazy=False)}]))
    return tmp_path


def compared(**options):
    return compare_models(chain(6), inputs="in.json", latency=True, **options)


@pytest.mark.parametrize("old", [False, True])
def test_saved_results_serve_as_either_side(folder, old):
    (folder / "r.json").write_text(results({"onnxrt-N0": values()}, old=old))
    for sides in ({"ref": "saved:r.json"}, {"test_runner": "saved:r.json"}):
        result = compared(**sides)
        assert result
        assert len(result.layers) == 6
    assert result.b.runner == "saved:r.json"
    assert result.b.settings == "values saved by onnxrt-N0"
    assert result.b.latency is None
    assert result.layers[3].time_b is None


def test_a_saved_reference_shows_whose_fault_it_is(folder):
    """The other side computes each layer on the saved values, so the wrong one is found."""
    (folder / "r.json").write_text(results({"trt-N0": values(wrong=2)}))
    result = compared(ref="saved:r.json", test_runner="ort")
    assert result.verdict.first == 2
    assert [x.status for x in result.layers] == [*[Status.AGREES] * 2, Status.OWN, *[Status.INHERITED] * 3]
    assert [x.own_error for x in result.layers][3:] == [0, 0, 0]
    assert "A is wrong" in result.verdict.sentence


def test_a_saved_test_side_is_blamed_for_nothing_that_was_not_measured(folder):
    (folder / "r.json").write_text(results({"trt-N0": values(wrong=2)}))
    result = compared(test_runner="saved:r.json")
    assert result.verdict.first == 2
    assert [x.status for x in result.layers][1:4] == [Status.AGREES, Status.OWN, Status.INHERITED]
    assert all(x.own_error is None and x.truth_b is None for x in result.layers)


def test_values_that_were_not_saved_are_named(folder):
    kept = {name: value for name, value in values().items() if name != "v3"}
    (folder / "r.json").write_text(results({"a": kept}))
    result = compared(ref="saved:r.json")
    assert [(skip.value, skip.reason) for skip in result.skipped] == [("v3", "A has no such value")]


def test_one_of_several_runners_is_chosen_by_its_name(folder):
    (folder / "r.json").write_text(results({"onnxrt-N0": values(), "trt-N1": values(wrong=0)}))
    assert compared(ref="saved:r.json#onnx")
    assert not compared(ref="saved:r.json#trt")
    for name, cause in (("saved:r.json", "holds 2"), ("saved:r.json#cuda", "0 saved runners fit")):
        with pytest.raises(UsageError, match=cause) as caught:
            compared(ref=name)
        assert "onnxrt-N0, trt-N1" in caught.value.where


def test_values_of_run_serve_too(folder):
    np.savez(folder / "r.npz", **values())
    assert compared(ref="saved:r.npz")


def test_memory_bounds_what_is_decoded_at_a_time(folder):
    (folder / "r.json").write_text(results({"a": values()}))
    assert len(compared(test_runner="saved:r.json", memory=300).layers) == 6


def test_inputs_must_be_given(folder):
    (folder / "r.json").write_text(results({"a": values()}))
    with pytest.raises(UsageError, match="none are given") as caught:
        compare_models(chain(6), ref="saved:r.json")
    assert "--save-inputs" in caught.value.next_step


def test_nothing_in_common_is_a_failure(folder):
    (folder / "r.json").write_text(results({"a": {"other": X}}))
    with pytest.raises(NothingComparedError):
        compared(ref="saved:r.json")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "not JSON"),
        ("[]", "not results of Polygraphy"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({"lst": [["a"]], "polygraphy_class": "RunResults"}), "not as expected"),
        (json.dumps({"lst": [["a", []]], "polygraphy_class": "RunResults"}), "not as expected"),
        (json.dumps({"lst": [], "polygraphy_class": "AccuracyResults"}), "AccuracyResults"),
    ],
)
def test_other_files_are_refused(folder, text, cause):
    (folder / "r.json").write_text(text)
    with pytest.raises(InputError, match=cause):
        compared(ref="saved:r.json")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ({"array": "AAAA", "polygraphy_class": "Tensor"}, "PyTorch"),
        ({"array": "!", "polygraphy_class": "ndarray"}, "no NumPy array"),
        (
            {"array": base64.b64encode(b"PK\x03\x04").decode(), "polygraphy_class": "ndarray"},
            "no NumPy array",
        ),
        ({"array": 3, "polygraphy_class": "ndarray"}, "no array"),
        ({"values": None, "polygraphy_class": "LazyArray"}, "no array"),
        ({"values": [1], "polygraphy_class": "LazyArray"}, "no array"),
    ],
)
def test_a_value_that_is_no_array_is_refused_by_name(value, cause):
    with pytest.raises(InputError, match=cause) as caught:
        polygraphy.decode(value, "v1 in r.json")
    assert caught.value.where == "v1 in r.json"


def test_nothing_in_a_pickled_array_is_called():
    import pickle

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("called",))

    stream = io.BytesIO()
    np.save(stream, np.array([1], object))
    data = stream.getvalue().split(b"\n")[0] + b"\n" + pickle.dumps(Trap())
    with pytest.raises(InputError):
        polygraphy.decode(
            {"array": base64.b64encode(data).decode(), "polygraphy_class": "ndarray"}, "v1 in r.json"
        )
