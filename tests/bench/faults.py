"""Planted faults: is the guilty node named first, and is nothing said where nothing is wrong?

    python tests/bench/faults.py MODEL.onnx … [--seeds 0:200] [--clean 100] [--inputs DIR] [--list]

A seed plants one fault of a random kind (KINDS) into a random node of one of the models; the comparison of
the sound model with the faulted one on ONNX Runtime must name that node first (for a weight that several
nodes read: one of them). Not counted, and said: models that no longer run, and faults that move the node's
own result by less than what its dtype rounds away, measured by the engine without the comparison. Sound
models are compared with themselves, ONNX Runtime against the engine, on other inputs and with other numbers
of threads each time.
Inputs: NAME.npz in DIR where there is one, else seeded.
"""

import argparse
import functools
import math
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from graphdoc import compare_models, make_inputs
from graphdoc.compare.limits import own_limit
from graphdoc.compare.metrics import MismatchError, distance, ratio
from graphdoc.compare.target import Target
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.scope import MAIN, enter, qualified
from graphdoc.surgeon.model import open_source

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Place:
    """A node, the graph it stands in, and the scope of that graph."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    scope: str

    @property
    def keys(self) -> list[str]:
        """Tap names of what the node computes."""
        return [qualified(self.scope, name) for name in self.node.output if name]


@dataclass(frozen=True, slots=True)
class Fault:
    """What was planted: the kind, in words, and the tap names of the nodes that may be named for it."""

    kind: str
    text: str
    guilty: tuple[str, ...]


@dataclass(slots=True)
class Scene:
    """A model to plant in: its places, opset, and the dtypes and sizes of what it computes."""

    proto: onnx.ModelProto
    values: dict[str, Any]

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return max((o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")), default=1)

    def places(self) -> list[Place]:
        """Return the nodes that ran, those of subgraphs included."""
        found = [p for p in _places(self.proto.graph, MAIN) if p.node.op_type != "Constant"]
        return [p for p in found if any(key in self.values for key in p.keys)]

    def is_float(self, place: Place) -> bool:
        """Whether the node's first output is a float tensor with something in it."""
        value = _last(self.values.get(place.keys[0])) if place.keys else None
        return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size > 0


def _last(value: Any) -> Any:
    return value[-1] if isinstance(value, list) and value else value


def _places(graph: onnx.GraphProto, scope: str) -> Iterator[Place]:
    for node in graph.node:
        yield Place(node, graph, scope)
        first = next((name for name in node.output if name), "")
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _places(attribute.g, enter(scope, first, attribute.name))


# ---- kinds of faults -----------------------------------------------------------------------------------


def weights(scene: Scene, rng: Rng) -> Fault | None:
    """Change a float weight: scaled, one element, a channel left out, two channels swapped."""
    return _change_weight(scene, rng, "weights", WEIGHT_CHANGES)


def nan(scene: Scene, rng: Rng) -> Fault | None:
    """Put NaN or infinity into a weight."""
    return _change_weight(scene, rng, "nan", {"NaN": _put(np.nan), "infinity": _put(np.inf)})


def _scaled(array: Any, rng: Rng) -> Any:
    return array * np.float32(rng.choice([0.9, 0.99, 1.001, 1.01, 2.0, -1.0]))


def _one_element(array: Any, rng: Rng) -> Any:
    array.reshape(-1)[rng.integers(array.size)] += np.float32(rng.choice([0.1, 1.0, 10.0]))
    return array


def _channel_lost(array: Any, rng: Rng) -> Any:
    if array.ndim:
        array[rng.integers(array.shape[0])] = 0
    return array


def _channels_swapped(array: Any, rng: Rng) -> Any:
    return np.roll(array, 1, 0) if array.ndim and array.shape[0] > 1 else array * 2


def _put(number: float) -> Callable[[Any, Rng], Any]:
    def change(array: Any, rng: Rng) -> Any:
        array.reshape(-1)[rng.integers(array.size)] = number
        return array

    return change


WEIGHT_CHANGES = {
    "scaled": _scaled,
    "one element": _one_element,
    "a channel left out": _channel_lost,
    "channels rolled": _channels_swapped,
}


