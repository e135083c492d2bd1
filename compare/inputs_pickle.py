"""Arrays of strings out of NumPy's pickles, without unpickling.

NumPy stores an object array as a pickle, and a pickle is a program that may call anything. This module
runs the dozen instructions such a program needs to describe an array of strings, on stand-ins: names and
calls are only noted. Any other instruction, name or element is refused.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class RefusedError(Exception):
    """The pickle holds something else than an array of strings."""


@dataclass(slots=True)
class Noted:
    """A name, a call of a name, or an object with its state, as the pickle describes it."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


_NAMES = frozenset(
    f"{module} {name}"
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
    for name in ("_reconstruct", "scalar", "ndarray", "dtype")
) | {"_codecs encode"}

_MARK = object()


def strings_from_pickle(data: bytes | bytearray) -> Array:
    """Return the elements of a pickled object array of strings, one axis. Raises RefusedError."""
    result = _run(bytes(data))
    if not isinstance(result, Noted) or not result.name.endswith("_reconstruct"):
        raise RefusedError("it is no array")
    state = result.state
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], list)):
        raise RefusedError("it is no array of objects")
    array = np.empty(len(state[4]), dtype=object)
    array[:] = [_text(item) for item in state[4]]
    return array


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Noted) and item.name.endswith("scalar"):
        return _scalar(item)
    raise RefusedError(f"an element is no string but {_kind(item)}")


def _kind(item: Any) -> str:
    return item.name.replace(" ", ".") if isinstance(item, Noted) else type(item).__name__


def _scalar(item: Noted) -> str:
    """Return a ``numpy.str_``: a dtype of kind U, and UTF-32 in the dtype's byte order."""
    code, raw = (*item.arguments, None, None)[:2]
    raw = _bytes(raw)
    kind = code.arguments[0] if isinstance(code, Noted) and code.arguments else ""
    if not isinstance(kind, str) or not kind.startswith("U") or raw is None:
        raise RefusedError("an element is no string")
    order = code.state[1] if isinstance(code.state, tuple) and len(code.state) > 1 else "<"
    try:
        return raw.decode("utf-32-be" if order == ">" else "utf-32-le").rstrip("\0")
    except UnicodeDecodeError as error:
        raise RefusedError("a string is not valid") from error


def _bytes(raw: Any) -> bytes | None:
    """Return bytes, which old protocols write as a call of codecs.encode(text, 'latin1')."""
    if isinstance(raw, Noted) and raw.name == "_codecs encode":
        text = raw.arguments[0] if raw.arguments else None
        return text.encode("latin1", "replace") if isinstance(text, str) else None
    return raw if isinstance(raw, bytes) else None


# ---- the machine --------------------------------------------------------------------------------------


def _run(data: bytes) -> Any:
    """Run the program and return what it leaves."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            action = _ACTIONS.get(opcode.name)
            if action is None:
                raise RefusedError(f"instruction {opcode.name}")
            action(machine, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"the pickle is damaged ({error})") from error
    if not machine.stack:
        raise RefusedError("it is empty")
    return machine.stack[-1]


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def top(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise RefusedError("the pickle is damaged")
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def marked(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken


def _name(machine: _Machine, text: str) -> None:
    if text not in _NAMES:
        raise RefusedError(f"it names {text.replace(' ', '.')}")
    machine.push(Noted(text))


def _stack_name(machine: _Machine, _argument: Any) -> None:
    module, name = machine.top(2)
    _name(machine, f"{module} {name}")


def _call(machine: _Machine, _argument: Any) -> None:
    function, arguments = machine.top(2)
    if not isinstance(function, Noted) or not isinstance(arguments, tuple) or function.arguments:
        raise RefusedError("it calls what is no name")
    machine.push(Noted(function.name, arguments))


def _build(machine: _Machine, _argument: Any) -> None:
    state = machine.top(1)[0]
    target = machine.stack[-1]
    if not isinstance(target, Noted):
        raise RefusedError("it changes what is no object")
    target.state = state


def _append(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, list):
        raise RefusedError("it appends to what is no list")
    target.extend(items)


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.stack[-1]


def _constant(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _argument: machine.push(value)


def _literal(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


def _ignore(_machine: _Machine, _argument: Any) -> None:
    """The frame, the protocol and the end say nothing of the array."""


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _ignore),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"), _literal),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _literal),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINFLOAT"), _literal),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, at: machine.push(machine.memo[int(at)])
    ),
    "GLOBAL": _name,
    "STACK_GLOBAL": _stack_name,
    "REDUCE": _call,
    "BUILD": _build,
    "MARK": lambda machine, _argument: machine.push(_MARK),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda machine, _argument: machine.push([]),
    "TUPLE": lambda machine, _argument: machine.push(tuple(machine.marked())),
    "TUPLE1": lambda machine, _argument: machine.push(machine.top(1)),
    "TUPLE2": lambda machine, _argument: machine.push(machine.top(2)),
    "TUPLE3": lambda machine, _argument: machine.push(machine.top(3)),
    "APPEND": lambda machine, _argument: _append(machine, [machine.top(1)[0]]),
    "APPENDS": lambda machine, _argument: _append(machine, machine.marked()),
}
