"""Plans at the front door: from a model file to a plan, and what ``inspect`` and ``run`` ask of one."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from graphdoc.api import Model, resolve_inputs
from graphdoc.compare.target import Target
from graphdoc.engine.errors import InputError, UsageError
from graphdoc.engine.parts import Stage
from graphdoc.engine.plan import Entry, Plan, Types, build
from graphdoc.engine.plan_build import prepared
from graphdoc.engine.plan_graph import spelled, within
from graphdoc.surgeon.mapped import open_mapped
from graphdoc.surgeon.model import open_source
from graphdoc.surgeon.simplify import Options
from graphdoc.surgeon.simplify import simplify as simplified

_MERGING = ("duplicate-initializers",)
"""Passes that make equal weights one: exchanging one of them later would exchange them all."""


def build_plan(
    model: Model,
    shapes: Iterable[str] = (),
    profiles: Iterable[str] = (),
    *,
    threads: int | None = None,
    simplify: bool = True,
    portable: bool = False,
    refit: bool = False,
    fixed: bool = False,
    timing_cache: str | None = None,
) -> Plan:
    """Return the plan of a model.

    shapes: sizes of inputs, ``x=1x3x224x224`` or ``N=4``; sizes left open are found as ``graphdoc run`` does.
    profiles: ``x=1x3:4x3:8x3``, a program for each choice; the n-th choices of all profiles go together.
        Shapes between the smallest and the largest get a program when they first come. fixed: they do not.
    threads: how many the plan runs with unless told; None: one per processor. portable: without machine code.
    refit: find out which weights can be exchanged later; equal weights are not made one then.
    timing_cache: a file of measured tactics.

    Raises ModelError where part of the model cannot be a program, UsageError for shapes that make no sense.
    """
    mapped = open_mapped(Path(model)) if isinstance(model, str | os.PathLike) else None
    graph = open_source(model).model if mapped is None else mapped.model
    skip = _MERGING if refit else ()
    found = simplified(graph, Options(skip=skip)).model if simplify else graph
    target = Target(open_source(found))
    choices = [_types(target, sizes) for sizes in choices_of(tuple(shapes), tuple(profiles))]
    plan = build(target.model, choices, refit=refit, compiled=False, fixed=fixed)
    if not portable:
        plan.compile(timing_cache)
    plan.threads = threads
    return plan


def choices_of(shapes: Sequence[str], profiles: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the shapes of each program: those given, and with them the choices of the profiles.

    Raises UsageError for profiles with different numbers of choices.
    """
    rows = [_profile(text) for text in profiles]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        raise UsageError(
            "profiles have different numbers of choices",
            where=" ".join(f"--profile {text}" for text in profiles),
            next_step="give each as many, as in --profile x=1x3:4x3 --profile n=1:4",
        )
    if not rows:
        return [tuple(shapes)]
    return [(*shapes, *choice) for choice in zip(*rows, strict=True)]


def _profile(text: str) -> list[str]:
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not all(sizes.split(":")):
        raise UsageError(
            f"not a profile: '{text}'",
            where=f"--profile {text}",
            next_step="write --profile NAME=1x3:4x3:8x3, or --profile SYMBOL=1:4:8",
        )
    return [f"{name}={part}" for part in sizes.split(":")]


def _types(target: Target, shapes: Iterable[str]) -> Types:
    """Return the dtype and shape of every input, sizes left open filled in. Raises InputError for others."""
    feeds = resolve_inputs(target, None, tuple(shapes), 0).feeds
    for name, value in feeds.items():
        if not isinstance(value, np.ndarray) or value.dtype == object:
            raise InputError(
                f"a plan takes arrays of numbers, and input '{name}' is none",
                next_step="graphdoc run MODEL, which takes sequences, optionals and strings",
            )
    return {name: (value.dtype, value.shape) for name, value in feeds.items()}


def stand_in(entries: Sequence[Entry]) -> onnx.ModelProto:
    """Return a model with the inputs of a plan's programs, to make or read inputs by.

    A size is left open where the programs differ in it.
    """
    inputs, nodes, outputs = [], [], []
    for name, (dtype, first) in entries[0].inputs.items():
        each = zip(*(entry.inputs[name][1] for entry in entries), strict=True)
        shape = [size if set(sizes) == {size} else None for size, sizes in zip(first, each, strict=True)]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
        outputs.append(helper.make_tensor_value_info(f"{name} again", kind, shape))
        nodes.append(helper.make_node("Identity", [name], [f"{name} again"]))
    graph = helper.make_graph(nodes, "plan", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def plan_inputs(plan: Plan, inputs: Any, shapes: Sequence[str], seed: int) -> Any:
    """Return the inputs of a run of a plan: those of a file, or seeded ones for the program of these shapes.

    Raises InputError, UsageError.
    """
    wanted = 0
    if inputs is None and shapes:
        asked = resolve_shapes(shapes)
        if _between(plan, asked):
            return resolve_inputs(Target(open_source(stand_in(plan.entries))), None, tuple(shapes), seed)
        fits = [
            n
            for n, entry in enumerate(plan.entries)
            if all(entry.inputs.get(name, (None, None))[1] == shape for name, shape in asked.items())
        ]
        if not fits:
            held = spelled(plan.spans) or "; ".join(entry.shapes() for entry in plan.entries[:4])
            raise UsageError(
                "the plan has no program for these shapes",
                where=" ".join(f"--shape {text}" for text in shapes),
                next_step=f"take one that it has: {held}",
            )
        wanted = fits[0]
    entries = plan.entries if inputs is not None else [plan.entries[wanted]]
    target = Target(open_source(stand_in(entries)))
    return resolve_inputs(target, inputs, (), seed)


def _between(plan: Plan, asked: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a plan makes a program for these shapes when they come; all open ones are asked for."""
    served = plan.spans
    open_ = {name for name, (_, axes) in served.items() if any(low < high for low, high in axes)}
    return open_ <= asked.keys() <= served.keys() and all(
        within(served[name], served[name][0], shape) for name, shape in asked.items()
    )


def resolve_shapes(shapes: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Return ``--shape`` options as name → sizes."""
    from graphdoc.compare.inputs import parse_shapes

    return parse_shapes(shapes)


def stage_of(model: Model, shapes: Sequence[str] = ()) -> Stage:
    """Return what level 1 makes of a model, simplified, for these shapes."""
    target = Target(open_source(simplified(open_source(model).model).model))
    return prepared(target.model).stage(resolve_inputs(target, None, tuple(shapes), 0).feeds)
