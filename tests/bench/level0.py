"""Level 0 of the engine against onnx.reference: seconds and peak memory of a run, model by model.

    python tests/bench/level0.py MODEL_OR_FOLDER… [--limit 120]

Both sides run in processes of their own, on the same seeded inputs, with one BLAS thread. Seconds are CPU
seconds of the quickest of several runs, the first one left out where there is time for more: other work on
the machine does not count. Memory is the growth of the peak resident set during the runs.
"""

import argparse
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SIDES = ("engine", "reference")
ENOUGH = 2.0
"""Seconds after which no further run is started."""


def measure(side: str, path: str) -> dict[str, float]:
    """Return seconds of a run, and megabytes that the runs added to the process."""
    from graphdoc.compare.inputs import make_inputs
    from graphdoc.surgeon.model import open_source

    source = open_source(path)
    feeds = make_inputs(source.model).feeds
    run = _engine(source) if side == "engine" else _reference(path)
    before, times, started = _peak(), [], time.perf_counter()
    while not times or (len(times) < 6 and time.perf_counter() - started < ENOUGH):
        begun = time.process_time()
        run(feeds)
        times.append(time.process_time() - begun)
    return {"seconds": min(times[1:] or times), "megabytes": _peak() - before}


def _engine(source: Any) -> Callable[[dict[str, Any]], object]:
    from graphdoc.engine.interpreter import Interpreter

    return Interpreter(source.model).run


def _reference(path: str) -> Callable[[dict[str, Any]], object]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(path)
    return lambda feeds: evaluator.run(None, feeds)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _apart(side: str, path: pathlib.Path, limit: float) -> dict[str, float] | str:
    """Measure in a process of its own; return the figures, or why there are none."""
    command = [sys.executable, __file__, str(path), "--side", side]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"over {limit:.0f} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _models(paths: list[str]) -> Iterator[pathlib.Path]:
    for path in map(pathlib.Path, paths):
        yield from sorted(path.glob("*.onnx")) if path.is_dir() else [path]


def table(paths: list[str], limit: float) -> None:
    """Print a line per model and the geometric mean of the ratios."""
    print(f"{'model':40}{'engine':>10}{'reference':>12}{'ratio':>8}{'MB':>8}{'MB ref':>8}", flush=True)
    ratios = []
    for path in _models(paths):
        ours, theirs = (_apart(side, path, limit) for side in SIDES)
        if isinstance(ours, str) or isinstance(theirs, str):
            print(f"{path.stem:40}{_text(ours):>10}  reference: {_text(theirs)}", flush=True)
            continue
        ratios.append(theirs["seconds"] / ours["seconds"])
        print(
            f"{path.stem:40}{_text(ours):>10}{_text(theirs):>12}{ratios[-1]:8.1f}"
            f"{ours['megabytes']:8.0f}{theirs['megabytes']:8.0f}",
            flush=True,
        )
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} models: geometric mean {mean:.1f}, least {min(ratios):.1f}")


def _text(found: dict[str, float] | str) -> str:
    return found if isinstance(found, str) else f"{found['seconds']:.4f} s"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per model and side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.paths[0])))
    else:
        table(options.paths, options.limit)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
