"""Matrix products and convolutions against ONNX Runtime: chains of equal layers, in turns.

    python -m tests.bench.contraction [NAME…] [--threads 1 2] [--rounds 12]

A chain, so that what both sides do at the model's borders weighs little, and no layer finds its weights in a
near cache. Both sides have the same number of threads. A ratio is ONNX Runtime's shortest time over ours:
above 1, ours is faster. With one thread the processor time is taken, which other work disturbs less.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import helper

from tests.bench.rows import RNG, Case, case, distance, ours, random, theirs

LAYERS = 3


def convolution(channels: int, size: int, outputs: int, kernel: int, stride: int = 1) -> Case:
    """Return convolutions with bias and ReLU; of stride 1 and as many outputs as channels, a chain."""
    layers = LAYERS if stride == 1 and channels == outputs else 1
    nodes, weights = [], {}
    for k in range(layers):
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node("Conv", [f"x{k}", f"w{k}", f"b{k}"], [f"c{k}"], pads=pads, strides=[stride] * 2)
        )
        nodes.append(helper.make_node("Relu", [f"c{k}"], ["y" if k == layers - 1 else f"x{k + 1}"]))
        weights[f"w{k}"] = random(outputs, channels, kernel, kernel) * (2 / (channels * kernel**2)) ** 0.5
        weights[f"b{k}"] = random(outputs) * 0.1
    name = f"conv {kernel}x{kernel}{f'/{stride}' if stride > 1 else ''} {channels}>{outputs} @{size}"
    return case(name, nodes, {"x0": random(1, channels, size, size)}, weights)


def convolutions() -> Iterator[Case]:
    """Yield the layers of ResNet-50 and some wider ones."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7), (64, 112), (32, 32)):
        yield convolution(channels, size, channels, 3)
    yield convolution(3, 224, 64, 7, 2)
    yield convolution(128, 56, 128, 3, 2)
    for channels, size, outputs in (
        (64, 56, 64),
        (64, 56, 256),
        (256, 56, 64),
        (256, 14, 1024),
        (2048, 7, 512),
    ):
        yield convolution(channels, size, outputs, 1)


def product(m: int, n: int, k: int) -> Case:
    """Return a matrix product with bias, and its way back."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("MatMul", ["q", "v"], ["y"]),
    ]
    weights = {"w": random(k, n) / k**0.5, "b": random(n), "v": random(n, k) / n**0.5}
    return case(f"matmul {m}x{n}x{k} and back", nodes, {"x": random(m, k)}, weights)


def products() -> Iterator[Case]:
    """Yield the products of transformers and of a classifier's last layers."""
    for m, n, k in (
        (128, 768, 768),
        (384, 3072, 768),
        (128, 3072, 768),
        (48, 384, 384),
        (8, 1024, 1024),
        (1, 1024, 1024),
    ):
        yield product(m, n, k)


def codes() -> Iterator[Case]:
    """Yield products of 8-bit codes."""
    for m, n, k in ((128, 768, 768), (784, 128, 1152), (1, 1024, 1024)):
        w = RNG.integers(-64, 64, (k, n)).astype(np.int8)
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
            helper.make_node("Cast", ["i"], ["c"], to=1),
            helper.make_node("Mul", ["c", "s"], ["y"]),
        ]
        yield case(f"codes {m}x{n}x{k}", nodes, {"x": random(m, k)}, {"w": w})


CASES: dict[str, Callable[[], Iterator[Case]]] = {"conv": convolutions, "matmul": products, "codes": codes}


def race(rivals: Sequence[Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Return the shortest time of each in µs, in turns."""
    best = [float("inf")] * len(rivals)
    for _ in range(rounds):
        for k, call in enumerate(rivals):
            call()
            for _ in range(3):
                started = clock()
                call()
                best[k] = min(best[k], clock() - started)
    return [b * 1e6 for b in best]


def main() -> None:
    """Print one line per case and number of threads, and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    print(f"{'case':32} threads   ours µs    ORT µs  ratio  error")
    for name, cases in CASES.items():
        if given.names and name not in given.names:
            continue
        for threads in given.threads:
            clock = time.thread_time if threads == 1 else time.perf_counter
            ratios = []
            for one in cases():
                mine, found = ours(one, threads)
                yours = theirs(one, threads)
                error = distance(found, yours())
                a, b = race((mine, yours), given.rounds, clock)
                ratios.append(b / a)
                print(f"{one.name:32} {threads:7} {a:9.1f} {b:9.1f} {b / a:6.2f}  {error:.0e}", flush=True)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{name + ': geometric mean':32} {threads:7} {'':20}{mean:6.2f}", flush=True)


if __name__ == "__main__":
    main()
