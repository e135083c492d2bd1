"""What is in a model: inputs, outputs, layers, weights, operators, and who can run it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import ModelError
from graphdoc.engine.infer import Facts
from graphdoc.engine.ops.table import TensorType
from graphdoc.engine.scope import FUNCTION, MAIN, enter
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.pieces import read_opsets
from graphdoc.surgeon.reader import ORIGIN, read_model
from graphdoc.surgeon.schemas import signature
from graphdoc.surgeon.serving import cuda_serves, engine_serves, ort_serves
from graphdoc.surgeon.types import UNKNOWN, Dim, ValueType, declared_types, dtype_name, infer, symbols
from graphdoc.surgeon.weights import FP16_MAX, Held, Range, held_tensors, is_numeric, measure

SCHEMA = "graphdoc.inspect/1"

READ_BYTES = 2**28
"""Weights up to this size are read for the remark on fp16, unless they are asked for anyway."""

READABLE = 40
"""Characters of a symbolic size up to which it is shown."""

_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
_WIDE = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16}


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """A value: its name, its dtype in words, a size, symbol or None per axis (None: rank unknown)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """A node that computes something.

    index: number of its first output among all compared values, as in a comparison; None where no runner
    looks inside, and for calls of the model's own functions, whose bodies are listed in their place.
    scope: the way to its graph (engine/scope.py), "" in the main graph. depth: graphs around it.
    """

    index: int | None
    op: str
    domain: str
    name: str
    outputs: tuple[ValueSummary, ...]
    scope: str = MAIN
    depth: int = 0


