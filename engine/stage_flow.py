"""Branches and loops that join a program, where all of their bodies can.

* If: both branches are computed and one result is chosen, where that costs little.
* Scan without a state that changes: all iterations at once (``engine/lift.py``).
* Scan and Loop of a known number of iterations: one after another.

Each is tried; where a body needs the host, or something that only a run can tell, all is put back, and the
node is done in another way.
"""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from graphdoc.engine.body import Body
from graphdoc.engine.cost import operations
from graphdoc.engine.expr import BOOL, apply
from graphdoc.engine.kernels.gather import Gather
from graphdoc.engine.kernels.scatter import Scatter
from graphdoc.engine.lift import lifted
from graphdoc.engine.lower import Site, expressible
from graphdoc.engine.lower_layout import entry
from graphdoc.engine.ops.table import canonical_domain
from graphdoc.engine.parts import Computed, Hosted, Known, State, Visit
from graphdoc.engine.program import Buffer, View, whole

if TYPE_CHECKING:
    from graphdoc.engine.stage import Builder

_CHEAP = 100_000
"""Operations up to which both branches of an If are computed."""

_UNROLLED = 512
"""Nodes of all iterations together up to which a loop is written out."""

_KEPT = ("states", "parents", "put_off", "asked", "conditions", "notes", "drawing_put_off", "drawn", "turn")


class _Trial:
    """What a builder had before a try, to be put back."""

    def __init__(self, builder: "Builder") -> None:
        self.builder = builder
        self.kept = {name: copy(getattr(builder, name)) for name in _KEPT}
        self.hosts = {level: len(nodes) for level, nodes in builder.hosts.items()}
        self.segments = {
            level: (len(p.steps), len(p.inputs), len(p.outputs), len(p.values))
            for level, p in ((level, segment.program) for level, segment in builder.segments.items())
        }

    @property
    def native(self) -> bool:
        """Whether nothing was left to the host or put off since."""
        builder = self.builder
        hosts = {level: len(nodes) for level, nodes in builder.hosts.items() if nodes}
        before = {level: count for level, count in self.hosts.items() if count}
        return hosts == before and len(builder.put_off) == len(self.kept["put_off"])

    def steps(self) -> list[Any]:
        """Return the steps that were added, of all levels."""
        return [
            step
            for level, segment in self.builder.segments.items()
            for step in segment.program.steps[self.segments.get(level, (0,))[0] :]
        ]

    def undo(self) -> None:
        """Put everything back."""
        builder = self.builder
        for name, value in self.kept.items():
            setattr(builder, name, value)
        for level, nodes in builder.hosts.items():
            del nodes[self.hosts.get(level, 0) :]
        for level, segment in builder.segments.items():
            steps, *counts = self.segments.get(level, (0, 0, 0, 0))
            program = segment.program
            del program.steps[steps:]
            for table, count in zip((program.inputs, program.outputs, program.values), counts, strict=True):
                for key in list(table)[count:]:
                    del table[key]


def joined(builder: "Builder", item: Visit, inputs: Sequence[State]) -> bool:
    """Make a node with bodies part of a program; return whether that was possible."""
    row = _ROWS.get((canonical_domain(item.node.node.domain), item.node.node.op_type))
    if row is None or builder.taps or builder.given or not item.node.bodies:
        return False
    trial = _Trial(builder)
    try:
        if row(builder, item, inputs, trial):
            return True
    except (ValueError, IndexError):  # sizes that do not fit: the run says why
        pass
    trial.undo()
    return False


def _enter(builder: "Builder", item: Visit, body: Body, states: Sequence[State]) -> list[State | None]:
    """Visit the nodes of a body in a frame of its own; return the states of its outputs."""
    frame = builder.frame(item.frame, body)
    for value, state in zip(body.inputs, states, strict=False):
        builder.states[frame, value] = state
    for node in body.steps:
        builder.visit(Visit(node, frame))
    return [None if v is None else builder.find(frame, v) for v in body.outputs]


def _ready_at(builder: "Builder", item: Visit, inputs: Sequence[State]) -> int | None:
    """Return the level at which all is there that a node and its bodies read; None if it cannot be told."""
    captured = [builder.find(item.frame, v) for body in item.node.bodies.values() for v in body.captured]
    states = [s for s in (*inputs, *captured) if s is not None]
    if any(not isinstance(s, Known) and not expressible(s.type) for s in states):
        return None
    return max((_level(s) for s in states), default=0)


def _level(state: State) -> int:
    return 0 if isinstance(state, Known) else max(0, state.level + isinstance(state, Hosted))


def _result(key: str, level: int, view: View) -> State:
    return Computed(key, level, view)


# ---- If --------------------------------------------------------------------------------------------------


