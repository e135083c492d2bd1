"""The plugin's line at the end of a run. Results travel from xdist's workers as plain dicts."""

from collections.abc import Sequence
from typing import TypedDict

from graphdoc.reports.words import group


class Result(TypedDict):
    """One comparison. outcome: "agrees", "differs", "written" (a baseline), "failed" (no verdict)."""

    outcome: str
    layers: int


_WORDS = {
    "agrees": ("agrees", "agree"),
    "differs": ("differs", "differ"),
    "written": ("baseline written", "baselines written"),
    "failed": ("failed", "failed"),
}


def summary(results: Sequence[Result]) -> str:
    """Return such as "graphdoc: 14 models, 4 912 layers compared, 13 agree, 1 differs"."""
    layers = sum(result["layers"] for result in results)
    parts = [_counted(len(results), "model", "models"), f"{group(layers)} layers compared"]
    for outcome, words in _WORDS.items():
        count = sum(result["outcome"] == outcome for result in results)
        if count:
            parts.append(_counted(count, *words))
    return f"graphdoc: {', '.join(parts)}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{group(count)} {one if count == 1 else many}"
