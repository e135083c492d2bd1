"""Level 0 of the engine against onnx.reference: seconds and peak memory of a run, model by model.

    python tests/bench/level0.py MODEL_OR_FOLDER… [--limit 120] [--keep FILE]

Both sides run in processes of their own, on the same seeded inputs, with one BLAS thread. Seconds are CPU
seconds of the quickest of several runs, the first one left out where there is time for more: other work on
the machine does not count. Memory is the growth of the peak resident set during the runs.

The bound is the ratio that matrix products alone would leave: the reference's seconds over those that the
engine spends in them. What onnx.reference cannot run has no ratio. ``--keep`` writes the reference's figures
to a file and takes over those that stand there: they do not change with the engine.
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

import numpy as np

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
    found = {"seconds": min(times[1:] or times), "megabytes": _peak() - before}
    return found if side == "reference" else found | {"products": _products(lambda: run(feeds))}


def _products(run: Callable[[], object]) -> float:
    """Return the CPU seconds that a run spends in matrix products, the less of two."""
    product, spent = np.matmul, [0.0]

    def timed(*arrays: Any, **options: Any) -> Any:
        begun = time.process_time()
        result = product(*arrays, **options)
        spent[-1] += time.process_time() - begun
        return result

    np.matmul = timed  # type: ignore[assignment]
    for _ in range(2):
        spent.append(0.0)
        run()
    return min(spent[1:])


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
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, check=False, env=one_thread
        )
    except subprocess.TimeoutExpired:
        return f"over {limit:.0f} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _models(paths: list[str]) -> Iterator[pathlib.Path]:
    for path in map(pathlib.Path, paths):
        yield from sorted(path.glob("[!.]*.onnx")) if path.is_dir() else [path]


def table(paths: list[str], limit: float, keep: pathlib.Path | None) -> None:
    """Print a line per model and the geometric mean of the ratios."""
    kept = json.loads(keep.read_text()) if keep is not None and keep.exists() else {}
    heads = ("engine", "reference", "ratio", "bound", "MB", "MB ref")
    print(
        f"{'model':40}" + "".join(f"{head:>{w}}" for head, w in zip(heads, WIDTHS, strict=True)), flush=True
    )
    ratios, bounds = [], []
    for path in _models(paths):
        ours = _apart("engine", path, limit)
        theirs = kept[path.stem] = kept.get(path.stem) or _apart("reference", path, limit)
        if isinstance(ours, str) or isinstance(theirs, str):
            print(f"{path.stem:40}{_text(ours):>10}  reference: {_text(theirs)}", flush=True)
            continue
        ratios.append(theirs["seconds"] / ours["seconds"])
        bounds.append(theirs["seconds"] / max(ours["products"], 1e-6))
        memory = (ours["megabytes"], theirs["megabytes"])
        texts = (
            _text(ours),
            _text(theirs),
            f"{ratios[-1]:.1f}",
            f"{bounds[-1]:.0f}",
            *(f"{m:.0f}" for m in memory),
        )
        print(
            f"{path.stem:40}" + "".join(f"{t:>{w}}" for t, w in zip(texts, WIDTHS, strict=True)), flush=True
        )
    if keep is not None:
        keep.write_text(json.dumps(kept, indent=1))
    if ratios:
        print(
            f"{len(ratios)} models: geometric mean {_mean(ratios):.1f}, least {min(ratios):.1f}; "
            f"products alone would leave {_mean(bounds):.0f}"
        )


WIDTHS = (10, 12, 8, 8, 8, 8)
"""Of the columns behind the model's name."""


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _text(found: dict[str, float] | str) -> str:
    return found if isinstance(found, str) else f"{found['seconds']:.4f} s"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per model and side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="figures of onnx.reference")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.paths[0])))
    else:
        table(options.paths, options.limit, options.keep)


if __name__ == "__main__":
    main()
