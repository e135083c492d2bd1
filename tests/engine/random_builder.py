"""What random graphs are made with: a graph that grows node by node, each node run as it is added.

Since every value's content is known while the graph grows, recipes can choose indices that are in range,
shapes that fit, and divisors that are not zero. The engine computes them; whether it does so rightly is for
:mod:`tests.engine.random_oracle` to find out.
"""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.table import Call, find
from tests.engine.random_values import (
    BOOL,
    CONTENTS,
    DTYPES,
    F32,
    TEXT,
    captured,
    from_array,
    kind,
    lone_node,
)

LARGEST = 4096
"""Elements of a value at most; recipes that would make more are rejected."""


class RejectedError(Exception):
    """A recipe cannot continue: nothing in the graph fits, or the result would be too large."""


# ---- what ONNX Runtime has kernels for ----------------------------------------------------------------

_TEXTS = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    BOOL: "bool",
    TEXT: "string",
    np.dtype(ml_dtypes.float8_e4m3fn): "float8e4m3fn",
    np.dtype(ml_dtypes.float8_e5m2): "float8e5m2",
}


def type_text(dtype: np.dtype[Any]) -> str:
    """Return a tensor type as schemas spell it."""
    return f"tensor({_TEXTS.get(dtype, dtype.name)})"


@functools.lru_cache(maxsize=1)
def newest_opset() -> int:
    """Return the newest opset that both ONNX and ONNX Runtime know."""
    for version in range(onnx.defs.onnx_opset_version(), 8, -1):
        value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
        node = helper.make_node("Identity", ["x"], ["y"])
        graph = helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            continue
        return version
    raise AssertionError("ONNX Runtime opens no model")


@functools.lru_cache(maxsize=1)
def _kernels() -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for kernel in onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.domain == "" and kernel.provider == "CPUExecutionProvider":
            found.setdefault(kernel.op_name, []).append(kernel)
    return found


@functools.cache
def schema(op: str, opset: int) -> Any:
    """Return the ONNX schema of an operator. Raises RejectedError when the opset has none."""
    try:
        found = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError as error:
        raise RejectedError(op) from error
    if found.deprecated:
        raise RejectedError(op)
    return found


@functools.cache
def kernels(op: str, opset: int) -> tuple[Mapping[str, frozenset[str]], ...]:
    """Return type texts by type variable of each kernel; one of float where only a function body serves."""
    since = schema(op, opset).since_version
    found = [
        kernel.type_constraints
        for kernel in _kernels().get(op, [])
        if kernel.version_range[0] <= opset and since <= kernel.version_range[1] and _covers(kernel, since)
    ]
    if not found:
        if opset > _INLINED_UNTIL.get(op, opset) or not (
            schema(op, opset).has_function or schema(op, opset).has_context_dependent_function
        ):
            return ()
        names = {p.type_str for p in (*schema(op, opset).inputs, *schema(op, opset).outputs)}
        found = [{name: ["tensor(float)"] for name in names if "(" not in name}]
    return tuple({name: frozenset(texts) for name, texts in kernel.items()} for kernel in found)


_INLINED_UNTIL = {"Swish": 24}
"""The newest opset in which ONNX Runtime uses an operator's function body, where that is not the newest."""


def _covers(kernel: Any, since: int) -> bool:
    first, last = kernel.version_range
    return first == since if last == 2**31 - 1 else bool(first <= since <= last)


