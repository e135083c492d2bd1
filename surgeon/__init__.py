"""ONNX graph → ONNX graph: load, save, inspect, lint, edit, rewrite.

The public names are loaded on first use, so that importing one module does not load all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "PatternRule": "graphdoc.surgeon.pattern_rule",
    "Refusal": "graphdoc.surgeon.rules.base",
    "rewrite": "graphdoc.surgeon.rewriting",
    "Layout": "graphdoc.surgeon.layout",
    "load": "graphdoc.surgeon.model",
    "save": "graphdoc.surgeon.model",
    **dict.fromkeys(
        (
            "cleanup",
            "fold",
            "set_ir_version",
            "set_metadata",
            "strip",
            "toposort",
            "copy_model",
            "extract",
            "outline",
            "add_node",
            "bypass",
            "insert",
            "remove_node",
            "replace",
            "replace_node",
            "set_attribute",
            "add_input",
            "add_output",
            "remove_input",
            "remove_output",
            "reorder",
            "set_dtype",
            "set_initializer",
            "to_initializer",
            "to_input",
            "weight",
            "chain",
            "merge",
            "add_prefix",
            "rename_dim",
            "rename_node",
            "rename_values",
            "convert_opset",
            "run_script",
            "free",
            "freeze",
            "set_shape",
            "check",
        ),
        "graphdoc.surgeon.edit",
    ),
}

__all__ = list(_PUBLIC)

if TYPE_CHECKING:
    from graphdoc.surgeon.edit import add_input as add_input
    from graphdoc.surgeon.edit import add_node as add_node
    from graphdoc.surgeon.edit import add_output as add_output
    from graphdoc.surgeon.edit import add_prefix as add_prefix
    from graphdoc.surgeon.edit import bypass as bypass
    from graphdoc.surgeon.edit import chain as chain
    from graphdoc.surgeon.edit import check as check
    from graphdoc.surgeon.edit import cleanup as cleanup
    from graphdoc.surgeon.edit import convert_opset as convert_opset
    from graphdoc.surgeon.edit import copy_model as copy_model
    from graphdoc.surgeon.edit import extract as extract
    from graphdoc.surgeon.edit import fold as fold
    from graphdoc.surgeon.edit import free as free
    from graphdoc.surgeon.edit import freeze as freeze
    from graphdoc.surgeon.edit import insert as insert
    from graphdoc.surgeon.edit import merge as merge
    from graphdoc.surgeon.edit import outline as outline
    from graphdoc.surgeon.edit import remove_input as remove_input
    from graphdoc.surgeon.edit import remove_node as remove_node
    from graphdoc.surgeon.edit import remove_output as remove_output
    from graphdoc.surgeon.edit import rename_dim as rename_dim
    from graphdoc.surgeon.edit import rename_node as rename_node
    from graphdoc.surgeon.edit import rename_values as rename_values
    from graphdoc.surgeon.edit import reorder as reorder
    from graphdoc.surgeon.edit import replace as replace
    from graphdoc.surgeon.edit import replace_node as replace_node
    from graphdoc.surgeon.edit import run_script as run_script
    from graphdoc.surgeon.edit import set_attribute as set_attribute
    from graphdoc.surgeon.edit import set_dtype as set_dtype
    from graphdoc.surgeon.edit import set_initializer as set_initializer
    from graphdoc.surgeon.edit import set_ir_version as set_ir_version
    from graphdoc.surgeon.edit import set_metadata as set_metadata
    from graphdoc.surgeon.edit import set_shape as set_shape
    from graphdoc.surgeon.edit import strip as strip
    from graphdoc.surgeon.edit import to_initializer as to_initializer
    from graphdoc.surgeon.edit import to_input as to_input
    from graphdoc.surgeon.edit import toposort as toposort
    from graphdoc.surgeon.edit import weight as weight
    from graphdoc.surgeon.layout import Layout as Layout
    from graphdoc.surgeon.model import load as load
    from graphdoc.surgeon.model import save as save
    from graphdoc.surgeon.pattern_rule import PatternRule as PatternRule
    from graphdoc.surgeon.rewriting import rewrite as rewrite
    from graphdoc.surgeon.rules.base import Refusal as Refusal


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'graphdoc.surgeon' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
