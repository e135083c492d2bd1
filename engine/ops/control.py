"""Control flow: If, Loop, Scan. The bodies arrive as callables bound to the running scope."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.host import ints, namespace
from graphdoc.engine.ops.table import Array, Call, GraphCallable, TensorType, Value, op

Flags = Sequence[int]


@op("If", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def if_(
    call: Call, cond: Array, *, then_branch: GraphCallable, else_branch: GraphCallable
) -> tuple[Value, ...]:
    """Run one branch (ONNX If-25). cond holds one bool."""
    branch = then_branch if bool(cond.reshape(())) else else_branch
    return branch()


@op("Loop", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def loop(
    call: Call,
    trips: Array | None = None,
    cond: Array | None = None,
    *states: Value,
    body: GraphCallable,
) -> tuple[Value, ...]:
    """Run the body while its condition holds, at most ``trips`` times (ONNX Loop-1…25).

    The body maps (iteration int64 [], cond bool [], states…) to (cond, states…, scan elements…); scan
    elements are stacked along a new first axis. Without a single iteration a scan output is empty, with
    the dtype and the sizes that the body declares (0 where it declares none, as in ONNX Runtime).
    Raises ValueError when a scan element changes its shape.
    """
    limit = None if trips is None else int(trips.reshape(()))
    going = True if cond is None else bool(cond.reshape(()))
    carried = tuple(states)
    scanned: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
    iteration = 0
    while going and (limit is None or iteration < limit):
        results = body(call.xp.asarray(iteration, dtype="int64"), call.xp.asarray(True), *carried)
        going = bool(results[0].reshape(()))
        carried = results[1 : 1 + len(states)]
        _collect(scanned, results[1 + len(states) :])
        iteration += 1
    types = body.outputs[1 + len(states) :]
    return carried + tuple(_stack(call, e, t) for e, t in zip(scanned, types, strict=True))


@op("Scan", 9, 11, 16, 19, 21, 23, 24, 25)
def scan(
    call: Call,
    *inputs: Array,
    body: GraphCallable,
    num_scan_inputs: int,
    scan_input_axes: Flags = (),
    scan_input_directions: Flags = (),
    scan_output_axes: Flags = (),
    scan_output_directions: Flags = (),
) -> tuple[Array, ...]:
    """Run the body over slices of the last ``num_scan_inputs`` inputs, carrying the others along (ONNX
    Scan-25).

    The body maps (states…, one slice of each scan input…) to (states…, scan elements…). Axes and
    directions default to 0 (first axis; forward). Raises ValueError when the scan inputs differ in length.
    """
    count = len(inputs) - num_scan_inputs
    slices = _scan_inputs(call, inputs[count:], scan_input_axes, scan_input_directions)
    carried, scanned = _scan_steps(inputs[:count], slices, body)
    types = body.outputs[count:]
    axes = scan_output_axes or [0] * len(scanned)
    backwards = scan_output_directions or [0] * len(scanned)
    outputs = zip(scanned, types, axes, backwards, strict=True)
    return carried + tuple(_stack(call, e, t, axis, back) for e, t, axis, back in outputs)


@op("Scan", 8)
def scan_8(
    call: Call,
    sequence_lens: Array | None,
    *inputs: Array,
    body: GraphCallable,
    num_scan_inputs: int,
    directions: Flags = (),
) -> tuple[Array, ...]:
    """Scan over axis 1 of batches (axis 0), each entry on its own (ONNX Scan-8).

    sequence_lens: int64 [batch], the steps of each entry; scan outputs are zero past them.
    """
    count = len(inputs) - num_scan_inputs
    steps = inputs[count].shape[1]
    lengths = [steps] * inputs[0].shape[0] if sequence_lens is None else ints(sequence_lens)
    rows = [
        _scan_entry(call, [x[entry, ...] for x in inputs], body, num_scan_inputs, directions, length)
        for entry, length in enumerate(lengths)
    ]
    columns = zip(*rows, strict=True)
    return tuple(
        call.xp.stack([x if place < count else _lengthen(call.xp, x, steps) for x in column])
        for place, column in enumerate(columns)
    )


def _scan_entry(
    call: Call, inputs: list[Array], body: GraphCallable, scans: int, directions: Flags, length: int
) -> tuple[Array, ...]:
    count = len(inputs) - scans
    cut = [x[:length] for x in inputs[count:]]
    slices = _scan_inputs(call, tuple(cut), (), directions)
    carried, scanned = _scan_steps(tuple(inputs[:count]), slices, body)
    stacked = zip(scanned, body.outputs[count:], strict=True)
    return carried + tuple(_stack(call, elements, declared) for elements, declared in stacked)


def _lengthen(xp: Any, x: Array, steps: int) -> Array:
    """Return x with zeros appended along its first axis."""
    missing = xp.zeros((steps - x.shape[0], *x.shape[1:]), dtype=x.dtype)
    return xp.concatenate([x, missing]) if missing.shape[0] else x


def _scan_inputs(call: Call, sources: tuple[Array, ...], axes: Flags, backwards: Flags) -> list[Array]:
    """Return the scan inputs with the scanned axis first and in running order."""
    axes = axes or [0] * len(sources)
    backwards = backwards or [0] * len(sources)
    moved = [namespace(call, x).moveaxis(x, axis, 0) for x, axis in zip(sources, axes, strict=True)]
    if len({x.shape[0] for x in moved}) > 1:
        raise ValueError(f"Scan inputs have {[x.shape[0] for x in moved]} steps")
    return [x[::-1] if back else x for x, back in zip(moved, backwards, strict=True)]


def _scan_steps(
    carried: tuple[Value, ...], slices: list[Array], body: GraphCallable
) -> tuple[tuple[Value, ...], list[list[Array]]]:
    count = len(carried)
    scanned: list[list[Array]] = [[] for _ in body.outputs[count:]]
    for step in range(slices[0].shape[0]):
        results = body(*carried, *(x[step, ...] for x in slices))
        carried = results[:count]
        _collect(scanned, results[count:])
    return carried, scanned


def _collect(scanned: list[list[Array]], elements: tuple[Array, ...]) -> None:
    for collected, element in zip(scanned, elements, strict=True):
        collected.append(element)


def _stack(
    call: Call, elements: list[Array], declared: TensorType, axis: int = 0, backwards: int = 0
) -> Array:
    """Return the elements along a new axis, or the empty tensor that the body's declared type gives."""
    if elements:
        xp = namespace(call, elements[0])
        stacked = xp.stack(elements)
    else:
        dtype = call.real(np.float32 if declared.dtype is None else declared.dtype)
        sizes = [dim if isinstance(dim, int) else 0 for dim in declared.shape or ()]
        xp = np if dtype.kind == "O" else call.xp
        stacked = xp.zeros((0, *sizes), dtype=dtype)
    return xp.moveaxis(stacked[::-1] if backwards else stacked, 0, axis)