def _both(builder: "Builder", item: Visit, inputs: Sequence[State], trial: _Trial) -> bool:
    condition, level = inputs[0], _ready_at(builder, item, inputs)
    if level is None or isinstance(condition, Known) or condition.type.dtype != BOOL:
        return False
    bodies = [item.node.bodies[name] for name in ("then_branch", "else_branch")]
    then, other = (_enter(builder, item, body, ()) for body in bodies)
    if not trial.native or not all(_alike(a, b) for a, b in zip(then, other, strict=True)):
        return False
    added = trial.steps()
    if any(isinstance(step.spec, Gather | Scatter) for step in added) or sum(map(operations, added)) > _CHEAP:
        return False  # an index outside its axis is refused, which the branch not taken must not do
    pairs = [(a, b) for a, b in zip(then, other, strict=True) if a is not None and b is not None]
    level = max([level, *(_level(s) for pair in pairs for s in pair)])
    site = builder.site(level, item.node)
    chosen = builder.view(level, condition)
    if chosen.size != 1:
        return False
    flag = View(chosen.buffer, (), (), chosen.offset)
    states = [
        _chosen(site, key, level, flag, builder.view(level, a), builder.view(level, b))
        for key, (a, b) in zip(item.node.keys, pairs, strict=True)
    ]
    builder.outputs(item, states)
    return True


def _alike(a: State | None, b: State | None) -> bool:
    """Return whether two results can be chosen from: numbers of one dtype and shape."""
    if a is None or b is None or not (expressible(a.type) and expressible(b.type)):
        return False
    return (a.type.dtype, a.type.shape) == (b.type.dtype, b.type.shape)


def _chosen(site: Site, key: str, level: int, flag: View, a: View, b: View) -> State:
    view = site.map(lambda c, x, y: apply("select", c, x, y), flag, a, b, shape=a.shape)
    return _result(key, level, view)


# ---- Scan ------------------------------------------------------------------------------------------------


def _scan(builder: "Builder", item: Visit, inputs: Sequence[State], trial: _Trial) -> bool:
    options = item.node.run.keywords
    level = _ready_at(builder, item, inputs)
    if level is None or item.node.run.args[0].version < 9 or any(_absent(s) for s in inputs):
        return False
    scans = options["num_scan_inputs"]
    states, body = list(inputs[: len(inputs) - scans]), item.node.bodies["body"]
    site = builder.site(level, item.node)
    views = [builder.view(level, s) for s in inputs[len(states) :]]
    axes = options.get("scan_input_axes") or [0] * scans
    back = options.get("scan_input_directions") or [0] * scans
    slices = [_in_order(v, a, b) for v, a, b in zip(views, axes, back, strict=True)]
    if len({v.shape[0] for v in slices}) != 1 or not slices[0].size:
        return False
    inner = _Trial(builder)
    found = _at_once(builder, item, body, states, slices, level)
    if found is None:
        inner.undo()
        found = _one_by_one(builder, item, body, states, slices, level)
    if found is None:
        return False
    carried, scanned = found
    axes = options.get("scan_output_axes") or [0] * len(scanned)
    back = options.get("scan_output_directions") or [0] * len(scanned)
    stacked = [_placed(v, a, b) for v, a, b in zip(scanned, axes, back, strict=True)]
    keys = item.node.keys[len(states) :]
    results = [_result(k, level, site.dense(v)) for k, v in zip(keys, stacked, strict=False)]
    builder.outputs(item, [*carried, *results])
    return True


def _absent(state: State) -> bool:
    return isinstance(state, Known) and state.value is None


def _in_order(view: View, axis: int, backwards: int) -> View:
    """Return the view with the scanned axis first, in the order of the iterations."""
    axis %= len(view.shape)
    found = view.permuted([axis, *(a for a in range(len(view.shape)) if a != axis)])
    return found.sliced(0, found.shape[0] - 1, found.shape[0], -1) if backwards else found


def _placed(view: View, axis: int, backwards: int) -> View:
    """Return stacked results, iterations along the first axis, with that axis where it belongs."""
    if backwards:
        view = view.sliced(0, view.shape[0] - 1, view.shape[0], -1)
    axis %= len(view.shape)
    order = list(range(1, len(view.shape)))
    order.insert(axis, 0)
    return view.permuted(order)


Found = tuple[list[State], list[View]]
"""The states after the last iteration, and the stacked results."""


