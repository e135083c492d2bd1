"""The parts of a stage as functions over a run's arrays, made once: what a run calls one after another."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphdoc.engine.columns import merged, nothing
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import failure
from graphdoc.engine.parts import HostNode, Known, Segment, Source, Stage
from graphdoc.engine.swift import short_way

Env = dict[str, Any]
"""The arrays of a run by key."""

Call = Callable[[Env, Any], None]
"""A part: reads arrays of a run and adds its own; the second argument is the run (``level1.Run``)."""

Bodies = Callable[[Env, Any], Mapping[str, Any]]
"""A host node's bodies over a run's arrays."""

Bind = Callable[[HostNode], Bodies]


def calls_of(stage: Stage, bind: Bind) -> list[Call]:
    """Return one function per part, in order."""
    plain = [_segment(p) if isinstance(p, Segment) else host_call(p, bind) for p in stage.parts]
    calls = merged(stage, plain)
    frees = [list(keys) for keys in stage.frees]
    for n in reversed(range(1, len(calls))):
        if calls[n] is nothing:  # so that such calls need not be made
            frees[n - 1] += frees[n]
            frees[n] = []
    return [_freeing(call, keys) if keys else call for call, keys in zip(calls, frees, strict=True)]


def _freeing(call: Call, frees: Sequence[str]) -> Call:
    def run(env: Env, run: Any) -> None:
        call(env, run)
        for key in frees:
            env.pop(key, None)

    return run


def _segment(part: Segment) -> Call:
    reads, writes = tuple(part.program.inputs), tuple(part.program.outputs)
    execute = part.executable.run

    def run(env: Env, run: Any) -> None:
        env.update(zip(writes, execute([env[key] for key in reads]), strict=True))

    return run


def host_call(part: HostNode, bind: Bind) -> Call:
    """Return the function of a node that level 0 runs."""
    short = short_way(part)
    dynamic = [s for s in part.inputs if not isinstance(s, Known)]
    if short is not None and len(part.outputs) == 1:
        if len(dynamic) == 1:
            return _one(part, short, dynamic[0], part.outputs[0])
        return partial(_short, part, short, dynamic)
    return partial(_host, part, bind(part) if part.node.bodies else None)


def _one(part: HostNode, short: Callable[[Any], Any], source: str, target: str) -> Call:
    def run(env: Env, run: Any) -> None:
        try:
            env[target] = short(env[source])
        except GraphdocError:
            raise
        except Exception as error:
            raise failure(part.node, [value_of(env, s) for s in part.inputs], error) from error

    return run


def _short(part: HostNode, short: Callable[..., Any], sources: Sequence[str], env: Env, run: Any) -> None:
    try:
        env[part.outputs[0]] = short(*[env[source] for source in sources])
    except GraphdocError:
        raise
    except Exception as error:
        raise failure(part.node, [value_of(env, s) for s in part.inputs], error) from error


def _host(part: HostNode, bind: Bodies | None, env: Env, run: Any) -> None:
    arguments = [value_of(env, source) for source in part.inputs]
    bodies = {} if bind is None else bind(env, run)
    try:
        with np.errstate(all="ignore"):
            results = part.node.run(*arguments, **bodies)
    except GraphdocError:
        raise
    except Exception as error:
        raise failure(part.node, arguments, error) from error
    listed = results if isinstance(results, tuple) else (results,)
    env.update(zip(part.outputs, map(placed, listed), strict=False))


def value_of(env: Mapping[str, Any], source: Source) -> Any:
    """Return what a host node reads."""
    return source.value if isinstance(source, Known) else env[source]


def placed(value: Any) -> Any:
    """Return NumPy's scalars as arrays of rank 0, in sequences too."""
    if isinstance(value, list):
        return type(value)(map(placed, value))
    return np.asarray(value) if isinstance(value, np.generic) else value
