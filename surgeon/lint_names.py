"""Rules about names and texts."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from graphdoc.surgeon.lint import Fault, Severity, rule
from graphdoc.surgeon.subject import Subject, defined

_ERROR, _WARNING, _REMARK = Severity.ERROR, Severity.WARNING, Severity.REMARK
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_PATHS = re.compile(r"(?:/(?:home|Users|root|mnt|opt|tmp|workspace|content)/|[A-Za-z]:\\)[^\s\"',;:()]+")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@rule(
    "duplicate-node-name",
    _WARNING,
    harm="profiles, rewriters and precision lists that go by node name hit the wrong node",
    mend="give each node of a graph its own name",
)
def duplicate_node_name(subject: Subject) -> Iterator[Fault]:
    """Nodes of one graph that share a name."""
    for place in subject.places:
        tally = Counter(node.name for node in place.graph.node if node.name)
        for name, count in tally.items():
            if count > 1:
                yield Fault(f"{place.scope}{name}", f"{count} nodes have this name")


@rule(
    "missing-node-name",
    _REMARK,
    harm="tools name such nodes after an output, or not at all",
    mend="name the nodes",
)
def missing_node_name(subject: Subject) -> Iterator[Fault]:
    """Nodes without a name, counted per graph."""
    for place in subject.places:
        count = sum(not node.name for node in place.graph.node)
        if count:
            label = f"graph {place.scope}" if place.scope else "main graph"
            yield Fault(label, f"{count} of {_plural(len(place.graph.node), 'node')} have no name")


@rule(
    "shadowed-name",
    _ERROR,
    harm="the specification forbids it; runtimes may read the wrong value",
    mend="rename the inner value",
)
def shadowed_name(subject: Subject) -> Iterator[Fault]:
    """A value of a subgraph with the name of a value around it."""
    for place in subject.places:
        for name in dict.fromkeys(defined(place.graph)):
            if name in place.outer:
                yield Fault(f"{place.scope}{name}", "has the name of a value outside the subgraph")


@rule(
    "duplicate-output",
    _WARNING,
    harm="results by name lose one of them",
    mend="list each output once",
)
def duplicate_output(subject: Subject) -> Iterator[Fault]:
    """An output of the model that is listed more than once."""
    for name, count in Counter(info.name for info in subject.proto.graph.output).items():
        if count > 1:
            yield Fault(name, f"{count} outputs have this name")


@rule(
    "initializer-name",
    _ERROR,
    harm="the weight cannot be reached, or replaces another one",
    mend="give each initializer its own name",
)
def initializer_name(subject: Subject) -> Iterator[Fault]:
    """An initializer without a name, or two with the same one."""
    for place in subject.places:
        if not place.is_graph:
            continue
        names = [tensor.name for tensor in place.graph.initializer]
        names += [sparse.values.name for sparse in place.graph.sparse_initializer]
        for name, count in Counter(names).items():
            if not name:
                yield Fault(f"{place.scope}initializer", f"{_plural(count, 'initializer')} without a name")
            elif count > 1:
                yield Fault(f"{place.scope}{name}", f"{count} initializers have this name")


@rule(
    "stale-value-info",
    _REMARK,
    harm="none; it describes a value that does not exist",
    mend="drop it from value_info",
)
def stale_value_info(subject: Subject) -> Iterator[Fault]:
    """value_info of a name that the graph does not have."""
    for place in subject.places:
        known = set(defined(place.graph)) | place.outer
        for info in place.graph.value_info:
            if info.name not in known and not _of_function(info.name, subject):
                yield Fault(f"{place.scope}{info.name}", "is described, but no such value exists")


def _of_function(name: str, subject: Subject) -> bool:
    """Whether a name describes a value of a function, as IR versions below 10 spell it."""
    head = name.split("/", 1)[0]
    return any(head == f"{function.domain}::{function.name}" for function in subject.proto.functions)


@rule(
    "hidden-characters",
    _WARNING,
    harm="the name does not read as what it is; logs and reports break",
    mend="rename it to visible characters",
)
def hidden_characters(subject: Subject) -> Iterator[Fault]:
    """Control, bidi or other unseen characters in the name of a node or value."""
    for place in subject.places:
        names: Iterable[str] = (*(node.name for node in place.graph.node), *defined(place.graph))
        for name in dict.fromkeys(names):
            if name.isascii() and name.isprintable():
                continue
            found = next((c for c in name if unicodedata.category(c) in _HIDDEN), None)
            if found is not None:
                yield Fault(f"{place.scope}{name}", f"holds the character U+{ord(found):04X}")


@rule(
    "path-in-text",
    _REMARK,
    harm="it tells about the machine that made the model",
    mend="clear doc_string and metadata before publishing",
)
def path_in_text(subject: Subject) -> Iterator[Fault]:
    """An absolute path in a doc string or in metadata, counted per kind of text."""
    texts: dict[str, list[str]] = {"doc_string of the model": [subject.proto.doc_string]}
    for entry in subject.proto.metadata_props:
        texts.setdefault("metadata of the model", []).append(entry.value)
    for _, node in subject.nodes():
        texts.setdefault("doc_string of nodes", []).append(node.doc_string)
        texts.setdefault("metadata of nodes", []).extend(entry.value for entry in node.metadata_props)
    for kind, found in texts.items():
        hits = [match[0] for text in found for match in [_PATHS.search(text)] if match]
        if hits:
            yield Fault(kind, f"{_plural(len(hits), 'text')} with an absolute path, such as {hits[0]}")
