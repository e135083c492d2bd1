"""What a row reduction computes, as passes over a row's elements.

Which folds and outputs share one pass, what is the same for all of a row's elements and computed once, and
what is dear enough to keep for a later pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphdoc.engine.device.llvm.rows_softmax import FALLING
from graphdoc.engine.expr import BOOL, Expr, leaves, load, postorder, stage, substituted
from graphdoc.engine.kernels.rows import Rows

_TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
_DEAR = frozenset(
    (FALLING, *_TRIGONOMETRIC, "exp", "log", "log1p", "expm1", "sigmoid", "erf", "pow", "mod", "fmod")
)
_SLOW = frozenset(("div", "sqrt"))


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over a row's elements, after which its folds' stages are known.

    first, uniform: values of the row, computed before; expressions read them as stages from ``first`` on.
    folds: (stage, expression). writes: (output, expression). keeps: (number, expression): what is noted of
        each element for later passes, which read it as the input of that number.
    """

    first: int
    uniform: tuple[Expr, ...]
    folds: tuple[tuple[int, Expr], ...]
    writes: tuple[tuple[int, Expr], ...]
    keeps: tuple[tuple[int, Expr], ...]

    @property
    def exprs(self) -> list[Expr]:
        """Return all expressions of the elements."""
        return [e for _, e in (*self.folds, *self.writes, *self.keeps)]


def cost(roots: Iterable[Expr]) -> int:
    """Return about how many instructions the expressions take for one vector."""
    nodes = {node for root in roots for node in postorder(root)}
    return sum(16 if n.op in _DEAR else 5 if n.op in _SLOW else 1 for n in nodes)


class Varying:
    """Tells expressions that differ between a row's elements: by inputs and by positions on reduced axes.

    inputs: those of the step's ``count`` that do; numbers past them are kept elements. axes: reduced ones.
    """

    def __init__(self, inputs: Iterable[int], count: int, axes: Iterable[int]) -> None:
        self._inputs, self.count, self._axes = frozenset(inputs), count, frozenset(axes)
        self._known: dict[Expr, bool] = {}

    def __call__(self, root: Expr) -> bool:
        """Return whether the expression may differ between elements of one row."""
        for node in postorder(root):
            if node not in self._known:
                self._known[node] = self._leaf(node) or any(self._known[a] for a in node.args)
        return self._known[root]

    def _leaf(self, node: Expr) -> bool:
        if node.op == "input":
            return node.attr in self._inputs or node.attr >= self.count
        return node.op == "index" and node.attr in self._axes

    def uniform(self, roots: Sequence[Expr]) -> list[Expr]:
        """Return the largest parts that are the same for a whole row, constants and stages aside."""
        found: dict[Expr, None] = {}
        for root in roots:
            if not self(root):
                used: list[Expr] = [root]
            else:
                used = [a for node in postorder(root) if self(node) for a in node.args if not self(a)]
            found.update((node, None) for node in used if _worth(node))
        return list(found)


def _worth(node: Expr) -> bool:
    return any(n.op in ("input", "stage", "index") for n in postorder(node)) and node.op != "stage"


def passes(spec: Rows, varying: Varying, keep: bool = True) -> list[Pass]:
    """Return the passes in order. keep: whether memory for what is kept of a row may be asked for."""
    levels = _levels(spec)
    count = 1 + max([*levels.values()], default=-1)
    folds = [
        [(k, s.expr) for k, s in enumerate(spec.stages) if levels["stage", k] == n] for n in range(count)
    ]
    writes = [
        [(k, o.expr) for k, o in enumerate(spec.outputs) if o.full and levels["output", k] == n]
        for n in range(count)
    ]
    kept = _kept(folds, writes, varying) if keep else {}
    result: list[Pass] = []
    slots = len(spec.stages)
    for n in range(count):
        made = _pass(n, folds[n], writes[n], kept, varying, slots)
        slots += len(made.uniform)
        result.append(made)
    return result


def _levels(spec: Rows) -> dict[tuple[str, int], int]:
    levels: dict[tuple[str, int], int] = {}

    def after(expr: Expr) -> int:
        return 1 + max((levels["stage", k] for k in leaves([expr], "stage")), default=-1)

    for k, part in enumerate(spec.stages):
        levels["stage", k] = after(part.expr)
    for k, output in enumerate(spec.outputs):
        if output.full:
            levels["output", k] = after(output.expr)
    return levels


Parts = list[list[tuple[int, Expr]]]


def _kept(folds: Parts, writes: Parts, varying: Varying) -> dict[Expr, tuple[int, int]]:
    """Return the dear expressions that several passes need: the first pass, the number as an input."""
    kept: dict[Expr, tuple[int, int]] = {}
    seen: dict[Expr, int] = {}
    for n, (folded, written) in enumerate(zip(folds, writes, strict=True)):
        for node in _shared([root for _, root in (*folded, *written)], seen, varying):
            kept.setdefault(node, (seen[node], varying.count + len(kept)))
        for _, root in (*folded, *written):
            for node in postorder(root):
                seen.setdefault(node, n)
    return kept


def _shared(roots: list[Expr], seen: dict[Expr, int], varying: Varying) -> list[Expr]:
    """Return the largest dear parts of expressions that an earlier pass has computed."""
    found: dict[Expr, None] = {}
    visited: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        if node in seen and node.dtype != BOOL and node.args and varying(node) and cost([node]) > 12:
            found[node] = None
        else:
            stack.extend(node.args)
    return list(found)


def _pass(
    n: int,
    folds: list[tuple[int, Expr]],
    writes: list[tuple[int, Expr]],
    kept: dict[Expr, tuple[int, int]],
    varying: Varying,
    slots: int,
) -> Pass:
    later = {node: load(number, node.dtype) for node, (first, number) in kept.items() if first < n}
    keeps = [(number, node) for node, (first, number) in kept.items() if first == n]
    parts = [[(k, substituted(e, later)) for k, e in part] for part in (folds, writes, keeps)]
    uniform = varying.uniform([e for part in parts for _, e in part])
    known = {node: stage(slots + i, node.dtype) for i, node in enumerate(uniform)}
    done = [tuple((k, substituted(e, known)) for k, e in part) for part in parts]
    return Pass(slots, tuple(uniform), *done)
