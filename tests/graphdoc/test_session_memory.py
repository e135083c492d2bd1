"""What a session at level 1 takes of memory: weights once, as kernels read them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

WIDE = 1024
"""Rows and columns of a weight: 4 MiB."""


def model(layers: int, wide: int) -> onnx.ModelProto:
    """Return products one after another."""
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for k in range(layers):
        array = rng.standard_normal((wide, wide)).astype(np.float32) / wide
        weights.append(numpy_helper.from_array(array, f"w{k}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{k}"], [f"y{k}"]))
        nodes.append(helper.make_node("Relu", [f"y{k}"], [f"r{k}"]))
        name = f"r{k}"
    ends = [helper.make_tensor_value_info(n, 1, [4, wide]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux tells it")
def test_weights_are_held_once(tmp_path: Path) -> None:
    """48 MiB of them: the peak is well below twice that; protobuf, reader, program and panels were four."""
    onnx.save(model(1, 64), tmp_path / "small.onnx")
    onnx.save(model(12, WIDE), tmp_path / "large.onnx")
    code = """
    import pathlib
    import numpy as np
    from graphdoc.session import Session

    def resident(field):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

    Session("small.onnx", level=1, threads=1, keep=False).run({"x": np.ones((4, 64), np.float32)})
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    Session("large.onnx", level=1, threads=1, keep=False).run({"x": np.ones((4, 1024), np.float32)})
    print(resident("VmHWM") - before)
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert float(done.stdout) < 1.6 * 48
