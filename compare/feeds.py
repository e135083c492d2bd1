"""A's inputs as B takes them, where the two are different models."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphdoc.compare.metrics import epsilon
from graphdoc.compare.target import Target
from graphdoc.engine.errors import InputError
from graphdoc.engine.feeds import InputSpec, check_feeds, input_specs


def feeds_for(feeds: Mapping[str, Any], ref: Target, test: Target) -> Mapping[str, Any]:
    """Return the feeds under B's names, in B's dtypes, and only those that B takes.

    Names count; where they differ, the position does. A float becomes a float of B's width (a model and its
    float16 twin are fed the same picture), an integer an integer of B's width if it fits.

    Raises InputError when B needs an input that A lacks, or an input of another kind or shape.
    """
    if test is ref:
        return feeds
    specs = input_specs(test.model)
    names = _names(feeds, ref, test)
    given = {b: _cast(feeds[a], specs[b]) for b, a in names.items() if b in specs and a in feeds}
    missing = [name for name in test.inputs if name not in given]
    if missing:
        raise InputError(
            f"B has an input '{missing[0]}' that A lacks",
            where=f"inputs of A: {', '.join(ref.inputs) or 'none'}; of B: {', '.join(test.inputs)}",
            next_step=f"graphdoc inspect {test.source.name}",
        )
    try:
        check_feeds(test.model, given)
    except InputError as error:
        error.cause = f"A and B take different inputs: {error.cause}"
        error.next_step = f"graphdoc inspect {test.source.name}"
        raise
    return given


def _names(feeds: Mapping[str, Any], ref: Target, test: Target) -> dict[str, str]:
    """Return B's name → A's name."""
    if set(test.inputs) <= set(feeds) or len(ref.inputs) != len(test.inputs):
        return {name: name for name in feeds}
    return dict(zip(test.inputs, ref.inputs, strict=True))


def _cast(value: Any, spec: InputSpec) -> Any:
    if isinstance(value, list):
        return [_cast(item, spec) for item in value]
    if not isinstance(value, np.ndarray) or spec.dtype is None or value.dtype == spec.dtype:
        return value
    if epsilon(value.dtype) and epsilon(spec.dtype):
        with np.errstate(all="ignore"):
            return value.astype(spec.dtype)
    if value.dtype.kind in "iu" and spec.dtype.kind in "iu":
        cast = value.astype(spec.dtype)
        return cast if np.array_equal(cast, value) else value
    return value
