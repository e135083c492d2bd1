"""Reverse passes through an operator that has no rule, but a function body in its ONNX schema."""

from typing import Any

from graphdoc.engine.body import resolved
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.functions import body_model
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.vjp import Tape
from graphdoc.engine.vjp_rules import Node, NoRuleError, Parts


def through_schema(node: Node) -> Parts | None:
    """Return one cotangent per input by running the body and going back through it; None without a body.

    Raises NoRuleError where the body holds an operator without a rule.
    """
    try:
        model = body_model(node.source, {"": node.call.version}, dict(resolved(node.source, {})), node.inputs)
        if model is None:
            return None
        feeds = {f"i{place}": x for place, x in enumerate(node.inputs) if x is not None}
        tape = Tape(Interpreter(model), feeds, inputs=True)
    except (RunnerError, ValueError) as error:
        raise NoRuleError(f"its function body does not run: {error}") from error
    seeds = {
        f"o{place}": cotangent
        for place, cotangent in enumerate(node.cotangents)
        if cotangent is not None and f"o{place}" in tape.outputs
    }
    found = tape.back(seeds, _look_away)
    if tape.missing:
        raise NoRuleError(f"its function body: {', '.join(f'{k}: {v}' for k, v in tape.missing.items())}")
    return [found.get(f"i{place}") for place in range(len(node.inputs))]


def _look_away(key: str, turn: int, cotangent: Any, complete: bool) -> None:
    """Nobody asks for the values inside."""
