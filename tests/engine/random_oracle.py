"""Judges random graphs: every layer of the engine beside ONNX Runtime with its optimisations off.

All inner values are taps. Each layer is run on the values that ONNX Runtime had for its inputs, so that an
error is the layer's own. It agrees when integers, texts and moved elements are the same, and when floats lie
within four units in the last place. A layer further apart is run alone in float64, as it is and with its
inputs moved by a unit, and the limit is what that shows of its conditioning. What is left must match one of
the :data:`REASONS`, which are narrow and each have a test; else it is a :class:`Difference`.

What holds the layers together is tested without limits: a free run, whose layers feed each other, must give
to the bit what the layers give one at a time.

Level 1 is judged in the same way, layer by layer, on the NumPy device; its free run, fused, must agree with
that of level 0 where rounding alone cannot have moved a result far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from graphdoc.compare.ort_values import from_ort, is_unbridged, to_ort
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.engine.level1 import Compiled
from tests.engine.random_norms import NORMS as NORMS  # more reasons
from tests.engine.random_reasons import explain
from tests.engine.random_refusals import explain_by_graph, explain_refusal
from tests.engine.random_suspect import Suspect
from tests.engine.random_values import TEXT, captured, info, lone_node

UNITS = 4
"""Units in the last place that need no second look: two roundings on either side."""


class RefusedError(Exception):
    """ONNX Runtime does not take the model, or fails while it runs."""


@dataclass(frozen=True)
class Difference:
    """What nobody explained: where, what, and the smallest model that shows it."""

    where: str
    op: str
    text: str
    model: onnx.ModelProto
    feeds: Mapping[str, Any]


@dataclass
class Outcome:
    """One judged graph. refused: why ONNX Runtime took no part. reasons: name → how often it explained."""

    values: int = 0
    exact: int = 0
    within: int = 0
    limited: int = 0
    refused: str = ""
    reasons: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    coverage: dict[tuple[str, str], int] = field(default_factory=dict)


# ---- running ------------------------------------------------------------------------------------------


def tapped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every value of the main graph as an output, optionals and constants aside."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    have = {o.name for o in model.graph.output}
    for node in model.graph.node:
        if node.op_type not in ("Constant", "Optional"):
            new = [n for n in node.output if n and n not in have]
            result.graph.output.extend(onnx.ValueInfoProto(name=n) for n in new)
    return result


def on_ort(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return all outputs by name. Raises RefusedError."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        given = {i.name: to_ort(feeds[i.name]) for i in session.get_inputs()}
        if any(is_unbridged(o.type) for o in session.get_outputs()):
            values = {k: _as_ort(v) for k, v in given.items()}
            results = [from_ort(v) for v in session.run_with_ort_values(names, values)]
        else:
            results = session.run(names, given)
    except Exception as error:
        raise RefusedError(str(error).replace("\n", " ")) from error
    return {n: _plain(r) for n, r in zip(names, results, strict=True)}


def _as_ort(value: Any) -> Any:
    return (
        value if isinstance(value, onnxruntime.OrtValue) else onnxruntime.OrtValue.ortvalue_from_numpy(value)
    )


def _plain(result: Any) -> Any:
    """Return NumPy scalars as arrays, in sequences too."""
    if isinstance(result, list):
        return [_plain(r) for r in result]
    return np.asarray(result) if isinstance(result, np.generic | str) else result


def on_engine(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
    *,
    truth: bool = False,
    level: int = 0,
) -> dict[str, Any]:
    """Return all values by name, each computed from those of ``given`` where there is one."""
    names = frozenset(o.name for o in model.graph.output)
    if level:
        return Compiled(ir.from_proto(model)).run(dict(feeds), names, given=given)
    runner = Interpreter(ir.from_proto(model), truth=truth)
    return runner.run(dict(feeds), watch=Watch(taps=names, given=given or {}))


# ---- judging ------------------------------------------------------------------------------------------


def judge(model: onnx.ModelProto, feeds: Mapping[str, Any], level: int = 0) -> Outcome:
    """Compare every value of the model."""
    untapped, model = model, tapped(model)
    outcome = Outcome()
    try:
        theirs = on_ort(model, feeds)
    except RefusedError as error:
        _refused(model, feeds, str(error), outcome)
        return outcome
    try:
        ours = on_engine(model, feeds, theirs, level=level)
    except Exception:
        ours = _one_by_one(model, feeds, theirs, outcome, level)
    known = {**_constants(model), **feeds, **theirs}
    opset = model.opset_import[0].version
    for node in model.graph.node:
        _cover(node, known, outcome)
        if any(n in theirs for n in node.output if n) and all(n in ours for n in node.output if n in theirs):
            _judge_node(node, known, ours, theirs, opset, outcome)
    if not outcome.differences and level:
        _judge_fused(untapped, feeds, outcome)
    elif not outcome.differences:
        _judge_whole(model, feeds, theirs, ours, outcome)
    return outcome


def _cover(node: onnx.NodeProto, known: Mapping[str, Any], outcome: Outcome) -> None:
    """Count the operator under the dtype of its first input, or output where it has none."""
    value = next((known[n] for n in (*node.input, *node.output) if n in known), None)
    key = (node.op_type, str(getattr(value, "dtype", "sequence")))
    outcome.coverage[key] = outcome.coverage.get(key, 0) + 1


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    from graphdoc.engine.attributes import to_array

    graph = ir.from_proto(model).graph
    known = {name: to_array(v.const_value) for name, v in graph.initializers.items()}
    for node in graph:
        if node.op_type == "Constant":
            known[str(node.outputs[0].name)] = to_array(node.attributes["value"].as_tensor())
    return known


def _one_by_one(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    theirs: Mapping[str, Any],
    outcome: Outcome,
    level: int,
) -> dict[str, Any]:
    """Return what each node gives alone; a node on which the engine fails is a difference."""
    known = {**_constants(model), **feeds, **theirs}
    opset = model.opset_import[0].version
    found: dict[str, Any] = {}
    for node in model.graph.node:
        if node.op_type == "Constant" or not all(n in known for n in node.input if n):
            continue
        alone = lone_node(node, known, opset)
        given = {i.name: known[i.name] for i in alone.graph.input}
        try:
            found.update(on_engine(alone, given, level=level))
        except Exception as error:
            text = f"the engine fails: {error}".splitlines()[0]
            if not explain_refusal(node.op_type, text):
                outcome.differences.append(Difference(node.output[0], node.op_type, text, alone, given))
    return found


def _judge_node(
    node: onnx.NodeProto,
    known: Mapping[str, Any],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    opset: int,
    outcome: Outcome,
) -> None:
    for index, name in enumerate(node.output):
        if name not in theirs:
            continue
        outcome.values += 1
        if identical(ours[name], theirs[name], signs=node.op_type in SIGNED_ZEROS):
            outcome.exact += 1
        elif near(ours[name], theirs[name], signs=node.op_type in SIGNED_ZEROS):
            outcome.within += 1
        else:
            _second_look(node, index, known, ours[name], theirs[name], opset, outcome)


def _second_look(
    node: onnx.NodeProto, index: int, known: Mapping[str, Any], a: Any, b: Any, opset: int, outcome: Outcome
) -> None:
    needed = [n for n in node.input if n]
    if not all(n in known for n in needed):
        return
    alone = lone_node(node, known, opset)
    given = {i.name: known[i.name] for i in alone.graph.input}
    truth, limit = limits(alone, given, node.output[index])
    if within(a, b, truth, limit, signs=node.op_type in SIGNED_ZEROS):
        outcome.limited += 1
        return
    suspect = Suspect(node, index, opset, [known.get(n) for n in node.input], a, b, truth, limit)
    reason = explain(suspect) or _inside(node, known, opset, outcome)
    if reason:
        outcome.reasons[reason] = outcome.reasons.get(reason, 0) + 1
    else:
        text = complaint(a, b, truth, limit)
        outcome.differences.append(Difference(node.output[index], node.op_type, text, alone, given))


def _inside(node: onnx.NodeProto, known: Mapping[str, Any], opset: int, outcome: Outcome) -> str:
    """Judge the branch that an If took, or the first turn of a body, as a graph of its own.

    Returns a reason when something inside differs but all of it is explained: the result carries that on.
    """
    body, inputs = _running(node, known)
    if body is None:
        return ""
    model, feeds = _own_model(body, inputs, known, opset)
    inner = judge(model, feeds)
    outcome.differences.extend(inner.differences)
    if inner.differences:
        return "seen inside its body"
    for name, count in inner.reasons.items():
        outcome.reasons[name] = outcome.reasons.get(name, 0) + count
    differs = not inner.refused and inner.exact < inner.values
    return "rounding inside a body, carried on" if differs else ""


def _running(node: onnx.NodeProto, known: Mapping[str, Any]) -> tuple[onnx.GraphProto | None, list[Any]]:
    """Return the body that runs first, and what its inputs are then."""
    graphs = {a.name: a.g for a in node.attribute if a.HasField("g")}
    values = [known.get(n) for n in node.input]
    if node.op_type == "If":
        return graphs["then_branch" if bool(values[0]) else "else_branch"], []
    if node.op_type == "Loop":
        return graphs["body"], [np.array(0, dtype=np.int64), np.array(True), *values[2:]]
    if node.op_type == "Scan":
        count = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        states = values[: len(values) - count]
        return graphs["body"], [*states, *(v[0] for v in values[len(values) - count :])]
    return None, []


def _own_model(
    body: onnx.GraphProto, inputs: Sequence[Any], known: Mapping[str, Any], opset: int
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a body as a model whose inputs are its own and what it reads from around."""
    holder = helper.make_node("If", [], [], then_branch=body)
    feeds = {name: known[name] for name in sorted(captured(holder))}
    feeds |= {i.name: v for i, v in zip(body.input, inputs, strict=True)}
    graph = onnx.GraphProto()
    graph.CopyFrom(body)
    del graph.input[:]
    del graph.value_info[:]
    graph.input.extend(info(name, value) for name, value in feeds.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), feeds


