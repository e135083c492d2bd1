"""Which values lie on a card and which on the host, and steps that run on the host for want of CuPy's help.

A card holds the dtypes of :data:`HELD`. Strings, float8 and 4-bit numbers stay on the host, and so does the
work of every step that reads one, or whose operator :data:`ON_HOST` lists. Each such step is reported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from graphdoc.engine.ops.dtypes import from_code
from graphdoc.engine.ops.host import to_host
from graphdoc.engine.ops.table import Call, Operator

HELD = frozenset(
    {
        *(
            np.dtype(kind)
            for kind in (np.bool_, np.float16, np.float32, np.float64, np.complex64, np.complex128)
        ),
        *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        np.dtype(ml_dtypes.bfloat16),
    }
)
"""The dtypes that CuPy computes with."""

ON_HOST: Mapping[tuple[str, str], str] = {}
"""(domain, operator) → what CuPy lacks for it."""

Note = Callable[[str, str, str], None]
"""Takes domain, operator and the reason of a step that runs on the host."""


def held(value: Any) -> bool:
    """Whether a value may lie on a card."""
    return isinstance(value, np.ndarray | np.generic) and value.dtype in HELD


def place(xp: Any, value: Any) -> Any:
    """Return a value, or a list of them, on the card where it may lie there."""
    if isinstance(value, list | tuple):
        return type(value)(place(xp, item) for item in value)
    return xp.asarray(value) if held(value) else value


def fetch(value: Any) -> Any:
    """Return a value, or a list of them, on the host."""
    if isinstance(value, list | tuple):
        return type(value)(fetch(item) for item in value)
    return to_host(value)


def _keeps_to_host(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_keeps_to_host, value))
    return isinstance(value, np.ndarray)


@dataclass(frozen=True, slots=True)
class Placed:
    """An operator of which each call runs on the card or, where that cannot be, on the host."""

    row: Operator
    card: Call
    host: Call
    reason: str
    note: Note

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        holds_graph = any(map(callable, attributes.values()))
        reason = self.reason or ("" if holds_graph else self._forced(inputs, attributes))
        if not reason:
            return self.row.evaluate(self.card, *inputs, **attributes)
        self.note(self.row.domain, self.row.name, reason)
        return place(self.card.xp, self.row.evaluate(self.host, *map(fetch, inputs), **attributes))

    def _forced(self, inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> str:
        """Return why this call has to run on the host: a dtype that the card does not hold."""
        codes = (attributes.get(name) for name in ("to", "output_dtype", "dtype"))
        unheld = any(isinstance(code, int) and code and from_code(code) not in HELD for code in codes)
        return "a dtype that CuPy lacks" if unheld or any(map(_keeps_to_host, inputs)) else ""


def on_host(xp: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the host as one that takes and returns arrays of the card."""
    return lambda *inputs: place(xp, run(*map(fetch, inputs)))


def placed(row: Operator, card: Call, note: Note, attributes: Mapping[str, Any]) -> partial[Any]:
    """Return the operator bound to its attributes, for a card."""
    reason = ON_HOST.get((row.domain, row.name), "")
    call = Placed(row, card, replace(card, xp=np, memo={}), reason, note)
    return partial(call, **attributes)
