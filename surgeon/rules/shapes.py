"""Targets of Reshape that are computed from shapes: replaced by constants where the sizes allow it."""

from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.ops.table import Dim
from graphdoc.surgeon.rules.base import Context, Edit, Refusal, rule

FLEXIBLE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep all elements in order and change the shape alone."""


def reshape_target(
    elements: tuple[Dim, ...], source: tuple[Dim, ...] | None, *, zero_copies: bool
) -> list[int] | None:
    """Return a constant target that gives a shape in every run, None when there is none.

    1. A known size stands for itself; 0 means "copy" to Reshape, so it must not occur.
    2. A size that is that of the source at the same place is written 0, "copy".
    3. One more size may be left open, −1: the number of elements determines it, as long as no other size
       is 0 at run time. With a copied size beside it that could be 0, a run on no elements at all would fail;
       ONNX Runtime refuses to infer a size from nothing.
    """
    target: list[int] = []
    for place, element in enumerate(elements):
        same = source is not None and place < len(source) and source[place] == element
        if isinstance(element, int) and element != 0:
            target.append(element)
        elif element is not None and same and zero_copies:
            target.append(0)
        elif element == 0:
            return None
        else:
            target.append(-1)
    return None if target.count(-1) > 1 else target


@rule("constant-reshape-target", "shape", "Reshape")
def constant_reshape_target(node: ir.Node, context: Context) -> Edit | Refusal | None:
    """Give a Reshape a constant target when all sizes but one are known or copied."""
    if context.opset() < 5 or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    if context.array(node.inputs[1]) is not None:
        return None
    result = context.type_of(node.outputs[0]).shape
    zero_copies = not context.attribute(node, "allowzero", 0)
    target = find_target(node, result, context, zero_copies=zero_copies)
    if target is None:
        return Refusal("more than one size of the target is open") if result is not None else None
    value = context.constant(np.array(target, np.int64), node, name=f"{node.outputs[0].name}_shape")
    context.set_input(node, 1, value)
    return Edit(f"its target is {target}")


def find_target(
    node: ir.Node, result: tuple[Dim, ...] | None, context: Context, *, zero_copies: bool
) -> list[int] | None:
    """Return a constant target for a Reshape from what is known of its result, or of the target's entries."""
    source = context.type_of(node.inputs[0]).shape
    candidates: list[Any] = [result, context.type_of(node.inputs[1]).elements]
    for elements in candidates:
        if elements is not None and elements.count(-1) == 0:
            target = reshape_target(tuple(elements), source, zero_copies=zero_copies)
            if target is not None:
                return target
    return None


RULES = (constant_reshape_target,)
