"""Operators of one's own: from a file, from an installed package, and what is said when that goes wrong."""

import importlib.metadata
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.errors import UnsupportedOperatorError, UsageError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops import custom, table

TEXT = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]> g (float[2,8] x) => (float[2,4] y) {
    h = com.acme.Swiglu <alpha = 1.5> (x)
    y = Relu (h) }"""
FILE = """
import graphdoc

@graphdoc.op("Swiglu", 1, domain="com.acme")
def swiglu(call, x, *, alpha=1.0):
    gate, value = call.xp.split(x, 2, axis=-1)
    return gate / (1 + call.xp.exp(-alpha * gate)) * value
"""
X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """Leave the table as it was."""
    yield
    table.unregister("com.acme", "Swiglu")
    custom._loaded.clear()
    table._loaded.discard(table.INSTALLED)


def run() -> Any:
    return Interpreter(ir.from_proto(onnx.parser.parse_model(TEXT))).run({"x": X})["y"]


def expected() -> Any:
    gate, value = X[:, :4].astype(np.float64), X[:, 4:]
    return np.maximum(gate / (1 + np.exp(-1.5 * gate)) * value, 0)


def test_an_unknown_operator_says_how_to_register_it() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"com\.acme::Swiglu") as refusal:
        run()

    assert "h in runner engine" in str(refusal.value.where)
    assert "--ops my_ops.py" in str(refusal.value.next_step)


def test_a_file_registers_operators(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "my_ops.py"
    path.write_text(FILE)

    custom.load_operators(path)
    custom.load_operators(path)  # a second time does nothing

    np.testing.assert_allclose(run(), expected(), rtol=1e-6, atol=1e-7)
    assert custom.loaded_files() == [str(path)]


def test_an_installed_package_registers_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("acme_operators")
    monkeypatch.setitem(sys.modules, "acme_operators", module)
    entry = importlib.metadata.EntryPoint("acme", "acme_operators:ready", custom.GROUP)
    asked = []

    def ready() -> Any:
        asked.append(1)
        exec(FILE, module.__dict__)  # noqa: S102 - stands for the package's own code

    monkeypatch.setattr(type(entry), "load", lambda self: ready())
    monkeypatch.setattr(custom, "entry_points", lambda group: [entry])

    np.testing.assert_allclose(run(), expected(), rtol=1e-6, atol=1e-7)
    run()
    assert len(asked) == 1


def test_a_package_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("acme", "no_such_module_here", custom.GROUP)
    monkeypatch.setattr(custom, "entry_points", lambda group: [entry])

    with pytest.raises(UsageError, match="no_such_module_here"):
        run()


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError", "line 2"),
        ("def f(:\n", "SyntaxError", "line 1"),
        ("import no_such_module_here\n", "no_such_module_here", "line 1"),
        (FILE + FILE, "registered twice", "line 11"),
        ("import sys; raise ValueError('of mine')", "of mine", "line 1"),
    ],
)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: pathlib.Path, text: str, message: str, line: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)

    with pytest.raises(UsageError, match=message) as refusal:
        custom.load_operators(path)
    assert refusal.value.where == f"broken.py, {line}"


@pytest.mark.parametrize("name", ["nothing.py", "."])
def test_a_missing_file_is_said(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        custom.load_operators(tmp_path / name)


def test_threads_that_look_up_at_the_same_time_see_the_whole_table() -> None:
    """In a fresh process: a look-up while another thread imports the families waits for them."""
    program = """
import sys, threading, time

from graphdoc.engine.ops import table
kept = table.import_module
table.import_module = lambda name: (time.sleep(0.005), kept(name))[1]
found = []
look = lambda: found.append([table.find("", name, 17) for name in ("Abs", "Conv", "Where", "Softmax")])
threads = [threading.Thread(target=look) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(any(row is None for rows in found for row in rows) or len(found) != 4)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
