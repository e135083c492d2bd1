"""Sessions side by side: threads with one session or one each, processes with one cache, no room for it."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphdoc.planning import build_plan
from graphdoc.session import Session

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,H,12] x) => (float[N,8,H,12] y, int64[4,M] where)
<float[8,3,3,3] w>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Tanh (c)
    p = Relu (y)
    where = NonZero (p)
}"""


def model() -> onnx.ModelProto:
    """Return a model of open sizes with a node on level 0, and a shape that follows from contents."""
    proto = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    del proto.graph.value_info[:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return proto


def inputs(number: int) -> dict[str, Any]:
    """Return inputs of one of twelve shapes."""
    shape = (1 + number % 3, 3, 4 + number % 12, 12)
    return {"x": np.random.default_rng(number % 12).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_at_once(shared: bool) -> None:
    """One session for both, or one each, shapes in another order: every result is what level 0 gives."""
    below, proto = Session(model()), model()
    expected = [below.run(inputs(n)) for n in range(12)]
    one = Session(proto, level=1, threads=2)
    sessions = [one, one if shared else Session(proto, level=1, threads=2)]
    wrong: list[Any] = []

    def work(session: Session, step: int) -> None:
        for turn in range(120):
            number = turn * step % 12
            found = session.run(inputs(number))
            for name, value in expected[number].items():
                if not np.allclose(found[name], value, rtol=1e-4, atol=1e-5):
                    wrong.append((step, turn, name))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(sessions, (5, 7), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_two_threads_on_one_plan() -> None:
    """Programs for shapes between are made while the other thread runs, and go: every result is right."""
    text = TEXT.replace(", int64[4,M] where", "").replace("    p = Relu (y)\n    where = NonZero (p)\n", "")
    proto = onnx.parser.parse_model(text)
    del proto.graph.value_info[:]
    proto.graph.initializer.extend(model().graph.initializer)
    below = Session(proto)
    expected = [below.run(inputs(n))["y"] for n in range(12)]
    plan = build_plan(proto, profiles=["x=1x3x4x12:3x3x15x12"])
    wrong: list[Any] = []

    def work(step: int) -> None:
        for turn in range(100):
            number = turn * step % 12
            found = plan.run(inputs(number), threads=2)["y"]
            if not np.allclose(found, expected[number], rtol=1e-4, atol=1e-5):
                wrong.append((step, turn))

    threads = [threading.Thread(target=work, args=(step,)) for step in (5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert len(plan._made) >= 8


def start(code: str, cache: Path) -> "subprocess.Popen[str]":
    """Start a process with a cache there that runs a convolution and prints a digest of its result.

    It writes no bytecode: without room, Python leaves half a file of it where the next import finds it.
    """
    text = f"""
    import hashlib, sys
    import numpy as np
    {code}
    from tests.engine.test_side_by_side import model, inputs
    from graphdoc.session import Session
    found = Session(model(), level=1, threads=1).run(inputs(1))
    print(hashlib.sha256(found["y"].tobytes()).hexdigest())
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-B", "-W", "error", "-c", textwrap.dedent(text)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]") -> str:
    """Return what a process printed; it must have ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    """With an empty cache between them; no half-written file is left, and both are right."""
    first, second = start("", tmp_path), start("", tmp_path)
    results = {ended(first), ended(second)}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert len(results) == 1
    assert len(files) >= 3
    assert not [path for path in files if path.name.startswith(".new-")]
    assert ended(start("", tmp_path)) in results


NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
"""No file may have more than a hundred bytes: writing fails as on a full disk."""


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
def test_without_room_nothing_is_kept_and_all_works(tmp_path: Path) -> None:
    """The result is the same, and no part of a file is left."""
    full, whole = tmp_path / "full", tmp_path / "whole"

    assert ended(start(NO_ROOM, full)) == ended(start("", whole))
    assert [path for path in full.rglob("*") if path.is_file()] == []
    assert [path for path in whole.rglob("*") if path.is_file()]


def test_a_spoilt_cache_is_made_anew(tmp_path: Path) -> None:
    """Every file of it cut, filled with noise, or a folder: the same result."""
    expected = ended(start("", tmp_path))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        content = path.read_bytes()
        path.write_bytes((content[: len(content) // 2], os.urandom(len(content)), b"")[number % 3])
    files[0].unlink()
    files[0].mkdir()

    assert ended(start("", tmp_path)) == expected


def test_a_file_in_place_of_the_cache(tmp_path: Path) -> None:
    """Nothing is kept."""
    (tmp_path / "graphdoc").write_text("no folder", "utf-8")

    assert ended(start("", tmp_path))
    assert (tmp_path / "graphdoc").read_text("utf-8") == "no folder"
