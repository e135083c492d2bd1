"""Which weights of a model can be exchanged in its plan: those that stand in the programs just as they are.

Optimising may have computed with a weight: folded it into another, put it into an expression, looked at its
content. That is found out by experiment: the programs are made once more with other numbers in the weights.
Where nothing differs but constants that hold exactly the new numbers, those weights can be exchanged. If
something else differs, the weights are tried in halves.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine import expr as ex
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.plan import Entry, Types
from graphdoc.engine.plan_build import entry, prepared
from graphdoc.engine.program import Buffer, Kind, Program, View
from graphdoc.engine.weights import Weights

_FLOATS = (ex.F32, ex.F64, ex.F16, ex.BF16)
_TRIALS = 12
"""Times that the programs are made again at most; weights not told apart by then cannot be exchanged."""

Found = dict[str, list[Buffer]]


def exchangeable(model: ir.Model, choices: Sequence[Types], made: Sequence[Entry]) -> Found:
    """Return the buffers of each weight that can be exchanged, in the programs of ``made``.

    choices: the input types that ``made`` was made for, in order.
    """
    trials = _Trials(prepared(model), choices, made)
    names = [n for n, v in trials.values.items() if n in model.graph.initializers and _open(trials.before[v])]
    good = [name for part in trials.sound(names) for name in part]
    found = (trials.differences(good) if good else None) or {}
    return {name: buffers for name, buffers in sorted(found.items()) if buffers}


def _open(array: Any) -> bool:
    """Whether a weight may be tried: single numbers always become part of expressions."""
    return isinstance(array, np.ndarray) and array.dtype in _FLOATS and array.size > 1


class _Trials:
    """Programs made with other numbers. values, before: the model's constants by name, and their content."""

    def __init__(self, compiled: Compiled, choices: Sequence[Types], made: Sequence[Entry]) -> None:
        self._compiled, self._choices, self._made = compiled, choices, made
        self.before = dict(compiled.graph.body.constants)
        self.values = {str(value.name): value for value in self.before}
        self._left = _TRIALS

    def sound(self, names: list[str]) -> Iterator[list[str]]:
        """Yield parts of the names that can be exchanged together."""
        if not names or not self._left:
            return
        self._left -= 1
        if self.differences(names) is not None:
            yield names
        elif len(names) > 1:
            half = len(names) // 2
            yield from self.sound(names[:half])
            yield from self.sound(names[half:])

    def differences(self, names: Sequence[str]) -> Found | None:
        """Return the buffers that hold these weights, None when anything else depends on one of them."""
        other = {name: _other(self.before[self.values[name]], k) for k, name in enumerate(names)}
        body = self._compiled.graph.body
        body.constants.update(self.before)
        body.constants.update({self.values[name]: array for name, array in other.items()})
        self._compiled.graph.weights = Weights()
        contents = {array.tobytes(): name for name, array in other.items()}
        found: Found = {name: [] for name in names}
        for types, old in zip(self._choices, self._made, strict=True):
            new = entry(self._compiled, dict(types))
            pairs = _pairs(old.program, new.program)
            if pairs is None or old.outputs != new.outputs:
                return None
            for a, b in pairs.items():
                if a.kind is not Kind.CONSTANT or a.data.tobytes() == b.data.tobytes():
                    continue
                name = contents.get(b.data.tobytes())
                if name is None:
                    return None
                found[name].append(a)
        return found


def _other(array: Any, seed: int) -> Any:
    """Return an array of other numbers of about the same size, no two weights alike."""
    rng = np.random.default_rng(seed)
    scale = float(np.abs(array.astype(np.float64)).max()) or 1.0
    return (rng.uniform(0.25, 1.0, array.shape) * scale).astype(array.dtype)


def _pairs(old: Program, new: Program) -> Mapping[Buffer, Buffer] | None:
    """Return the buffers that stand for each other, None when the programs differ in more than contents."""
    views_old, views_new = list(_views(old)), list(_views(new))
    if [s.spec for s in old.steps] != [s.spec for s in new.steps] or len(views_old) != len(views_new):
        return None
    pairs: dict[Buffer, Buffer] = {}
    for a, b in zip(views_old, views_new, strict=True):
        if _form(a) != _form(b) or pairs.setdefault(a.buffer, b.buffer) is not b.buffer:
            return None
    return pairs


def _views(program: Program) -> Iterator[View]:
    yield from program.inputs.values()
    yield from program.outputs.values()
    for step in program.steps:
        yield from step.inputs
        yield from step.outputs


def _form(view: View) -> Any:
    buffer = view.buffer
    return view.shape, view.strides, view.offset, buffer.dtype, buffer.size, buffer.kind
