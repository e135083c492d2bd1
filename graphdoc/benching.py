"""From a model and names of runners to a benchmark."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphdoc.api import Model, resolve_inputs
from graphdoc.compare import environment, latency
from graphdoc.compare.latency import Benchmark, Plan, Progress
from graphdoc.compare.target import Target
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import open_source

DEFAULT_RUNNERS = ("ort", "engine:1")


def bench(
    model: Model,
    runners: Sequence[str] = (),
    plan: Plan | None = None,
    inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    shapes: Iterable[str] = (),
    *,
    show: Progress | None = None,
) -> Benchmark:
    """Measure runners on one model and one set of inputs.

    runners: names; none: ONNX Runtime and the optimised engine.

    Raises UsageError for a runner named twice or unknown, RunnerError where one fails, InputError for inputs
    that do not fit.
    """
    plan = plan or Plan()
    names = list(runners) or list(DEFAULT_RUNNERS)
    if len(set(names)) != len(names):
        raise UsageError("a runner is named twice", where=f"--runner {' --runner '.join(names)}")
    target = Target(open_source(model))
    made = resolve_inputs(target, inputs, shapes, plan.seed)
    load = environment.load()
    timings, ratios = latency.measure(target, names, made.feeds, plan, show)
    shapes_of = tuple((name, _shape(value)) for name, value in made.feeds.items())
    facts = environment.environment()
    return Benchmark(
        target.source.name,
        plan,
        shapes_of,
        timings,
        ratios,
        facts,
        tuple(_remarks(load, environment.cores())),
    )


def _shape(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return type(value).__name__
    dims = "×".join(map(str, value.shape)) or "scalar"
    return f"{value.dtype} {dims}"


def _remarks(load: float, cores: int) -> Iterable[str]:
    if load > 0.5 * cores:
        yield f"machine is busy (load {load:.1f} on {cores} cores); repeat when it is idle"
