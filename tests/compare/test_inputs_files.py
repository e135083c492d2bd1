"""Inputs from files: what is read, what is converted and said, and what is refused with which words."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphdoc.compare.inputs import Inputs, load_input_sets, load_inputs
from graphdoc.compare.inputs_pickle import RefusedError, strings_from_pickle
from graphdoc.engine.errors import InputError
from graphdoc.surgeon.model import load
from tests.compare.input_models import build

TWO = "float[N, 3] x, int64[N] ids"


def read(path: Path, inputs: str = TWO, **options: Any) -> Inputs:
    """Load a file for a model with these inputs."""
    names = [text.strip().split(" ")[-1] for text in inputs.split(", ") if " " in text.strip()]
    names = [name for name in names if name.isidentifier()]
    body = "\n".join(f"y{k} = Identity ({name})" for k, name in enumerate(names))
    kinds = inputs.split("[", 1)[0]
    model = build(inputs, f"{kinds}[a] y0", body)
    return load_inputs(load(model), path, **options)


def refused(path: Path, inputs: str = TWO) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path, inputs)
    assert caught.value.where
    assert caught.value.next_step
    return caught.value


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def ids() -> np.ndarray:
    return np.array([4, 5], dtype=np.int64)


# ---- formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_by_name(tmp_path: Path, save: Any, x: np.ndarray, ids: np.ndarray) -> None:
    save(tmp_path / "in.npz", x=x, ids=ids)
    inputs = read(tmp_path / "in.npz")

    np.testing.assert_array_equal(inputs.feeds["x"], x)
    np.testing.assert_array_equal(inputs.feeds["ids"], ids)
    assert inputs.sources == {"x": "file in.npz", "ids": "file in.npz"}
    assert inputs.seed is None


def test_npz_without_names_goes_by_position(tmp_path: Path, x: np.ndarray, ids: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x, ids)

    np.testing.assert_array_equal(read(tmp_path / "in.npz").feeds["ids"], ids)


def test_npz_keeps_column_order_and_foreign_byte_order(tmp_path: Path, x: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x=np.asfortranarray(x).astype(">f4"), ids=np.array([1, 2], ">i8"))
    inputs = read(tmp_path / "in.npz")

    np.testing.assert_array_equal(inputs.feeds["x"], x)
    assert inputs.feeds["x"].dtype == np.float32
    assert inputs.feeds["x"].dtype.isnative
    assert inputs.feeds["ids"].tolist() == [1, 2]


def test_npy_for_a_single_input(tmp_path: Path, x: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", x)

    np.testing.assert_array_equal(read(tmp_path / "x.npy", "float[N, 3] x").feeds["x"], x)


def test_npy_for_two_inputs_lacks_one(tmp_path: Path, x: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", x)

    assert "no value for input 'ids'" in refused(tmp_path / "x.npy").cause


def test_the_content_decides_not_the_ending(tmp_path: Path, x: np.ndarray, ids: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x=x, ids=ids)
    (tmp_path / "in.npz").rename(tmp_path / "in.data")

    assert set(read(tmp_path / "in.data").feeds) == {"x", "ids"}


def write_pb(path: Path, array: np.ndarray, name: str = "") -> None:
    path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())


@pytest.mark.parametrize("names", [("x", "ids"), ("", "")], ids=["named", "nameless"])
def test_a_folder_of_test_data(
    tmp_path: Path, names: tuple[str, str], x: np.ndarray, ids: np.ndarray
) -> None:
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    write_pb(folder / "input_0.pb", x, names[0])
    write_pb(folder / "input_1.pb", ids, names[1])
    inputs = read(folder)

    np.testing.assert_array_equal(inputs.feeds["x"], x)
    np.testing.assert_array_equal(inputs.feeds["ids"], ids)


def test_more_than_ten_files_keep_their_order(tmp_path: Path) -> None:
    inputs = ", ".join(f"float[1] v{k}" for k in range(12))
    for k in range(12):
        write_pb(tmp_path / f"input_{k}.pb", np.array([k], np.float32))

    assert [read(tmp_path, inputs).feeds[f"v{k}"][0] for k in range(12)] == list(range(12))


def test_several_sets_the_first_is_taken_and_said(tmp_path: Path) -> None:
    for k in (0, 1, 10):
        folder = tmp_path / f"test_data_set_{k}"
        folder.mkdir()
        write_pb(folder / "input_0.pb", np.full(2, k, np.float32))
    model = load(build("float[N] x", "float[N] y", "y = Neg (x)"))

    assert load_inputs(model, tmp_path).sources == {"x": "test_data_set_0 (1 of 3 sets)"}
    assert [inputs.feeds["x"][0] for inputs in load_input_sets(model, tmp_path)] == [0, 1, 10]


def test_a_single_protobuf(tmp_path: Path, x: np.ndarray) -> None:
    write_pb(tmp_path / "x.pb", x, "another name")

    np.testing.assert_array_equal(read(tmp_path / "x.pb", "float[N, 3] x").feeds["x"], x)


def test_protobufs_of_strings_and_low_precision(tmp_path: Path) -> None:
    words = onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [2], ["ä".encode(), b"b"])
    (tmp_path / "s.pb").write_bytes(words.SerializeToString())
    write_pb(tmp_path / "b.pb", np.array([1.5, 2], ml_dtypes.bfloat16))

    assert read(tmp_path / "s.pb", "string[N] s").feeds["s"].tolist() == ["ä", "b"]
    assert read(tmp_path / "b.pb", "bfloat16[N] b").feeds["b"].dtype == ml_dtypes.bfloat16


def other_model(kind: onnx.TypeProto) -> Any:
    """Return a model whose only input is a sequence or an optional."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["s"], ["y"])],
        "g",
        [onnx.helper.make_value_info("s", kind)],
        [onnx.helper.make_value_info("y", kind)],
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    return load(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8))


