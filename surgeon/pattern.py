"""The pattern language: a piece of graph, written as ordinary calls.

A function ``pattern(op, x, y)`` is called once with a recorder; what it returns is the pattern::

    def pattern(op, x, w, b=None):
        return op.Relu(op.Gemm(x, w, b, transB=1))

* Parameters are **variables**: any value, the same one wherever the variable stands twice (two constants of
  equal content count as the same). A default of None makes it optional; ``*rest`` stands for any number of
  further inputs. An input that the pattern does not list must be absent.
* ``op.Name(inputs…, attribute=…)`` is a **node**. Its attributes must be those of the pattern: a value, or
  ``op.attr(name, where=…, says=…)``, which captures it. An attribute that the pattern does not mention must
  have the specification's default. Where both inputs of a commutative operator can be swapped, they may be.
* A number is a **constant** of one element and that value: the nearest of the dtype, or one beside it if the
  dtype cannot hold the value. ``op.scalar(…)`` and ``op.constant(…)`` ask for constants in other ways.
* ``op.any_of(a, b, …)`` is one of several forms.

Keywords of a node that begin with "_": ``_domain``; ``_name``, to find it in the match; ``_outputs``, their
number; ``_shared=True``, its outputs may have other uses, it then stays; ``_since``, the oldest since_version
of the operator; ``_attributes="any"``, attributes that the pattern does not mention may be anything.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphdoc.engine.errors import UsageError
from graphdoc.engine.ops.table import canonical_domain

Number: TypeAlias = int | float | bool


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """Any value, under the name of a parameter. many: any number of values, at the end of the inputs."""

    name: str
    optional: bool = False
    many: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """A value that is the same in every run.

    variable: binds it to a name. value: what it must hold, in every element. rtol: how near, relative; None:
    as near as the dtype can. scalar: it has one element.
    """

    variable: Variable | None = None
    value: Number | None = None
    rtol: float | None = None
    scalar: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class AnyOf:
    """One of several forms; the first that fits is taken."""

    choices: tuple["Element", ...]


@dataclass(frozen=True, eq=False, slots=True)
class Attribute:
    """An attribute that is captured under a name. where: what it must fulfil, in words ``says``."""

    name: str
    where: Callable[[Any], bool] | None = None
    says: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class NodePattern:
    """A node. inputs: None for one that must be absent. See the module for the rest."""

    op: str
    inputs: tuple["Element | None", ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    outputs: int = 1
    shared: bool = False
    since: int = 0
    any_attributes: bool = False

    @property
    def operator(self) -> str:
        """The operator as rules spell it: "Conv", "com.microsoft::Gelu"."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """The value that a node makes as its output ``index``."""

    node: NodePattern
    index: int = 0


Element: TypeAlias = Variable | Constant | AnyOf | Output

COMMUTATIVE = frozenset(
    {"Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum"}
    | {"Xor"}
)
"""Operators of ai.onnx whose two inputs may be swapped."""


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """A recorded pattern.

    outputs: the values that a rewrite replaces; the first one's node is the anchor, at which it is tried.
    variables: the names of variables and captured attributes that a match may bind.
    """

    outputs: tuple["Output | AnyOf", ...]
    variables: frozenset[str]

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators that the anchor may be."""
        return tuple(dict.fromkeys(leaf.node.operator for leaf in leaves(self.outputs[0])))


