"""The operator table: (domain, operator, since_version) → evaluate and infer.

One Python function holds the meaning of one operator version. It is written against an array namespace
(``call.xp``: NumPy, or CuPy on a card) and registered with :func:`op`::

    @op("Softmax", 13, infer=same_as_first)
    def softmax(call: Call, x: Array, *, axis: int = -1) -> Array: ...

* Positional parameters are the node's inputs in the specification's order; an omitted optional input is
  None (give it a default of None). Variadic inputs are ``*inputs``.
* Keyword-only parameters are the attributes under their ONNX names, with the specification's default.
  Attributes of graph type arrive as callables ``body(*inputs) -> tuple`` (:class:`GraphCallable`).
* The result is one value, or a tuple with one entry per output the specification lists; entries past the
  ones the node asks for are dropped, so always returning all outputs is right (``call.outputs`` tells how
  many are asked for when computing them is costly).
* A value is an array, a list (sequence), None (an empty optional) or, from ai.onnx.ml ZipMap, a list of
  dicts. Strings are object arrays of ``str``. bfloat16, float8, int4 … are the dtypes of ``ml_dtypes``.
* ``since`` lists every since_version whose meaning the function implements; a look-up takes the newest
  one that is not newer than the model's opset.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from threading import RLock
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = Any
"""An array of ``call.xp``; NumPy's and CuPy's types share no useful static base."""

Value: TypeAlias = Any
"""An array, a list of values (sequence), None (empty optional) or a list of dicts (ZipMap)."""

Dim: TypeAlias = int | str | None
"""A size, a symbol or an expression of symbols (engine/ops/dims.py), or unknown."""

MAX_ELEMENTS = 64
"""Entries of a tensor whose content is followed one by one: shapes, axes, sizes."""

_PROMOTED = frozenset(np.dtype(t) for t in (np.float16, np.float32, ml_dtypes.bfloat16))
_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of a tensor before it is computed.

    dtype: NumPy or ml_dtypes dtype (object for strings), None when unknown.
    shape: one Dim per axis, None when the rank is unknown.
    value: the content when it is a known constant, else None.
    elements: of an integer or bool tensor with at most 64 entries, one Dim per entry in row-major order: what
        is known of its content; None when nothing is. Follows from ``value`` where that is known.
    """

    dtype: np.dtype[Any] | None = None
    shape: tuple[Dim, ...] | None = None
    value: np.ndarray[Any, Any] | None = None
    elements: tuple[Dim, ...] | None = None

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and value.size <= MAX_ELEMENTS and value.dtype.kind in "iub":
            object.__setattr__(self, "elements", tuple(map(int, value.reshape(-1).tolist())))


@dataclass(frozen=True, slots=True)
class ContainerType(TensorType):
    """What is known of a sequence or an optional: its item; as a tensor nothing (dtype and shape are None).

    kind: "sequence" or "optional". item: what holds for each item. length: how many a sequence has.
    """

    kind: str = "sequence"
    item: TensorType = field(default_factory=lambda: TensorType())
    length: Dim = None


class GraphCallable(Protocol):
    """A subgraph attribute bound to the running scope: inputs in order → outputs in order.

    outputs: what the graph declares of its outputs.
    """

    @property
    def outputs(self) -> tuple[TensorType, ...]: ...

    def __call__(self, *inputs: Value) -> tuple[Value, ...]: ...


@dataclass(slots=True)
class Call:
    """What an operator may know about its node besides inputs and attributes.

    xp: the array namespace (numpy or cupy).
    version: the model's opset version of the operator's domain.
    outputs: how many outputs the node lists, trailing unnamed ones aside (not so where they are variadic).
    truth: True when float16, bfloat16 and float32 are computed as float64 (truth mode).
    rng: the generator for random operators without a seed attribute.
    memo: what the operator prepared from its attributes at an earlier run of the same node.
    """

    xp: Any = np
    version: int = 1
    outputs: int = 1
    truth: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    memo: dict[str, Any] = field(default_factory=dict)

    def real(self, dtype: Any) -> np.dtype[Any]:
        """Return the dtype to compute and store in where the specification says ``dtype``."""
        dtype = np.dtype(dtype)
        return _FLOAT64 if self.truth and dtype in _PROMOTED else dtype


