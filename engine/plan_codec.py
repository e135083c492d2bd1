"""Programs as plain data (lists, numbers, texts), and back: what a plan file is made of.

Buffers, views, expressions and specifications are tables; whatever refers to one gives its number. Contents
of constants lie apart, in a :class:`Store` that keeps each once. Specifications are dataclasses of
``engine/kernels`` and are written field by field, so that a new one needs nothing here.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np

from graphdoc.engine import expr as ex
from graphdoc.engine.expr import Expr
from graphdoc.engine.program import Buffer, Kind, Program, Step, View
from graphdoc.engine.sound import check

_DTYPES = {dtype.name: dtype for dtype in ex.DTYPES}
_LEAVES = ("input", "stage", "index", "const")
_KERNELS = "graphdoc.engine.kernels"


@dataclass(slots=True)
class Store:
    """Runs of bytes, each kept once. names: what tells equal runs apart that must not become one."""

    blobs: list[Any] = field(default_factory=list)
    _known: dict[tuple[bytes, str], int] = field(default_factory=dict)

    def add(self, content: Any, name: str = "") -> int:
        """Return the number of a run of bytes (an array, or bytes), added if it is new."""
        raw: Any = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else _raw(content)
        key = hashlib.sha256(raw).digest(), name
        if key not in self._known:
            self._known[key] = len(self.blobs)
            self.blobs.append(raw)
        return self._known[key]


def _raw(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Table:
    """Numbers for things, in the order they come; ``write`` says what stands for one in the file."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write
        self._numbers: dict[Any, int] = {}
        self.rows: list[Any] = []

    def __call__(self, thing: Any) -> int:
        number = self._numbers.get(thing)
        if number is None:
            row = self._write(thing)
            number = self._numbers[thing] = len(self.rows)
            self.rows.append(row)
        return number


