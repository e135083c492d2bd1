"""Python files of rules: loaded, checked, and guarded while they work, so that a mistake names its line."""

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError, UsageError
from graphdoc.surgeon.pattern_rule import PatternRule
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, Rule, use_count

_FEW = 32
"""Readers of a value up to which they are watched."""

_ADVICE = "docs/rewrite.md shows a rule from beginning to end"


@dataclass(frozen=True)
class Guarded:
    """A rule of a user's: what it raises becomes a UsageError that names the rule and its line."""

    rule: Rule

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def group(self) -> str:
        """The rule's group."""
        return self.rule.group

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators at which it is tried."""
        return self.rule.ops

    @property
    def default(self) -> bool:
        """Whether it runs unasked."""
        return self.rule.default

    def apply(self, node: ir.Node, context: Context) -> Edit | Refusal | None:
        """Try the rule at a node.

        Raises UsageError when it fails, or changes nodes nearby and says that it did not.
        """
        place = f"{node.op_type} '{node.name or node.outputs[0].name}'"
        before = {near: _written(near) for near in _nearby(node)}
        with blamed(f"rule '{self.name}' failed at {place}", _file_of(type(self.rule))):
            outcome = self.rule.apply(node, context)
        if not isinstance(outcome, Edit) and any(_written(near) != was for near, was in before.items()):
            raise UsageError(
                f"rule '{self.name}' changed the graph at {place} and then did not go on",
                where=_file_of(type(self.rule)),
                next_step="decide in check, before anything is changed; rewrite makes new nodes with op",
            )
        return outcome


def _nearby(node: ir.Node) -> dict[ir.Node, None]:
    """Return a node and those one step away, as far as they are few."""
    found = {node: None}
    for value in (*node.inputs, *node.outputs):
        maker = None if value is None else value.producer()
        found |= {} if maker is None else {maker: None}
        if value is not None and use_count(value) <= _FEW:
            found |= dict.fromkeys(usage.node for usage in value.uses())
    return found


def _written(node: ir.Node) -> tuple[Any, ...]:
    """Return what a node says, to be compared by identity where comparing contents is dear."""
    names = [value.name for value in node.outputs]
    attributes = [(name, id(attribute)) for name, attribute in node.attributes.data.items()]
    held = [(id(value), None if value is None else id(value.const_value)) for value in node.inputs]
    return node.domain, node.op_type, node.overload, id(node.graph), names, attributes, held


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a Python file: those in its ``RULES``, else all its subclasses of PatternRule.

    Raises UsageError when there is no such file, it fails, or holds no sound rule.
    """
    module = _imported(path)
    listed = getattr(module, "RULES", None)
    if listed is None:
        classes = [item for item in vars(module).values() if _is_rule_class(item, module)]
        listed = [cls for cls in classes if not cls.__name__.startswith("_")]
    rules = tuple(of_class(item) if isinstance(item, type) else Guarded(item) for item in listed)
    if not rules:
        raise UsageError(f"'{path}' holds no rules", where=str(path), next_step=_ADVICE)
    return rules


def of_class(cls: type[Any]) -> Rule:
    """Return an instance of a rule class, its pattern recorded and checked.

    Raises UsageError when that fails.
    """
    with blamed(f"rule {cls.__name__} cannot be used", _file_of(cls)):
        rule = cls()
        _ = rule.ops
    return Guarded(rule)


def _file_of(cls: type[Any]) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def _is_rule_class(item: Any, module: ModuleType) -> bool:
    return isinstance(item, type) and issubclass(item, PatternRule) and item.__module__ == module.__name__


def _imported(path: Path) -> ModuleType:
    name = f"graphdoc_rules_{path.stem}"
    if not path.is_file():
        raise UsageError(f"there is no file '{path}'", where="--rules", next_step=_ADVICE)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"'{path}' is no Python file", where="--rules", next_step=_ADVICE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with blamed(f"'{path}' cannot be loaded", str(path)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def blamed(what: str, file: str | None) -> Iterator[None]:
    """Turn what a user's code raises into a UsageError that says where, if possible in ``file``.

    Raises UsageError, for sys.exit() too; errors that already are of graphdoc go on as they are.
    """
    try:
        yield
    except GraphdocError:
        raise
    except SyntaxError as error:
        raise UsageError(
            f"{what}: {error.msg}", where=f"{error.filename}, line {error.lineno}", next_step=_ADVICE
        ) from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
        raise UsageError(
            f"{what}: {type(error).__name__}: {error}",
            where=f"{last.filename}, line {last.lineno}",
            next_step="--debug shows the whole traceback",
        ) from error
