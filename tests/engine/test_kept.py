"""Programs kept on disk: the same bits as before, never another model's, nothing taken that is not whole."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine import kept as module
from graphdoc.engine.device.llvm.objects import ObjectCache
from graphdoc.engine.kept import Kept
from graphdoc.engine.level1 import Compiled, compiled

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N,4] x) => (float[N,3] y, float[N,4] r)
<float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, WEIGHT}>
{
    r = Relu (x)
    p = MatMul (r, w)
    y = Softmax (p)
}
"""
HALF = """
<ir_version: 8, opset_import: ["" : 17]>
half (float[N,4] x) => (float[N,4] y) { r = RandomNormalLike (x)
 y = Add (x, r) }
"""


def saved(path: Path, weight: int = 3, text: str = NET) -> Path:
    """Write a model."""
    onnx.save(onnx.parser.parse_model(text.replace("WEIGHT", str(weight))), path)
    return path


def cache(tmp_path: Path) -> ObjectCache:
    """Return a cache of the test's own."""
    return ObjectCache(tmp_path / "programs", suffix=".program")


def feeds(rows: int = 2) -> dict[str, Any]:
    """Return an input."""
    return {"x": np.random.default_rng(rows).standard_normal((rows, 4), np.float32)}


def run_and_keep(path: Path, where: ObjectCache, rows: int = 2) -> tuple[Compiled, dict[str, Any]]:
    """Run a model on level 1 and keep its program; return the outputs."""
    kept = Kept(path, "", where)
    runs = compiled(ir.load(path), threads=1)
    outputs = runs.run(feeds(rows))
    if runs.short is not None:
        kept.keep(runs.output_names, runs.short, feeds(rows))
    return runs, outputs


def assert_same(found: Any, expected: dict[str, Any]) -> None:
    """The same bits under the same names, in order."""
    assert found is not None
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("threads", [1, 2, None])
def test_a_program_comes_back_with_the_same_bits(tmp_path: Path, threads: int | None) -> None:
    """For each choice of sizes that it was kept for, and no other."""
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    expected = {rows: run_and_keep(path, where, rows)[1] for rows in (2, 5)}

    again = Kept(path, "", where)

    assert again.known
    for rows in (2, 5):
        found = again.find(feeds(rows), threads)
        assert found is not None
        assert_same(found.run(feeds(rows)), expected[rows])
        assert_same(found.run(feeds(rows)), expected[rows])
        assert found.run(feeds(3)) is None
        assert found.run({}) is None
    assert again.find(feeds(3), threads) is None
    assert again.find({"x": feeds()["x"].astype(np.float64)}, threads) is None
    assert again.find({"x": np.array(["a"], object)}, threads) is None
    assert again.find({**feeds(), "z": feeds()["x"]}, threads) is None


def test_what_a_name_follows_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's bytes, how it is prepared, and all that programs are made with."""
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    run_and_keep(path, where)
    assert Kept(saved(tmp_path / "copy.onnx"), "", where).known

    assert not Kept(saved(tmp_path / "other.onnx", weight=4), "", where).known
    assert not Kept(path, "not simplified", where).known
    surroundings = module._surroundings()
    for k in range(len(surroundings)):
        changed = (*surroundings[:k], surroundings[k] + "!", *surroundings[k + 1 :])
        monkeypatch.setattr(module, "_surroundings", lambda changed=changed: changed)
        assert not Kept(path, "", where).known


def test_the_code_of_the_engine_and_of_simplification_counts() -> None:
    """A change of any source file that makes programs gives other names."""
    lines = "\n".join(module._surroundings())

    for name in ("engine/kept.py", "engine/fuse_map.py", "llvm/winograd.py", "surgeon/simplify.py", "onnx"):
        assert name in lines


def test_a_changed_source_file_is_seen(tmp_path: Path) -> None:
    """By its size, or by when it was changed."""
    file = tmp_path / "engine" / "a.py"
    file.parent.mkdir()
    states = []
    for text, time in (("x = 1\n", 1), ("x = 22\n", 1), ("x = 22\n", 2)):
        file.write_text(text, "utf-8")
        os.utime(file, (time, time))
        states.append(tuple(module._code(file.parent)))

    assert len(set(states)) == 3


def test_a_model_that_changes_meanwhile_is_not_kept(tmp_path: Path) -> None:
    """Its hash was taken of other bytes than the program."""
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    kept = Kept(path, "", where)
    saved(path, weight=5)
    runs = compiled(ir.load(path), threads=1)
    runs.run(feeds())
    assert runs.short is not None

    kept.keep(runs.output_names, runs.short, feeds())
    assert not kept.known
    path.unlink()
    kept.keep(runs.output_names, runs.short, feeds())
    assert not kept.known


def test_what_is_not_one_program_is_not_kept(tmp_path: Path) -> None:
    """Random numbers come from level 0."""
    path, where = saved(tmp_path / "m.onnx", text=HALF), cache(tmp_path)
    run_and_keep(path, where)

    assert not Kept(path, "", where).known


def test_what_is_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is in bytes of the file."""
    monkeypatch.setattr(module, "LARGEST", 100)
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    run_and_keep(path, where)

    assert not Kept(path, "", where).known


@pytest.mark.parametrize("at", [0, 9, 20, 40, 70, -1])
def test_a_damaged_program_is_none(tmp_path: Path, at: int) -> None:
    """One bit anywhere, and the file goes."""
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    run_and_keep(path, where)
    (file,) = (tmp_path / "programs").iterdir()
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)

    assert Kept(path, "", where).find(feeds(), 1) is None
    assert not file.exists()


def test_a_folder_open_to_others_is_not_trusted(tmp_path: Path) -> None:
    """Anyone could have put a program there."""
    path, where = saved(tmp_path / "m.onnx"), cache(tmp_path)
    run_and_keep(path, where)
    (tmp_path / "programs").chmod(0o777)

    assert not Kept(path, "", where).known
    assert Kept(path, "", where).find(feeds(), 1) is None


def test_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a pipe, nothing at all: whoever opens the model says so."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none.onnx"):
        with pytest.raises(OSError):
            Kept(path, "", cache(tmp_path))
