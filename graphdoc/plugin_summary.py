"""The plugin's line at the end of a run. Results travel from xdist's workers as plain dicts."""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from graphdoc.reports.words import group


class Result(TypedDict):
    """One comparison.

    outcome: "agrees", "differs", "written" (a baseline), "failed" (no verdict). first: the first layer that
    diverges. baseline, changes: the file that was written, and what became of its lines.
    """

    outcome: str
    layers: int
    first: str
    baseline: str
    changes: list[str]


MOST_CHANGES = 40
"""Lines shown of one update; version control shows the rest."""


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


def updates(results: Sequence[Result]) -> Iterator[str]:
    """Yield what was written into baselines, file by file."""
    for result in results:
        if result["outcome"] != "written":
            continue
        yield f"graphdoc: wrote {result['baseline']}"
        yield from (f"  {line}" for line in result["changes"][:MOST_CHANGES])
        if (more := len(result["changes"]) - MOST_CHANGES) > 0:
            yield f"  … and {group(more)} more"
