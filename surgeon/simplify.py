"""Simplify a model: rewrite rules and folding to a fixed point, over the main graph, subgraphs and functions.

The order of work: every node is visited once in topological order; after an edit the nodes near it are
visited again. When none is left, passes over whole graphs follow (equal constants, equal nodes, what is
unused). All of it repeats until nothing changes, so a second simplification finds nothing. Time grows with
the number of nodes, whatever the order of the edits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial

import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError, UsageError
from graphdoc.engine.infer import Facts
from graphdoc.surgeon.prepare import prepare
from graphdoc.surgeon.rules import all_rules, rules_for
from graphdoc.surgeon.rules.base import (
    Context,
    Edit,
    Refusal,
    Rule,
    counts,
    has_references,
    operator_name,
    walk,
)
from graphdoc.surgeon.rules.passes import PASSES
from graphdoc.surgeon.saver import all_tensors
from graphdoc.surgeon.simplified import Done, Dropped, Kept, Report, Simplified
from graphdoc.surgeon.stubs import refuse_stripped
from graphdoc.surgeon.tensors import detached
from graphdoc.surgeon.verification import Verification, Verify

MIB = 2**20
MOST_EDITS = 50
"""Edits per node after which two rules must be undoing each other."""

MAX_SWEEPS = 64
"""Sweeps after which two rules must be undoing each other; real models need three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to simplify, and how far.

    only, skip: names or groups of rules. A rule that runs on request only runs when ``only`` or ``request``
    names it. keep: globs over names of nodes and values that must survive under their names.
    max_growth: bytes that folding may add to the model in all.
    shapes: sizes of inputs by name; the result is specialised to them. freeze: globs over inputs with a
    default value; they become constants. inline: replace calls of the model's own functions by their bodies.
    to_opset: the version of ai.onnx to convert to first.
    limit: stop after so many edits. None: no bound.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    max_growth: int = MIB
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    freeze: tuple[str, ...] = ()
    inline: bool = False
    to_opset: int | None = None
    limit: int | None = None


def rule_names(rules: Iterable[Rule] = ()) -> list[str]:
    """Return the names of all rules and passes that ``only`` and ``skip`` take, groups aside."""
    return sorted({item.name for item in (*all_rules(), *PASSES, *rules)})


def simplify(
    model: ir.Model,
    options: Options | None = None,
    verify: Verify | None = None,
    *,
    rules: Sequence[Rule] = (),
    fresh: Callable[[], ir.Model] | None = None,
) -> Simplified:
    """Return a model with fewer nodes and the same outputs for every input.

    model: not changed. verify: compares original and result; when they differ, the edits are bisected, the
    rule at fault is dropped, and the rest is done again. rules: further rules beside those that come along.
    fresh: makes a copy of the model that may be edited; by default the model is cloned.

    Raises UsageError for unknown rules, inputs or shapes; ModelError where a model cannot be edited.
    """
    refuse_stripped(model, "rewriting")
    options = options or Options()
    copy = fresh or partial(detached, model)
    _check_names(options, rules)
    _check_keep(model, options.keep)
    dropped: list[Dropped] = []
    while True:
        edited, driver = _run(copy(), options, rules)
        same = not (driver.done or rules or _asks(options))  # a rule of a user's may edit and not say so
        checked = None if verify is None or same else verify(model, edited)
        if checked is None or checked.agrees:
            break
        guilty = _bisect(model, options, rules, copy, verify, len(driver.done)) if verify else None
        if guilty is None:
            break
        dropped.append(guilty)
        options = replace(options, skip=(*options.skip, guilty.rule))
    return Simplified(edited, _report(driver, tuple(dropped), checked))


def _asks(options: Options) -> bool:
    """Whether more than rules and passes changes the model."""
    return bool(options.shapes or options.freeze or options.inline or options.to_opset is not None)


def _check_names(options: Options, rules: Sequence[Rule]) -> None:
    offered = (*rules_for(_named(options)), *PASSES, *rules)
    known, groups = {item.name for item in offered}, {item.group for item in offered}
    for name in (*options.only, *options.skip, *options.request):
        if name not in known | groups:
            close = get_close_matches(name, sorted(known | groups), n=3)
            raise UsageError(
                f"there is no rule '{name}'",
                where=f"groups of rules: {', '.join(sorted(groups))}",
                next_step=f"did you mean {' or '.join(map(repr, close))}?" if close else _LIST_OF_RULES,
            )