def _at_once(
    builder: "Builder", item: Visit, body: Body, states: list[State], slices: list[View], level: int
) -> Found | None:
    """All iterations at once; None where a state changes, or a step has no axis for it."""
    trial = _Trial(builder)
    program = builder.segment(level).program
    site = builder.site(level, item.node)
    dense = [v if entry(v, 0, 0).contiguous else site.dense(v) for v in slices]
    mark = len(program.steps)
    stand_ins = [Buffer(f"slice {n}", v.dtype, entry(v, 0, 0).size) for n, v in enumerate(dense)]
    given = [
        Computed(f"slice {n} of {item.node.keys[0]}", level, whole(b, v.shape[1:]))
        for n, (b, v) in enumerate(zip(stand_ins, dense, strict=True))
    ]
    values, given_out = len(program.values), len(program.outputs)
    found = _enter(builder, item, body, [*states, *given])
    if (
        not trial.native
        or len(program.outputs) != given_out
        or any(s is None or not expressible(s.type) for s in found)
    ):
        return None
    if any(s.level != level for s in found[len(states) :] if isinstance(s, Computed | Hosted)):
        return None
    if not all(_same(builder, level, a, b) for a, b in zip(states, found, strict=False)):
        return None
    all_of = lifted(program.steps[mark:], dense[0].shape[0], dict(zip(stand_ins, dense, strict=True)))
    if all_of is None:
        return None
    program.steps[mark:] = all_of[0]
    for key in list(program.values)[values:]:
        del program.values[key]
    return states, [all_of[1](builder.view(level, s)) for s in found[len(states) :] if s is not None]


def _same(builder: "Builder", level: int, a: State, b: State | None) -> bool:
    """Return whether a state came out as it went in."""
    if a is b or (isinstance(a, Known) and isinstance(b, Known) and a.value is b.value):
        return True
    if b is None or isinstance(a, Known) or isinstance(b, Known):
        return False
    return builder.view(level, a) == builder.view(level, b)


def _one_by_one(
    builder: "Builder", item: Visit, body: Body, states: list[State], slices: list[View], level: int
) -> Found | None:
    """Every iteration as steps of its own, for loops that are short."""
    count = slices[0].shape[0]
    if count * len(body.steps) > _UNROLLED:
        return None
    trial = _Trial(builder)
    rows: list[list[State | None]] = []
    carried = states
    outer = builder.turn
    for turn in range(count):
        builder.turn = f"{outer} turn {turn}"
        given = [
            Computed(f"slice {turn}.{n} of {item.node.keys[0]}", level, entry(view, 0, turn))
            for n, view in enumerate(slices)
        ]
        found = _enter(builder, item, body, [*carried, *given])
        if not trial.native or any(s is None for s in found):
            return None
        carried = [s for s in found[: len(states)] if s is not None]
        rows.append(found[len(states) :])
    builder.turn = outer
    scanned = _stacked(builder, item, rows, level)
    return None if scanned is None else (carried, scanned)


def _stacked(
    builder: "Builder", item: Visit, rows: Sequence[Sequence[State | None]], level: int
) -> list[View] | None:
    """Return each result's elements along a new first axis; None where they are not alike."""
    site = builder.site(level, item.node)
    stacked = []
    for column in zip(*rows, strict=True):
        first = column[0]
        if first is None or any(not _alike(first, s) or _later(s, level) for s in column):
            return None
        views = [builder.view(level, s) for s in column if s is not None]
        target = site.fresh((len(views), *views[0].shape), views[0].dtype)
        for turn, view in enumerate(views):
            site.copy(view, entry(target, 0, turn))
        stacked.append(target)
    return stacked


def _later(state: State | None, level: int) -> bool:
    return isinstance(state, Computed | Hosted) and state.level > level


# ---- Loop ------------------------------------------------------------------------------------------------


def _loop(builder: "Builder", item: Visit, inputs: Sequence[State], trial: _Trial) -> bool:
    level = _ready_at(builder, item, inputs)
    trips, going = _number(inputs, 0, None), _number(inputs, 1, True)
    if level is None or trips is None or going is None:
        return False
    states, body = list(inputs[2:]), item.node.bodies["body"]
    if not 0 < trips * len(body.steps) <= _UNROLLED or not going:
        return False
    rows: list[list[State | None]] = []
    outer = builder.turn
    for turn in range(int(trips)):
        builder.turn = f"{outer} turn {turn}"
        counted = [Known(np.asarray(turn, np.int64)), Known(np.asarray(True))]
        found = _enter(builder, item, body, [*counted, *states])
        again = found[0] if found else None
        if not trial.native or not isinstance(again, Known) or any(s is None for s in found):
            return False
        states = [s for s in found[1 : 1 + len(states)] if s is not None]
        rows.append(found[1 + len(states) :])
        if not bool(np.reshape(again.value, ())):
            break
    builder.turn = outer
    scanned = _stacked(builder, item, rows, level)
    if scanned is None:
        return False
    keys = item.node.keys[len(states) :]
    builder.outputs(item, [*states, *(_result(k, level, v) for k, v in zip(keys, scanned, strict=False))])
    return True


def _number(inputs: Sequence[State], place: int, absent: Any) -> Any:
    """Return a known input of one element, ``absent`` for an omitted one, None where a run must tell."""
    state = inputs[place] if place < len(inputs) else Known(None)
    if not isinstance(state, Known):
        return None
    return absent if state.value is None else np.reshape(state.value, ()).item()


_ROWS = {("", "If"): _both, ("", "Scan"): _scan, ("", "Loop"): _loop}
"""Operator → the function that makes it part of a program, or returns that it cannot."""
