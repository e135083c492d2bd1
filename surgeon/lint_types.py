"""Rules about declared types and shapes."""

from collections.abc import Iterator, Mapping

import onnx

from graphdoc.surgeon.lint import Fault, Severity, rule
from graphdoc.surgeon.subject import Subject
from graphdoc.surgeon.types import Dim, ValueType, value_type

_ERROR, _WARNING, _REMARK = Severity.ERROR, Severity.WARNING, Severity.REMARK


@rule(
    "untyped-input",
    _ERROR,
    harm="ONNX Runtime refuses the model",
    mend="declare the type of the input",
)
def untyped_input(subject: Subject) -> Iterator[Fault]:
    """An input of the model without a type."""
    for info in subject.proto.graph.input:
        if not value_type(info.type).dtype:
            yield Fault(info.name, "an input without a type")


@rule(
    "negative-dim",
    _WARNING,
    harm="ONNX knows no negative sizes: tools read it as a mistake or as unknown",
    mend="give the size, a symbol, or leave it open",
)
def negative_dim(subject: Subject) -> Iterator[Fault]:
    """A declared size below 0."""
    graph = subject.proto.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        shape = value_type(info.type).shape or ()
        negative = [dim for dim in shape if isinstance(dim, int) and dim < 0]
        if negative:
            yield Fault(info.name, f"declared size {negative[0]} in {_words(shape)}")


@rule(
    "unnamed-dim",
    _REMARK,
    harm="nothing tells which sizes must be equal, so inputs have to be given by hand",
    mend="name it, as in batch or seq",
)
def unnamed_dim(subject: Subject) -> Iterator[Fault]:
    """A dynamic size of an input without a symbol."""
    held = {tensor.name for tensor in subject.proto.graph.initializer}
    for info in subject.proto.graph.input:
        shape = value_type(info.type).shape
        if info.name not in held and shape is not None and None in shape:
            yield Fault(info.name, f"sizes without a name in {_words(shape)}")


@rule(
    "type-contradicts",
    _ERROR,
    harm="runtimes and converters that trust the declaration fail or compute with the wrong type",
    mend="correct the declaration, or drop it from value_info",
)
def type_contradicts(subject: Subject) -> Iterator[Fault]:
    """A declared dtype that is not what the operators give."""
    for info, declared, inferred in _pairs(subject):
        if declared.dtype and inferred.dtype and declared.dtype != inferred.dtype:
            yield Fault(info.name, f"declared {declared.dtype}, inferred {inferred.dtype}")


@rule(
    "shape-contradicts",
    _ERROR,
    harm="tools that trust the declaration plan, fold or allocate wrongly",
    mend="correct the declaration, or drop it from value_info",
)
def shape_contradicts(subject: Subject) -> Iterator[Fault]:
    """A declared shape that is not what the operators give."""
    for info, declared, inferred in _pairs(subject):
        a, b = declared.shape, inferred.shape
        if a is None or b is None or declared.dtype[:3] in ("seq", "opt", "map"):
            continue
        if not _compatible(a, b):
            yield Fault(info.name, f"declared {_words(a)}, inferred {_words(b)}")


def _compatible(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether two shapes may be the same one: symbols and unknown sizes fit everything."""
    if len(a) != len(b):
        return False
    return all(x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a, b, strict=True))


@rule(
    "symbol-contradicts",
    _ERROR,
    harm="the symbol promises that sizes are equal which are not",
    mend="use different symbols",
)
def symbol_contradicts(subject: Subject) -> Iterator[Fault]:
    """A symbol that stands for two different sizes at once."""
    sizes: dict[str, dict[int, str]] = {}
    for info, declared, inferred in _pairs(subject):
        if declared.shape is None or inferred.shape is None or len(declared.shape) != len(inferred.shape):
            continue
        for symbol, size in zip(declared.shape, inferred.shape, strict=True):
            if isinstance(symbol, str) and isinstance(size, int):
                sizes.setdefault(symbol, {}).setdefault(size, info.name)
    for symbol, found in sizes.items():
        if len(found) > 1:
            listed = ", ".join(f"{size} in {name}" for size, name in sorted(found.items())[:3])
            yield Fault(symbol, f"one symbol, several sizes: {listed}")


def contradictions(subject: Subject) -> Iterator[tuple[onnx.ValueInfoProto, tuple[Dim, ...] | None]]:
    """Yield the declarations whose dtype or shape is wrong, and the shape that the operators give."""
    for info, declared, inferred in _pairs(subject):
        a, b = declared.shape, inferred.shape
        dtype = bool(declared.dtype and inferred.dtype and declared.dtype != inferred.dtype)
        container = declared.dtype[:3] in ("seq", "opt", "map")
        if dtype or (a is not None and b is not None and not container and not _compatible(a, b)):
            yield info, b


def _pairs(subject: Subject) -> Iterator[tuple[onnx.ValueInfoProto, ValueType, ValueType]]:
    """Yield what the main graph declares of inner values and outputs, and what inference gives without."""
    inferred: Mapping[str, ValueType] = subject.inferred
    inputs = {info.name for info in subject.proto.graph.input}
    for info in (*subject.proto.graph.output, *subject.proto.graph.value_info):
        if info.name in inferred and info.name not in inputs:
            yield info, value_type(info.type), inferred[info.name]


def _words(shape: tuple[Dim, ...]) -> str:
    return " × ".join("?" if dim is None else str(dim) for dim in shape) or "scalar"
