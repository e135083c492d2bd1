"""A namespace that behaves as CuPy does towards code written for NumPy, on a machine without a card.

Arrays are a class of their own around NumPy's. What CuPy refuses is refused: implicit conversion to NumPy,
operands that lie on the host, functions, parameters, methods and dtypes that CuPy lacks (cupy_names.toml
lists what CuPy 14.2 has). NumPy's functions called on such arrays are handed on to this namespace, as CuPy
does.
"""

import pathlib
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.engine.device.placement import fetch, place, placed
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.ops.table import Call, Operator

_FACTS = tomllib.loads((pathlib.Path(__file__).parent / "cupy_names.toml").read_text(encoding="utf-8"))
_PARAMETERS = {name: set(text.split()) for name, text in _FACTS["functions"].items()}
_UFUNCS = set(_FACTS["names"]["ufuncs"].split())
_METHODS = set(_FACTS["names"]["methods"].split())
_TYPES = set(_FACTS["names"]["types"].split())
_UFUNC_PARAMETERS = {"out", "dtype", "casting"}
_AT = {"add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
_REDUCE = {"add", "multiply"}
_MAKERS = {"array", "asarray", "ascontiguousarray", "asanyarray"}
"""Functions that take arrays of the host."""

_DTYPES = {np.dtype(code) for code in "?bhilqBHILQefdFD"} | {np.dtype(ml_dtypes.bfloat16)}


class NotOnCardError(TypeError):
    """What CuPy would refuse."""


class Array:
    """An array on the pretended card."""

    __slots__ = ("_host",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: Any) -> None:
        host = np.asarray(host)
        if host.dtype not in _DTYPES:
            raise NotOnCardError(f"CuPy has no arrays of {host.dtype}")
        self._host = host

    def get(self) -> np.ndarray[Any, Any]:
        """Return a copy on the host."""
        return self._host.copy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotOnCardError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        function = getattr(NAMESPACE, ufunc.__name__)
        return (function if method == "__call__" else getattr(function, method))(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        del types
        module = function.__module__.removeprefix("numpy").lstrip(".")
        place = NAMESPACE if not module else getattr(NAMESPACE, module)
        return getattr(place, function.__name__)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(f"CuPy's arrays have no '{name}'")
        found = getattr(self._host, name)
        if callable(found) and not isinstance(found, np.ndarray):
            return lambda *args, **options: _wrapped(found(*_bare(args), **_bare(options)), kept=name)
        return Array(found) if isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (Array(item) for item in self._host)

    def __getitem__(self, key: Any) -> "Array":
        return Array(self._host[_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[_index(key)] = _bare(value)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __float__(self) -> float:
        return float(self._host)

    def __index__(self) -> int:
        return self._host.__index__()

    def __complex__(self) -> complex:
        return complex(self._host)


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Array, *others: Any) -> Any:
        return _wrapped(getattr(self._host, name)(*_bare(others)))

    return apply


_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
]
_OTHER = ["eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "divmod"]
for _name in [*(side + op for side in ("", "r", "i") for op in _BINARY), *_OTHER]:
    setattr(Array, f"__{_name}__", _operator(f"__{_name}__"))


def _bare(value: Any) -> Any:
    """Return what NumPy is to compute on; arrays of the host are not taken, its scalars are."""
    if isinstance(value, Array):
        return value._host
    if isinstance(value, np.ndarray):
        raise NotOnCardError("an operand lies on the host")
    if isinstance(value, list | tuple):
        return type(value)(_bare(item) for item in value)
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()}
    return value


def _index(key: Any) -> Any:
    return tuple(map(_bare, key)) if isinstance(key, tuple) else _bare(key)


def _wrapped(value: Any, kept: str = "") -> Any:
    """Return results as arrays of the card, scalars too; what ``item`` and ``tolist`` give stays as it is."""
    if kept in ("item", "tolist", "tobytes"):
        return value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_wrapped(item) for item in value)
    return Array(value) if isinstance(value, np.ndarray | np.generic) else value


class _Ufunc:
    """A function of elements; ``at``, ``reduce`` and so on only where CuPy has them."""

    def __init__(self, name: str) -> None:
        self._name = self.__name__ = name
        self._ufunc = getattr(np, name)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        _check(self._name, options, _UFUNC_PARAMETERS)
        return _kept_out(options, self._ufunc(*_bare(inputs), **_bare(options)))

    def _method(self, method: str, having: set[str]) -> Callable[..., Any]:
        if self._name not in having:
            raise NotOnCardError(f"CuPy has no {self._name}.{method}")
        return lambda *inputs, **options: _wrapped(
            getattr(self._ufunc, method)(*_bare(inputs), **_bare(options))
        )

    @property
    def at(self) -> Callable[..., Any]:
        return self._method("at", _AT)

    @property
    def reduce(self) -> Callable[..., Any]:
        return self._method("reduce", _REDUCE)

    @property
    def accumulate(self) -> Callable[..., Any]:
        return self._method("accumulate", _REDUCE)

    @property
    def outer(self) -> Callable[..., Any]:
        return self._method("outer", _UFUNCS)


def _kept_out(options: dict[str, Any], result: Any) -> Any:
    out = options.get("out")
    out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    return _wrapped(result) if out is None else out


def _check(name: str, options: dict[str, Any], known: set[str]) -> None:
    unknown = set(options) - known
    if unknown and "kwargs" not in known:
        raise NotOnCardError(f"CuPy's {name} takes no {', '.join(sorted(unknown))}")


class _Ogrid:
    def __getitem__(self, key: Any) -> Any:
        return _wrapped(list(np.ogrid[key])) if isinstance(key, tuple) else Array(np.ogrid[key])


class Namespace:
    """``cupy``, or a module of it such as ``cupy.linalg``."""

    Array = Array
    ndarray = Array
    ogrid = property(lambda self: _Ogrid())
    newaxis, inf, nan, pi, e = None, np.inf, np.nan, np.pi, np.e

    def __init__(self, name: str = "") -> None:
        self._prefix = name and f"{name}."
        self.__name__ = f"cupy.{name}".rstrip(".")

    def __getattr__(self, name: str) -> Any:
        full = self._prefix + name
        if any(known.startswith(f"{full}.") for known in _PARAMETERS):
            return Namespace(full)
        if not self._prefix and name in _TYPES:
            return getattr(np, name)
        if not self._prefix and name in _UFUNCS:
            return _Ufunc(name)
        if full not in _PARAMETERS:
            raise AttributeError(f"CuPy has no {full}")
        return self._function(full)

    def _function(self, full: str) -> Callable[..., Any]:
        numpy_function: Any = np
        for part in full.split("."):
            numpy_function = getattr(numpy_function, part)

        def call(*args: Any, **options: Any) -> Any:
            _check(
                full,
                options,
                _PARAMETERS[full] | _UFUNC_PARAMETERS if full == "matmul" else _PARAMETERS[full],
            )
            if full in _MAKERS:
                first, *rest = args
                first = first if isinstance(first, np.ndarray) else _bare(first)
                return Array(numpy_function(first, *rest, **options))
            return _kept_out(options, numpy_function(*_bare(args), **_bare(options)))

        return call


NAMESPACE: Any = Namespace()


def model_agrees(
    model: ir.Model, feeds: dict[str, Any], results: dict[str, Any], *, truth: bool = False
) -> None:
    """Assert that a model gives the same results on the pretended card."""
    found = Interpreter(model, truth=truth, xp=NAMESPACE).run(feeds)
    for name, want in results.items():
        assert_same(found[name], want)


def row_agrees(row: Operator, call: Call, inputs: Any, attributes: dict[str, Any], results: Any) -> None:
    """Assert that an operator gives the same results on the pretended card."""
    card = placed(
        row, replace(call, xp=NAMESPACE, memo={}, rng=np.random.default_rng(0)), lambda *_: None, attributes
    )
    with np.errstate(all="ignore"):
        found = card(*place(NAMESPACE, list(inputs)))
    for got, want in zip(found if isinstance(found, tuple) else (found,), results, strict=False):
        assert_same(fetch(got), want)


def assert_same(got: Any, want: Any) -> None:
    """Assert that two values are the same to the bit."""
    if isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    elif isinstance(want, np.ndarray | np.generic):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.tolist() == want.tolist() if want.dtype == object else _bits(got) == _bits(want)
    else:
        assert got == want


def _bits(x: Any) -> bytes:
    """Return the content with all NaN made one."""
    nan = np.asarray(x != x)
    return np.where(nan, np.zeros_like(x), x).tobytes() + nan.tobytes()
