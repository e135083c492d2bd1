"""What ``graphdoc --help`` prints: the list of commands. Apart from click, which costs 40 ms to import."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A line of the overview: the command's module in ``graphdoc/commands`` and what it does."""

    name: str
    summary: str


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Find out what is wrong": (
        Entry("compare", "compare two models or runners layer by layer"),
        Entry("sweep", "compare many models on many inputs"),
        Entry("run", "run a model, save inner values"),
        Entry("reduce", "cut a failing model down to the nodes that fail"),
        Entry("bench", "measure runners side by side"),
    ),
    "Look inside": (
        Entry("inspect", "inputs, layers, weights, operators"),
        Entry("lint", "find faults without running"),
        Entry("diff", "what changed between two models"),
    ),
    "Change a model": (
        Entry("simplify", "fold, fuse, clean up, and check the result"),
        Entry("edit", "extract, rename, insert, merge, resize"),
        Entry("rewrite", "apply rules"),
        Entry("weights", "prune, strip, restore, share"),
    ),
    "More": (
        Entry("build", "a plan: the model as machine code in one file"),
        Entry("report", "what got better or worse between two results"),
        Entry("demo", "compare a real model end to end and write the report"),
        Entry("env", "CPU, GPU, runners, versions, caches"),
    ),
}


def names() -> list[str]:
    """Return the commands in the order of the overview."""
    return [entry.name for entries in SECTIONS.values() for entry in entries]


def text() -> str:
    """Return the overview: one screen, grouped by what people want."""
    lines = ["Usage: graphdoc COMMAND …         A doctor for ONNX graphs.", ""]
    for title, entries in SECTIONS.items():
        lines += [title, *(f"  {entry.name:<10} {entry.summary}" for entry in entries)]
    return "\n".join([*lines, "", "Start:  graphdoc demo          Details:  graphdoc COMMAND --help"])
