"""Sizes for the open dimensions of a model's inputs, found by trying.

Every open dimension gets a first guess from what its axis stands for. A dry run says whether the model
accepts them; if not, one group of dimensions at a time is changed, and whatever brings the dry run
further is kept. The effort is bounded by the number of nodes visited, not by time, so that the same model
gets the same sizes on every machine.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from graphdoc.compare.inputs_dryrun import DryRun, Trial
from graphdoc.compare.inputs_facts import Facts, Setting
from graphdoc.compare.inputs_hints import size_hints
from graphdoc.compare.inputs_roles import (
    BATCH,
    CHANNEL,
    FEATURE,
    FRAMES,
    HEIGHT,
    OTHER,
    PAST,
    ROWS,
    SAMPLES,
    SEQUENCE,
    SIDE,
    TIME,
    TOTAL,
    WIDTH,
    Role,
    sampling_rate,
)
from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import shape_text

Sizes: TypeAlias = dict[str, int]
"""Open dimension → size. A symbol stands for itself, a nameless dimension for ``input.axis``."""

NARROW = "#narrow"
"""Stands for the range of uncertain indices among the sizes."""

VISITS = 60_000
"""Nodes that all dry runs of a search may visit together."""

_SAMPLES = (
    16000, 512, 576, 1024, 480, 160, 320, 256, 400, 640, 800, 1600, 2048, 4096, 8000, 24000, 32000, 48000,
    80000, 160000,
)  # fmt: skip

CANDIDATES: dict[str, tuple[int, ...]] = {
    BATCH: (1, 2, 4, 8),
    ROWS: (8, 1, 2),
    SEQUENCE: (16, 32, 8, 64, 128, 256, 512, 4, 77, 197),
    PAST: (8, 16, 4, 32, 1, 0),
    TOTAL: (24, 16, 32, 64, 128),
    TIME: (128, 100, 64, 200, 256, 16, 300, 400, 512, 1000, 3000, 8),
    FRAMES: (16, 8, 32, 4, 64, 1),
    SAMPLES: _SAMPLES,
    HEIGHT: (224, 256, 64, 32, 48, 128, 384, 512),
    WIDTH: (224, 256, 64, 32, 128, 320, 384, 512),
    SIDE: (64, 32, 128, 16, 224, 256, 8),
    CHANNEL: (3, 1, 4, 64, 32, 16, 128, 80),
    FEATURE: (64, 32, 128, 16, 80, 256, 512, 768, 40, 4),
    OTHER: (4, 1, 2, 8, 16, 3, 32, 64),
}
"""What an axis of a kind may measure, the likeliest first."""

LADDER = (
    5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 9, 11, 13, 14, 15, 40, 48, 50, 64, 80, 96, 100, 128, 160,
    192, 200, 224, 256, 300, 320, 384, 400, 480, 500, 512, 640, 768, 800, 1000, 1024, 1500, 1600, 2000,
    2048, 3000, 4000, 4096, 8000, 16000, 1, 2, 3,
)  # fmt: skip
"""Sizes tried last, whatever the axis stands for, after those of the model's weights."""

PICTURES = (
    (224, 224), (256, 256), (320, 320), (640, 640), (48, 320), (32, 320), (48, 192), (32, 128), (64, 256),
    (128, 128), (64, 64), (512, 512), (384, 384), (299, 299), (416, 416), (112, 112), (96, 96), (160, 160),
    (32, 100), (28, 28), (32, 32), (300, 300), (800, 800), (1024, 1024), (16, 16),
)  # fmt: skip
"""Height and width of pictures whose two are open."""


@dataclass(frozen=True)
class Plan:
    """One input: its facts, its role, and what its axes stand for."""

    facts: Facts
    role: Role
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """The input's name."""
        return self.facts.spec.name

    def key(self, axis: int) -> str | None:
        """Return the name of an open dimension, None for a fixed one."""
        dim = (self.facts.spec.shape or ())[axis]
        return None if isinstance(dim, int) else dim or f"{self.name}.{axis}"


@dataclass(frozen=True)
class Open:
    """An open dimension: what it stands for, which sizes operators ask for, and who has it."""

    label: str
    hints: tuple[int, ...]
    owner: Plan


Attempt: TypeAlias = Callable[[Setting], Trial]


