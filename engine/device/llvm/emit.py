"""Which emitter turns a step into a kernel: one row per kind of specification.

An emitter is a module of this folder with two functions::

    emit_NAME(step, target, tactic) -> Kernel | None     None: not for machine code (a dtype, say)
    tactics_NAME(step, target) -> list[str]              ways to do the same, the one to take unmeasured first

A step without a kernel is run by its specification's ``evaluate``, on the host. An emitter may look at a
step's specification, at shapes, strides and dtypes of its views, and at ``alignment(view)``, at nothing else:
steps that are alike in these share what it returns.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from graphdoc.engine.device.llvm.builder import Kernel, Target
from graphdoc.engine.program import Kind, Step, View

EMITTERS: Mapping[str, str] = {
    "Map": "map",
    "Gather": "gather",
    "Rows": "rows",
    "Contraction": "contraction",
    "Winograd": "winograd",
    "Attention": "attention",
    "Recurrent": "recurrent",
    "Trees": "trees",
    "Coupling": "coupling",
    "TopK": "topk",
    "Scatter": "scatter",
    "Suppression": "suppression",
}
"""Name of the specification's class → the module that has ``emit_`` and ``tactics_`` of that name."""

LINE = 64
"""Bytes on which buffers of constants and inner values start."""


def alignment(view: View) -> int:
    """Return the bytes, a power of two up to 64, on which a view's first element is sure to stand.

    Arrays of callers are aligned to their elements alone.
    """
    if view.buffer.kind in (Kind.INPUT, Kind.OUTPUT):
        return view.dtype.itemsize
    at = view.offset * view.dtype.itemsize
    return min(LINE, at & -at) if at else LINE


def emit(step: Step, target: Target, tactic: str | None = None) -> Kernel | None:
    """Return the kernel of a step; tactic: one of :func:`tactics`, None for the first.

    None: no machine code can be made of it; its specification's ``evaluate`` says what it computes.
    """
    functions = _emitter(type(step.spec).__name__)
    if functions is None or any(0 in view.shape for view in step.outputs):
        return None
    return functions[0](step, target, tactic)  # type: ignore[no-any-return]


def tactics(step: Step, target: Target) -> list[str]:
    """Return the ways to do a step, first the one to take unmeasured; empty where there is no emitter."""
    functions = _emitter(type(step.spec).__name__)
    return [] if functions is None else list(functions[1](step, target))


@cache
def _emitter(spec: str) -> tuple[Any, Any] | None:
    name = EMITTERS.get(spec)
    module = name and f"graphdoc.engine.device.llvm.{name}"
    if not module or find_spec(module) is None:
        return None
    found = import_module(module)
    return getattr(found, f"emit_{name}"), getattr(found, f"tactics_{name}")


def likeness(step: Step, tactic: str | None) -> Any:
    """Return what two steps share whose kernels are the same."""
    views = tuple(
        (view.shape, view.strides, view.dtype, alignment(view)) for view in (*step.inputs, *step.outputs)
    )
    return step.spec, len(step.inputs), views, tactic
