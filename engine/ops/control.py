"""Control flow: If, Loop, Scan. The bodies arrive as callables bound to the running scope."""

from graphdoc.engine.ops.table import Array, Call, GraphCallable, Value, op


@op("If", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def if_(
    call: Call, cond: Array, *, then_branch: GraphCallable, else_branch: GraphCallable
) -> tuple[Value, ...]:
    """Run one branch. cond holds one bool."""
    branch = then_branch if bool(cond.reshape(())) else else_branch
    return branch()


@op("Loop", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def loop(
    call: Call, trips: Array | None, cond: Array | None, *states: Value, body: GraphCallable
) -> tuple[Value, ...]:
    """Run the body while its condition holds, at most ``trips`` times.

    The body maps (iteration int64 [], cond bool [], states…) to (cond, states…, scan elements…); scan
    elements are stacked along a new first axis. Without a single iteration a scan output is empty and
    its element shape is unknown: it has shape (0,).
    """
    xp = call.xp
    limit = None if trips is None else int(trips.reshape(()))
    going = True if cond is None else bool(cond.reshape(()))
    carried = tuple(states)
    scanned: list[list[Array]] = [[] for _ in range(call.outputs - len(states))]
    iteration = 0
    while going and (limit is None or iteration < limit):
        results = body(xp.asarray(iteration, dtype="int64"), xp.asarray(True), *carried)
        going = bool(results[0].reshape(()))
        carried = results[1 : 1 + len(states)]
        for elements, element in zip(scanned, results[1 + len(states) :], strict=True):
            elements.append(element)
        iteration += 1
    stacked = tuple(xp.stack(e) if e else xp.zeros((0,), dtype="float32") for e in scanned)
    return carried + stacked


@op("Scan", 9, 11, 16, 19, 21, 23, 24, 25)
def scan(
    call: Call,
    *inputs: Array,
    body: GraphCallable,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> tuple[Array, ...]:
    """Run the body over slices of the last ``num_scan_inputs`` inputs, carrying the others along."""
    xp = call.xp
    count = len(inputs) - num_scan_inputs
    carried, sources = tuple(inputs[:count]), inputs[count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    backwards = scan_input_directions or [0] * num_scan_inputs
    slices = [xp.moveaxis(x, axis, 0) for x, axis in zip(sources, axes, strict=True)]
    slices = [x[::-1] if back else x for x, back in zip(slices, backwards, strict=True)]
    scanned: list[list[Array]] = [[] for _ in range(call.outputs - count)]
    for step in range(slices[0].shape[0]):
        results = body(*carried, *(x[step] for x in slices))
        carried = results[:count]
        for elements, element in zip(scanned, results[count:], strict=True):
            elements.append(element)
    out_axes = scan_output_axes or [0] * len(scanned)
    out_backwards = scan_output_directions or [0] * len(scanned)
    return carried + tuple(
        _stack(xp, elements, axis, back)
        for elements, axis, back in zip(scanned, out_axes, out_backwards, strict=True)
    )


def _stack(xp: object, elements: list[Array], axis: int, backwards: int) -> Array:
    stacked = xp.stack(elements)  # type: ignore[attr-defined]
    return xp.moveaxis(stacked[::-1] if backwards else stacked, 0, axis)  # type: ignore[attr-defined]
