"""How long a plan takes to load, model by model, and what a call costs besides the native run.

    python tests/bench/plans.py MODEL_OR_FOLDER… [--threads 1]

Loading is measured in processes of their own, in CPU seconds, which other work on the machine changes less:
*import* of the engine and LLVM, *load* of the plan (its tables, its checksum), *ready* (machine code put into
memory), and the *first* run; the least of three processes. *second* is a run after that. The last lines say
what ``Session.run`` adds to the native call of a model of one node, by session and by plan.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

PROCESSES = 3

_CHILD = """
import sys, time, json
import numpy as np
clock = time.process_time
times = [clock()]
from graphdoc.engine.plan import Plan
import graphdoc.engine.device.cpu, llvmlite.binding
times.append(clock())
with np.load(sys.argv[2]) as file:
    feeds = dict(file)
times.append(clock())
plan = Plan.load(sys.argv[1])
times.append(clock())
plan.executable(0, int(sys.argv[3]))
times.append(clock())
plan.run(feeds, int(sys.argv[3]))
times.append(clock())
plan.run(feeds, int(sys.argv[3]))
times.append(clock())
print(json.dumps([b - a for a, b in zip(times, times[1:])]))
"""


def loading(path: pathlib.Path, threads: int) -> list[float] | str:
    """Return milliseconds of import, load, ready, first and second run, and megabytes; or why not."""
    from graphdoc.compare.inputs import make_inputs
    from graphdoc.engine.errors import GraphdocError
    from graphdoc.planning import build_plan
    from graphdoc.surgeon.model import open_source

    feeds = make_inputs(open_source(str(path)).model).feeds
    shapes = [f"{name}={'x'.join(map(str, v.shape))}" for name, v in feeds.items() if v.shape]
    with tempfile.TemporaryDirectory() as folder:
        plan, inputs = pathlib.Path(folder) / "m.plan", pathlib.Path(folder) / "feeds.npz"
        try:
            build_plan(str(path), shapes).save(plan)
        except GraphdocError as error:
            return error.cause
        np.savez(inputs, **feeds)
        command = [sys.executable, "-c", _CHILD, str(plan), str(inputs), str(threads)]
        runs = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(PROCESSES)]
        times = np.min([json.loads(run) for run in runs], axis=0) * 1e3
        return [times[0], *times[2:], plan.stat().st_size / 1e6]


def least(call: Any, count: int = 200, rounds: int = 300) -> float:
    """Return the least microseconds of a call over rounds."""
    best = np.inf
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


def overhead() -> None:
    """Print what a run of one node costs, and what of it is the native call."""
    import onnx.parser

    from graphdoc.planning import build_plan
    from graphdoc.session import Session

    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu (x) }'
    model = onnx.parser.parse_model(text)
    feeds = {"x": np.ones(4, np.float32)}
    session = Session(model, level=1, threads=1)
    session.run(feeds)
    (stage,) = session._compiled.stages()  # type: ignore[union-attr]
    executable = stage.parts[0].executable  # type: ignore[union-attr]
    context = executable._context()
    context.bases[0] = context.bases[1] = id(feeds["x"])
    native = least(lambda: executable._share(context.calls[0]))
    with tempfile.TemporaryDirectory() as folder:
        build_plan(model).save(pathlib.Path(folder) / "m.plan")
        plan = Session(pathlib.Path(folder) / "m.plan", threads=1)
    print(f"native call {native:.2f} µs")
    for name, each in (("session", session), ("plan", plan)):
        took = least(lambda each=each: each.run(feeds))
        print(f"{name}.run {took:.2f} µs, of which graphdoc adds {took - native:.2f}")


def main() -> int:
    """Measure every model named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    paths = [f for p in asked.models for f in (sorted(p.glob("*.onnx")) if p.is_dir() else [p])]
    columns = ("import", "load", "ready", "first", "second", "MB")
    print(f"{'CPU ms':32}" + "".join(f"{c:>9}" for c in columns))
    for path in paths:
        found = loading(path, asked.threads)
        cells = found if isinstance(found, str) else "".join(f"{value:9.1f}" for value in found)
        print(f"{path.stem[:31]:32}{cells}", flush=True)
    overhead()
    return 0


if __name__ == "__main__":
    sys.exit(main())
