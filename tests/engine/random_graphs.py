"""Random graphs: a hypothesis strategy, and the same graphs from a seed.

``graphs()`` gives ``(model, feeds)`` pairs: models of 1–30 nodes over most of ai.onnx, in opsets 9 to the
newest that ONNX Runtime runs, nearly all of which it accepts. Ranks 0–5, empty dims, broadcasting, negative
axes, optional inputs left out, unused and several outputs, shared values, initializers beside Constant nodes,
NaN, ±Inf, −0 and extreme integers; If, Loop and Scan; shape arithmetic, constant subexpressions, operators
that change nothing, chains, duplicates, dead nodes; dims declared by symbol or not at all::

    @given(graphs())
    def test_simplify_keeps_outputs(case):
        model, feeds = case
        ...

``random_graph(seed)`` makes one without hypothesis, fast and repeatable. Values in ``model.graph.output`` are
the outputs; :func:`tests.engine.random_oracle.tapped` adds all others.
"""

import random
from typing import Any

import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.engine import (
    random_elementwise,
    random_layers,
    random_moves,
    random_signals,
    random_structures,
)
from tests.engine.random_builder import Builder, RejectedError, Value, newest_opset
from tests.engine.random_recipes import RECIPES, Recipe
from tests.engine.random_values import from_array, info

Case = tuple[onnx.ModelProto, dict[str, Any]]

OLDEST_OPSET = 9
MOST_NODES = 30

FAMILIES = (random_elementwise, random_moves, random_layers, random_signals, random_structures)
"""Modules that register recipes when they are imported."""


@st.composite
def graphs(draw: Any, *, most: int = MOST_NODES, opsets: tuple[int, int] | None = None) -> Case:
    """Return a strategy of (model, feeds).

    most: nodes at most, about. opsets: oldest and newest. Shrinks towards fewer and simpler nodes.
    """
    rng = draw(st.randoms(use_true_random=False))
    return build(rng, most=most, opsets=opsets)


def random_graph(
    seed: int | str,
    *,
    most: int = MOST_NODES,
    opsets: tuple[int, int] | None = None,
    keep_failures: bool = False,
) -> Case:
    """Return the (model, feeds) of a seed.

    keep_failures: leave nodes in on which the engine fails; else the graph does without them.
    """
    return build(random.Random(seed), most=most, opsets=opsets, keep_failures=keep_failures)  # noqa: S311


def build(
    rng: random.Random,
    *,
    most: int = MOST_NODES,
    opsets: tuple[int, int] | None = None,
    keep_failures: bool = False,
) -> Case:
    """Return a graph all of whose choices come from ``rng``."""
    oldest, newest = opsets or (OLDEST_OPSET, newest_opset())
    g = Builder(rng, rng.randint(oldest, newest), keep_failures=keep_failures)
    _fill(g, rng.randint(1, most))
    if not g.nodes:
        g.add("Identity", [g.fresh("float32", (2,))])
    return _model(g), g.feeds


def _fill(g: Builder, count: int) -> None:
    """Add nodes: an operator is drawn first, then one of its recipes, so that rare ones come up as often."""
    by_op: dict[str, list[Recipe]] = {}
    for each in RECIPES:
        if each.first <= g.opset <= each.last:
            by_op.setdefault(each.op, []).append(each)
    names = sorted(by_op)
    for _ in range(3 * count):
        if len(g.nodes) >= count:
            return
        op = g.choose(names)
        try:
            g.choose(by_op[op]).build(g, op)
        except RejectedError:
            continue


def _model(g: Builder) -> onnx.ModelProto:
    made = {n for node in g.nodes for n in node.output}
    read = {n for node in g.nodes for n in node.input}
    shown = [v for v in g.pool if v.name in made and v.name not in g.hidden and not _untyped(v.array)]
    ends = [v for v in shown if v.name not in read]
    outputs = [v for v in ends if g.chance(0.8)] + [v for v in shown if v.name in read and g.chance(0.1)]
    outputs = outputs or (ends or shown)[-1:] or [_identity(g)]
    inputs = [_declared(g, name, array) for name, array in g.feeds.items()]
    weights = [from_array(array, name) for name, array in g.initializers.items()]
    results = [info(v.name, v.array, [None] * _rank(v)) for v in outputs]
    graph = helper.make_graph(g.nodes, "random", inputs, results, initializer=weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=10)


def _identity(g: Builder) -> Value:
    return g.add("Identity", [g.fresh("float32", (2,))])


def _untyped(array: Any) -> bool:
    """Whether it is an empty sequence, which does not tell what it would hold."""
    return isinstance(array, list) and not array


def _rank(value: Value) -> int:
    return 0 if isinstance(value.array, list) else value.rank


def _declared(g: Builder, name: str, array: Any) -> onnx.ValueInfoProto:
    """Return an input's declaration; some dims are symbols, equal for equal sizes, or left open."""
    style = g.rng.randrange(4)
    dims = [f"N{d}" if style == 2 and g.chance(0.6) else None if style == 3 else d for d in array.shape]
    return info(name, array, dims)
