"""Sources: what may be opened, what is read when, and where reading a damaged file stops."""

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf.message import DecodeError

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon import files
from graphdoc.surgeon.model import load, load_proto, open_source
from tests.surgeon import build


def test_every_form_of_a_model_opens(tmp_path: pathlib.Path) -> None:
    """A path as text or Path, bytes, a ModelProto and an onnx_ir model give the same protobuf."""
    proto = build.add()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    forms = (str(path), path, proto.SerializeToString(), proto, load(path))

    assert [load_proto(form) == proto for form in forms] == [True] * 5
    assert all(isinstance(load(form), ir.Model) for form in forms)
    assert [open_source(form).name for form in forms] == ["m.onnx", "m.onnx", "model", "g", "g"]


def test_a_source_is_itself(tmp_path: pathlib.Path) -> None:
    """Opening a source gives the same one; protobuf and graph are made once."""
    source = open_source(build.add())

    assert open_source(source) is source
    assert source.proto is source.proto
    assert source.model is source.model


def test_nothing_is_read_before_it_is_asked_for(tmp_path: pathlib.Path) -> None:
    """A missing file is no error until it is used."""
    source = open_source(tmp_path / "gone.onnx")

    assert source.name == "gone.onnx"
    with pytest.raises(ModelError, match="no such file"):
        _ = source.proto


def test_size_and_hash_of_a_model_in_memory() -> None:
    """They are those of its serialised form, however it was given."""
    proto = build.add()
    data = proto.SerializeToString(deterministic=True)

    assert open_source(proto).size == open_source(data).size == len(data)
    assert open_source(proto).sha256 == open_source(data).sha256 == open_source(load(proto)).sha256


def test_checked_refuses_what_proto_gives() -> None:
    """The protobuf of an unsound model can be read; as a checked one it cannot."""
    proto = build.relu()
    proto.graph.node[0].input[0] = "nowhere"
    source = open_source(proto)

    assert source.proto is proto
    with pytest.raises(ModelError, match="never produced"):
        _ = source.checked


@pytest.mark.parametrize("length", [40, 60, 100, 250])
def test_where_a_cut_file_ends(length: int) -> None:
    """The field that the cut lies in is named, and how many bytes the whole has at least."""
    whole = build.add([1.0] * 50).SerializeToString()
    with pytest.raises(ModelError) as caught:
        files.parse(whole[:length], "m.onnx")

    error = caught.value
    assert "ends inside field 7 (graph)" in error.cause
    assert error.where is not None
    assert "download that stopped" in error.where
    needed = int("".join(c for c in (error.next_step or "").split("least")[1] if c.isdigit()))
    assert length < needed <= len(whole)


def test_a_cut_of_a_large_file_is_found_quickly() -> None:
    """The walk to the cut passes over weights and does not copy them."""
    import time

    import numpy as np

    whole = build.add(np.zeros(2_000_000, np.float32)).SerializeToString()
    started = time.monotonic()
    with pytest.raises(ModelError, match="ends inside field 7"):
        files.parse(whole[:-10], "m.onnx")

    assert time.monotonic() - started < 5


def test_bytes_with_unknown_fields_still_open() -> None:
    """Fields of a newer protobuf are passed over, as protobuf asks for."""
    data = build.relu().SerializeToString() + b"\xa2\x06\x03abc"

    assert files.parse(data, "m").graph.node[0].op_type == "Relu"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xef\xbb\xbf  <HTML>", "HTML"),
        (b"plain", "text"),
        ("ü".encode() * 300, "text"),
        (b"\x08\x0a", None),
    ],
)
def test_looks(data: bytes, kind: str | None) -> None:
    """Case, a byte order mark and cut characters do not hide what a file is; a model looks like nothing."""
    found = files.look(memoryview(data))

    assert (found is None) if kind is None else (found is not None and kind in found.kind)


def test_no_sound_model_looks_like_something_else() -> None:
    """Magic numbers are tried on files that cannot be read; real ones must not match any."""
    for proto in (
        build.relu(),
        build.add(),
        onnx.ModelProto(ir_version=8),
        onnx.ModelProto(producer_name="{"),
    ):
        assert files.look(memoryview(proto.SerializeToString())) is None


STARVED = """
import resource, sys
from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.model import load, load_proto

load(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + 90 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    load_proto(sys.argv[2])
except ModelError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
def test_a_model_that_does_not_fit_into_memory(tmp_path: pathlib.Path) -> None:
    """The file is right and the room is short: 64 MiB mapped and 64 MiB read are more than 90."""
    onnx.save(build.add(), tmp_path / "small.onnx")
    onnx.save(build.add(np.zeros(2**24, np.float32)), tmp_path / "large.onnx")
    paths = [str(tmp_path / name) for name in ("small.onnx", "large.onnx")]
    done = subprocess.run([sys.executable, "-c", STARVED, *paths], capture_output=True, text=True, check=True)

    assert "not enough memory to read the model, which has 67.1 MB" in done.stdout


@pytest.mark.parametrize("error", [MemoryError(), DecodeError("Error parsing message: Arena alloc failed")])
def test_a_parser_that_finds_no_room(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """However it says so."""

    class Full:
        def ParseFromString(self, data: bytes) -> None:  # noqa: N802 - protobuf's name
            raise error

    monkeypatch.setattr(files.onnx, "ModelProto", Full)
    with pytest.raises(ModelError, match="not enough memory to read the model, which has 3 B"):
        files.parse(b"abc", "m.onnx")
