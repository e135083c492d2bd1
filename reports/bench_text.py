"""Benchmark → what the terminal or a pipe shows, and JSON."""

import dataclasses
import json
import statistics
from collections.abc import Iterator
from typing import Any

from graphdoc.compare.latency import STEADY, Benchmark, Ratio, StepTime, Timing
from graphdoc.reports import words
from graphdoc.reports.inspect_text import table
from graphdoc.reports.text import Style

SCHEMA = "graphdoc.bench/1"
STEPS = 10
"""Rows of the table of steps, unless all are asked for."""

TITLES = ("runner", "median", "p5", "p90", "p99", "runs", "runs/s", "opened", "memory")


STEP_TITLES = ("nodes", "time", "share", "of limit")
"""Of limit: the least time the step could take at the machine's measured limits, as a share of its time."""


def bench_lines(
    bench: Benchmark, *, width: int = 80, color: bool, pipe: bool, unicode: bool = True, verbose: bool = False
) -> str:
    """Return the printed form, ending in a newline. verbose: list every step."""
    style = Style(max(width, 40), color, pipe, unicode)
    rows = [cells(timing) for timing in bench.timings]
    blocks = [
        style.headline(*verdict(bench)),
        table(TITLES, rows, style, right=range(1, len(TITLES)), name=0),
        *_steps(bench, style, verbose=verbose),
        [style.plain(f"▲ remark: {text}") for text in remarks(bench)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict(bench: Benchmark) -> tuple[str, str, str]:
    """Return symbol, word and sentence that answer which runner is faster."""
    first = bench.timings[0]
    if not bench.ratios:
        spread = f"{words.seconds(first.percentile(5))} to {words.seconds(first.percentile(90))}"
        return "✓", f"{words.seconds(first.median)} a run", f"{first.name}; p5 to p90 {spread}"
    ratios = [r for r in bench.ratios if r.decided]
    if not ratios:
        return "–", "same", "; ".join(map(ratio_text, bench.ratios))
    best = min(ratios, key=lambda r: r.value)
    winner = best.test if best.value < 1 else first.name
    return "✓", f"{winner} is faster", "; ".join(map(ratio_text, bench.ratios))


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval, in words."""
    low, high = words.number(ratio.low, 3), words.number(ratio.high, 3)
    word = "" if ratio.decided else "≈ same: "
    value = words.number(ratio.value, 3)
    return f"{word}{ratio.test} takes {value} × the time of {ratio.ref} (95 % interval {low} to {high})"


def remarks(bench: Benchmark) -> Iterator[str]:
    """Yield what speaks against trusting the figures."""
    yield from bench.remarks
    for timing in bench.timings:
        if timing.variation > STEADY:
            share = words.number(100 * timing.variation, 2)
            yield f"{timing.name} is not steady: its bursts vary by {share} %; repeat on an idle machine"
        total = sum(step.seconds for step in timing.steps)
        if timing.steps and abs(total / timing.median - 1) > STEADY:
            gap = f"{words.seconds(total)} of {words.seconds(timing.median)}"
            yield f"the steps of {timing.name} add up to {gap} a run; measuring each has a cost"


def cells(timing: Timing) -> tuple[str, ...]:
    parts = [timing.median, *(timing.percentile(share) for share in (5, 90, 99))]
    return (
        timing.name,
        *map(words.seconds, parts),
        words.group(len(timing.samples)),
        words.number(timing.throughput, 3),
        words.seconds(timing.opened),
        words.size(timing.memory),
    )


def _steps(bench: Benchmark, style: Style, *, verbose: bool) -> Iterator[list[str]]:
    for timing in bench.timings:
        if not timing.steps:
            continue
        total = sum(step.seconds for step in timing.steps) or 1.0
        ordered = sorted(timing.steps, key=lambda step: -step.seconds)
        shown = ordered if verbose else ordered[:STEPS]
        rows = [step_cells(step, total) for step in shown]
        titles = (f"steps of {timing.name}", *STEP_TITLES)
        lines = table(titles, rows, style, right=(2, 3, 4), name=1)
        if len(ordered) > len(shown):
            lines.append(f"  {style.plain('…')} {words.group(len(ordered) - len(shown))} more: -v lists them")
        yield lines


def step_cells(step: StepTime, total: float) -> tuple[str, ...]:
    """Return a step's cells: label, nodes, time, share of the run, share of the machine's limit reached."""
    share = f"{100 * step.seconds / total:.1f} %"
    reached = f"{100 * step.limit / step.seconds:.0f} %" if step.limit and step.seconds else words.UNKNOWN
    return step.label, _nodes(step.nodes), words.seconds(step.seconds), share, reached


def _nodes(nodes: tuple[str, ...]) -> str:
    more = f" + {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[0]}{more}" if nodes else words.UNKNOWN


def bench_json(bench: Benchmark) -> str:
    """Return the figures as JSON text, ending in a newline; seconds and bytes."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "model": bench.model,
        "plan": dataclasses.asdict(bench.plan),
        "inputs": dict(bench.inputs),
        "runners": [_runner(timing) for timing in bench.timings],
        "ratios": [{**dataclasses.asdict(r), "decided": r.decided} for r in bench.ratios],
        "environment": dict(bench.environment),
        "remarks": list(remarks(bench)),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _runner(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "version": timing.version,
        "settings": timing.settings,
        "opened": timing.opened,
        "median": timing.median,
        "mean": statistics.fmean(timing.samples),
        **{f"p{share}": timing.percentile(share) for share in (5, 50, 90, 95, 99)},
        "variation": timing.variation,
        "runs": len(timing.samples),
        "throughput": timing.throughput,
        "memory": timing.memory,
        "rounds": list(timing.rounds),
        "steps": [dataclasses.asdict(step) for step in timing.steps],
    }
