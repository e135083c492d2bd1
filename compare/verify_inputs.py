"""The inputs that an edited model is verified on: seeded ones, other sizes, and unusual values.

A wrong edit often shows only where nobody looks: at a batch of 3, at −0.0, at NaN, at the largest integer.
Each kind of inputs is one change to seeded values that suit the model; what the original refuses says
nothing, so each kind has milder forms to fall back on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs import Seeder, Shapes, apply_shapes, other_values
from graphdoc.compare.inputs_roles import BATCH, HEIGHT, ROWS, SIDE, WIDTH
from graphdoc.compare.inputs_sizes import CANDIDATES, Open
from graphdoc.compare.verify_hazards import Hazard, Hazards
from graphdoc.engine.feeds import TENSOR, check_feeds, input_specs, required_inputs

Array: TypeAlias = np.ndarray[Any, Any]
Feeds: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[], Feeds]


@dataclass(frozen=True)
class InputSet:
    """One kind of inputs.

    kind: in words. choices: ways to make them, the fullest first; the first that the original accepts counts.
    runners: through which they may go; the engine alone where a runtime might not check what it reads.
    thorough: left out unless asked for. extreme: sums over them may overflow.
    """

    kind: str
    choices: tuple[Make, ...] = field(repr=False)
    runners: tuple[str, ...] = ("ort", "engine")
    thorough: bool = False
    extreme: bool = False


# ---- unusual values -----------------------------------------------------------------------------------

Change: TypeAlias = Callable[[Array], Array]


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds real numbers, those of ml_dtypes too."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds whole numbers, those of ml_dtypes too."""
    return dtype.kind in "iu" or (dtype.kind == "V" and "int" in dtype.name)


def _limits(dtype: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(dtype) if is_float(dtype) else ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]