class Search:
    """Sizes for one model. given: dimensions that the user has fixed."""

    def __init__(self, plans: list[Plan], given: Sizes, run: DryRun, attempt: Attempt) -> None:
        self.plans = plans
        self.given = given
        self._run = run
        self._attempt = attempt
        self._rate = sampling_rate([plan.facts for plan in plans if plan.role is Role.RATE])
        self._cached = any(PAST in plan.labels for plan in plans)
        self.open = {key: unknown for key, unknown in self._unknowns().items() if key not in given}
        self.formulas = self._formulas()
        self.tried: list[Trial] = []
        self._last_resort = dict.fromkeys((*run.weight_sizes(), *LADDER))

    # -- what is open --

    def _unknowns(self) -> dict[str, Open]:
        found: dict[str, Open] = {}
        for plan in self.plans:
            hints = size_hints(plan.facts)
            for axis, label in enumerate(plan.labels):
                key = plan.key(axis)
                if key is None:
                    continue
                label = self._in_context(label)
                known = found.get(key)
                wanted = () if label in (BATCH, ROWS) else tuple(hints.get(axis, ()))
                wanted += known.hints if known else ()
                if known is None or (known.label in _WEAK and label not in _WEAK):
                    found[key] = Open(label, wanted, plan)
                else:
                    found[key] = replace(known, hints=wanted)
        return found

    def _in_context(self, label: str) -> str:
        """Return what a label means beside the other inputs.

        Without caches all tokens are the tokens; a model of vectors alone takes any number of them.
        """
        if label == TOTAL and not self._cached:
            return SEQUENCE
        vectors = all(plan.role in _VECTORS and len(plan.labels) == 2 for plan in self.plans)
        return ROWS if label == BATCH and vectors else label

    def _formulas(self) -> dict[str, ast.expr]:
        """Return the symbols that are sums and the like of other symbols."""
        names = {*self.open, *self.given}
        parsed = {key: _formula(key) for key in self.open}
        return {
            key: tree
            for key, tree in parsed.items()
            if tree is not None and all(name in names and name != key for name in _names(tree))
        }

    def setting(self, sizes: Mapping[str, int]) -> Setting:
        """Return the shapes that come from sizes."""
        shapes = {plan.name: self._shape(plan, sizes) for plan in self.plans}
        lengths = {
            plan.name: shapes[plan.name][axis]
            for plan in self.plans
            for axis in [_length_axis(plan)]
            if axis is not None
        }
        sequence = self._measure(shapes, SEQUENCE) or self._measure(shapes, TIME) or 16
        past = self._measure(shapes, PAST) or 0
        return Setting(shapes, lengths, sequence, past, self._rate, sizes.get(NARROW, 1))

    def sizes_of(self, setting: Setting) -> Sizes:
        """Return the size that every dimension which the model leaves open has in a setting."""
        return {
            key: size
            for plan in self.plans
            for axis, size in enumerate(setting.shapes[plan.name])
            if (key := plan.key(axis)) is not None
        }

    def changed(self, setting: Setting, changes: Mapping[str, int]) -> Setting:
        """Return a setting with other sizes; lengths that are sums of others follow them."""
        before = self.sizes_of(setting)
        sizes = self._complete({**before, NARROW: setting.narrow, **changes})
        for old, new in zip(self._totals(before), self._totals(sizes), strict=False):
            if all(before[key] == value for key, value in old.items()):
                sizes.update({key: value for key, value in new.items() if key not in changes})
                break
        return self.setting(sizes)

    def _shape(self, plan: Plan, sizes: Mapping[str, int]) -> tuple[int, ...]:
        dims = plan.facts.spec.shape or ()
        keys = [plan.key(axis) for axis in range(len(dims))]
        return tuple(
            sizes[key] if key is not None else int(dim or 0) for key, dim in zip(keys, dims, strict=True)
        )

    def _measure(self, shapes: Mapping[str, tuple[int, ...]], label: str) -> int | None:
        """Return the size of the first axis of a kind, tokens before all other inputs."""
        ordered = sorted(self.plans, key=lambda plan: plan.role is not Role.TOKENS)
        found = (shapes[p.name][p.labels.index(label)] for p in ordered if label in p.labels)
        return next(found, None)

    # -- guessing --

    def solve(self) -> tuple[Setting, Trial]:
        """Return sizes the model accepts, and the dry run that says so. Raises UsageError."""
        sizes = self.first()
        best = self._try(sizes)
        improved = True
        while best.problems and improved:
            improved = False
            for changes in self._groups():
                before = best
                sizes, best = self._best(changes(sizes), sizes, best)
                improved = improved or best is not before
        if self._settled(best):
            return self.setting(self._complete(sizes)), best
        raise self._refusal(sizes, best)

    def unverified(self) -> Setting:
        """Return the first guess without a dry run."""
        return self.setting(self._complete(self.first()))

    def first(self) -> Sizes:
        """Return the first guess."""
        sizes = dict(self.given)
        for key, unknown in self.open.items():
            sizes[key] = self._candidates(unknown)[0]
        for pair in self._pictures():
            sizes.update(next(self._sides(pair, sizes)))
        sizes.update(next(self._totals(sizes), {}))
        return sizes

    def _try(self, sizes: Sizes) -> Trial:
        trial = self._attempt(self.setting(self._complete(sizes)))
        self.tried.append(trial)
        return trial

    def _complete(self, sizes: Sizes) -> Sizes:
        """Return the sizes with formulas worked out, and with caches the length of all tokens."""
        result = dict(sizes)
        for key, tree in self.formulas.items():
            result[key] = max(0, _value(tree, result))
        return result

    def _best(self, changes: Iterable[Sizes], sizes: Sizes, best: Trial) -> tuple[Sizes, Trial]:
        """Return the best of some changes, or the sizes as they are if none is better."""
        start = sizes
        for change in changes:
            if not best.problems or self._run.visited >= VISITS:
                break
            trial = self._try({**start, **change})
            if trial.score < best.score:
                sizes, best = {**start, **change}, trial
        return sizes, best

    def _groups(self) -> Iterator[Callable[[Sizes], Iterable[Sizes]]]:
        """Yield ways to change sizes: sums of lengths, pictures, whole kinds, single dimensions, indices."""
        yield self._totals
        free = {key: unknown for key, unknown in self.open.items() if key not in self.formulas}
        pictures = list(self._pictures())
        inside = {key for pair in pictures for key in pair}
        for pair in pictures:
            yield partial(self._sides, pair)
        for label, values in CANDIDATES.items():
            members = [key for key, unknown in free.items() if unknown.label == label and key not in inside]
            if len(members) > 1:
                yield partial(_together, members, values)
        for key, unknown in free.items():
            yield partial(_together, [key], self._candidates(unknown))
        yield partial(_together, [NARROW], (4, 32, 1 << 30))
        for key in free:
            yield partial(_together, [key], self._last_resort)

    def _totals(self, sizes: Sizes) -> Iterator[Sizes]:
        """Yield sizes for the length of cache and tokens together."""
        members = [k for k, unknown in self.open.items() if unknown.label == TOTAL and k not in self.formulas]
        setting = self.setting(self._complete(sizes))
        if members:
            for value in (setting.past + setting.sequence, setting.sequence, setting.past):
                yield dict.fromkeys(members, value)

    def _candidates(self, unknown: Open) -> tuple[int, ...]:
        """Return sizes for one dimension: asked for, had by others of its kind, usual."""
        usual = CANDIDATES[unknown.label]
        others = () if unknown.label in (OTHER, FEATURE, CHANNEL) else self._fixed(unknown.label)
        return tuple(dict.fromkeys((*unknown.hints, *others, *usual)))

    def _fixed(self, label: str) -> tuple[int, ...]:
        found = {
            plan.facts.size(axis): None
            for plan in self.plans
            if plan.role not in _UNBATCHED
            for axis, other in enumerate(plan.labels)
            if other == label
        }
        return tuple(size for size in found if size)

    def _pictures(self) -> Iterator[tuple[str, ...]]:
        """Yield the open ones of each picture's height and width."""
        for plan in self.plans:
            if plan.role is Role.IMAGE and HEIGHT in plan.labels and WIDTH in plan.labels:
                sides = [plan.key(plan.labels.index(label)) for label in (HEIGHT, WIDTH)]
                free = tuple(side for side in sides if side is not None and side in self.open)
                if free:
                    yield free

    def _sides(self, keys: tuple[str, ...], _sizes: Sizes) -> Iterator[Sizes]:
        """Yield sizes for a picture: both sides, or the open one to suit the other."""
        if len(keys) == 2:
            yield from (dict(zip(keys, pair, strict=True)) for pair in PICTURES)
            return
        unknown = self.open[keys[0]]
        yield from ({keys[0]: size} for size in _beside(unknown, keys[0], self._candidates(unknown)))

    # -- the outcome --

    def _settled(self, best: Trial) -> bool:
        """Whether the sizes may be used: no problem, or only such as all sizes met (not the sizes' fault)."""
        if not best.problems or not self.open:
            return True
        common = set.intersection(*({(p.node, p.text) for p in trial.problems} for trial in self.tried))
        return len(self.tried) > 1 and all((p.node, p.text) in common for p in best.problems)

    def _refusal(self, sizes: Sizes, best: Trial) -> UsageError:
        owner = next(iter(self.open.values())).owner
        count = sum(plan.key(axis) in self.open for plan in [owner] for axis in range(len(owner.labels)))
        shape = self.setting(self._complete(sizes)).shapes[owner.name]
        problem = best.problems[0]
        return UsageError(
            f"input shape unknown: {count} dimension{'s' * (count != 1)} of {owner.name} "
            f"{'have' if count != 1 else 'has'} no size, and no guess fits",
            where=f"{owner.name}  {shape_text(owner.facts.spec.shape)}; with {'×'.join(map(str, shape))}, "
            f"{problem.node}: {problem.text}",
            next_step=f"--shape {owner.name}={'x'.join(map(str, shape))}   (with sizes the model takes)",
        )


