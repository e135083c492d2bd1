"""Models whose weights stay in their file. The ordinary reader is the oracle."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import as_strided
from onnx import helper, numpy_helper

from graphdoc.engine.errors import ModelError
from graphdoc.engine.memory import let_go, model_file
from graphdoc.session import Session
from graphdoc.surgeon import mapped
from graphdoc.surgeon.mapped import open_mapped
from graphdoc.surgeon.model import load

LONG = mapped.LONG


def model(**weights: Any) -> onnx.ModelProto:
    """Return a model that adds up its weights, each given as an array."""
    names = list(weights)
    nodes = [helper.make_node("Cast", [n], [f"{n}.f"], to=onnx.TensorProto.FLOAT) for n in names]
    nodes += [helper.make_node("ReduceSum", [f"{n}.f"], [f"{n}.s"], keepdims=0) for n in names]
    nodes.append(helper.make_node("Sum", ["x", *(f"{n}.s" for n in names)], ["y"]))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N"]) for n in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "sums", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def long(dtype: Any = np.float32, seed: int = 0) -> Any:
    """Return a weight that stays in its file."""
    return np.random.default_rng(seed).integers(0, 100, LONG).astype(dtype)


def saved(tmp_path: Path, proto: onnx.ModelProto) -> Path:
    """Write a model."""
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def content(graph: Any) -> dict[str, tuple[Any, bytes]]:
    """Return the weights of a graph: dtype, shape and bytes."""
    values = {name: value.const_value for name, value in graph.initializers.items()}
    return {name: ((t.dtype, tuple(t.shape)), t.tobytes()) for name, t in values.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.float64, ml_dtypes.bfloat16])
def test_weights_are_those_of_the_ordinary_reader(tmp_path: Path, dtype: Any) -> None:
    """Long ones lie in the file, short ones in memory; all else is the same."""
    path = saved(tmp_path, model(a=long(dtype).reshape(4, -1), b=np.ones((2, 3), "f4"), c=long(dtype, 1)))
    found, want = open_mapped(path), load(path)
    assert found is not None
    graph = found.model.graph

    assert content(graph) == content(want.graph)
    assert [n.op_type for n in graph] == [n.op_type for n in want.graph]
    lies = {name: model_file(v.const_value.numpy()) is not None for name, v in graph.initializers.items()}  # type: ignore[union-attr]
    assert lies == {"a": True, "b": False, "c": True}


def test_letting_pages_go_keeps_the_content(tmp_path: Path) -> None:
    """Reading brings them back."""
    weights = long(seed=3)
    found = open_mapped(saved(tmp_path, model(a=weights)))
    assert found is not None
    array = found.model.graph.initializers["a"].const_value.numpy()  # type: ignore[union-attr]
    strided = as_strided(array, (5, 7), (4, 40))
    for part in (array, array[5:77], array[::3], array[:0], strided, weights):
        let_go(part)
    assert all(model_file(part) is not None for part in (array[::3], strided, strided.T))
    assert model_file(weights) is None

    np.testing.assert_array_equal(array, weights)


def _twice(proto: onnx.ModelProto) -> bytes:
    graph = onnx.ModelProto(graph=proto.graph).SerializeToString()
    return proto.SerializeToString() + graph


def _with(change: Callable[[onnx.ModelProto], object]) -> Callable[[onnx.ModelProto], bytes]:
    def changed(proto: onnx.ModelProto) -> bytes:
        change(proto)
        return proto.SerializeToString()

    return changed


def _again(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "a"))


def _outside(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer.add(name="e", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value="w.data")


@pytest.mark.parametrize(
    "change",
    [
        _twice,
        _with(lambda p: p.functions.add(name="f", domain="d")),
        _with(_outside),
        _with(lambda p: p.graph.initializer[0].dims.append(2)),
        _with(lambda p: p.graph.initializer.add().CopyFrom(p.graph.initializer[0])),
        _with(_again),
        lambda p: p.SerializeToString()[:-9],
        lambda p: b"\xff" * (2 * LONG),
        lambda p: bytes(2 * LONG),
        lambda p: b"",
    ],
)
def test_what_is_odd_is_left_to_the_ordinary_reader(
    tmp_path: Path, change: Callable[[onnx.ModelProto], bytes]
) -> None:
    """Two graphs, functions, data elsewhere, wrong sizes, two of a name, cut files, noise, nothing."""
    path = tmp_path / "m.onnx"
    path.write_bytes(change(model(a=long())))

    assert open_mapped(path) is None


def test_no_file_is_left_to_the_ordinary_reader(tmp_path: Path) -> None:
    """A folder, an absent file, a pipe, a model of short weights."""
    os.mkfifo(tmp_path / "pipe")
    short = saved(tmp_path, model(a=np.ones(9, np.float32)))

    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", short):
        assert open_mapped(path) is None


def test_flipped_bytes_of_the_frame_never_read_wrongly(tmp_path: Path) -> None:
    """Whatever a byte outside the weights becomes: refused, or what the ordinary reader reads."""
    path = saved(tmp_path, model(a=long(), b=long(seed=2)))
    whole = path.read_bytes()
    first = whole.find(long().tobytes())
    second = whole.find(long(seed=2).tobytes())
    ends = (*range(first), *range(first + 4 * LONG, second), *range(second + 4 * LONG, len(whole)))
    rng = np.random.default_rng(0)
    for at in ends:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        found = open_mapped(path)
        if found is not None:
            assert content(found.model.graph) == content(load(path).graph)


def test_a_session_notices_that_its_file_was_written_over(tmp_path: Path) -> None:
    """What was made goes on, with its own copies; what would be read anew is refused, and nothing crashes."""
    w = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    ends = [helper.make_tensor_value_info(n, 1, ["N", k]) for n, k in (("x", 64), ("y", 128))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    path = saved(
        tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    session = Session(path, level=1, threads=1)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    first = session.run({"x": x})["y"]
    os.truncate(path, 10)

    assert session.run({"x": x})["y"].tobytes() == first.tobytes()
    np.testing.assert_allclose(first, x @ w, rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="changed after it was opened"):
        session.run({"x": x[:2]})
