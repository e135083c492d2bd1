"""Element-wise kernels against ONNX Runtime: one operator each, one thread, in turns.

    python tests/bench/maps.py [NAME…] [--elements 65536 1000000] [--rounds 20]

Ours is a call of each step's machine code, theirs a run with inputs and outputs bound beforehand: neither
allocates, and 0.5 µs of ctypes stand against 3 µs of theirs. A ratio is ONNX Runtime's shortest time over
ours: above 1, ours is faster.
"""

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from graphdoc.engine.coalesce import coalesce
from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.device.llvm.compiler import compile_kernel, host_target
from graphdoc.engine.device.llvm.emit import emit
from graphdoc.engine.fuse import fuse
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.program import Kind, Program

RNG = np.random.default_rng(0)
KINDS = {np.dtype(helper.tensor_dtype_to_np_dtype(c)): c for c in (1, 2, 3, 6, 7, 9, 10, 11)}


class Case(NamedTuple):
    """Nodes from x (and further inputs) to y, and what they are fed."""

    name: str
    nodes: Sequence[Any]
    feeds: dict[str, Any]
    weights: dict[str, Any]
    out: int = TensorProto.FLOAT


def one(op: str, *more: Any, name: str = "", out: int = 1, weights: Any = None, **attributes: Any) -> Any:
    """Return what makes a case of one node, given the number of elements; more: shapes of further inputs."""

    def made(size: int) -> Case:
        feeds = {"x": RNG.standard_normal(size).astype(np.float32)}
        for k, make in enumerate(more):
            feeds[f"x{k + 1}"] = make(size)
        node = helper.make_node(op, [*feeds, *(weights or {})], ["y"], **attributes)
        return Case(name or op, [node], feeds, weights or {}, out)

    return made


def like(size: int) -> Any:
    """Return another input of as many elements."""
    return RNG.standard_normal(size).astype(np.float32)


def shaped(op: str, name: str, shape: Callable[[int], tuple[int, ...]], *more: Any, **attributes: Any) -> Any:
    """Return what makes a case over a tensor of some shape; more: shapes of further inputs."""

    def made(size: int) -> Case:
        feeds = {"x": RNG.standard_normal(shape(size)).astype(np.float32)}
        for k, other in enumerate(more):
            feeds[f"x{k + 1}"] = RNG.standard_normal(other(size)).astype(np.float32)
        return Case(name, [helper.make_node(op, [*feeds], ["y"], **attributes)], feeds, {})

    return made


