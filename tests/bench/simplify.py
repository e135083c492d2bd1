"""graphdoc simplify against its neighbours: nodes left, right or wrong, seconds, peak memory.

    python tests/bench/simplify.py MODEL_OR_FOLDER… [--peers PYTHON] [--limit 240] [--json FILE]

Every tool runs as a process of its own, as people run it. Seconds are wall time and, in brackets, CPU time,
which other work on the machine changes less. A result is right when ONNX Runtime, optimisations off, gives
the same outputs on seeded inputs: RMS error at most 1e-4 of the original's RMS (of 1e-3 where that is less).
PYTHON has the neighbours installed (pip install "onnx-graphdoc[bench]").
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

RIGHT = 1e-4
"""Fusing into weights rounds anew; what is wrong is wrong by far more."""

LEAST = 1e-3
"""Outputs smaller than this, such as the sigmoid of a large negative number, hold little but rounding."""

_SURGEON = """
import sys, onnx, onnx_graphsurgeon as gs
graph = gs.import_onnx(onnx.load(sys.argv[1]))
graph.fold_constants().cleanup().toposort()
onnx.save(gs.export_onnx(graph), sys.argv[2])
"""
_SCRIPT = """
import sys, onnx, onnxscript.optimizer
onnx.save(onnxscript.optimizer.optimize(onnx.load(sys.argv[1])), sys.argv[2])
"""
_RUNTIME = """
import sys, onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


_LAUNCH = """
import json, os, sys
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3], file)
"""
"""Starts a tool from a small process: Linux counts the starter's memory into the peak of what it starts."""


def tools(peers: str) -> dict[str, list[str]]:
    """Return name → command, to which the model and the result's path are added."""
    beside = str(pathlib.Path(peers).parent)
    ours = [sys.executable, "-m", "graphdoc", "simplify", "{model}", "-o", "{out}"]
    return {
        "graphdoc": [*ours, "--no-verify"],
        "graphdoc verified": ours,
        "onnxsim": [f"{beside}/onnxsim", "{model}", "{out}"],
        "onnxslim": [f"{beside}/onnxslim", "{model}", "{out}"],
        "graphsurgeon": [peers, "-c", _SURGEON, "{model}", "{out}"],
        "onnxscript": [peers, "-c", _SCRIPT, "{model}", "{out}"],
        "ort basic": [peers, "-c", _RUNTIME, "{model}", "{out}"],
    }


@dataclass
class Outcome:
    """nodes: left, subgraphs and functions included. fault: why there is no right result, "" when right."""

    nodes: int
    seconds: float
    cpu: float
    megabytes: float
    fault: str = ""