FLOATS = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None])


def test_a_sequence_protobuf(tmp_path: Path) -> None:
    arrays = [np.array([1], np.float32), np.array([2, 3], np.float32)]
    (tmp_path / "input_0.pb").write_bytes(numpy_helper.from_list(arrays, "s").SerializeToString())
    inputs = load_inputs(other_model(onnx.helper.make_sequence_type_proto(FLOATS)), tmp_path)

    assert [array.tolist() for array in inputs.feeds["s"]] == [[1], [2, 3]]


@pytest.mark.parametrize("value", [None, np.array([1, 2], np.float32)], ids=["empty", "full"])
def test_an_optional_protobuf(tmp_path: Path, value: np.ndarray | None) -> None:
    kind = onnx.OptionalProto.TENSOR
    proto = numpy_helper.from_optional(value, "s", kind if value is not None else None)
    (tmp_path / "input_0.pb").write_bytes(proto.SerializeToString())
    found = load_inputs(other_model(onnx.helper.make_optional_type_proto(FLOATS)), tmp_path).feeds["s"]

    assert (found is None) if value is None else found.tolist() == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        '{"x": [[0, 1, 2], [3, 4, 5]], "ids": [4, 5]}',
        '{"x": {"shape": [2, 3], "data": [0, 1, 2, 3, 4, 5]}, "ids": [4, 5]}',
    ],
    ids=["lists", "shape and data"],
)
def test_json(tmp_path: Path, text: str, x: np.ndarray, ids: np.ndarray) -> None:
    (tmp_path / "in.json").write_text(text)
    inputs = read(tmp_path / "in.json")

    np.testing.assert_array_equal(inputs.feeds["x"], x)
    np.testing.assert_array_equal(inputs.feeds["ids"], ids)


