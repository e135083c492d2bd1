"""Rules of one's own: a class with ``pattern``, ``check`` and ``rewrite``::

    class SigmoidTimesSelf(PatternRule):
        def pattern(self, op, x):
            return op.Mul(x, op.Sigmoid(x))

        def rewrite(self, op, x):
            return op.Swish(x)

:mod:`graphdoc.surgeon.pattern` is the language of patterns. The ``op`` of ``rewrite`` makes nodes, in the
model's opset; see :class:`Builder`.
"""

import inspect
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.engine.ops.table import TensorType
from graphdoc.surgeon.builder import Builder, Impossible
from graphdoc.surgeon.pattern import Pattern, Recorder, record
from graphdoc.surgeon.pattern_match import Match, Matcher
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, has_references

_GIVEN = ("match", "context")
"""Parameters of ``rewrite`` that are no names of the pattern."""


class PatternRule:
    """Base of rules that replace what matches a pattern.

    name: what ``--only`` and ``--rules`` take; the class's name in kebab-case unless it is set. group: the
    family. default: whether ``graphdoc simplify`` applies it unasked.
    """

    name: str = ""
    group: str = "user"
    default: bool = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def pattern(self, op: Recorder, *args: Any, **kwargs: Any) -> Any:
        """Return the pattern, or a tuple of patterns for several outputs."""
        raise UsageError(
            f"rule {type(self).__name__} has no pattern", next_step="define pattern(self, op, …)"
        )

    def check(self, match: Match, context: Context) -> Refusal | None:
        """Return why what matched must stay as it is, None to go on. The graph is not to be changed here.

        An empty reason is one that is not worth a word.
        """
        return None

    def rewrite(self, op: Builder, *args: Any, **kwargs: Any) -> Any:
        """Make the replacement; return one value for each output of the pattern, or a Refusal.

        Asks by name for what it needs: variables of the pattern (``ir.Value``, None when absent), captured
        attributes, ``match`` and ``context``.
        """
        raise UsageError(
            f"rule {type(self).__name__} has no rewrite", next_step="define rewrite(self, op, …)"
        )

    @cached_property
    def recorded(self) -> Pattern:
        """The pattern, recorded once.

        Raises UsageError when it is none, ``rewrite`` is missing or asks for a name that it does not have.
        """
        for method in ("pattern", "rewrite"):
            if getattr(type(self), method) is getattr(PatternRule, method):
                name = type(self).__name__
                raise UsageError(
                    f"{name} has no {method}", where=name, next_step=f"def {method}(self, op, …)"
                )
        pattern = record(self.pattern)
        strange = [name for name in self._wanted if name not in (*pattern.variables, *_GIVEN)]
        if strange:
            raise UsageError(
                f"rewrite asks for '{strange[0]}', which the pattern does not name",
                where=type(self).__name__,
                next_step=f"names are {', '.join(sorted(pattern.variables))}, {', '.join(_GIVEN)}",
            )
        return pattern

    @cached_property
    def _wanted(self) -> dict[str, inspect.Parameter]:
        _, *parameters = inspect.signature(self.rewrite).parameters.values()
        return {parameter.name: parameter for parameter in parameters}

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators at which the rule is tried."""
        return self.recorded.ops

    def apply(self, node: ir.Node, context: Context) -> Edit | Refusal | None:
        """Try the rule with ``node`` as the anchor; on a match the graph is edited in place."""
        if has_references(node):
            return None
        matcher = Matcher(self.recorded, node, context)
        for match in matcher.matches():
            outcome = self.check(match, context) or self._replace(match, context)
            if isinstance(outcome, Edit):
                return outcome
            matcher.refuse(outcome.reason)
        nearest = matcher.nearest
        return nearest if nearest is not None and nearest.reason else None

    def _replace(self, match: Match, context: Context) -> Edit | Refusal:
        builder = Builder(context, match.anchor)
        results = self._build(builder, match, context)
        if not isinstance(results, Refusal):
            results = _fault(match, results, context) or results
        if isinstance(results, Refusal):
            builder.undo()
            return results
        before = [node.op_type for node in match.nodes]
        for old, new in zip(match.outputs, results, strict=True):
            context.replace(old, new)
        _remove(match.nodes, context)
        if len(match.outputs) > 1:
            builder.sort()
        after = [node.op_type for node in builder.nodes]
        return Edit(f"{_listed(before)} → {_listed(after) or 'nothing'}")

    def _build(self, builder: Builder, match: Match, context: Context) -> tuple[ir.Value, ...] | Refusal:
        named = {**match.names, "match": match, "context": context}
        single = [n for n, p in self._wanted.items() if p.kind is not p.VAR_POSITIONAL]
        rest = [each for n, p in self._wanted.items() if p.kind is p.VAR_POSITIONAL for each in named[n]]
        keyword = [n for n in single if self._wanted[n].kind is inspect.Parameter.KEYWORD_ONLY]
        try:
            result = self.rewrite(
                builder,
                *(named[n] for n in single if n not in keyword),
                *rest,
                **{n: named[n] for n in keyword},
            )
        except Impossible as reason:
            return Refusal(str(reason))
        if isinstance(result, Refusal):
            return result
        results = tuple(result) if isinstance(result, Sequence) else (result,)
        if len(results) != len(match.outputs) or not all(isinstance(each, ir.Value) for each in results):
            raise UsageError(
                f"rewrite must return {len(match.outputs)} value(s), one for each output of the pattern",
                where=type(self).__name__,
                next_step="return op.Relu(x)",
            )
        return results


def _fault(match: Match, results: Sequence[ir.Value], context: Context) -> Refusal | None:
    """Return why the replacement cannot take the place of what matched."""
    for old, new in zip(match.outputs, results, strict=True):
        was, becomes = context.type_of(old), context.type_of(new)
        reason = type_fault(was, becomes)
        if reason:
            return Refusal(f"'{old.name}' {reason}")
    if len(match.outputs) > 1 and _circular(match, results):
        return Refusal("an input of the replacement depends on one of its outputs")
    return None


def type_fault(was: TensorType, becomes: TensorType) -> str:
    """Return in what two types contradict each other, in words; "" when they do not."""
    if was.dtype is not None and becomes.dtype is not None and was.dtype != becomes.dtype:
        return f"would become {becomes.dtype} where it was {was.dtype}"
    if was.shape is None or becomes.shape is None:
        return ""
    differ = len(was.shape) != len(becomes.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(was.shape, becomes.shape, strict=True)
    )
    return f"would become {_shape(becomes)} where it was {_shape(was)}" if differ else ""


def _shape(kind: TensorType) -> str:
    return " × ".join("?" if dim is None else str(dim) for dim in kind.shape or ()) or "a scalar"


def _circular(match: Match, results: Sequence[ir.Value]) -> bool:
    """Whether a replacement needs one of the values that it replaces."""
    seen: set[ir.Value] = set()
    waiting = list(results)
    while waiting:
        value = waiting.pop()
        if value in match.outputs:
            return True
        maker = value.producer()
        if value not in seen and maker is not None:
            waiting.extend(each for each in maker.inputs if each is not None)
        seen.add(value)
    return False


def _remove(nodes: Sequence[ir.Node], context: Context) -> None:
    """Remove the nodes that nothing needs any more, readers before makers."""
    left = list(nodes)
    for _ in nodes:
        free = [node for node in left if context.unused(node)]
        for node in free:
            context.remove(node)
            left.remove(node)
        if not free:
            return


def _listed(ops: Sequence[str]) -> str:
    """Return operators in words: each once, with its number."""
    counts = dict.fromkeys(ops, 0)
    for op in ops:
        counts[op] += 1
    return ", ".join(op if count == 1 else f"{count} {op}" for op, count in counts.items())
