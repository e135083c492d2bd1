"""Row kernels, attention, recurrent layers and trees against ONNX Runtime: one small model each, in turns.

    python tests/bench/rows.py [NAME…] [--threads 1 2] [--rounds 40]

Both sides have the same number of threads. A ratio is ONNX Runtime's shortest time over ours: above 1, ours
is faster. Ours is a call of the loaded program, theirs one of the session: each with its Python on top, about
3 µs and 6 µs. The error is the largest distance from ONNX Runtime's result, over the largest magnitude there.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from graphdoc.compare.latency import settle
from graphdoc.engine.coalesce import coalesce
from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.expr import F32, apply, const, load
from graphdoc.engine.fuse import fuse
from graphdoc.engine.kernels.attention import Attention
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, whole

RNG = np.random.default_rng(0)


class Case(NamedTuple):
    """A model and what it is fed."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]


def random(*shape: int) -> Any:
    """Return standard normal float32."""
    return RNG.standard_normal(shape).astype(np.float32)


def case(
    name: str,
    nodes: Sequence[Any],
    feeds: dict[str, Any],
    weights: dict[str, Any] | None = None,
    outputs: Sequence[str] = ("y",),
) -> Case:
    """Return a model of some nodes; outputs have whatever shape they have."""
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    ins = [helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in feeds.items()]
    outs = [
        helper.make_tensor_value_info(k, TensorProto.INT64 if k == "label" else TensorProto.FLOAT, None)
        for k in outputs
    ]
    stored = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", ins, outs, stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return Case(name, helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds)


def rows() -> Iterator[Case]:
    """Softmax, normalisations, pooling, reductions."""
    for shape in ((128, 768), (12, 384, 384), (1, 1000), (12, 128, 128)):
        yield case(
            f"softmax {shape}", [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": random(*shape)}
        )
    softmax_channels = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    yield case("softmax axis 1 of (1, 19, 64, 64)", [softmax_channels], {"x": random(1, 19, 64, 64)})
    for shape in ((128, 768), (196, 192)):
        node = helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"])
        yield case(
            f"layernorm {shape}",
            [node],
            {"x": random(*shape)},
            {"g": random(shape[1]), "b": random(shape[1])},
        )
    yield case("gelu (128, 3072)", [helper.make_node("Gelu", ["x"], ["y"])], {"x": random(128, 3072)})
    for axes in ([1], [0], [0, 1]):
        node = helper.make_node("ReduceMean", ["x", "axes"], ["y"])
        yield case(
            f"mean of (512, 768) over {axes}", [node], {"x": random(512, 768)}, {"axes": np.array(axes)}
        )
    for op, shape, more in (
        ("MaxPool", (1, 64, 112, 112), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("MaxPool", (1, 128, 28, 28), {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}),
        ("MaxPool", (1, 128, 20, 20), {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}),
        ("AveragePool", (1, 128, 28, 28), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("GlobalAveragePool", (1, 2048, 7, 7), {}),
    ):
        yield case(f"{op} {shape}", [helper.make_node(op, ["x"], ["y"], **more)], {"x": random(*shape)})


def depthwise() -> Iterator[Case]:
    """Chains of six depthwise convolutions with ReLU6, so that changes of layout at the ends weigh little."""
    for channels, size, kernel in (
        (32, 112, 3),
        (144, 56, 3),
        (192, 28, 3),
        (384, 14, 3),
        (960, 7, 3),
        (240, 28, 5),
    ):
        nodes, weights = [], {"lo": np.float32(0), "hi": np.float32(6)}
        for k in range(6):
            weights[f"w{k}"] = random(channels, 1, kernel, kernel) / np.float32(kernel)
            weights[f"b{k}"] = random(channels)
            pads = [kernel // 2] * 4
            nodes.append(
                helper.make_node("Conv", [f"x{k}", f"w{k}", f"b{k}"], [f"c{k}"], pads=pads, group=channels)
            )
            nodes.append(helper.make_node("Clip", [f"c{k}", "lo", "hi"], [f"x{k + 1}"]))
        feeds = {"x0": random(1, channels, size, size)}
        yield case(f"depthwise {kernel}x{kernel} {channels}@{size}, 6 layers", nodes, feeds, weights, ["x6"])


def attention() -> Iterator[Case]:
    """Attention of 12 heads of 64 with a mask, in the operators that exporters write."""
    for length in (128, 384):
        nodes = []
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes.append(helper.make_node("Reshape", [name, "split"], [name + "r"]))
            nodes.append(helper.make_node("Transpose", [name + "r"], [name + "t"], perm=order))
        nodes += [
            helper.make_node("MatMul", ["qt", "kt"], ["s"]),
            helper.make_node("Div", ["s", "eight"], ["sd"]),
            helper.make_node("Add", ["sd", "mask"], ["sm"]),
            helper.make_node("Softmax", ["sm"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "vt"], ["o"]),
            helper.make_node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["ot", "join"], ["y"]),
        ]
        feeds = {name: random(1, length, 768) for name in "qkv"}
        feeds["mask"] = np.where(RNG.random((1, 1, 1, length)) < 0.1, np.float32(-1e4), np.float32(0))
        weights = {
            "split": np.array([1, length, 12, 64]),
            "join": np.array([1, length, 768]),
            "eight": np.float32(8),
        }
        yield case(f"attention 12x{length}x64", nodes, feeds, weights)


def recurrent() -> Iterator[Case]:
    """LSTM and GRU, input size = hidden size, and an LSTM over a batch."""
    for op, steps, batch, hidden in (
        ("LSTM", 100, 1, 64),
        ("LSTM", 100, 1, 128),
        ("LSTM", 100, 1, 256),
        ("LSTM", 1, 1, 128),
        ("LSTM", 50, 16, 128),
        ("GRU", 100, 1, 128),
        ("GRU", 100, 1, 256),
    ):
        gates = 4 if op == "LSTM" else 3
        scale = np.float32(hidden**-0.5)
        weights = {
            "w": random(1, gates * hidden, hidden) * scale,
            "r": random(1, gates * hidden, hidden) * scale,
            "b": random(1, 2 * gates * hidden) * scale,
        }
        more = {"linear_before_reset": 1} if op == "GRU" else {}
        node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, **more)
        name = f"{op} {steps} steps, batch {batch}, hidden {hidden}"
        yield case(name, [node], {"x": random(steps, batch, hidden)}, weights)


def trees() -> Iterator[Case]:
    """100 full trees of depth 8 over 30 features, 3 classes: a few rows and many."""
    count, inner, nodes = 100, 255, 511
    ids = np.tile(np.arange(nodes), count)
    leaf = ids >= inner
    weights = RNG.random((count * 256, 3)).astype(np.float32) / 100
    chosen = {
        "nodes_treeids": np.repeat(np.arange(count), nodes),
        "nodes_nodeids": ids,
        "nodes_featureids": np.where(leaf, 0, RNG.integers(0, 30, len(ids))),
        "nodes_truenodeids": np.where(leaf, 0, 2 * ids + 1),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * ids + 2),
        "class_treeids": np.repeat(np.arange(count), 256 * 3),
        "class_nodeids": np.tile(np.repeat(np.arange(inner, nodes), 3), count),
        "class_ids": np.tile(np.arange(3), count * 256),
    }
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "y"],
        domain="ai.onnx.ml",
        nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_values=(random(len(ids)) * np.float32(0.7)).tolist(),
        class_weights=weights.reshape(-1).tolist(),
        classlabels_int64s=[0, 1, 2],
        **{key: value.tolist() for key, value in chosen.items()},
    )
    for rows_ in (1, 16, 1000):
        yield case(f"trees 100x8, {rows_} rows", [node], {"x": random(rows_, 30)}, {}, ["label", "y"])