SIGNED_ZEROS = frozenset(
    {
        *(
            "Identity",
            "Reshape",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Flatten",
            "Concat",
            "Split",
            "Slice",
            "Tile",
        ),
        *("Expand", "Gather", "GatherElements", "GatherND", "Where", "Compress", "Neg", "Abs", "Pad", "Cast"),
        *(
            "DepthToSpace",
            "SpaceToDepth",
            "ReverseSequence",
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Reciprocal",
            "Ceil",
        ),
        *("Floor", "Sqrt", "ScatterND", "ScatterElements", "SequenceAt", "ConcatFromSequence"),
    }
)
"""Operators whose zeros have a sign, by IEEE 754 or because elements are moved."""


def identical(a: Any, b: Any, *, signs: bool = False) -> bool:
    """Whether two values are the same; NaN equals NaN; −0 equals 0 unless ``signs``."""
    if isinstance(b, list) or isinstance(a, list):
        return (
            isinstance(a, list)
            and len(a) == len(b)
            and all(identical(x, y) for x, y in zip(a, b, strict=True))
        )
    if not hasattr(a, "dtype") or not hasattr(b, "dtype"):
        return a is None and b is None
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype == TEXT or a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return bool(same.all()) and (not signs or _same_signs(a, b))


def _same_signs(a: Any, b: Any) -> bool:
    return bool(np.all((np.signbit(a) == np.signbit(b)) | np.isnan(a)))


