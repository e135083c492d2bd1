"""Attributes of a node against those of a pattern."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx.defs
import onnx.helper
import onnx_ir as ir

from graphdoc.engine.attributes import decode
from graphdoc.engine.ops.table import canonical_domain
from graphdoc.surgeon.pattern import Attribute, NodePattern
from graphdoc.surgeon.rules.base import Context
from graphdoc.surgeon.schemas import signature


@cache
def defaults(domain: str, name: str, version: int) -> Mapping[str, Any]:
    """Return the attributes of an operator that have a default in its specification, with it."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return MappingProxyType({})
    given = {key: item.default_value for key, item in schema.attributes.items() if item.default_value.name}
    return MappingProxyType({key: _plain(onnx.helper.get_attribute_value(a)) for key, a in given.items()})


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def since_version(node: ir.Node, context: Context) -> int:
    """Return the version that introduced the node's operator as it is; the opset for unknown operators."""
    version = context.opset(node.domain)
    found = signature(canonical_domain(node.domain), node.op_type, version)
    return version if found is None else found.since


def read(node: ir.Node, name: str, context: Context) -> Any:
    """Return an attribute of a node, else the specification's default, else None. Lists come as tuples."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return attribute.value if attribute.type in _GRAPHS else _plain(decode(attribute))
    return defaults(canonical_domain(node.domain), node.op_type, context.opset(node.domain)).get(name)


def fault(pattern: NodePattern, node: ir.Node, context: Context) -> str:
    """Return why the attributes of a node are not those of a pattern; "" when they are."""
    for name, test in pattern.attributes.items():
        value = read(node, name, context)
        if isinstance(test, Attribute):
            if test.where is not None and not test.where(value):
                return f"'s {name} is {_word(value)}, the pattern wants {test.says or 'another'}"
        elif not same(value, _plain(test)):
            return f"'s {name} is {_word(value)}, the pattern wants {_word(test)}"
    return "" if pattern.any_attributes else _unmentioned(pattern, node, context)


def _unmentioned(pattern: NodePattern, node: ir.Node, context: Context) -> str:
    usual = defaults(canonical_domain(node.domain), node.op_type, context.opset(node.domain))
    for name, attribute in node.attributes.items():
        if name in pattern.attributes:
            continue
        if attribute.type in _GRAPHS:
            return f" has a subgraph {name}, which the pattern does not mention"
        value = _plain(decode(attribute))
        if name not in usual or not same(value, usual[name]):
            return f"'s {name} is {_word(value)}, the pattern does not mention it"
    return ""


def captured(pattern: NodePattern, node: ir.Node, context: Context) -> dict[str, Any]:
    """Return the attributes that a pattern captures, by the name it gives them."""
    return {
        test.name: read(node, name, context)
        for name, test in pattern.attributes.items()
        if isinstance(test, Attribute)
    }


def same(value: Any, other: Any) -> bool:
    """Whether two attributes are equal; floats as the float32 that the file holds."""
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, float) or isinstance(other, float):
        numbers = isinstance(value, int | float) and isinstance(other, int | float)
        return numbers and bool(np.float32(value) == np.float32(other))
    return bool(value == other)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value


def _word(value: Any) -> str:
    if value is None:
        return "not given"
    return str(list(value)) if isinstance(value, tuple) else f"{value}"
