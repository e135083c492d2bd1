"""Which value of B stands for which value of A, where two models use other names.

Where they share their names, the names decide: a wrong wiring must show as what it is. Otherwise the graphs
are aligned by structure (surgeon/align.py), and B is given A's names, so that all that follows pairs by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from graphdoc.compare.bridges import REAL, Bridge, Decode, Decoder, Permute, insert, permutation
from graphdoc.compare.target import Target, first_output, is_constant, own_constants
from graphdoc.engine.infer import Facts
from graphdoc.engine.scope import MAIN, enter, qualified
from graphdoc.surgeon.align import align
from graphdoc.surgeon.align_pairs import Shape
from graphdoc.surgeon.model import Source

SHARED = 0.9
"""From this share of the smaller model's names on, names decide."""

CONFIDENCE = 0.5
"""Pairs below it are guesses: they would show differences that are none."""

MEANINGFUL = 0.75
"""From this share of equal names that structure pairs with one another on, equal names mean the same."""

FEWEST_NAMES = 8

MARK = "·B"
"""Ends the name of a value that only B has, where A has another one of its name."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Both models under the names of A. remark: how values were paired, "" when by the names of the files."""

    ref: Target
    test: Target
    remark: str = ""


def paired(ref: Target, test: Target) -> Paired:
    """Return both with the names of A, aligned by structure where the two share too few names.

    Values that one side holds as codes, or B in another layout, become A's real values (bridges.py).
    """
    if test is ref:
        return Paired(ref, test)
    names_a, names_b = ({point.key for point in target.points} for target in (ref, test))
    coded = dict([*named_codes(ref, names_a, names_b), *cut_by_codes(ref, test)])
    shared = (len(names_a & names_b) + len(coded)) / max(1, min(len(names_a), len(names_b)))
    by_name = shared >= SHARED
    found = Partners() if by_name else _aligned(ref, test, names_a, names_b)
    turned = turned_values(ref, test, names_a & names_b) if by_name or found.names else {}
    found.names.update((name, name) for name in turned if found.names.get(name, name) == name)
    found.in_b.update((n, way) for n, way in turned.items() if found.names.get(n) == n)
    partners = _bridged(found, coded, ref, test)
    if not partners.names:
        return Paired(ref, test)
    remark = _remark(partners, len(names_a), by_name=by_name)
    return Paired(_with_bridges(ref, partners.in_a), _renamed(ref, test, partners, by_name=by_name), remark)


def _with_bridges(target: Target, bridges: Mapping[str, Bridge]) -> Target:
    if not bridges:
        return target
    proto = _copy(target)
    insert(proto, bridges)
    return Target(Source(target.source.path, target.source.name, proto=proto))


def _renamed(ref: Target, test: Target, partners: "Partners", *, by_name: bool) -> Target:
    """Return B with its bridges, under A's names; where names decide, equal names stay."""
    proto = _copy(test)
    stale = {name for pair in partners.names.items() for name in pair}
    kept = [value for value in proto.graph.value_info if value.name not in stale]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    insert(proto, partners.in_b)
    pairs = {
        (f"{b}{REAL}" if b in partners.in_b else b): (f"{a}{REAL}" if a in partners.in_a else a)
        for b, a in partners.names.items()
    }
    taken = set(pairs.values()) if by_name else set(_all_names(ref.proto.graph))
    _rename(proto.graph, MAIN, {}, _Names(pairs, taken, set(_fixed_names(proto.graph))))
    return Target(Source(test.source.path, test.source.name, proto=proto))


def _copy(target: Target) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(target.proto)
    return proto


@dataclass(frozen=True, slots=True)
class Partners:
    """Who stands for whom.

    names: B's tap name → A's name in its graph. in_a, in_b: bridges of that side, by its own name.
    coded: names of B's values of which one side holds codes and the other real numbers.
    """

    names: dict[str, str] = field(default_factory=dict)
    in_a: dict[str, Bridge] = field(default_factory=dict)
    in_b: dict[str, Bridge] = field(default_factory=dict)
    coded: set[str] = field(default_factory=set)


def _aligned(ref: Target, test: Target, names_a: set[str], names_b: set[str]) -> Partners:
    """Return the partners by structure.

    Outputs that found none go by position where their numbers agree.
    """
    found = Partners()
    facts = Facts(ref.model), Facts(test.model)
    for pair in align(ref.model, test.model).values:
        known = pair.a_name in names_a and pair.b_name in names_b
        if not known or pair.confidence < CONFIDENCE:
            continue
        if pair.form == "layout":
            order = _order(*(side.of(v).shape for side, v in zip(facts, (pair.a, pair.b), strict=True)))
            if order is None or pair.b_name != pair.b.name or pair.b_name in test.outputs:
                continue
            found.in_b[pair.b_name] = Permute(order)
        if pair.form == "codes":
            found.coded.add(pair.b_name)
        found.names[pair.b_name] = str(pair.a.name)
    _trust_names(found, names_a & names_b)
    _pair_outputs(found.names, ref, test, names_a, names_b)
    return found


