"""How well reverse passes rank layers: fp16 and int8 versions of models against brute force.

    python tests/bench/ranking.py MODEL.onnx … [--passes N] [--brute SECONDS]

Versions of each model are made: ``fp16``, all in float16; ``cast16``, weights and each layer's result
rounded to float16 and kept in float32; ``int8``, the weights of convolutions and products, and what these
read, quantised to 8 bits. Printed: the rank correlation (Spearman) between the effects that reverse passes
tell and those of brute force (each layer's own error alone put into the float32 model, and all that follows
run again in float64), the predicted error of the outputs (√Σ over layers) against the measured one, and the
seconds of both ways. Inputs: MODEL.npz beside the model where there is one, else seeded.
"""

import argparse
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphdoc import make_inputs
from graphdoc.compare import ranking
from graphdoc.compare.engine_runner import open_engine
from graphdoc.compare.findings import measure_all
from graphdoc.compare.runner import RunnerOptions
from graphdoc.compare.target import Target
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.vjp import Tape
from graphdoc.surgeon.model import open_source

HALF_MAX = 65504.0
PRODUCTS = {"Conv", "MatMul", "Gemm", "ConvTranspose"}
Values = Mapping[str, Any]


# ---- versions of lower precision -----------------------------------------------------------------------


def true_half(proto: onnx.ModelProto, values: Values) -> onnx.ModelProto:
    """Return a copy whose floats are float16, inputs aside; scales of Resize stay."""
    model = _copy(proto)
    graph = model.graph
    kept = {name for node in graph.node if node.op_type == "Resize" for name in node.input[1:3]}
    tensors = [t for t in graph.initializer if t.name not in kept]
    tensors += [a.t for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in (t for t in tensors if t.data_type == TensorProto.FLOAT):
        array = np.clip(numpy_helper.to_array(tensor), -HALF_MAX, HALF_MAX).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for attribute in (a for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.i == 1):
        attribute.i = TensorProto.FLOAT16
    del graph.value_info[:]
    for output in graph.output:
        if output.type.tensor_type.elem_type == TensorProto.FLOAT:
            output.type.tensor_type.elem_type = TensorProto.FLOAT16
    return _with_nodes(model, [*_input_casts(graph), *graph.node])


def _input_casts(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    weights = {tensor.name for tensor in graph.initializer}
    names = {
        v.name: f"{v.name}·half"
        for v in graph.input
        if v.name not in weights and v.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    return [helper.make_node("Cast", [a], [b], to=TensorProto.FLOAT16) for a, b in names.items()]


def half(proto: onnx.ModelProto, values: Values) -> onnx.ModelProto:
    """Return a copy in which weights and results are rounded to float16 and back, where they fit it."""
    model = _copy(proto)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            if np.abs(array).max(initial=0) <= HALF_MAX:
                _store(tensor, array.astype(np.float16).astype(np.float32))
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            value = values.get(name)
            if node.op_type != "Constant" and _is_float32(value) and np.abs(value).max(initial=0) < HALF_MAX:
                node.output[place] = f"{name}·raw"
                nodes.append(
                    helper.make_node("Cast", [f"{name}·raw"], [f"{name}·half"], to=TensorProto.FLOAT16)
                )
                nodes.append(helper.make_node("Cast", [f"{name}·half"], [name], to=TensorProto.FLOAT))
    return _with_nodes(model, nodes)


def int8(proto: onnx.ModelProto, values: Values) -> onnx.ModelProto:
    """Return a copy in which products and convolutions read 8-bit weights and 8-bit data."""
    model = _copy(proto)
    weights = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    made: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        if node.op_type in PRODUCTS:
            for place, name in enumerate(node.input[:2]):
                if name in weights:
                    _quantise(weights.pop(name), node)
                elif _is_float32(values.get(name)):
                    if name not in made:
                        made[name] = f"{name}·dq"
                        nodes += _pair(name, values[name], model)
                    node.input[place] = made[name]
        nodes.append(node)
    return _with_nodes(model, nodes)


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    return model


def _is_float32(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32


def _store(tensor: onnx.TensorProto, array: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), tensor.name))


def _with_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]
    return model


def _quantise(tensor: onnx.TensorProto, node: onnx.NodeProto) -> None:
    """Round weights to 255 levels per output channel."""
    array = numpy_helper.to_array(tensor)
    channel = {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, array.ndim - 1)
    if any(a.name == "transB" and a.i for a in node.attribute):
        channel = 0
    axes = tuple(a for a in range(array.ndim) if a != channel)
    scale = np.abs(array).max(axis=axes, keepdims=True) / 127 if array.ndim > 1 else np.abs(array).max() / 127
    scale = np.where(scale == 0, 1, scale)
    _store(tensor, np.rint(array / scale) * scale)


def _pair(name: str, value: Any, model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the two nodes that quantise a value and bring it back, with the range that it has here."""
    low, high = min(0.0, float(value.min(initial=0))), max(0.0, float(value.max(initial=0)))
    scale = np.float32((high - low) / 255 or 1.0)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    for suffix, array in (("s", scale), ("z", zero)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"{name}·{suffix}"))
    tail = [f"{name}·s", f"{name}·z"]
    return [
        helper.make_node("QuantizeLinear", [name, *tail], [f"{name}·q"]),
        helper.make_node("DequantizeLinear", [f"{name}·q", *tail], [f"{name}·dq"]),
    ]


# ---- both ways -----------------------------------------------------------------------------------------


def own_errors(ref: Target, test: Target, feeds: Values) -> tuple[ranking.OwnErrors, dict[str, float]]:
    """Return the own errors of B's layers and the relative error of each output, as a comparison does."""
    a, b = (open_engine(target, RunnerOptions()) for target in (ref, test))
    shared = {p.key for p in test.points}
    points = [p for p in ref.points if p.key in shared]
    errors = ranking.OwnErrors(8 << 30)
    found = measure_all(
        a, b, (feeds, feeds), points, ref.outputs, dict(ref.constants), budget=8 << 30, tolerance=None,
        feeding=test.feeding({p.key for p in points}), collect=errors.note,
    ).findings  # fmt: skip
    return errors, {f.point.key: f.metrics.error for f in found if f.point.is_output and f.metrics}


def spearman(a: list[float], b: list[float]) -> float:
    """Return the rank correlation of two rows."""
    ranks = [np.argsort(np.argsort(row)).astype(float) for row in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1]) if len(a) > 2 else float("nan")


def measure(path: pathlib.Path, kind: str, passes: list[int], seconds: float) -> str:
    """Return one line of figures."""
    ref = Target(open_source(str(path)))
    side = path.with_suffix(".npz")
    feeds = dict(np.load(side, allow_pickle=True)) if side.exists() else make_inputs(str(path)).feeds
    interpreter = Interpreter(ref.model)
    plain = Tape(interpreter, feeds, changing=())
    if kind == "int8" and max(o.version for o in ref.proto.opset_import if o.domain in ("", "ai.onnx")) < 10:
        return f"{path.stem[:28]:28} int8: its opset has no QuantizeLinear"
    make = {"fp16": true_half, "cast16": half, "int8": int8}[kind]
    test = Target(open_source(make(ref.proto, {**feeds, **plain.values()})))
    errors, outputs = own_errors(ref, test, feeds)
    tape = Tape(interpreter, feeds, changing=errors.found)
    scales = ranking.scales_of(tape.outputs, outputs)
    if not scales or not any(outputs[n] for n in scales):
        return f"{path.stem[:28]:28} {kind}: nothing of it was converted"
    injection = ranking.Injection(ref, feeds, scales, exact=True)
    found, spent = {}, {}
    for count in passes:
        started = time.process_time()
        found[count] = ranking.reverse(tape, errors, scales, count, 0)
        spent[count] = time.process_time() - started
    products, _, cut = found[passes[-1]]
    order = [k for k in errors.found if k in products and k not in cut and k in injection.main]
    started, brute = time.process_time(), {}
    for key in np.random.default_rng(0).permutation(order):
        if time.process_time() - started > seconds:
            break
        brute[key] = injection.effect(key, errors)
    spent_brute = (time.process_time() - started) / max(1, len(brute)) * len(order)
    measured = float(np.sqrt(np.mean([outputs[n] ** 2 for n in scales])))
    cells = [f"{path.stem[:28]:28} {kind} {len(order):4} layers {len(cut):3} cut"]
    for count in passes:
        effects = {k: float(np.sqrt(np.mean(p * p))) for k, p in found[count][0].items() if k not in cut}
        keys = [k for k in brute if k in effects]
        rho = spearman([effects[k] for k in keys], [brute[k] for k in keys])
        new = ranking.added(ref, errors, *found[count]).values()
        root = float(np.sqrt(sum(np.mean(p * p) for p in new)))
        together = float(np.sqrt(np.mean(sum(new) ** 2)))
        cells.append(
            f"| {count:2} passes {spent[count]:5.1f} s rho {rho:.3f} √Σ/measured {root / measured:5.2f}"
            f" together {together / measured:5.2f}"
        )
    brute_root = float(np.sqrt(sum(e * e for e in brute.values()) * len(order) / max(1, len(brute))))
    cells.append(
        f"| brute {spent_brute:6.1f} s ({len(brute)} run) √Σ/measured {brute_root / measured:5.2f}"
        f" measured {measured:.2e} {tape.missing or ''}"
    )
    return " ".join(cells)


def main() -> None:
    """Print a line per model and version."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--passes", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--brute", type=float, default=60.0, help="seconds of brute force per version")
    parser.add_argument("--kinds", nargs="+", default=["fp16", "int8"])
    options = parser.parse_args()
    for path in options.models:
        for kind in options.kinds:
            print(measure(path, kind, options.passes, options.brute), flush=True)


if __name__ == "__main__":
    main()
