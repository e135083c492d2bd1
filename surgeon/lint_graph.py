"""Rules about versions, operators and parts that nothing uses."""

from collections import Counter
from collections.abc import Iterator

import onnx

from graphdoc.engine.errors import ModelError
from graphdoc.surgeon.checks import plain_domain
from graphdoc.surgeon.external import WeightFiles, external_tensors
from graphdoc.surgeon.lint import Fault, Severity, rule
from graphdoc.surgeon.schemas import exists, newest, signature
from graphdoc.surgeon.serving import KERNEL, ort_serves
from graphdoc.surgeon.subject import Subject, reads, used

_ERROR, _WARNING, _REMARK = Severity.ERROR, Severity.WARNING, Severity.REMARK


@rule(
    "external-data",
    _ERROR,
    harm="the model cannot be loaded",
    mend="put the data files beside the model, or export it again",
)
def external_data(subject: Subject) -> Iterator[Fault]:
    """External data that is missing, too short, or outside the folder."""
    for tensor in external_tensors(subject.proto):
        files = WeightFiles(subject.source.folder)
        files.tensors.append(tensor)
        try:
            files.check()
        except ModelError as error:
            yield Fault(tensor.name, error.cause)


@rule(
    "no-ir-version",
    _ERROR,
    harm="onnx.checker and other tools refuse the model",
    mend="set model.ir_version to the version that the operators need, at least 3",
)
def no_ir_version(subject: Subject) -> Iterator[Fault]:
    """The field ir_version is missing or 0."""
    if subject.proto.ir_version < 1:
        yield Fault("ir_version", "the model states no IR version")


@rule(
    "opset-twice",
    _WARNING,
    harm="tools disagree on which entry holds",
    mend="keep one entry of opset_import per domain",
)
def opset_twice(subject: Subject) -> Iterator[Fault]:
    """A domain listed more than once in opset_import; an error when the versions differ."""
    versions: dict[str, list[int]] = {}
    for item in subject.proto.opset_import:
        versions.setdefault(plain_domain(item.domain), []).append(item.version)
    for domain, found in versions.items():
        if len(found) > 1:
            severity = _ERROR if len(set(found)) > 1 else None
            listed = ", ".join(map(str, found))
            yield Fault(
                f"opset_import {domain or 'ai.onnx'}", f"listed {len(found)} times: {listed}", severity
            )


@rule(
    "opset-unused",
    _REMARK,
    harm="runtimes without the domain refuse the model for nothing",
    mend="drop the entry from opset_import",
)
def opset_unused(subject: Subject) -> Iterator[Fault]:
    """An imported domain that no node uses."""
    used_domains = {plain_domain(node.domain) for _, node in subject.nodes()}
    for domain in dict.fromkeys(plain_domain(item.domain) for item in subject.proto.opset_import):
        if domain and domain not in used_domains:
            yield Fault(f"opset_import {domain}", "no node uses this domain")


@rule(
    "unknown-domain",
    _REMARK,
    harm="only runtimes that bring these operators can run the model",
    mend="run it where they are registered, or export without them",
)
def unknown_domain(subject: Subject) -> Iterator[Fault]:
    """Operators of a domain that is neither ONNX's nor the model's own."""
    tally: Counter[tuple[str, str]] = Counter()
    for _, node in subject.nodes():
        if newest(node.domain) is None and not subject.is_function(node):
            tally[node.domain, node.op_type] += 1
    for (domain, name), count in sorted(tally.items()):
        yield Fault(f"{domain}::{name}", f"{count} {'node' if count == 1 else 'nodes'}")


@rule(
    "unknown-operator",
    _ERROR,
    harm="no runtime that follows the specification can run the node",
    mend="import an opset that has the operator, or correct its name or domain",
)
def unknown_operator(subject: Subject) -> Iterator[Fault]:
    """An operator that the imported version of an ONNX domain does not have.

    A warning where ONNX Runtime has it: optimised models of ONNX Runtime put its own operators there.
    """
    for place, node in subject.nodes():
        domain = plain_domain(node.domain)
        if newest(domain) is None or subject.is_function(node):
            continue
        if signature(domain, node.op_type, place.version(node)) is None:
            known = exists(domain, node.op_type)
            why = f"is not in version {place.version(node)} of" if known else "is not an operator of"
            own = ort_serves(domain, node.op_type, place.version(node), function=False) == KERNEL
            note = "; ONNX Runtime alone has it" if own else ""
            what = f"{node.op_type} {why} {domain or 'ai.onnx'}{note}"
            yield Fault(place.at(node), what, _WARNING if own else None)


@rule(
    "deprecated-operator",
    _WARNING,
    harm="newer runtimes may drop it",
    mend="replace it by what the specification names in its stead",
)
def deprecated_operator(subject: Subject) -> Iterator[Fault]:
    """An operator that the imported version declares deprecated."""
    for place, node in subject.nodes():
        domain = plain_domain(node.domain)
        found = None if subject.is_function(node) else signature(domain, node.op_type, place.version(node))
        if found is not None and found.deprecated:
            yield Fault(place.at(node), f"{node.op_type} is deprecated since version {found.since}")


