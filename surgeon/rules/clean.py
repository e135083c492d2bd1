"""Nodes and outputs that nothing needs."""

import onnx_ir as ir

from graphdoc.surgeon.rules.base import Context, Edit, rule, use_count


@rule("dead-nodes", "clean")
def dead_nodes(node: ir.Node, context: Context) -> Edit | None:
    """Remove a node none of whose outputs is used; operators have no other effect."""
    if not node.outputs or not context.unused(node):
        return None
    context.touch(node)
    return Edit("nothing uses it")


_OPTIONAL = {
    "Dropout": 1,
    "MaxPool": 1,
    "LayerNormalization": 1,
    "LSTM": 0,
    "GRU": 0,
    "RNN": 0,
}
"""Operators with outputs that may be left out: the first one that may."""


@rule("unused-outputs", "clean", *_OPTIONAL)
def unused_outputs(node: ir.Node, context: Context) -> Edit | None:
    """Leave out optional outputs that nothing uses; their places stay."""
    idle = [
        value for value in node.outputs[_OPTIONAL[node.op_type] :] if value.name and _idle(value, context)
    ]
    if not idle or len(idle) == len([value for value in node.outputs if value.name]):
        return None
    names = ", ".join(f"'{value.name}'" for value in idle)
    for value in idle:
        value.name = ""
    return Edit(f"left out {names}")


def _idle(value: ir.Value, context: Context) -> bool:
    return not (use_count(value) or value.is_graph_output() or context.kept(value))


RULES = (dead_nodes, unused_outputs)