@functools.cache
def supported(op: str, opset: int, index: int) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes that some kernel takes as an input."""
    formal = _formal(schema(op, opset).inputs, index)
    allowed = frozenset(formal.types)
    texts: set[str] = set()
    for kernel in kernels(op, opset):
        texts |= kernel.get(formal.type_str, allowed)
    return tuple(d for d in DTYPES if type_text(d) in texts & allowed)


def _formal(parameters: Sequence[Any], index: int) -> Any:
    if index >= len(parameters) and not parameters:
        raise RejectedError("no parameters")
    return parameters[min(index, len(parameters) - 1)]


def runnable(op: str, opset: int, inputs: Sequence[Any], outputs: Sequence[Any] = ()) -> bool:
    """Whether the schema takes these dtypes (None: not given) and a kernel runs them."""
    bound: dict[str, str] = {}
    for parameters, dtypes in ((schema(op, opset).inputs, inputs), (schema(op, opset).outputs, outputs)):
        for index, dtype in enumerate(dtypes):
            if dtype is None:
                continue
            formal, text = _formal(parameters, index), type_text(dtype)
            if text not in formal.types:
                return False
            if (
                formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
                and not formal.is_homogeneous
            ):
                continue
            if bound.setdefault(formal.type_str, text) != text:
                return False
    return any(
        all(text in kernel.get(name, (text,)) for name, text in bound.items())
        for kernel in kernels(op, opset)
    )


# ---- the growing graph --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the growing graph: its name and its content under the feeds.

    constant: the content is the same whatever is fed.
    """

    name: str
    array: Any
    constant: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape  # type: ignore[no-any-return]

    @property
    def rank(self) -> int:
        return self.array.ndim  # type: ignore[no-any-return]


