"""One graph at known shapes → parts: programs, and nodes that level 0 runs between them.

Nodes are visited once, in order. What follows from constants and shapes alone is computed on the way; a node
with a lowering joins the program of its level, any other becomes a host node. A level is a program and the
host nodes that wait for it: a node stands at the lowest level at which its inputs are there, so that programs
are few and large. A node that needs the shape of what only a run can tell (how many elements are not zero,
which branch of an If) is put off; the run goes on from there with a stage of its own, made for what it then
finds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.body import Body, call_function
from graphdoc.engine.body import Step as Node
from graphdoc.engine.expr import I8, U8
from graphdoc.engine.lower import (
    Counted,
    Named,
    NotLowered,
    Origin,
    Site,
    constant,
    content,
    expressible,
    find_lowering,
    sized,
)
from graphdoc.engine.lower_quantize import origin_of
from graphdoc.engine.ops.table import ContainerType, Operator, TensorType, canonical_domain, find
from graphdoc.engine.parts import (
    Bind,
    Computed,
    Hosted,
    HostNode,
    Item,
    Known,
    Part,
    Place,
    Rest,
    Segment,
    Source,
    Stage,
    State,
    Visit,
    Wishes,
    frees_of,
    holds,
)
from graphdoc.engine.program import Buffer, Kind, Program, View
from graphdoc.engine.scope import FUNCTION, MAIN, qualified
from graphdoc.engine.stage_flow import joined
from graphdoc.engine.weights import Weights, folded

_UNKNOWN = TensorType()
_STRINGS = np.dtype(object)


class Builder:
    """Makes one stage.

    body: the graph. rest: where the stage begins. wishes: what the run is to do besides. weights: what all
    stages of a model share.
    """

    def __init__(
        self,
        body: Body,
        rest: Rest,
        wishes: "Wishes",
        weights: "Weights",
    ) -> None:
        self.body = body
        self.states = rest.states
        self.parents = list(rest.parents)
        self.items = rest.items
        self.fresh = rest.fresh
        self.taps = wishes.taps
        self.given = wishes.given
        self.weights = weights
        self.constants: dict[int, tuple[Any, View]] = {}
        self.dequantised: dict[int, tuple[Any, list[Any], Mapping[str, Any]]] = {}
        self.origins: dict[Buffer, Origin] = {}
        self.segments: dict[int, Segment] = {}
        self.hosts: dict[int, list[HostNode]] = {}
        self.put_off: list[Item] = []
        self.asked: dict[str, None] = {}
        self.conditions: set[str] = set()
        self.tapped: dict[str, tuple[State, bool]] = {}
        self.notes: dict[str, str] = {}
        self.drawing_put_off = False
        self.drawn = -1
        self.turn = ""

    def build(self) -> Stage:
        """Visit what is to visit, and return the stage."""
        if self.fresh and self.body.scope != MAIN:
            for value in self.body.inputs:
                place = (0, value)
                if place in self.states:
                    self._put(place, qualified(self.body.scope, str(value.name)), self.states[place])
        for item in self.items:
            self._item(item)
        outputs = [None if v is None else self.find(0, v) for v in self.body.outputs]
        results = tuple(self._source(s) if s is not None else None for s in outputs)
        taps = {key: (self._source(state), nested) for key, (state, nested) in self.tapped.items()}
        rest = self._rest() if self.put_off else None
        parts = list(self._parts())
        stage = Stage(parts, rest, results, taps, notes=self.notes)
        stage.frees = frees_of(stage, self.states)
        return stage

    def _parts(self) -> Iterator[Part]:
        for level in sorted({*self.segments, *self.hosts}):
            if level in self.segments and self.segments[level].program.outputs:
                yield self.segments[level]
            yield from self.hosts.get(level, ())

    # ---- states -----------------------------------------------------------------------------------

    def find(self, frame: int, value: ir.Value) -> State | None:
        """Return the state of a value as a frame sees it, None when it is put off."""
        while frame >= 0:
            state = self.states.get((frame, value))
            if state is not None:
                return state
            frame = self.parents[frame]
        return None

    def _put(self, place: Place, key: str, state: State) -> None:
        if key in self.taps:
            self.tapped[key] = state, place[0] > 0 or self.body.scope != MAIN
        if key in self.given:
            state = self.given[key]
        self.states[place] = state
        if isinstance(state, Computed) and key:
            self.segments[state.level].program.values[key] = state.view

    def _source(self, state: State) -> Source:
        """Return where a run finds a value; one of a program becomes an output of it."""
        if isinstance(state, Known):
            return state
        if isinstance(state, Computed):
            self.segments[state.level].give(state.key, state.view)
        return state.key

    def _reads(self, item: Item) -> list[Place]:
        if isinstance(item, Bind):
            return [item.source]
        reads = [value for value in item.node.inputs if value is not None]
        reads += [value for body in item.node.bodies.values() for value in body.captured]
        return [(item.frame, value) for value in reads]

    def _rest(self) -> Rest:
        """Return what is left to do, every value that it reads among the run's arrays."""
        states: dict[Place, State] = {}
        places = [place for item in self.put_off for place in self._reads(item)]
        places += [(0, value) for value in self.body.outputs if value is not None]
        asked = dict(self.asked)
        for frame, value in places:
            state = self.find(frame, value)
            if state is None:
                continue
            self._source(state)
            if not isinstance(state, Known):
                settled = isinstance(state, Hosted) and state.settled
                state = Hosted(state.key, -1, state.type, settled)
                if not settled and not sized(state.type):
                    asked[state.key] = None
            states[frame, value] = state
        return Rest(self.put_off, states, self.parents, list(asked), frozenset(self.conditions))

    # ---- visits -----------------------------------------------------------------------------------

    def _item(self, item: Item) -> None:
        if isinstance(item, Visit):
            self.visit(item)
            return
        state = self.find(*item.source)
        if state is None:
            self.put_off.append(item)
        else:
            self._put(item.target, item.key, state)

    def visit(self, item: Visit) -> None:
        """Make a node part of the stage, or put it off."""
        found = [self.find(*place) for place in self._reads(item)]
        node = item.node
        if None in found:
            self._later(item)
            return
        if node.run is call_function:
            self._call(item)
        elif node.node.op_type == "If" and canonical_domain(node.node.domain) == "":
            self._branch(item)
        else:
            self._compute(item, self._inputs(item))

    def _inputs(self, item: Visit) -> list[State]:
        states = (Known(None) if v is None else self.find(item.frame, v) for v in item.node.inputs)
        return [state for state in states if state is not None]

    def _later(self, item: Visit) -> None:
        self.drawing_put_off |= _draws(self._row(item.node), item.node)
        self.put_off.append(item)

    def _row(self, node: Node) -> Operator | None:
        if not isinstance(node.run, partial):
            return None
        return find(canonical_domain(node.node.domain), node.node.op_type, node.run.args[0].version)

    def _call(self, item: Visit) -> None:
        body = item.node.bodies[FUNCTION]
        frame = self.frame(-1, body)
        missing = [Known(None)] * (len(body.inputs) - len(item.node.inputs))
        for value, state in zip(body.inputs, [*self._inputs(item), *missing], strict=False):
            self._put((frame, value), qualified(body.scope, str(value.name)), state)
        self._enter(item, body, frame)

    def _branch(self, item: Visit) -> None:
        condition = self.find(item.frame, item.node.inputs[0])  # type: ignore[arg-type]
        if condition is not None and joined(self, item, [condition]):
            return
        if isinstance(condition, Computed | Hosted):
            self.asked[condition.key] = None
            self.conditions.add(condition.key)
        if not isinstance(condition, Known):
            self._later(item)
            return
        name = str(item.node.inputs[0].name)  # type: ignore[union-attr]
        chosen = "then_branch" if holds(condition.value, name) else "else_branch"
        body = item.node.bodies[chosen]
        self._enter(item, body, self.frame(item.frame, body))

    def frame(self, parent: int, body: Body) -> int:
        """Return a new frame, in which the constants of a body are known."""
        self.parents.append(parent)
        frame = len(self.parents) - 1
        for value, array in body.constants.items():
            self.states[frame, value] = Known(array, shared=True)
        return frame

    def _enter(self, item: Visit, body: Body, frame: int) -> None:
        for node in body.steps:
            self.visit(Visit(node, frame))
        for target, source, key in zip(item.node.outputs, body.outputs, item.node.keys, strict=False):
            if source is not None:
                self._item(Bind((item.frame, target), (frame, source), key))

    def _compute(self, item: Visit, inputs: list[State]) -> None:
        node, row = item.node, self._row(item.node)
        if node.bodies and joined(self, item, inputs):
            return
        draws = _draws(row, node)
        constants = [s for s in inputs if isinstance(s, Known)]
        if len(constants) == len(inputs) and not draws:
            shared = all(s.shared or s.value is None for s in constants)
            values = [s.value for s in constants]
            results = self.weights.fold(node, values) if shared else folded(node, values)
            if results is not None:
                if node.node.op_type == "DequantizeLinear" and values[0].dtype in (I8, U8):
                    self.dequantised[id(results[0])] = (results[0], values, node.run.keywords)
                self.outputs(item, [Known(value, shared) for value in results])
                return
        types = _inferred(row, node, inputs)
        if types and not draws and all(known.value is not None for known in types):
            self.outputs(item, [Known(known.value) for known in types])
            return
        lowered = None if row is None else find_lowering(row.domain, row.name, row.since)
        if lowered is not None:
            if any(not isinstance(s, Known) and not sized(s.type) and not _settled(s) for s in inputs):
                self._later(item)
                return
            if self._lower_coded(item, row, lowered, inputs, types):
                return
        if draws and self.drawing_put_off:  # random numbers are drawn in the order of the nodes
            self._later(item)
        else:
            self._host(item, inputs, types, draws)

    def outputs(self, item: Visit, states: Sequence[State]) -> None:
        """Note the states of a node's outputs."""
        for value, key, state in zip(item.node.outputs, item.node.keys, states, strict=False):
            self._put((item.frame, value), key, state)

    # ---- lowering ---------------------------------------------------------------------------------

    def _lower_coded(
        self, item: Visit, row: Any, lowered: Any, inputs: list[State], types: Sequence[TensorType]
    ) -> bool:
        """Lower a node; strings that it looks up are looked up by the host, and the program gets codes."""
        first = inputs[0] if inputs else None
        if lowered.codes is None or not isinstance(first, Hosted) or first.type.dtype != _STRINGS:
            return self._lower(item, row, lowered, inputs, types)
        codes = lowered.codes(**item.node.run.keywords)
        if codes is None:
            return False
        key = f"codes of {first.key} for {item.node.keys[0]}"
        part = _function(item.node, codes, (first.key,), key)
        coded = Hosted(key, first.level, TensorType(np.dtype(np.int64), first.type.shape))
        if not self._lower(item, row, lowered, [coded, *inputs[1:]], types, coded=True):
            for segment in self.segments.values():
                segment.program.inputs.pop(key, None)
            return False
        self.hosts.setdefault(first.level, []).append(part)
        self._note(item.node, "the host gives its strings codes; the rest is steps")
        return True

    def _note(self, node: Node, why: str) -> None:
        """Say why a node runs on the host."""
        self.notes[node.node.name or node.keys[0]] = why

    def _lower(
        self,
        item: Visit,
        row: Any,
        lowered: Any,
        inputs: list[State],
        types: Sequence[TensorType],
        *,
        coded: bool = False,
    ) -> bool:
        node = item.node
        name = node.node.name or node.keys[0]
        if any(s.type.shape is not None and 0 in s.type.shape for s in inputs) and not lowered.empty:
            self.notes[name] = "an input is empty"
            return False
        if not all(_absent(s) or expressible(s.type) for s in inputs):
            self.notes[name] = "a dtype that expressions lack"
            return False
        level = max((_ready(s) for s in inputs), default=0)
        segment = self.segments.setdefault(level, Segment())
        mark = len(segment.program.steps)
        views = [None if _absent(s) else self._view(segment, level, s) for s in inputs]
        try:
            site = _site(segment.program, name, node, row, coded)
            site.origins = self.origins
            found = lowered.lower(site, *views, **node.run.keywords)
            results = found if isinstance(found, tuple) else (found,)
            _check(node, results, types)
        except NotLowered as refusal:
            self.notes[name] = str(refusal)
        except Exception as error:  # noqa: BLE001 (level 0 runs the node and words what is wrong)
            self.notes[name] = f"{type(error).__name__}: {error}"
        else:
            states = [self._result(node, k, level, v) for k, v in zip(node.keys, results, strict=False)]
            self.outputs(item, states)
            return True
        del segment.program.steps[mark:]
        return False

    def segment(self, level: int) -> Segment:
        """Return the program at a level."""
        return self.segments.setdefault(level, Segment())

    def site(self, level: int, node: Node) -> Site:
        """Return where steps on behalf of a node join the program at a level."""
        return Site(self.segment(level).program, node.node.name or node.keys[0])

    def view(self, level: int, state: State) -> View:
        """Return a value as the program at a level sees it."""
        return self._view(self.segment(level), level, state)

    def _result(self, node: Node, key: str, level: int, view: View | Named | Counted) -> State:
        if isinstance(view, Named):
            return self._named(node, key or f"#{len(self.states)}", level, view)
        if isinstance(view, Counted):
            return self._counted(node, key or f"#{len(self.states)}", level, view)
        if view.buffer.kind is Kind.CONSTANT:
            return Known(content(view))
        return Computed((key or f"#{len(self.states)}") + self.turn, level, view)

    def _named(self, node: Node, key: str, level: int, found: Named) -> State:
        """Return the state of strings whose places in a table the program gives."""
        places = f"places of {key}"
        self.segments[level].give(places, found.places)
        self.hosts.setdefault(level, []).append(_function(node, found.names.take, (places,), key))
        self._note(node, "the host turns places of labels, which are steps, into strings")
        return Hosted(key, level, TensorType(_STRINGS, found.places.shape))

    def _counted(self, node: Node, key: str, level: int, found: Counted) -> State:
        """Return the state of rows that the program counts."""
        rows, count = f"rows of {key}", f"count of {key}"
        self.segments[level].give(rows, found.rows)
        self.segments[level].give(count, found.count)
        self.hosts.setdefault(level, []).append(_function(node, _first_rows, (rows, count), key))
        self._note(node, "the host cuts off the rows that there are; the rest is steps")
        return Hosted(key, level, TensorType(found.rows.dtype, (None, *found.rows.shape[1:])))

    def _view(self, segment: Segment, level: int, state: State) -> View:
        if isinstance(state, Known):
            return self._constant(state)
        if isinstance(state, Computed) and state.level == level:
            return state.view
        self._source(state)
        return segment.take(state.key, state.type)

    def _constant(self, known: Known) -> View:
        views = self.weights.views if known.shared else self.constants
        array = known.value
        if id(array) not in views:
            views[id(array)] = (array, constant(array))
        view = views[id(array)][1]
        if id(array) in self.dequantised and view.buffer not in self.origins:
            _, given, attributes = self.dequantised[id(array)]
            with suppress(ValueError, NotLowered):
                codes, scale = map(constant, given[:2])
                zero = constant(given[2]) if given[2:] and given[2] is not None else None
                self.origins[view.buffer] = origin_of(view, codes, scale, zero, **attributes)
        return view

    # ---- host nodes -------------------------------------------------------------------------------

    def _host(self, item: Visit, inputs: list[State], types: Sequence[TensorType], draws: bool) -> None:
        node = item.node
        captured = {
            name: [s for v in body.captured if (s := self.find(item.frame, v)) is not None]
            for name, body in node.bodies.items()
        }
        reads = [*inputs, *(s for states in captured.values() for s in states)]
        level = max((s.level for s in reads if not isinstance(s, Known)), default=-1)
        if draws:
            level = self.drawn = max(level, self.drawn)
        keys = tuple(key or f"#{len(self.states)}.{k}" for k, key in enumerate(node.keys))
        part = HostNode(
            node,
            tuple(map(self._source, inputs)),
            keys,
            {name: tuple(map(self._source, states)) for name, states in captured.items()},
        )
        self.hosts.setdefault(level, []).append(part)
        padded = [*types, *[_UNKNOWN] * (len(keys) - len(types))]
        states = [
            Hosted(k, level, t, isinstance(t, ContainerType)) for k, t in zip(keys, padded, strict=False)
        ]
        self.outputs(item, states)


