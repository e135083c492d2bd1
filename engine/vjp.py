"""Reverse passes through a model that has run: what a small change of any value does to the outputs.

A pass starts with a cotangent u at the outputs and gives, at every value v, the derivative of u·outputs by v
(a vector–Jacobian product). It costs about one run, however many values there are. An operator needs a rule:

1. its derivative in ``ops/gradient*.py``, which the Gradient operator uses too;
2. a rule of ``vjp_rules.py``: data that only moves, results that several outputs share, quantisation;
3. recurrent layers by ``vjp_recurrent.py``;
4. differences in float64, element by element, or entry by entry where an input is small;
5. subgraphs and functions: the pass goes on through their bodies.

Where there is none, the pass stops there, and what lies before is told apart as incomplete.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.body import Body, Step, declared
from graphdoc.engine.interpreter import Interpreter, nbytes
from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.table import Array, Call, TensorType
from graphdoc.engine.scope import qualified
from graphdoc.engine.vjp_control import Pass, backwards_through
from graphdoc.engine.vjp_rules import Node, NoRuleError, derive

for _name in ("vjp_ms", "vjp_recurrent", "vjp_resize"):  # they register their rules
    import_module(f"graphdoc.engine.{_name}")

Cotangents = dict[ir.Value, Array]

Visit = Callable[[str, int, Array | None, bool], None]
"""(tap name, which occurrence, the cotangent or None where nothing reaches the outputs, whether complete)."""

Through = Callable[[tuple[str, ...], str, Any, Array], None]
"""(tap names of a node's outputs, tap name of an input, that input, its cotangent by this node alone)."""


class TooLargeError(Exception):
    """The values of a run do not fit into the memory given."""


@dataclass(slots=True, eq=False)
class Trace:
    """A body that has run, with every value kept.

    turn: which run of this body it is, from 0. inner: the runs of a step's bodies, in order.
    """

    body: Body
    values: dict[ir.Value, Any]
    turn: int = 0
    inner: dict[int, list["Trace"]] = field(default_factory=dict)


class Tape:
    """A run of a model with all its values, ready for any number of reverse passes.

    interpreter: on NumPy arrays. feeds: every input without an initializer.
    changing: tap names of the values whose effect is asked for; None: all. Nothing else is followed.
    inputs: follow the model's inputs too. budget: bytes that the values may take.

    Raises TooLargeError, and RunnerError where an operator fails.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        feeds: Mapping[str, Any],
        *,
        changing: Collection[str] | None = None,
        inputs: bool = False,
        budget: int | None = None,
    ) -> None:
        self._left = budget
        self._changing = None if changing is None else frozenset(changing)
        self._turns: Counter[str] = Counter()
        self._through: Through | None = None
        self.missing: dict[str, str] = {}
        body = interpreter.body
        frame = {v: interpreter.place(feeds[str(v.name)]) for v in body.inputs if str(v.name) in feeds}
        with np.errstate(all="ignore"):
            self._trace = self._run(body, frame)
        self._active: set[ir.Value | None] = set()
        if inputs:
            self._active.update(body.inputs)
        self._mark(body)

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs of the run by name."""
        body = self._trace.body
        return {str(v.name): self._trace.values.get(v) for v in body.outputs if v is not None}

    def values(self) -> dict[str, Any]:
        """Return the values of the main graph by tap name."""
        steps = self._trace.body.steps
        pairs = ((k, v) for step in steps for k, v in zip(step.keys, step.outputs, strict=True) if k)
        return {key: self._trace.values[value] for key, value in pairs}

    # ---- forwards --------------------------------------------------------------------------------------

    def _run(self, body: Body, frame: dict[ir.Value, Any]) -> Trace:
        trace = Trace(body, {**body.constants, **frame}, self._turns[body.scope])
        self._turns[body.scope] += 1
        for number, step in enumerate(body.steps):
            arguments = [None if value is None else trace.values.get(value) for value in step.inputs]
            calls = trace.inner.setdefault(number, []) if step.bodies else []
            bodies = {name: _Traced(self, inner, trace, calls) for name, inner in step.bodies.items()}
            results = step.run(*arguments, **bodies)
            results = results if isinstance(results, tuple) else (results,)
            for value, result in zip(step.outputs, results, strict=False):
                trace.values[value] = np.asarray(result) if isinstance(result, np.generic) else result
                self._charge(result)
        return trace

    def _charge(self, result: Any) -> None:
        if self._left is not None:
            self._left -= nbytes(result)
            if self._left < 0:
                raise TooLargeError

    def run_body(self, body: Body, outer: Trace, inputs: Sequence[Any]) -> Trace:
        """Run a body over the values of the graph around it."""
        frame = {value: outer.values.get(value) for value in body.captured}
        return self._run(body, {**frame, **dict(zip(body.inputs, inputs, strict=False))})

    def _mark(self, body: Body) -> None:
        """Note the values that what is asked for can change; of a body that it enters, all inputs."""
        for step in body.steps:
            captured = [v for each in step.bodies.values() for v in each.captured]
            asked = self._changing is None or not self._active.isdisjoint([*step.inputs, *captured])
            asked = asked or any(self._asks_inside(each) for each in step.bodies.values())
            for each in step.bodies.values():
                if asked:
                    self._active.update(each.inputs)
                self._mark(each)
            if asked or any(key in (self._changing or ()) for key in step.keys):
                self._active.update(step.outputs)

    def _asks_inside(self, body: Body) -> bool:
        return any(key.startswith(body.scope) for key in self._changing or ())

    # ---- backwards -------------------------------------------------------------------------------------

    def back(
        self, seeds: Mapping[str, Array], visit: Visit, through: Through | None = None
    ) -> dict[str, Array]:
        """Run one reverse pass from cotangents of outputs; ``visit`` gets each value's, later ones first.

        Returns the cotangents of the model's inputs, where these are followed.

        through: gets what each node without a body adds to the cotangents of its inputs.
        """
        self._through = through
        outputs = {str(v.name): v for v in self._trace.body.outputs if v is not None}
        found: Cotangents = {outputs[name]: wide(seed) for name, seed in seeds.items()}
        with np.errstate(all="ignore"):
            self.back_through(self._trace, found, set(), visit)
        return {str(v.name): found[v] for v in self._trace.body.inputs if v in found}

    def back_through(self, trace: Trace, found: Cotangents, cut: set[ir.Value], visit: Visit) -> None:
        """Carry the cotangents of a body's outputs to its inputs and to what it captures.

        found: by value; values of the body are taken out. cut: the values whose cotangent is incomplete.
        """
        for number in range(len(trace.body.steps) - 1, -1, -1):
            step = trace.body.steps[number]
            reached = [found.pop(value, None) for value in step.outputs]
            complete = cut.isdisjoint(step.outputs)
            for key, value, cotangent in zip(step.keys, step.outputs, reached, strict=True):
                if key and value in self._active:
                    visit(key, trace.turn, cotangent, value not in cut)
            if any(c is not None for c in reached) or not complete:
                self._step(trace, number, reached, Pass(self, found, cut, visit))
            if not complete and not step.bodies:
                cut.update(self._wanted(step))

    def _wanted(self, step: Step) -> Iterator[ir.Value]:
        """Yield what a step reads that can change."""
        for value in (*step.inputs, *(v for body in step.bodies.values() for v in body.captured)):
            if value is not None and value in self._active:
                yield value

    def _step(self, trace: Trace, number: int, reached: Sequence[Array | None], now: Pass) -> None:
        step = trace.body.steps[number]
        if not step.bodies and not any(True for _ in self._wanted(step)):
            return
        try:
            if step.bodies:
                backwards_through(now, trace, number, reached)
            else:
                self._plain(trace, step, reached, now.found)
        except NoRuleError as error:
            self.missing.setdefault(step.node.op_type, str(error))
            now.cut.update(self._wanted(step))

    def _plain(self, trace: Trace, step: Step, reached: Sequence[Array | None], found: Cotangents) -> None:
        if all(c is None for c in reached):
            return
        parts = derive(_node(trace, step, reached, self._active))
        for value, part in zip(step.inputs, parts, strict=False):
            if value is not None and value in self._active and part is not None:
                add(found, value, part)
                if self._through:
                    name = qualified(trace.body.scope, str(value.name))
                    self._through(step.keys, name, trace.values.get(value), part)

    def active(self, value: ir.Value | None) -> bool:
        """Whether what is asked for can change a value."""
        return value in self._active


@dataclass(slots=True, eq=False)
class _Traced:
    """A body over the graph around it, whose runs are kept (a GraphCallable)."""

    tape: Tape
    body: Body
    outer: Trace
    calls: list[Trace]

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        return tuple(declared(value) for value in self.body.outputs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        trace = self.tape.run_body(self.body, self.outer, inputs)
        self.calls.append(trace)
        return tuple(None if v is None else trace.values.get(v) for v in self.body.outputs)


def add(found: Cotangents, value: ir.Value, part: Array | None) -> None:
    """Add one way's share to the cotangent of a value."""
    if part is not None:
        found[value] = found[value] + part if value in found else part


def _node(
    trace: Trace, step: Step, reached: Sequence[Array | None], active: Collection[ir.Value | None]
) -> Node:
    run = step.run if isinstance(step.run, partial) else partial(step.run, Call())
    call = run.args[0] if run.args and isinstance(run.args[0], Call) else Call()
    return Node(
        source=step.node,
        domain=step.node.domain,
        op=step.node.op_type,
        call=call,
        forward=step.run,
        inputs=tuple(None if v is None else trace.values.get(v) for v in step.inputs),
        outputs=tuple(trace.values.get(v) for v in step.outputs),
        cotangents=tuple(reached),
        attributes=dict(run.keywords),
        wanted=tuple(v is not None and v in active for v in step.inputs),
    )
