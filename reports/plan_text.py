"""A plan, or the programs that level 1 makes of a model → what the terminal shows, and JSON."""

import json
from collections.abc import Iterator
from typing import Any

from graphdoc.engine.memory import plan as place
from graphdoc.engine.parts import HostNode, Segment, Stage
from graphdoc.engine.plan import Entry, Plan
from graphdoc.engine.program import Kind, Program, Step
from graphdoc.reports import words

SCHEMA = "graphdoc-plan/1"


def plan_data(plan: Plan) -> dict[str, Any]:
    """Return what is in a plan, ready for JSON."""
    return {
        "schema": SCHEMA,
        "made_by": plan.made_by,
        "threads": plan.threads,
        "exchangeable_weights": sorted(plan.weights),
        "between": {
            name: [dtype.name, [list(axis) for axis in axes]] for name, (dtype, axes) in plan.spans.items()
        },
        "programs": [_entry_data(plan, number, entry) for number, entry in enumerate(plan.entries)],
        "parts": [
            {
                "device": "cpu",
                "processor": part.cpu,
                "toolchain": part.toolchain,
                "kernels": len(part.objects),
                "bytes": sum(len(body) for body in part.objects.values()),
                "left_aside": part.misfit(),
            }
            for part in plan.parts
        ],
    }


def _entry_data(plan: Plan, number: int, entry: Entry) -> dict[str, Any]:
    part = plan.parts[0].entries[number] if plan.parts else None
    program = entry.program if part is None else part.program
    native = [None] * len(program.steps) if part is None else [k is not None for k in part.kernels]
    return {
        "inputs": {name: [dtype.name, list(shape)] for name, (dtype, shape) in entry.inputs.items()},
        "outputs": {
            name: [program.outputs[key].dtype.name, list(program.outputs[key].shape)]
            for name, key in entry.outputs.items()
        },
        **program_data(program, native),
    }


def program_data(program: Program, native: list[Any]) -> dict[str, Any]:
    """Return the steps of a program and the memory it takes. native: by step, None where nobody asked."""
    memory = place(program)
    constants = {v.buffer for s in program.steps for v in s.inputs if v.buffer.kind is Kind.CONSTANT}
    return {
        "peak_bytes": memory.size,
        "bytes_side_by_side": memory.naive,
        "constant_bytes": sum(buffer.nbytes for buffer in constants),
        "steps": [
            {"kind": _kind(step), "nodes": list(step.nodes), "outputs": _shapes(step), "native": flag}
            for step, flag in zip(program.steps, native, strict=True)
        ],
        "notes": dict(sorted(program.notes.items())),
    }


def stage_data(stage: Stage) -> dict[str, Any]:
    """Return what level 1 makes of a model for one choice of shapes: programs, and nodes of level 0."""
    parts: list[dict[str, Any]] = []
    for part in stage.parts:
        if isinstance(part, Segment):
            parts.append(program_data(part.program, [None] * len(part.program.steps)))
        elif isinstance(part, HostNode):
            node = part.node.node
            name = node.name or next((str(v.name) for v in node.outputs if v.name), "")
            reason = stage.notes.get(name, "level 1 has no steps for it")
            parts.append({"level_0": name, "operator": node.op_type, "reason": reason})
    return {"schema": SCHEMA, "parts": parts, "open": stage.rest is not None}


def _kind(step: Step) -> str:
    return type(step.spec).__name__


def _shapes(step: Step) -> list[list[int]]:
    return [list(view.shape) for view in step.outputs]


def as_json(data: dict[str, Any]) -> str:
    """Return the data as JSON text, ending in a newline."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def plan_lines(data: dict[str, Any], name: str, size: int, *, steps: bool) -> Iterator[str]:
    """Yield the printed form of a plan. steps: list every step."""
    count = len(data["programs"])
    yield f"{words.visible(name)}   plan, {words.size(size)}, {count} program{'' if count == 1 else 's'}"
    for program in data["programs"]:
        yield ""
        yield from (f"  in   {line}" for line in _ends(program["inputs"]))
        yield from (f"  out  {line}" for line in _ends(program["outputs"]))
        yield f"       {_summary(program)}"
        if steps:
            yield from _steps(program)
    if data["between"]:
        yield ""
        yield from (f"  serves  {line}" for line in _spans(data["between"]))
        yield "          a shape without a program gets one at its first run"
    yield ""
    for part in data["parts"]:
        state = part["left_aside"] or "fits this machine"
        code = f"{part['kernels']} kernels, {words.size(part['bytes'])} of code"
        yield f"  cpu  {part['processor']}, {code}: {state}"
        yield f"       {part['toolchain']}"
    if not data["parts"]:
        yield "       no machine code: it is made when the plan is loaded"
    if data["exchangeable_weights"]:
        yield f"       {len(data['exchangeable_weights'])} weights can be exchanged"


def stage_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield the printed form of what level 1 makes of a model."""
    for part in data["parts"]:
        if "level_0" in part:
            yield f"  level 0  {part['operator']} '{words.visible(part['level_0'])}': {part['reason']}"
        else:
            yield f"  program  {_summary(part)}"
            yield from _steps(part)
    if data["open"]:
        yield "  …        the rest is made when a run knows its shapes"


def _ends(ends: dict[str, Any]) -> Iterator[str]:
    for name, (dtype, shape) in ends.items():
        yield f"{words.visible(name)}  {dtype} [{', '.join(map(str, shape))}]"


def _spans(between: dict[str, Any]) -> Iterator[str]:
    for name, (dtype, axes) in between.items():
        sizes = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in axes)
        yield f"{words.visible(name)}  {dtype} [{sizes}]"


def _summary(program: dict[str, Any]) -> str:
    steps = program["steps"]
    nodes = len({node for step in steps for node in step["nodes"]})
    on_host = sum(step["native"] is False for step in steps)
    memory = (
        f"{words.size(program['peak_bytes'])} of memory, {words.size(program['constant_bytes'])} of weights"
    )
    host = f", {on_host} of them on the host" if on_host else ""
    return f"{len(steps)} steps for {nodes} nodes{host}; {memory}"


def _steps(program: dict[str, Any]) -> Iterator[str]:
    width = max((len(step["kind"]) for step in program["steps"]), default=0)
    for number, step in enumerate(program["steps"]):
        shape = "×".join(map(str, step["outputs"][0])) or "scalar"
        host = "  (host)" if step["native"] is False else ""
        names = ", ".join(map(words.visible, step["nodes"]))
        yield f"  {number:>5}  {step['kind']:<{width}}  {shape:<16}  {names}{host}"
    for node, note in program["notes"].items():
        yield f"         {words.visible(node)}: {words.visible(note)}"