_LIST_OF_RULES = "name a group, or a rule: docs/simplify.md lists them"


def _check_keep(model: ir.Model, globs: Iterable[str]) -> None:
    if not globs:
        return
    nodes = [node for root in _roots(model) for node in walk(root)]
    values = [value for graph in model.graphs() for value in (*graph.inputs, *graph.initializers.values())]
    values += [value for node in nodes for value in node.outputs]
    names = {value.name for value in values if value.name} | {node.name for node in nodes if node.name}
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            close = get_close_matches(glob, sorted(names), n=3) if len(names) < MANY_NAMES else []
            raise UsageError(
                f"no node and no value is called '{glob}'",
                where="--keep",
                next_step=f"did you mean {' or '.join(map(repr, close))}?" if close else _LIST_OF_NAMES,
            )


_LIST_OF_NAMES = "graphdoc inspect MODEL --layers lists the names"

MANY_NAMES = 20_000
"""Names among which no nearest one is looked for any more."""


def _named(options: Options) -> set[str]:
    """Return the names of rules and groups in the options, those of passes aside."""
    passes = {name for item in PASSES for name in (item.name, item.group)}
    return {*options.only, *options.skip, *options.request} - passes


def _run(model: ir.Model, options: Options, rules: Sequence[Rule]) -> tuple[ir.Model, "_Driver"]:
    driver = _Driver(model, options, rules)
    driver.run()
    return model, driver


def _bisect(
    model: ir.Model,
    options: Options,
    rules: Sequence[Rule],
    copy: Callable[[], ir.Model],
    verify: Verify,
    edits: int,
) -> Dropped | None:
    """Return the first edit after which the outputs differ; None when they differ without any edit."""

    def attempt(limit: int) -> tuple["_Driver", Verification]:
        edited, driver = _run(copy(), replace(options, limit=limit), rules)
        return driver, verify(model, edited)

    low, high = 0, edits
    if not edits or not attempt(0)[1].agrees:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if attempt(middle)[1].agrees:
            low = middle
        else:
            high = middle
    driver, checked = attempt(high)
    edit = driver.done[high - 1]
    return Dropped(rule=edit.rule, node=edit.node, why=checked.summary())


