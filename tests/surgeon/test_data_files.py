"""A data file is written over only when it belongs to the very model that is replaced with it."""

import pathlib
import shutil

import numpy as np
import onnx
import pytest

from graphdoc import cli, surgeon
from graphdoc.engine.errors import ModelError
from tests.surgeon import build
from tests.surgeon import edit_models as m


def weighty(scale: float = 1.0) -> onnx.ModelProto:
    """Return y = x + w with w of 64 numbers."""
    return build.model(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        inputs=[build.value("x", [64])],
        outputs=[build.value("y", [64])],
        weights=[build.weight("w", np.arange(64, dtype=np.float32) * scale)],
    )


def save(path: pathlib.Path, location: str, scale: float = 1.0) -> None:
    """Write the model with its weight in a file."""
    surgeon.save(surgeon.load(weighty(scale)), path, layout=surgeon.Layout(location, threshold=0))


def last(path: pathlib.Path) -> float:
    """Return the last output for zeros, from ONNX Runtime, files read by onnx."""
    return float(m.run(onnx.load(path), x=np.zeros(64, np.float32))["y"][-1])


@pytest.mark.parametrize("name", ["notes.txt", "old.onnx", "empty", "w/w"])
def test_a_file_of_somebody_else_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    """A text, a model, an empty file, one in a folder: nothing is written, another name is offered."""
    content = b"" if name == "empty" else b"dear diary"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match="would be overwritten") as caught:
        save(tmp_path / "m.onnx", "w/" if name == "w/w" else name)

    assert "--external m.onnx.data" in str(caught.value.next_step)
    assert (tmp_path / name).read_bytes() == content
    assert not (tmp_path / "m.onnx").exists()


def test_the_input_of_an_edit_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--external with the name of the model that is read."""
    base, out = tmp_path / "base.onnx", tmp_path / "v3.onnx"
    onnx.save(weighty(), base)
    arguments = ["edit", str(base), "-o", str(out), "--external-from", "0", "--external", "base.onnx"]

    assert cli.run(arguments) == 3
    assert "would be overwritten" in capsys.readouterr().err
    assert last(base) == 63
    assert not out.exists()


def test_data_of_another_model_is_refused(tmp_path: pathlib.Path) -> None:
    """A second model does not take over the data file of the first."""
    save(tmp_path / "base.onnx", "w.data")
    with pytest.raises(ModelError, match=r"no data file of 'v2\.onnx'"):
        save(tmp_path / "v2.onnx", "w.data", scale=0.0)

    assert last(tmp_path / "base.onnx") == 63


def test_data_that_two_models_share_is_refused(tmp_path: pathlib.Path) -> None:
    """The model owns the file, but another reads it too, here or beside the data."""
    save(tmp_path / "base.onnx", "d/w.data")
    shutil.copy(tmp_path / "base.onnx", tmp_path / "v2.onnx")
    with pytest.raises(ModelError, match=r"'v2\.onnx' reads it too"):
        save(tmp_path / "base.onnx", "d/w.data", scale=0.0)
    assert last(tmp_path / "v2.onnx") == 63

    (tmp_path / "v2.onnx").unlink()
    inner = surgeon.load(tmp_path / "base.onnx")
    surgeon.save(inner, tmp_path / "d" / "v3.onnx", layout=surgeon.Layout("other.data", threshold=0))
    text = (tmp_path / "d" / "v3.onnx").read_bytes().replace(b"other.data", b"././w.data")
    (tmp_path / "d" / "v3.onnx").write_bytes(text)
    with pytest.raises(ModelError, match=r"'v3\.onnx' reads it too"):
        save(tmp_path / "base.onnx", "d/w.data", scale=0.0)


def test_own_data_is_replaced(tmp_path: pathlib.Path) -> None:
    """The file that the replaced model alone read; a neighbour with a similar name does not matter."""
    save(tmp_path / "base.onnx", "w.data")
    save(tmp_path / "other.onnx", "other.w.data")
    save(tmp_path / "base.onnx", "w.data", scale=2.0)

    assert last(tmp_path / "base.onnx") == 126
    assert last(tmp_path / "other.onnx") == 63


def test_a_broken_neighbour_that_names_the_file_counts(tmp_path: pathlib.Path) -> None:
    """What cannot be read may still be needed."""
    save(tmp_path / "base.onnx", "w.data")
    (tmp_path / "half.onnx").write_bytes(b"\x08\x08\x12\xff w.data")
    with pytest.raises(ModelError, match=r"half\.onnx"):
        save(tmp_path / "base.onnx", "w.data", scale=2.0)
    (tmp_path / "half.onnx").write_bytes(b"\x08\x08\x12\xff")
    save(tmp_path / "base.onnx", "w.data", scale=2.0)


def test_weights_that_do_not_fit_replace_nothing(tmp_path: pathlib.Path) -> None:
    """The data file that a large model gets by itself follows the same rule."""
    big = np.arange(4096, dtype=np.float32)
    node = onnx.helper.make_node("ReduceSum", ["big"], ["y"])
    model = surgeon.load(build.model([node], weights=[build.weight("big", big)]))
    (tmp_path / "m.onnx.data").write_text("mine")
    with pytest.raises(ModelError, match="would be overwritten"):
        surgeon.save(model, tmp_path / "m.onnx", limit=10_000)

    assert (tmp_path / "m.onnx.data").read_text() == "mine"


def test_the_model_does_not_replace_its_own_data(tmp_path: pathlib.Path) -> None:
    """The output under the name of the data file would lose the weights."""
    save(tmp_path / "m.onnx", "w.data")
    with pytest.raises(ModelError, match="holds weights of the model"):
        surgeon.save(surgeon.load(tmp_path / "m.onnx"), tmp_path / "w.data")

    assert last(tmp_path / "m.onnx") == 63


def test_a_place_outside_names_the_option(tmp_path: pathlib.Path) -> None:
    """Whoever writes is not told to move data beside the model."""
    with pytest.raises(ModelError, match="in its own folder only") as caught:
        save(tmp_path / "m.onnx", str(tmp_path / "w.data"))

    assert "--external m.onnx.data" in str(caught.value.next_step)
