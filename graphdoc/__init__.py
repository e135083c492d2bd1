"""graphdoc, a doctor for ONNX graphs.

The public names are loaded on first use, so that ``import graphdoc`` and ``graphdoc --help`` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "load": "graphdoc.surgeon.model",
    "save": "graphdoc.surgeon.model",
    "Session": "graphdoc.session",
    "compare_models": "graphdoc.api",
    "ComparisonResult": "graphdoc.api",
    "inspect_model": "graphdoc.surgeon.inspect",
    "lint_model": "graphdoc.surgeon.lint",
    "diff_models": "graphdoc.surgeon.diff",
    "make_inputs": "graphdoc.api",
    "op": "graphdoc.engine.ops.table",
    "Call": "graphdoc.engine.ops.table",
    "TensorType": "graphdoc.engine.ops.table",
    "load_operators": "graphdoc.engine.ops.custom",
    "simplify": "graphdoc.simplifying",
    "rewrite_model": "graphdoc.rewriting",
    "edit_model": "graphdoc.edit_api",
    "reduce_model": "graphdoc.reducing",
    "GraphdocError": "graphdoc.engine.errors",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from graphdoc.api import ComparisonResult as ComparisonResult
    from graphdoc.api import compare_models as compare_models
    from graphdoc.api import make_inputs as make_inputs
    from graphdoc.edit_api import edit_model as edit_model
    from graphdoc.engine.errors import GraphdocError as GraphdocError
    from graphdoc.engine.ops.custom import load_operators as load_operators
    from graphdoc.engine.ops.table import Call as Call
    from graphdoc.engine.ops.table import TensorType as TensorType
    from graphdoc.engine.ops.table import op as op
    from graphdoc.reducing import reduce_model as reduce_model
    from graphdoc.rewriting import rewrite_model as rewrite_model
    from graphdoc.session import Session as Session
    from graphdoc.simplifying import simplify as simplify
    from graphdoc.surgeon.diff import diff_models as diff_models
    from graphdoc.surgeon.inspect import inspect_model as inspect_model
    from graphdoc.surgeon.lint import lint_model as lint_model
    from graphdoc.surgeon.model import load as load
    from graphdoc.surgeon.model import save as save


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'graphdoc' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