def near(a: Any, b: Any, *, signs: bool = False) -> bool:
    """Whether two float values lie within UNITS units in the last place of each other."""
    if not hasattr(a, "dtype") or a.dtype.kind in "iubO" or not hasattr(b, "dtype"):
        return False
    if (a.dtype, a.shape) != (b.dtype, b.shape) or (signs and not _same_signs(a, b)):
        return False
    eps, tiny = precision(a.dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.abs(x - y) <= UNITS * eps * np.maximum(np.abs(x), np.abs(y)) + UNITS * tiny * eps
    close &= np.isfinite(x) & np.isfinite(y)
    return bool(np.all(close | (x == y) | (np.isnan(x) & np.isnan(y))))


def precision(dtype: Any) -> tuple[float, float]:
    """Return the spacing of a float dtype at 1 and its smallest normal number."""
    import ml_dtypes

    facts = ml_dtypes.finfo(dtype)
    return float(facts.eps), float(facts.smallest_normal)


def limits(model: onnx.ModelProto, feeds: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return a lone layer's float64 result, and how far inputs off by a unit move it; None without one."""
    try:
        truth = on_engine(model, feeds, truth=True)[name]
        if not hasattr(truth, "dtype") or truth.dtype == TEXT:
            return None, None
        base = truth.astype(np.float64)
        moved = np.zeros(base.shape)
        with np.errstate(all="ignore"):
            for seed in range(4):
                other = on_engine(model, _moved(feeds, seed), truth=True)[name]
                if other.shape != base.shape:  # an input laid down the shape: move the first one alone
                    first = next(iter(feeds))
                    other = on_engine(model, {**feeds, **_moved({first: feeds[first]}, seed)}, truth=True)[
                        name
                    ]
                moved = np.fmax(moved, np.abs(other.astype(np.float64) - base))
            if model.graph.node[0].op_type in PRODUCTS:
                moved = np.fmax(moved, _terms(model, feeds, name))
    except Exception:
        return None, None
    return base, moved


PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
"""Operators that sum products: where the sum cancels, its rounding is that of its terms."""


def _terms(model: onnx.ModelProto, feeds: Mapping[str, Any], name: str) -> Any:
    """Return half a unit in the last place of the sum of the terms' sizes."""
    sizes = {key: np.abs(x) if x.dtype.kind == "f" else x for key, x in feeds.items()}
    eps = max(precision(x.dtype)[0] for x in feeds.values() if x.dtype.kind == "f")
    return 0.5 * eps * on_engine(model, sizes, truth=True)[name]


def _moved(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return feeds with each float moved by about a unit in the last place."""
    rng = np.random.default_rng(seed)
    return {name: _shift(value, rng) for name, value in feeds.items()}


def _shift(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return [_shift(v, rng) for v in value]
    if value.dtype.kind in "iubO":
        return value
    eps, _ = precision(value.dtype)
    return value.astype(np.float64) * (1 + eps * rng.choice([-1.0, 1.0], value.shape))


def within(a: Any, b: Any, truth: Any, limit: Any, *, signs: bool = False) -> bool:
    """Whether two float results lie within what the layer's conditioning allows, and ours near the truth."""
    if truth is None or limit is None or not hasattr(a, "dtype") or a.dtype.kind in "iubO":
        return False
    if (a.dtype, a.shape) != (getattr(b, "dtype", None), b.shape) or truth.shape != a.shape:
        return False
    if signs and not _same_signs(a, b) and identical(a, b):
        return False
    eps, tiny = precision(a.dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = 4 * limit + UNITS * eps * (np.abs(truth) + tiny)
        fine = (np.abs(x - y) <= 2 * allowed) & (np.abs(x - truth) <= allowed)
    fine &= np.isfinite(x) & np.isfinite(y)
    return bool(np.all(fine | (x == y) | (np.isnan(x) & np.isnan(y))))


def complaint(a: Any, b: Any, truth: Any, limit: Any) -> str:
    """Return in one line how two results differ."""
    if not hasattr(a, "dtype") or not hasattr(b, "dtype"):
        return f"{type(a).__name__} for {type(b).__name__}"
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
    if a.dtype == TEXT:
        return "texts differ"
    other = ~((a == b) | ((a != a) & (b != b)))
    if not other.any():
        return "signs of zero differ"
    place = _worst(a, b, other, limit)
    true = "" if truth is None or truth.shape != a.shape else f", float64 {truth[place]}"
    if true and limit is not None:
        true += f" ± {limit[place]:.3g}"
    return f"{a.dtype}{list(a.shape)}, {other.sum()} elements, at {place}: {a[place]} for {b[place]}{true}"


def _worst(a: Any, b: Any, other: Any, limit: Any) -> tuple[int, ...]:
    """Return where two arrays differ most, beside the limit where there is one, else beside the element."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        size = np.maximum(np.abs(x), np.abs(y))
        if limit is not None and limit.shape == a.shape:
            size = size * 1e-7 + limit
        gap = np.where(other, np.abs(x - y) / size, -1.0)
    flat = int(np.argmax(np.where(np.isnan(gap), np.inf, gap)))
    return tuple(int(i) for i in np.unravel_index(flat, a.shape))


# ---- the graph as a whole -----------------------------------------------------------------------------


def _judge_whole(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    theirs: Mapping[str, Any],
    forced: Mapping[str, Any],
    outcome: Outcome,
) -> None:
    """A free run gives what its layers give one at a time: ONNX Runtime's bits where all layers have them."""
    free = on_engine(model, feeds)
    if outcome.exact == outcome.values:
        want: Mapping[str, Any] = theirs
    else:
        want = on_engine(model, feeds, free)
    for name, value in want.items():
        if not identical(free[name], value):
            text = "a free run differs from its layers: " + complaint(free[name], value, None, None)
            outcome.differences.append(Difference(name, "graph", text, model, feeds))
            return


def _judge_fused(model: onnx.ModelProto, feeds: Mapping[str, Any], outcome: Outcome) -> None:
    """A free run of level 1, fused, agrees with level 0 up to what rounding moves that: of all layers, or
    within one of them, which float64 shows (scores of an attention are large, and their softmax is not)."""
    below = on_engine(model, feeds)
    above = Compiled(ir.from_proto(model), passes=(fuse,)).run(dict(feeds))
    others: list[Mapping[str, Any]] = []
    for name, value in below.items():
        ours = above[name]
        if identical(ours, value) or near(ours, value):
            continue
        others = others or [*(_noisy(model, feeds, seed) for seed in range(6)), _exact(model, feeds)]
        if not _as_far(ours, value, [other[name] for other in others]):
            text = "level 1, fused, differs: " + complaint(ours, value, None, None)
            outcome.differences.append(Difference(name, "graph", text, model, feeds))


def _noisy(model: onnx.ModelProto, feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the outputs of level 0 with each float off by about a unit in its last place."""
    graph = ir.from_proto(model)
    names = {str(v.name): v for node in graph.graph.all_nodes() for v in node.outputs}
    noise = {name: 1e-7 if v.dtype != ir.DataType.FLOAT16 else 1e-3 for name, v in names.items()}
    return Interpreter(graph).run(dict(feeds), watch=Watch(noise=noise, seed=seed))


def _exact(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of level 0 with floats computed in float64."""
    return Interpreter(ir.from_proto(model), truth=True).run(dict(feeds))


def _as_far(a: Any, b: Any, others: Sequence[Any]) -> bool:
    """Whether a lies about as near to b as the others do; what is no number in one of them may be any."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        rows = zip(a, b, strict=True)
        return all(_as_far(x, y, [other[k] for other in others]) for k, (x, y) in enumerate(rows))
    if not hasattr(a, "dtype") or (a.dtype, a.shape) != (getattr(b, "dtype", None), b.shape):
        return False
    if any(other.shape != b.shape for other in others) or a.dtype == TEXT:
        return a.dtype != TEXT
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        moved = np.max([np.abs(other.astype(np.float64) - y) for other in others], axis=0)
        eps = 0.0 if a.dtype.kind in "iub" else precision(a.dtype)[0]
        scale = np.max(np.abs(y), initial=0.0, where=np.isfinite(y))  # sums that cancel are off by the terms'
        fine = np.abs(x - y) <= 8 * moved + 8 * UNITS * eps * scale
    return bool(np.all(fine | ~np.isfinite(moved) | (x == y) | (np.isnan(x) & np.isnan(y))))


def _refused(model: onnx.ModelProto, feeds: Mapping[str, Any], text: str, outcome: Outcome) -> None:
    """Note why ONNX Runtime refuses; unknown, it is a difference, unless the engine refuses too."""
    reason = explain_refusal("", text)
    outcome.refused = reason or text
    if reason:
        return
    try:
        values = on_engine(model, feeds)
    except Exception:
        outcome.refused = "both refuse"
        return
    if reason := explain_by_graph((model, {**_constants(model), **feeds, **values}), text):
        outcome.refused = reason
        return
    outcome.differences.append(Difference("", "graph", f"ONNX Runtime refuses: {text}", model, feeds))


# ---- shrinking ----------------------------------------------------------------------------------------


def shrunk(found: Difference) -> Difference:
    """Return a difference of a whole graph on the first node that shows one and what it needs."""
    for node in found.model.graph.node if found.op == "graph" else ():
        part = _needed(found.model, node)
        feeds = {i.name: found.feeds[i.name] for i in part.graph.input}
        shown = judge(part, feeds).differences
        if shown:
            return Difference(shown[0].where, found.op, shown[0].text, part, feeds)
    return found


def _needed(model: onnx.ModelProto, last: onnx.NodeProto) -> onnx.ModelProto:
    """Return the model cut down to one node and what it is computed from."""
    needed, kept = {*last.input, *captured(last)}, [last]
    nodes = list(model.graph.node)
    for node in reversed(nodes[: nodes.index(last)]):
        if needed & set(node.output):
            kept.append(node)
            needed |= {*node.input, *captured(node)}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for entries, some in (
        (graph.node, kept[::-1]),
        (graph.input, [i for i in model.graph.input if i.name in needed]),
        (graph.initializer, [i for i in model.graph.initializer if i.name in needed]),
        (graph.output, [onnx.ValueInfoProto(name=n) for n in last.output if n]),
    ):
        del entries[:]
        entries.extend(some)
    return result