def run(command: list[str], model: pathlib.Path, out: pathlib.Path, limit: float) -> Outcome:
    """Run one tool on one model."""
    words = [word.replace("{model}", str(model)).replace("{out}", str(out)) for word in command]
    figures = out.with_suffix(".json")
    started = time.perf_counter()
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(figures), *words]
    try:
        done = subprocess.run(
            launch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(0, limit, limit, 0.0, f"over {limit:.0f} s")
    spent = time.perf_counter() - started
    said = done.stdout.decode(errors="replace").strip().splitlines()
    cpu, megabytes = json.loads(figures.read_text())
    result = Outcome(0, spent, cpu, megabytes)
    if not out.exists():
        result.fault = f"wrote nothing: {said[-1][:60] if said else 'and said nothing'}"
    return result


def count(path: pathlib.Path) -> int:
    """Return how many nodes a model has, those of subgraphs and functions included."""
    import onnx

    def nodes(graph: Any) -> int:
        inner = [a for node in graph.node for a in node.attribute]
        graphs = [a.g for a in inner if a.HasField("g")] + [g for a in inner for g in a.graphs]
        return len(graph.node) + sum(map(nodes, graphs))

    model = onnx.load(str(path), load_external_data=False)
    return nodes(model.graph) + sum(map(nodes, model.functions))


class Oracle:
    """The original's outputs on seeded inputs."""

    def __init__(self, model: pathlib.Path) -> None:
        from graphdoc.compare.inputs import make_inputs
        from graphdoc.surgeon.model import open_source

        self._feeds = make_inputs(open_source(str(model)).model).feeds
        self._wanted = self._run(model)

    def _run(self, model: pathlib.Path) -> list[Any]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        names = {value.name for value in session.get_inputs()}
        found: list[Any] = session.run(None, {k: v for k, v in self._feeds.items() if k in names})
        return found

    def fault(self, model: pathlib.Path) -> str:
        """Return how a result differs, "" when it does not."""
        from graphdoc.compare.metrics import MismatchError, distance, ratio

        try:
            got = self._run(model)
        except Exception as error:
            return f"does not run: {str(error).splitlines()[0][:60]}"
        try:
            pairs = [distance(a, b) for a, b in zip(self._wanted, got, strict=True)]
        except (MismatchError, ValueError) as error:
            return f"other outputs: {error}"
        worst = max((ratio(apart, max(rms, LEAST)) for apart, rms in pairs), default=0.0)
        return f"wrong by {worst:.1g}" if worst > RIGHT else ""


def measure(model: pathlib.Path, commands: dict[str, list[str]], limit: float) -> dict[str, Outcome]:
    """Run every tool on a model."""
    oracle, found = Oracle(model), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in commands.items():
            out = pathlib.Path(folder) / f"{name.replace(' ', '-')}.onnx"
            outcome = found[name] = run(command, model, out, limit)
            if not outcome.fault:
                outcome.nodes, outcome.fault = count(out), oracle.fault(out)
    return found


def row(model: pathlib.Path, before: int, found: dict[str, Outcome]) -> str:
    """Return a line of the table."""
    cells = (
        f"{o.fault or o.nodes!s:>8.8}{o.seconds:7.2f} ({o.cpu:5.2f}){o.megabytes:6.0f}"
        for o in found.values()
    )
    return f"{model.stem[:30]:30}{before:6}  " + " |".join(cells)


def summary(every: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    """Yield what it comes to: how often ours is best, ratios of time and memory, faults."""
    names = list(next(iter(every.values())))
    others = [name for name in names if not name.startswith("graphdoc")]
    best = [
        (model, f["graphdoc"].nodes, min((f[o].nodes for o in others if not f[o].fault), default=10**9))
        for model, f in every.items()
        if not f["graphdoc"].fault
    ]
    won = [b for b in best if b[1] <= b[2]]
    yield f"nodes: at most the best right neighbour's on {len(won)} of {len(every)} models"
    yield from (
        f"  more on {model}: {ours} against {theirs}" for model, ours, theirs in best if ours > theirs
    )
    for name in names:
        wrong = [model for model, f in every.items() if f[name].fault]
        yield f"{name}: {len(wrong)} without a right result" + (
            f" ({', '.join(wrong)[:150]})" if wrong else ""
        )
    for ours in ("graphdoc", "graphdoc verified"):
        for name in others:
            for what in ("seconds", "cpu", "megabytes"):
                pairs = [(getattr(f[ours], what), getattr(f[name], what)) for f in every.values()]
                logs = [math.log(a / b) for a, b in pairs if a and b]
                mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
                yield f"{ours} / {name}, {what}: geometric mean {mean:.2f}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--peers", default=sys.executable, help="a Python that has the neighbours")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds per model and tool")
    parser.add_argument("--json", dest="json_", help="write every figure")
    options = parser.parse_args()
    paths = [path for text in options.paths for path in _models(pathlib.Path(text))]
    commands = tools(options.peers)
    print(f"{'model':30}{'nodes':>6}  " + " |".join(f"{name:>28}" for name in commands), flush=True)
    every = {}
    for path in paths:
        every[path.stem] = measure(path, commands, options.limit)
        print(row(path, count(path), every[path.stem]), flush=True)
    print("\n".join(summary(every)))
    if options.json_:
        figures = {model: {n: asdict(o) for n, o in found.items()} for model, found in every.items()}
        pathlib.Path(options.json_).write_text(json.dumps(figures, indent=1))


def _models(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.glob("*.onnx")) if path.is_dir() else [path]


if __name__ == "__main__":
    main()
