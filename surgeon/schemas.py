"""The operator schemas of the onnx package, looked up once and kept in plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import onnx.defs
import onnx.helper


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operator version takes.

    name: of the operator. inputs, outputs: smallest and largest number.
    attributes: name → type (AttributeProto.AttributeType).
    since: the version that introduced it. deprecated: it was withdrawn in that version.
    body: the specification defines it by other operators.
    """

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, int]
    required: tuple[str, ...]
    since: int
    deprecated: bool
    body: bool


_CONTEXT_FUNCTION = "has_context_dependent_function"


@cache
def signature(domain: str, name: str, version: int) -> Signature | None:
    """Return the newest schema of an operator that is not newer than ``version``, or None."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = schema.attributes
    kinds = {key: int(getattr(item.type, "value", 0)) for key, item in attributes.items()}
    return Signature(
        name,
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        MappingProxyType(kinds),
        tuple(key for key, item in attributes.items() if item.required),
        schema.since_version,
        bool(schema.deprecated),
        bool(getattr(schema, "has_function", False) or getattr(schema, _CONTEXT_FUNCTION, False)),
    )


_RELEASE = max(onnx.helper.VERSION_TABLE, key=lambda row: row[1:3])
"""The newest row of onnx's table: release, IR version, opsets of ai.onnx, ai.onnx.ml, ai.onnx.training."""

_NEWEST = dict(zip(("", "ai.onnx.ml", "ai.onnx.training"), _RELEASE[2:], strict=False))


def newest(domain: str) -> int | None:
    """Return the newest opset of a domain that onnx knows; None for domains it does not know."""
    return _NEWEST.get("" if domain == "ai.onnx" else domain)


@cache
def exists(domain: str, name: str) -> bool:
    """Whether any version of the operator is known to onnx."""
    return bool(onnx.defs.has(name, domain))


@cache
def required_inputs(domain: str, name: str, version: int) -> tuple[int, ...]:
    """Return the places of the inputs that may not be left out; none for operators onnx does not know."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return ()
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return tuple(place for place, item in enumerate(schema.inputs) if item.option == single)


@cache
def type_classes(domain: str, name: str, version: int, inputs: int) -> tuple[str, ...]:
    """Return for each of so many inputs the type parameter of the schema ("T"); "" where it names none."""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return ("",) * inputs
    names = [item.type_str for item in schema.inputs]
    last = schema.inputs[-1] if schema.inputs else None
    variadic = last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    same = variadic and last is not None and last.is_homogeneous
    rest = [names[-1] if same else ""] * max(0, inputs - len(names))
    parameters = {constraint.type_param_str for constraint in schema.type_constraints}
    return tuple(found if found in parameters else "" for found in [*names, *rest][:inputs])