def _together(keys: Iterable[str], values: Iterable[int], sizes: Sizes) -> Iterator[Sizes]:
    """Yield changes that give all keys one value."""
    for value in values:
        change = dict.fromkeys(keys, value)
        if any(sizes.get(key) != value for key in keys):
            yield change


_VECTORS = (Role.FEATURES, Role.TABLE, Role.CATEGORIES, Role.STRINGS, Role.NUMBERS)
_UNBATCHED = (Role.SCALE, Role.OPERAND, Role.RATE, Role.NUMBERS, Role.SWITCH)
"""Roles whose first axis, if fixed, need not be the batch of the others."""

_WEAK = (OTHER, TOTAL, CHANNEL, FEATURE)
"""Labels that give way when the same symbol stands for something more certain elsewhere."""


def _length_axis(plan: Plan) -> int | None:
    if plan.role in (Role.LENGTHS, Role.MASK, Role.CACHE, Role.STATE, Role.POSITIONS, Role.OPERAND):
        return None
    return next((axis for axis, label in enumerate(plan.labels) if label in (SEQUENCE, TIME, SAMPLES)), None)


def _beside(unknown: Open, key: str, usual: Iterable[int]) -> Iterable[int]:
    """Return sizes for one side of a picture whose other is fixed: lines of text are wide, others square."""
    plan = unknown.owner
    fixed = [plan.facts.size(axis) for axis, label in enumerate(plan.labels) if label in (HEIGHT, WIDTH)]
    other = next((size for size in fixed if size), None)
    if other is None:
        return usual
    wide = plan.key(plan.labels.index(WIDTH)) == key and other <= 64
    return dict.fromkeys([*unknown.hints, *((4 * other,) if wide else ()), other, 2 * other, *usual])


# ---- symbols that are formulas ------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _formula(symbol: str) -> ast.expr | None:
    """Return a symbol such as ``past_sequence_length + 1`` as a tree, None for a plain one."""
    try:
        tree = ast.parse(symbol, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)
    plain = isinstance(tree, ast.Name) or not all(isinstance(part, allowed) for part in ast.walk(tree))
    return None if plain or len(symbol) > 200 else tree


def _names(tree: ast.expr) -> list[str]:
    return [part.id for part in ast.walk(tree) if isinstance(part, ast.Name)]


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, sizes), _value(tree.right, sizes)
        return int(_OPERATORS[type(tree.op)](left, right or (1 if isinstance(tree.op, _DIVIDES) else right)))
    return int(tree.value) if isinstance(tree, ast.Constant) and isinstance(tree.value, int) else 1


_DIVIDES = (ast.Div, ast.FloorDiv, ast.Mod)