def _spots(array: Array, count: int, salt: int) -> Array:
    """Return up to ``count`` positions of a flat array, spread over it; the same ones every time."""
    rng = np.random.default_rng([salt, array.size])
    return rng.choice(array.size, min(count, max(1, array.size // 2)), replace=False)


def _scaled(array: Array, exponent: int) -> Array:
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(wide * 2.0**exponent).astype(array.dtype)


_LARGE = {"float16": 6, "float32": 20, "float64": 20, "bfloat16": 20, "complex64": 20, "complex128": 20}
"""Powers of two that leave room for sums of squares; other dtypes have hardly any range."""


def _large(array: Array) -> Array:
    return _scaled(array, _LARGE.get(array.dtype.name, 2))


def _small(array: Array) -> Array:
    return _scaled(array, -10)


def _negated(array: Array) -> Array:
    """The other sign, and among it −0.0, 0.0 and the smallest numbers of both signs."""
    result = np.array(-array)
    if result.dtype.kind == "c" or not result.size:
        return result
    tiny = float(_limits(result.dtype).smallest_subnormal)
    return _with(result, (-0.0, 0.0, tiny, -tiny), 5)


def _with(array: Array, values: Sequence[float], salt: int) -> Array:
    flat = array.reshape(-1)
    for spot, value in zip(_spots(flat, len(values), salt), values, strict=False):
        flat[spot] = value
    return array


def _holding(*values: float) -> Change:
    """Return the change that puts values among those of an array; dtypes without them stay."""

    def change(array: Array) -> Array:
        result = np.array(array)
        with np.errstate(all="ignore"):
            kept = [v for v in values if str(np.asarray(v).astype(result.dtype)) == str(np.asarray(v))]
        return _with(result, kept, 7) if result.size else result

    return change


def _largest(array: Array) -> Array:
    """One number as large as the dtype has it; of two, the order of a sum decides whether they overflow."""
    result = np.array(array)
    if result.size and result.dtype.kind != "c":
        result.reshape(-1)[_spots(result, 1, 11)[0]] = _limits(result.dtype).max
    return result


def _whole_extremes(array: Array) -> Array:
    """The ends of the dtype, and the neighbours of what float32 and int32 hold."""
    info = _limits(array.dtype)
    low, high = int(info.min), int(info.max)
    values = [high, low + (low < 0), 2**24 + 1, 2**31 + 3, 255, -129, 2**53 + 1]
    fitting = [value for value in values if low <= value <= high]
    flat = np.resize(np.asarray(fitting, dtype=object), array.size or 1)[: array.size]
    return np.array(flat.astype(array.dtype).reshape(array.shape))


def _filled(value: Any) -> Change:
    return lambda array: np.full(array.shape, value).astype(array.dtype)


def _mirrored(array: Array) -> Array:
    """~x: of an index from the front one from the back; of unsigned numbers the distance to the largest."""
    return np.array(np.invert(array)) if array.dtype.kind in "iu" else np.array(array)


@dataclass(frozen=True)
class Edge:
    """A change by kind of dtype; kinds it lacks stay as they are."""

    kind: str
    real: Change | None = None
    whole: Change | None = None
    truth: Change | None = None
    text: Change | None = None
    thorough: bool = False
    extreme: bool = False

    def change(self, dtype: np.dtype[Any]) -> Change | None:
        """Return what happens to arrays of a dtype."""
        if dtype.kind == "c" or is_float(dtype):
            return self.real
        if is_integer(dtype):
            return self.whole
        return {"b": self.truth, "O": self.text}.get(dtype.kind)


EDGES = (
    Edge("NaN", real=_holding(np.nan)),
    Edge("large values", real=_large, extreme=True),
    Edge("zeros", _filled(0), _filled(0), _filled(False), _filled("")),
    Edge("small values", real=_small),
    Edge("the other sign, −0.0", _negated, _mirrored, np.logical_not, _filled("é – ∂")),
    Edge("infinities", real=_holding(np.inf, -np.inf)),
    Edge("ones", _filled(1), _filled(1), _filled(True), _filled("1")),
    Edge("the largest integers", whole=_whole_extremes),
    Edge("the largest number", real=_largest, extreme=True),
    Edge("tiny values", real=partial(_scaled, exponent=-60), thorough=True),
    Edge("one infinity", real=_holding(np.inf), thorough=True),
    Edge("twos", _filled(2), _filled(2), thorough=True),
    Edge("minus ones", _filled(-1), _filled(-1), thorough=True),
)
"""In the order in which they are run."""


# ---- sizes --------------------------------------------------------------------------------------------

_PICTURE = (HEIGHT, WIDTH, SIDE)
_EMPTIED = (BATCH, ROWS)


def other_sizes(unknown: Open, size: int) -> list[int]:
    """Return up to three other sizes for an open dimension, the likeliest to be accepted first.

    Of pictures multiples of 32; of everything else odd sizes that no other dimension is likely to have.
    """
    if unknown.label in _PICTURE:
        wanted = [size // 2 if size >= 64 else 2 * size, 96, 160, 64]
        return [other for other in dict.fromkeys(wanted) if other != size and other > 0][:3]
    if unknown.label in _EMPTIED:
        return [other for other in (2, 3) if other != size]
    usual = CANDIDATES[unknown.label][:3]
    wanted = [7 if size != 7 and size < 64 else size + 1, *unknown.hints, *usual, 2 * size]
    return [other for other in dict.fromkeys(wanted) if other != size and other > 0][:3]


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes in words: ``N=3, M=7``."""
    return ", ".join(f"{key}={size}" for key, size in sizes.items())


# ---- all of them --------------------------------------------------------------------------------------


class InputSets:
    """The sets of inputs of one model.

    shapes: sizes that are fixed, by input or symbol. given: values to use in place of seeded ones; other
        sizes are seeded all the same.

    Raises UsageError when shapes do not fit the model, InputError when given values do not.
    """

    def __init__(self, model: ir.Model, shapes: Shapes | None = None, given: Feeds | None = None) -> None:
        self._model = model
        self._given = given
        self._specs = required_inputs(model)
        if given is not None:
            check_feeds(model, given)
        sizes, specs = apply_shapes(self._specs, {**self._ranks(), **(shapes or {})})
        tensors = {name: spec for name, spec in specs.items() if spec.kind == TENSOR}
        self._make_seeder = partial(Seeder, model, tensors, sizes)
        self._seeder = self._make_seeder(quick=True)

    def _ranks(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of given values whose rank the model does not tell."""
        given = self._given or {}
        blank = [name for name, spec in self._specs.items() if spec.shape is None and spec.kind == TENSOR]
        return {name: given[name].shape for name in blank if name in given}

    @cached_property
    def _hazards(self) -> dict[str, Hazard]:
        hazards = Hazards(self._model)
        return {str(value.name): hazards.of(value) for value in self._model.graph.inputs}

    def seeded(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> Feeds:
        """Return seeded inputs. Raises UsageError when they would be too large."""
        values, _ = self._seeder.make(seed, sizes)
        return {
            name: values[name] if name in values else other_values(spec, seed)[0]
            for name, spec in self._specs.items()
        }

    @cached_property
    def base(self) -> Feeds:
        """The values that all others are made from."""
        return self.seeded() if self._given is None else self._given

    def _tried(self) -> Feeds:
        """Return the values at sizes that a search has found, for when the first guess is refused.

        All sets made later have those sizes too. Raises UsageError when nothing fits.
        """
        self._seeder = self._make_seeder()
        self.base = self.seeded()
        return self.base

    def all(self) -> Iterator[InputSet]:
        """Yield every set, the most telling first; each is to be run before the next one is asked for."""
        if self._given is None:
            yield InputSet("seeded", (lambda: self.base, self._tried))
        else:
            yield InputSet("given", (lambda: self.base,))
        open_sizes = self._open()
        if open_sizes:
            yield from self._other_sizes(open_sizes)
        yield from self._overridden()
        for edge in EDGES:
            yield from self._edge(edge)
        if open_sizes:
            yield from self._least(open_sizes)
        yield InputSet("another seed", (partial(self.seeded, 1),), thorough=True)

    def _open(self) -> dict[str, Open]:
        return {key: unknown for key, unknown in self._seeder.open.items() if key in self._seeder.sizes}

    # -- sizes --

    def _other_sizes(self, unknown: Mapping[str, Open]) -> Iterator[InputSet]:
        """Yield sets of other sizes: all dimensions at once, else each by itself."""
        others = {key: other_sizes(dim, self._seeder.sizes[key]) for key, dim in unknown.items()}
        together = [
            {key: values[min(turn, len(values) - 1)] for key, values in others.items() if values}
            for turn in range(2)
        ]
        alone = [{key: value} for key, values in others.items() for value in values]
        yield self._sized("other sizes", [*together, *alone])
        for key, values in others.items():
            sizes = [{key: value} for value in values]
            yield self._sized(f"another {key}", sizes, thorough=True)

    def _least(self, unknown: Mapping[str, Open]) -> Iterator[InputSet]:
        """Yield sets with sizes of 1, and empty ones: a batch of 0, any dimension of 0."""
        keys = list(unknown)
        ones = [dict.fromkeys(keys, 1), *({key: 1} for key in keys)]
        yield self._sized("sizes of 1", ones)
        batches = {key: 0 for key, dim in unknown.items() if dim.label in _EMPTIED}
        runners = ("engine",)  # native code that meets no element at all is the least tested
        yield self._sized("empty", [s for s in (batches, dict.fromkeys(keys[:1], 0)) if s], runners)
        for key in keys:
            yield self._sized(f"no {key}", [{key: 0}], runners, thorough=True)

    def _sized(
        self,
        kind: str,
        sizes: Iterable[Mapping[str, int]],
        runners: tuple[str, ...] = ("ort", "engine"),
        *,
        thorough: bool = False,
    ) -> InputSet:
        makes = tuple(partial(self.seeded, 1, dict(changes)) for changes in sizes)
        return InputSet(kind, makes, runners, thorough)

    # -- values --

    def _edge(self, edge: Edge) -> Iterator[InputSet]:
        """Yield the set of an edge, and where that would be risky in a runtime, a milder one for it."""
        names = [name for name in self.base if self._is_changed(edge, name)]
        safe = [name for name in names if self._hazards[name] == Hazard.NONE]
        if safe:
            choices = self._choices(edge, safe)
            yield InputSet(edge.kind, choices, thorough=edge.thorough, extreme=edge.extreme)
        if len(safe) < len(names):
            risky = [name for name in names if name not in safe]
            choices = (partial(self._changed, edge, names), partial(self._changed, edge, risky))
            kind = f"{edge.kind} (positions too)"
            yield InputSet(kind, choices, ("engine",), edge.thorough, edge.extreme)

    def _is_changed(self, edge: Edge, name: str) -> bool:
        arrays = _arrays(self.base[name])
        changed = any(array.size and edge.change(array.dtype) is not None for array in arrays)
        return changed and self._hazards[name] < Hazard.SIZES

    def _choices(self, edge: Edge, names: list[str]) -> tuple[Make, ...]:
        """Return all inputs changed, only those that hold real numbers, each alone."""
        real = [n for n in names if all(not is_integer(a.dtype) for a in _arrays(self.base[n]))]
        groups = [names]
        if real and len(real) < len(names):
            groups.append(real)
        if len(names) > 1:
            groups.extend([name] for name in names[:4])
        return tuple(partial(self._changed, edge, group) for group in groups)

    def _changed(self, edge: Edge, names: Iterable[str]) -> Feeds:
        return {**self.base, **{name: _mapped(self.base[name], edge) for name in names}}

    # -- inputs with a default --

    def _overridden(self) -> Iterator[InputSet]:
        """Yield a set with other values for inputs that have a default (IR version 4 on)."""
        if self._model.ir_version < 4:
            return
        values = self._model.graph.initializers
        defaults = {
            name: np.array(values[name].const_value.numpy())  # type: ignore[union-attr]
            for name, spec in input_specs(self._model).items()
            if not spec.required and values[name].const_value is not None
        }
        if not defaults:
            return
        real = {name: array for name, array in defaults.items() if not is_integer(array.dtype)}
        groups = [defaults, *([real] if 0 < len(real) < len(defaults) else [])]
        groups.extend({name: array} for name, array in defaults.items() if len(defaults) > 1)
        yield InputSet("defaults overridden", tuple(partial(self._with, group) for group in groups[:8]))

    def _with(self, defaults: Mapping[str, Array]) -> Feeds:
        return {**self.base, **{name: _otherwise(array) for name, array in defaults.items()}}


def _arrays(value: Any) -> list[Array]:
    """Return the arrays of a feed."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _mapped(value: Any, edge: Edge) -> Any:
    if isinstance(value, list):
        return [_mapped(item, edge) for item in value]
    change = edge.change(value.dtype)
    with np.errstate(all="ignore"):
        return value if change is None else np.asarray(change(value))


def _otherwise(array: Array) -> Array:
    """Return values of the same kind that are not the same."""
    if array.dtype.kind == "b":
        return np.asarray(np.logical_not(array))
    if array.dtype == object:
        return np.asarray(array + "'")
    if is_integer(array.dtype):
        return np.asarray((array.astype(np.int64) + 1).astype(array.dtype))
    with np.errstate(all="ignore"):
        return np.asarray((array.astype(np.float64) * 1.25 + 0.125).astype(array.dtype))