Evaluate: TypeAlias = Callable[..., Any]
Infer: TypeAlias = Callable[..., Any]
Around: TypeAlias = Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    evaluate(call, *inputs, **attributes) → value or tuple of values.
    infer(call, *types, **attributes) → TensorType or tuple of them; None: not stated.
    random: the result does not follow from the inputs.
    around(node) → further arguments, which follow from the graph (onnx_ir) around the node.
    """

    domain: str
    name: str
    since: int
    evaluate: Evaluate
    infer: Infer | None = None
    random: bool = False
    around: Around | None = None


FAMILIES = (
    "activations",
    "arithmetic",
    "attention",
    "blocks",
    "boxes",
    "cast",
    "constants",
    "control",
    "conv",
    "conv_transpose",
    "einsum",
    "elementwise",
    "experimental",
    "gather",
    "gradient",
    "gradient_elementwise",
    "gradient_norm",
    "gradient_window",
    "image",
    "layout",
    "logical",
    "loss",
    "matmul",
    "ml_encode",
    "ml_linear",
    "ml_trees",
    "ms_attention",
    "ms_fused",
    "ms_misc",
    "ms_moe",
    "ms_more",
    "ms_nbits",
    "ms_norm",
    "ms_quant",
    "ms_recurrent",
    "nchwc",
    "norm",
    "pool",
    "quantize",
    "random",
    "recurrent",
    "reductions",
    "regions",
    "resize",
    "sampling",
    "scatter",
    "selection",
    "sequence",
    "signal",
    "slicing",
    "softmax",
    "text",
    "training",
)
"""Modules of this package that register operators; each is imported at the first look-up in its domain."""

_ONLY_FOR = {"ml_": "ai.onnx.ml", "ms_": "com.microsoft", "gra": "graphdoc.gradient"}
"""Families by how their names begin → the one domain they serve; all others are imported at any look-up.
Half of the time that importing all takes goes to these, and most models need none of them."""

OWN_DOMAINS = frozenset(
    {"", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc"}
)
"""Domains whose operators stand here; those of others may come from installed packages."""

INSTALLED = "*"
"""Among what was loaded: the operators of installed packages."""

_TABLE: dict[tuple[str, str], list[Operator]] = {}
_loaded: set[str | None] = set()
_LOADING = RLock()


def canonical_domain(domain: str) -> str:
    """Return the domain with the two spellings of the default one made equal."""
    return "" if domain == "ai.onnx" else domain


def round_defaults(evaluate: Evaluate) -> None:
    """Round float defaults to single precision, as attributes in a file are: float64 inputs show it."""
    defaults = getattr(evaluate, "__kwdefaults__", None) or {}
    defaults.update({k: float(np.float32(v)) for k, v in defaults.items() if isinstance(v, float)})


def op(
    name: str,
    *since: int,
    domain: str = "",
    infer: Infer | None = None,
    random: bool = False,
    around: Around | None = None,
) -> Callable[[Evaluate], Evaluate]:
    """Register the decorated function for the given since_versions of an operator."""

    def register(evaluate: Evaluate) -> Evaluate:
        rows = _TABLE.setdefault((canonical_domain(domain), name), [])
        round_defaults(evaluate)
        for version in since:
            if any(row.since == version for row in rows):
                raise ValueError(f"{domain or 'ai.onnx'}::{name} version {version} is registered twice")
            rows.append(Operator(canonical_domain(domain), name, version, evaluate, infer, random, around))
        rows.sort(key=lambda row: row.since)
        return evaluate

    return register


def load_families(domain: str | None = None) -> None:
    """Import every family that may serve the domain, once; None: every family."""
    if domain in _loaded or None in _loaded:
        return
    with _LOADING:  # another thread must not see half a table; this one may come back while it imports
        for family in FAMILIES:
            if domain is None or _ONLY_FOR.get(family[:3], domain) == domain:
                import_module(f"graphdoc.engine.ops.{family}")
        _loaded.add(domain)


def _load_installed() -> None:
    """Import the operators of installed packages once."""
    with _LOADING:
        if INSTALLED not in _loaded:
            _loaded.add(INSTALLED)
            import_module("graphdoc.engine.ops.custom").load_installed()


def find(domain: str, name: str, version: int) -> Operator | None:
    """Return the newest row not newer than ``version``, or None."""
    domain = canonical_domain(domain)
    load_families(domain)
    rows = _TABLE.get((domain, name), [])
    if not rows and domain not in OWN_DOMAINS:
        _load_installed()
        rows = _TABLE.get((domain, name), [])
    position = bisect_right(rows, version, key=lambda row: row.since)
    return rows[position - 1] if position else None


def operators() -> Iterator[Operator]:
    """Yield every row, sorted by domain, name and version."""
    load_families()
    for key in sorted(_TABLE):
        yield from _TABLE[key]


def unregister(domain: str, name: str) -> None:
    """Remove an operator; for tests and for users who replace one of theirs."""
    _TABLE.pop((canonical_domain(domain), name), None)


Attributes: TypeAlias = Mapping[str, Any]
