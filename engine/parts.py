"""What a graph at known shapes becomes: the states of its values, and parts that run one after another."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from graphdoc.engine.body import Step as Node
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.lower import Site
from graphdoc.engine.ops.table import TensorType
from graphdoc.engine.program import Buffer, Kind, Program, View, whole

_UNKNOWN = TensorType()

_FOLLOWED = 1024
"""Elements up to which inference sees the content of a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value that is the same in every run of these shapes; None stands for an omitted input.

    shared: it follows from the weights alone, whatever the shapes.
    """

    value: Any
    shared: bool = False

    @property
    def type(self) -> TensorType:
        value = self.value
        if not isinstance(value, np.ndarray):
            return _UNKNOWN
        return TensorType(value.dtype, value.shape, value if value.size <= _FOLLOWED else None)


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A value of the program at a level."""

    key: str
    level: int
    view: View

    @property
    def type(self) -> TensorType:
        return TensorType(self.view.dtype, self.view.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Hosted:
    """A value that lies among the run's arrays, there once the host nodes of its level have run.

    settled: the type will not become better known (a sequence, an absent optional).
    """

    key: str
    level: int
    type: TensorType
    settled: bool = False


State: TypeAlias = Known | Computed | Hosted
Place: TypeAlias = tuple[int, ir.Value]
"""A value in one frame: the main graph, a branch, or one call of a function."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A node to visit in a frame."""

    node: Node
    frame: int


@dataclass(frozen=True, slots=True)
class Bind:
    """A value that is another one's: an output of a branch or a function."""

    target: Place
    source: Place
    key: str


Item: TypeAlias = Visit | Bind
Source: TypeAlias = Known | str
"""What a host node reads: a constant, or an array of the run by its key."""


@dataclass(slots=True)
class Segment:
    """A program whose inputs and outputs are named by the keys of the run's arrays."""

    program: Program = field(default_factory=Program)
    executable: Any = None

    def take(self, key: str, known: TensorType) -> View:
        """Return the view of an input, new or not."""
        if key not in self.program.inputs:
            shape = tuple(int(d) for d in known.shape or ())  # type: ignore[arg-type]
            size = int(np.prod(shape, dtype=np.int64))
            self.program.inputs[key] = whole(Buffer(key, np.dtype(known.dtype), size, Kind.INPUT), shape)
        return self.program.inputs[key]

    def give(self, key: str, view: View) -> None:
        """Make a value an output."""
        if key not in self.program.outputs:
            buffer = Buffer(key, view.dtype, view.size, Kind.OUTPUT)
            target = self.program.outputs[key] = whole(buffer, view.shape)
            Site(self.program, key).copy(view, target)


@dataclass(frozen=True, slots=True)
class HostNode:
    """A node that level 0 runs. captured: what its bodies read of the graphs around, by body."""

    node: Node
    inputs: tuple[Source, ...]
    outputs: tuple[str, ...]
    captured: Mapping[str, tuple[Source, ...]]


Part: TypeAlias = Segment | HostNode


@dataclass(slots=True)
class Rest:
    """What is left of a graph, and the states of what it reads.

    parents: by frame, the one around it, -1 for none. asked: keys of what a run must tell before the rest can
    be made, conditions: those whose content counts, not their type. fresh: nothing of the graph is done yet.
    """

    items: list[Item]
    states: dict[Place, State]
    parents: list[int]
    asked: list[str] = field(default_factory=list)
    conditions: frozenset[str] = frozenset()
    fresh: bool = False


@dataclass(slots=True)
class Stage:
    """Parts in the order they run. results: the sources of the graph's outputs, once all is done.

    taps: the sources of tapped values that this stage computes, and whether they lie in a branch, body or
    function. frees: by part, the keys no later one reads. notes: why nodes run on the host, by key.
    calls: the parts as functions (``engine/calls.py``), once they are loaded on a device; busy: those that do
    anything. own: keys of arrays
    that programs write, in memory that nobody else has.
    """

    parts: list[Part]
    rest: Rest | None
    results: tuple[Source | None, ...]
    taps: dict[str, tuple[Source, bool]]
    frees: list[list[str]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    busy: list[Any] = field(default_factory=list)
    own: frozenset[str] = frozenset()
    next: OrderedDict[Any, "Stage"] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a run asks for besides the outputs.

    taps: keys of values to return. given: by key, where a run finds the value to go on with in place of the
    computed one.
    """

    taps: frozenset[str] = frozenset()
    given: Mapping[str, "Hosted"] = field(default_factory=dict)


def frees_of(stage: Stage, states: Mapping[Place, State]) -> list[list[str]]:
    """Return, by part, the keys of arrays that nothing reads after it."""
    kept = {s for s in (*stage.results, *(source for source, _ in stage.taps.values())) if isinstance(s, str)}
    if stage.rest is not None:
        kept |= {s.key for s in stage.rest.states.values() if not isinstance(s, Known)}
    last: dict[str, int] = {}
    for position, part in enumerate(stage.parts):
        for key in _touched(part):
            last[key] = position
    frees: list[list[str]] = [[] for _ in stage.parts]
    for key, position in last.items():
        if key not in kept:
            frees[position].append(key)
    return frees


def _touched(part: Part) -> Iterable[str]:
    if isinstance(part, Segment):
        return (*part.program.inputs, *part.program.outputs)
    sources = (*part.inputs, *(s for states in part.captured.values() for s in states))
    return (*(s for s in sources if isinstance(s, str)), *part.outputs)


def holds(value: Any, name: str) -> bool:
    """Return whether the condition of an If, called ``name``, is true.

    Raises RunnerError where it is not one element.
    """
    if np.size(value) != 1:
        raise RunnerError(
            f"runner engine failed at If: its condition '{name}' has {np.size(value)} elements, not one",
            next_step="look at the layer and its inputs:  graphdoc inspect MODEL --layers",
        )
    return bool(np.reshape(value, ()))
