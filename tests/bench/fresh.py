"""A fresh process's first result: the engine against ONNX Runtime, from imports to outputs.

    python tests/bench/fresh.py MODEL_OR_FOLDER… [--rounds 3]

Each run is a process of its own, on one thread, that has NumPy and its inputs and nothing else. Cold has an
empty cache, warm a cache that the cold run has filled. What counts is processor time, which other work on the
machine disturbs less; of several runs the least. Kept says whether the warm session found its program.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np


def first(side: str, path: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Open a model and run it once; return the seconds, and whether its program was kept."""
    started = time.process_time()
    kept = False
    if side == "ours":
        from graphdoc.session import Session

        session = Session(path, level=1, threads=1)
        session.run(feeds)
        kept = "_opened" not in session.__dict__
    else:
        _theirs(path, feeds)
    return {"seconds": time.process_time() - started, "kept": kept}


def _theirs(path: str, feeds: Mapping[str, Any]) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    session.run(None, {name: value for name, value in feeds.items() if name in names})


def apart(side: str, path: pathlib.Path, inputs: str, cache: str) -> dict[str, Any]:
    """Run :func:`first` in a process of its own. Raises RuntimeError where that fails."""
    command = [sys.executable, __file__, str(path), "--side", side, "--inputs", inputs]
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1][:70])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(path: pathlib.Path, rounds: int) -> dict[str, float]:
    """Return the least seconds of each side, and print them."""
    from graphdoc.compare.inputs import make_inputs
    from graphdoc.surgeon.model import open_source

    with tempfile.TemporaryDirectory() as folder:
        inputs = f"{folder}/inputs.npz"
        np.savez(inputs, **dict(make_inputs(open_source(path).model).feeds))
        cold = apart("ours", path, inputs, folder)["seconds"]
        turns = [
            (apart("ours", path, inputs, folder), apart("ort", path, inputs, folder)) for _ in range(rounds)
        ]
    warm, theirs = (min(turn[k]["seconds"] for turn in turns) for k in (0, 1))
    kept = "kept" if turns[0][0]["kept"] else ""
    print(f"{path.stem[:37]:38}{cold:8.2f}{warm:8.3f}{theirs:8.3f}{warm / theirs:7.2f}  {kept}", flush=True)
    return {"cold": cold, "warm": warm, "ort": theirs}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--inputs", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        with np.load(given.inputs) as arrays:
            print(json.dumps(first(given.side, str(given.models[0]), dict(arrays))))
        return
    rows = []
    print(f"{'model':38}{'cold s':>8}{'warm s':>8}{'ort s':>8}{'ratio':>7}")
    for path in (p for m in given.models for p in (sorted(m.glob("*.onnx")) if m.is_dir() else [m])):
        try:
            rows.append(measure(path, given.rounds))
        except (RuntimeError, ValueError) as error:
            print(f"{path.stem[:37]:38}  {error}", flush=True)
    for name in ("cold", "warm", "ort"):
        mean = math.exp(sum(math.log(row[name]) for row in rows) / max(1, len(rows)))
        print(f"{name}: geometric mean {mean:.3f} s over {len(rows)} models")


if __name__ == "__main__":
    main()
