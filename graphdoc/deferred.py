"""Start-up time of the command line: sympy, which onnx_ir imports for symbolic sizes, only when it is used.

Importing sympy takes 0.35 s, a third of what ``graphdoc inspect`` takes in all, and nothing that the commands
do touches a symbolic expression. Only the command line does this: a program that imports graphdoc keeps its
own sympy.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_TABLE_OF_FUNCTIONS = ("onnx_ir._symbolic_shapes", "_ALLOWED_FUNCTIONS")
"""Module and name of the one table that is filled with functions of sympy while onnx_ir is imported."""


class _Deferred(ModuleType):
    """Stands for sympy: gives out functions that load it when they are called; later, sympy's own names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        module, table = _TABLE_OF_FUNCTIONS
        if name == "__path__" or hasattr(sys.modules.get(module), table):
            return getattr(_load(), name)
        return lambda *arguments: getattr(_load(), name)(*arguments)


def defer_sympy() -> None:
    """Let ``import sympy`` cost nothing until something of it is used."""
    if "sympy" not in sys.modules and "onnx_ir" not in sys.modules:
        sys.modules["sympy"] = _Deferred("sympy")


def _load() -> ModuleType:
    if isinstance(sys.modules.get("sympy"), _Deferred):
        del sys.modules["sympy"]
    return import_module("sympy")
