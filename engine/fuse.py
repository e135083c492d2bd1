"""Fusion: steps that follow one another over the same elements become one.

Five rules, tried until none applies, each on a step that computes a buffer and one that reads it:

* *inline*: what a Map computes is computed again by its reader, element by element (Map → Map, Map → Rows).
* *join*: two Maps over the same elements become one with several outputs.
* *epilogue*: a Map of a contraction's or a row's results is computed before they are stored.
* *rows*: what is computed of a row, and of what was computed of it, is computed while the row is at hand:
  so a softmax, a layer norm, in whatever operators it was written, is one step.
* *attention*: a product, the softmax of its rows and the product of that with values are one step.

No rule knows an ONNX operator. A rule that nearly applied leaves a note that ``graphdoc inspect --plan``
prints.
"""

from graphdoc.engine.coalesce import coalesce
from graphdoc.engine.draft import Draft
from graphdoc.engine.fuse_attention import attention
from graphdoc.engine.fuse_map import epilogue, inline, join
from graphdoc.engine.fuse_rows import rows
from graphdoc.engine.program import Program
from graphdoc.engine.relay import relay

_RULES = (inline, epilogue, rows, join, attention)


def fuse(program: Program) -> Program:
    """Return the program with steps fused and copies done away with; the same values, up to rounding.

    Rounding: an intermediate is no longer stored, so a float16 one is still rounded (every operation of an
    expression is), and a sum is added up in the same order.
    """
    program = relay(coalesce(program))
    draft = Draft(program)
    changed = True
    while changed:
        changed = False
        for position in range(len(draft.steps)):
            while _fused(draft, position):
                changed = True
    return coalesce(draft.finish())


def _fused(draft: Draft, position: int) -> bool:
    """Try to fuse the step at a position with one that reads its results."""
    return any(rule(draft, pair) for pair in draft.pairs(position) for rule in _RULES)
