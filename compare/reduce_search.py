"""Which few of many parts a failure needs: delta debugging (Zeller and Hildebrandt, 2002).

The parts are nodes in execution order. Two bisections find most of it, since a fault shows from its node on:
then halves, quarters, eighths … are left out as long as the rest still fails. The result is minimal in that
no single node of it can be left out.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

Part = tuple[int, ...]
Fails = Callable[[Part], bool]


class Search:
    """Asks ``fails`` of ever smaller parts; never twice of the same one.

    runs: how often it was asked. most: after so many questions the smallest failing part so far is taken.
    """

    def __init__(self, fails: Fails, *, most: int = 2000) -> None:
        self._fails = fails
        self._known: dict[Part, bool] = {}
        self._most = most

    @property
    def runs(self) -> int:
        """How many parts were tried."""
        return len(self._known)

    @property
    def exhausted(self) -> bool:
        """Whether the search ended before the result was known to be minimal."""
        return len(self._known) >= self._most

    def fails(self, part: Part) -> bool:
        """Whether a part fails; an empty one, and one past the bound, counts as not failing."""
        if not part:
            return False
        if part not in self._known:
            if self.exhausted:
                return False
            self._known[part] = self._fails(part)
        return self._known[part]

    def minimal(self, items: Sequence[int]) -> Part:
        """Return the smallest part that still fails. ``items`` as a whole must fail."""
        part = self._shortest(tuple(items), lambda whole, count: whole[len(whole) - count :])
        part = self._shortest(part, lambda whole, count: whole[:count])
        return self._thinned(part)

    def _shortest(self, part: Part, take: Callable[[Part, int], Part]) -> Part:
        """Return the shortest end (or beginning) that fails, if failing is a matter of length."""
        low, high = 0, len(part)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fails(take(part, middle)):
                high = middle
            else:
                low = middle
        return take(part, high)

    def _thinned(self, part: Part) -> Part:
        """Leave out stretches, ever shorter ones, as long as the rest fails."""
        count = 2
        while len(part) > 1:
            smaller = next((rest for rest in _without(part, count) if self.fails(rest)), None)
            if smaller is not None:
                part, count = smaller, max(2, count - 1)
            elif count >= len(part):
                break
            else:
                count = min(len(part), 2 * count)
        return part


def _without(part: Part, count: int) -> list[Part]:
    """Return the part without each of ``count`` stretches of about the same length."""
    edges = [len(part) * i // count for i in range(count + 1)]
    return [part[:start] + part[stop:] for start, stop in pairwise(edges) if start < stop]
