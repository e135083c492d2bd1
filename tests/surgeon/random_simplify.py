"""Random graphs through simplify: the outputs must stay what they were.

As a script it runs many and saves what differs::

    python -m tests.surgeon.random_simplify --graphs 10000 --seed 1 [--start 0] [--save FOLDER]

The oracle is the engine's level 0, to the bit, on the graph's own inputs and on others; where rounding may
change (fusing into weights), within what the float64 result allows. A part of the graphs also runs on ONNX
Runtime, which must load what it loaded before.
"""

import argparse
import collections
import pathlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.simplified import Report
from graphdoc.surgeon.simplify import simplify
from graphdoc.surgeon.writer import write_model
from tests.engine import random_oracle
from tests.engine.random_graphs import random_graph

ROUNDS = frozenset({"linear"})
"""Groups of rules after which results are rounded anew."""

Feeds = Mapping[str, Any]


@dataclass
class Tally:
    """What was seen so far."""

    graphs: int = 0
    before: int = 0
    after: int = 0
    rules: collections.Counter[str] = field(default_factory=collections.Counter)
    ort: int = 0


def check(model: onnx.ModelProto, feeds: Feeds, tally: Tally | None = None, *, ort: bool = False) -> str:
    """Return how a simplified graph differs from the original, "" when it does not."""
    tally = tally or Tally()
    done = simplify(ir.from_proto(model))
    edited = write_model(done.model)
    tally.graphs += 1
    tally.before += done.report.nodes_before
    tally.after += done.report.nodes_after
    tally.rules.update(done.report.by_rule())
    names = [(o.name for o in m.graph.output) for m in (model, edited)]
    if list(names[0]) != list(names[1]):
        return "other outputs"
    for other in (feeds, _negated(feeds), _ones(feeds)):
        if text := _differs(model, edited, other, done.report):
            return text
    tally.ort += ort
    again = simplify(done.model).report
    if again.changed:
        return f"not idempotent: {again.done[0].rule} at {again.done[0].node}"
    return _refused(model, edited, feeds) if ort else ""


def _differs(model: onnx.ModelProto, edited: onnx.ModelProto, feeds: Feeds, report: Report) -> str:
    wanted = _run(model, feeds)
    if wanted is None:
        return ""
    found = _run(edited, feeds)
    if found is None:
        return "the simplified model fails on inputs that the original takes"
    exact = not any(edit.group in ROUNDS for edit in report.done)
    for name, want in wanted.items():
        got = found[name]
        if random_oracle.identical(got, want, signs=exact):
            continue
        if not exact and _is_rounding(model, feeds, name, got, want):
            continue
        rules = ", ".join(report.by_rule())
        return f"{name}: {random_oracle.complaint(got, want, None, None)}; rules: {rules}"
    return ""


def _is_rounding(model: onnx.ModelProto, feeds: Feeds, name: str, got: Any, want: Any) -> bool:
    if random_oracle.near(got, want):
        return True
    if got.dtype == want.dtype == np.float64:  # it may be the rounding of a float32 value before a Cast
        return _is_rounding(model, feeds, name, got.astype(np.float32), want.astype(np.float32))
    truth, limit = random_oracle.limits(model, feeds, name)
    return random_oracle.within(got, want, truth, limit)


def _run(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Any] | None:
    try:
        return Interpreter(ir.from_proto(model)).run(feeds)
    except GraphdocError:
        return None


def _negated(feeds: Feeds) -> dict[str, Any]:
    """Return floats with the other sign; the rest as it is, since it may be indices."""
    return {n: -v if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for n, v in feeds.items()}


def _ones(feeds: Feeds) -> dict[str, Any]:
    return {
        n: np.ones_like(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v
        for n, v in feeds.items()
    }


def _refused(model: onnx.ModelProto, edited: onnx.ModelProto, feeds: Feeds) -> str:
    """Return why ONNX Runtime refuses what it took before."""
    try:
        random_oracle.on_ort(model, feeds)
    except random_oracle.RefusedError:
        return ""
    try:
        random_oracle.on_ort(edited, feeds)
    except random_oracle.RefusedError as error:
        return f"ONNX Runtime refuses it: {error}"
    return ""


def main() -> None:
    """Run many, print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int, help="one graph again")
    parser.add_argument("--save", type=pathlib.Path, help="a folder for what differs")
    options = parser.parse_args()
    tally, faults = Tally(), 0
    numbers = (
        [options.only] if options.only is not None else range(options.start, options.start + options.graphs)
    )
    for number in numbers:
        model, feeds = random_graph(f"{options.seed}/{number}")
        try:
            text = check(model, feeds, tally, ort=number % 4 == 0)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if text:
            faults += 1
            print(f"graph {number}: {text}"[:300], flush=True)
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                onnx.save(model, options.save / f"{number}.onnx")
        if number % 500 == 499:
            print(f"… {tally.graphs} graphs, {faults} differ", flush=True)
    nodes = f"{tally.before} → {tally.after} nodes"
    print(f"{tally.graphs} graphs, {tally.ort} on ONNX Runtime too, {nodes}, {faults} differ")
    print(", ".join(f"{rule} {count}" for rule, count in tally.rules.most_common()))
    sys.exit(int(faults > 0))


if __name__ == "__main__":
    main()
