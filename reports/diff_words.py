"""ModelDiff in words that every form repeats."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from graphdoc.reports import words
from graphdoc.surgeon.diff import FieldChange, InterfaceChange, ModelDiff, NodeChange
from graphdoc.surgeon.diff_weights import WeightChange

KINDS = {
    "removed": "removed",
    "added": "added",
    "operator": "changed",
    "attributes": "changed",
    "wiring": "changed",
}
"""Kind of a node change → the word under which it is counted."""

TITLES = {
    "operator": "another operator",
    "attributes": "other attributes",
    "wiring": "other inputs",
    "removed": "removed",
    "added": "added",
}

NAMED = 4
"""Operators that are named in a sentence."""

FROM_NOTHING = 10.0
"""Change of a weight, in norms of what it was, past which that was next to 0: no figure for a headline."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 node, 2 829 nodes."""
    return f"{words.group(count)} {noun}{'' if count == 1 else 's'}"


def verdict(diff: ModelDiff) -> tuple[str, str]:
    """Return symbol and word."""
    return ("✓", "same") if diff else ("✗", "differs")


def sentence(diff: ModelDiff) -> str:
    """Return the answer in one sentence, without the verdict's word."""
    if diff:
        names = (
            f"; {plural(diff.renamed, 'inner name')} differ{'s' * (diff.renamed == 1)}"
            if diff.renamed
            else ""
        )
        return f"{plural(diff.same_nodes, 'node')} and {plural(diff.same_weights, 'weight')} are equal{names}"
    tally = Counter(KINDS[change.kind] for change in diff.nodes)
    order = ("changed", "added", "removed")
    nodes = ", ".join(f"{plural(tally[kind], 'node')} {kind}" for kind in order if tally[kind])
    parts = [nodes or "all nodes are equal", _weights_part(diff)]
    if diff.interface:
        parts.append("the interface differs")
    if diff.fields:
        parts.append(
            f"{plural(len(diff.fields), 'field')} of the model differ{'s' * (len(diff.fields) == 1)}"
        )
    return "; ".join(part for part in parts if part)


def _weights_part(diff: ModelDiff) -> str:
    tally = Counter(change.kind for change in diff.weights)
    counted = ", ".join(
        f"{plural(tally[k], 'weight')} {k}" for k in ("changed", "added", "removed") if tally[k]
    )
    return counted or "all weights are equal"


def facts(diff: ModelDiff) -> Iterator[tuple[str, str]]:
    """Yield what the answer rests on, label and text."""
    for label, head in (("A", diff.a), ("B", diff.b)):
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in head.opsets.items())
        counts = f"{plural(head.nodes, 'node')}, {plural(head.weights, 'constant')}, {words.size(head.bytes)}"
        yield label, f"{head.name}   {counts}, {opsets}"
    if diff.fields:
        yield "model", _listed([field(change) for change in diff.fields])
    if diff.interface:
        yield "interface", _listed([port(change) for change in diff.interface])
    for label in ("changed", "removed", "added"):
        rows = [change for change in diff.nodes if KINDS[change.kind] == label]
        if rows:
            yield label, _operators(rows)
    if diff.weights:
        yield "weights", _weights(diff.weights)
    yield "equal", f"{plural(diff.same_nodes, 'node')}, {plural(diff.same_weights, 'weight')}"
    if diff.renamed:
        yield "names", f"{plural(diff.renamed, 'paired node')} with outputs of another name"
    if diff.unsure:
        yield "unsure", f"{plural(diff.unsure, 'pair')} of nodes could be paired otherwise"
    if diff.inlined:
        yield "inlined", "the functions of the models, since one side lacks some of them"


def _listed(texts: Sequence[str]) -> str:
    more = f", {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _operators(rows: Sequence[NodeChange]) -> str:
    tally = Counter(
        change.a_op
        if change.a_op in ("", change.b_op) or not change.b_op
        else f"{change.a_op} → {change.b_op}"
        for change in rows
    )
    if not rows[0].a_op:
        tally = Counter(change.b_op for change in rows)
    ranked = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{op} {words.group(count)}" for op, count in ranked[:NAMED]]
    more = len(ranked) - NAMED
    return ", ".join([*shown, *([f"{more} more {'kind' if more == 1 else 'kinds'}"] if more > 0 else [])])


def _weights(changes: Sequence[WeightChange]) -> str:
    measured = [change for change in changes if change.relative is not None]
    parts = [_weights_tally(changes)]
    small = [change for change in measured if _from_nothing(change)]
    measured = [change for change in measured if change not in small]
    if small:
        verb = "was" if len(small) == 1 else "were"
        parts.append(f"{len(small)} {verb} next to 0 before, as {small[0].b or small[0].a}")
    if measured:
        worst = measured[0]
        parts.append(
            f"the largest change is {words.number(worst.relative)} of the norm, in {worst.b or worst.a}"
        )
    return "; ".join(parts)


def _from_nothing(change: WeightChange) -> bool:
    """Whether a weight was next to 0 before; where NaN or Inf differ, nothing is known of that."""
    return (change.relative or 0.0) > FROM_NOTHING and math.isfinite(change.largest or 0.0)


def _weights_tally(changes: Sequence[WeightChange]) -> str:
    tally = Counter(change.kind for change in changes)
    return ", ".join(
        f"{words.group(tally[kind])} {kind}" for kind in ("changed", "added", "removed") if tally[kind]
    )


def field(change: FieldChange) -> str:
    """Return a change of the model in words."""
    return f"{change.field} {change.a or words.UNKNOWN} → {change.b or words.UNKNOWN}"


def port(change: InterfaceChange) -> str:
    """Return a change of an input or output in words."""
    if change.kind in ("added", "removed"):
        return f"{change.role} {change.name} {change.kind} ({change.a or change.b})"
    if change.kind == "renamed":
        return f"{change.role} {change.a} is now named {change.b}"
    if change.kind == "order":
        return f"{change.role}s stand in another order"
    return f"{change.role} {change.name}: {change.a} → {change.b}"


def node_cells(change: NodeChange) -> tuple[str, str, str, str]:
    """Return kind, operator, name and details of a node change."""
    op = change.a_op or change.b_op
    if change.a_op and change.b_op and change.a_op != change.b_op:
        op = f"{change.a_op} → {change.b_op}"
    name = change.a or change.b
    if change.a and change.b and change.a != change.b:
        name = f"{change.a} → {change.b}"
    return TITLES[change.kind], op, name, "; ".join(change.details)


def weight_cells(change: WeightChange) -> tuple[str, str, str, str, str, str]:
    """Return kind, name, dtype and shape, relative change, largest change, and a note of a weight change."""
    name = change.a or change.b
    if change.a and change.b and change.a != change.b:
        name = f"{change.a} → {change.b}"
    before = f"{change.a_dtype} {words.shape(change.a_shape)}" if change.a_dtype else ""
    after = f"{change.b_dtype} {words.shape(change.b_shape)}" if change.b_dtype else ""
    kind = before if before == after or not after else after if not before else f"{before} → {after}"
    note = change.note or ("the numbers are equal" if change.differing == 0 else "")
    return change.kind, name, kind, words.number(change.relative), words.number(change.largest), note
