"""Sizes of memory as people write them."""

import re

from graphdoc.engine.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_size(text: str | None) -> int | None:
    """Return bytes: "2GiB", "500MB", "1e9"; None for None. Raises UsageError."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmg]i?)?b?\s*", text.lower())
    size = float(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not 1 <= size < 2**60:
        raise UsageError(f"not a size: '{text}'", where="--memory", next_step="write --memory 2GiB")
    return int(size)
