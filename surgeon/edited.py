"""What ``graphdoc edit`` did, as plain data for the printed form and for programs."""

from dataclasses import dataclass

SCHEMA = "graphdoc.edit/1"


@dataclass(frozen=True, slots=True)
class Edited:
    """The outcome of a list of edits. Truthy when the result was written and nothing is left to repair.

    steps: (verb, what was done); a verb of "" belongs to the one before. nodes_before, nodes_after: of all
    graphs.
    checked: how the result was checked, "" when it was not. wrong: how its outputs differ although they must
    not; then nothing was written. left: what still needs the old sizes. doubtful: the outputs must be the
    same, and nothing could be run to see.
    """

    model: str
    out: str
    steps: tuple[tuple[str, str], ...]
    nodes_before: int
    nodes_after: int
    checked: str = ""
    wrong: str = ""
    left: tuple[str, ...] = ()
    doubtful: bool = False

    def __bool__(self) -> bool:
        return not self.wrong and not self.left