def _change_weight(
    scene: Scene, rng: Rng, kind: str, changes: dict[str, Callable[[Any, Rng], Any]]
) -> Fault | None:
    tensors = list(_weights(scene))
    if not tensors:
        return None
    tensor, guilty = tensors[rng.integers(len(tensors))]
    word = str(rng.choice(sorted(changes)))
    array = np.array(numpy_helper.to_array(tensor))
    changed = changes[word](array, rng)
    tensor.CopyFrom(
        numpy_helper.from_array(np.ascontiguousarray(changed, np.float32).reshape(tensor.dims), tensor.name)
    )
    return Fault(kind, f"{tensor.name or guilty[0]} {word}", guilty)


def _weights(scene: Scene) -> Iterator[tuple[onnx.TensorProto, tuple[str, ...]]]:
    """Yield float weights and the tap names of all nodes that read them."""
    readers: dict[str, list[str]] = {}
    for place in scene.places():
        for name in place.node.input:
            readers.setdefault(name, []).extend(place.keys)
    graphs = {id(place.graph): place.graph for place in _places(scene.proto.graph, MAIN)}
    for graph in graphs.values():
        held = {t.name: t for t in graph.initializer}
        held |= {
            n.output[0]: a.t
            for n in graph.node
            if n.op_type == "Constant"
            for a in n.attribute
            if a.name == "value"
        }
        for name, tensor in held.items():
            if tensor.data_type == TensorProto.FLOAT and math.prod(tensor.dims) and name in readers:
                yield tensor, tuple(readers[name])


def axes(scene: Scene, rng: Rng) -> Fault | None:
    """Let an operator work along another axis, or with other windows."""
    return _change_attribute(scene, rng, "axes", AXES)


def epsilon(scene: Scene, rng: Rng) -> Fault | None:
    """Change the epsilon or the slope of an operator."""
    return _change_attribute(scene, rng, "epsilon", EPSILONS)


def _other_axis(value: int, rng: Rng) -> int:
    return int(rng.choice([a for a in (-2, -1, 0, 1, 2) if a != value]))


def _other_axes(value: Sequence[int], rng: Rng) -> list[int]:
    return [_other_axis(value[0], rng), *value[1:]]


def _swapped(value: Sequence[int], rng: Rng) -> list[int]:
    row = list(value)
    i, j = rng.choice(len(row), 2, replace=False) if len(row) > 1 else (0, 0)
    row[i], row[j] = row[j], row[i]
    return row


def _shifted_pads(value: Sequence[int], rng: Rng) -> list[int]:
    half = len(value) // 2
    return [*(v + 1 for v in value[:half]), *(max(v - 1, 0) for v in value[half:])]


def _flipped(value: int, rng: Rng) -> int:
    return 1 - value


def _far(value: float, rng: Rng) -> float:
    return float(value * rng.choice([0.0, 10.0, 1000.0]))


AXES: dict[str, Any] = {
    "axis": _other_axis,
    "axes": _other_axes,
    "perm": _swapped,
    "pads": _shifted_pads,
    "dilations": lambda value, rng: [v + 1 for v in value],
    "count_include_pad": _flipped,
    "exclude_outside": _flipped,
    "linear_before_reset": _flipped,
    "transB": _flipped,
    "largest": _flipped,
    "group": lambda value, rng: 1 if value > 1 else 2,
}
"""Attribute → what it becomes."""

EPSILONS: dict[str, Any] = {
    "epsilon": _far,
    "alpha": _far,
    "beta": _far,
    "gamma": _far,
    "cubic_coeff_a": _far,
}


def _change_attribute(scene: Scene, rng: Rng, kind: str, table: dict[str, Any]) -> Fault | None:
    spots = [(p, a) for p in scene.places() for a in p.node.attribute if a.name in table]
    if not spots:
        return None
    place, attribute = spots[rng.integers(len(spots))]
    before = helper.get_attribute_value(attribute)
    after = table[attribute.name](before, rng)
    attribute.CopyFrom(helper.make_attribute(attribute.name, after))
    return Fault(kind, f"{place.node.op_type} {attribute.name} {before} → {after}", tuple(place.keys))