@rule(
    "unknown-attribute",
    _ERROR,
    harm="ONNX Runtime refuses the model",
    mend="remove the attribute, or import the opset that has it",
)
def unknown_attribute(subject: Subject) -> Iterator[Fault]:
    """An attribute that the operator does not have in the imported version."""
    for place, node in subject.nodes():
        domain = plain_domain(node.domain)
        found = None if subject.is_function(node) else signature(domain, node.op_type, place.version(node))
        if found is None:
            continue
        for attribute in node.attribute:
            if attribute.name not in found.attributes:
                version = f"{node.op_type} of version {found.since}"
                yield Fault(place.at(node), f"{version} has no attribute '{attribute.name}'")


@rule(
    "duplicate-attribute",
    _ERROR,
    harm="tools disagree on which value holds",
    mend="keep one of them",
)
def duplicate_attribute(subject: Subject) -> Iterator[Fault]:
    """A node that lists an attribute more than once."""
    for place, node in subject.nodes():
        tally = Counter(attribute.name for attribute in node.attribute)
        for name, count in tally.items():
            if count > 1:
                yield Fault(place.at(node), f"attribute '{name}' is listed {count} times")


@rule(
    "unsorted-nodes",
    _ERROR,
    harm="the specification asks for an order in which each value is made before it is read; onnx.checker "
    "and some runtimes refuse others",
    mend="graphdoc.load sorts: save the nodes in that order",
)
def unsorted_nodes(subject: Subject) -> Iterator[Fault]:
    """A node that reads what a later node of its graph makes."""
    for place in subject.places:
        maker = {name: index for index, node in enumerate(place.graph.node) for name in node.output if name}
        for index, node in enumerate(place.graph.node):
            late = [name for name in sorted(reads(node)) if maker.get(name, -1) > index]
            if late:
                yield Fault(place.at(node), f"reads '{late[0]}', which node {maker[late[0]]} makes later")


@rule(
    "unused-initializer",
    _WARNING,
    harm="the file and its loading are larger than need be",
    mend="remove the initializer",
)
def unused_initializer(subject: Subject) -> Iterator[Fault]:
    """An initializer that nothing reads."""
    for place in subject.places:
        if not place.is_graph:
            continue
        names = used(place.graph)
        for tensor in place.graph.initializer:
            if tensor.name and tensor.name not in names:
                size = "×".join(map(str, tensor.dims)) or "scalar"
                yield Fault(f"{place.scope}{tensor.name}", f"a weight of {size} that nothing reads")


@rule(
    "unused-input",
    _WARNING,
    harm="callers must feed what has no effect",
    mend="remove the input, or use it",
)
def unused_input(subject: Subject) -> Iterator[Fault]:
    """An input of the model that nothing reads."""
    graph = subject.proto.graph
    names = used(graph)
    held = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        if info.name not in names and info.name not in held:
            yield Fault(info.name, "an input that nothing reads")


@rule(
    "unused-node",
    _WARNING,
    harm="work for nothing, or a sign that an output was forgotten",
    mend="remove the node, or make its result an output",
)
def unused_node(subject: Subject) -> Iterator[Fault]:
    """A node from which no way leads to an output of its graph."""
    for place in subject.places:
        graph = place.graph
        wanted = {info.name for info in graph.output} if place.is_graph else set(graph.output)
        for node in reversed(list(_in_order(graph))):
            if wanted.isdisjoint(node.output):
                yield Fault(place.at(node), "its results reach no output")
            else:
                wanted |= reads(node)


def _in_order(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes so that each comes after those it reads."""
    from graphlib import TopologicalSorter

    maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = {i: {maker[n] for n in reads(node) if n in maker} - {i} for i, node in enumerate(graph.node)}
    for index in TopologicalSorter(needs).static_order():
        yield graph.node[index]


@rule(
    "overridable-initializer",
    _REMARK,
    harm="it may be fed another value, so nothing that depends on it can be folded",
    mend="remove it from the inputs if it is a plain weight (IR version 4 on)",
)
def overridable_initializer(subject: Subject) -> Iterator[Fault]:
    """An initializer that is an input too."""
    if subject.proto.ir_version < 4:
        return
    inputs = {info.name for info in subject.proto.graph.input}
    for tensor in subject.proto.graph.initializer:
        if tensor.name in inputs:
            yield Fault(tensor.name, "an initializer that is an input too")


@rule(
    "trailing-empty-input",
    _REMARK,
    harm="none in runtimes; tools that count inputs are misled",
    mend="drop the empty names at the end",
)
def trailing_empty_input(subject: Subject) -> Iterator[Fault]:
    """An omitted optional input at the end of a node's inputs, where it need not be listed."""
    for place, node in subject.nodes():
        if node.input and not node.input[-1]:
            yield Fault(place.at(node), f"input {len(node.input) - 1} is listed but empty")


@rule(
    "output-not-computed",
    _REMARK,
    harm="some runtimes refuse outputs that no node makes",
    mend="pass it through Identity, or drop the output",
)
def output_not_computed(subject: Subject) -> Iterator[Fault]:
    """An output of the model that is an input or an initializer."""
    made = {name for node in subject.proto.graph.node for name in node.output}
    for info in subject.proto.graph.output:
        if info.name and info.name not in made:
            yield Fault(info.name, "an output that no node makes: it is an input or an initializer")