class Encoder:
    """Writes programs into one set of tables. weights: names of constants to keep apart, by buffer."""

    def __init__(self, store: Store, weights: Mapping[Buffer, str] | None = None) -> None:
        self.store = store
        self._weights = weights or {}
        self._buffers = _Table(self._buffer)
        self._views = _Table(lambda v: [self._buffers(v.buffer), list(v.shape), list(v.strides), v.offset])
        self._exprs = _Table(self._expr)
        self._specs = _Table(self._value)

    def program(self, program: Program) -> dict[str, Any]:
        """Return a program's steps and ends, by numbers of tables."""
        steps = [
            [self._specs(s.spec), [*map(self._views, s.inputs)], [*map(self._views, s.outputs)], [*s.nodes]]
            for s in program.steps
        ]
        return {
            "steps": steps,
            "inputs": [[name, self._views(view)] for name, view in program.inputs.items()],
            "outputs": [[name, self._views(view)] for name, view in program.outputs.items()],
            "notes": dict(program.notes),
        }

    def buffer(self, buffer: Buffer) -> int:
        """Return the number of a buffer."""
        return self._buffers(buffer)

    def spec(self, spec: Any) -> Any:
        """Return a specification as plain data that refers to the table of expressions."""
        return self._value(spec)

    def tables(self) -> dict[str, Any]:
        """Return the tables, once all programs are written."""
        return {
            "buffers": self._buffers.rows,
            "views": self._views.rows,
            "exprs": self._exprs.rows,
            "specs": self._specs.rows,
        }

    def _buffer(self, buffer: Buffer) -> list[Any]:
        data = None
        if buffer.kind is Kind.CONSTANT:
            data = self.store.add(buffer.data, self._weights.get(buffer, ""))
        return [buffer.name, buffer.dtype.name, buffer.size, buffer.kind.value, data]

    def _expr(self, root: Expr) -> list[Any]:
        for node in ex.postorder(root)[:-1]:
            self._exprs(node)
        attr = root.attr.hex() if isinstance(root.attr, bytes) else root.attr
        return [root.op, [self._exprs(a) for a in root.args], root.dtype.name, attr]

    def _value(self, value: Any) -> Any:
        """Return a specification or one of its fields."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, np.dtype):
            return {"dtype": value.name}
        if isinstance(value, Expr):
            return {"expr": self._exprs(value)}
        if isinstance(value, tuple):
            return [self._value(item) for item in value]
        if isinstance(value, np.ndarray):
            return {"array": self.store.add(value), "dtype": value.dtype.name, "shape": list(value.shape)}
        kind = type(value)
        module, _, name = kind.__module__.rpartition(".")
        if module != _KERNELS or not is_dataclass(kind):
            raise TypeError(f"a plan cannot hold {kind.__name__}")
        return {
            "spec": f"{name}.{kind.__name__}",
            "fields": [self._value(getattr(value, f.name)) for f in fields(kind)],
        }


class Decoder:
    """Reads what :class:`Encoder` wrote. Raises ValueError, or what Python raises of wrong data, on any flaw.

    tables: as :meth:`Encoder.tables` returned them. blobs: the store's.
    """

    def __init__(self, tables: Mapping[str, Any], blobs: Sequence[Any]) -> None:
        self._blobs = blobs
        self._exprs: list[Expr] = []
        for row in tables["exprs"]:
            self._exprs.append(self._expr(*row))
        self.buffers = [self._buffer(*row) for row in tables["buffers"]]
        self._views = [self._view(*row) for row in tables["views"]]
        self._specs = [self._value(row) for row in tables["specs"]]

    def program(self, data: Mapping[str, Any]) -> Program:
        """Return a program."""
        steps = [
            Step(
                at(self._specs, spec),
                tuple(at(self._views, k) for k in inputs),
                tuple(at(self._views, k) for k in outputs),
                tuple(map(str, nodes)),
            )
            for spec, inputs, outputs, nodes in data["steps"]
        ]
        program = Program(steps, notes=dict(data["notes"]))
        program.inputs = {str(name): at(self._views, k) for name, k in data["inputs"]}
        program.outputs = {str(name): at(self._views, k) for name, k in data["outputs"]}
        _check(program)
        return program

    def _buffer(self, name: str, dtype: str, size: int, kind: str, data: int | None) -> Buffer:
        held = _DTYPES[dtype]
        if not isinstance(size, int) or size < 0:
            raise ValueError("a buffer of no size")
        if Kind(kind) is not Kind.CONSTANT:
            return Buffer(str(name), held, size, Kind(kind))
        content = at(self._blobs, data)
        if content.nbytes != size * held.itemsize:
            raise ValueError("a constant of another size than its buffer")
        return Buffer(str(name), held, size, Kind.CONSTANT, content.view(held))

    def _view(self, buffer: int, shape: list[int], strides: list[int], offset: int) -> View:
        view = View(at(self.buffers, buffer), tuple(shape), tuple(strides), offset)
        numbers = (*view.shape, *view.strides, view.offset)
        low, high = view.extent
        if not all(type(n) is int for n in numbers) or min(view.shape, default=0) < 0:
            raise ValueError("a view of no shape")
        if len(view.shape) != len(view.strides) or low < 0 or high > view.buffer.size:
            raise ValueError("a view past its buffer")
        return view

    def _expr(self, op: str, args: list[int], dtype: str, attr: Any) -> Expr:
        parts = [at(self._exprs, k) for k in args]
        if op in _LEAVES and not parts:
            return ex.make(op, (), _DTYPES[dtype], bytes.fromhex(attr) if op == "const" else int(attr))
        if op == "cast":
            (value,) = parts
            return ex.make("cast", (value,), _DTYPES[dtype])
        found = ex.apply(op, *parts)
        if found.dtype != _DTYPES[dtype] or attr is not None:
            raise ValueError("an expression of another dtype than its operation gives")
        return found

    def _value(self, data: Any) -> Any:
        if data is None or isinstance(data, bool | int | str):
            return data
        if isinstance(data, list):
            return tuple(self._value(item) for item in data)
        if "float" in data:
            return float.fromhex(data["float"])
        if "expr" in data:
            return at(self._exprs, data["expr"])
        if "array" in data:
            return at(self._blobs, data["array"]).view(np.dtype(data["dtype"])).reshape(data["shape"])
        if "dtype" in data:
            return _DTYPES[data["dtype"]]
        return _spec(data["spec"])(*(self._value(item) for item in data["fields"]))


def at(table: Sequence[Any], number: Any) -> Any:
    """Return an entry; Python would take negative numbers from the end."""
    if type(number) is not int or not 0 <= number < len(table):
        raise ValueError("a number past its table")
    return table[number]


def _spec(name: str) -> Any:
    """Return a dataclass of ``engine/kernels`` by ``module.Class``, nothing else."""
    if not re.fullmatch(r"[a-z]\w*\.[A-Z]\w*", name):
        raise ValueError(f"no specification is called {name}")
    module, _, kind = name.partition(".")
    found = getattr(import_module(f"{_KERNELS}.{module}"), kind)
    if not is_dataclass(found) or found.__module__ != f"{_KERNELS}.{module}":
        raise ValueError(f"no specification is called {name}")
    return found


def _check(program: Program) -> None:
    """Raise ValueError where a program's ends are not whole buffers of their kind."""
    for views, kind in ((program.inputs, Kind.INPUT), (program.outputs, Kind.OUTPUT)):
        for view in views.values():
            if view.buffer.kind is not kind or not view.contiguous or view.size != view.buffer.size:
                raise ValueError("an input or output that is no buffer of its own")
    held = {view.buffer for view in (*program.inputs.values(), *program.outputs.values())}
    for step in program.steps:
        for view in (*step.inputs, *step.outputs):
            if view.buffer.kind in (Kind.INPUT, Kind.OUTPUT) and view.buffer not in held:
                raise ValueError("a step on an array that no caller gives")
        if any(view.buffer.kind in (Kind.INPUT, Kind.CONSTANT) for view in step.outputs):
            raise ValueError("a step that writes what it may only read")
        check(step)
