"""RE2 patterns as Python patterns, or a refusal: never another meaning.

RE2's classes know ASCII alone while its letters fold by Unicode, ``$`` is the end of the text, and what
Python adds (look-around, back references, possessive repeats) does not exist.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Z_a-z",
    "s": r"\t\n\f\r ",
    "D": "\\x00-/:-\U0010ffff",
    "W": "\\x00-/:-@\\[-\\^`{-\U0010ffff",
    "S": "\\x00-\\x08\\x0b\\x0e-\\x1f!-\U0010ffff",
}
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Z_a-z",
    "xdigit": "0-9A-Fa-f",
}
_BOUNDS = {"b": r"(?a:\b)", "B": r"(?a:(?!\b))", "z": r"\Z"}
_PLAIN_ESCAPES = frozenset("aftnrvA")
_TOKEN = re.compile(
    r"(?P<literal>\\Q.*?(?:\\E|$))|(?P<hex>\\x\{[0-9A-Fa-f]+\}|\\x[0-9A-Fa-f]{2})|(?P<octal>\\[0-7]{3})"
    r"|(?P<escape>\\.)|(?P<posix>\[:\w+:\])|(?P<group>\(\?P?<\w+>|\(\?[a-zA-Z-]*[:)]|\(\?)"
    r"|(?P<possessive>(?:[*+?]|\{\d+(?:,\d*)?\})\+)|(?P<brace>\{,)|(?P<other>.)",
    re.DOTALL,
)


@lru_cache(maxsize=64)
def compile_re2(pattern: str) -> re.Pattern[str]:
    """Return a Python pattern that means what RE2 means by ``pattern``.

    Raises ValueError for what is not RE2 (look-around, back references …) and for what Python cannot
    express (``\\p``, ``\\C``, the flag U, flags that change within a group).
    """
    flags = "".join(re.findall(r"\(\?([a-zA-Z]*)[:)-]", pattern))
    return re.compile("".join(_translated(pattern, multiline="m" in flags)))


def _translated(pattern: str, *, multiline: bool) -> Iterator[str]:
    inside = first = False
    for token in _TOKEN.finditer(pattern):
        kind, text = str(token.lastgroup), token.group()
        if inside and kind in ("group", "possessive", "brace"):
            yield from (_in_class(character) for character in text)
        elif kind == "other" and inside:
            inside = text != "]" or first
            yield "\\]" if text == "]" and first else _in_class(text)
        elif kind == "other":
            inside = text == "["
            yield r"\Z" if text == "$" and not multiline else text
        else:
            yield _special(kind, text, token.start(), inside=inside, pattern=pattern)
        # "]" right after "[" or "[^" is a member of the class.
        first = inside and (text == "[" or (text == "^" and first)) and kind == "other"


def _in_class(character: str) -> str:
    """Return a member of a class; those that Python may take for set operations are escaped."""
    return "\\" + character if character in "[&~|" else character


def _special(kind: str, text: str, start: int, *, inside: bool, pattern: str) -> str:
    if kind == "literal":
        return re.escape(text.removeprefix("\\Q").removesuffix("\\E"))
    if kind in ("hex", "octal"):
        digits = text[2:].strip("{}") if kind == "hex" else text[1:]
        return re.escape(chr(int(digits, 16 if kind == "hex" else 8)))
    if kind == "posix" and text[2:-2] in _POSIX and inside:
        return _POSIX[text[2:-2]]
    if kind == "escape":
        return _escape(text, pattern, inside=inside)
    if kind == "brace":
        return r"\{,"
    if kind == "group":
        return _group(text, start, pattern)
    raise ValueError(f"regular expression '{pattern}' holds {text}, which is not supported")


def _escape(text: str, pattern: str, *, inside: bool) -> str:
    letter = text[1]
    if letter in _CLASSES:
        return _CLASSES[letter] if inside else f"[{_CLASSES[letter]}]"
    if not inside and letter in _BOUNDS:
        return _BOUNDS[letter]
    if letter in _PLAIN_ESCAPES or not letter.isalnum():
        return text
    raise ValueError(f"regular expression '{pattern}' holds {text}, which is not supported")


def _group(text: str, start: int, pattern: str) -> str:
    named = re.fullmatch(r"\(\?P?<(\w+)>", text)
    if named:
        return f"(?P<{named.group(1)}>"
    opened = re.fullmatch(r"\(\?([ims]*)(-[ims]+)?([:)])", text)
    if opened is None or (opened.group(3) == ")" and (start or opened.group(2) or not opened.group(1))):
        raise ValueError(f"regular expression '{pattern}' holds {text}, which is not supported")
    return text