class Recorder:
    """The ``op`` of a pattern function: its calls make pattern nodes."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[:1].isupper():
            raise UsageError(f"op.{name} is no operator", next_step="operators begin with a capital: op.Add")
        return lambda *inputs, **keywords: self.node(name, *inputs, **keywords)

    def node(
        self,
        op: str,
        *inputs: Any,
        _domain: str = "",
        _name: str = "",
        _outputs: int = 1,
        _shared: bool = False,
        _since: int = 0,
        _attributes: str = "given",
        **attributes: Any,
    ) -> Any:
        """Return the output of a node, or a tuple of them when ``_outputs`` is more than one."""
        if _attributes not in ("given", "any"):
            raise UsageError(f"_attributes is '{_attributes}'", next_step='_attributes="any"')
        pattern = NodePattern(
            op,
            tuple(None if each is None else element(each) for each in inputs),
            attributes,
            canonical_domain(_domain),
            _name,
            _outputs,
            _shared,
            _since,
            _attributes == "any",
        )
        made = tuple(Output(pattern, index) for index in range(_outputs))
        return made[0] if _outputs == 1 else made

    def any_of(self, *choices: Any) -> AnyOf:
        """Return one of several forms, tried in this order."""
        return AnyOf(tuple(element(choice) for choice in choices))

    def constant(self, what: Variable | Number | None = None, *, rtol: float | None = None) -> Constant:
        """Return a constant: a variable's, or one that holds a number in every element; of any shape."""
        return _constant(what, rtol, scalar=False)

    def scalar(self, what: Variable | Number | None = None, *, rtol: float | None = None) -> Constant:
        """Return a constant of one element: a variable's, or a number within ``rtol``."""
        return _constant(what, rtol, scalar=True)

    def attr(self, name: str, *, where: Callable[[Any], bool] | None = None, says: str = "") -> Attribute:
        """Return an attribute captured as ``name``, which must fulfil ``where``; ``says`` words that."""
        return Attribute(name, where, says)


def _constant(what: Variable | Number | None, rtol: float | None, *, scalar: bool) -> Constant:
    if isinstance(what, Variable):
        return Constant(what, None, rtol, scalar)
    return Constant(None, what, rtol, scalar)


def element(part: Any) -> Element:
    """Return an argument of a pattern's call as element; numbers are constants of one element."""
    if isinstance(part, Variable | Constant | AnyOf | Output):
        return part
    if isinstance(part, bool | int | float):
        return Constant(value=part, scalar=True)
    raise UsageError(
        f"a pattern's input is {type(part).__name__} {part!r}",
        next_step="inputs are variables, numbers, None and what op.… returns",
    )


def record(function: Callable[..., Any]) -> Pattern:
    """Call a pattern function ``pattern(op, x, y=None, *rest)`` once and return what it describes.

    Raises UsageError when what it returns is no pattern.
    """
    _, *parameters = inspect.signature(function).parameters.values()
    single = [_variable(p) for p in parameters if p.kind is not p.VAR_POSITIONAL]
    many = [Variable(p.name, many=True) for p in parameters if p.kind is p.VAR_POSITIONAL]
    returned = function(Recorder(), *single, *many)
    outputs = tuple(returned) if isinstance(returned, Sequence) else (returned,)
    if not outputs or not all(_is_made(output) for output in outputs):
        raise UsageError(
            "a pattern returns what nodes make",
            where=getattr(function, "__qualname__", "pattern"),
            next_step="return op.Add(x, y)",
        )
    return Pattern(outputs, frozenset(p.name for p in parameters) | frozenset(_captured(outputs)))


def _is_made(part: Any) -> bool:
    """Whether an element is made by a node in all its forms."""
    if isinstance(part, AnyOf):
        return all(_is_made(choice) for choice in part.choices)
    return isinstance(part, Output)


def leaves(part: Element) -> list[Output]:
    """Return the forms of an element that are made by nodes."""
    if isinstance(part, AnyOf):
        return [leaf for choice in part.choices for leaf in leaves(choice)]
    return [part] if isinstance(part, Output) else []


def _variable(parameter: inspect.Parameter) -> Variable:
    return Variable(parameter.name, optional=parameter.default is not parameter.empty)


def nodes_of(elements: Sequence["Element | None"]) -> list[NodePattern]:
    """Return the node patterns below elements, each once, roots first."""
    found: dict[NodePattern, None] = {}
    waiting = list(elements)
    while waiting:
        part = waiting.pop()
        if isinstance(part, AnyOf):
            waiting.extend(part.choices)
        elif isinstance(part, Output) and part.node not in found:
            found[part.node] = None
            waiting.extend(part.node.inputs)
    return list(found)


def _captured(outputs: Sequence[Element]) -> list[str]:
    tests = [test for node in nodes_of(outputs) for test in node.attributes.values()]
    return [test.name for test in tests if isinstance(test, Attribute)]
