"""What callers of a model rely on besides its numbers: names, order, types, symbols, versions, metadata."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.feeds import dim_of
from graphdoc.engine.ops.table import Dim, canonical_domain

_TEXTS = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
_NAMED = {"producer_name": "producer", "producer_version": "producer's version", "doc_string": "doc string"}
LAST_LISTED = 3
"""The last IR version in which constants had to be listed among the inputs."""


def interface_differences(
    original: ir.Model, edited: ir.Model, *, sized: bool = False, opset: int | None = None
) -> list[str]:
    """Return what an edit changed for the model's callers, in words; empty when nothing.

    sized: open sizes of inputs and outputs may have become numbers. opset: the version of the default domain
    that was asked for. Outputs may state more of their shape than before.
    """
    return [
        *_values("input", _inputs(original), _inputs(edited), sized=sized),
        *_values("output", list(original.graph.outputs), list(edited.graph.outputs), sized=sized),
        *_opsets(original, edited, opset),
        *_texts(original, edited),
    ]


def _inputs(model: ir.Model) -> list[ir.Value]:
    """Return what callers can feed; of old models without the constants that must be listed there."""
    fixed = model.graph.initializers if model.ir_version <= LAST_LISTED else {}
    return [value for value in model.graph.inputs if value.name not in fixed]


def _values(role: str, before: list[ir.Value], after: list[ir.Value], *, sized: bool) -> Iterator[str]:
    names, now = [str(v.name) for v in before], [str(v.name) for v in after]
    for name in names:
        if name not in now:
            yield f"{role} '{name}' is gone"
    for name in now:
        if name not in names:
            yield f"{role} '{name}' is new"
    if names != now and sorted(names) == sorted(now):
        yield f"the {role}s come in another order: {', '.join(now)}"
    found = dict(zip(now, after, strict=True))
    for value in before:
        if value.name in found:
            yield from _value(f"{role} '{value.name}'", value, found[str(value.name)], sized=sized)


def _value(what: str, before: ir.Value, after: ir.Value, *, sized: bool) -> Iterator[str]:
    if _type(before) != _type(after):
        yield f"{what} was {_type(before)} and is {_type(after)}"
    elif _shape(before) != _shape(after) and not _states_more(what, before, after, sized=sized):
        yield f"{what} was declared {_text(before)} and is declared {_text(after)}"
    for key, label in (("doc_string", "doc string"), ("metadata_props", "metadata")):
        if getattr(before, key) and getattr(before, key) != getattr(after, key):
            yield f"{what} has lost its {label}"
    if before.is_graph_input() and before.is_initializer() != after.is_initializer():
        yield f"{what} {'lost its' if before.is_initializer() else 'got a'} default"


def _type(value: ir.Value) -> str:
    return "of no stated type" if value.type is None else str(value.type)


def _shape(value: ir.Value) -> list[Dim] | None:
    if value.shape is None:
        return None
    return [dim_of(dim) for dim in value.shape]


def _text(value: ir.Value) -> str:
    shape = _shape(value)
    if shape is None:
        return "without a rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def _states_more(what: str, before: ir.Value, after: ir.Value, *, sized: bool) -> bool:
    """Whether the new shape only fills in what the old one left out."""
    old, new = _shape(before), _shape(after)
    output = what.startswith("output")
    if old is None or new is None:
        return output and new is not None
    return len(old) == len(new) and all(
        a == b
        or (a is None and output and b is not None)
        or (not isinstance(a, int) and sized and b is not None)
        for a, b in zip(old, new, strict=True)
    )


def _opsets(original: ir.Model, edited: ir.Model, opset: int | None) -> Iterator[str]:
    before, after = _versions(original), _versions(edited)
    if opset is not None:
        before[""] = opset
    for domain, version in after.items():
        if before.get(domain, version) != version:
            yield f"opset of {domain or 'ai.onnx'} was {before[domain]} and is {version}"
    if edited.ir_version < original.ir_version:
        yield f"IR version was {original.ir_version} and is {edited.ir_version}"


def _versions(model: ir.Model) -> dict[str, int]:
    return {canonical_domain(domain): version for domain, version in model.opset_imports.items()}


def _texts(original: ir.Model, edited: ir.Model) -> Iterator[str]:
    for field in _TEXTS:
        if getattr(original, field) and getattr(original, field) != getattr(edited, field):
            yield f"the model has lost its {_NAMED.get(field, field.replace('_', ' '))}"
    for field in ("name", "doc_string"):
        if getattr(original.graph, field) and getattr(original.graph, field) != getattr(edited.graph, field):
            yield f"the graph has lost its {field.replace('_', ' ')}"
    yield from _lost("model", original.metadata_props, edited.metadata_props)
    yield from _lost("graph", original.graph.metadata_props, edited.graph.metadata_props)


def _lost(owner: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key, text in before.items():
        if after.get(key) != text:
            yield f"metadata '{key}' of the {owner} {'has changed' if key in after else 'is gone'}"


# ---- what outputs are declared as ---------------------------------------------------------------------


def bound_sizes(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that the symbols of a model's inputs have in a run."""
    return {
        symbol: size
        for value in model.graph.inputs
        if isinstance(array := feeds.get(str(value.name)), np.ndarray)
        for dim, size in zip(value.shape or (), array.shape, strict=False)
        if isinstance(symbol := dim_of(dim), str)
    }


def undeclared(value: ir.Value, found: Any) -> str:
    """Return how a result differs from what the graph declares of it, "" if it does not."""
    claim = _claim(value, {})
    if claim is None or not isinstance(found, np.ndarray) or not isinstance(value.type, ir.TensorType):
        return ""
    if len(claim) == found.ndim and all(d in (None, s) for d, s in zip(claim, found.shape, strict=True)):
        return ""
    declared = ", ".join("?" if dim is None else str(dim) for dim in claim)
    return f"output '{value.name}' is declared [{declared}] and has shape {list(found.shape)}"


def is_old_claim(before: ir.Value, after: ir.Value, found: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Whether what is wrong in an output's declaration was declared by the original already.

    found: the output's true shape. sizes: what symbols of the original stand for.
    """
    old, new = _claim(before, sizes), _claim(after, {})
    if old is None or new is None or len(old) != len(new):
        return False
    right = found if len(found) == len(new) else [None] * len(new)
    return all(n in (None, o, size) for n, o, size in zip(new, old, right, strict=True))


def _claim(value: ir.Value, sizes: Mapping[str, int]) -> list[int | None] | None:
    """Return the sizes that a declaration fixes, its symbols replaced; None without a rank."""
    if value.shape is None:
        return None
    return [sizes.get(dim) if isinstance(dim, str) else dim for dim in map(dim_of, value.shape)]
