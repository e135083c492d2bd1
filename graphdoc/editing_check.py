"""Is an edited model right? Held against the original where the outputs must be the same, else loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs import make_inputs
from graphdoc.compare.verify import Verifier, is_random
from graphdoc.compare.verify_sides import OPENERS
from graphdoc.editing import Session
from graphdoc.engine.errors import GraphdocError, ModelError, RunnerError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon import edit
from graphdoc.surgeon.edit_find import defined_in, places
from graphdoc.surgeon.edit_names import apply_names, is_symbol
from graphdoc.surgeon.edit_types import dims_of
from graphdoc.surgeon.model import Source, open_source
from graphdoc.surgeon.subject import constant
from graphdoc.surgeon.verification import Verification

LIMIT = 1e-4
"""How far outputs of several slices at once may lie from those of each alone, of the largest element."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found.

    wrong: the outputs differ from the original's, in words; "" when all is well.
    doubtful: the outputs must be the original's, and nothing could be run to see.
    """

    text: str
    wrong: str = ""
    verification: Verification | None = None
    doubtful: bool = False


def _or_runs_on_nothing(source: Source, session: Session, checked: Checked) -> Checked:
    """Note it when the original runs on inputs that suit it, and the edited model on none."""
    failure = _failure(session.model)
    if failure and not _failure(source.model):
        session.left.append(f"it runs on no inputs: {failure}")
    return checked


def _failure(model: ir.Model) -> str:
    """Return why neither the engine nor ONNX Runtime runs a model on inputs made for it, "" if one does."""
    causes = []
    try:
        feeds = make_inputs(model).feeds
    except GraphdocError as error:
        return error.cause
    for opener in reversed(OPENERS.values()):
        try:
            opener(open_source(model)).run(feeds)
        except GraphdocError as error:
            causes.append(error.cause)
        else:
            return ""
    return causes[0]


def check_edited(source: Source, session: Session, *, same: bool) -> Checked:
    """Check an edited model; ``same``: its outputs must be the original's.

    Raises ModelError when it is not sound, or no runner loads it although one loads the original.
    """
    _check_sound(source, session.model)
    runners = _check_loads(source, session.model, every=session.scripted)
    loaded = (
        f"types and shapes agree; {' and '.join(runners)} load it" if runners else "types and shapes agree"
    )
    if not same:
        return Checked(f"{loaded}; the outputs may differ, as asked for")
    sizes = _sizes(source.model, session)
    if sizes.other:
        text = f"{loaded}; not run against the original, which takes other sizes"
        return _or_runs_on_nothing(source, session, Checked(text))
    verifier = Verifier(source, shapes=sizes.fixed or None, opset=session.model.opset_imports.get(""))
    found = verifier.verify(_like_original(source.model, session))
    if not found.agrees:
        return Checked(loaded, found.summary(), found)
    if not found.runs and not sizes.freed:
        return _or_runs_on_nothing(source, session, Checked(found.summary(), "", found, doubtful=True))
    slices = _check_slices(source.model, session, sizes.freed) if sizes.freed else ""
    return Checked("; ".join(filter(None, (found.summary(), slices))), "", found)


def check_part(source: Source, part: ir.Model) -> Checked:
    """Check a part of a model: fed with values of a run of the whole, it must give those of the whole.

    Raises ModelError as :func:`check_edited` does.
    """
    _check_sound(source, part)
    runners = _check_loads(source, part)
    loaded = f"types and shapes agree; {' and '.join(runners)} load it"
    if any(is_random(node) for node in part.graph.all_nodes()):
        return Checked(f"{loaded}; not run, since it draws random numbers")
    try:
        feeds, wanted = _values_of_whole(source.model, part)
        found = Interpreter(part).run(feeds)
    except GraphdocError as error:
        return Checked(f"{loaded}; not run: {error.cause}")
    far = [name for name, value in wanted.items() if not _equal(found[name], value)]
    if far:
        return Checked(loaded, f"'{far[0]}' is not what the whole model computes")
    return Checked(f"{loaded}; fed with values of the whole model it gives those of the whole, bit for bit")


def _values_of_whole(model: ir.Model, part: ir.Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the ends of a part become in a run of the whole: its inputs, its outputs.

    Raises RunnerError when the engine cannot run the model, or the part lies inside a subgraph or function.
    """
    ends = [str(value.name) for value in (*part.graph.inputs, *part.graph.outputs)]
    given = make_inputs(model).feeds
    values = {**Interpreter(model).run(given, taps=ends), **given}
    own = {str(value.name): constant(value) for value in defined_in(model.graph)}
    values |= {name: own[name] for name in ends if name not in values and own.get(name) is not None}
    lacking = next((name for name in ends if name not in values), None)
    if lacking is not None:
        raise RunnerError(f"'{lacking}' lies inside a subgraph or function, or is optional")
    inputs = [str(value.name) for value in part.graph.inputs]
    outputs = [str(value.name) for value in part.graph.outputs]
    return {name: values[name] for name in inputs}, {name: values[name] for name in outputs}