class _Driver:
    """One simplification: visits nodes, applies rules, notes what was done and what was not."""

    def __init__(self, model: ir.Model, options: Options, rules: Sequence[Rule]) -> None:
        self.model = model
        self.options = options
        self.done: list[Done] = []
        self.refused: dict[tuple[ir.Node, str], str] = {}
        active = [rule for rule in (*rules_for(_named(options)), *rules) if self._active(rule)]
        self._everywhere = [rule for rule in active if not rule.ops]
        self._at: dict[str, list[Rule]] = {}
        for rule in active:
            for op in rule.ops:
                self._at.setdefault(op, []).append(rule)
        self._passes = [item for item in PASSES if self._active(item)]
        self.nodes_before = count_nodes(model)
        self.constants_before = count_constants(model)
        self.size_before = _weight_bytes(model)

    def _active(self, rule: Rule) -> bool:
        named = {rule.name, rule.group}
        if named & set(self.options.skip):
            return False
        if self.options.only:
            return bool(named & set(self.options.only))
        return rule.default or bool(named & set(self.options.request))

    def run(self) -> None:
        """Work until nothing changes, or the limit of edits is reached."""
        calls = prepare(self.model, self.options)
        self.refused |= {(node, "inline"): reason for node, reason in calls.items()}
        self.context = Context(self.model, Facts(self.model), self.options, _kept(self.options.keep))
        for _ in range(MAX_SWEEPS):
            before = len(self.done)
            for root in _roots(self.model):
                self._sweep(root)
            for item in self._passes:
                self._pass(item)
            if len(self.done) == before or self._full():
                return
            self.context.facts.forget_all()  # of the smaller graph more may be known
        raise self._endless()

    def _endless(self) -> GraphdocError:
        return GraphdocError(
            f"the rules do not come to an end: {len(self.done)} edits so far",
            where=", ".join(sorted({edit.rule for edit in self.done[-20:]})),
            next_step="leave one of these rules out: --skip RULE",
        )

    def _full(self) -> bool:
        return self.options.limit is not None and len(self.done) >= self.options.limit

    def _sweep(self, root: ir.Graph | ir.Function) -> None:
        """Visit every node of a graph, and those near edits again."""
        context = self.context
        context.root = root
        queue = deque(walk(root))
        waiting = set(queue)
        most = len(self.done) + MOST_EDITS * (len(queue) + 100)
        while queue and not self._full():
            if len(self.done) > most:
                raise self._endless()
            node = queue.popleft()
            waiting.discard(node)
            if node.graph is None:
                continue
            self._visit(node)
            for near in context.touched:
                if near not in waiting and near.graph is not None:
                    waiting.add(near)
                    queue.append(near)
            context.touched.clear()

    def _visit(self, node: ir.Node) -> None:
        context = self.context
        if context.kept(node) or has_references(node):
            return
        place = label(node)  # before an edit can give its outputs other names
        for rule in (*self._at.get(operator_name(node), ()), *self._everywhere):
            outcome = rule.apply(node, context)
            if outcome is None:
                self.refused.pop((node, rule.name), None)
            elif isinstance(outcome, Refusal):
                self.refused[node, rule.name] = outcome.reason
            else:
                context.prune()
                self._note(rule, node, outcome, place)
                context.touch(node)
                return

    def _note(self, rule: Rule, node: ir.Node | None, edit: Edit, place: str = "") -> None:
        place = place or ("" if node is None else label(node))
        op = "" if node is None else node.op_type
        removed = self.context.take_count()
        self.done.append(
            Done(rule=rule.name, group=rule.group, node=place, op=op, text=edit.text, removed=removed)
        )

    def _pass(self, item: Rule) -> None:
        """Run a pass over each graph, one edit after the other."""
        if self._full():
            return
        self.refused = {key: why for key, why in self.refused.items() if key[1] != item.name}
        for root in _roots(self.model):
            self.context.root = root
            for node, edit in item.run(root, self.context):  # type: ignore[attr-defined]
                if isinstance(edit, Refusal):
                    self.refused[node, item.name] = edit.reason
                    continue
                self.context.prune()
                self._note(item, node, edit)
                if self._full():
                    return
        self.context.touched.clear()

    def kept(self) -> Iterator[Kept]:
        """Yield what was refused at nodes that are still there."""
        for (node, rule), reason in self.refused.items():
            if node.graph is not None:
                yield Kept(rule=rule, node=label(node), op=node.op_type, reason=reason)


def label(node: ir.Node) -> str:
    """Return what to call a node: its name, or that of its first output."""
    return node.name or next((str(value.name) for value in node.outputs if value.name), node.op_type)


def count_nodes(model: ir.Model) -> int:
    """Return the number of nodes that compute, in subgraphs and functions too."""
    return sum(counts(node) for root in _roots(model) for node in walk(root))


def count_constants(model: ir.Model) -> int:
    """Return the number of initializers and Constant nodes, in subgraphs and functions too."""
    nodes = sum(not counts(node) for root in _roots(model) for node in walk(root))
    return nodes + sum(len(graph.initializers) for graph in model.graphs())


def _roots(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Return the functions of a model and its main graph, which may profit from what was done in them."""
    return [*model.functions.values(), model.graph]


def _kept(globs: tuple[str, ...]) -> Callable[[ir.Value | ir.Node], bool]:
    """Return whether a node or value has a name that must survive (a node also by what it makes)."""
    if not globs:
        return lambda part: False

    def kept(part: ir.Value | ir.Node) -> bool:
        names = [part.name]
        if isinstance(part, ir.Node):
            names += [value.name for value in part.outputs]
        return any(fnmatchcase(name, glob) for name in names if name for glob in globs)

    return kept


def _report(driver: _Driver, dropped: tuple[Dropped, ...], checked: Verification | None) -> Report:
    return Report(
        nodes_before=driver.nodes_before,
        nodes_after=count_nodes(driver.model),
        constants_before=driver.constants_before,
        constants_after=count_constants(driver.model),
        size_before=driver.size_before,
        size_after=_weight_bytes(driver.model),
        done=tuple(driver.done),
        kept=tuple(driver.kept()),
        dropped=dropped,
        verification=checked,
    )


def _weight_bytes(model: ir.Model) -> int:
    return sum({id(t): t.nbytes for t in all_tensors(model) if t.dtype != ir.DataType.STRING}.values())
