"""A node in one line of text: ``[name] y, z = domain.Op <axis = 1, mode = "linear"> (x, w, 0.5, [1, -1])``.

Name, outputs and domain may be left out. Inputs are names, numbers, lists, or nothing for one that is left
out. Names hold anything but blanks and the signs of this form; others go in double quotes.
"""

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from graphdoc.engine.errors import UsageError

_FORM = re.compile(
    r"""\s*(?:\[(?P<name>[^\]]*)\])?                 # [name]
        (?:(?P<outputs>(?:[^=<("]|"[^"]*")*)=)?      # outputs =
        \s*(?P<op>[\w.]+)                            # domain.Op
        \s*(?:<(?P<attributes>(?:[^>"]|"[^"]*")*)>)? # <attributes>
        \s*(?:\((?P<inputs>.*)\))?\s*$""",
    re.VERBOSE | re.DOTALL,
)
_HELP = "write  y = Clip(x, 0.0, 6.0)    or  y = Softmax <axis = 1> (x)"


@dataclass(frozen=True, slots=True)
class NodeText:
    """A node as it was written. inputs: names as str, numbers and lists, None for one left out."""

    op: str
    domain: str = ""
    name: str = ""
    outputs: tuple[str, ...] = ()
    inputs: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)


def parse_node(text: str) -> NodeText:
    """Return a node from its text. Raises UsageError for text that is none."""
    found = _FORM.match(text)
    if found is None:
        raise UsageError(f"not a node: '{text}'", next_step=_HELP)
    domain, _, op = found["op"].rpartition(".")
    return NodeText(
        op,
        domain,
        (found["name"] or "").strip(),
        tuple(_name(part) for part in _split(found["outputs"] or "")),
        tuple(_operand(part) for part in _split(found["inputs"] or "")),
        dict(_attribute(part, text) for part in _split(found["attributes"] or "")),
    )


def _split(text: str) -> list[str]:
    """Return the parts between commas outside brackets and quotes; none for blank text."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "[(") - (sign in ")]")
        if sign == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts] if text.strip() else []


def _name(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _operand(text: str) -> Any:
    if not text:
        return None
    if text[0] == '"':
        return _name(text)
    value = _literal(text)
    return text if value is None or isinstance(value, str) else value


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _attribute(text: str, whole: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"not an attribute: '{text}'", where=whole, next_step=_HELP)
    found = _literal(value.strip())
    return name.strip(), value.strip() if found is None else found
