"""Peak memory of level 1 and of plans beside ONNX Runtime with its defaults, model by model.

    python tests/bench/peak.py MODEL_OR_FOLDER… [--threads 1] [--bare] [--json FILE]

Each side opens the model and runs it three times in a process of its own, on the same seeded inputs. A
figure is the highest resident memory minus what lay in memory when the libraries were imported and had run a
model of one node; with ``--bare``, when they were imported. ``cold`` simplifies, fuses and compiles, with an
empty cache; ``again`` is the same in a second process; ``plan`` loads what ``graphdoc build`` made. Pages of
files are counted.
"""

import argparse
import importlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SIDES = ("cold", "again", "plan", "ort")
RUNS = 3
MIB = float(1 << 20)


def resident(field: str) -> float:
    """Return MiB of resident memory: now (VmRSS), or the most since the last reset (VmHWM)."""
    text = pathlib.Path("/proc/self/status").read_text("utf-8")
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024 / MIB


def measure(side: str, path: str, feeds: str, threads: int, *, bare: bool) -> float:
    """Return how many MiB a side adds at its peak."""
    with np.load(feeds) as file:
        arrays = {name: file[name] for name in file.files if name != "first"}
        first = {"x": file["first"]}
    open_ = _ort(threads) if side == "ort" else _ours(side, threads)
    if not bare:
        open_(str(pathlib.Path(feeds).with_name(f"first.{'plan' if side == 'plan' else 'onnx'}")))(first)
    if not bare and side in ("cold", "again"):
        from graphdoc.session import Session

        Session(str(pathlib.Path(feeds).with_name("first.onnx")), level=1, keep=False).run(first)
    pathlib.Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the peak is counted from here on
    before = resident("VmRSS")
    run = open_(path)
    for _ in range(RUNS):
        run(arrays)
    return resident("VmHWM") - before


def _ours(side: str, threads: int) -> Callable[[str], Callable[[Any], object]]:
    for module in ("engine.device.cpu", "engine.fuse", "engine.kept", "surgeon.simplify", "compare.target"):
        importlib.import_module(f"graphdoc.{module}")
    from graphdoc.session import Session

    def open_(path: str) -> Callable[[Any], object]:
        return Session(path, level=0 if side == "plan" else 1, threads=threads).run

    return open_


def _ort(threads: int) -> Callable[[str], Callable[[Any], object]]:
    import onnxruntime as ort

    def open_(path: str) -> Callable[[Any], object]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = {value.name for value in session.get_inputs()}
        return lambda feeds: session.run(None, {k: v for k, v in feeds.items() if k in names})

    return open_


def prepare(path: pathlib.Path, folder: pathlib.Path) -> str:
    """Write inputs, a plan and a model of one node with its plan; return why there is no plan, or nothing."""
    import onnx
    import onnx.parser

    from graphdoc.compare.inputs import make_inputs
    from graphdoc.engine.errors import GraphdocError
    from graphdoc.planning import build_plan
    from graphdoc.surgeon.model import open_source

    feeds = make_inputs(open_source(str(path)).model).feeds
    np.savez(folder / "feeds.npz", first=np.zeros(4, np.float32), **feeds)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Exp (x) }'
    onnx.save(onnx.parser.parse_model(text), folder / "first.onnx")
    build_plan(str(folder / "first.onnx")).save(folder / "first.plan")
    try:
        shapes = [f"{name}={'x'.join(map(str, v.shape))}" for name, v in feeds.items() if v.shape]
        build_plan(str(path), shapes).save(folder / "model.plan")
    except GraphdocError as error:
        return error.cause
    return ""


def apart(side: str, path: pathlib.Path, folder: pathlib.Path, words: list[str]) -> float | None:
    """Measure in a process of its own; None where it failed."""
    model = folder / "model.plan" if side == "plan" else path
    command = [sys.executable, __file__, str(model), "--side", side, "--feeds", str(folder / "feeds.npz")]
    done = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
    )
    return float(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def rows(paths: list[pathlib.Path], words: list[str]) -> Iterator[tuple[str, dict[str, float | None], str]]:
    """Yield each model's name, figures by side, and why it has no plan."""
    for path in paths:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = subprocess.run(
                [sys.executable, __file__, str(path), "--side", "prepare", "--feeds", name],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            if done.returncode:
                yield path.stem, {}, (done.stderr.strip().splitlines() or ["?"])[-1][:90]
                continue
            planned = (folder / "model.plan").exists()
            sides = [s for s in SIDES if s != "plan" or planned]
            yield path.stem, {s: apart(s, path, folder, words) for s in sides}, done.stdout.strip()


def printed(figure: float | None) -> str:
    """Return a figure as a cell of the table."""
    return "–" if figure is None else f"{figure:.1f}"


def summary(found: dict[str, dict[str, float | None]]) -> Iterator[str]:
    """Yield how often a side needs at most what ONNX Runtime needs, and the geometric mean of the ratios."""
    for side in SIDES[:-1]:
        pairs = [(f.get(side), f.get("ort")) for f in found.values()]
        ratios = [max(a, 0.1) / max(b, 0.1) for a, b in pairs if a is not None and b is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            less = sum(r <= 1 for r in ratios)
            yield f"{side}: {less} of {len(ratios)} at most ONNX Runtime's; geometric mean {mean:.2f}"


def main() -> int:
    """Measure every model named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--feeds", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side == "prepare":
        print(prepare(asked.models[0], pathlib.Path(asked.feeds)))
        return 0
    if asked.side:
        print(measure(asked.side, str(asked.models[0]), asked.feeds, asked.threads, bare=asked.bare))
        return 0
    paths = [f for p in asked.models for f in (sorted(p.glob("*.onnx")) if p.is_dir() else [p])]
    words = ["--threads", str(asked.threads), *(["--bare"] if asked.bare else [])]
    found = {}
    print(f"{'MiB at the peak':36}" + "".join(f"{side:>10}" for side in SIDES))
    for name, figures, remark in rows(paths, words):
        found[name] = figures
        cells = "".join(f"{printed(figures.get(side)):>10}" for side in SIDES)
        print(f"{name[:36]:36}{cells}  {remark}", flush=True)
    print("\n".join(summary(found)))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