@dataclass(frozen=True, slots=True)
class WeightSummary:
    """An initializer, or the tensor of a Constant node.

    bytes: in memory. minimum, maximum, absmax: of the finite elements; zeros: their share, 0..1; nan, inf:
    counts. All None when it holds no real numbers or cannot be read; then remark says why.
    """

    name: str
    scope: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    minimum: float | None = None
    maximum: float | None = None
    absmax: float | None = None
    zeros: float | None = None
    nan: int | None = None
    inf: int | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """An operator, how often it occurs, the version that holds, and who runs it.

    version: since_version of the schema, None when the operator is not ONNX's. engine, ort: what serves it
    on the CPU ("" when that cannot be known). cuda: what serves it in the engine on a card: CuPy, host.
    """

    op: str
    domain: str
    count: int
    version: int | None
    engine: str
    ort: str
    cuda: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model at a glance. layer_count: nodes that compute; constant_count: tensors that the model holds.

    size: bytes, external data included. layers, weights, operators: empty unless asked for.
    operator_counts: the commonest first.
    """

    name: str
    size: int
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    inputs: tuple[ValueSummary, ...]
    outputs: tuple[ValueSummary, ...]
    layer_count: int
    constant_count: int
    function_count: int
    operator_counts: tuple[tuple[str, int], ...]
    layers: tuple[LayerSummary, ...] = ()
    weights: tuple[WeightSummary, ...] = ()
    operators: tuple[OperatorSummary, ...] = ()
    remarks: tuple[str, ...] = ()


def inspect_model(
    model: Loadable | Source, *, layers: bool = False, weights: bool = False, operators: bool = False
) -> ModelSummary:
    """Return what is in a model; nothing is run.

    External data that is missing makes a remark, not an error. layers, weights, operators: list them too.

    Raises ModelError when the model cannot be read or is not sound.
    """
    source = open_source(model)
    proto = source.proto
    graph = read_model(proto, source.folder, external=False)
    rows = list(_Layers(graph, proto, typed=layers).rows())
    held = list(held_tensors(graph))
    summaries, remarks = _weights(held, everything=weights)
    return ModelSummary(
        name=source.name,
        size=source.size,
        ir_version=proto.ir_version,
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
        opsets=read_opsets(proto.opset_import),
        inputs=_inputs(proto.graph),
        outputs=tuple(_summary(info.name, declared_types(proto.graph)) for info in proto.graph.output),
        layer_count=sum(row.index is not None for row in rows),
        constant_count=len(held),
        function_count=len(proto.functions),
        operator_counts=_counts(rows),
        layers=tuple(rows) if layers else (),
        weights=summaries if weights else (),
        operators=tuple(_operators(graph)) if operators else (),
        remarks=tuple(remarks),
    )


def _inputs(graph: onnx.GraphProto) -> tuple[ValueSummary, ...]:
    """Return the inputs that must be fed: those without an initializer."""
    types = declared_types(graph)
    held = {tensor.name for tensor in graph.initializer}
    held |= {sparse.values.name for sparse in graph.sparse_initializer}
    return tuple(_summary(info.name, types) for info in graph.input if info.name not in held)


def _summary(name: str, types: Mapping[str, ValueType]) -> ValueSummary:
    found = types.get(name, UNKNOWN)
    return ValueSummary(name, found.dtype, found.shape)


def _counts(rows: list[LayerSummary]) -> tuple[tuple[str, int], ...]:
    tally = Counter(row.op for row in rows)
    return tuple(sorted(tally.items(), key=lambda item: (-item[1], item[0])))


class _Layers:
    """Lists the nodes in execution order, the contents of a subgraph before the node that holds it."""

    def __init__(self, model: ir.Model, proto: onnx.ModelProto, *, typed: bool) -> None:
        self._model = model
        self._proto = infer(proto) if typed else proto
        self._functions = {(f.domain, f.name, f.overload): f for f in self._proto.functions}
        self._symbols = symbols(proto)
        self._facts = Facts(model) if typed else None
        self._next = 0

    def _invented(self, symbol: str) -> bool:
        return symbol.startswith("unk__") and symbol not in self._symbols

    def rows(self) -> Iterator[LayerSummary]:
        """Yield all layers."""
        yield from self._graph(self._model.graph, self._proto.graph, MAIN, 0, counted=True)

    def _graph(
        self,
        nodes: ir.Graph | ir.Function,
        proto: onnx.GraphProto | onnx.FunctionProto,
        scope: str,
        depth: int,
        *,
        counted: bool,
    ) -> Iterator[LayerSummary]:
        types = declared_types(proto, self._invented) if isinstance(proto, onnx.GraphProto) else {}
        for node in nodes:
            if node.op_type == "Constant" and node.domain == "":
                continue
            first = next((v.name for v in node.outputs if v.name), None) or node.name or node.op_type
            source = proto.node[node.meta[ORIGIN].index]
            for attribute in source.attribute:
                inner = node.attributes.get(attribute.name)
                if inner is None or inner.is_ref() or inner.type != ir.AttributeType.GRAPH:
                    continue
                looked_into = counted and attribute.name in _BODIES.get(node.op_type, ())
                way = enter(scope, first, attribute.name)
                yield from self._graph(inner.value, attribute.g, way, depth + 1, counted=looked_into)
            yield from self._own(node, types, scope, first, depth, counted=counted)

    def _typed(self, value: ir.Value, types: Mapping[str, ValueType]) -> ValueSummary:
        """Return a value with the dtype and sizes that the file or ONNX tells, else those inferred here."""
        summary = _summary(str(value.name), types)
        complete = summary.dtype and summary.shape is not None and None not in summary.shape
        if complete or self._facts is None:
            return summary
        try:
            known = self._facts.of(value)
        except ModelError:  # a small weight lies in a file that is missing
            return summary
        dtype = summary.dtype or _dtype_text(known)
        return ValueSummary(summary.name, dtype, _completed(summary.shape, known.shape))

    def _own(
        self,
        node: ir.Node,
        types: Mapping[str, ValueType],
        scope: str,
        first: str,
        depth: int,
        *,
        counted: bool,
    ) -> Iterator[LayerSummary]:
        function = self._model.functions.get(node.op_identifier())
        outputs = tuple(self._typed(value, types) for value in node.outputs if value.name)
        index = None
        if function is not None:
            body = self._functions[node.op_identifier()]
            way = enter(scope, first, FUNCTION)
            yield from self._graph(function, body, way, depth + 1, counted=counted)
        elif counted:
            index, self._next = self._next, self._next + len(outputs)
        yield LayerSummary(index, node.op_type, node.domain, node.name or first, outputs, scope, depth)


def _dtype_text(known: TensorType) -> str:
    if known.dtype is None:
        return ""
    return dtype_name(
        int(ir.DataType.STRING if known.dtype.kind == "O" else ir.DataType.from_numpy(known.dtype))
    )


def _completed(shape: tuple[Dim, ...] | None, found: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """Return a shape with its gaps filled; expressions that are too long to read stay unknown."""
    if found is None or (shape is not None and len(shape) != len(found)):
        return shape
    readable = [dim if isinstance(dim, int) or (dim and len(dim) <= READABLE) else None for dim in found]
    pairs = zip(shape or readable, readable, strict=True)
    return tuple(b if a is None else a for a, b in pairs)


def _weights(held: list[Held], *, everything: bool) -> tuple[tuple[WeightSummary, ...], list[str]]:
    """Return the table of weights and the remarks that follow from it."""
    total = sum(item.tensor.nbytes for item in held if item.tensor.dtype != ir.DataType.STRING)
    if not everything and total > READ_BYTES:
        return (), [f"weights were not read ({total / 1e9:.3g} GB): --weights reads them"]
    if not everything:
        held = [item for item in held if item.tensor.dtype in _WIDE]
    rows: list[WeightSummary] = []
    unread: list[ModelError] = []
    largest: tuple[float, str] = (0.0, "")
    for item in held:
        try:
            found = measure(item.tensor) if is_numeric(item.tensor) else None
        except ModelError as error:
            unread.append(error)
            rows.append(_weight(item, None, error.cause))
            continue
        rows.append(_weight(item, found, ""))
        if found and found.fp16_over and (found.absmax or 0.0) > largest[0]:
            largest = (found.absmax or 0.0, f"{item.scope}{item.name}")
    return tuple(rows), list(_remarks(rows, unread, largest))


def _remarks(
    rows: list[WeightSummary], unread: list[ModelError], largest: tuple[float, str]
) -> Iterator[str]:
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        yield f"{unread[0].cause}{more}: {unread[0].where}"
    if largest[1]:
        yield f"{largest[1]} reaches {_scientific(largest[0])}; fp16 ends at 65 504"
    spoilt = [row.name for row in rows if row.nan or row.inf]
    if len(spoilt) == 1:
        yield f"1 weight holds NaN or Inf: {spoilt[0]}"
    elif spoilt:
        yield f"{len(spoilt)} weights hold NaN or Inf, the first is {spoilt[0]}"


def _scientific(value: float) -> str:
    return f"{value:.1e}".replace("e+", "e").replace("e0", "e")


def _weight(item: Held, found: Range | None, remark: str) -> WeightSummary:
    tensor = item.tensor
    shape = tuple(int(d) for d in tensor.shape.numpy())
    dtype = dtype_name(int(tensor.dtype))
    size = 0 if tensor.dtype == ir.DataType.STRING else int(tensor.nbytes)
    if found is None:
        return WeightSummary(item.name, item.scope, dtype, shape, size, remark=remark)
    return WeightSummary(
        item.name,
        item.scope,
        dtype,
        shape,
        size,
        minimum=found.minimum,
        maximum=found.maximum,
        absmax=found.absmax,
        zeros=found.zeros / found.size if found.size else None,
        nan=found.nan,
        inf=found.inf,
        remark=_fp16_remark(tensor.dtype, found),
    )


def _fp16_remark(dtype: ir.DataType, found: Range) -> str:
    parts = []
    if found.nan or found.inf:
        parts.append(f"{found.nan} NaN, {found.inf} Inf")
    if dtype in _WIDE and found.fp16_over:
        parts.append(f"{found.fp16_over} of {found.size} exceed fp16 ({FP16_MAX:.0f})")
    if dtype in _WIDE and found.fp16_zero:
        parts.append(f"{found.fp16_zero} of {found.size} become 0 in fp16")
    return "; ".join(parts)


def _operators(model: ir.Model) -> Iterator[OperatorSummary]:
    """Yield every operator, Constant included, the commonest first."""
    first: dict[tuple[str, str], tuple[ir.Node, Mapping[str, int]]] = {}
    tally: Counter[tuple[str, str]] = Counter()
    graphs: list[tuple[ir.Graph | ir.Function, Mapping[str, int]]] = [(model.graph, model.opset_imports)]
    graphs += [(function.graph, function.opset_imports) for function in model.functions.values()]
    for graph, opsets in graphs:
        for node in graph.all_nodes():
            key = (node.domain, node.op_type)
            tally[key] += 1
            first.setdefault(key, (node, opsets))
    for key, count in sorted(tally.items(), key=lambda item: (-item[1], item[0])):
        node, opsets = first[key]
        version = opsets.get(node.domain, 1)
        own = node.op_identifier() in model.functions
        schema = None if own else signature(node.domain, node.op_type, version)
        engine = engine_serves(node, opsets, function=own)
        yield OperatorSummary(
            node.op_type,
            node.domain,
            count,
            schema.since if schema else None,
            engine,
            ort_serves(node.domain, node.op_type, version, function=own),
            cuda_serves(engine, node.domain, node.op_type),
        )