_SWAPS = """
Add Sub Mul; Sub Add; Mul Add Div; Div Mul; Relu Abs Sigmoid; Sigmoid HardSigmoid Tanh; HardSigmoid
Sigmoid; Tanh Softsign Erf; Erf Tanh; Max Min; Min Max; MaxPool AveragePool; AveragePool MaxPool;
GlobalAveragePool GlobalMaxPool; ReduceMean ReduceSum ReduceMax; ReduceMax ReduceMin; ReduceSum
ReduceMean; ReduceL2 ReduceL1; Floor Ceil Round; Ceil Floor; Round Floor; Greater Less; Less Greater;
Equal Greater; And Or; Or And; ArgMax ArgMin; Sqrt Abs; Exp Softplus; Log Abs; Pow Mul; Neg Identity;
Softmax LogSoftmax; LeakyRelu Elu; Elu LeakyRelu; Sin Cos; Cos Sin; Clip Identity; Abs Neg; Softplus
Exp; HardSwish Relu; Reciprocal Neg; Not Identity
"""
OPERATORS = {row.split()[0]: row.split()[1:] for row in _SWAPS.split(";")}
"""Operator → others that take the same inputs."""


def operator(scene: Scene, rng: Rng) -> Fault | None:
    """Exchange an operator."""
    spots = [p for p in scene.places() if p.node.op_type in OPERATORS and p.node.domain in ("", "ai.onnx")]
    if not spots:
        return None
    place = spots[rng.integers(len(spots))]
    before, after = place.node.op_type, str(rng.choice(OPERATORS[place.node.op_type]))
    place.node.op_type = after
    known = onnx.defs.get_schema(after, scene.opset, "").attributes if onnx.defs.has(after) else {}
    kept = [a for a in place.node.attribute if a.name in known]
    del place.node.attribute[:]
    place.node.attribute.extend(kept)
    if after == "Identity":
        del place.node.input[1:]
    return Fault("operator", f"{before} → {after}", tuple(place.keys))


def dtype(scene: Scene, rng: Rng) -> Fault | None:
    """Round a result to float16 or bfloat16 on its way."""
    to = int(
        rng.choice(
            [TensorProto.FLOAT16, TensorProto.BFLOAT16] if scene.opset >= 13 else [TensorProto.FLOAT16]
        )
    )
    steps = [("Cast", {"to": to}, None), ("Cast", {"to": TensorProto.FLOAT}, None)]
    return _behind(
        scene, rng, "dtype", f"result rounded to {TensorProto.DataType.Name(to)}", lambda value: steps
    )


def saturation(scene: Scene, rng: Rng) -> Fault | None:
    """Let a result stop at a share of its largest value."""
    share = float(rng.choice([0.3, 0.6, 0.9]))
    minimum = "Min"
    return _behind(
        scene, rng, "saturation", f"result stops at {share:.0%}",
        lambda value: [(minimum, {}, np.float32(_top(value) * share))],
    )  # fmt: skip


def nan_inside(scene: Scene, rng: Rng) -> Fault | None:
    """Let a result become NaN where it is negative, or infinite where it is 0."""
    op = str(rng.choice(["Log", "Sqrt", "Reciprocal"]))
    return _behind(scene, rng, "nan", f"result through {op}", lambda value: [(op, {}, None)])


NAMES_SCOPES = ("If", "Loop", "Scan")
"""Renaming their first output would rename every value inside."""


def _top(value: Any) -> float:
    finite = value[np.isfinite(value)]
    return float(finite.max(initial=0.0)) or 1.0