def _equal(a: Any, b: Any) -> bool:
    """Whether two values have the same bits; sequences item by item."""
    if isinstance(a, list) or isinstance(b, list):
        both = isinstance(a, list) and isinstance(b, list) and len(a) == len(b)
        return both and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How the inputs' sizes differ from the original's.

    fixed: sizes that are numbers now, by input or symbol. freed: (input, axis) that take any size now.
    other: an input takes sizes that the original does not take, or fixes one that has no name.
    """

    fixed: dict[str, tuple[int, ...]]
    freed: tuple[tuple[str, int], ...]
    other: bool


def _sizes(original: ir.Model, session: Session) -> _Sizes:
    now = dict(zip(session.inputs, session.model.graph.inputs, strict=False))
    fixed: dict[str, tuple[int, ...]] = {}
    freed: list[tuple[str, int]] = []
    other = False
    for value in original.graph.inputs:
        old, new = (_open_ones(dims_of(each.shape)) for each in (value, now[str(value.name)]))
        numbers = tuple(dim for dim in new if isinstance(dim, int))
        if len(numbers) == len(new) and old != new:
            fixed[str(value.name)] = numbers
        for axis, (before, after) in enumerate(zip(old, new, strict=False)):
            if isinstance(before, int) and before != after:
                other |= isinstance(after, int)
                freed.append((str(value.name), axis))
            elif isinstance(after, int) and before is None:
                other |= len(numbers) < len(new) and not _fill(fixed, original, str(value.name), new)
            elif isinstance(after, int) and isinstance(before, str) and is_symbol(before):
                fixed.setdefault(before, (after,))
    return _Sizes(fixed, tuple(freed), other)


def _open_ones(dims: Sequence[int | str | None]) -> list[int | str | None]:
    """Return dims with None for those that some exporters write as -1 or a question mark."""
    return [None if dim == "?" or (isinstance(dim, int) and dim < 0) else dim for dim in dims]


def _fill(fixed: dict[str, tuple[int, ...]], original: ir.Model, name: str, dims: Sequence[Any]) -> bool:
    """Give an input, one of whose nameless dims was fixed, a shape: the open sizes as they are made up."""
    try:
        usual = make_inputs(original).feeds[name].shape
    except (GraphdocError, KeyError):
        return False
    fixed[name] = tuple(dim if isinstance(dim, int) else size for dim, size in zip(dims, usual, strict=True))
    return True


def _check_sound(source: Source, model: ir.Model) -> None:
    """Raise ModelError for an edited model that contradicts itself, unless the original did so already."""
    try:
        edit.check(model)
    except ModelError:
        try:
            edit.check(source.model)
        except ModelError:
            return
        raise


def _check_loads(source: Source, model: ir.Model, *, every: bool = False) -> list[str]:
    """Return who loads the model.

    every: whoever loads the original must load the result too; else one that does is enough.
    Raises ModelError when that is not so.
    """
    titles = {"ort": "ONNX Runtime", "engine": "the engine"}
    loads: list[str] = []
    failures: dict[str, GraphdocError] = {}
    for name, opener in OPENERS.items():
        try:
            opener(open_source(model))
            loads.append(titles[name])
        except GraphdocError as error:
            failures[name] = error
    lost = next((name for name in failures if _loads(OPENERS[name], source)), None)
    if lost is not None and (every or not loads):
        raise ModelError(
            f"the edited model does not load: {failures[lost].cause}",
            where=failures[lost].where,
            next_step="write it all the same: --no-verify",
        )
    return loads


def _loads(opener: Any, source: Source) -> bool:
    try:
        opener(source)
    except GraphdocError:
        return False
    return True


def _like_original(original: ir.Model, session: Session) -> ir.Model:
    """Return a copy of the edited model with the original's names, order and types of inputs and outputs."""
    copy = edit.copy_model(session.model)
    values = (value for place in places(copy) if not place.function for value in defined_in(place.graph))
    apply_names(copy, {value: f"edited.{value.name}" for value in values})
    known = len(session.inputs)  # behind them stand new weights, which models of IR version 3 list
    ends = (*copy.graph.inputs[:known], *copy.graph.outputs)
    apply_names(copy, dict(zip(ends, (*session.inputs, *session.outputs), strict=True)))
    for kind in ("inputs", "outputs"):
        declared = {str(value.name): value for value in getattr(original.graph, kind)}
        found = {str(value.name): value for value in getattr(copy.graph, kind)}
        more = [value for name, value in found.items() if name not in declared]
        getattr(copy.graph, kind)[:] = [*(found[name] for name in declared), *more]
        for name, before in declared.items():
            after = found[name]
            after.type, after.shape, after.doc_string = before.type, before.shape, before.doc_string
            after.metadata_props.update(before.metadata_props)
    for new, old in ((copy, original), (copy.graph, original.graph)):
        new.metadata_props.update(old.metadata_props)
        new.doc_string = old.doc_string
    copy.ir_version = max(copy.ir_version, original.ir_version)
    return copy


