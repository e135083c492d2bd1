"""Reverse passes through the bodies of functions, If, Loop and Scan; see engine/vjp.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.body import call_function
from graphdoc.engine.ops.table import Array
from graphdoc.engine.vjp_rules import NoRuleError

if TYPE_CHECKING:
    from graphdoc.engine.vjp import Tape, Trace

Cotangents = dict[ir.Value, Array]


@dataclass(frozen=True, slots=True)
class Pass:
    """Where a reverse pass stands. found, cut, visit: as ``Tape.back_through`` has them."""

    tape: "Tape"
    found: Cotangents
    cut: set[ir.Value]
    visit: Any


@dataclass(frozen=True, slots=True)
class Ends:
    """What arrives at a row of values: cotangents, and whether each is incomplete."""

    cotangents: list[Array | None]
    cut: list[bool]


def backwards_through(now: Pass, trace: "Trace", number: int, reached: Sequence[Array | None]) -> None:
    """Carry the cotangents of a step with bodies on through the runs of them. Raises NoRuleError."""
    step, calls = trace.body.steps[number], trace.inner[number]
    outputs = Ends(list(reached), [value in now.cut for value in step.outputs])
    through = _once if step.run is call_function else _WAYS.get(step.node.op_type)
    if through is None or any(
        isinstance(trace.values.get(v), list) for v in (*step.inputs, *step.outputs) if v
    ):
        raise NoRuleError("no rule for its body")
    inputs = through(now, calls, outputs, step.run.keywords if hasattr(step.run, "keywords") else {})
    # What a body takes are the last inputs of the node; only a call may give fewer than a function takes.
    first = max(0, len(step.inputs) - len(inputs.cotangents))
    for value, cotangent, cut in zip(step.inputs[first:], inputs.cotangents, inputs.cut, strict=False):
        if value is not None and now.tape.active(value):
            _add(now.found, value, cotangent)
            if cut:
                now.cut.add(value)


def _add(found: Cotangents, value: ir.Value, part: Array | None) -> None:
    if part is not None:
        found[value] = found[value] + part if value in found else part


def _through(now: Pass, trace: "Trace", outputs: Ends) -> Ends:
    """Run back through one execution of a body; what it captures is added to what was found outside."""
    inner, cut = Cotangents(), set[ir.Value]()
    for value, cotangent, incomplete in zip(
        trace.body.outputs, outputs.cotangents, outputs.cut, strict=False
    ):
        if value is not None:
            _add(inner, value, cotangent)
            if incomplete:
                cut.add(value)
    now.tape.back_through(trace, inner, cut, now.visit)
    for value in trace.body.captured:
        _add(now.found, value, inner.get(value))
        if value in cut:
            now.cut.add(value)
    inputs = trace.body.inputs
    return Ends([inner.get(value) for value in inputs], [value in cut for value in inputs])


def _once(now: Pass, calls: Sequence["Trace"], outputs: Ends, attributes: Mapping[str, Any]) -> Ends:
    """A function, or the branch of an If that was taken."""
    return _through(now, calls[0], outputs)


def _loop(now: Pass, calls: Sequence["Trace"], outputs: Ends, attributes: Mapping[str, Any]) -> Ends:
    """Loop: body (iteration, condition, states…) → (condition, states…, scan elements…)."""
    if not calls:
        return _untouched(outputs, len(outputs.cotangents))
    count = len(calls[0].body.inputs) - 2
    states = Ends(outputs.cotangents[:count], outputs.cut[:count])
    elements = [_slices(c, 0, back=False) for c in outputs.cotangents[count:]]
    for turn in range(len(calls) - 1, -1, -1):
        row = [None, *states.cotangents, *(element(turn) for element in elements)]
        arriving = Ends(row, [False, *states.cut, *outputs.cut[count:]])
        found = _through(now, calls[turn], arriving)
        states = Ends(found.cotangents[2:], found.cut[2:])
    return states


def _untouched(outputs: Ends, count: int) -> Ends:
    return Ends(outputs.cotangents[:count], outputs.cut[:count])


def _scan(now: Pass, calls: Sequence["Trace"], outputs: Ends, attributes: Mapping[str, Any]) -> Ends:
    """Scan: body (states…, slices…) → (states…, scan elements…)."""
    if not calls:
        raise NoRuleError("Scan over nothing")
    scans = int(attributes["num_scan_inputs"])
    count = len(calls[0].body.inputs) - scans
    axes, backs = _options(attributes, "output", len(outputs.cotangents) - count)
    rows = zip(outputs.cotangents[count:], axes, backs, strict=True)
    elements = [_slices(c, axis, back=back) for c, axis, back in rows]
    states = Ends(outputs.cotangents[:count], outputs.cut[:count])
    slices: list[list[Array | None]] = [[] for _ in range(scans)]
    cut = [False] * scans
    for turn in range(len(calls) - 1, -1, -1):
        row = [*states.cotangents, *(element(turn) for element in elements)]
        found = _through(now, calls[turn], Ends(row, [*states.cut, *outputs.cut[count:]]))
        states = Ends(found.cotangents[:count], found.cut[:count])
        for collected, part in zip(slices, found.cotangents[count:], strict=True):
            collected.append(part)
        cut = [a or b for a, b in zip(cut, found.cut[count:], strict=True)]
    axes, backs = _options(attributes, "input", scans)
    joined = [
        _joined(parts[::-1], axis, back=back) for parts, axis, back in zip(slices, axes, backs, strict=True)
    ]
    return Ends([*states.cotangents, *joined], [*states.cut, *cut])


def _options(attributes: Mapping[str, Any], side: str, count: int) -> tuple[list[int], list[bool]]:
    axes = list(attributes.get(f"scan_{side}_axes") or [0] * count)
    return axes, [bool(b) for b in attributes.get(f"scan_{side}_directions") or [0] * count]


def _slices(stacked: Array | None, axis: int, *, back: bool) -> Callable[[int], Array | None]:
    """Return the part of a stack that belongs to each iteration."""
    if stacked is None:
        return lambda turn: None
    rows = np.moveaxis(stacked, axis, 0)
    ordered = rows[::-1] if back else rows
    return lambda turn: ordered[turn]


def _joined(parts: Sequence[Array | None], axis: int, *, back: bool) -> Array | None:
    """Return the slices of all iterations as one array, zeros where nothing arrived."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    rows = np.stack([np.zeros_like(known) if part is None else part for part in parts])
    return np.moveaxis(rows[::-1] if back else rows, 0, axis)


_WAYS = {"If": _once, "Loop": _loop, "Scan": _scan}