def _behind(scene: Scene, rng: Rng, kind: str, text: str, steps: Callable[[Any], list[Any]]) -> Fault | None:
    """Put operators behind a node's first output, which they take the name of."""
    spots = [p for p in scene.places() if scene.is_float(p) and p.node.op_type not in NAMES_SCOPES]
    if not spots:
        return None
    place = spots[rng.integers(len(spots))]
    if all(o.domain not in ("", "ai.onnx") for o in scene.proto.opset_import):
        scene.proto.opset_import.append(helper.make_opsetid("", 13))
    name = place.node.output[0]
    place.node.output[0] = now = f"{name}·sound"
    nodes = []
    for number, (op, attributes, constant) in enumerate(
        steps(_last(scene.values[qualified(place.scope, name)]))
    ):
        extra = []
        if constant is not None:
            extra = [f"{name}·{number}·constant"]
            place.graph.initializer.append(numpy_helper.from_array(np.asarray(constant), extra[0]))
        nodes.append(helper.make_node(op, [now, *extra], [f"{name}·{number}"], **attributes))
        now = f"{name}·{number}"
    nodes[-1].output[0] = name
    at = next(i for i, node in enumerate(place.graph.node) if f"{name}·sound" in node.output)
    rest = list(place.graph.node)
    del place.graph.node[:]
    place.graph.node.extend([*rest[: at + 1], *nodes, *rest[at + 1 :]])
    keys = [qualified(place.scope, n) for n in [name, *place.node.output[1:]] if n]
    return Fault(kind, f"{place.node.op_type} {name}: {text}", tuple(keys))


KINDS: tuple[Callable[[Scene, Rng], Fault | None], ...] = (
    weights, weights, axes, epsilon, operator, operator, dtype, saturation, nan, nan_inside,
)  # fmt: skip


# ---- the campaign --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """word: "named", "missed" (agrees), "other" (another node), "crash", "small" or "does not run"."""

    seed: int
    model: str
    fault: Fault
    word: str
    detail: str = ""

    def __str__(self) -> str:
        what = f"{self.model[:28]:28} {self.fault.kind:10} {self.fault.text[:60]}"
        return f"{self.word:12} seed {self.seed:4} {what}  {self.detail}"


@dataclass(frozen=True, slots=True)
class Sound:
    """A model as it should be, with inputs and all it computes on them."""

    name: str
    proto: onnx.ModelProto
    feeds: dict[str, Any]
    values: dict[str, Any]


@functools.lru_cache(1)
def sound(path: pathlib.Path, folder: pathlib.Path | None) -> Sound:
    """Load a model and compute all its values."""
    target = Target(open_source(str(path)))
    proto = onnx.load(str(path)) if not target.proto.functions else target.proto
    proto = target.proto if target.source.proto.functions else proto
    feeds = inputs_of(path, folder)
    return Sound(path.stem, proto, feeds, run_all(proto, feeds))


def inputs_of(path: pathlib.Path, folder: pathlib.Path | None) -> dict[str, Any]:
    """Return the inputs in FOLDER/NAME.npz, or seeded ones."""
    side = (folder or path.parent) / f"{path.stem}.npz"
    if not side.exists():
        return dict(make_inputs(str(path)).feeds)
    names = {v.name for v in onnx.load(str(path), load_external_data=False).graph.input}
    return {k: v for k, v in np.load(side, allow_pickle=True).items() if k in names}


