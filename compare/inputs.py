"""The inputs of a comparison: read from files, or seeded values that suit the model."""

import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs_dryrun import DryRun, Trial
from graphdoc.compare.inputs_facts import Case, Facts, Setting
from graphdoc.compare.inputs_files import data_sets, read_contents
from graphdoc.compare.inputs_fit import fit
from graphdoc.compare.inputs_nodes import LIMIT, Content, tensor_type
from graphdoc.compare.inputs_npy import MAX_BYTES
from graphdoc.compare.inputs_roles import Role, axis_labels, role_of
from graphdoc.compare.inputs_signals import features, words
from graphdoc.compare.inputs_sizes import Plan, Search
from graphdoc.compare.inputs_uses import Walker
from graphdoc.compare.inputs_values import make_values
from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import (
    SEQUENCE,
    TENSOR,
    InputSpec,
    check_feeds,
    example_shape,
    input_specs,
    nearest,
    required_inputs,
    shape_text,
)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Inputs:
    """What is fed to both sides.

    feeds: input name → array (object arrays of ``str`` for strings, lists for sequences, None for an
        empty optional).
    sources: input name → where its values come from, in words.
    seed: None when every value comes from a file.
    """

    feeds: dict[str, Any]
    sources: dict[str, str]
    seed: int | None


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return ``--shape`` options as name → sizes.

    ``x=1x3x224x224`` sets an input, ``x=`` one of rank 0, ``N=4`` a symbol (or an input of rank 1). Whether
    the names exist is checked where the model is known. Raises UsageError.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sizes = _parse_shape(text)
        if shapes.setdefault(name, sizes) != sizes:
            raise UsageError(f"--shape gives '{name}' twice", where=f"--shape {text}", next_step="keep one")
    return shapes


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    parts = sizes.replace("×", "x").replace(",", "x").split("x") if sizes.strip() else []
    if not equals or not name.strip() or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(
            f"not a shape: '{text}'",
            where=f"--shape {text}",
            next_step="write --shape NAME=1x3x224x224, or --shape SYMBOL=4",
        )
    return name.strip(), tuple(int(part) for part in parts)


def make_inputs(model: ir.Model, *, shapes: Shapes | None = None, seed: int = 0) -> Inputs:
    """Return seeded inputs that suit the model, for every input without an initializer.

    What an input is for is read off the graph (``inputs_roles.py``); sizes that the model leaves open are
    found by dry runs (``inputs_sizes.py``). Same model, shapes and seed: same values, on every machine.

    shapes: sizes by input name or symbol, as :func:`parse_shapes` returns them.

    Raises UsageError for names or sizes the model does not have and for sizes that cannot be guessed.
    """
    specs = required_inputs(model)
    given, specs = apply_shapes(specs, shapes or {})
    tensors = {name: spec for name, spec in specs.items() if spec.kind == TENSOR}
    feeds, texts = Seeder(model, tensors, given, seed).make(seed)
    for name, spec in specs.items():
        if name not in feeds:
            feeds[name], texts[name] = other_values(spec, seed)
    feeds = {name: feeds[name] for name in specs}
    check_feeds(model, feeds)
    return Inputs(feeds, {name: f"seed {seed}: {texts[name]}" for name in feeds}, seed)


