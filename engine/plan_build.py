"""From a model and input types to a plan's entry: one program from end to end, or a refusal."""

from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.lower import Site, constant, expressible
from graphdoc.engine.ops.table import TensorType
from graphdoc.engine.parts import HostNode, Known, Segment, Stage
from graphdoc.engine.plan import Entry
from graphdoc.engine.program import Buffer, Kind, Program, View, whole


def prepared(model: ir.Model) -> Compiled:
    """Return the model ready to be specialised, with the passes that level 1 runs."""
    from graphdoc.engine.fuse import fuse

    return Compiled(model, passes=(fuse,))


def entry(compiled: Compiled, types: dict[str, tuple[Any, tuple[int, ...]]]) -> Entry:
    """Return the entry for one choice of input types.

    Raises ModelError where part of the model cannot be a program.
    """
    feeds = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (dtype, shape) in types.items()}
    stage = compiled.stage(feeds)
    _refuse_hosts(stage)
    segments = [part for part in stage.parts if isinstance(part, Segment)]
    program = segments[0].program if segments else Program()
    outputs: dict[str, str] = {}
    for name, source in zip(compiled.output_names, stage.results, strict=True):
        if isinstance(source, str) and source in program.outputs:
            outputs[name] = source
        else:
            outputs[name] = _copied(program, f"{name} (as it is)", _view(name, source, types, program))
    return Entry(types, outputs, program)


def _refuse_hosts(stage: Stage) -> None:
    hosts = [part for part in stage.parts if isinstance(part, HostNode)]
    if stage.rest is not None:
        raise _refusal("shapes follow from contents, so the model is more than one program", None)
    if hosts:
        node = hosts[0].node.node
        count = f"{len(hosts)} nodes run" if len(hosts) > 1 else "1 node runs"
        first = node.name or next((str(v.name) for v in node.outputs if v.name), "")
        reason = stage.notes.get(first, "level 1 has no steps for it")
        raise _refusal(f"{count} on level 0", f"{node.op_type} '{first}': {reason}")
    if sum(isinstance(part, Segment) for part in stage.parts) > 1:
        raise _refusal("the model is more than one program", None)


def _refusal(cause: str, where: str | None) -> ModelError:
    return ModelError(
        f"the model cannot become a plan: {cause}",
        where=where,
        next_step="graphdoc run MODEL --runner engine:1, which runs such nodes between programs",
    )


def _view(name: str, source: Any, types: Any, program: Program) -> View:
    """Return what an output that no step computes is a copy of: a constant, or an input."""
    if isinstance(source, Known):
        array = source.value
        if not isinstance(array, np.ndarray) or not expressible(TensorType(array.dtype, array.shape)):
            raise _refusal("an output is no tensor that a program can hold", f"output '{name}'")
        return constant(array, name)
    if not isinstance(source, str) or source not in types:
        raise _refusal("an output is absent", f"output '{name}'")
    dtype, shape = types[source]
    if source not in program.inputs:
        buffer = Buffer(source, np.dtype(dtype), int(np.prod(shape, dtype=np.int64)), Kind.INPUT)
        program.inputs[source] = whole(buffer, shape)
    return program.inputs[source]


def _copied(program: Program, key: str, view: View) -> str:
    buffer = Buffer(key, view.dtype, view.size, Kind.OUTPUT)
    program.outputs[key] = whole(buffer, view.shape)
    Site(program, key).copy(view, program.outputs[key])
    return key