def run_all(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Return every value of a run of the engine."""
    target = Target(open_source(proto))
    return Interpreter(target.model).run(feeds, [point.key for point in target.points])


def plant(one: Sound, seed: int) -> tuple[onnx.ModelProto, Fault]:
    """Return a copy of a model with one fault; kinds that find no place are passed over."""
    rng = np.random.default_rng([seed, 17])
    while True:
        proto = onnx.ModelProto()
        proto.CopyFrom(one.proto)
        del proto.graph.value_info[:]
        fault = KINDS[rng.integers(len(KINDS))](Scene(proto, one.values), rng)
        if fault is not None:
            return proto, fault


def trial(one: Sound, seed: int) -> Outcome:
    """Plant, compare, and say whether the guilty node was named."""
    proto, fault = plant(one, seed)
    try:
        moved = change(one, run_all(proto, one.feeds), fault)
    except (GraphdocError, MemoryError) as error:
        return Outcome(seed, one.name, fault, "does not run", str(error).splitlines()[0][:80])
    if moved <= 1:
        return Outcome(seed, one.name, fault, "small", f"{moved:.3g} of what rounding may do")
    try:
        result = compare_models(one.proto, proto, one.feeds, test_runner="ort", latency=False, pictures=False)
    except GraphdocError as error:
        return Outcome(seed, one.name, fault, "does not run", str(error).splitlines()[0][:80])
    except Exception as error:
        return Outcome(seed, one.name, fault, "crash", repr(error)[:200])
    first = result.first_divergence
    if first is not None and first.value in fault.guilty and not result:
        return Outcome(seed, one.name, fault, "named", result.verdict.kind.value)
    said = f"{result.verdict.sentence[:150]} | {first.value if first else ''} | moved {moved:.3g} × limit"
    notes = [x.note for x in result.layers if x.value in fault.guilty]
    return Outcome(
        seed, one.name, fault, "other" if first else "missed", f"{said} | {fault.guilty[:2]} {notes[:2]}"
    )


def change(one: Sound, values: dict[str, Any], fault: Fault) -> float:
    """Return by how many times what rounding may do the fault moves the first guilty result that it moves."""
    shapes = {k: _shape(v) for k, v in one.values.items()}
    points = {p.key: p for p in Target(open_source(one.proto)).points}
    return max(
        (
            _moved(one.values[k], values.get(k), points[k], shapes)
            for k in fault.guilty
            if k in one.values and k in points
        ),
        default=0.0,
    )


def _shape(value: Any) -> Any:
    return getattr(_last(value), "shape", None)


def _moved(a: Any, b: Any, point: Any, shapes: dict[str, Any]) -> float:
    first = _last(a)
    if not isinstance(first, np.ndarray) or first.dtype == object:
        return 0.0 if repr(a) == repr(b) else math.inf
    if b is None:
        return math.inf
    try:
        error = ratio(*distance(a, b))
    except MismatchError:
        return math.inf
    rms = float(np.sqrt(np.mean(np.square(first.astype(np.float64))))) if first.size else 0.0
    limit = own_limit(
        point.op, first.dtype.name, [shapes.get(n) for n in point.inputs], first.shape, rms
    ).value
    return error / limit if limit else (math.inf if error else 0.0)


def clean(path: pathlib.Path, seed: int, folder: pathlib.Path | None) -> str:
    """Compare a model with itself on other inputs and threads; return "" or what was said wrongly."""
    runner = ("engine", "ort", "engine:1")[seed % 3]
    feeds = inputs_of(path, folder) if seed % 2 else dict(make_inputs(str(path), seed=seed).feeds)
    try:
        result = compare_models(
            str(path),
            inputs=feeds,
            test_runner=runner,
            threads=1 + seed // 2 % 2,
            seed=seed,
            latency=False,
            pictures=False,
        )
    except GraphdocError as error:
        return f"does not run: {str(error).splitlines()[0][:100]}"
    return "" if result else f"alarm: {runner} {result.verdict.sentence}"


def main() -> None:
    """Print what came out wrong, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument("--clean", default="0:0")
    parser.add_argument("--inputs", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    for seed, path in _shares(options.seeds, options.models):
        if time.monotonic() - started > options.seconds:
            print(f"stopped before seed {seed} of {path.stem}", flush=True)
            break
        outcome = trial(sound(path, options.inputs), seed)
        counts[outcome.fault.kind, outcome.word] += 1
        if options.list or outcome.word in ("missed", "other", "crash"):
            print(outcome, flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:12}", {word: n for (k, word), n in sorted(counts.items()) if k == kind}, flush=True)
    for seed, path in _shares(options.clean, options.models):
        if time.monotonic() - started > options.seconds:
            print(f"stopped before clean run {seed}", flush=True)
            break
        said = clean(path, seed, options.inputs)
        counts["clean", said.partition(":")[0] or "agrees"] += 1
        if said:
            print(f"clean {seed:4} {path.stem[:28]:28} {said}", flush=True)
    print({f"{k} {w}": n for (k, w), n in sorted(counts.items()) if k == "clean"}, flush=True)


def _shares(span: str, models: Sequence[pathlib.Path]) -> Iterator[tuple[int, pathlib.Path]]:
    """Yield (seed, model) grouped by model, so that each is loaded once."""
    first, last = map(int, span.split(":") if ":" in span else ("0", span))
    for number, path in enumerate(models):
        yield from ((seed, path) for seed in range(first, last) if seed % len(models) == number)


if __name__ == "__main__":
    main()