def silu(size: int) -> Case:
    """Return x · sigmoid(x) + r: what fusion makes one step of."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["m"]),
        helper.make_node("Add", ["m", "x1"], ["y"]),
    ]
    return Case("x·sigmoid(x)+r", nodes, {"x": like(size), "x1": like(size)}, {})


def gelu(size: int) -> Case:
    """Return the five nodes of GELU."""
    weights = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["y"]),
    ]
    return Case("GELU of 5 nodes", nodes, {"x": like(size)}, weights)


_CODES = {"scale": np.float32(0.02), "zero": np.uint8(128)}


def dequantize(size: int) -> Case:
    """Return uint8 codes as floats."""
    node = helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["y"])
    return Case("DequantizeLinear", [node], {"x": RNG.integers(0, 256, size).astype(np.uint8)}, _CODES)


def where(size: int) -> Case:
    """Return a choice by a mask."""
    feeds = {"x": RNG.integers(0, 2, size).astype(bool), "x1": like(size), "x2": like(size)}
    return Case("Where", [helper.make_node("Where", [*feeds], ["y"])], feeds, {})


def halves(size: int) -> Case:
    """Return a sum of float16."""
    feeds = {k: like(size).astype(np.float16) for k in ("x", "x1")}
    return Case("Add float16", [helper.make_node("Add", [*feeds], ["y"])], feeds, {}, TensorProto.FLOAT16)


def _square(size: int) -> tuple[int, ...]:
    return int(size**0.5) // 64, 64, int(size**0.5)


CASES: tuple[Callable[[int], Case], ...] = (
    one("Add", like),
    one("Mul", like),
    one("Div", like),
    one("Max", like),
    one("Relu"),
    one("LeakyRelu"),
    one("HardSwish"),
    one("Sqrt"),
    one("Exp"),
    one("Log"),
    one("Tanh"),
    one("Sigmoid"),
    one("Erf"),
    one("Softplus"),
    one("Elu"),
    one("Sin"),
    one("Cos"),
    one("Floor"),
    one("Pow", like),
    one("Pow", weights={"e": np.float32(2)}, name="Pow 2"),
    one("Less", like, out=TensorProto.BOOL),
    one("Cast", to=TensorProto.INT32, out=TensorProto.INT32, name="Cast int32"),
    one("Cast", to=TensorProto.FLOAT16, out=TensorProto.FLOAT16, name="Cast float16"),
    one("QuantizeLinear", weights=_CODES, out=TensorProto.UINT8),
    dequantize,
    where,
    halves,
    silu,
    gelu,
    shaped("Add", "Add a row", lambda n: (n // 64, 64), lambda n: (64,)),
    shaped("Add", "Add a column", lambda n: (n // 64, 64), lambda n: (n // 64, 1)),
    shaped("Transpose", "Transpose 2-D", lambda n: (n // 256, 256), perm=[1, 0]),
    shaped("Transpose", "Transpose 0 2 3 1", lambda n: (1, 64, n // 64 // 16, 16), perm=[0, 2, 3, 1]),
    shaped("Transpose", "Transpose of 3 channels", lambda n: (1, 3, n // 64, 21), perm=[0, 2, 3, 1]),
    shaped("Transpose", "Transpose 0 2 1 3", lambda n: (1, n // 768, 12, 64), perm=[0, 2, 1, 3]),
)


def model_of(case: Case) -> onnx.ModelProto:
    """Return a model of the case's nodes."""
    ins = [helper.make_tensor_value_info(k, KINDS[v.dtype], v.shape) for k, v in case.feeds.items()]
    outs = [helper.make_tensor_value_info("y", case.out, None)]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in case.weights.items()]
    graph = helper.make_graph(list(case.nodes), "g", ins, outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


class Spy:
    """A device that notes the program it is given."""

    name = "spy"

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def load(self, program: Program) -> Any:
        """Load with the device for this processor."""
        self.programs.append(program)
        return CpuDevice(1).load(program)


def ours(case: Case) -> tuple[Callable[[], None], Callable[[], Any], int] | None:
    """Return a call of all kernels of the program, its output, and how many steps there are.

    None: some of it runs on the host.
    """
    spy = Spy()
    Compiled(ir.serde.deserialize_model(model_of(case)), device=spy, passes=(fuse, coalesce)).run(case.feeds)
    if len(spy.programs) != 1:
        return None
    (program,) = spy.programs
    memory = {}
    for buffer in program.buffers():
        raw = np.zeros(buffer.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        memory[buffer] = raw[start : start + buffer.nbytes].view(buffer.dtype)
        if buffer.kind is Kind.CONSTANT:
            memory[buffer][...] = buffer.data
    for name, view in program.inputs.items():
        view.array(memory[view.buffer])[...] = case.feeds[name]
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    calls, kept = [], []
    for step in program.steps:
        kernel = emit(step, host_target())
        if kernel is None:
            return None
        views = (*step.inputs, *step.outputs)
        places = [memory[v.buffer].ctypes.data + v.offset * v.dtype.itemsize for v in views]
        args = np.array([*places, 0, 0], np.uint64)
        dims = np.array(kernel.dims or (0,), np.int64)
        kept += [args, dims]
        calls.append((kind(compile_kernel(kernel, host_target())), args.ctypes.data, dims.ctypes.data))

    def call() -> None:
        for function, args, dims in calls:
            function(args, dims, 0, 1)

    def output() -> Any:
        del kept[:0]
        view = program.outputs["y"]
        return view.array(memory[view.buffer])

    return call, output, len(calls)


def theirs(case: Case) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Return a run of ONNX Runtime with everything bound, and its output."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model_of(case).SerializeToString(), options, ["CPUExecutionProvider"])
    first = session.run(None, case.feeds)[0]
    values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in case.feeds.items()}
    result = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(first))
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", result)
    return lambda: session.run_with_iobinding(binding), lambda: first


def race(rivals: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the shortest time of each in seconds, in turns."""
    best = [float("inf")] * len(rivals)
    for _ in range(rounds):
        for k, call in enumerate(rivals):
            call()
            for _ in range(6):
                started = time.perf_counter()
                call()
                best[k] = min(best[k], time.perf_counter() - started)
    return best


def rows(given: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'operator':26} elements steps  ours ns/el   ORT ns/el  ratio  error"
    for make in CASES:
        for size in given.elements:
            case = make(size)
            if given.names and not any(n.lower() in case.name.lower() for n in given.names):
                continue
            found = ours(case)
            if found is None:
                yield f"{case.name:26} {size:8} on the host"
                continue
            mine, output, steps = found
            yours, wanted = theirs(case)
            a, b = race((mine, yours), given.rounds)
            want = wanted()
            with np.errstate(all="ignore"):
                off = np.abs(output().astype(np.float64) - want)
                error = np.nanmax(off / np.maximum(np.abs(want), 1e-3))
            nano = 1e9 / want.size
            times = f"{a * nano:11.3f} {b * nano:11.3f} {b / a:6.2f}"
            yield f"{case.name:26} {size:8} {steps:5} {times}  {error:.0e}"


def main() -> None:
    """Print one line per case and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--elements", type=int, nargs="+", default=[65536, 1_000_000])
    parser.add_argument("--rounds", type=int, default=20)
    for line in rows(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
