"""The command line's stand-in for sympy."""

import subprocess
import sys

CODE = """
import sys
from graphdoc.deferred import defer_sympy
defer_sympy()
import onnx_ir as ir
assert not any(name.startswith("sympy.") for name in sys.modules), "sympy was loaded by the import"
shape = ir.Shape(["N", 3, None])
assert not any(name.startswith("sympy.") for name in sys.modules), "a plain symbol needs no sympy"
total = ir.SymbolicDim("N") + 2
assert str(total.value) == "N + 2", total
parsed = ir.SymbolicDim("max(N, 4)").evaluate({"N": 3})
assert parsed == 4, parsed
import sympy
import sympy.core
assert sympy.Symbol("x") + 1 == 1 + sympy.Symbol("x")
"""


def test_sympy_is_loaded_on_first_use_and_then_works() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_a_program_that_imports_graphdoc_keeps_its_sympy() -> None:
    code = "import graphdoc.api, sympy; assert type(sympy).__name__ == 'module'; sympy.Symbol('x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
