"""Which layers of two results stand for one another.

1. By the name of their value, where the two results share their names: SHARED of the smaller one's names are
   in both, and as many of these have the same operator. (Exporters that number their values use the names
   again for other layers.)
2. Otherwise by operator, dtype and shape in execution order: the longest common run of layers. Where sizes
   changed, so that less than half is paired that way, by operator alone.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from graphdoc.compare.result import Layer

SHARED = 0.9
"""From this share of the smaller result's names on, names decide."""

MOST_APART = 1500
"""Layers that two results may have more than what is common; beyond that they are not the same model, and
looking on would take long."""

Token = Callable[[Layer], Hashable]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Positions of what stands for one another, in order. remark: how it was found, "" where by name."""

    pairs: tuple[tuple[int, int], ...]
    remark: str = ""


def pair_layers(old: Sequence[Layer], new: Sequence[Layer]) -> Pairing:
    """Return which of the old layers is which of the new ones; each has at most one partner."""
    named = _by_name(old, new)
    if _are_trusted(named, old, new):
        return Pairing(tuple(named))
    least = min(len(old), len(new))
    for token, words in ((_kind, "operator, shape and order"), (_operator, "operator and order")):
        pairs = common(list(map(token, old)), list(map(token, new)))
        if pairs is not None and 2 * len(pairs) >= least:
            text = f"names differ: {len(pairs)} of {least} layers were paired by {words}"
            return Pairing(tuple(pairs), text)
    return Pairing(tuple(named))


def _by_name(old: Sequence[Layer], new: Sequence[Layer]) -> list[tuple[int, int]]:
    places = {layer.value: n for n, layer in enumerate(old)}
    return [(places[layer.value], n) for n, layer in enumerate(new) if layer.value in places]


def _are_trusted(named: list[tuple[int, int]], old: Sequence[Layer], new: Sequence[Layer]) -> bool:
    same = sum(_operator(old[i]) == _operator(new[j]) for i, j in named)
    return same >= SHARED * len(named) > 0 and len(named) >= SHARED * min(len(old), len(new))


def _operator(layer: Layer) -> Hashable:
    return layer.domain, layer.op, layer.is_output


def _kind(layer: Layer) -> Hashable:
    return layer.domain, layer.op, layer.dtype, layer.shape


def common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Return the positions of a longest common subsequence; None where more than MOST_APART stand alone.

    The greedy search of Myers, "An O(ND) Difference Algorithm and Its Variations" (1986): for each number of
    layers that stand alone, the furthest point reached on each diagonal of the table of both sequences.
    """
    most = min(len(old) + len(new), MOST_APART)
    reached = [0] * (2 * most + 3)  # by diagonal, −most − 1 in front
    history: list[list[int]] = []
    for alone in range(most + 1):
        middle = most + 1
        history.append(reached[middle - alone - 1 : middle + alone + 2])
        for k in range(-alone, alone + 1, 2):
            x = max(_start(history[-1], k, alone))
            while x < len(old) and x - k < len(new) and old[x] == new[x - k]:
                x += 1
            reached[middle + k] = x
            if x >= len(old) and x - k >= len(new):
                return _backwards(history, old, new)
    return None


def _start(reached: list[int], k: int, alone: int) -> tuple[int, int]:
    """Return where a path starts on diagonal k: one down from k + 1, and one to the right from k − 1.

    Of the two the further one counts; −1 for the one that cannot be.
    """
    middle = alone + 1
    down = reached[middle + k + 1] if k < alone or alone == 0 else -1
    right = reached[middle + k - 1] + 1 if k > -alone else -1
    return down, right


def _backwards(
    history: list[list[int]], old: Sequence[Hashable], new: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """Return the diagonal steps of the path that ends at both ends."""
    pairs = []
    x, y = len(old), len(new)
    for alone in range(len(history) - 1, -1, -1):
        down, right = _start(history[alone], x - y, alone)
        while x > max(down, right):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = (x, y - 1) if down >= right else (x - 1, y)
    return pairs[::-1]
