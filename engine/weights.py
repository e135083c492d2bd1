"""What follows from the weights of a model alone: computed once, whatever the shapes of the inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphdoc.engine.body import Step as Node
from graphdoc.engine.program import View


@dataclass(slots=True)
class Weights:
    """What follows from the weights of a model alone, kept for all its stages.

    views: of constant arrays, by identity. folded: results of nodes, by the node and its inputs.
    """

    views: dict[int, tuple[Any, View]] = field(default_factory=dict)
    folded: dict[tuple[int, ...], tuple[Any, tuple[Any, ...] | None]] = field(default_factory=dict)

    def fold(self, node: Node, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return the outputs of a node of shared constants, computed once."""
        key = (id(node), *map(id, values))
        if key not in self.folded:
            self.folded[key] = (node, list(values)), folded(node, values)  # keeps alive what the key names
        return self.folded[key][1]


def folded(node: Node, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the outputs of a node of constants, None when it refuses them: then the run says why."""
    try:
        with np.errstate(all="ignore"):
            results = node.run(*values)
    except Exception:  # noqa: BLE001 (level 0 runs it again and words what is wrong)
        return None
    listed = results if isinstance(results, tuple) else (results,)
    return tuple(np.asarray(value) if isinstance(value, np.generic) else value for value in listed)
