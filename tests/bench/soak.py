"""Ten thousand runs with changing shapes: memory stays where it was, and results stay right.

    python tests/bench/soak.py [MODEL…] [--runs 10000] [--shapes 12] [--threads 1] [--mode turns]

Modes: ``turns``, one thread takes the models in turns; ``apart``, two threads with sessions of their own at
once; ``shared``, two threads with the same sessions. Each model runs at its own shapes, chosen by chance;
small models of the script's own stand in where none is named (convolutions, attention, an LSTM, one with
shapes that follow from contents). Every result is held against level 0; those of a shape must have the same
bits each time, but for the run of a late shape that level 1 leaves to level 0. Prints resident memory as it
goes. The exit code is 1 when a result differs, or memory grows by more than ``--grow`` MiB in the last half.
"""

import argparse
import pathlib
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from graphdoc.compare.inputs import make_inputs
from graphdoc.session import Session
from graphdoc.surgeon.model import open_source

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
MODELS = {
    "convolutions": """(float[N,3,H,W] x) => (float[N,16,H2,W2] y)
        <float[16,3,3,3] w, float[16,16,3,3] v, float[16] b>
        { a = Conv <pads = [1,1,1,1]> (x, w, b) r = Relu (a)
          c = Conv <pads = [1,1,1,1], strides = [2,2]> (r, v) y = Sigmoid (c) }""",
    "attention": """(float[N,S,32] x) => (float[N,S,32] y)
        <float[32,32] q, float[32,32] k, float[32,32] v, float s = {0.1767767}>
        { a = MatMul (x, q) b = MatMul (x, k) c = MatMul (x, v) t = Transpose <perm = [0,2,1]> (b)
          m = MatMul (a, t) n = Mul (m, s) p = Softmax <axis = -1> (n) o = MatMul (p, c) y = Add (o, x) }""",
    "recurrent": """(float[S,N,8] x) => (float[S,D,N,16] y)
        <float[1,64,8] w, float[1,64,16] r> { y = LSTM <hidden_size = 16> (x, w, r) }""",
    "contents": """(float[N,W] x) => (int64[2,M] y, float[N,W] z)
        <float[1] l = {0.5}> { g = Greater (x, l) y = NonZero (g) e = Exp (x) z = Tanh (e) }""",
}
SIZES = {"N": (1, 4), "H": (8, 40), "W": (8, 40), "S": (1, 60)}


@dataclass
class Case:
    """A model, its inputs by shape, what level 0 makes of each, and the bits that level 1 gave so far."""

    name: str
    model: Any
    feeds: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    seen: list[set[bytes]]


def own(shapes: int) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Yield the script's models with inputs of several shapes."""
    rng = np.random.default_rng(0)
    for name, text in MODELS.items():
        proto = onnx.parser.parse_model(f"{HEADER} g {text}")
        for weight in list(proto.graph.value_info):
            shape = [d.dim_value for d in weight.type.tensor_type.shape.dim]
            array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, weight.name))
        del proto.graph.value_info[:]
        dims = [d.dim_param or d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
        rows = []
        for _ in range(shapes):
            shape = [d if isinstance(d, int) else int(rng.integers(*SIZES[d])) for d in dims]
            rows.append({"x": rng.standard_normal(shape).astype(np.float32)})
        yield name, proto, rows


def cases(paths: list[pathlib.Path], shapes: int) -> list[Case]:
    """Return the models to run, with what level 0 makes of their inputs."""
    given = [
        (p.stem, str(p), [dict(make_inputs(open_source(str(p)).model, seed=s).feeds) for s in range(3)])
        for p in paths
    ]
    found = []
    for name, model, rows in given or own(shapes):
        below = Session(model)
        expected = [below.run(row) for row in rows]
        found.append(Case(name, model, rows, expected, [set() for _ in rows]))
    return found


def near(got: Any, want: Any) -> bool:
    """Whether an output agrees up to rounding; others than floats exactly."""
    if not isinstance(want, np.ndarray) or want.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0)) or 1.0
    close = got.shape == want.shape and np.allclose(got, want, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)
    return bool(close)


def complaint(case: Case, number: int, found: dict[str, Any]) -> str:
    """Return what is wrong with a result, empty: nothing. Two sets of bits per shape: of both levels."""
    for name, value in case.expected[number].items():
        if not near(found[name], value):
            return f"{case.name}, shape {number}: '{name}' is not what level 0 gives"
    bits = b"".join(v.tobytes() for v in found.values() if isinstance(v, np.ndarray))
    case.seen[number].add(bits)
    if len(case.seen[number]) > 2:
        return f"{case.name}, shape {number}: bits change from run to run"
    return ""


def resident() -> float:
    """Return MiB of resident memory."""
    with pathlib.Path("/proc/self/statm").open(encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def work(
    sessions: list[Any], found: list[Case], runs: int, seed: int, faults: list[str], sizes: list[float] | None
) -> None:
    """Run models and shapes by chance; note what is wrong, and memory a hundred times."""
    order = random.Random(seed)  # noqa: S311 (an order of runs, no secret)
    for turn in range(runs):
        at = order.randrange(len(found))
        case = found[at]
        number = order.randrange(len(case.feeds))
        wrong = complaint(case, number, sessions[at].run(case.feeds[number]))
        if wrong:
            faults.append(wrong)
            return
        if sizes is not None and turn % max(1, runs // 100) == 0:
            sizes.append(resident())


def opened(found: list[Case], threads: int) -> list[Any]:
    """Return a session per model."""
    return [Session(case.model, level=1, threads=threads) for case in found]


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=("turns", "apart", "shared"), default="turns")
    parser.add_argument("--grow", type=float, default=4.0, metavar="MIB")
    asked = parser.parse_args()
    found = cases(asked.models, asked.shapes)
    faults: list[str] = []
    sizes: list[float] = []
    started = time.perf_counter()
    count = 1 if asked.mode == "turns" else 2
    shared = opened(found, asked.threads)
    workers = []
    for k in range(count):
        sessions = shared if asked.mode == "shared" or k == 0 else opened(found, asked.threads)
        arguments = (sessions, found, asked.runs // count, k, faults, sizes if k == 0 else None)
        workers.append(threading.Thread(target=work, args=arguments))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    half = sizes[len(sizes) // 2 :]
    grown = max(half, default=0.0) - half[0] if half else 0.0
    marks = " ".join(f"{size:.0f}" for size in sizes[:: max(1, len(sizes) // 10)])
    print(f"{asked.mode}: {asked.runs} runs of {len(found)} models, {time.perf_counter() - started:.0f} s")
    print(f"resident MiB {marks}; in the last half it grew by {grown:.1f}")
    print("\n".join(dict.fromkeys(faults)) or "every result right")
    return 1 if faults or grown > asked.grow else 0


if __name__ == "__main__":
    sys.exit(main())