def attention_program(one: Case) -> Program:
    """Return the program of one attention step for such a model."""
    length = one.feeds["q"].shape[1]
    buffers = {name: Buffer(name, F32, array.size, Kind.INPUT) for name, array in one.feeds.items()}
    out = Buffer("y", F32, length * 768, Kind.OUTPUT)
    heads = [
        View(buffer, (12, length, 64), (64, 768, 1)) for buffer in (*map(buffers.get, "qkv"), out) if buffer
    ]
    mask = View(buffers["mask"], (12, length, length), (0, 0, 1))
    score = apply("add", apply("div", load(-1, F32), const(8, F32)), load(3, F32))
    step = Step(Attention(1, score), (*heads[:3], mask), (heads[3],))
    ends = {name: whole(buffer, one.feeds[name].shape) for name, buffer in buffers.items()}
    return Program([step], ends, {"y": whole(out, (1, length, 768))})


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "rows": rows,
    "depthwise": depthwise,
    "attention": attention,
    "recurrent": recurrent,
    "trees": trees,
}


class Spy:
    """A device that notes the program it is given."""

    def __init__(self, inner: CpuDevice) -> None:
        self.inner, self.name = inner, inner.name
        self.loaded: list[tuple[Program, Any]] = []

    def load(self, program: Program) -> Any:
        """Load with the device inside."""
        self.loaded.append((program, self.inner.load(program)))
        return self.loaded[-1][1]


def ours(one: Case, threads: int) -> tuple[Callable[[], Any], list[Any]]:
    """Return a call of the loaded program, and its outputs in the model's order."""
    if one.name.startswith("attention"):
        program = attention_program(one)
        loaded = CpuDevice(threads).load(program)
        inputs = [one.feeds[name] for name in program.inputs]
        return lambda: loaded.run(inputs), loaded.run(inputs)
    spy = Spy(CpuDevice(threads))
    compiled = Compiled(ir.serde.deserialize_model(one.model), device=spy, passes=(fuse, coalesce))
    found = list(compiled.run(one.feeds).values())
    if len(spy.loaded) != 1:
        return lambda: compiled.run(one.feeds), found
    program, loaded = spy.loaded[0]
    inputs = [one.feeds[name] for name in program.inputs]
    return lambda: loaded.run(inputs), found


def theirs(one: Case, threads: int) -> Callable[[], Any]:
    """Return a call of ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(one.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, one.feeds)


def race(rivals: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the shortest time of each in µs, in turns."""
    best = [float("inf")] * len(rivals)
    for _ in range(rounds):
        for k, call in enumerate(rivals):
            settle()
            call()
            for _ in range(4):
                started = time.perf_counter()
                call()
                best[k] = min(best[k], time.perf_counter() - started)
    return [b * 1e6 for b in best]


def distance(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest distance over the largest magnitude, over all outputs."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / max(1e-30, np.abs(b).max()))
        for a, b in zip(found, wanted, strict=True)
    )


def main() -> None:
    """Print one line per case and number of threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    print(f"{'case':44} threads   ours µs    ORT µs  ratio  error")
    for name, cases in CASES.items():
        for one in cases():
            if given.names and not any(n in (name, *one.name.split()) for n in given.names):
                continue
            for threads in given.threads:
                mine, found = ours(one, threads)
                yours = theirs(one, threads)
                error = distance(found, yours())
                a, b = race((mine, yours), given.rounds)
                print(f"{one.name:44} {threads:7} {a:9.1f} {b:9.1f} {b / a:6.2f}  {error:.0e}", flush=True)


if __name__ == "__main__":
    main()
