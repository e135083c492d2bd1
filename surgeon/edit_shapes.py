"""Sizes of inputs: fix a symbol, free a fixed size, change one; and what in the model knew the old size."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_find import Index, ValueLike, unknown
from graphdoc.surgeon.edit_names import change_dims, dim_symbols, is_symbol, looks_like_number
from graphdoc.surgeon.edit_repair import Repairs, repair
from graphdoc.surgeon.edit_types import dims_of, refresh
from graphdoc.surgeon.stubs import refuse_stripped

Dim = int | str | None


def freeze(model: ir.Model, sizes: Mapping[str, int]) -> Repairs:
    """Fix symbols of dims: ``{"N": 1}`` everywhere, ``{"x.0": 1}`` one dim of an input that has no symbol.

    Expressions are worked out (``2*N`` → 2). What the model computes does not change, for inputs of that
    size.

    Raises UsageError for a symbol that no shape names, or a size that is none; ModelError for a model whose
    weights were stripped: what knew the old size is told by its content.
    """
    refuse_stripped(model, "fixing a size")
    symbols = dim_symbols(model)
    axes = {name: _axis(model, name) for name in sizes if name not in symbols}
    for name, size in sizes.items():
        if size < 0:
            raise UsageError(f"{name}={size} is no size", next_step="give a number from 0 on")
        if name in axes and axes[name] is None:
            raise unknown("dim", name, symbols, look="graphdoc inspect MODEL    or INPUT.AXIS, as in x.0")
    change_dims(model, {name: str(size) for name, size in sizes.items() if name not in axes})
    done = Repairs()
    for name, axis in axes.items():
        if axis is not None:
            value, position = axis
            done.extend(resize(model, value, {position: sizes[name]}))
    refresh(model, model.graph.inputs)
    return done


def _axis(model: ir.Model, name: str) -> tuple[ir.Value, int] | None:
    """Return the input and axis that ``x.0`` means, or None."""
    title, dot, axis = name.rpartition(".")
    found = next((value for value in model.graph.inputs if value.name == title), None)
    if found is None or not dot or not axis.lstrip("-").isdecimal():
        return None
    rank = None if found.shape is None else len(found.shape)
    if rank is None or not -rank <= int(axis) < rank:
        raise UsageError(
            f"input '{title}' has no axis {axis}",
            where=f"rank {'unknown' if rank is None else rank}",
            next_step="graphdoc inspect MODEL",
        )
    return found, int(axis) % rank


def free(model: ir.Model, name: str, symbol: str) -> Repairs:
    """Let a dim of an input take any size: ``free(model, "x.0", "N")``.

    What inside the model knew the old size is repaired: targets of Reshape and Expand, Concat with constants,
    initial states of recurrent layers, sizes of Resize. The same symbol for several inputs states that their
    sizes are equal.

    Returns what was repaired and what could not be. Raises UsageError for an unknown input or axis;
    ModelError for a model whose weights were stripped.
    """
    refuse_stripped(model, "freeing a size")
    axis = _axis(model, name)
    if axis is None:
        names = [f"{v.name}.{i}" for v in model.graph.inputs for i in range(len(v.shape or ()))]
        raise unknown("dim", name, names, look="write INPUT.AXIS, as in x.0:  graphdoc inspect MODEL")
    if not symbol or not is_symbol(symbol) or looks_like_number(symbol):
        raise UsageError(f"'{symbol}' is no symbol", next_step="give a name, such as N")
    return resize(model, axis[0], {axis[1]: symbol})


def set_shape(model: ir.Model, value: ValueLike, shape: Sequence[Dim]) -> Repairs:
    """Declare the shape of an input: sizes, symbols, None for unknown.

    Where a fixed size changes, what inside the model knew it is repaired as by :func:`free`.

    Returns what was repaired and what could not be. Raises UsageError when it is no input or has another
    rank, and for sizes below 0; ModelError for a model whose weights were stripped.
    """
    refuse_stripped(model, "another shape")
    found = Index(model).value(value)
    if not any(found is each for each in model.graph.inputs):
        raise UsageError(
            f"'{found.name}' is no input; the shapes of other values follow from those of the inputs",
            where=f"inputs: {', '.join(str(v.name) for v in model.graph.inputs if not v.is_initializer())}",
            next_step="name an input",
        )
    if found.is_initializer():
        raise UsageError(
            f"'{found.name}' has a default content of its own shape", next_step="--to-input first"
        )
    if found.shape is not None and len(found.shape) != len(shape):
        raise UsageError(
            f"'{found.name}' has {len(found.shape)} dims, not {len(shape)}",
            next_step="insert a Reshape after it",
        )
    below = next((dim for dim in shape if isinstance(dim, int) and dim < 0), None)
    if below is not None:
        raise UsageError(
            f"{below} is no size", next_step="give 0 or more, a symbol, or None for an open size"
        )
    if found.shape is None:
        found.shape = ir.Shape(list(shape))
        refresh(model, [found])
        return Repairs()
    return resize(model, found, dict(enumerate(shape)))


def resize(model: ir.Model, value: ir.Value, dims: Mapping[int, Dim]) -> Repairs:
    """Change dims of an input and repair what knew the old ones."""
    old = dims_of(value.shape)
    new = [dims.get(axis, dim) for axis, dim in enumerate(old)]
    changed = [axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    fixed = [axis for axis in changed if isinstance(old[axis], int)]
    before = value.shape or ir.Shape(())
    shape = ir.Shape(new, denotations=[before.get_denotation(axis) for axis in range(len(new))])
    if not changed:
        return Repairs()
    if not fixed:
        value.shape = shape
        refresh(model, [value])
        return Repairs()
    return repair(model, value, shape)
