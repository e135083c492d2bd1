"""External data: what is refused, that sizes are checked, and that weights are read lazily and once."""

import os
import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon import external
from graphdoc.surgeon.model import load, open_source
from tests.surgeon import build


def write(folder: pathlib.Path, proto: onnx.ModelProto) -> pathlib.Path:
    """Write a model and return its path."""
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location",
    [
        "../w.bin",
        "data/../../w.bin",
        "..",
        "/etc/passwd",
        "C:\\w.bin",
        "\\\\server\\w.bin",
        "data\\..\\..\\w.bin",
        "link",
        "folder/w.bin",
    ],
)
def test_places_outside_the_folder_are_refused(location: str, tmp_path: pathlib.Path) -> None:
    """Climbing, absolute paths of any system, and links that lead out are refused."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (inside / "link").symlink_to(tmp_path / "w.bin")
    (inside / "folder").symlink_to(tmp_path)
    path = write(inside, build.external(location))

    with pytest.raises(ModelError, match="refused: external data lies outside the model's folder") as caught:
        load(path)
    assert caught.value.where is not None
    assert location in caught.value.where


def test_a_link_inside_the_folder_is_fine(tmp_path: pathlib.Path) -> None:
    """Links that stay within, and files with several hard links, are read."""
    (tmp_path / "real.bin").write_bytes(np.array([1, 2], np.float32).tobytes())
    (tmp_path / "link.bin").symlink_to(tmp_path / "real.bin")
    os.link(tmp_path / "real.bin", tmp_path / "hard.bin")
    for location in ("link.bin", "hard.bin", "./real.bin"):
        weight = load(write(tmp_path, build.external(location))).graph.initializers["w"].const_value
        assert weight is not None
        assert weight.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("size", "offset", "length", "words"),
    [
        (None, 0, 8, "no such file"),
        (4, 0, 8, "ends at byte 4"),
        (8, 4, 8, "ends at byte 8, but the tensor reaches to byte 12"),
        (8, 4, None, "ends at byte 8, but the tensor reaches to byte 12"),
        (80, 0, 80, "has 80 bytes; dims and type ask for 8"),
        (80, -1, 8, "offset or length that is no size"),
        (80, "x", 8, "offset or length that is no size"),
        (80, 10**30, 8, "ends at byte 80"),
    ],
)
def test_sizes_are_held_against_the_file(
    size: int | None, offset: int, length: int | None, words: str, tmp_path: pathlib.Path
) -> None:
    """Missing, short and ill-fitting data is refused at load, before anything is read."""
    if size is not None:
        (tmp_path / "w.bin").write_bytes(bytes(size))
    path = write(tmp_path, build.external("w.bin", offset, length))

    with pytest.raises(ModelError, match=words):
        load(path)


@pytest.mark.parametrize("location", ["", "sub"])
def test_a_location_that_is_no_file(location: str, tmp_path: pathlib.Path) -> None:
    """An empty location and a folder are refused."""
    (tmp_path / "sub").mkdir()

    with pytest.raises(ModelError, match=r"without a location|not a regular file"):
        load(write(tmp_path, build.external(location)))


def test_a_model_in_memory_has_no_folder() -> None:
    """External data of a model that came without a path cannot be found."""
    with pytest.raises(ModelError, match="came without a path"):
        load(build.external("w.bin"))


def test_in_subgraphs_functions_and_constants(tmp_path: pathlib.Path) -> None:
    """External tensors are found wherever tensors may stand."""
    tensor = build.external("gone.bin").graph.initializer[0]
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["a"])], "t", [], [build.value("a")], [tensor]
    )
    branch = build.model(
        [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)],
        inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)],
    )
    node = build.model([helper.make_node("Constant", [], ["y"], value=tensor)])
    constant = helper.make_node("Constant", [], ["b"], value=tensor)
    function = helper.make_function("own", "F", [], ["b"], [constant], [helper.make_opsetid("", 18)])
    called = build.model([helper.make_node("F", [], ["y"], domain="own")], functions=[function])
    called.opset_import.add(domain="own", version=1)

    for proto in (branch, node, called):
        assert [t.name for t in external.external_tensors(proto)][:1] == ["w"]
        with pytest.raises(ModelError, match="no such file"):
            load(write(tmp_path, proto))


def test_weights_are_read_once_and_late(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading opens no data file; a thousand tensors of one file share one mapping."""
    opened: list[str] = []
    bytes_of = external.WeightFile.bytes

    def counted(self: external.WeightFile) -> object:
        if self._bytes is None:
            opened.append(self.path.name)
        return bytes_of(self)

    monkeypatch.setattr(external.WeightFile, "bytes", counted)
    (tmp_path / "w.bin").write_bytes(np.arange(2000, dtype=np.float32).tobytes())
    proto = build.relu()
    for number in range(1000):
        tensor = build.external("w.bin", 8 * number).graph.initializer[0]
        tensor.name = f"w{number}"
        proto.graph.initializer.append(tensor)
    model = load(write(tmp_path, proto))

    assert opened == []
    values = [value.const_value for value in model.graph.initializers.values()]
    assert [v.numpy().tolist() for v in values if v is not None] == [
        [2.0 * n, 2.0 * n + 1] for n in range(1000)
    ]
    assert opened == ["w.bin"]


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        (TensorProto.INT4, [1, -2, 3]),
        (TensorProto.UINT2, [3, 0, 1, 2, 3]),
        (TensorProto.BFLOAT16, [1.5, -2.0]),
        (TensorProto.FLOAT8E4M3FN, [0.5, 448.0]),
        (TensorProto.BOOL, [True, False]),
        (TensorProto.INT64, []),
    ],
)
def test_every_width(dtype: int, array: list[float], tmp_path: pathlib.Path) -> None:
    """Packed, narrow and empty tensors read as onnx itself reads them."""
    stored = helper.make_tensor("w", dtype, [len(array)], array)
    packed = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(stored), "w")
    (tmp_path / "w.bin").write_bytes(packed.raw_data)
    proto = build.external("w.bin", 0, len(packed.raw_data), dims=[len(array)])
    proto.graph.initializer[0].data_type = dtype
    weight = load(write(tmp_path, proto)).graph.initializers["w"].const_value

    assert weight is not None
    assert weight.numpy().tolist() == onnx.numpy_helper.to_array(stored).tolist()
    assert weight.tobytes() == packed.raw_data


def test_a_file_that_shrinks_after_loading(tmp_path: pathlib.Path) -> None:
    """Data that goes missing between load and use is an error of the model, with its place."""
    (tmp_path / "w.bin").write_bytes(bytes(8))
    weight = load(write(tmp_path, build.external("w.bin"))).graph.initializers["w"].const_value
    (tmp_path / "w.bin").unlink()

    assert weight is not None
    with pytest.raises(ModelError, match="cannot be read: no such file"):
        weight.numpy()


def test_hash_and_size_cover_the_data(tmp_path: pathlib.Path) -> None:
    """A changed data file changes the hash; the size is that of all files."""
    (tmp_path / "w.bin").write_bytes(bytes(8))
    path = write(tmp_path, build.external("w.bin"))
    before = open_source(path)
    first = before.sha256
    (tmp_path / "w.bin").write_bytes(bytes(7) + b"\1")
    after = open_source(path)

    assert before.size == path.stat().st_size + 8
    assert after.sha256 != first
    assert open_source(path).sha256 == after.sha256


def test_hash_of_a_single_file_is_that_of_its_bytes(tmp_path: pathlib.Path) -> None:
    """sha256sum gives the same."""
    import hashlib

    path = write(tmp_path, build.add())

    assert open_source(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
