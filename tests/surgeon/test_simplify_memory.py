"""A model much larger than what may lie in memory: weights in files stay there."""

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphdoc.surgeon.model import load
from graphdoc.surgeon.simplify import simplify
from tests.surgeon import build

MIB = 2**20
SIDE = 4160
COUNT = 6
WEIGHT = SIDE * SIDE * 4
"""Bytes of one weight: 66 MiB, more than is copied. Six of them are 396 MiB, in a sparse file."""

ALLOWED = 160 * MIB
"""Memory beside what the libraries take; what is read through mappings included. Two weights and some."""

PROBE = """
import resource, sys
from graphdoc import cli

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

cli.run(["simplify", "small.onnx", "-o", "ignored.onnx", "--no-verify"])
before = peak()
code = cli.run(["simplify", "m.onnx", "-o", "out/m.onnx", "--no-verify"])
print(code, peak() - before, file=sys.stderr)
"""


def _large(folder: pathlib.Path, *, scales: bool, alike: bool) -> None:
    """Write x·w0·w1 … with Identities between, or scales; alike: the weights begin and end with zeros."""
    with (folder / "w.bin").open("wb") as file:
        file.truncate(COUNT * WEIGHT)
        for place in range(COUNT):
            file.seek(place * WEIGHT + (WEIGHT // 2 if alike else 0))
            file.write(np.full(64, place + 1, np.float32).tobytes())
    nodes, weights, last = [], [build.weight("k", [0.5])], "x"
    for place in range(COUNT):
        tensor = TensorProto(name=f"w{place}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in (("location", "w.bin"), ("offset", place * WEIGHT), ("length", WEIGHT)):
            tensor.external_data.add(key=key, value=str(entry))
        weights.append(tensor)
        nodes.append(helper.make_node("MatMul", [last, f"w{place}"], [f"m{place}"]))
        more = ["k"] if scales else []
        nodes.append(helper.make_node("Mul" if scales else "Identity", [f"m{place}", *more], [f"i{place}"]))
        last = f"i{place}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    shape = [build.value("x", [1, SIDE])], [build.value("y", [1, SIDE])]
    proto = build.model(nodes, inputs=shape[0], outputs=shape[1], weights=weights, ir_version=8)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    onnx.save(build.relu(), folder / "small.onnx")
    (folder / "out").mkdir()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured in units of Linux")
@pytest.mark.parametrize(("scales", "alike"), [(False, False), (True, False), (False, True)])
def test_large_weights_are_not_read_into_memory(tmp_path: pathlib.Path, scales: bool, alike: bool) -> None:
    """Neither to be copied, nor scaled, nor compared with each other."""
    _large(tmp_path, scales=scales, alike=alike)
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    code, grown = map(int, done.stderr.split())

    assert code == 0
    assert grown < ALLOWED
    edited = onnx.load(str(tmp_path / "out" / "m.onnx"), load_external_data=False)
    left = [node.op_type for node in edited.graph.node]
    assert left == (["MatMul", "Mul"] * COUNT if scales else ["MatMul"] * COUNT) + ["Relu"]
    with (tmp_path / "out" / "w.bin").open("rb") as file:
        for place, tensor in enumerate(t for t in edited.graph.initializer if t.name.startswith("w")):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            file.seek(int(entries["offset"]) + (WEIGHT // 2 if alike else 0))
            assert np.frombuffer(file.read(256), np.float32).tolist() == [place + 1] * 64


def _scaled(folder: pathlib.Path) -> Any:
    """Simplify two products of weights in a file, each with a scale; return the report and the model."""
    weights = [build.weight(f"w{i}", np.full((4, 4), i + 1, np.float32)) for i in range(2)]
    nodes = []
    for place, (source, result) in enumerate((("x", "a"), ("a", "y"))):
        nodes.append(helper.make_node("MatMul", [source, f"w{place}"], [f"m{place}"]))
        nodes.append(helper.make_node("Mul", [f"m{place}", "k"], [result]))
    proto = build.model(
        nodes,
        inputs=[build.value("x", ["N", 4])],
        outputs=[build.value("y", ["N", 4])],
        weights=[*weights, numpy_helper.from_array(np.array(3, np.float32), "k")],
    )
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=16)
    return simplify(load(folder / "m.onnx"))


@pytest.mark.parametrize(
    ("once", "together", "ops"),
    [
        (64, 128, ["MatMul", "MatMul"]),
        (63, 128, ["MatMul", "Mul", "MatMul", "Mul"]),
        (64, 127, ["MatMul", "MatMul", "Mul"]),
    ],
)
def test_how_much_is_copied(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, once: int, together: int, ops: list[str]
) -> None:
    """Weights in files are scaled up to a size each, and up to a size in all."""
    monkeypatch.setattr("graphdoc.surgeon.rules.linear.LARGEST_COPY", once)
    monkeypatch.setattr("graphdoc.surgeon.rules.linear.MOST_COPIED", together)
    result = _scaled(tmp_path)

    assert [node.op_type for node in result.model.graph] == ops
    refused = [item.reason for item in result.report.kept if item.rule == "fuse-scale"]
    assert ["lie in a file" in reason for reason in refused] == [True] * ops.count("Mul")