def _trust_names(found: Partners, shared: set[str]) -> None:
    """Pair what has the same name, where structure says for most names that they mean the same."""
    told = {name: found.names[name] == name for name in shared & found.names.keys()}
    if sum(told.values()) < FEWEST_NAMES or sum(told.values()) < MEANINGFUL * len(told):
        return
    for name in [b for b, a in found.names.items() if (a in shared or b in shared) and a != b]:
        del found.names[name]
        found.in_b.pop(name, None)
        found.coded.discard(name)
    found.names.update((name, name) for name in shared)


def turned_values(ref: Target, test: Target, shared: set[str]) -> dict[str, Permute]:
    """Return the values of equal name that B holds with other axes.

    Looked for only where one side transposes more than the other: that is how layouts change. None where
    an output is such a value: who reads it gets other axes, and then the layer that turned them is at fault.
    """
    counts = [sum(node.op_type == "Transpose" for node in t.proto.graph.node) for t in (ref, test)]
    if counts[0] == counts[1]:
        return {}
    facts = Facts(ref.model), Facts(test.model)
    values_a, values_b = (
        {str(v.name): v for node in t.model.graph for v in node.outputs if v.name} for t in (ref, test)
    )
    found = {}
    for name in sorted(shared & values_a.keys() & values_b.keys()):
        order = _order(facts[0].of(values_a[name]).shape, facts[1].of(values_b[name]).shape)
        if order is not None:
            found[name] = Permute(order)
    return {} if found.keys() & {*ref.outputs, *test.outputs} else found


def _order(a: Shape, b: Shape) -> tuple[int, ...] | None:
    return None if a is None or b is None else permutation(a, b)


def _pair_outputs(
    names: dict[str, str], ref: Target, test: Target, names_a: set[str], names_b: set[str]
) -> None:
    if not names or len(ref.outputs) != len(test.outputs):
        return
    taken = set(names.values())
    for a, b in zip(ref.outputs, test.outputs, strict=True):
        if b not in names and a not in taken and a in names_a and b in names_b:
            names[b] = a


CODED = "_quantized"
"""Ends the name that quantisation tools give to the codes of a value."""

FUSED = frozenset({"Relu", "Clip"})
"""Operators that the range of the codes does the work of."""


def named_codes(ref: Target, names_a: set[str], names_b: set[str]) -> Iterator[tuple[str, str]]:
    """Yield B's codes and A's value of the same name.

    A Relu or Clip that only A has stands behind a layer whose codes end where it cuts: they are its result.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in ref.proto.graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    for name in sorted(names_b):
        stem = name.removesuffix(CODED)
        if stem == name or stem not in names_a or stem in names_b:
            continue
        after = readers.get(stem, [])
        result = after[0].output[0] if len(after) == 1 and after[0].op_type in FUSED else ""
        is_fused = result and not names_b & {result, f"{result}{CODED}"}
        yield name, result if is_fused else stem


def cut_by_codes(ref: Target, test: Target) -> Iterator[tuple[str, str]]:
    """Yield B's codes and A's Relu or Clip of that name, where the range of the codes does its work in B."""
    kinds = {name: node.op_type for node in ref.proto.graph.node for name in node.output[:1]}
    makers = {name: node.op_type for node in test.proto.graph.node for name in node.output[:1]}
    for node in test.proto.graph.node:
        name = node.input[0] if node.input else ""
        quantised = node.op_type == "QuantizeLinear" and name in makers
        if quantised and kinds.get(name) in FUSED and makers[name] not in FUSED:
            yield node.output[0], name


def _bridged(found: Partners, coded: Mapping[str, str], ref: Target, test: Target) -> Partners:
    """Return all partners with the bridges between codes and real numbers.

    Names of codes say more than structure does. Codes whose scale is not known have no partner.
    """
    taken = set(coded.values())
    names = {b: a for b, a in found.names.items() if b not in coded and a not in taken} | dict(coded)
    result = Partners(names, dict(found.in_a), {b: way for b, way in found.in_b.items() if b in names})
    in_a, in_b = Decoder(ref), Decoder(test)
    for b in sorted((found.coded | coded.keys()) & names.keys()):
        a = names[b]
        if in_b.is_codes(b) == in_a.is_codes(a):
            continue
        bridge = in_b.bridge(b) if in_b.is_codes(b) else in_a.bridge(a)
        if bridge is None:
            del names[b]
        elif in_b.is_codes(b):
            result.in_b[b] = bridge
        else:
            result.in_a[a] = bridge
    return result


def _remark(partners: Partners, total: int, *, by_name: bool) -> str:
    """Say how values were paired, and in what form B holds them."""
    text = f"names differ: {len(partners.names)} of {total} values of A were paired with B's by structure"
    parts = [] if by_name else [text]
    for side, bridges in (("A", partners.in_a), ("B", partners.in_b)):
        codes = sum(isinstance(bridge, Decode) for bridge in bridges.values())
        if codes:
            parts.append(f"{side} holds {codes} of them as codes: compared is what these stand for")
        if len(bridges) > codes:
            parts.append(f"{side} holds {len(bridges) - codes} in another layout: compared is A's")
    return "; ".join(parts)


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
