"""Which value of B stands for which value of A, where two models use other names.

Where they share their names, the names decide: a wrong wiring must show as what it is. Otherwise the graphs
are aligned by structure (surgeon/align.py), and B is given A's names, so that all that follows pairs by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from graphdoc.compare.target import Target, first_output, is_constant, own_constants
from graphdoc.engine.scope import MAIN, enter, qualified
from graphdoc.surgeon.align import align
from graphdoc.surgeon.model import Source

SHARED = 0.9
"""From this share of the smaller model's names on, names decide."""

CONFIDENCE = 0.5
"""Pairs below it are guesses: they would show differences that are none."""

MARK = "·B"
"""Ends the name of a value that only B has, where A has another one of its name."""


@dataclass(frozen=True, slots=True)
class Paired:
    """B under A's names. remark: how values were paired, "" when by the names of the files."""

    test: Target
    remark: str = ""


def paired(ref: Target, test: Target) -> Paired:
    """Return B with the names of A, aligned by structure where the two share too few names."""
    if test is ref:
        return Paired(test)
    names_a, names_b = ({point.key for point in target.points} for target in (ref, test))
    shared = len(names_a & names_b) / max(1, min(len(names_a), len(names_b)))
    if shared >= SHARED:
        return Paired(test)
    pairs = _pairs(ref, test, names_a, names_b)
    if not pairs:
        return Paired(test)
    proto = onnx.ModelProto()
    proto.CopyFrom(test.proto)
    taken = set(_all_names(ref.proto.graph))
    _rename(proto.graph, MAIN, {}, _Names(pairs, taken, set(_fixed_names(proto.graph))))
    source = Source(test.source.path, test.source.name, proto=proto)
    text = f"names differ: {len(pairs)} of {len(names_a)} values of A were paired with B's by structure"
    return Paired(Target(source), text)


def _pairs(ref: Target, test: Target, names_a: set[str], names_b: set[str]) -> dict[str, str]:
    """Return B's tap name → A's name in its graph.

    Outputs that found no partner go by position where their numbers agree.
    """
    found = {
        pair.b_name: str(pair.a.name)
        for pair in align(ref.model, test.model).values
        if pair.form == "same"
        and pair.confidence >= CONFIDENCE
        and pair.a_name in names_a
        and pair.b_name in names_b
    }
    if found and len(ref.outputs) == len(test.outputs):
        taken = set(found.values())
        for a, b in zip(ref.outputs, test.outputs, strict=True):
            if b not in found and a not in taken and a in names_a and b in names_b:
                found[b] = a
    return found


@dataclass(frozen=True, slots=True)
class _Names:
    """What B's names become.

    pairs: B's tap name → A's name in its graph. taken: all names in A. fixed: names in B of inputs and
    constants.
    """

    pairs: Mapping[str, str]
    taken: set[str]
    fixed: set[str]

    def new(self, scope: str, name: str) -> str:
        """Return what a node's output is called from now on."""
        partner = self.pairs.get(qualified(scope, name))
        if partner is not None and partner not in self.fixed:
            return partner
        return f"{name}{MARK}" if name in self.taken else name


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name that a graph and its subgraphs define."""
    yield from _fixed_names(graph)
    for node in graph.node:
        yield from node.output
        for _, inner in _subgraphs(node):
            yield from _all_names(inner)


def _fixed_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of inputs and constants, in subgraphs too."""
    yield from own_constants(graph)
    yield from (value.name for value in graph.input)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        for _, inner in _subgraphs(node):
            yield from _fixed_names(inner)


def _subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in node.attribute:
        yield from ((attribute.name, g) for g in [attribute.g, *attribute.graphs] if g.node or g.output)


def _rename(graph: onnx.GraphProto, scope: str, outer: Mapping[str, str], names: _Names) -> None:
    """Rename what the nodes of a graph compute, wherever it is read."""
    made = [name for node in graph.node if not is_constant(node) for name in node.output if name]
    seen = {**outer, **{name: names.new(scope, name) for name in made}}
    for node in graph.node:
        for attribute, inner in _subgraphs(node):
            _rename(inner, enter(scope, first_output(node), attribute), seen, names)
        for row in (node.input, node.output):
            for place, name in enumerate(row):
                row[place] = seen.get(name, name)
    for value in [*graph.output, *graph.value_info]:
        value.name = seen.get(value.name, value.name)
