"""save writes all or nothing, keeps external data, and moves weights that do not fit to a file."""

import os
import pathlib
import stat
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon import saver
from graphdoc.surgeon.model import load, open_source, save
from graphdoc.surgeon.reader import read_model
from tests.surgeon import build

X = np.array([10, 20], np.float32)


def run(path: pathlib.Path) -> list[float]:
    """Return y for x = [10, 20] on ONNX Runtime without optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: list[float] = session.run(None, {"x": X})[0].tolist()
    return found


def stored(folder: pathlib.Path, location: str = "data/w.bin", content: Any = (1, 2)) -> pathlib.Path:
    """Write x + w with w in an external file; return the model's path."""
    folder.mkdir(exist_ok=True)
    data = folder / location
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_bytes(np.asarray(content, np.float32).tobytes())
    path = folder / "m.onnx"
    path.write_bytes(build.external(location).SerializeToString())
    return path


def files(folder: pathlib.Path) -> list[str]:
    """Return all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_saved_model_runs(tmp_path: pathlib.Path) -> None:
    """What is written can be read by ONNX Runtime."""
    save(read_model(build.add(), None), tmp_path / "m.onnx")

    assert run(tmp_path / "m.onnx") == [11, 22]
    assert files(tmp_path) == ["m.onnx"]


def test_external_data_follows_into_another_folder(tmp_path: pathlib.Path) -> None:
    """The data file is copied to the same relative place, whatever the working directory is."""
    source = stored(tmp_path / "a")
    (tmp_path / "b").mkdir()
    save(load(source), tmp_path / "b" / "m.onnx")

    assert files(tmp_path / "b") == ["data/w.bin", "m.onnx"]
    assert run(tmp_path / "b" / "m.onnx") == [11, 22]
    assert open_source(source).sha256 == open_source(tmp_path / "b" / "m.onnx").sha256


def test_saving_in_place_keeps_the_data(tmp_path: pathlib.Path) -> None:
    """A model saved over itself still finds its weights."""
    path = stored(tmp_path)
    model = load(path)
    model.graph[0].name = "edited"
    save(model, path)

    assert run(path) == [11, 22]
    assert files(tmp_path) == ["data/w.bin", "m.onnx"]


def test_equal_data_file_is_shared(tmp_path: pathlib.Path) -> None:
    """A data file that is there with the same content is left as it is."""
    source = stored(tmp_path / "a")
    other = stored(tmp_path / "b")
    before = (tmp_path / "b/data/w.bin").stat().st_mtime_ns
    save(load(source), other)

    assert (tmp_path / "b/data/w.bin").stat().st_mtime_ns == before


def test_data_file_of_another_model_is_not_replaced(tmp_path: pathlib.Path) -> None:
    """Other weights under the same name are refused, and nothing is written."""
    source = stored(tmp_path / "a")
    stored(tmp_path / "b", content=(5, 6))

    with pytest.raises(ModelError, match="exists with other content"):
        save(load(source), tmp_path / "b" / "new.onnx")
    assert run(tmp_path / "b" / "m.onnx") == [15, 26]
    assert files(tmp_path / "b") == ["data/w.bin", "m.onnx"]


def test_edited_external_weight_moves_into_the_file(tmp_path: pathlib.Path) -> None:
    """A weight that was replaced in memory is stored in the model; the data file is not touched."""
    path = stored(tmp_path)
    model = load(path)
    model.graph.initializers["w"].const_value = ir.Tensor(np.array([3, 4], np.float32), name="w")
    save(model, path)

    assert run(path) == [13, 24]


def test_weights_past_the_limit_go_to_a_file(tmp_path: pathlib.Path) -> None:
    """A model too large for one message gets its weights beside it, each of them once."""
    big = np.arange(4096, dtype=np.float32)
    nodes = [
        helper.make_node("ReduceSum", ["big"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["t"]),
        helper.make_node("Add", ["t", "w"], ["y"]),
    ]
    weights = [build.weight("big", big), build.weight("w", [1, 2])]
    model = read_model(build.model(nodes, weights=weights), None)
    save(model, tmp_path / "m.onnx", limit=10_000)

    assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx.data").stat().st_size == big.nbytes
    assert run(tmp_path / "m.onnx") == pytest.approx([big.sum() + 11, big.sum() + 22])
    assert not isinstance(model.graph.initializers["big"].const_value, ir.ExternalTensor)


def test_sparse_file_past_two_gigabytes(tmp_path: pathlib.Path) -> None:
    """More than 2 GB of external data are loaded lazily and saved in place without being read."""
    path = stored(tmp_path, "w.bin")
    with (tmp_path / "w.bin").open("r+b") as file:
        file.truncate(3 * 2**30)
    proto = build.external("w.bin", offset=0, length=3 * 2**30, dims=[3 * 2**28])
    path.write_bytes(proto.SerializeToString())
    model = load(path)
    save(model, tmp_path / "again.onnx")

    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    assert weight.numpy()[:3].tolist() == [1, 2, 0]
    assert onnx.load(tmp_path / "again.onnx", load_external_data=False) == proto


def test_a_model_too_large_without_its_weights_says_so(tmp_path: pathlib.Path) -> None:
    """Tensors in attributes cannot move: the error names the limit, and nothing is left."""
    tensor = numpy_helper.from_array(np.zeros(4096, np.float32))
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Relu", ["x"], ["y"])]
    model = read_model(build.model(nodes), None)

    with pytest.raises(ModelError, match="does not fit into one protobuf message"):
        save(model, tmp_path / "m.onnx", limit=10_000)
    assert files(tmp_path) == []


# Failures


@pytest.mark.parametrize("moment", ["write", "rename"])
def test_failure_leaves_the_old_file(
    moment: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a refused rename leaves the old file whole, no temporary file, and a clear error."""
    path = tmp_path / "m.onnx"
    save(read_model(build.relu(), None), path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if moment == "write":
        monkeypatch.setattr(saver.os, "fdopen", fail)
    else:
        monkeypatch.setattr(pathlib.Path, "replace", fail)
    with pytest.raises(ModelError, match=r"cannot write 'm\.onnx': no space left on device"):
        save(read_model(build.add(), None), path)

    assert path.read_bytes() == before
    assert files(tmp_path) == ["m.onnx"]


def test_failure_takes_copied_data_away(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the data file was copied leaves neither it nor its folder."""
    source = stored(tmp_path / "a")
    (tmp_path / "b").mkdir()
    model = load(source)
    monkeypatch.setattr(
        saver, "_serialize", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    )

    with pytest.raises(ModelError, match="input/output error"):
        save(model, tmp_path / "b" / "m.onnx")
    assert list((tmp_path / "b").rglob("*")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="limits of the file size are those of POSIX")
def test_a_real_limit_of_the_system(tmp_path: pathlib.Path) -> None:
    """Where the system stops the writing in the middle, nothing is left."""
    script = f"""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from graphdoc.surgeon.model import load, save
        model = load({str(tmp_path / "m.onnx")!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            save(model, {str(tmp_path / "out.onnx")!r})
        except Exception as error:
            sys.exit(f"{{type(error).__name__}}: {{error}}")
    """
    proto = build.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        weights=[build.weight("unused", np.zeros(10_000, np.float32))],
    )
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    command = [sys.executable, "-B", "-c", textwrap.dedent(script)]  # no half-written bytecode is left either
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 1
    assert "ModelError: cannot write 'out.onnx': file too large" in done.stderr
    assert files(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize(
    ("target", "words"), [("", "is a folder"), ("no/such/m.onnx", "no folder"), ("m\0.onnx", "null")]
)
def test_impossible_targets(target: str, words: str, tmp_path: pathlib.Path) -> None:
    """A folder, a missing folder, an impossible name: refused before anything is written."""
    with pytest.raises((ModelError, ValueError), match=words):
        save(read_model(build.relu(), None), tmp_path / target)
    assert files(tmp_path) == []


def test_links_and_permissions_stay(tmp_path: pathlib.Path) -> None:
    """Saving through a link replaces its target, which keeps its mode; a new file gets the usual one."""
    real = tmp_path / "real.onnx"
    save(read_model(build.relu(), None), real)
    real.chmod(0o640)
    (tmp_path / "link.onnx").symlink_to(real)
    save(read_model(build.add(), None), tmp_path / "link.onnx")
    mask = os.umask(0o022)
    os.umask(mask)
    save(read_model(build.relu(), None), tmp_path / "new.onnx")

    assert (tmp_path / "link.onnx").is_symlink()
    assert run(real) == [11, 22]
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new.onnx").stat().st_mode) == 0o666 & ~mask


def test_an_initializer_without_data_is_refused(tmp_path: pathlib.Path) -> None:
    """A weight whose tensor was taken away cannot be saved."""
    model = read_model(build.add(), None)
    model.graph.initializers["w"].const_value = None

    with pytest.raises(ModelError, match="initializer 'w' has no data"):
        save(model, tmp_path / "m.onnx")
    assert files(tmp_path) == []


def test_two_data_files_of_one_name_are_refused(tmp_path: pathlib.Path) -> None:
    """Weights taken from two models whose data files have the same name cannot be saved together."""
    first = load(stored(tmp_path / "a"))
    second = load(stored(tmp_path / "b", content=(5, 6)))
    other = second.graph.initializers["w"].const_value
    assert other is not None
    value = ir.Value(name="v", const_value=other)
    other.name = "v"
    first.graph.initializers["v"] = value
    (tmp_path / "c").mkdir()

    with pytest.raises(ModelError, match="two different data files are named"):
        save(first, tmp_path / "c" / "m.onnx")
    assert files(tmp_path / "c") == []


def test_what_is_no_file_is_not_replaced(tmp_path: pathlib.Path) -> None:
    """A pipe or a device stays what it is; a rename would put a file in its place."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ModelError, match="no ordinary file"):
        save(load(build.relu()), tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_external_data_of_a_sparse_weight_follows(tmp_path: pathlib.Path) -> None:
    """The values of a sparse initializer may lie in a file too."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "w.bin").write_bytes(np.array([3, 4], np.float32).tobytes())
    proto = build.model([helper.make_node("Add", ["x", "w"], ["y"])])
    sparse = proto.graph.sparse_initializer.add(dims=[2])
    sparse.values.CopyFrom(build.external("w.bin").graph.initializer[0])
    sparse.indices.CopyFrom(helper.make_tensor("", 7, [2], [0, 1]))
    (tmp_path / "a" / "m.onnx").write_bytes(proto.SerializeToString())
    model = load(tmp_path / "a" / "m.onnx")
    save(model, tmp_path / "b" / "m.onnx")

    weight = load(tmp_path / "b" / "m.onnx").graph.initializers["w"].const_value
    assert weight is not None
    assert weight.numpy().tolist() == [3, 4]
    assert onnx.load(tmp_path / "b" / "m.onnx", load_external_data=False) == proto