def test_json_of_one_input_and_of_strings(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('[["ä", "b"]]')

    assert read(tmp_path / "in.json", "string[N, 2] s").feeds["s"].tolist() == [["ä", "b"]]


# ---- strings in pickles -------------------------------------------------------------------------------

STRINGS = np.array([["ä", "b\0c"], ["", "日本"]], dtype=object)


@pytest.mark.parametrize("array", [STRINGS, np.asfortranarray(STRINGS), STRINGS[:0], STRINGS[::-1]])
def test_pickled_strings(tmp_path: Path, array: np.ndarray) -> None:
    """NumPy's own reader is the oracle."""
    np.savez(tmp_path / "in.npz", s=array)
    found = read(tmp_path / "in.npz", "string[N, 2] s").feeds["s"]

    with np.load(tmp_path / "in.npz", allow_pickle=True) as file:
        np.testing.assert_array_equal(found, file["s"])
    assert found.dtype == object


def test_unicode_arrays_and_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", s=np.array(["ä", "bc"]), t=np.array([b"x", b"yz"]))
    inputs = read(tmp_path / "in.npz", "string[N] s, string[M] t")

    assert inputs.feeds["s"].tolist() == ["ä", "bc"]
    assert inputs.feeds["t"].tolist() == ["x", "yz"]
    assert all(type(item) is str for array in inputs.feeds.values() for item in array)
    assert inputs.sources["t"] == "file in.npz (bytes read as UTF-8)"


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_strings_of_every_protocol(protocol: int) -> None:
    array = np.array([np.str_("hé"), "x" * 300], dtype=object)

    assert strings_from_pickle(pickle.dumps(array, protocol=protocol)).tolist() == ["hé", "x" * 300]


class Calls:
    """Pickles as a call that must not happen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("must-not-exist",))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Calls(), "it names posix.mkdir"),
        (np.array([Calls()], dtype=object), "it names posix.mkdir"),
        (np.array([1, "a"], dtype=object), "no string but int"),
        (np.array([np.arange(3)], dtype=object), "no string but"),
        (np.arange(3), "no array of objects"),
        ([1], "it is no array"),
        ({"a": 1}, "instruction EMPTY_DICT"),
        (np.array([{"a"}], dtype=object), "instruction"),
    ],
)
def test_other_pickles_are_refused_and_nothing_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match=reason):
        strings_from_pickle(pickle.dumps(value))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_a_damaged_pickle_is_refused(size: int) -> None:
    data = pickle.dumps(STRINGS)
    assert size < len(data)

    with pytest.raises(RefusedError):
        strings_from_pickle(data[:size])


def test_a_refused_pickle_names_the_array_and_the_remedy(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", s=np.array([1, 2.5], dtype=object))
    error = refused(tmp_path / "in.npz", "string[N] s")

    assert error.cause == "refused: the array is pickled, and an element is no string but int"
    assert error.where == "s in in.npz"
    assert "astype(str)" in str(error.next_step)


# ---- dtypes -------------------------------------------------------------------------------------------

CONVERTED = [
    ("float", np.array([1.5], np.float64), [1.5], "converted from float64"),
    ("double", np.array([1.5], np.float32), [1.5], "converted from float32"),
    ("float", np.array([1.5], np.float16), [1.5], "converted from float16"),
    ("int64", np.array([7], np.int32), [7], "converted from int32, all values fit"),
    ("int32", np.array([-7], np.int64), [-7], "converted from int64, all values fit"),
    ("uint8", np.array([255], np.int64), [255], "converted from int64, all values fit"),
    ("bool", np.array([0, 1], np.int64), [False, True], "converted from int64, all values fit"),
    ("int64", np.array([True]), [1], "converted from bool, all values fit"),
    ("bfloat16", np.array([0x3FC0], np.uint16), [1.5], "bits of uint16 read as bfloat16"),
    ("bfloat16", np.array([1.5], np.float32), [1.5], "float32 rounded to bfloat16"),
    ("float8e4m3fn", np.array([0x3C], np.uint8), [1.5], "bits of uint8 read as float8_e4m3fn"),
    ("int4", np.array([-8, 7], np.int8), [-8, 7], "converted from int8, all values fit"),
]


@pytest.mark.parametrize(("kind", "array", "values", "note"), CONVERTED)
def test_what_fits_is_converted_and_said(
    tmp_path: Path, kind: str, array: np.ndarray, values: list[Any], note: str
) -> None:
    np.savez(tmp_path / "in.npz", x=array)
    inputs = read(tmp_path / "in.npz", f"{kind}[N] x")

    assert inputs.feeds["x"].astype(float).tolist() == [float(v) for v in values]
    assert inputs.sources["x"] == f"file in.npz ({note})"


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("int32", np.array([2**40])),
        ("uint8", np.array([-1])),
        ("bool", np.array([2])),
        ("int4", np.array([8])),
        ("float", np.array([1, 2])),
        ("int64", np.array([1.0, 2.0])),
        ("float16", np.array([1.0], np.float32)),
        ("string", np.array([1])),
        ("float", np.array(["a"])),
        ("float", np.array([1j])),
    ],
)
def test_what_does_not_fit_is_refused_with_the_command_that_repairs_it(
    tmp_path: Path, kind: str, array: np.ndarray
) -> None:
    np.savez(tmp_path / "in.npz", x=array)
    error = refused(tmp_path / "in.npz", f"{kind}[N] x")

    assert error.cause.startswith("input 'x' is ")
    assert error.cause.endswith(f"the file has {array.dtype.name}")
    assert "d['x'] = d['x'].astype('" in str(error.next_step)


def test_the_command_that_repairs_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", x=np.array([1, 2]))
    command = str(refused(Path("in.npz"), "float16[N] x").next_step)
    exec(command.split('"', 1)[1].rsplit('"', 1)[0])  # noqa: S102 (the printed command is what is tested)

    assert read(Path("fixed.npz"), "float16[N] x").feeds["x"].dtype == np.float16


# ---- names --------------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path, x: np.ndarray, ids: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x=x, idz=ids)
    error = refused(tmp_path / "in.npz")

    assert error.cause == "the file in.npz has 'idz', which is no input of the model"
    assert error.next_step == "did you mean 'ids'?"


def test_a_missing_input_is_refused_or_filled(tmp_path: Path, x: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x=x)

    assert refused(tmp_path / "in.npz").cause == "no value for input 'ids'"
    filled = read(tmp_path / "in.npz", fill=True, seed=4)
    assert filled.feeds["ids"].shape == (2,)
    assert filled.sources["ids"].startswith("seed 4: ")
    assert filled.sources["x"] == "file in.npz"
    assert filled.seed == 4


def test_a_value_too_many_is_refused(tmp_path: Path, x: np.ndarray, ids: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x, ids, x)

    assert "takes 2 inputs (0 to 1)" in refused(tmp_path / "in.npz").cause


def test_a_wrong_shape_is_refused(tmp_path: Path, ids: np.ndarray) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((2, 4), np.float32), ids=ids)

    assert refused(tmp_path / "in.npz").cause == "input 'x' has shape [N, 3], the feed [2, 4]"


# ---- hostile and broken files -------------------------------------------------------------------------


def header(descr: str, shape: str) -> bytes:
    """Return the start of an npy file."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header("<f4", "(1000000000000,)"), "announces 4,000,000,000,000 bytes, the file holds 0"),
        (header("<f4", "(2,)") + b"1234", "announces 8 bytes, the file holds 4"),
        (header("<f4", "(1,)") + b"12345678", "announces 4 bytes, the file holds 8"),
        (header("<f4", "(-1,)"), "no NumPy array|shape"),
        (header("<M8[s]", "(0,)"), "no model inputs"),
        (header("|S0", "(9,)"), "no model inputs"),
        (header("<q4", "(1,)") + b"1234", "no dtype of NumPy"),
        (header("|V8", "(1,)") + b"12345678", "the file has"),
        (header("<f4", "(2,")[:-9], "no NumPy array"),
        (b"\x93NUMPY\x01", "no NumPy array"),
        (b"\x93NUMPY\x09\x00\x10\x00", "no NumPy array"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
def test_a_header_that_does_not_match_the_file(
    tmp_path: Path, data: bytes, reason: str, packed: bool
) -> None:
    path = tmp_path / ("x.npz" if packed else "x.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    else:
        path.write_bytes(data)

    with pytest.raises(InputError, match=reason):
        read(path, "float[N] x")


def test_an_archive_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as entry:
        entry.write(header("<f4", f"({(300 << 20) // 4},)"))
        for _ in range(300):
            entry.write(bytes(1 << 20))

    assert path.stat().st_size < 1 << 20
    assert "unpacks to" in refused(path, "float[N] x").cause


def test_a_lie_about_the_unpacked_size_is_noticed(tmp_path: Path, x: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.zeros(1000, np.float32))
    data = buffer.getvalue()
    assert struct.pack("<L", 4128) in data
    (tmp_path / "x.npz").write_bytes(data.replace(struct.pack("<L", 4128), struct.pack("<L", 1 << 20)))

    assert refused(tmp_path / "x.npz", "float[N] x").where


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_truncated_archive(tmp_path: Path, keep: float) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.random.default_rng(0).random(5000, np.float32))
    data = buffer.getvalue()
    (tmp_path / "x.npz").write_bytes(data[: int(len(data) * keep)])

    assert "cannot read the npz file" in refused(tmp_path / "x.npz", "float[N] x").cause


def test_damage_inside_an_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.random.default_rng(0).random(5000, np.float32))
    data = bytearray(buffer.getvalue())
    data[500:510] = bytes(10)
    (tmp_path / "x.npz").write_bytes(bytes(data))

    assert "cannot read the npz file" in refused(tmp_path / "x.npz", "float[N] x").cause


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")

    assert "'readme.txt' is no array" in refused(tmp_path / "x.npz").cause


def test_what_is_not_there_or_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()

    assert "no such file" in refused(tmp_path / "gone.npz").cause
    assert "what kind of file notes.txt is" in refused(tmp_path / "notes.txt").cause
    assert "no inputs in the folder empty" in refused(tmp_path / "empty").cause


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for permissions, which root ignores."""
    (tmp_path / "x.npz").write_bytes(b"PK")

    def denied(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    error = refused(tmp_path / "x.npz")
    assert error.cause == f"cannot read {tmp_path / 'x.npz'}: Permission denied"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "is not JSON"),
        ('{"x": [[1, 2, 3], [4]], "ids": [1, 2]}', "cannot make an array for input 'x'"),
        ('{"x": [["a", "b", "c"]], "ids": [1]}', "something else than numbers"),
        ('{"x": [[1, 2, 3]], "ids": [1.5]}', "does not fit int64"),
        ('{"x": {"shape": [1, 3]}, "ids": [1]}', "needs 'data'"),
        ('{"x": null, "ids": [1]}', "something else than numbers"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_json_that_cannot_be_used(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "in.json").write_text(text)

    assert cause in refused(tmp_path / "in.json").cause


def test_json_numbers_keep_their_special_values(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps({"x": [float("nan"), float("inf"), 1]}))
    found = read(tmp_path / "in.json", "float[N] x").feeds["x"]

    np.testing.assert_array_equal(found, np.array([np.nan, np.inf, 1], np.float32))


@pytest.mark.parametrize("damage", ["truncated", "dims", "external", "text"])
def test_a_protobuf_that_cannot_be_used(tmp_path: Path, damage: str) -> None:
    proto = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "x")
    if damage == "dims":
        proto.dims[:] = [1 << 40]
    if damage == "external":
        proto.data_location = onnx.TensorProto.EXTERNAL
        proto.ClearField("raw_data")
    data = proto.SerializeToString()
    data = {"truncated": data[:-100], "text": b"hello world"}.get(damage, data)
    (tmp_path / "x.pb").write_bytes(data)

    assert "cannot read x.pb as tensor" in refused(tmp_path / "x.pb", "float[N] x").cause
