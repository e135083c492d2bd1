"""graphdoc compare against Polygraphy, layer by layer: seconds and peak memory of whole processes.

    python tests/bench/compare.py MODEL_OR_FOLDER… [--polygraphy COMMAND] [--repeat 3] [--memory 64MiB]

Both run the model on ONNX Runtime twice with every layer as output, on the same inputs, and compare all:
``polygraphy run MODEL --onnxrt --onnxrt --onnx-outputs mark all`` against ``graphdoc compare MODEL MODEL
--test ort``, which besides computes each layer once more on the other side's inputs. The third column is
graphdoc as people call it, ONNX Runtime against the engine. COMMAND is the ``polygraphy`` of an environment
that has it (pip install polygraphy onnxruntime). The least of the repeats counts.
"""

import argparse
import base64
import io
import json
import math
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from processes import Spent, launch

OURS = [sys.executable, "-m", "graphdoc", "compare"]


def commands(polygraphy: str, model: str, inputs: str, memory: str) -> dict[str, list[str]]:
    """Return name → command."""
    bound = ["--memory", memory] if memory else []
    both = ["--onnxrt", "--onnxrt", "--onnx-outputs", "mark", "all", "--load-inputs", inputs]
    return {
        "polygraphy": [*shlex.split(polygraphy), "run", model, *both],
        "graphdoc": [*OURS, model, model, "--test", "ort", "--inputs", inputs, *bound],
        "graphdoc engine": [*OURS, model, "--inputs", inputs, *bound],
    }


def save_inputs(model: pathlib.Path, path: pathlib.Path) -> None:
    """Write seeded inputs as Polygraphy saves them, which both tools read."""
    import numpy as np

    from graphdoc.compare.inputs import make_inputs
    from graphdoc.surgeon.model import open_source

    rows = {}
    for name, value in make_inputs(open_source(str(model)).model).feeds.items():
        stream = io.BytesIO()
        np.save(stream, value)
        text = base64.b64encode(stream.getvalue()).decode()
        rows[name] = {"array": text, "polygraphy_class": "ndarray"}
    path.write_text(json.dumps([rows]))


def measure(model: pathlib.Path, options: argparse.Namespace) -> dict[str, Spent]:
    """Run every tool on a model, in turns; keep the quickest run of each."""
    found: dict[str, list[Spent]] = {}
    with tempfile.TemporaryDirectory() as folder:
        inputs = pathlib.Path(folder) / "inputs.json"
        save_inputs(model, inputs)
        for _ in range(options.repeat):
            both = commands(options.polygraphy, str(model), str(inputs), options.memory)
            for name, words in both.items():
                found.setdefault(name, []).append(launch(words, options.limit))
    return {name: min(runs, key=lambda run: run.seconds) for name, runs in found.items()}


def cell(spent: Spent) -> str:
    """Return the figures of a run, or how it failed."""
    fault = "" if spent.code in (0, 1) else "too long" if spent.code is None else f"exit {spent.code}"
    return f"{fault or 'ok':>8}{spent.seconds:7.2f} ({spent.cpu:6.2f}){spent.megabytes:7.0f}"


def ratio(found: dict[str, Spent], name: str, what: str) -> float:
    """Return how many times as much Polygraphy takes."""
    ours, theirs = getattr(found[name], what), getattr(found["polygraphy"], what)
    return float(theirs / ours) if ours and theirs else math.nan


def summary(every: dict[str, dict[str, Spent]]) -> Iterator[str]:
    """Yield geometric means of the ratios, and the range they lie in."""
    done = [f for f in every.values() if f["polygraphy"].code in (0, 1)]
    for name in ("graphdoc", "graphdoc engine"):
        for what in ("seconds", "cpu", "megabytes"):
            ratios = [x for f in done if not math.isnan(x := ratio(f, name, what))]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                yield f"polygraphy / {name}, {what}: {mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--polygraphy", default="polygraphy", help="how to start it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory", default="", help="what graphdoc may hold of inner values, as in 64MiB")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds per model and tool")
    parser.add_argument("--json", dest="json_", help="write every figure")
    options = parser.parse_args()
    given = [pathlib.Path(text) for text in options.paths]
    paths = [model for path in given for model in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    print(
        f"{'model':26}" + " |".join(f"{name:>30}" for name in ("polygraphy", "graphdoc", "graphdoc engine"))
    )
    every: dict[str, dict[str, Spent]] = {}
    for path in paths:
        every[path.stem] = found = measure(path, options)
        print(f"{path.stem[:26]:26}" + " |".join(map(cell, found.values())), flush=True)
    print("\n".join(summary(every)))
    if options.json_:
        figures: dict[str, Any] = {model: {n: asdict(s) for n, s in f.items()} for model, f in every.items()}
        pathlib.Path(options.json_).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
