"""Names of values inside subgraphs and functions.

Inner names are unique only within their graph (the two branches of an If may use the same ones), so a
tapped value is named by the path that leads to it: ``<first output of the node>.<attribute>/<value>``.
"""

MAIN = ""
"""The scope of the main graph."""

FUNCTION = "body"
"""Stands in the attribute's place when the node calls a function."""


def enter(scope: str, node_output: str, attribute: str) -> str:
    """Return the scope of a node's subgraph attribute."""
    return f"{scope}{node_output}.{attribute}/"


def qualified(scope: str, value: str) -> str:
    """Return the name under which a value of a scope is tapped."""
    return f"{scope}{value}"


class Occurrences(list):  # type: ignore[type-arg]
    """The values that one name took, in order, where its graph ran any number of times (subgraphs)."""