@dataclass
class Builder:
    """A graph under construction.

    rng: where all choices come from. outer: values of the graph around, for bodies of If, Loop and Scan.
    keep_failures: keep nodes that the engine fails to run, for the oracle to judge.
    inputs_allowed: whether new graph inputs may be made (not in bodies).
    """

    rng: random.Random
    opset: int
    prefix: str = "v"
    outer: Sequence[Value] = ()
    keep_failures: bool = False
    inputs_allowed: bool = True
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    made: int = 0

    # ---- choices

    def choose(self, options: Sequence[Any]) -> Any:
        """Return one of the options. Raises RejectedError when there is none."""
        if not options:
            raise RejectedError("nothing to choose from")
        return options[self.rng.randrange(len(options))]

    def chance(self, share: float) -> bool:
        """Return True with the given probability."""
        return self.rng.randrange(1000) < 1000 * share

    def number(self, low: int, high: int) -> int:
        """Return an integer between bounds, both included."""
        return self.rng.randint(low, high)

    def real(self, low: float, high: float) -> float:
        """Return a float32 number between bounds, on a coarse grid."""
        return float(np.float32(low + (high - low) * self.rng.randrange(65) / 64))

    def name(self) -> str:
        """Return an unused name."""
        self.made += 1
        return f"{self.prefix}{self.made}"

    def axis(self, rank: int) -> int:
        """Return an axis, negative or not."""
        if rank < 1:
            raise RejectedError("no axis")
        return self.number(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        """Return distinct axes, some counted from the end, in any order."""
        chosen = self.rng.sample(range(rank), self.number(min(least, rank), rank))
        return [a - rank if self.chance(0.4) else a for a in chosen]

    def shape(self, low: int = 0, high: int = 5, largest: int = 4, empty: float = 0.04) -> tuple[int, ...]:
        """Return a shape whose rank lies between bounds; dims 1 to ``largest``, seldom 0."""
        rank = self.number(low, high) if self.chance(0.3) else self.number(low, min(high, max(low, 3)))
        return tuple(0 if self.chance(empty) else self.number(1, largest) for _ in range(rank))

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape that broadcasts with another: fewer leading dims, ones, and stretched ones."""
        if self.chance(0.4):
            return tuple(shape)
        kept = list(shape)[self.number(0, len(shape)) :] if self.chance(0.5) else list(shape)
        stretched = [self.number(1, 3) if d == 1 and self.chance(0.3) else d for d in kept]
        return tuple(1 if self.chance(0.3) else d for d in stretched)

    # ---- content

    def content(self, dtype: Any, shape: Sequence[int], *, tame: bool = False) -> Any:
        """Return an array; unless ``tame``, sometimes with NaN, ±Inf, −0, extremes, or of one value."""
        numpy = np.random.default_rng(self.rng.getrandbits(32))
        return np.asarray(CONTENTS[kind(dtype)](numpy, np.dtype(dtype), tuple(shape), tame), dtype=dtype)

    def source(self, array: Any, *, constant: bool | None = None) -> Value:
        """Return a new input, initializer or Constant node that holds an array."""
        name, array = self.name(), np.asarray(array)
        if constant is None:
            constant = self.chance(0.6)
        if not constant and self.inputs_allowed:
            self.feeds[name] = array
        elif self.chance(0.5):
            self.initializers[name] = array
        else:
            tensor = from_array(array)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            constant = True
        value = Value(name, array, constant or not self.inputs_allowed)
        self.pool.append(value)
        return value

    def fresh(self, dtype: Any, shape: Sequence[int], *, tame: bool = False) -> Value:
        """Return a new source of random content."""
        return self.source(self.content(dtype, shape, tame=tame))

    def parameter(self, array: Any) -> Value:
        """Return a value with this content: a constant mostly, else fed or computed."""
        array = np.asarray(array)
        if self.chance(0.15) and array.ndim == 1 and array.size > 1:
            cut = self.number(1, array.size - 1)
            parts = [self.source(array[:cut]), self.source(array[cut:])]
            return self.add("Concat", parts, axis=0)
        value = self.source(array, constant=self.chance(0.85))
        return self.add("Identity", [value]) if self.chance(0.05) else value

    def ints(self, numbers: Sequence[int], dtype: Any = np.int64) -> Value:
        """Return a parameter of integers, rank 1."""
        return self.parameter(np.array(numbers, dtype=dtype).reshape(-1))

    # ---- picking

    def values(self) -> list[Value]:
        """Return all values that a new node may read."""
        return [*self.outer, *self.pool]

    def find(self, test: Callable[[Value], bool]) -> Value | None:
        """Return a value that passes a test, the newest most often; None when there is none."""
        found = [v for v in self.values() if isinstance(v.array, np.ndarray) and test(v)]
        if not found:
            return None
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def dtypes(self, op: str, index: int = 0) -> tuple[np.dtype[Any], ...]:
        """Return the dtypes of an input that ONNX Runtime runs."""
        return supported(op, self.opset, index)

    def dtype(self, options: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
        """Return one of the dtypes, float32 most often, strings seldom."""
        if F32 in options and self.chance(0.3):
            return F32
        if TEXT in options and len(options) > 1 and not self.chance(0.1):
            options = [d for d in options if d != TEXT]
        return self.choose(options)  # type: ignore[no-any-return]

    def pick(
        self,
        op: str,
        index: int = 0,
        *,
        rank: tuple[int, int] = (0, 5),
        within: Sequence[np.dtype[Any]] | None = None,
        test: Callable[[Value], bool] | None = None,
        shape: Callable[[], Sequence[int]] | None = None,
        tame: bool = False,
        reuse: float = 0.75,
    ) -> Value:
        """Return a value for an operator's input: one that fits, or a new one.

        within: further limits the dtypes. test: what the value must pass. shape: makes one when a new value
        is needed. tame: no special numbers in a new value.
        """
        options = [d for d in self.dtypes(op, index) if within is None or d in within]

        def fits(value: Value) -> bool:
            return (
                value.dtype in options and rank[0] <= value.rank <= rank[1] and (test is None or test(value))
            )

        found = self.find(fits) if self.chance(reuse) else None
        if found is not None:
            return found
        dims = shape() if shape else self.shape(*rank)
        value = self.fresh(self.dtype(options), dims, tame=tame)
        if not fits(value):
            raise RejectedError(f"{op} takes no such value")
        return value

    def like(self, value: Value, shape: Sequence[int], *, tame: bool = False, reuse: float = 0.7) -> Value:
        """Return a value of the same dtype and the given shape."""
        wanted = tuple(shape)
        found = (
            self.find(lambda v: v.dtype == value.dtype and v.shape == wanted) if self.chance(reuse) else None
        )
        return self.fresh(value.dtype, wanted, tame=tame) if found is None else found

    # ---- nodes

    def add(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Add a node with one output and return it."""
        return self.add_many(op, inputs, 1, **attributes)[0]

    def add_many(
        self, op: str, inputs: Sequence[Value | None], outputs: int | str, **attributes: Any
    ) -> list[Value]:
        """Add a node and return its named outputs.

        outputs: how many, or a mask such as "101" of those that get a name.
        Raises RejectedError when no kernel takes it, the engine fails on it, or a result is too large.
        """
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        mask = "1" * outputs if isinstance(outputs, int) else outputs
        names = [self.name() if bit == "1" else "" for bit in mask]
        if not runnable(op, self.opset, [_dtype(v) for v in trimmed]):
            raise RejectedError(f"no kernel of {op}")
        node = helper.make_node(op, [v.name if v else "" for v in trimmed], names, **attributes)
        try:
            results = self._run(node, trimmed, len(names), attributes)
        except Exception as error:
            return self._failed(node, error)
        kept = [r for r, n in zip(results, names, strict=False) if n]
        if any(_size(r) > LARGEST for r in kept):
            raise RejectedError("too large")
        arrays = [
            r.dtype if isinstance(r, np.ndarray) and n else None for r, n in zip(results, names, strict=False)
        ]
        if not runnable(op, self.opset, [_dtype(v) for v in trimmed], arrays):
            raise RejectedError(f"no kernel of {op}")
        constant = (
            op not in _RANDOM and all(v is None or v.constant for v in trimmed) and not self._reads(node)
        )
        made = [Value(n, r, constant) for n, r in zip(names, results, strict=False) if n]
        self.nodes.append(node)
        self.pool.extend(made)
        return made

    def _failed(self, node: onnx.NodeProto, error: Exception) -> list[Value]:
        if self.keep_failures and not isinstance(error, RejectedError):
            self.nodes.append(node)
            self.hidden.update(node.output)
        raise RejectedError(f"the engine fails: {error}") from error

    def _run(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        outputs: int,
        attributes: Mapping[str, Any],
    ) -> list[Any]:
        row = find("", node.op_type, self.opset)
        arrays = [None if v is None else v.array for v in inputs]
        if row is None or any(isinstance(a, onnx.GraphProto | onnx.TensorProto) for a in attributes.values()):
            return self._run_model(node)
        call = Call(version=self.opset, outputs=outputs)
        with np.errstate(all="ignore"):
            result = row.evaluate(call, *arrays, **{k: _stored(v) for k, v in attributes.items()})
        results = result if isinstance(result, tuple) else (result,)
        return [_array(r) for r in results][:outputs]

    def _run_model(self, node: onnx.NodeProto) -> list[Any]:
        known = {v.name: v.array for v in self.values()}
        proto = lone_node(node, known, self.opset)
        runner = Interpreter(ir.from_proto(proto))
        results = runner.run({i.name: known[i.name] for i in proto.graph.input})
        return [results.get(name) for name in node.output]

    def _reads(self, node: onnx.NodeProto) -> bool:
        """Whether the bodies of a node read values that are not constant."""
        constant = {v.name for v in self.values() if v.constant}
        return bool(captured(node) - constant)


_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def _dtype(value: Value | None) -> Any:
    return value.array.dtype if value is not None and isinstance(value.array, np.ndarray) else None


def _size(result: Any) -> int:
    if isinstance(result, list):
        return sum(_size(r) for r in result)
    return int(getattr(result, "size", 0))


def _array(result: Any) -> Any:
    """Return what NumPy makes of a single element as an array of rank 0."""
    if isinstance(result, str):
        return np.asarray(result, dtype=object)
    return np.asarray(result) if isinstance(result, np.generic) else result


def _stored(value: Any) -> Any:
    """Return an attribute as a file keeps it: floats have single precision."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, list):
        return [_stored(v) for v in value]
    return value