def _check_slices(original: ir.Model, session: Session, axes: Sequence[tuple[str, int]]) -> str:
    """Run the edited model on two inputs at once, the original on each; say how the outputs compare."""
    edited = _like_original(original, session)
    for name, axis in axes:
        _open_axis(edited, name, axis)
    feeds = [make_inputs(original, seed=seed).feeds for seed in (0, 1)]
    freed = dict(axes)
    both = {
        name: np.concatenate([feed[name] for feed in feeds], axis=freed[name]) if name in freed else value
        for name, value in feeds[0].items()
    }
    alone = [
        Interpreter(original).run({**feeds[0], **{name: feed[name] for name in freed}}) for feed in feeds
    ]
    try:
        together = Interpreter(edited).run(both)
    except GraphdocError as error:
        session.left.append(error.cause)
        return "at twice the size it does not run"
    far = [name for name, value in together.items() if not _close(value, [run[name] for run in alone])]
    baked = [name for name in far if _close(together[name], [alone[0][name]])]
    if baked:
        session.left.append(f"'{baked[0]}' is that of the first slice alone: a size of old is written inside")
        return "at twice the size it gives the first slice alone"
    if far:
        return (
            f"it runs at twice the size; '{far[0]}' is not what the original gives slice by slice, "
            "as where slices are mixed"
        )
    session.left.clear()  # what looked as if it needed the old size does not
    return "at twice the size its outputs are those of the original, slice by slice"


def _open_axis(model: ir.Model, name: str, axis: int) -> None:
    value = next(value for value in model.graph.inputs if value.name == name)
    dims = [getattr(dim, "value", dim) for dim in value.shape or ()]
    dims[axis] = None
    value.shape = ir.Shape(dims)


def _close(value: Any, parts: Sequence[Any]) -> bool:
    """Whether a result is all parts together along one axis, or each of them, within rounding."""
    arrays = [np.asarray(part) for part in (value, *parts)]
    found, *rest = arrays
    if found.dtype.kind not in "fiub" or len({part.shape for part in rest}) != 1:
        return True
    if found.ndim != rest[0].ndim:
        return False
    axes = [axis for axis in range(found.ndim) if found.shape[axis] == 2 * rest[0].shape[axis]]
    if axes:
        return _near(found, np.concatenate(rest, axis=axes[0]))
    return all(_near(found, part) for part in rest)


def _near(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    if found.shape != wanted.shape:
        return False
    scale = float(np.abs(wanted.astype(np.float64)).max(initial=0.0)) or 1.0
    return bool(np.all(np.abs(found.astype(np.float64) - wanted.astype(np.float64)) <= LIMIT * scale))
