"""The optimised engine against ONNX Runtime: time of a run, model by model and by class of model.

    python tests/bench/engine.py MODEL_OR_FOLDER… [--threads 1 2] [--seconds 1.5] [--json FILE]

Each model is measured in a process of its own. Both sides have the same number of threads and the same seeded
inputs, ONNX Runtime with its default optimisations; they run in turns, in bursts of which the first run is
dropped, and none starts before the other side's threads are still: ONNX Runtime's spin on for some 30 ms. The
ratio is the median over bursts of ours / theirs: below 1, ours is faster.
Build is the time to open a model cold (an empty cache of compiled code) and warm (a second process).
Peak is the share of the machine's measured arithmetic that our quickest run reaches on its threads: the
operations its steps need (engine/cost.py) over those that multiply-adds of vectors could do in that time. It
is small for models that move bytes rather than multiply.
"""

import argparse
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx

CLASSES = (
    ("trees", {"TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble"}),
    ("quantised", {"QLinearConv", "QuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}),
    ("recurrent", {"LSTM", "GRU", "RNN", "Loop", "Scan"}),
    ("transformer", {"Softmax", "Attention", "MultiHeadAttention", "GroupQueryAttention"}),
    ("cnn", {"Conv"}),
)
"""The first class of whose operators a model has one; a convolutional one that ends in a softmax is a CNN."""


def kind(path: pathlib.Path) -> str:
    """Return the class of a model."""
    counts: dict[str, int] = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    if counts.get("Conv", 0) > 4 and counts.get("Softmax", 0) <= 1 and not {"LSTM", "GRU"} & set(counts):
        counts.pop("Softmax", None)
    return next((name for name, ops in CLASSES if ops & set(counts)), "other")


def measure(path: str, threads: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one model."""
    import numpy as np
    import onnxruntime as ort

    from graphdoc.compare.inputs import make_inputs
    from graphdoc.session import Session
    from graphdoc.surgeon.model import open_source

    feeds = dict(make_inputs(open_source(path).model).feeds)
    theirs = _ort(ort, path, threads)
    names = {value.name for value in theirs.get_inputs()}
    given = {name: value for name, value in feeds.items() if name in names}
    before = _peak()
    started = time.perf_counter()
    session = Session(path, level=1, threads=threads)
    got = session.run(feeds)
    built = time.perf_counter() - started
    grown = _peak() - before
    want = dict(zip((o.name for o in theirs.get_outputs()), theirs.run(None, given), strict=True))
    error = max((_error(np, got[name], value) for name, value in want.items()), default=0.0)
    least = _least(session, threads)
    times = _race({"ours": lambda: session.run(feeds), "ort": lambda: theirs.run(None, given)}, seconds)
    ratios = [a / b for a, b in zip(times["ours"], times["ort"], strict=True)]
    return {
        "peak": least / min(times["ours"]),
        "ours": 1e3 * statistics.median(times["ours"]),
        "ort": 1e3 * statistics.median(times["ort"]),
        "ratio": statistics.median(ratios),
        "build": built,
        "error": error,
        "megabytes": grown,
    }


def _least(session: Any, threads: int) -> float:
    """Return the seconds that a run's operations take at least on so many threads."""
    from graphdoc.engine.cost import operations
    from graphdoc.engine.limits import limits
    from graphdoc.engine.parts import Segment

    if session._compiled is None:  # a program that was kept
        programs = [session._found.short.call.__self__.program]
    else:
        parts = [part for stage in session._compiled.stages() for part in stage.parts]
        programs = [
            getattr(part.executable, "program", part.program) for part in parts if isinstance(part, Segment)
        ]
    total = sum(operations(step) for program in programs for step in program.steps)
    return total / (limits().operations * threads)


def _ort(ort: Any, path: str, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _error(np: Any, got: Any, want: Any) -> float:
    """Return the largest difference relative to the largest finite number."""
    if not isinstance(want, np.ndarray) or want.dtype.kind not in "f" or not want.size:
        return 0.0
    wide, other = want.astype(np.float64), np.asarray(got).astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(other)
    scale = float(np.abs(wide[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(wide[finite] - other[finite]).max(initial=0.0)) / scale


def _race(rivals: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return each rival's time of a run in each burst (its least), in seconds."""
    from graphdoc.compare.latency import settle

    once = {name: _burst(run, 1) for name, run in rivals.items()}
    runs = max(1, min(200, int(0.01 / max(once.values()))))
    times: dict[str, list[float]] = {name: [] for name in rivals}
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times["ort"]) < 5:
        for name, run in rivals.items():
            settle()
            times[name].append(_burst(run, runs))
    return times


def _burst(run: Callable[[], object], runs: int) -> float:
    run()
    best = math.inf
    for _ in range(runs):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _apart(path: pathlib.Path, threads: int, seconds: float, cache: str, limit: float = 300) -> Any:
    """Measure in a process of its own; return the figures, or why there are none."""
    command = [sys.executable, __file__, str(path), "--one", "--threads", str(threads)]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    command += ["--seconds", str(seconds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"over {limit:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:70]
    return json.loads(done.stdout.splitlines()[-1])


def _models(paths: list[str]) -> Iterator[pathlib.Path]:
    for path in map(pathlib.Path, paths):
        yield from sorted(path.glob("*.onnx")) if path.is_dir() else [path]


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def table(paths: list[str], threads: list[int], seconds: float) -> list[dict[str, Any]]:
    """Print a line per model and number of threads, and the geometric means; return the rows."""
    rows = []
    heads = f"{'ours ms':>10}{'ort ms':>10}{'ratio':>7}{'peak':>6}{'cold s':>8}{'warm s':>8}{'error':>9}"
    print(f"{'model':38}{'class':12}{'t':>2}{heads}")
    with tempfile.TemporaryDirectory() as cache:
        for path in _models(paths):
            for count in threads:
                cold = _apart(path, count, 0.0, cache) if count == threads[0] else {}
                found = _apart(path, count, seconds, cache)
                if isinstance(found, str):
                    print(f"{path.stem[:37]:38}{kind(path):12}{count:2}  {found}", flush=True)
                    continue
                row = {"model": path.stem, "class": kind(path), "threads": count, **found}
                row["cold"] = cold.get("build", math.nan) if isinstance(cold, dict) else math.nan
                rows.append(row)
                print(
                    f"{path.stem[:37]:38}{row['class']:12}{count:2}{row['ours']:10.3f}{row['ort']:10.3f}"
                    f"{row['ratio']:7.2f}{row['peak']:6.0%}{row['cold']:8.2f}{row['build']:8.2f}{row['error']:9.1e}",
                    flush=True,
                )
    for count in threads:
        own = [row for row in rows if row["threads"] == count]
        overall = mean([row["ratio"] for row in own])
        print(f"\n{count} thread{'s' if count > 1 else ''}: {overall:.3f} over {len(own)} models")
        for name in (*(name for name, _ in CLASSES), "other"):
            part = [r["ratio"] for r in own if r["class"] == name]
            if part:
                print(f"  {name:12} {mean(part):.3f}  ({len(part)}, worst {max(part):.2f})")
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.models[0], arguments.threads[0], arguments.seconds)))
        return
    rows = table(arguments.models, arguments.threads, arguments.seconds)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
