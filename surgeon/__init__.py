"""ONNX graph → ONNX graph: load, save, inspect, lint, edit, rewrite.

The public names are loaded on first use, so that importing one module does not load all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "PatternRule": "graphdoc.surgeon.pattern_rule",
    "Refusal": "graphdoc.surgeon.rules.base",
    "rewrite": "graphdoc.surgeon.rewriting",
}

__all__ = list(_PUBLIC)

if TYPE_CHECKING:
    from graphdoc.surgeon.pattern_rule import PatternRule as PatternRule
    from graphdoc.surgeon.rewriting import rewrite as rewrite
    from graphdoc.surgeon.rules.base import Refusal as Refusal


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'graphdoc.surgeon' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