def _site(program: Program, name: str, node: Node, row: Operator, coded: bool) -> Site:
    return Site(program, name, row.name, row.since, node.run.args[0].outputs, coded)


def _first_rows(rows: Any, count: Any) -> Any:
    """Return so many rows, in memory of their own."""
    return rows[: int(count[0])].copy()


def _function(node: Node, run: Any, sources: tuple[str, ...], key: str) -> HostNode:
    """Return a host node that applies a function of arrays on behalf of a graph's node."""
    return HostNode(Node(node.node, run, (), (), node.keys, {}), sources, (key,), {})


def _draws(row: Operator | None, node: Node) -> bool:
    """Return whether a node may draw random numbers: some of them, or what it is made of."""
    return row is None or row.random or bool(node.bodies)


def _absent(state: State) -> bool:
    return isinstance(state, Known) and state.value is None


def _settled(state: State) -> bool:
    return isinstance(state, Hosted) and state.settled


def _ready(state: State) -> int:
    """Return the first level whose program can read a value."""
    if isinstance(state, Known):
        return 0
    return max(0, state.level + isinstance(state, Hosted))


def _inferred(row: Operator | None, node: Node, inputs: Sequence[State]) -> tuple[TensorType, ...]:
    """Return what the row states of the outputs for these inputs; nothing where it cannot."""
    if row is None or row.infer is None or node.bodies:
        return ()
    types = [None if _absent(s) else s.type for s in inputs]
    try:
        stated = row.infer(node.run.args[0], *types, **node.run.keywords)
    except Exception:  # noqa: BLE001 (a node that a run would refuse states nothing)
        return ()
    listed = stated if isinstance(stated, tuple) else (stated,)
    return tuple(_UNKNOWN if known is None else known for known in listed)


def _check(node: Node, results: Sequence[Any], types: Sequence[TensorType]) -> None:
    """Raise NotLowered where a lowering gives other outputs than inference states, or too few."""
    if len(results) < sum(bool(key) for key in node.keys):
        raise NotLowered("not all of its outputs")
    for result, known in zip(results, types, strict=False):
        if isinstance(result, Counted):
            continue
        named = isinstance(result, Named)
        dtype, shape = (_STRINGS, result.places.shape) if named else (result.dtype, result.shape)
        if sized(known) and (dtype, shape) != (known.dtype, known.shape):
            raise NotLowered(f"{dtype}{shape} where {known.dtype}{known.shape} is inferred")
