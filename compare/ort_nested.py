"""Values inside If, Loop and Scan on ONNX Runtime.

ONNX Runtime gives no way to look into a subgraph. What a subgraph reads is known once the graph around it
has run, so its body is run again as a model of its own: the chosen branch, or the body once per iteration.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from graphdoc.compare.ort_scope import Control, Env, Scope, UnreachableError, has_taps
from graphdoc.compare.runner import Values
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.scope import Occurrences


class Nested:
    """Runs bodies and collects the taps in them.

    given: None for a plain run. Otherwise each layer runs alone on these values, and the control flow
    follows them.
    """

    def __init__(self, taps: Collection[str], given: Values | None = None) -> None:
        self.taps = taps
        self.given = given
        self.found: Values = {}
        self.unreachable: dict[str, str] = {}
        self._turn: dict[str, int] = {}

    def descend(self, scope: Scope, env: Env) -> None:
        """Run the bodies of a scope's control-flow nodes that hold taps; env holds the scope's values."""
        for control in scope.controls:
            wanted = [s for s in control.scopes.values() if has_taps(s, self.taps)]
            if not wanted:
                continue
            try:
                _DRIVERS[control.node.op_type](self, scope, control, env)
            except (UnreachableError, RunnerError) as error:
                reason = error.cause if isinstance(error, RunnerError) else str(error)
                self.unreachable.update((s.path, reason) for s in wanted)

    def execute(self, scope: Scope, env: Env) -> dict[str, Any]:
        """Run a body once; return its values by name, inputs and captured ones included."""
        local = scope.local(self.taps)
        if self.given is None:
            outputs = [name for name in scope.outputs if name in scope.layers]
            values = scope.run(env, [*local, *scope.needed(self.taps), *outputs])
            found = values
        else:
            values = self._next(scope, self.given)
            found = scope.run_isolated({**env, **values}, local)
        for name in local:
            self.found.setdefault(scope.key(name), Occurrences()).append(found[name])
        inner = {**env, **values}
        self.descend(scope, inner)
        return inner

    def _next(self, scope: Scope, given: Values) -> dict[str, Any]:
        """Return the given values of a body's next execution."""
        values: dict[str, Any] = {}
        for name in [*scope.inputs, *scope.layers]:
            series = given.get(scope.key(name))
            if isinstance(series, Occurrences):
                turn = self._turn.get(scope.key(name), 0)
                self._turn[scope.key(name)] = turn + 1
                if turn < len(series):
                    values[name] = series[turn]
        return values


def _if(nested: Nested, scope: Scope, control: Control, env: Env) -> None:
    taken = bool(np.asarray(scope.lookup(control.node.input[0], env)).reshape(()))
    body = control.scopes["then_branch" if taken else "else_branch"]
    if has_taps(body, nested.taps):
        nested.execute(body, _visible(body, scope, env))


def _loop(nested: Nested, scope: Scope, control: Control, env: Env) -> None:
    body = control.scopes["body"]
    trips, cond, *states = (scope.lookup(name, env) if name else None for name in _padded(control, 2))
    outer = _visible(body, scope, env)
    going = True if cond is None else bool(np.asarray(cond).reshape(()))
    iteration = 0
    while going and (trips is None or iteration < int(np.asarray(trips).reshape(()))):
        fed = [np.asarray(iteration, np.int64), np.asarray(True), *states]
        values = nested.execute(body, {**outer, **dict(zip(body.inputs, fed, strict=False))})
        going = bool(np.asarray(body.lookup(body.outputs[0], values)).reshape(()))
        states = [body.lookup(name, values) for name in body.outputs[1 : 1 + len(states)]]
        iteration += 1


def _scan(nested: Nested, scope: Scope, control: Control, env: Env) -> None:
    body = control.scopes["body"]
    attributes = {a.name: a for a in control.node.attribute}
    count = attributes["num_scan_inputs"].i
    fed = [scope.lookup(name, env) for name in control.node.input if name]
    states, sources = fed[: len(fed) - count], fed[len(fed) - count :]
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * count
    backwards = (
        list(attributes["scan_input_directions"].ints)
        if "scan_input_directions" in attributes
        else [0] * count
    )
    outer = _visible(body, scope, env)
    slices = [np.moveaxis(x, axis, 0) for x, axis in zip(sources, axes, strict=True)]
    slices = [x[::-1] if back else x for x, back in zip(slices, backwards, strict=True)]
    for elements in zip(*slices, strict=True):
        inputs = dict(zip(body.inputs, [*states, *map(np.asarray, elements)], strict=False))
        values = nested.execute(body, {**outer, **inputs})
        states = [body.lookup(name, values) for name in body.outputs[: len(states)]]


_DRIVERS = {"If": _if, "Loop": _loop, "Scan": _scan}


def _padded(control: Control, least: int) -> Iterator[str]:
    names = list(control.node.input)
    yield from names + [""] * (least - len(names))


def _visible(body: Scope, scope: Scope, env: Env) -> Mapping[str, Any]:
    """Return the values that a body captures, constants left out (they go with the body)."""
    del scope
    return {name: env[name] for name in body.captured if name in env}
