"""Sessions that find a program an earlier one kept: the same answers, the model opened only at need."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphdoc
from graphdoc.engine import kept
from graphdoc.engine.errors import InputError, ModelError
from graphdoc.engine.plan_file import read

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
    same = Identity (x)
    p = MatMul (same, w)
    y = Relu (p)
}
"""
X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file, and caches of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def opened(session: Any) -> bool:
    """Whether a session has read its model."""
    return "_opened" in session.__dict__


def programs(model: Path) -> int:
    """Return how many programs are kept."""
    folder = model.parent / "cache" / "graphdoc" / "programs"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_the_second_session_does_not_open_the_model(model: Path) -> None:
    """It gives the same bits, and opens the model for other sizes, for taps, for inputs that do not fit."""
    first = graphdoc.Session(model, level=1)
    want = {rows: first.run({"x": X[:rows]})["y"] for rows in (2, 3)}
    assert opened(first)
    assert programs(model) == 2

    second = graphdoc.Session(model, level=1)
    for rows in (2, 3, 2):
        np.testing.assert_array_equal(second.run({"x": X[:rows]})["y"], want[rows])
    assert not opened(second)
    np.testing.assert_allclose(second.run({"x": X})["y"], graphdoc.Session(model).run({"x": X})["y"], 1e-6)
    assert opened(second)
    assert programs(model) == 3
    np.testing.assert_array_equal(second.run({"x": X[:2]})["y"], want[2])

    assert graphdoc.Session(model, level=1).taps == first.taps == ["p", "y"]
    tapped = graphdoc.Session(model, level=1).run({"x": X}, ["p"])
    assert set(tapped) == {"p", "y"}
    with pytest.raises(InputError, match="'x'"):
        graphdoc.Session(model, level=1).run({"x": X.astype(np.float64)})
    with pytest.raises(InputError, match="x"):
        graphdoc.Session(model, level=1).run({})


def test_sizes_that_take_turns_are_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs stay loaded."""
    first = graphdoc.Session(model, level=1)
    want = {rows: first.run({"x": X[:rows]})["y"] for rows in (2, 3)}
    reads: list[Path] = []
    monkeypatch.setattr(kept, "read", lambda path: reads.append(path) or read(path))

    second = graphdoc.Session(model, level=1)
    for rows in (2, 3, 2, 3):
        np.testing.assert_array_equal(second.run({"x": X[:rows]})["y"], want[rows])
    assert len(reads) == 2


def test_who_does_not_want_it(model: Path) -> None:
    """Nothing is kept, nothing is taken; level 0 never does."""
    graphdoc.Session(model, level=1, keep=False).run({"x": X})
    graphdoc.Session(model).run({"x": X})
    assert programs(model) == 0
    graphdoc.Session(model, level=1).run({"x": X})
    assert programs(model) == 1

    for session in (graphdoc.Session(model, level=1, keep=False), graphdoc.Session(model)):
        assert opened(session)


def test_outputs_are_the_callers_own(model: Path) -> None:
    """To write into one changes no later run."""
    want = graphdoc.Session(model, level=1).run({"x": X})["y"].copy()
    session = graphdoc.Session(model, level=1)

    session.run({"x": X})["y"][:] = -1
    np.testing.assert_array_equal(session.run({"x": X})["y"], want)


def test_a_model_written_over_is_another(model: Path) -> None:
    """The hash is of what is in the file now."""
    graphdoc.Session(model, level=1).run({"x": X})
    onnx.save(onnx.parser.parse_model(TEXT.replace("2, 3}", "2, 9}")), model)

    session = graphdoc.Session(model, level=1)
    assert opened(session)
    np.testing.assert_allclose(
        session.run({"x": X})["y"], graphdoc.Session(model).run({"x": X})["y"], rtol=1e-6
    )


def test_a_model_with_data_files_is_not_kept(model: Path) -> None:
    """Its bytes alone do not say what it computes."""
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), "w")
    )  # bytes that can go
    onnx.save(proto, model, save_as_external_data=True, size_threshold=0, location="w.data")
    assert (model.parent / "w.data").exists()
    graphdoc.Session(model, level=1).run({"x": X})

    assert programs(model) == 0


def test_what_is_no_model_is_refused_at_once(model: Path) -> None:
    """As without the cache."""
    model.write_bytes(b"nothing of the kind")
    for path in (model, model.parent / "none.onnx", model.parent):
        with pytest.raises(ModelError):
            graphdoc.Session(path, level=1)