def _random(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one input: its values do not change when others come or go."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


class Seeder:
    """What the tensor inputs of a model are for, and sizes that it accepts: makes any number of inputs.

    specs: the inputs, their ranks known. given: sizes of open dimensions that the user has fixed.
    seed: of the values that sizes are tried with. quick: take the first guess at sizes without trying it.
    open: the dimensions that are neither fixed nor given, by key (a symbol, or ``input.axis``).
    sizes: a size for every dimension that the model leaves open.

    Raises UsageError when no sizes are found.
    """

    def __init__(
        self,
        model: ir.Model,
        specs: Mapping[str, InputSpec],
        given: dict[str, int],
        seed: int = 0,
        *,
        quick: bool = False,
    ) -> None:
        run = DryRun(model)
        plain = quick or all(_is_plain(spec) for spec in specs.values())
        walker = Walker(model, run.constants() if plain else run.run({}).values)
        values = {str(value.name): value for value in model.graph.inputs}
        self._plans = [_plan(Facts(spec, walker.uses(values[name]), walker)) for name, spec in specs.items()]

        def attempt(setting: Setting) -> Trial:
            cases = [(plan, self._case(plan, setting, seed)) for plan in self._plans]
            return run.run({plan.name: _content(case, plan.role) for plan, case in cases})

        self._search = Search(self._plans, given, run, attempt)
        if plain:
            self._setting = self._search.unverified()
        else:
            self._setting, trial = self._search.solve()
            walker.known = trial.values
        self.open = self._search.open
        self.sizes = self._search.sizes_of(self._setting)

    def _case(self, plan: Plan, setting: Setting, seed: int) -> Case:
        return Case(plan.facts, setting.shapes[plan.name], _random(seed, plan.name), setting)

    def make(
        self, seed: int, sizes: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return values by input, and what they are in words.

        sizes: other sizes for some of the open dimensions; whether the model accepts them is not tried.
        """
        setting = self._setting if sizes is None else self._search.changed(self._setting, sizes)
        _check_room(self._plans, setting)
        made = {plan.name: make_values(self._case(plan, setting, seed), plan.role) for plan in self._plans}
        return {name: array for name, (array, _) in made.items()}, {
            name: text for name, (_, text) in made.items()
        }


def _is_plain(spec: InputSpec) -> bool:
    """Whether nothing but the batch size is open in a float tensor; a dry run would only cost time."""
    if spec.dtype is None or spec.dtype.kind != "f" or spec.shape is None:
        return False
    batch = 1 if len(spec.shape) > 1 else 0
    return all(isinstance(dim, int) for dim in spec.shape[batch:])


def _check_room(plans: list[Plan], setting: Setting) -> None:
    for plan in plans:
        shape, dtype = setting.shapes[plan.name], plan.facts.spec.dtype
        if dtype is not None and prod(shape) * dtype.itemsize > MAX_BYTES:
            raise UsageError(
                f"input '{plan.name}' would take {prod(shape) * dtype.itemsize:,} bytes",
                where=str(plan.facts.spec),
                next_step=f"--shape {plan.name}={'x'.join('1' for _ in shape)}   (with smaller sizes)",
            )


def _plan(facts: Facts) -> Plan:
    role = role_of(facts)
    return Plan(facts, role, axis_labels(facts, role))


def _content(case: Case, role: Role) -> Content:
    """Return the values for a dry run, or of large tensors the type: floats that shape nothing."""
    dtype, count = case.facts.spec.dtype, prod(case.shape)
    if dtype is None or count > (64 if case.facts.kind == "f" else LIMIT):
        return None if dtype is None else tensor_type(dtype, case.shape)
    return make_values(case, role)[0]


def other_values(spec: InputSpec, seed: int) -> tuple[Any, str]:
    """Return a value for an input that is no tensor, and what it is in words."""
    rng = _random(seed, spec.name)
    if spec.kind != SEQUENCE:
        return None, "an empty optional"
    shape = tuple(dim if isinstance(dim, int) else 3 for dim in ((3,) if spec.shape is None else spec.shape))
    if spec.dtype is None or spec.dtype.kind == "O":
        return [words(rng, shape) for _ in range(2)], "a sequence of 2"
    return [features(rng, shape).astype(spec.dtype) for _ in range(2)], "a sequence of 2"


def apply_shapes(
    specs: Mapping[str, InputSpec], shapes: Shapes
) -> tuple[dict[str, int], dict[str, InputSpec]]:
    """Return the sizes of open dimensions that the user has given, and the inputs with ranks filled in.

    Raises UsageError for unknown names, wrong ranks, fixed sizes given otherwise, and contradictions.
    """
    given: dict[str, int] = {}
    result = dict(specs)
    symbols = {dim for spec in specs.values() for dim in spec.shape or () if isinstance(dim, str)}
    for name, sizes in shapes.items():
        if name in specs:
            result[name] = _apply(specs[name], sizes, given)
        elif name in symbols and len(sizes) == 1:
            _give(given, name, sizes[0], f"--shape {name}={sizes[0]}")
        else:
            raise _unknown_name(name, sizes, specs, symbols)
    for spec in result.values():
        if spec.shape is None and spec.kind == TENSOR:
            raise UsageError(
                f"input shape unknown: the model does not tell the rank of {spec.name}",
                where=str(spec),
                next_step=f"--shape {spec.name}=1x3x224x224   (with the sizes the model takes)",
            )
    return given, result


def _apply(spec: InputSpec, sizes: tuple[int, ...], given: dict[str, int]) -> InputSpec:
    text = f"--shape {spec.name}={'x'.join(map(str, sizes))}"
    if spec.shape is None:
        return replace(spec, shape=sizes)
    fits = len(sizes) == len(spec.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, sizes, strict=True)
    )
    if not fits:
        raise UsageError(
            f"input '{spec.name}' has shape {shape_text(spec.shape)}, not {shape_text(sizes)}",
            where=text,
            next_step=f"--shape {spec.name}={example_shape(spec.shape)}",
        )
    for axis, (dim, size) in enumerate(zip(spec.shape, sizes, strict=True)):
        if not isinstance(dim, int):
            _give(given, dim or f"{spec.name}.{axis}", size, text)
    return spec


def _give(given: dict[str, int], key: str, size: int, text: str) -> None:
    if given.setdefault(key, size) != size:
        raise UsageError(
            f"dimension '{key}' cannot be both {given[key]} and {size}",
            where=text,
            next_step=f"give it once: --shape {key}={size}",
        )


def _unknown_name(
    name: str, sizes: tuple[int, ...], specs: Mapping[str, InputSpec], symbols: set[str]
) -> UsageError:
    shape = "x".join(map(str, sizes))
    if name in symbols:
        return UsageError(
            f"'{name}' is one dimension, {len(sizes)} sizes were given",
            where=f"--shape {name}={shape}",
            next_step=f"--shape {name}={sizes[0] if sizes else 1}",
        )
    guess = nearest(name, [*specs, *sorted(symbols)])
    return UsageError(
        f"the model has no input or dimension '{name}'",
        where="; ".join(str(spec) for spec in list(specs.values())[:6]) or "the model has no inputs",
        next_step=f"did you mean --shape {guess}={shape}?" if guess else "leave it out",
    )


def load_inputs(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    fill: bool = False,
    shapes: Shapes | None = None,
    seed: int = 0,
) -> Inputs:
    """Return the inputs in a file or folder.

    path: ``.npz`` by name; ``.npy`` for a single input; ``.json`` by name; ``.pb`` or a folder of
        ``input_0.pb`` … as ONNX ships test data (of several ``test_data_set_*`` the first).
    fill: make seeded values for inputs that the file lacks, of sizes that agree with those it has.

    dtypes must match; float64 → float32, wider floats and integers whose values fit are converted, and
    the sources say so. Raises InputError for what cannot be read, is missing, is unknown or does not fit.
    """
    contents = read_contents(Path(path))
    feeds, sources = fit(contents, input_specs(model))
    missing = [name for name in required_inputs(model) if name not in feeds]
    if fill and missing:
        return _filled(model, feeds, sources, shapes or {}, seed)
    check_feeds(model, feeds)
    return Inputs(feeds, sources, None)


def load_input_sets(model: ir.Model, path: str | os.PathLike[str]) -> list[Inputs]:
    """Return every set of a folder of ``test_data_set_0``, ``test_data_set_1`` …; of others the only one."""
    sets = data_sets(Path(path)) if Path(path).is_dir() else []
    return [load_inputs(model, folder) for folder in sets or [Path(path)]]


def _filled(
    model: ir.Model, feeds: dict[str, Any], sources: dict[str, str], shapes: Shapes, seed: int
) -> Inputs:
    """Return the feeds with seeded values for the rest."""
    check_feeds(model, feeds, partial=True)
    specs = required_inputs(model)
    sizes = {n: tuple(v.shape) for n, v in feeds.items() if n in specs and specs[n].kind == TENSOR}
    made = make_inputs(model, shapes={**shapes, **sizes}, seed=seed)
    feeds = {**made.feeds, **feeds}
    check_feeds(model, feeds)
    return Inputs(feeds, {**made.sources, **sources}, seed)
